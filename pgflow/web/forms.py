"""Forms for values: the fields of a value by its type, and the value that a user enters.

The type is a shape, which the run journaled when it asked, so the console does not need the app's
code. One walk over shape, value and texts serves both ways, so a field that is shown again has the
typed text, and its error. An untouched field keeps its value to the letter, and a value that fits
no field is written as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pgflow.console.words import written
from pgflow.web.slots import ABSENT, MOST_ROWS, Slot, is_date, kind_of, slot_of, slots_of

MOST_INPUTS = 100
"""A form with more of them is written as JSON."""
MOST_DEPTH = 5
INPUT, ROWS, HAS, DROP = "value:", "rows:", "has:", "drop:"
"""Beginnings of the names of a form: a field, the number of a list's rows, whether a part is there
at all, and a row to be left out. A pointer as of JSON follows (RFC 6901).
"""


@dataclass
class Field:
    """A field of a form, or a group or list of some.

    Attributes:
        slot: The part of the value that it is for.
        kind: ``text``, ``lines``, ``number``, ``choice``, ``date``, ``json``; ``group``, ``list``.
        text: Text in it.
        hint: Words on the texts that it takes.
        choices: Of a choice: texts that are sent, and those that are shown.
        parts: Of a group or a list: its fields.
        is_there: Of an optional group or list: True if it is there; else None.
        is_dropped: True for a row that the user removes.
        is_new: True for the first field of a row that the user just added.
        error: Reason why this text is refused; empty for none.
        result: Its value as JSON; ``ABSENT`` for none.
    """

    slot: Slot
    kind: str
    text: str = ""
    hint: str = ""
    choices: list[tuple[str, str]] = field(default_factory=list)
    parts: list[Field] = field(default_factory=list)
    is_there: bool | None = None
    is_dropped: bool = False
    is_new: bool = False
    error: str = ""
    result: Any = ABSENT

    @property
    def pointer(self) -> str:
        """Pointer to it."""
        return self.slot.pointer

    @property
    def input(self) -> str:
        """Its name in the form."""
        return INPUT + self.slot.pointer

    @property
    def leaves(self) -> Iterator[Field]:
        """The fields in it that are written, or itself."""
        if self.kind in ("group", "list"):
            for part in self.parts:
                yield from part.leaves
        else:
            yield self

    @property
    def wrong(self) -> list[Field]:
        """The fields that cannot be as they are."""
        if self.is_there is False or self.is_dropped:
            return []
        own = [self] if self.error else []
        return [*own, *(one for part in self.parts for one in part.wrong)]


def form_of(
    shape: Any,
    value: Any = ABSENT,
    typed: Mapping[str, str] | None = None,
    add: str | None = None,
) -> Field | None:
    """Return the form for a value; None if it is written as JSON as a whole.

    Args:
        shape: Shape of the value.
        value: The value as it is; ``ABSENT`` if there is none yet.
        typed: Fields that the user sent; None for a fresh form.
        add: Pointer of a list to add a row to; None for none.
    """
    made = _Form(typed, add).make(slot_of(shape, value), 0)
    is_plain = made.kind == "json" or (made.kind == "group" and not made.parts)
    too_many = sum(1 for _ in made.leaves) > MOST_INPUTS
    return None if is_plain or too_many else made


class _Form:
    """One walk over a value and the texts that a user typed."""

    def __init__(self, typed: Mapping[str, str] | None, add: str | None) -> None:
        self._typed = typed
        self._add = add

    def make(self, slot: Slot, depth: int) -> Field:
        """Return the field of a part of a value."""
        kind = kind_of(slot)
        if kind in ("group", "list") and depth < MOST_DEPTH:
            made = Field(slot, kind, hint=slot.about, is_there=self._is_there(slot))
            (self._group if kind == "group" else self._list)(made, depth)
            if made.is_there is False:
                made.result = slot.nothing
            return made
        made = Field(slot, "json" if kind in ("group", "list") else kind, hint=_hint(slot))
        made.choices = _choices(slot) if kind == "choice" else []
        self._leaf(made)
        return made

    def _is_there(self, slot: Slot) -> bool | None:
        """Return whether a part that may be left out is there; None if it may not."""
        if not slot.pointer or (slot.is_required and not slot.may_be_null):
            return None
        if self._typed is None:
            return slot.value is not ABSENT and slot.value is not None
        is_wanted = f"{self._add}/".startswith(f"{slot.pointer}/")
        return is_wanted or HAS + slot.pointer in self._typed

    def _group(self, made: Field, depth: int) -> None:
        slot = made.slot
        value = slot.value if isinstance(slot.value, dict) else {}
        made.parts = [self.make(one, depth + 1) for one in slots_of(slot, value)]
        parts = {part.slot.label: part.result for part in made.parts}
        changed = {**value, **{name: one for name, one in parts.items() if one is not ABSENT}}
        made.result = {
            name: one for name, one in changed.items() if parts.get(name, one) is not ABSENT
        }

    def _list(self, made: Field, depth: int) -> None:
        slot, items = made.slot, made.slot.shape["items"]
        value = slot.value if isinstance(slot.value, list) else []
        rows = self._rows(slot, len(value))
        for n in range(rows):
            one = value[n] if n < len(value) else ABSENT
            part = self.make(slot_of(items, one, f"{slot.pointer}/{n}", str(n + 1)), depth + 1)
            part.is_dropped = f"{DROP}{part.pointer}" in (self._typed or {})
            is_new = self._add == slot.pointer and n == rows - 1
            if is_new:
                next(part.leaves, part).is_new = True
            elif n >= len(value) and all(not leaf.text for leaf in part.leaves):
                part.is_dropped = True  # a row that was added, and left empty
            made.parts.append(part)
        made.result = [part.result for part in made.parts if not part.is_dropped]
        if slot.value is ABSENT and not rows and not slot.is_required:
            made.result = ABSENT

    def _rows(self, slot: Slot, before: int) -> int:
        said = (self._typed or {}).get(ROWS + slot.pointer, "")
        rows = int(said) if said.isascii() and said.isdigit() and len(said) < 4 else before
        rows += self._add == slot.pointer
        return max(before, min(rows, MOST_ROWS))

    def _leaf(self, made: Field) -> None:
        """Read the text of a field."""
        slot = made.slot
        before = _text_of(made.kind, slot.value)
        made.text, made.result = before, slot.value
        if self._typed is None:
            return
        made.text = self._typed.get(made.input, "")
        if made.text == before and slot.value is not ABSENT:
            return
        is_text = made.kind in ("text", "lines")
        is_cleared = is_text and isinstance(slot.value, str) and not slot.may_be_null
        if (made.text if is_text else made.text.strip()) or is_cleared:
            try:
                made.result = _READERS[made.kind](made)
            except ValueError as error:
                made.error = str(error)
        else:
            made.result = slot.nothing
            is_missing = made.result is ABSENT and slot.is_required
            made.error = "Fill this in." if is_missing else ""


# ---------------------------------------------------------------- values and texts


def _text_of(kind: str, value: Any) -> str:
    """Return the text of a value in a field of this kind."""
    if value is ABSENT or (value is None and kind != "choice"):
        return ""
    if kind == "json":
        return written(value)
    if kind == "choice":
        return json.dumps(value)
    return value if isinstance(value, str) else json.dumps(value)


def _choices(slot: Slot) -> list[tuple[str, str]]:
    """Return the choices of a slot; nothing is one of them if the slot may be empty."""
    shape = slot.shape
    values = (
        [True, False] if shape.get("what") == "boolean" else shape.get("one_of") or shape["choices"]
    )
    found = [(json.dumps(one), one if isinstance(one, str) else json.dumps(one)) for one in values]
    own = _text_of("choice", slot.value)
    if own and own != "null" and own not in dict(found):
        found.insert(0, (own, own))
    if slot.value is ABSENT or slot.may_be_null or not slot.is_required:
        empty = "null" if slot.value is None else ""
        found.insert(
            0, (empty, "nothing" if slot.may_be_null or not slot.is_required else "choose")
        )
    return found


def _hint(slot: Slot) -> str:
    """Return a few words on the values that a field takes."""
    shape = slot.shape
    said = [slot.about] if slot.about else []
    if shape.get("whole"):
        said.append("a whole number")
    bounds = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))
    said += [f"{word} {shape[name]}" for name, word in bounds if name in shape]
    least, most = shape.get("chars") or (None, None)
    said += [f"at least {least} characters"] if least and least > 1 else []
    said += [f"at most {most} characters"] if most is not None else []
    if shape.get("what") == "time":
        said.append("a time, such as 2026-01-31T09:30:00Z")
    return ", ".join(said)


def _read_text(made: Field) -> str:
    least, most = made.slot.shape.get("chars") or (None, None)
    if least is not None and len(made.text) < least:
        raise ValueError(f"This has {len(made.text)} characters, and needs at least {least}.")
    if most is not None and len(made.text.strip()) > most:
        raise ValueError(f"This has {len(made.text.strip())} characters, and may have {most}.")
    if made.slot.shape.get("what") == "time" and not any(char.isdigit() for char in made.text):
        raise ValueError(f"{_quoted(made.text)} is not a time: write it as 2026-01-31T09:30:00Z.")
    return made.text


def _read_number(made: Field) -> Any:
    """Return a number; a text where the value is one, as decimals are, whose digits all count."""
    shape, text = made.slot.shape, made.text.strip()
    number = _number_of(text)
    if number is None:
        raise ValueError(f"{_quoted(made.text)} is not a number.")
    if shape.get("whole") and number % 1:
        raise ValueError(f"{_quoted(text)} is not a whole number.")
    tests: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
        ("ge", lambda least: number < least, "small", "at least"),
        ("gt", lambda least: number <= least, "small", "more than"),
        ("le", lambda most: number > most, "large", "at most"),
        ("lt", lambda most: number >= most, "large", "less than"),
    )
    for name, is_out, way, word in tests:
        if name in shape and is_out(shape[name]):
            raise ValueError(f"{_quoted(text)} is too {way}: {word} {shape[name]}.")
    is_decimal = made.slot.value in (ABSENT, None) and "array" in shape.get("is", [])
    return text if is_decimal or isinstance(made.slot.value, str) else number


def _quoted(text: str) -> str:
    return f"{text[:40]}…" if len(text) > 40 else text


def _number_of(text: str) -> float | int | None:
    """Return the number in a text; None if it is not a number."""
    try:
        number = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    is_one = type(number) is int or (type(number) is float and math.isfinite(number))
    return number if is_one else None


def _refuse(name: str) -> None:
    raise ValueError(name)


def _read_choice(made: Field) -> Any:
    if made.text not in dict(made.choices):
        shown = ", ".join(said for text, said in made.choices if text)
        raise ValueError(f"Choose one of these: {shown}.")
    return json.loads(made.text)


def _read_date(made: Field) -> str:
    if not is_date(made.text.strip()):
        raise ValueError(f"{_quoted(made.text)} is not a date: write it as 2026-01-31.")
    return made.text.strip()


def _read_json(made: Field) -> Any:
    try:
        return json.loads(made.text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"This is not JSON: {error}. Put a text in quotation marks.") from None


_READERS: dict[str, Callable[[Field], Any]] = {
    "text": _read_text, "lines": _read_text, "number": _read_number, "choice": _read_choice,
    "date": _read_date, "json": _read_json,
}  # fmt: skip
