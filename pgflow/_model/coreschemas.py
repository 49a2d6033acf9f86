"""Pydantic's core schemas, rebuilt with pgflow's configuration inside every class.

A core schema is a tree of dicts. Some of them are schemas, some only map the names of a user's
fields to schemas, and some hold values of the user's that look like either. So a walk follows the
keys of a schema, never the look of a value: a field may be called ``type``, ``default`` or ``cls``.

Pydantic builds a validator and a serializer for each model and reuses them wherever that model
occurs in another schema. They lack our configuration. A stand-in for the class (:func:`own`) has
none, so they are built from the given schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic.dataclasses import is_pydantic_dataclass
from pydantic_core import CoreConfig

CONFIG = CoreConfig(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")

CONFIGURED = frozenset({"model", "dataclass", "typed-dict"})
"""Kinds of core schemas that bring a configuration, which counts for all they hold."""

BY_NAME = frozenset({"fields", "choices"})
"""Keys behind which a dict maps names, or the tags of a union, to schemas."""

_LEAVES_OUT = ("serialization_exclude", "serialization_exclude_if")

OPAQUE = frozenset(
    {
        "config", "custom_error_context", "default", "default_factory", "expected", "members",
        "metadata",
    }
)  # fmt: skip
"""Keys whose values are never schemas, even if they look like one."""


def rebuild(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a copy of a core schema with each part changed, the inner ones first.

    Args:
        schema: The schema, or a list of schemas.
        change: Function that takes a copied part and returns its replacement.
    """
    if isinstance(schema, dict):
        copy = schema.copy()
        for key, part in schema.items():
            if key in OPAQUE or not isinstance(part, _NESTED):
                continue
            if key in BY_NAME and isinstance(part, dict):
                copy[key] = {name: rebuild(named, change) for name, named in part.items()}
            else:
                copy[key] = rebuild(part, change)
        return change(copy)
    if isinstance(schema, (list, tuple)):
        return type(schema)([rebuild(part, change) for part in schema])
    return schema


_NESTED = (dict, list, tuple)


def has(schema: Any, is_such: Callable[[dict[str, Any]], bool]) -> bool:
    """Return True if a core schema has such a part."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, dict):
            if is_such(part):
                return True
            for key, inner in part.items():
                if key in BY_NAME and isinstance(inner, dict):
                    left += inner.values()
                elif isinstance(inner, _NESTED) and key not in OPAQUE:
                    left.append(inner)
    return False


def _is_masking(part: dict[str, Any]) -> bool:
    """Return True if a part is a secret of pydantic's, written as asterisks."""
    function = part.get("serialization", {}).get("function")
    return part.get("type") == "json-or-python" and (
        isinstance(function, _Revealed)
        or (
            getattr(function, "__module__", "") == "pydantic.types"
            and function.__name__.startswith("_serialize_secret")
        )
    )


