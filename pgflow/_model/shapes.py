"""Shapes: what JSON an annotation certainly refuses, in a form that the database can judge.

The database cannot run pydantic. So a worker says of the signals that its code waits for what their
payloads look like (``sql/core/shape.sql`` says how a shape is written), and a sender is refused
what would only hold the run later. A shape is made from pydantic's core schema and errs on one side
only: where code of the user's decides, or something is not understood here, anything fits. Pydantic
reads leniently, and so does a shape: the text ``"5"`` is a number, ``"five"`` is not. A few members
judge nothing, and are for forms in which people write such a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

Shape = bool | dict[str, Any]

MAX_PARTS = 1000
"""Anything fits beyond: a shape is read at each sending."""

_NUMBERS = r"[0-9]|inf|nan"
_BOOLEANS = r"^\s*(0|1|f|t|n|y|no|yes|off|on|false|true)\s*$"
_BOUNDS = ("ge", "gt", "le", "lt")
_PLAIN = (str, int, bool, type(None))
MAX_CHOICES = 100
MAX_ABOUT_CHARS = 200


def shape_of(schema: Any) -> Shape:
    """The shape of what a core schema reads.

    Args:
        schema: A core schema, with our configuration in it.
    """
    return _Reader().read(schema)


class _Reader:
    """Goes through one core schema; knows its named parts, and which of them it is in."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._within: list[str] = []
        self._parts = 0
        self._coerces: list[bool] = [False]
        """True, for each class around this part, if its texts may be numbers."""

    def read(self, schema: dict[str, Any]) -> Shape:
        ref = schema.get("ref")
        if ref is not None:
            self._named.setdefault(ref, schema)
        self._parts += 1
        read = _READERS.get(schema["type"]) if self._parts <= MAX_PARTS else None
        self._coerces.append(
            self._coerces[-1] or bool(schema.get("config", {}).get("coerce_numbers_to_str"))
        )
        try:
            return True if read is None else read(self, schema)
        finally:
            self._coerces.pop()

    def inner(self, schema: dict[str, Any]) -> Shape:
        return self.read(schema["schema"])

    def definitions(self, schema: dict[str, Any]) -> Shape:
        self._named.update({part["ref"]: part for part in schema["definitions"]})
        return self.inner(schema)

    def named(self, schema: dict[str, Any]) -> Shape:
        ref = schema["schema_ref"]
        if self._within.count(ref) > 1 or ref not in self._named:  # one that holds itself
            return True
        self._within.append(ref)
        try:
            return self.read(self._named[ref])
        finally:
            self._within.pop()

    def default(self, schema: dict[str, Any]) -> Shape:
        return self.inner(schema) if schema.get("on_error", "raise") == "raise" else True

    def model(self, schema: dict[str, Any]) -> Shape:
        if schema.get("custom_init"):
            return True
        return self.inner(schema) if schema.get("root_model") else self._within_class(schema)

    def _within_class(self, schema: dict[str, Any]) -> Shape:
        """The shape of a class's fields, which its configuration may close."""
        shape = self.inner(schema)
        is_closed = schema.get("config", {}).get("extra_fields_behavior") == "forbid"
        return (
            {**shape, "closed": True}
            if is_closed and isinstance(shape, dict) and _can_be_closed(shape)
            else shape
        )

    def fields(self, schema: dict[str, Any]) -> Shape:
        given = schema["fields"]
        named = (
            given.items()
            if isinstance(given, dict)
            else [(field["name"], field) for field in given]
        )
        is_total = schema.get("total", schema.get("config", {}).get("typed_dict_total", True))
        fields = []
        for name, field in named:
            names = (
                None
                if field.get("init") is False
                else _names_of(name, field.get("validation_alias"))
            )
            is_required = bool(
                field.get("required", is_total)
                and names is not None
                and not _has_default(field["schema"])
            )
            about = _about(field)
            fields.append(
                [
                    names or [],
                    self.read(field["schema"]),
                    is_required,
                    *([about] if about else []),
                ]
            )
        is_closed = (
            schema.get("extra_behavior", schema.get("config", {}).get("extra_fields_behavior"))
            == "forbid"
        )
        shape: dict[str, Any] = {"is": ["object"], "fields": fields}
        return {**shape, "closed": True} if is_closed and _can_be_closed(shape) else shape

    def any_of(self, schema: dict[str, Any]) -> Shape:
        choices = schema["choices"]
        parts = (
            choices.values()
            if isinstance(choices, dict)
            else [part[0] if isinstance(part, tuple) else part for part in choices]
        )
        return _any([self.read(part) for part in parts if isinstance(part, dict)])

    def nullable(self, schema: dict[str, Any]) -> Shape:
        return _any([{"is": ["null"]}, self.inner(schema)])

    def array(self, schema: dict[str, Any]) -> Shape:
        items = schema.get("items_schema")
        return {"is": ["array"], "items": self.read(items) if isinstance(items, dict) else True}

    def mapping(self, schema: dict[str, Any]) -> Shape:
        values = schema.get("values_schema")
        return {"is": ["object"], "values": True if values is None else self.read(values)}

    def enum(self, schema: dict[str, Any]) -> Shape:
        finds_more = schema["cls"]._missing_.__func__ is not Enum._missing_.__func__  # type: ignore[attr-defined]
        return True if finds_more else _choice([member.value for member in schema["members"]])

    def literal(self, schema: dict[str, Any]) -> Shape:
        return _choice(schema["expected"])

    def text(self, schema: dict[str, Any]) -> Shape:
        is_lenient = self._coerces[-1] or schema.get("coerce_numbers_to_str")
        chars = [schema.get("min_length"), schema.get("max_length")]
        return {
            "is": ["string", "number"] if is_lenient else ["string"],
            **({"chars": chars} if chars != [None, None] else {}),
        }

    def whole(self, schema: dict[str, Any]) -> Shape:
        shape = {
            "is": ["number", "string", "boolean"],
            "like": "[0-9]",
            "what": "number",
            "whole": True,
        }
        return {**shape, **_bounds_of(schema)}

    def number(self, schema: dict[str, Any]) -> Shape:
        return {
            "is": ["number", "string", "boolean"],
            "like": _NUMBERS,
            "what": "number",
            **_bounds_of(schema),
        }


