"""References in texts: finding ``$node.output`` and ``$node.output.field``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_REFERENCE = re.compile(r"\$([a-zA-Z_][a-zA-Z0-9_-]*)\.output(?:\.([a-zA-Z_][a-zA-Z0-9_]*))?")


@dataclass(frozen=True, slots=True)
class Reference:
    """One mention of a node's output in a text: ``text[start:end]``."""

    node_id: str
    field: str | None
    start: int
    end: int
    text: str


def references(text: str) -> Iterator[Reference]:
    """Every mention of a node's output, from left to right.

    Args:
        text: A template: a prompt, a script, a message.

    Returns:
        The references. There is no escape and no boundary at the right: ``$a.outputs`` is ``$a.output`` and an "s".
    """
    for found in _REFERENCE.finditer(text):
        yield Reference(found[1], found[2], found.start(), found.end(), found[0])
