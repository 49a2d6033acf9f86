"""Slots: the parts of a value before a user fills them in, each with its shape, name, and value.

A shape (``sql/core/shape.sql``) gives the type of each part. Where it gives none, the type follows
from the value itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from pgflow.texts import printable

MOST_ROWS = 30
"""A longer list is written as JSON."""
LINE_CHARS = 80
"""A longer text is written in several lines."""


class Absent:
    """A part that is not in a value at all."""


ABSENT = Absent()


@dataclass(frozen=True)
class Slot:
    """A part of a value, to be filled in by a user.

    Attributes:
        shape: Its shape, without null.
        value: The value it has; ``ABSENT`` for none.
        pointer: Pointer to it, as of JSON.
        label: Its name.
        is_required: True if it must have a value.
        may_be_null: True if null fits.
        about: Words of its class on it.
    """

    shape: Mapping[str, Any]
    value: Any
    pointer: str = ""
    label: str = ""
    is_required: bool = True
    may_be_null: bool = False
    about: str = ""

    @property
    def nothing(self) -> Any:
        """Value if nothing is written."""
        return (
            None if self.may_be_null and (self.is_required or self.value is not ABSENT) else ABSENT
        )


def slot_of(
    shape: Any,
    value: Any,
    pointer: str = "",
    label: str = "",
    about: str = "",
    *,
    is_required: bool = True,
) -> Slot:
    """Return a slot: its shape is one without null, or the value's own where it says little."""
    options = shape.get("any", [shape]) if isinstance(shape, dict) else []
    left = [one for one in options if one != {"is": ["null"]}]
    said = left[0] if len(left) == 1 and isinstance(left[0], dict) else {}
    if "any" in said:  # one of several in one of several
        said = {}
    may_be_null = len(left) < len(options) or value is None
    if not left or (not said and len(left) == 1):
        said = _guess(value)
    return Slot(said, value, pointer, label, is_required, may_be_null, about)


def _guess(value: Any) -> dict[str, Any]:
    """Return the shape of a value about which nothing is known."""
    if isinstance(value, bool):
        return {"choices": [True, False]}
    if isinstance(value, (int, float)):
        return {"is": ["number"]}
    if isinstance(value, str):
        return {"is": ["string"]}
    return {"is": ["object"], "values": True} if isinstance(value, dict) and value else {}


def kind_of(slot: Slot) -> str:
    """Return the kind of field that a part of a value has."""
    shape, value = slot.shape, slot.value
    kinds, is_open = shape.get("is", []), value is ABSENT or value is None
    if "one_of" in shape or "choices" in shape or shape.get("what") == "boolean":
        return "choice"
    if shape.get("what") == "number" or kinds == ["number"]:
        return "number" if is_open or isinstance(value, (int, float, str)) else "json"
    if shape.get("what") == "date" and (is_open or is_date(value)):
        return "date"
    if "string" in kinds or "what" in shape:
        if not is_open and (not isinstance(value, str) or printable(value, keep="\n") != value):
            return "json"
        return "lines" if _is_long(slot) else "text"
    if kinds == ["object"] and (is_open or isinstance(value, dict)):
        fields = shape.get("fields")
        is_known = all(one[0] for one in fields) if fields else bool(not is_open and value)
        return "group" if is_known else "json"
    if kinds == ["array"] and shape.get("items", True) is not True:
        rows = [] if is_open else value
        return "list" if isinstance(rows, list) and len(rows) <= MOST_ROWS else "json"
    return "json"


def _is_long(slot: Slot) -> bool:
    """Return True for a text of several lines, or one that may have them."""
    if isinstance(slot.value, str) and slot.value:
        return "\n" in slot.value or len(slot.value) > LINE_CHARS
    most = (slot.shape.get("chars") or (None, None))[1]
    return most is not None and most > 2 * LINE_CHARS


def is_date(value: Any) -> bool:
    try:
        return bool(date.fromisoformat(value).isoformat() == value)
    except (TypeError, ValueError):
        return False


def slots_of(slot: Slot, value: Mapping[str, Any]) -> Iterator[Slot]:
    """Go through the parts of an object."""
    if "fields" not in slot.shape:
        for name, one in value.items():
            yield slot_of(slot.shape.get("values", True), one, _under(slot, name), name)
        return
    for names, shape, is_required, *about in slot.shape["fields"]:
        name = next((one for one in names if one in value), names[0])
        yield slot_of(
            shape,
            value.get(name, ABSENT),
            _under(slot, name),
            name,
            "".join(about),
            is_required=is_required,
        )


def _under(slot: Slot, name: str) -> str:
    return f"{slot.pointer}/{name.replace('~', '~0').replace('/', '~1')}"
