"""Show foreign texts without control sequences, and store them without passwords.

Keys, labels, names and inputs come from anywhere. An escape sequence moves a terminal's cursor, a
reversal of the writing direction hides half of the text, and a newline splits a log line in two.

Errors may quote a connection string. Every error passes through :func:`without_secrets` before it
is recorded, logged or shown; it alone decides what looks like a password. (`pgflow.told_` does the
same for reasons given in SQL.)
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import OrderedDict
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"


def visible(text: str) -> str:
    """Return a text on one line without invisible characters: no controls, no reversals, no halves
    of pairs.
    """
    return " ".join(printable(text).split())


def printable(text: str, *, keep: str = "") -> str:
    """Return a text without invisible characters. Each kind of space becomes one space, and spaces
    are kept.

    Args:
        text: Anything.
        keep: Characters to keep, such as a newline.
    """
    kept = text
    for char in keep:
        kept = kept.replace(char, "")
    if kept.isprintable():
        return text
    return "".join(char if char in keep else _seen(char) for char in text)


def _seen(char: str) -> str:
    if char.isspace():
        return " "
    is_hidden = unicodedata.category(char)[0] == "C" and char not in JOINERS
    return REPLACEMENT if is_hidden else char


def text_of(value: object, otherwise: str = "") -> str:
    """Return the text of a value, such as an error's message, or another text if the code of its
    class fails to give one.
    """
    try:
        return str.__str__(str(value))  # of a subclass other methods may be broken too
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the error
        return otherwise


def cut(text: str, most: int) -> str:
    """Return the text, shortened in the middle if it is too long: an error ends with what counts.

    Args:
        text: Anything.
        most: Maximum number of characters.
    """
    head = most // 6
    return text if len(text) <= most else f"{text[:head]} … {text[head + 3 - most :]}"


# ---------------------------------------------------------------- passwords

MASK = "***"

# No search begins with what may stand anywhere in a text: it would read the rest from each place.
_ENDS = (
    r"password|passwd|passphrase|[_-]pass|secret|(?:api|access|account|private|secret)[_-]?key"
    r"|(?:access|api|auth|id|refresh|secret|session)[_-]?token|\bscram_(?:client|server)_key"
    r"|\b(?:proxy-)?authorization|\b(?:set-)?cookie"
)
_NAMES = rf"[\w-]*?(?:{_ENDS})"
_HINT = re.compile(
    r"://|pass[wp_-]|[_-]pass|pwd|secret|scram_|identified|authorization|bearer|cookie|key|token|eyJ"
    r"|AKIA|ASIA|AIza|gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|[rs]k[_-]|hf_|npm_|whsec_|SG\.",
    re.IGNORECASE,
)
# Up to the last @ before a space or quote: masking too much is better than too little.
_OF_A_USER = re.compile(r"((?<=[A-Za-z0-9.+-])://[^\s:/?#@'\"]*):[^\s'\"]*@")
# A quote may be part of such a password, even behind digits that look like a port.
_WITH_A_QUOTE = re.compile(r"((?<=[A-Za-z0-9.+-])://[^\s:/?#@'\"]*):(?!\*\*\*@)\S*@")
_UNQUOTED = re.compile(r"[^\s'\"]+")
_UNSPACED = re.compile(r"\S+")
_TOKEN = re.compile(r"(\bhttps?://)[^\s:/?#@'\"]{16,}@", re.IGNORECASE)
# A value ends at its closing quote, or else at the next space; an unclosed quote hides the rest.
_VALUE = r"""'(?:[^'\\]|\\.|'')*'?|"(?:[^"\\]|\\.)*"?|(?:[^\s\\]|\\.)*"""
# Behind a colon and a space only a single word is a value, not a sentence about the setting.
_ALONE = r"(?=[^\s]+\s*(?:[\r\n,;)\]}]|$)|['\"])"
_KEYWORD = re.compile(
    rf"({_ENDS})(\s*=\s*|\s*:(?=\S)|\s*:\s+{_ALONE})(?!\s|\*\*\*(?:\W|$))(?:{_VALUE})",
    re.IGNORECASE | re.DOTALL,
)
_MEMBER = re.compile(
    rf"""((?<!\\)\\*["'](?:{_NAMES})\\*["']\s*:\s*)(?:\\+"(?:(?!\\+").)*(?:\\+")?|{_VALUE})""",
    re.IGNORECASE | re.DOTALL,
)
_ODBC = re.compile(r"((?:^|[;\s])pwd\s*=\s*)[^;\s]+(?=;|$)", re.IGNORECASE)
# Headers as text, as members, and as pairs: what follows the scheme.
_HEADER = re.compile(
    r"(authorization\\*['\"]?\s*[:,=]\s*(?:b?\\*['\"])?)(?!\*\*\*)((?:basic|bearer|digest|token)\s+)?"
    r"[^\s'\",)}\]\\]+",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"\b(bearer\s+)(?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}|(?<![\w-])eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?",
    re.IGNORECASE,
)
# Tokens that have no name beside them, by the prefixes that AWS, Google, GitHub, GitLab, Slack,
# Stripe, OpenAI, Anthropic, Hugging Face, npm and SendGrid give them.
_SHAPED = re.compile(
    r"(?<![\w-])(?:(?:AKIA|ASIA)[A-Z0-9]{16}\b|AIza[\w-]{35}|gh[oprsu]_\w{36}|github_pat_\w{22,}"
    r"|glpat-[\w-]{20,}|xox[abeoprs]-\d[\w-]{9,}|[rs]k_(?:live|test)_\w{16,}|whsec_[\w+/=]{16,}"
    r"|sk-(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{20,}|hf_[A-Za-z]{30,}|npm_\w{36}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,})"
)
_QUERY = re.compile(
    r"([?&](?:[\w-]*(?:token|secret|signature)|sig|api_?key)=)[^&\s'\"#]+", re.IGNORECASE
)
_OPTION = re.compile(
    r"((?<![\w-])--[\w-]*(?:password|token|secret|api-key)(?:=|['\"]?,?\s+['\"]?))"
    r"(?!-)[^\s'\",\]]+",
    re.IGNORECASE,
)
_PEM = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|$)", re.DOTALL)
_STATEMENT = re.compile(r"\b(password|identified\s+by)(\s+)'(?:[^']|'')*'?", re.IGNORECASE)
_NAMED = re.compile(_NAMES, re.IGNORECASE)