class _Revealed:
    """Writes what a secret holds, with the name of its class.

    Args:
        tag: Name of the member for that.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def __call__(self, secret: Any) -> dict[str, Any]:
        return {self._tag: type(secret).__qualname__, "of": secret.get_secret_value()}


def has_secrets(schema: Any) -> bool:
    """Return True if values of a core schema may hold secrets."""
    return has(schema, _is_masking)


def revealing(schema: Any, tag: str) -> Any:
    """Return a copy of a core schema that writes what secrets hold, for text that is encrypted.

    Args:
        schema: It.
        tag: Name of the member that names the class of a secret, so that readers can mask it.
    """

    def reveal(part: dict[str, Any]) -> dict[str, Any]:
        if _is_masking(part):
            parts = {tag: {"type": "str"}, "of": part["json_schema"]["schema"]}
            part["serialization"] = {
                "type": "function-plain",
                "function": _Revealed(tag),
                "return_schema": {
                    "type": "typed-dict",
                    "fields": {
                        name: {"type": "typed-dict-field", "schema": inner}
                        for name, inner in parts.items()
                    },
                },
            }
        elif part.get("type") == "lax-or-strict" and has_secrets(part["strict_schema"]):
            part.pop("serialization", None)  # a field's own, which may show what it holds
        return part

    return rebuild(schema, reveal)


_OTHER_FORM = frozenset({"validation_alias", "serialization_alias"})
_BY_ALIAS = frozenset({"serialize_by_alias", "validate_by_alias", "validate_by_name"})


def has_two_forms(schema: Any) -> bool:
    """Return True if values may be written in another form than they are read in, by aliases or
    fields that are computed.
    """
    return has(
        schema,
        lambda part: (
            bool(part.get("computed_fields"))
            or not _OTHER_FORM.isdisjoint(part)
            or (part.get("type") in CONFIGURED and not _BY_ALIAS.isdisjoint(part.get("config", {})))
        ),
    )


def lossless(schema: Any) -> Any:
    """A core schema with our configuration wherever a class has none of its own."""
    return rebuild(schema, _configure)


def _configure(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") in CONFIGURED:
        part["config"] = {**CONFIG, **part.get("config", {})}
        # What is read has the class that is annotated; a subclass's own form would be read as that,
        # or not at all.
        part["config"].pop("polymorphic_serialization", None)
    if part.get("type") == "generator":  # an Iterable, which would be read once only
        return {**part, "type": "list"}
    return part


def by_instance(schema: Any) -> Any:
    """Return a copy of a core schema that takes for a model only what is one, and no dict."""

    def replace(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("type") != "model":
            return part
        ref = {"ref": part["ref"]} if "ref" in part else {}
        return {"type": "is-instance", "cls": part["cls"], **ref}

    return rebuild(schema, replace)


def own(schema: Any, *, to_write: bool) -> Any:
    """Return a core schema without the validators and serializers that pydantic has cached for its
    classes.

    Args:
        schema: It.
        to_write: True to make a serializer from it, False for a validator.
    """
    classes: set[type] = set()

    def replace(part: dict[str, Any]) -> dict[str, Any]:
        if to_write:
            for key in _LEAVES_OUT:  # what a class keeps from its readers is a part of it too
                part.pop(key, None)
        if to_write and part.get("type") == "call" and _is_named_tuple(part["function"]):
            return _as_tuple(part)
        cls = part.get("cls")
        if part.get("type") == "model" or (
            part.get("type") == "dataclass" and is_pydantic_dataclass(cls)  # type: ignore[arg-type]
        ):
            assert isinstance(cls, type)
            if to_write:
                classes.add(cls)
            part["cls"] = _StandIn.of(cls, classes)
        return part

    return rebuild(schema, replace)


def _is_named_tuple(function: Any) -> bool:
    return (
        isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_fields")
    )


def _as_tuple(part: dict[str, Any]) -> dict[str, Any]:
    """The schema that writes a named tuple. Pydantic before 2.13 has one that reads it only:
    a call of the class.
    """
    fields = [argument["schema"] for argument in part["arguments_schema"]["arguments_schema"]]
    return {"type": "tuple", "items_schema": fields} | {
        key: part[key] for key in ("ref",) if key in part
    }


class _StandIn(type):
    """The type of a stand-in for a class, which passes for it in instance checks and calls."""

    _real: type
    _known: set[type]

    @staticmethod
    def of(real: type, known: set[type]) -> type:
        """A stand-in for a class.

        Args:
            real: It.
            known: All classes of the schema, where instances are written: each instance belongs to
                the nearest of them.
        """
        make: Any = real.__new__
        body = {"__new__": lambda _cls: make(real), "_real": real, "_known": known, "__slots__": ()}
        return _StandIn(real.__name__, (), body)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._real(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        if type(instance) is cls._real:
            return True
        if not cls._known:
            return isinstance(instance, cls._real)
        # A serializer first asks for exactly its class, which this is not; an instance of a
        # subclass would be written as its base.
        return (
            next((base for base in type(instance).__mro__ if base in cls._known), None) is cls._real
        )
