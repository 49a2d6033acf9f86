"""Shapes of the values in a workflow file: small checks put together, and the original's words when
one fails.

The original describes its files with a schema library (zod); its messages are part of what authors
know, so the checks here say the same, in the same order. Two things of that library matter for the
order and the number of messages: a value that is of the wrong kind is not looked at any further,
while a value of the right kind with a wrong content is; and a rule about several fields together is
asked only if none of them is of the wrong kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pgflow.declare.text.javascript import trim
from pgflow.declare.text.yamlfile import Steps

MISSING: Final = object()
"""Value of a field that is not there; a field that says nothing has None."""

_NO_CHARACTERS = "Too small: expected string to have >=1 characters"
_LARGEST_INTEGER = (1 << 53) - 1


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is wrong with a value: where in it, what,
    and whether it is of the wrong kind altogether.
    """

    path: Steps
    message: str
    fatal: bool = False


@dataclass(slots=True)
class Flaws:
    """Flaws of a value so far."""

    found: list[Flaw] = field(default_factory=list)

    def wrong_kind(self, path: Steps, message: str) -> None:
        """Add a flaw: the value is of another kind."""
        self.found.append(Flaw(path, message, fatal=True))

    def wrong(self, path: Steps, message: str) -> None:
        """Add a flaw: the value is of the right kind, but not valid."""
        self.found.append(Flaw(path, message))

    def fatal_since(self, start: int) -> bool:
        """Return True if any flaw since then is one of a wrong kind."""
        return any(flaw.fatal for flaw in self.found[start:])


Shape = Callable[[Any, Steps, Flaws], Any]
"""Checks a value at a path, records its flaws, and returns it as it is used."""

Rule = Callable[[dict[str, Any], Steps, Flaws], None]
"""Checks several fields of a mapping together."""


def kind_of(value: object) -> str:
    """Return the kind of a value in the words of JavaScript's users."""
    if value is MISSING:
        return "undefined"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity"
    names = {str: "string", int: "number", float: "number", list: "array", dict: "object"}
    return names[type(value)]


def refuse(value: object, expected: str, path: Steps, flaws: Flaws) -> None:
    """Write down that a value is of the wrong kind."""
    flaws.wrong_kind(path, f"Invalid input: expected {expected}, received {kind_of(value)}")


def anything(value: Any, _path: Steps, _flaws: Flaws) -> Any:
    """Any value."""
    return value