SHORTEST = 6
"""Characters of the shortest secret that is masked everywhere: a shorter one may be a word."""

_MOST_KNOWN = 1000
_known: OrderedDict[str, None] = OrderedDict()
_known_pattern: re.Pattern[str] | None = None


def keep_secret(value: object) -> None:
    """Mask a value of a ``Secret`` from now on wherever this process logs, records or shows it.

    It is kept in memory only. The thousand values that came last are known.

    Args:
        value: A text, or bytes of one. A text of fewer than six characters, and any other value, is
            not searched for.
    """
    global _known_pattern  # noqa: PLW0603 - made again when it is needed
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(text, str) or len(text) < SHORTEST:
        return
    if text in _known:
        _known.move_to_end(text)
        return
    _known[text] = None
    if len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)
    _known_pattern = None


def _without_known(text: str) -> str:
    global _known_pattern  # noqa: PLW0603 - as above
    if _known_pattern is None:
        # As it is, and as JSON and repr() write it; the longer ones first.
        said = {form for one in list(_known) for form in (one, _coded(one), repr(one)[1:-1])}
        _known_pattern = re.compile("|".join(map(re.escape, sorted(said, key=len, reverse=True))))
    return _known_pattern.sub(MASK, text)


def _coded(text: str) -> str:
    return json.dumps(text)[1:-1]


def looks_secret(text: str) -> bool:
    """Return False if a text cannot contain a password."""
    return bool(_known) or _HINT.search(text) is not None


def without_secrets(text: str) -> str:
    """Mask the passwords in a text: in URLs, connection strings, members of objects and statements;
    tokens of well-known services, by their prefixes; and the values of every ``Secret`` that this
    process has stored or read.

    Args:
        text: Any text, for example an error message.

    Returns:
        The text with each password replaced by ``***``.

    Example::

        without_secrets("cannot reach postgresql://app:hunter2@db/orders")
        # 'cannot reach postgresql://app:***@db/orders'
    """
    if _known:
        text = _without_known(text)
    if _HINT.search(text) is None:
        return text
    if "://" in text:
        text = _UNQUOTED.sub(lambda run: _up_to_at(_OF_A_USER, run[0]), text)
        text = _UNSPACED.sub(lambda run: _up_to_at(_WITH_A_QUOTE, run[0]), text)
        text = _TOKEN.sub(rf"\1{MASK}@", text)
    text = _SHAPED.sub(MASK, _PEM.sub(rf"\1{MASK}", text))
    text = _HEADER.sub(rf"\1\2{MASK}", text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    text = _OPTION.sub(rf"\1{MASK}", text)
    text = _MEMBER.sub(rf'\1"{MASK}"', text)
    text = _STATEMENT.sub(rf"\1\2'{MASK}'", text)
    text = _ODBC.sub(rf"\1{MASK}", text)
    return _KEYWORD.sub(rf"\1\2{MASK}", text)


def _up_to_at(pattern: re.Pattern[str], run: str) -> str:
    """Mask the passwords of users in a text without spaces: none is behind its last @."""
    head, at, tail = run.rpartition("@")
    return pattern.sub(rf"\1:{MASK}@", head + at) + tail if "://" in head else run


def is_secret_name(name: str) -> bool:
    """Return True if a member with this name holds a password."""
    return _NAMED.fullmatch(name) is not None


def without_secrets_in(value: Any) -> Any:
    """Mask the passwords in the texts of a JSON value, and the members with a secret name."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, list):
        return [without_secrets_in(one) for one in value]
    if isinstance(value, dict):
        return {
            without_secrets(name): MASK
            if isinstance(one, str) and is_secret_name(name)
            else without_secrets_in(one)
            for name, one in value.items()
        }
    return value


_USERINFO = re.compile(r"(?<![/\w])(\w[^\s:/@\"]*):[^\s\"/][^\s\"]*@")


def hide_secrets(text: str) -> str:
    """Return a text with the passwords of every connection string in it replaced by ``***``, also
    where its scheme was left out.
    """
    return _USERINFO.sub(r"\1:***@", without_secrets(text))
