"""Commands of the shell, and their reach: changes that a snapshot can take back, and others.

The list is of names, so it guesses what a program does, and does not sandbox it. A command that is
not on it is ``unknown``. An agent should ask before it runs one, as before all that reach outside.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Reach = Literal["reads", "files", "repository", "unknown", "outside"]
"""Reach of a command, from the least to the worst.

- ``reads``: changes nothing.
- ``files``: changes files of the folder, which snapshots have.
- ``repository``: changes the index, branches or stash, which git's own log can bring back.
- ``unknown``: not classified.
- ``outside``: leaves the machine: a push, a publication, a comment. Nothing here brings it back.
"""

ORDER: tuple[Reach, ...] = ("reads", "files", "repository", "unknown", "outside")

READS = """
    basename cat cd cmp comm cut date diff dirname du echo false fgrep egrep file grep head jq less
    ls md5sum printf pwd readlink realpath rg sha256sum sleep sort stat tail test tree true tr uname
    uniq wc which whoami
"""
FILES = """
    black chmod clang-format cp eslint find gofmt gzip isort ln mkdir mv mypy patch prettier pyright
    pytest rm rmdir ruff rustfmt sed tar tee touch truncate tsc unzip zip
"""
OUTSIDE = """
    aws az docker doctl ftp gcloud git gh glab helm heroku hub kubectl mail nc netcat rsync scp
    sendmail sftp ssh telnet terraform twine vercel
"""
WORDS: tuple[tuple[str, str, Reach], ...] = (
    ("git", "blame cat-file describe diff fetch grep log ls-files ls-remote ls-tree", "reads"),
    ("git", "rev-list rev-parse shortlog show show-ref status", "reads"),
    ("git", "add am apply bisect branch checkout cherry-pick clean clone commit gc", "repository"),
    ("git", "init merge mv notes pull rebase reset restore revert rm stash switch", "repository"),
    ("git", "tag worktree", "repository"),
    ("cargo", "build check clippy fmt test", "files"),
    ("docker", "build images ps", "files"),
    ("go", "build fmt generate mod test vet", "files"),
    ("npm", "ci install run test", "files"),
    ("pip", "install", "files"),
    ("pnpm", "install run test", "files"),
    ("terraform", "fmt plan validate", "files"),
    ("uv", "lock pip run sync", "files"),
    ("yarn", "install run test", "files"),
    *((tool, "publish", "outside") for tool in ("cargo", "npm", "pnpm", "poetry", "uv", "yarn")),
    *(
        (f"gh {noun}", "checks diff list status view", "reads")
        for noun in ("issue", "pr", "release", "repo", "run", "workflow")
    ),
)
RULES: dict[str, Reach] = {
    **dict.fromkeys(READS.split(), "reads"),
    **dict.fromkeys(FILES.split(), "files"),
    **dict.fromkeys(OUTSIDE.split(), "outside"),
    **{f"{tool} {word}": reach for tool, words, reach in WORDS for word in words.split()},
}
"""The name of a program, or it and its first words: the longest that fits counts."""

PREFIXES = {"command", "env", "exec", "nice", "nohup", "stdbuf", "time", "timeout", "xargs"}
SHELLS = {"bash", "dash", "sh", "zsh"}
SENDING = {
    "-d", "--data", "--data-binary", "--data-raw", "--data-urlencode", "-F", "--form", "--json",
    "-T", "--upload-file", "--post-data", "--post-file", "--body-data", "--body-file",
}  # fmt: skip
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}


@dataclass(frozen=True)
class Command:
    """Reach of a command, and the name that decides it.

    Attributes:
        reach: The worst of its parts.
        rule: The name on the list that decides it; empty if there is none.
    """

    reach: Reach
    rule: str

    @property
    def needs_leave(self) -> bool:
        """True if an agent should ask before it runs this."""
        return self.reach in ("unknown", "outside")


def classify(command: str | Sequence[str], rules: Mapping[str, Reach] | None = None) -> Command:
    """Says where a command reaches.

    Args:
        command: A line for the shell, or the words of one program.
        rules: More names, and others for those on the list: ``{"make": "files"}``.

    Returns:
        The worst of all programs in it. Whatever cannot be read is unknown.
    """
    known: dict[str, Reach] = {**RULES, **(rules or {})}
    if not isinstance(command, str):
        return _classify_words(list(command), known)
    if any(sign in command for sign in ("$(", "`", "<(", ">(", "\n")):
        return _worst([Command("unknown", ""), *_parts(command, known)])
    return _worst(_parts(command, known))


def _parts(command: str, known: Mapping[str, Reach]) -> list[Command]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return [Command("unknown", "")]
    parts: list[list[str]] = [[]]
    writes = False
    for word in words:
        if word and set(word) <= set("();|&"):
            parts.append([])
        elif word and set(word) <= set("<>&"):
            writes = writes or ">" in word
        else:
            parts[-1].append(word)
    found = [_classify_words(part, known) for part in parts if part]
    return [*found, *([Command("files", ">")] if writes else [])] or [Command("reads", "")]


def _classify_words(words: list[str], known: Mapping[str, Reach]) -> Command:
    while words and ("=" in words[0].partition("/")[0] or _name(words[0]) in PREFIXES):
        prefix = _name(words.pop(0))
        while prefix in PREFIXES and words and (words[0][:1] == "-" or words[0][:1].isdigit()):
            words.pop(0)
    if not words:
        return Command("unknown", "")
    program, arguments = _name(words[0]), words[1:]
    if program in SHELLS:
        if len(arguments) >= 2 and arguments[0] in ("-c", "-lc", "-ec"):
            return _worst([*_parts(arguments[1], known)])
        return Command("unknown", "")
    if program in ("curl", "wget"):
        return _classify_request(program, arguments)
    if program == "find" and not {"-delete", "-exec", "-execdir", "-ok", "-fprint"} & set(
        arguments
    ):
        return Command("reads", "find")
    if program == "find" and {"-exec", "-execdir", "-ok"} & set(arguments):
        return Command("unknown", "find")
    named = [program, *_subcommands(arguments)]
    for count in range(len(named), 0, -1):
        rule = " ".join(named[:count])
        if rule in known:
            return Command(known[rule], rule)
    return Command("unknown", "")


def _classify_request(program: str, arguments: list[str]) -> Command:
    for n, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if name in SENDING or (word[:2] in SENDING and len(word) > 2):
            return Command("outside", program)
        if name in ("-X", "--request", "--method"):
            method = value or (arguments[n + 1] if n + 1 < len(arguments) else "")
            if method.upper() not in SAFE_METHODS:
                return Command("outside", program)
        if word[:2] == "-X" and len(word) > 2 and word[2:].upper() not in SAFE_METHODS:
            return Command("outside", program)
    return Command("reads", program)


def _subcommands(arguments: list[str]) -> list[str]:
    """Return the first words that are not options; of git's, those behind ``-C`` and ``-c`` are
    skipped.
    """
    found: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word in ("-C", "-c", "--git-dir", "--work-tree", "--repo", "-R"):
            skip = True
        elif not word.startswith("-"):
            found.append(word)
        if len(found) == 2:
            break
    return found


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _worst(commands: list[Command]) -> Command:
    return max(commands, key=lambda command: ORDER.index(command.reach))