def _has_default(schema: Any) -> bool:
    while isinstance(schema, dict):
        if schema["type"] in ("default", "definition-ref"):
            return True
        schema = schema.get("schema")
    return False


def _can_be_closed(shape: dict[str, Any]) -> bool:
    return "fields" in shape and all(field[0] for field in shape["fields"])


def _about(field: dict[str, Any]) -> str:
    """Return the description of a field; empty if it has none."""
    description = field.get("metadata", {}).get("pydantic_js_updates", {}).get("description")
    return description[:MAX_ABOUT_CHARS] if isinstance(description, str) else ""


def _bounds_of(schema: dict[str, Any]) -> dict[str, Any]:
    found = {name: schema.get(name) for name in _BOUNDS}
    return {
        name: bound
        for name, bound in found.items()
        if isinstance(bound, (int, float)) and math.isfinite(bound)
    }


def _names_of(name: str, alias: Any) -> list[str] | None:
    """Under which names a field may stand; None where it may be anywhere."""
    if alias is None:
        return [name]
    if isinstance(alias, str):
        return [alias, name]
    paths = (
        [path if isinstance(path, list) else [path] for path in alias]
        if isinstance(alias, list)
        else []
    )
    simple = [path[0] for path in paths if len(path) == 1 and isinstance(path[0], str)]
    return list(dict.fromkeys([*simple, name])) if paths and len(simple) == len(paths) else None


def _any(shapes: list[Shape]) -> Shape:
    return True if not shapes or True in shapes else {"any": shapes}


def _choice(values: list[Any]) -> Shape:
    """The shape of one of some values: texts are judged; of others, several may be read as one."""
    if values and all(type(value) is str for value in values):
        return {"one_of": values}
    is_plain = 0 < len(values) <= MAX_CHOICES and all(type(value) in _PLAIN for value in values)
    return {"choices": values} if is_plain else True


def _constant(shape: Shape) -> Callable[[_Reader, dict[str, Any]], Shape]:
    return lambda _reader, _schema: shape


_MOMENT = _constant({"is": ["string", "number", "boolean"], "like": "[0-9]", "what": "time"})
_DATE = _constant({"is": ["string", "number", "boolean"], "like": "[0-9]", "what": "date"})
_TEXT = _constant({"is": ["string"]})

_READERS: dict[str, Callable[[_Reader, dict[str, Any]], Shape]] = {
    "none": _constant({"is": ["null"]}),
    "bool": _constant(
        {"is": ["boolean", "number", "string"], "like": _BOOLEANS, "what": "boolean"}
    ),
    "int": _Reader.whole, "float": _Reader.number, "str": _Reader.text,
    "bytes": _TEXT, "uuid": _TEXT, "url": _TEXT, "multi-host-url": _TEXT,
    "decimal": _constant(
        {"is": ["number", "string", "boolean", "array"], "like": _NUMBERS, "what": "number"}
    ),
    "date": _DATE, "time": _MOMENT, "datetime": _MOMENT, "timedelta": _MOMENT,
    "enum": _Reader.enum, "literal": _Reader.literal,
    "list": _Reader.array, "set": _Reader.array, "frozenset": _Reader.array,
    "tuple": _constant({"is": ["array"]}), "dict": _Reader.mapping,
    "model": _Reader.model, "dataclass": _Reader._within_class,
    "model-fields": _Reader.fields, "dataclass-args": _Reader.fields, "typed-dict": _Reader.fields,
    "nullable": _Reader.nullable, "union": _Reader.any_of, "tagged-union": _Reader.any_of,
    "default": _Reader.default,
    "function-after": _Reader.inner, "custom-error": _Reader.inner,
    "definitions": _Reader.definitions, "definition-ref": _Reader.named,
    "lax-or-strict": lambda reader, schema: reader.read(schema["lax_schema"]),
    "json-or-python": lambda reader, schema: reader.read(schema["json_schema"]),
    "chain": lambda reader, schema: reader.read(schema["steps"][0]),
}  # fmt: skip
"""By the kind of a core schema; anything fits one that is not here."""
