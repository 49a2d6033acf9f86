"""Proofs that a value comes back from JSON as it is.

Most values hold what their annotation says and nothing else: numbers, texts, lists and classes of
such. For these the text need not be read again to know that it reads as the same value. A proof is
made once for an annotation, from its core schema, and looks at types alone. It errs on one side
only: a value that it does not take, or an annotation that has none, is compared with what comes
back (:mod:`pgflow._model.tags`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter, countOf, itemgetter
from types import NoneType
from typing import Any
from uuid import UUID

from pydantic_core import TzInfo

Proof = Callable[[Any], bool]
"""Return True if a value certainly comes back in type and value. It raises KeyError or
AttributeError where a field is missing, RecursionError where a value holds itself.
"""

_EXACT: dict[str, type] = {
    "none": NoneType, "bool": bool, "int": int, "str": str, "bytes": bytes,
    "date": date, "timedelta": timedelta, "uuid": UUID,
}  # fmt: skip
_PLAIN = frozenset({NoneType, bool, int, str, float})
_SAFE_INTEGER = 2**53
_MINUTE = timedelta(minutes=1)
_FORMLESS = frozenset({"type", "ref", "metadata", "strict", "microseconds_precision"})
"""Keys of a schema that do not change which value is read."""

_HARMLESS_CONFIG = frozenset(
    {
        "title", "strict", "typed_dict_total", "from_attributes", "loc_by_alias",
        "populate_by_name", "validate_by_name", "validate_by_alias", "serialize_by_alias",
        "validate_default", "hide_input_in_errors", "frozen", "extra_fields_behavior",
        "revalidate_instances", "cache_strings", "regex_engine", "validation_error_cause",
        "ser_json_inf_nan", "use_enum_values", "allow_inf_nan",
    }
)  # fmt: skip


_given_to: Callable[[Any], set[str]] = attrgetter("__pydantic_fields_set__")


class _UnprovenError(Exception):
    """Values of this schema have no proof: they must be read again and compared."""


def proof_of(schema: Any, *, may_leave_out: bool = False) -> Proof | None:
    """Return the proof for values of a core schema; None if there is none.

    Args:
        schema: It, with our configuration in it.
        may_leave_out: True if fields of models may have been left out: their defaults are written,
            and come back as if they had been given.
    """
    try:
        return _Prover(may_leave_out=may_leave_out).read(schema)
    except (_UnprovenError, KeyError, RecursionError):
        return None


def is_json(value: Any) -> bool:
    """Return True if a value is of JSON's own types, as deep as it goes."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        if countOf(map(type, value), str) != len(value):
            return False
        value = value.values()
    elif kind is not list:
        return False
    if _PLAIN.issuperset(map(type, value)):
        return True
    return all(type(item) in _PLAIN or is_json(item) for item in value)


def is_moment(value: Any) -> bool:
    """Return True if a datetime has no zone, UTC, or the offset that it was read with."""
    return type(value) is datetime and not value.fold and _is_fixed(value.tzinfo)


def _is_time(value: Any) -> bool:
    return type(value) is time and not value.fold and _is_fixed(value.tzinfo)


def _is_fixed(zone: Any) -> bool:
    return (
        zone is None
        or zone is UTC
        or (type(zone) is TzInfo and not (zone.utcoffset(None) or _MINUTE) % _MINUTE)
    )


def _is_float(value: Any) -> bool:
    kind = type(value)
    return kind is float or (kind is int and -_SAFE_INTEGER <= value <= _SAFE_INTEGER)


def _is_number(value: Any) -> bool:
    return type(value) is Decimal and value.is_finite()


def _of_type(kind: type) -> Proof:
    def is_exact(value: Any) -> bool:
        return type(value) is kind

    is_exact.kind = kind  # type: ignore[attr-defined]
    return is_exact


