"""The little language of ``when``: comparisons, joined by ``&&`` (binds tighter) and ``||``, without parentheses.

A text is parsed once, when its file is read. Parts that are no comparison stay in the condition as `Unparsed`: the original
looks at a condition from left to right and no further than needed, so a bad part harms only if it is reached. Then the node
is skipped; a condition that cannot be understood never lets work happen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from pgflow.declare.graph import Atom, Condition, Operator, Position, Unparsed
from pgflow.declare.javascript import SPACE, trim

_NAME = "[a-zA-Z_][a-zA-Z0-9_-]*"
_FIELD = "[a-zA-Z_][a-zA-Z0-9_]*"
_ATOM = re.compile(
    rf"(?P<reference>\$INPUTS\.(?P<input>{_NAME})|\$(?P<node>{_NAME})\.(?P<first>{_FIELD})(?:\.(?P<second>{_FIELD}))?)"
    rf"{SPACE}*(?P<operator>==|!=|<=|>=|<|>){SPACE}*"
    r"(?:'(?P<quoted>[^']*)'|(?P<bare>-?[0-9]+(?:\.[0-9]+)?|true|false))"
)


def parse_condition(text: str, position: Position | None = None) -> Condition:
    """Read a condition. Never fails: what is no comparison is kept as `Unparsed`, and skips its node if it is reached.

    Args:
        text: The text after ``when``.
        position: Where it stands.

    Returns:
        The condition: alternatives of parts that must all hold.
    """
    alternatives = (tuple(map(_part, _split(clause, "&&"))) for clause in _split(trim(text), "||"))
    return Condition(text=text, any_of=tuple(alternatives), position=position)


def _split(text: str, separator: str) -> Iterator[str]:
    """The trimmed pieces between separators that stand outside single quotes."""
    start = place = 0
    quoted = False
    while place < len(text):
        if not quoted and text.startswith(separator, place):
            yield trim(text[start:place])
            start = place = place + len(separator)
            continue
        quoted ^= text[place] == "'"
        place += 1
    yield trim(text[start:])


def _part(text: str) -> Atom | Unparsed:
    """One part of a condition, as a comparison if it is one."""
    found = _ATOM.fullmatch(text)
    if found is None or _is_no_reference(found):
        return Unparsed(text=text)
    quoted = found["quoted"]
    return Atom(
        reference=found["reference"],
        operator=cast("Operator", found["operator"]),
        literal=found["bare"] if quoted is None else quoted,
        is_quoted=quoted is not None,
    )


def _is_no_reference(found: re.Match[str]) -> bool:
    """Whether the left side goes deeper than references do: ``$INPUTS.a.b``, or ``$node.field.deeper``."""
    if found["input"] is not None:
        return False
    return found["node"] == "INPUTS" or (found["first"] != "output" and found["second"] is not None)
