"""Values of a run's inputs: those that were given, and the defaults of the others.

A default may be made of other inputs (``.agents/{project_name}``). It is filled in once, given
values are not read again, and a name without a value stays in its braces, so that the reader of the
text sees what is missing. Defaults may name each other in circles or double each other, and files
are untrusted, so the depth and length of a filled-in default are limited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from pgflow.declare.graph import Graph
from pgflow.declare.text.outputs import value_text

_IN_BRACES: Final = re.compile(r"\{([\w.-]+)\}")
_MOST_DEPTH: Final = 20
_MOST_CHARS: Final = 65_536
"""Longest default with everything that is filled in."""

SATISFIED: Final[JsonValue] = {"status": "satisfied"}
"""Output of a wait that is over."""

EXPIRED: Final[JsonValue] = {"status": "expired"}
"""Output of a wait whose event has not come in time."""


def placeholder_command(name: str) -> str:
    """Return a text in place of a command's file, which a dry run does not read."""
    return f"Command {name}: $ARGUMENTS\n"


def input_values(graph: Graph, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the values of a workflow's inputs; those without a value are not there.

    Args:
        graph: The workflow.
        given: Values that were given.
    """
    filling = _Filling(graph, given)
    for one in graph.inputs:
        filling.value(one.name)
    return filling.found


def names_in(default: JsonValue) -> set[str]:
    """Names in braces in a default."""
    return set(_IN_BRACES.findall(default)) if isinstance(default, str) else set()


class _Filling:
    """Fills in the defaults of one run, each once."""

    def __init__(self, graph: Graph, given: Mapping[str, JsonValue]) -> None:
        self.found = dict(given)
        self._inputs = {one.name: one for one in graph.inputs}
        self._open: set[str] = set()

    def value(self, name: str) -> JsonValue:
        """Return the value of an input; None if it has none, or is just being made."""
        one = self._inputs.get(name)
        if name in self.found:
            return self.found[name]
        if one is None or not one.has_default or name in self._open:
            return None
        value = one.default
        if one.is_template and isinstance(value, str) and len(self._open) < _MOST_DEPTH:
            self._open.add(name)
            value = self._filled(value)
            self._open.discard(name)
        self.found[name] = value
        return value

    def _filled(self, default: str) -> str:
        """Return a default with the values of the inputs that it names."""
        left = _MOST_CHARS

        def text(found: re.Match[str]) -> str:
            nonlocal left
            value = self.value(found[1])
            filled = found[0] if value in (None, "") else value_text(value)
            left -= len(filled)
            return filled if left >= 0 else found[0]

        return _IN_BRACES.sub(text, default)
