"""The values of an included workflow's inputs,
and putting them in the place of ``$INPUTS`` in its texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pgflow.declare.dag.drafts import Draft
from pgflow.declare.dag.loading import Loaded
from pgflow.declare.dag.surfaces import changed
from pgflow.declare.graph import Unparsed
from pgflow.declare.text.conditions import parse_condition
from pgflow.declare.text.javascript import json_text, trim
from pgflow.declare.text.yamlfile import Steps

MAX_FILLED: Final = 10_000_000
"""Characters that may be put in the place of inputs, in all."""

_INPUT = re.compile(r"\$INPUTS\.([a-zA-Z_][a-zA-Z0-9_-]*)")


class WrongInclude(Exception):
    """An include cannot be expanded."""

    def __init__(self, message: str, path: Steps = (), hint: str = "") -> None:
        super().__init__(message)
        self.message, self.path, self.hint = message, path, hint


class NothingFound(WrongInclude):
    """No file to include is known by this name. Elsewhere there may be one."""


@dataclass(slots=True)
class Room:
    """Room left for text from inputs: a long one that is asked for a thousand times must not fill
    the memory.
    """

    left: int = MAX_FILLED

    def take(self, characters: int) -> None:
        """Use some of it up."""
        self.left -= characters
        if self.left < 0:
            raise WrongInclude(f"More than {MAX_FILLED:,} characters come from inputs")


def given_inputs(include: Draft, child: Loaded) -> dict[str, Any]:
    """Return the values of an included workflow's inputs: what the caller gives, and the defaults
    of what it does not.
    """
    given: dict[str, Any] = include.fields.get("with", {})
    declared = child.options.inputs
    if not declared:
        return given
    callee = f"Node '{include.id}': included block '{child.name}'"
    if strange := sorted(name for name in given if name not in declared):
        names, known = ", ".join(f"'{name}'" for name in strange), ", ".join(sorted(declared))
        raise WrongInclude(
            f"{callee} does not declare input{'s' * (len(strange) > 1)} {names}. Declared inputs: "
            f"{known}."
        )
    missing = sorted(
        name for name, about in declared.items() if about.get("required") and name not in given
    )
    if missing:
        names, many = ", ".join(f"'{name}'" for name in missing), len(missing) > 1
        raise WrongInclude(
            f"{callee} requires input{'s' * many} {names}. "
            f"Pass {'them' if many else 'it'} through 'with:'."
        )
    return {
        name: given.get(name, about.get("default"))
        for name, about in declared.items()
        if name in given or "default" in about
    }


@dataclass(slots=True)
class Filling:
    """Putting the values of inputs in the place of ``$INPUTS``, and noting which ones are asked for
    and not there.
    """

    include: Draft
    inputs: dict[str, Any]
    room: Room
    missing: set[str] = field(default_factory=set)
    own: frozenset[str] = frozenset()

    def fill(self, node: Draft) -> Draft:
        """Return a node, and the nodes inside it. What a node is given by itself is nearer than
        what its file is given.
        """
        valued = self._with_values(node)
        self.own = frozenset(valued.fields.get("with", {}))
        new = changed(valued, self._text, inside=False)
        self.own = frozenset()
        when = new.fields.get("when")
        if when is not None:
            new = new.with_fields(when=self._condition(when, node.id))
        inputs = {name: self._value(value) for name, value in node.inputs.items()}
        return replace(new, inputs=inputs, body=tuple(self.fill(inner) for inner in node.body))

    def _with_values(self, node: Draft) -> Draft:
        """Return a node whose arguments that are nothing but an input have its value, which need
        not be a text.
        """
        given = node.fields.get("with")
        if not given:
            return node
        return node.with_fields(
            **{"with": {name: self._value(value) for name, value in given.items()}}
        )

    def _value(self, value: Any) -> Any:
        whole = _INPUT.fullmatch(trim(value)) if isinstance(value, str) else None
        if whole is not None and whole[1] in self.inputs:
            return self.inputs[whole[1]]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        return _INPUT.sub(self._filled, text)

    def _filled(self, found: re.Match[str]) -> str:
        if found[1] in self.own:
            return found.group()
        if found[1] not in self.inputs:
            self.missing.add(found[1])
            return found.group()
        value = self.inputs[found[1]]
        text = value if isinstance(value, str) else json_text(value)
        self.room.take(len(text))
        return text

    def _condition(self, when: str, node_id: str) -> str:
        filled = self._text(when)
        if filled != when and _is_sound(when) and not _is_sound(filled):
            raise WrongInclude(
                f"Node '{self.include.id}': input substitution made included node '{node_id}' "
                f'field \'when\' unparseable: "{when}" became "{filled}". Put '
                "'$INPUTS.<name>' on the right-hand side of a comparison whose left-hand side "
                "is a node-output reference.",
            )
        return filled


def _is_sound(when: str) -> bool:
    return not any(
        isinstance(part, Unparsed) for clause in parse_condition(when).any_of for part in clause
    )