def boolean(value: Any, path: Steps, flaws: Flaws) -> Any:
    """``true`` or ``false``."""
    if not isinstance(value, bool):
        refuse(value, "boolean", path, flaws)
    return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text: at least one character long if ``empty`` says what is wrong otherwise, of a pattern,
    trimmed first.
    """

    empty: str | None = None
    trimmed: bool = False
    blank: str | None = None
    pattern: re.Pattern[str] | None = None
    otherwise: str = ""

    def __call__(self, value: Any, path: Steps, flaws: Flaws) -> Any:
        """Check a value."""
        if not isinstance(value, str):
            refuse(value, "string", path, flaws)
            if value == [] and self.empty is not None:
                flaws.wrong(path, self.empty or "Too small: expected array to have >=1 items")
            return value
        text = trim(value) if self.trimmed else value
        if self.empty is not None and not text:
            flaws.wrong(path, self.empty or _NO_CHARACTERS)
        if self.blank is not None and not trim(text):
            flaws.wrong(path, self.blank)
        if self.pattern is not None and not self.pattern.fullmatch(text):
            flaws.wrong(path, self.otherwise)
        return text


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in bounds, whole if need be."""

    whole: bool = False
    above: float | None = None
    least: float | None = None
    most: float | None = None
    otherwise: str = ""

    def __call__(self, value: Any, path: Steps, flaws: Flaws) -> Any:
        """Check a value."""
        if kind_of(value) != "number":
            refuse(value, "number", path, flaws)
            return value
        if self.whole and not self._is_whole(value, path, flaws):
            return value
        if self.above is not None and value <= self.above:
            flaws.wrong(path, self.otherwise or f"Too small: expected number to be >{self.above:g}")
        if self.least is not None and value < self.least:
            flaws.wrong(
                path, self.otherwise or f"Too small: expected number to be >={self.least:g}"
            )
        if self.most is not None and value > self.most:
            flaws.wrong(path, self.otherwise or f"Too big: expected number to be <={self.most:g}")
        return value

    def _is_whole(self, value: float, path: Steps, flaws: Flaws) -> bool:
        if not float(value).is_integer():
            refuse(value, "int", path, flaws)
            return False
        if abs(value) > _LARGEST_INTEGER:
            bound = f"<={_LARGEST_INTEGER}" if value > 0 else f">=-{_LARGEST_INTEGER}"
            flaws.wrong(path, f"Too {'big' if value > 0 else 'small'}: expected int to be {bound}")
        return True


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def __call__(self, value: Any, path: Steps, flaws: Flaws) -> Any:
        """Check a value."""
        if value not in self.words or not isinstance(value, str):
            expected = "|".join(f'"{word}"' for word in self.words)
            many = len(self.words) > 1
            flaws.wrong_kind(
                path,
                f"Invalid option: expected one of {expected}"
                if many
                else f"Invalid input: expected {expected}",
            )
        return value


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of such values; not an empty one if ``empty`` says what is wrong otherwise."""

    item: Shape
    empty: str | None = None

    def __call__(self, value: Any, path: Steps, flaws: Flaws) -> Any:
        """Check a value."""
        if not isinstance(value, list):
            refuse(value, "array", path, flaws)
            if value == "" and self.empty is not None:
                flaws.wrong(path, self.empty)
            return value
        items = [self.item(item, (*path, index), flaws) for index, item in enumerate(value)]
        if self.empty is not None and not items:
            flaws.wrong(path, self.empty)
        return items


@dataclass(frozen=True, slots=True)
class RecordOf:
    """A mapping of any keys to such values."""

    item: Shape
    rule: Rule | None = None

    def __call__(self, value: Any, path: Steps, flaws: Flaws) -> Any:
        """Check a value."""
        if not isinstance(value, dict):
            refuse(value, "record", path, flaws)
            return value
        start = len(flaws.found)
        items = {key: self.item(item, (*path, key), flaws) for key, item in value.items()}
        if self.rule is not None and not flaws.fatal_since(start):
            self.rule(items, path, flaws)
        return items


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping of known fields. Other keys are dropped, unless ``others`` says to ``keep`` or to
    ``refuse`` them.

    ``required`` names the fields that must be there, ``defaults`` what those have that are not.
    """

    shapes: Mapping[str, Shape]
    required: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    others: str = "drop"

    def __call__(self, value: Any, path: Steps, flaws: Flaws) -> Any:
        """Check a value."""
        if not isinstance(value, dict):
            refuse(value, "object", path, flaws)
            return value
        start = len(flaws.found)
        taken = dict(value) if self.others == "keep" else {}
        for name, shape in self.shapes.items():
            given = value.get(name, MISSING)
            if given is not MISSING or name in self.required:
                taken[name] = shape(given, (*path, name), flaws)
            elif name in self.defaults:
                taken[name] = self.defaults[name]
        if self.others == "refuse":
            self._refuse_others(value, path, flaws)
        for rule in self.rules:
            if not flaws.fatal_since(start):
                rule(taken, path, flaws)
        return taken

    def _refuse_others(self, value: dict[str, Any], path: Steps, flaws: Flaws) -> None:
        others = [f'"{name}"' for name in value if name not in self.shapes]
        if others:
            flaws.wrong(
                path, f"Unrecognized key{'s' if len(others) > 1 else ''}: {', '.join(others)}"
            )

    def knows(self, name: str) -> bool:
        """Return True if there is such a field."""
        return name in self.shapes


@dataclass(frozen=True, slots=True)
class Either:
    """A value of any of these shapes. If its kind fits one shape but its content does not, the
    error is that shape's.
    """

    shapes: tuple[Shape, ...]

    def __call__(self, value: Any, path: Steps, flaws: Flaws) -> Any:
        """Check a value."""
        near: list[tuple[Flaws, Any]] = []
        for shape in self.shapes:
            own = Flaws()
            taken = shape(value, path, own)
            if not own.found:
                return taken
            if not own.fatal_since(0):
                near.append((own, taken))
        if len(near) == 1:
            flaws.found += near[0][0].found
            return near[0][1]
        flaws.wrong_kind(path, "Invalid input")
        return value


def is_json(value: Any) -> bool:
    """Return True if a value has a form in JSON; infinities and NaN have none."""
    if isinstance(value, list):
        return all(map(is_json, value))
    if isinstance(value, dict):
        return all(map(is_json, value.values()))
    return not isinstance(value, float) or math.isfinite(value)


def problems_of(shape: Shape, value: Any) -> tuple[Any, list[Flaw]]:
    """Return a value as a shape takes it, and its flaws."""
    flaws = Flaws()
    return shape(value, (), flaws), flaws.found
