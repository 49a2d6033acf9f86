"""Readers of JSON that give Decimals all digits of a number in the text.

The library writes a Decimal as a string. Others write numbers: a trigger writes columns of type
``numeric`` as numbers, and so may SQL, webhooks and events of other programs. Pydantic reads such a
number as a float first, so an amount of more than 15 digits would be rounded silently.

A text with a number that no float holds is read by a second validator. It gives a Decimal that
arrives as a float the number of the text for that float. Two numbers with the same float are
refused. The members of a union compete by fit, so the first validator chooses the member, and the
second one reads it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from decimal import Decimal
from functools import cached_property, partial
from typing import Any

from pydantic_core import SchemaValidator

from pgflow._model import coreschemas

SURE_DIGITS = 15
"""Digits that a float always holds."""

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

_exact: ContextVar[dict[float, Decimal]] = ContextVar("pgflow_exact")


def outside_strings(text: str) -> str:
    """Return the text between the strings of a JSON text: without escapes, every second part
    between quotes.

    Args:
        text: The text.
    """
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    return "".join(text.split('"')[::2])


def reader_of(schema: Any) -> Callable[[str], Any]:
    """Return the function that reads values of one core schema.

    It takes a JSON text, and raises ValueError if that does not fit, or if two of its numbers are
    the same float.

    Args:
        schema: It.
    """
    plain = SchemaValidator(schema, coreschemas.CONFIG)
    woven = _weave(schema)
    if woven is None:
        if not coreschemas.has_two_forms(schema):
            return plain.validate_json
        return partial(plain.validate_json, by_alias=True, by_name=True)
    return _ExactReader(plain, woven)


class _ExactReader:
    """Reads values of a schema that has Decimals.

    Args:
        plain: The validator of the schema as it is.
        woven: The schema with exact Decimals.
    """

    __slots__ = ("_exact", "_plain", "_woven")

    def __init__(self, plain: SchemaValidator, woven: Any) -> None:
        self._plain = plain
        self._woven = woven
        self._exact: SchemaValidator | None = None

    def __call__(self, text: str) -> Any:
        exact = _exact_numbers(text)
        if not exact:
            return _read(self._plain, text)
        if self._exact is None:
            self._exact = SchemaValidator(self._woven, coreschemas.CONFIG)
        token = _exact.set(exact)
        try:
            return _read(self._exact, text)
        except ValueError:
            # A union says less of where a text does not fit.
            _read(self._plain, text)
            raise
        finally:
            _exact.reset(token)


def _exact_numbers(text: str) -> dict[float, Decimal]:
    """Return what the text has for each float in it; nothing if those say it all."""
    if len(text) <= SURE_DIGITS:
        return {}
    numbers = [
        number for number in _NUMBER.findall(outside_strings(text)) if set(number) & set(".eE")
    ]
    if all(Decimal(number) == Decimal(repr(float(number))) for number in numbers):
        return {}
    exact: dict[float, Decimal] = {}
    for number in numbers:
        if exact.setdefault(float(number), Decimal(number)) != Decimal(number):
            raise ValueError(
                f"{exact[float(number)]} and {number} are the same float: write one as a string"
            )
    return exact


def _restored(value: Any) -> Any:
    return _exact.get().get(value, value) if type(value) is float else value


def _read(validator: SchemaValidator, text: str) -> Any:
    return validator.validate_json(text, by_alias=True, by_name=True)


def _read_if_it_fits(validator: SchemaValidator, text: str) -> Any:
    try:
        return _read(validator, text)
    except ValueError:
        return NotImplemented


class _Definitions:
    """Definitions that the parts of a schema refer to: as they are, and exact."""

    plain: Sequence[Any] = ()
    exact: Sequence[Any] = ()


class _Union:
    """A union of which the kind is chosen as if nothing were exact.

    Args:
        plain: Its core schema as it is.
        exact: The same with exact Decimals in its kinds.
        definitions: Definitions of both.
    """

    def __init__(
        self, plain: dict[str, Any], exact: dict[str, Any], definitions: _Definitions
    ) -> None:
        self.plain = plain
        self._exact = exact
        self._definitions = definitions

    def __call__(self, value: Any) -> Any:
        text = json.dumps(value)
        choose, kinds = self._validators
        chosen = _read(choose, text)
        equal = [
            (repr(found) != repr(chosen), place)
            for place, (plain, _) in enumerate(kinds)
            if (found := _read_if_it_fits(plain, text)) == chosen and type(found) is type(chosen)
        ]
        # A dict of floats may equal one of Decimals.
        return _read(kinds[min(equal)[1]][1], text) if equal else chosen

    @cached_property
    def _validators(self) -> tuple[SchemaValidator, list[tuple[SchemaValidator, SchemaValidator]]]:
        known = self._definitions
        kinds = zip(_kinds(self.plain), _kinds(self._exact), strict=True)
        without_ref = {key: part for key, part in self.plain.items() if key != "ref"}
        return _validator(without_ref, known.plain), [
            (_validator(plain, known.plain), _validator(exact, known.exact))
            for plain, exact in kinds
        ]


def _kinds(union: dict[str, Any]) -> list[Any]:
    return [kind[0] if isinstance(kind, tuple) else kind for kind in union["choices"]]


def _validator(schema: Any, definitions: Sequence[Any]) -> SchemaValidator:
    whole: Any = {"type": "definitions", "schema": schema, "definitions": [*definitions]}
    return SchemaValidator(whole if definitions else schema, coreschemas.CONFIG)


def _weave(schema: Any) -> Any | None:
    """A core schema in which Decimals are exact; None if it has none."""
    count = 0
    definitions = _Definitions()

    def change(part: dict[str, Any]) -> dict[str, Any]:
        nonlocal count
        ref = {"ref": part["ref"]} if "ref" in part else {}
        if part.get("type") == "decimal":
            count += 1
            inner = {key: value for key, value in part.items() if key != "ref"}
            return {"type": "function-before", "schema": inner, **_function(_restored), **ref}
        if part.get("type") == "union":
            union = _Union(coreschemas.rebuild(part, _undo), part, definitions)
            return {"type": "function-plain", **_function(union), **ref}
        return part

    woven = coreschemas.rebuild(schema, change)
    if schema["type"] == "definitions":
        definitions.plain, definitions.exact = schema["definitions"], woven["definitions"]
    return woven if count else None


def _function(function: Callable[[Any], Any]) -> dict[str, Any]:
    return {"function": {"type": "no-info", "function": function}}


def _undo(part: dict[str, Any]) -> dict[str, Any]:
    function = part.get("function")
    change = function.get("function") if isinstance(function, dict) else None
    if change is _restored:
        return {**part["schema"], **({"ref": part["ref"]} if "ref" in part else {})}
    if isinstance(change, _Union):
        return change.plain
    return part