class _Prover:
    """Goes through one core schema; knows its named parts."""

    def __init__(self, *, may_leave_out: bool) -> None:
        self._may_leave_out = may_leave_out
        self._named: dict[str, Any] = {}
        self._proofs: dict[str, Proof] = {}

    def read(self, schema: dict[str, Any]) -> Proof:
        if "serialization" in schema:
            raise _UnprovenError
        kind = schema["type"]
        if kind in _EXACT:
            self._check_keys(schema)
            return _of_type(_EXACT[kind])
        proof: Proof = _PROOFS[kind](self, schema)
        if "ref" in schema:
            self._proofs[schema["ref"]] = proof
        return proof

    @staticmethod
    def _check_keys(schema: dict[str, Any], *more: str) -> None:
        if not _FORMLESS.issuperset(set(schema) - set(more)):
            raise _UnprovenError

    def definitions(self, schema: dict[str, Any]) -> Proof:
        self._named.update({part["ref"]: part for part in schema["definitions"]})
        return self.read(schema["schema"])

    def named(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema, "schema_ref")
        ref = schema["schema_ref"]
        if ref in self._proofs:
            return self._proofs[ref]
        found: list[Proof] = []
        self._proofs[ref] = lambda value: found[0](value)  # noqa: PLW0108 - it holds itself
        found.append(self.read(self._named[ref]))
        self._proofs[ref] = found[0]
        return found[0]

    def default(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(
            schema, "schema", "default", "default_factory", "default_factory_takes_data"
        )
        return self.read(schema["schema"])

    def nullable(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema, "schema")
        inner = self.read(schema["schema"])
        return lambda value: value is None or inner(value)

    def moment(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema)
        return is_moment if schema["type"] == "datetime" else _is_time

    def number(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema)
        return _is_float if schema["type"] == "float" else _is_number

    def anything(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema)
        return is_json

    def literal(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema, "expected")
        expected = {(type(value), value) for value in schema["expected"]}
        if not {kind for kind, _ in expected} <= {str, int, NoneType}:
            raise _UnprovenError
        return lambda value: (type(value), value) in expected

    def enum(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema, "cls", "members", "sub_type", "missing")
        cls = schema["cls"]
        values = [member.value for member in schema["members"]]
        if len({type(value) for value in values}) != 1 or type(values[0]) not in (str, int):
            raise _UnprovenError
        known = set(schema["members"])
        return lambda value: type(value) is cls and value in known

    def array(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema, "items_schema")
        items = self.read(schema["items_schema"]) if "items_schema" in schema else is_json
        cls = {"list": list, "set": set, "frozenset": frozenset}[schema["type"]]
        if items is is_json and cls is list:
            return lambda value: type(value) is list and is_json(value)
        kind = getattr(items, "kind", None)
        if kind is not None:
            return lambda value: (
                type(value) is cls and countOf(map(type, value), kind) == len(value)
            )
        return lambda value: type(value) is cls and all(map(items, value))

    def row(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema, "items_schema", "variadic_item_index")
        items = [self.read(item) for item in schema["items_schema"]]
        index = schema.get("variadic_item_index")
        if index is None:
            return lambda value: (
                type(value) is tuple
                and len(value) == len(items)
                and all(proof(item) for proof, item in zip(items, value, strict=True))
            )
        if len(items) != 1:
            raise _UnprovenError
        only = items[0]
        return lambda value: type(value) is tuple and all(map(only, value))

    def mapping(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema, "keys_schema", "values_schema")
        keys = self.read(schema["keys_schema"]) if "keys_schema" in schema else _of_type(str)
        kind = getattr(keys, "kind", str if keys is is_json else None)
        if kind not in (str, int):
            raise _UnprovenError
        values = self.read(schema["values_schema"]) if "values_schema" in schema else is_json
        if values is is_json and kind is str:
            return lambda value: type(value) is dict and is_json(value)
        only = getattr(values, "kind", None)
        if only is not None:
            return lambda value: (
                type(value) is dict
                and countOf(map(type, value), kind) == len(value)
                and countOf(map(type, value.values()), only) == len(value)
            )
        return lambda value: (
            type(value) is dict
            and countOf(map(type, value), kind) == len(value)
            and all(map(values, value.values()))
        )

    def union(self, schema: dict[str, Any]) -> Proof:
        """Members of which none could be read as another: one of each form in JSON, of those whose
        form pydantic judges exactly.
        """
        self._check_keys(schema, "choices", "mode")
        choices = [part[0] if isinstance(part, tuple) else part for part in schema["choices"]]
        forms = [_FORMS.get(part["type"]) for part in choices]
        if None in forms or len(set(forms)) < len(forms) or schema.get("mode", "smart") != "smart":
            raise _UnprovenError
        return _any_of([self.read(part) for part in choices])

    def tagged(self, schema: dict[str, Any]) -> Proof:
        self._check_keys(schema, "choices", "discriminator", "from_attributes")
        if not isinstance(schema["discriminator"], str):
            raise _UnprovenError
        return _any_of([self.read(part) for part in schema["choices"].values()])

    # ------------------------------------------------------------ classes

    @staticmethod
    def _check_config(schema: dict[str, Any]) -> None:
        config = schema.get("config", {})
        if config.get("ser_json_bytes", "base64") != config.get("val_json_bytes", "base64"):
            raise _UnprovenError
        if not _HARMLESS_CONFIG.issuperset(set(config) - {"ser_json_bytes", "val_json_bytes"}):
            raise _UnprovenError
        if config.get("extra_fields_behavior") == "allow":
            raise _UnprovenError
        if config.get("ser_json_inf_nan", "constants") != "constants":
            raise _UnprovenError

    def model(self, schema: dict[str, Any]) -> Proof:
        if schema.get("custom_init") or schema.get("root_model") or schema.get("post_init"):
            raise _UnprovenError
        cls = schema["cls"]
        if getattr(cls, "__private_attributes__", None):
            raise _UnprovenError
        self._check_config(schema)
        inner = schema["schema"]
        if inner["type"] != "model-fields" or inner.get("extra_behavior") == "allow":
            raise _UnprovenError
        return self._fields(cls, list(inner["fields"].items()), is_model=True)

    def dataclass(self, schema: dict[str, Any]) -> Proof:
        inner = schema["schema"]
        if schema.get("post_init") or inner["type"] != "dataclass-args":
            raise _UnprovenError
        self._check_config(schema)
        fields = [(field["name"], field) for field in inner["fields"]]
        if any(not field.get("init", True) or field.get("init_only") for _, field in fields):
            raise _UnprovenError
        has_slots = bool(schema.get("slots"))
        if has_slots and schema["cls"].__dictoffset__:  # a base without them: it may hold more
            raise _UnprovenError
        return self._fields(schema["cls"], fields, has_slots=has_slots)

    def _fields(
        self,
        cls: type,
        fields: list[tuple[str, Any]],
        *,
        has_slots: bool = False,
        is_model: bool = False,
    ) -> Proof:
        names = [name for name, _ in fields]
        given = frozenset(names) if is_model else None
        may_leave_out = self._may_leave_out
        aliases = [field["validation_alias"] for _, field in fields if "validation_alias" in field]
        if any(not isinstance(alias, str) or alias in names for alias in aliases):
            raise _UnprovenError
        proofs = {name: self.read(field["schema"]) for name, field in fields}
        kinds = {name: proof.kind for name, proof in proofs.items() if hasattr(proof, "kind")}
        others = [(name, proof) for name, proof in proofs.items() if name not in kinds]
        count = len(names)
        getter: Any = attrgetter if has_slots else itemgetter
        take = getter(*kinds) if len(kinds) > 1 else None
        expected = tuple(kinds.values())
        if take is None:
            others = list(proofs.items())

        if has_slots:
            return lambda value: (
                type(value) is cls
                and (take is None or tuple(map(type, take(value))) == expected)
                and all(proof(getattr(value, name)) for name, proof in others)
            )
        if take is not None and not others:
            return lambda value: (
                type(value) is cls
                and len(value.__dict__) == count
                and tuple(map(type, take(value.__dict__))) == expected
                and (
                    given is None
                    or _given_to(value) == given
                    or (may_leave_out and _given_to(value) <= given)
                )
            )

        def is_exact(value: Any) -> bool:
            if type(value) is not cls:
                return False
            found = value.__dict__
            if len(found) != count or (take and tuple(map(type, take(found))) != expected):
                return False
            if (
                given is not None
                and (said := _given_to(value)) != given
                and not (may_leave_out and said <= given)
            ):
                return False
            for name, proof in others:  # noqa: SIM110 - twice as fast as all()
                if not proof(found[name]):
                    return False
            return True

        return is_exact

    def typed_dict(self, schema: dict[str, Any]) -> Proof:
        self._check_config(schema)
        if schema.get("extra_behavior") == "allow" or schema.get("computed_fields"):
            raise _UnprovenError
        fields = schema["fields"]
        if any("validation_alias" in field for field in fields.values()):
            raise _UnprovenError
        total = schema.get("total", schema.get("config", {}).get("typed_dict_total", True))
        proofs = {name: self.read(field["schema"]) for name, field in fields.items()}
        needed = {  # a reader adds what has a default
            name
            for name, field in fields.items()
            if field.get("required", total) or field["schema"]["type"] == "default"
        }

        def is_exact(value: Any) -> bool:
            if type(value) is not dict or not needed <= value.keys():
                return False
            for name, item in value.items():
                proof = proofs.get(name)
                if proof is None or type(name) is not str or not proof(item):
                    return False
            return True

        return is_exact


def _any_of(proofs: list[Proof]) -> Proof:
    def is_exact(value: Any) -> bool:
        return any(proof(value) for proof in proofs)

    return is_exact


_FORMS = {
    "none": "null", "bool": "true", "int": "1", "float": "1.0", "str": "text",
    "list": "array", "dict": "object", "model": "object", "dataclass": "object",
}  # fmt: skip

_PROOFS: dict[str, Callable[[_Prover, dict[str, Any]], Proof]] = {
    "float": _Prover.number, "decimal": _Prover.number, "datetime": _Prover.moment,
    "time": _Prover.moment, "any": _Prover.anything, "literal": _Prover.literal,
    "enum": _Prover.enum, "list": _Prover.array, "set": _Prover.array, "frozenset": _Prover.array,
    "tuple": _Prover.row, "dict": _Prover.mapping, "nullable": _Prover.nullable,
    "default": _Prover.default, "union": _Prover.union, "tagged-union": _Prover.tagged,
    "model": _Prover.model, "dataclass": _Prover.dataclass, "typed-dict": _Prover.typed_dict,
    "definitions": _Prover.definitions, "definition-ref": _Prover.named,
}  # fmt: skip
"""Provers by the kind of a core schema; a kind that is missing here has no proof."""


def is_finite(value: float | Decimal) -> bool:
    """Return True if a number is one."""
    return value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)
