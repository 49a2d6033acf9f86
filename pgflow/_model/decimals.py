"""Readers of JSON, which give Decimals all digits that a number has in the text.

The library writes a Decimal as a string. Others write numbers: a trigger writes columns of type
``numeric`` so, and SQL, webhooks and events of other programs may hold any. Pydantic reads such a
number as a float first, so an amount of more than 15 digits came out rounded, and nobody noticed.

A text with a number that no float holds is read by a second validator. In it, a Decimal that comes
as a float gets the number that the text has for that float. Two numbers that are the same float
are refused. The kinds of a union compete, so a Decimal gets its digits there once it is chosen,
and one inside of a class that competes is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from pydantic_core import SchemaValidator

from pgflow._model import coreschemas

SURE_DIGITS = 15
"""Digits that a float always holds."""

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

_exact: ContextVar[dict[float, Decimal]] = ContextVar("pgflow_exact")


def outside_strings(text: str) -> str:
    """Return what stands between the strings of a JSON text: without escapes, every second part
    between quotes.

    Args:
        text: The text.
    """
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    return "".join(text.split('"')[::2])


class Reader:
    """Reads values of one core schema.

    Args:
        schema: It.
    """

    __slots__ = ("_exact", "_plain", "_woven")

    def __init__(self, schema: Any) -> None:
        self._plain = SchemaValidator(schema, coreschemas.CONFIG)
        self._woven = _weave(schema)
        self._exact: SchemaValidator | None = None

    def read(self, text: str) -> Any:
        """Return the value that a JSON text stands for.

        Args:
            text: The text.

        Raises:
            ValueError: It does not fit, or two of its numbers are the same float.
        """
        if self._woven is None or not (exact := _exact_numbers(text)):
            return self._plain.validate_json(text, by_alias=True, by_name=True)
        if self._exact is None:
            self._exact = SchemaValidator(self._woven, coreschemas.CONFIG)
        token = _exact.set(exact)
        try:
            return self._exact.validate_json(text, by_alias=True, by_name=True)
        finally:
            _exact.reset(token)


def _exact_numbers(text: str) -> dict[float, Decimal]:
    """Return what the text has for each float in it; nothing if those say it all."""
    if len(text) <= SURE_DIGITS:
        return {}
    numbers = [said for said in _NUMBER.findall(outside_strings(text)) if set(said) & set(".eE")]
    if all(Decimal(said) == Decimal(repr(float(said))) for said in numbers):
        return {}
    exact: dict[float, Decimal] = {}
    for said in numbers:
        if exact.setdefault(float(said), Decimal(said)) != Decimal(said):
            raise ValueError(
                f"{exact[float(said)]} and {said} are the same float: write one as a string"
            )
    return exact


def _restored(value: Any) -> Any:
    return _exact.get().get(value, value) if type(value) is float else value


def _chosen(value: Any, choose: Callable[[Any], Any]) -> Any:
    chosen = choose(value)
    return _restored(value) if type(chosen) is Decimal and type(value) is float else chosen


def _weave(schema: Any) -> Any | None:
    """A core schema in which Decimals are exact; None if it has none."""
    count = 0

    def change(part: dict[str, Any]) -> dict[str, Any]:
        nonlocal count
        if part.get("type") == "decimal":
            count += 1
            return _around(part, "function-before", _restored)
        if part.get("type") == "union":
            choices = coreschemas.rebuild(part["choices"], _undo)
            return _around({**part, "choices": choices}, "function-wrap", _chosen)
        return part

    woven = coreschemas.rebuild(schema, change)
    return woven if count else None


def _around(part: dict[str, Any], kind: str, function: Callable[..., Any]) -> dict[str, Any]:
    ref = {"ref": part.pop("ref")} if "ref" in part else {}
    return {
        "type": kind, "function": {"type": "no-info", "function": function}, "schema": part, **ref
    }  # fmt: skip


def _undo(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "function-before" and part["function"].get("function") is _restored:
        inner: dict[str, Any] = part["schema"]
        return inner
    return part
