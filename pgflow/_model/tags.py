"""Tags: the type of a value, written beside it where JSON and the annotation do not determine it.

A value reads back with the type and content that was written, or is refused when it is written.
Without a proof (:mod:`pgflow._model.proofs`), the text is read again and compared. Places that
differ get a tag, an object with the key ``$pgflow``::

    {"$pgflow": "Circle", "name": "c", "radius": 2.0}        a subclass of the annotated class
    {"$pgflow": "bytes", "of": "aGk="}                       a member of bytes | str
    {"$pgflow": "datetime", "of": "...", "zone": "Europe/Berlin"}
    {"$pgflow": "dict", "of": [[1, "a"], ["1", "b"]]}        keys that one object could not have
    {"id": 1, "note": null, "$pgflow": ["note"]}             a model to which no note was given

A tag only chooses a reader. Its content is read and validated by the annotation or by the named
class, which must be a loaded subclass of the annotated one. Nothing is imported, and a forged tag
passes no validator. If the value still differs, it is not storable.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from functools import cached_property, partial
from itertools import filterfalse
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
from pydantic_core import TzInfo

from pgflow._model import coreschemas
from pgflow._model.proofs import is_finite
from pgflow.errors import NotStorable
from pgflow.texts import MASK, keep_secret

TAG = "$pgflow"
MARK = '"$pgflow"'
"""Part of the text of every tagged value."""

ABSENT: Any = object()
"""In place of what a text is read as, if it cannot be read."""

SECRETS = (pydantic.Secret, pydantic.SecretStr, pydantic.SecretBytes)
_JSON = (str, int, bool, type(None), float)
_SCALARS: dict[str, type] = {kind.__name__: kind for kind in (str, int, bool, float)}
_HOLDING = (dict, list)
_ROWS = (tuple, set, frozenset, collections.deque)
_BUILTIN: dict[str, Any] = {
    kind.__name__: kind for kind in (bytes, date, time, datetime, timedelta, Decimal, UUID, complex)
}
"""Types of which a tag says enough, whatever the annotation."""

_SECRET: dict[str, Any] = {kind.__name__: kind for kind in SECRETS}

_known: dict[str, type] = {}

C = TypeVar("C", bound=type)


def known(cls: C) -> C:
    """Declare a class of the library, whose tag is enough under any annotation."""
    _known[cls.__qualname__] = cls
    return cls


Codecs = Callable[[Any], Any]
"""Return the codec of a class."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A place where a value differs from what came back.

    Args:
        place: Path to it, as in ``.lines[2].item``; empty for the value itself.
        why: The matter there.
        is_reading: True if JSON was given where the annotation names another type: reading it as
            that type is what the annotation asks for.
        kind: Name of the type of what is written there.
    """

    place: str
    why: str
    is_reading: bool = False
    kind: str = "value"

    def __str__(self) -> str:
        return f"{self.place or 'it'} {self.why}"


# ---------------------------------------------------------------- comparing


def difference(
    value: Any, back: Any, place: str = "", *, is_hidden: bool = False
) -> Difference | None:
    """Return the first place where a value differs from another in type or content; one where JSON
    was given, only if all others are such.

    Args:
        value: The one that is written.
        back: The one that its text is read as.
        place: Path to both.
        is_hidden: True if the text is encrypted: then a secret may be in it.
    """
    if isinstance(value, SECRETS):
        return _difference_of_secrets(value, back, place, is_hidden=is_hidden)
    kind = type(value)
    if kind is not type(back):
        return _difference_of_types(value, back, place)
    if kind in _JSON:
        is_same = value == back if kind is not float else repr(value) == repr(back)
        return None if is_same else _changed(place)
    is_row = isinstance(value, (list, *_ROWS))
    if (is_row or isinstance(value, dict)) and vars_of(value) != vars_of(back):
        return _changed(place)
    if isinstance(value, Mapping):
        return _difference_of_dicts(value, back, place, is_hidden=is_hidden)
    if is_row:
        return _difference_of_rows(value, back, place, is_hidden=is_hidden)
    parts = parts_of(value)
    if parts is not None:
        others = parts_of(back) or {}
        if list(parts) != list(others):
            lost = next((name for name in parts if name not in others), None)
            return _changed(place if lost is None else f"{place}.{lost}")
        pairs = ((f"{place}.{name}", parts[name], others[name]) for name in parts)
        differs = _first(pairs, is_hidden=is_hidden)
        if (differs is None or differs.is_reading) and given_to(value) != given_to(back):
            return _changed(place)
        return differs
    if isinstance(value, (datetime, time)):
        is_same = (
            value == back and value.fold == back.fold and _is_same_zone(value.tzinfo, back.tzinfo)
        )
    elif isinstance(value, (Decimal, complex)):
        is_same = str(value) == str(back)
    else:
        is_same = bool(value == back)
    return None if is_same else _changed(place)


def _difference_of_secrets(
    value: Any, back: Any, place: str, *, is_hidden: bool
) -> Difference | None:
    held = value.get_secret_value()
    keep_secret(held)
    if not is_hidden:
        return Difference(
            place,
            f"is a {type(value).__name__}, and a secret is recorded only by an app whose codec "
            "encrypts it: give the app one, App(codec=pgflow.extensions.Keyring(...)), or pass a "
            "name by which a step finds the secret",
            kind=type(value).__name__,
        )
    if type(value) is not type(back):
        return _difference_of_types(value, back, place)
    # A place within it could name a part of it.
    return _changed(place) if difference(held, back.get_secret_value(), is_hidden=True) else None


def secrets_in(value: Any) -> Iterator[Any]:
    """Yield what each secret in a value holds."""
    if isinstance(value, SECRETS):
        yield value.get_secret_value()
        return
    parts = value if isinstance(value, Mapping) else parts_of(value)
    if parts is not None:
        for item in (*(parts if parts is value else ()), *parts.values()):
            yield from secrets_in(item)
    elif isinstance(value, (list, *_ROWS)):
        for item in value:
            yield from secrets_in(item)


def masked(value: Any) -> Any:
    """Return JSON that was decrypted as people may see it: with a mask for each secret."""
    if isinstance(value, dict):
        if TAG in value and _is_secret(str(value[TAG])):
            return MASK
        return {name: masked(part) for name, part in value.items()}
    return [masked(part) for part in value] if isinstance(value, list) else value


def _is_secret(name: str) -> bool:
    """Return True if a tag names a secret. A class that is not loaded goes by its name."""
    return name.startswith("Secret") or any(
        cls.__qualname__ == name for kind in SECRETS for cls in _subclasses(kind)
    )


def _difference_of_types(value: Any, back: Any, place: str) -> Difference | None:
    if type(value) is int and type(back) is float and value == back:
        return None  # a whole number where a float is annotated
    return Difference(
        place,
        f"is a {type(value).__qualname__} and would come back as a {type(back).__qualname__}: "
        "annotate it with the type that it has",
        is_reading=is_plain(value) and not (type(value) is int and type(back) is float),
        kind=type(value).__qualname__,
    )


def _changed(place: str) -> Difference:
    return Difference(
        place,
        "would come back as another value: its type, a validator or a serializer changes it",
    )


def _first(pairs: Iterator[tuple[str, Any, Any]], *, is_hidden: bool) -> Difference | None:
    differs = (difference(value, back, place, is_hidden=is_hidden) for place, value, back in pairs)
    return _worst(differs)


def _worst(differs: Iterator[Difference | None]) -> Difference | None:
    """Return the first that changes a value, or else the first that reads JSON that was given."""
    reading = None
    for found in differs:
        if found is not None and not found.is_reading:
            return found
        reading = reading or found
    return reading


def _difference_of_dicts(
    value: Any, back: Any, place: str, *, is_hidden: bool
) -> Difference | None:
    if len(value) != len(back) or getattr(value, "default_factory", None) is not getattr(
        back, "default_factory", None
    ):
        return _changed(place)
    pairs = back.items()
    if type(value) is dict and value.keys() == back.keys() and list(value) != list(back):
        known = {
            key: key for key in back
        }  # of a TypedDict, whose fields have an order of their own
        pairs = [(known[key], back[key]) for key in value]
    return _worst(
        _difference_of_items(*items, place, is_hidden=is_hidden)
        for items in zip(value.items(), pairs, strict=True)
    )


def _difference_of_items(
    item: tuple[Any, Any], back: tuple[Any, Any], place: str, *, is_hidden: bool
) -> Difference | None:
    here = f"{place}[{item[0]!r:.40}]"
    differs = difference(item[0], back[0], f"{here} (the key)", is_hidden=is_hidden)
    # JSON has no keys but texts, so any other was not given as JSON.
    if differs is not None and not (differs.is_reading and type(item[0]) is str):
        return dataclasses.replace(differs, is_reading=False)
    return difference(item[1], back[1], here, is_hidden=is_hidden) or differs


def _difference_of_rows(value: Any, back: Any, place: str, *, is_hidden: bool) -> Difference | None:
    if len(value) != len(back) or getattr(value, "maxlen", None) != getattr(back, "maxlen", None):
        return _changed(place)
    if isinstance(value, (set, frozenset)):
        known = {item: item for item in back}
        if any(item not in known for item in value):
            return _changed(place)
        return _first(((place, item, known[item]) for item in value), is_hidden=is_hidden)
    return _first(
        (
            (f"{place}[{number}]", item, found)
            for number, (item, found) in enumerate(zip(value, back, strict=True))
        ),
        is_hidden=is_hidden,
    )


def _is_same_zone(zone: Any, other: Any) -> bool:
    if isinstance(zone, ZoneInfo) or isinstance(other, ZoneInfo):
        return type(zone) is type(other) and zone.key == other.key
    if isinstance(zone, timezone) and isinstance(other, TzInfo):  # an offset, however it was made
        return zone.tzname(None) == timezone(zone.utcoffset(None)).tzname(None)
    return type(zone) is type(other) and bool(zone == other)


def vars_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an instance of a subclass may have; none for a list or a tuple,
    nor what typing and ``cached_property`` have noted.
    """
    found: dict[str, Any] = getattr(value, "__dict__", {})
    kind = type(value)
    return {
        name: part
        for name, part in found.items()
        if name != "__orig_class__" and type(getattr(kind, name, None)) is not cached_property
    }


def parts_of(value: Any) -> dict[str, Any] | None:
    """Return all that an instance of a model or dataclass holds, by name; None for other values."""
    if isinstance(value, pydantic.BaseModel):
        fields = type(value).model_fields
        found = {name: value.__dict__[name] for name in fields if name in value.__dict__}
        return {**found, **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {
            **{name: getattr(value, name) for name in names if hasattr(value, name)},
            **vars_of(value),
        }
    return None


def given_to(value: Any) -> set[str]:
    """Return the names of a model's fields that were given, as its ``model_fields_set`` says; none
    for other values.
    """
    given: set[str] = getattr(value, "__pydantic_fields_set__", set())
    return given if isinstance(value, pydantic.BaseModel) else set()


def left_out_of(value: Any) -> list[str]:
    """Return the names of a model's fields that count as left out: they hold their defaults."""
    given = given_to(value)
    named = [*type(value).model_fields, *(value.__pydantic_extra__ or ())]
    return [name for name in named if name not in given]


def has_model(schema: Any) -> bool:
    """Return True if a core schema has a model of pydantic's."""
    return coreschemas.has(schema, lambda part: part.get("type") == "model")


def mark(value: Any, plain: Any) -> None:
    """Write into the JSON of a value which fields of its models were left out."""
    stack = [(value, plain)]
    while stack:
        value, plain = stack.pop()
        if type(plain) is list:
            pairs = zip(value, plain, strict=True)
        elif isinstance(value, dict):  # whose keys may be numbers
            parts = map(value.get, plain) if value.keys() == plain.keys() else value.values()
            pairs = zip(parts, plain.values(), strict=True)
        else:
            pairs = zip(map(partial(getattr, value), plain), plain.values(), strict=True)
        for pair in pairs:
            if type(pair[1]) in _HOLDING:
                stack.append(pair)  # noqa: PERF401 - a generator costs a call for each
        given = getattr(value, "__pydantic_fields_set__", None)
        if given is not None and type(plain) is dict and len(given) < len(plain):
            plain[TAG] = list(filterfalse(given.__contains__, plain))


def take_marks(plain: Any) -> list[tuple[tuple[Any, ...], list[str]]] | None:
    """Take what :func:`mark` has written out of the JSON of a value. Return the path to each model
    and its fields that were left out; None if there are other tags.
    """
    found, is_all = [], True
    stack: list[tuple[tuple[Any, ...], Any]] = [((), plain)]
    while stack:
        path, node = stack.pop()
        if type(node) is list:
            items: Iterable[tuple[Any, Any]] = enumerate(node)
        else:
            if type(node.get(TAG)) is list and not (node[TAG] == ["root"] and "of" in node):
                found.append((path, node.pop(TAG)))
            is_all = is_all and TAG not in node
            items = node.items()
        for key, item in items:
            if type(item) in _HOLDING:
                stack.append(((*path, key), item))
    return found if is_all else None


def put_marks(value: Any, marks: list[tuple[tuple[Any, ...], list[str]]]) -> bool:
    """Have the fields of models in a value count as left out. Return False if they are not found
    by the path of their JSON.
    """
    try:
        for path, names in marks:
            model = value
            for key in path:
                model = (
                    model[key] if isinstance(model, (dict, list, tuple)) else getattr(model, key)
                )
            if is_root(type(model)) and names != ["root"]:
                return False  # it is what the root holds that lacks fields
            given = getattr(model, "__pydantic_fields_set__", None)
            if given is not None:  # its serializer may omit what was given
                given.update(type(model).__pydantic_fields__, model.__pydantic_extra__ or ())
                given.difference_update(names)
    except (LookupError, AttributeError, TypeError):
        return False
    return True


def is_plain(value: Any) -> bool:
    """Return True if a value is plain JSON, which is recorded unchanged."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) in _JSON


def is_given(value: Any, plain: Any) -> bool:
    """Return True if the JSON of a value has each number and text of it as it was given: a reader
    sees what the caller wrote.

    Args:
        value: The value.
        plain: Its JSON, as dicts and lists.
    """
    parts = value if isinstance(value, dict) else parts_of(value)
    if parts is not None and isinstance(plain, dict):
        return all(is_given(parts[name], item) for name, item in plain.items() if name in parts)
    if isinstance(value, (list, *_ROWS)) and isinstance(plain, list):
        return all(map(is_given, value, plain))
    if type(value) in (dict, list):
        return False
    return type(value) not in _JSON or (type(value) is type(plain) and value == plain)


# ---------------------------------------------------------------- writing


class Writer:
    """Makes the JSON of a value with tags where it needs them.

    Args:
        codec_of: Gives the codec of a class.
        refused: Value that the codec of its own class cannot write without tags: it is not asked
            again. ABSENT if there is none.
        names_classes: True to name the class of a model of which fields were left out, since
            another one would read it too.
        is_hidden: True if the text is encrypted: then secrets may be in it.
    """

    def __init__(
        self,
        codec_of: Codecs,
        refused: Any = ABSENT,
        *,
        names_classes: bool = False,
        is_hidden: bool = False,
    ) -> None:
        self._codec_of = codec_of
        self._is_hidden = is_hidden
        self._refused = refused
        self._names_classes = names_classes

    def write(self, value: Any, plain: Any, back: Any) -> Any:
        """Return the JSON of a value, as dicts and lists.

        Args:
            value: It.
            plain: Its JSON without tags, or ABSENT.
            back: Value that this is read as, or ABSENT: then there is a tag wherever one may be
                needed.

        Raises:
            ValueError: Nothing says what it is.
        """
        is_known = back is not ABSENT
        if is_known and difference(value, back, is_hidden=self._is_hidden) is None:
            return plain
        if self._is_hidden and isinstance(value, SECRETS):
            held = value.get_secret_value()
            return {TAG: type(value).__qualname__, "of": self.write(held, ABSENT, ABSENT)}
        is_type = not is_known or type(value) is type(back)
        if type(value) is dict:
            return self._dict(value, plain, back, is_other=not is_type)
        if isinstance(value, (list, *_ROWS)) and type(value).__module__ in (
            "builtins",
            "collections",
        ):
            return self._row(value, plain, back)
        if isinstance(value, Enum):
            return self._enum(value)
        if parts_of(value) is not None:
            return self._instance(value, plain, back, is_type=is_type)
        if isinstance(value, tuple):
            rows = tuple(value), plain, tuple(back) if is_type and is_known else ABSENT
            return self._items(*rows)
        if type(value) in _JSON and not is_known:
            return self._finite(value)
        of = value if type(value) in _JSON else self._plain(value, plain)
        tagged: dict[str, Any] = {TAG: type(value).__qualname__, "of": of}
        if isinstance(value, (datetime, time)):
            tagged.update(_zone_of(value))
        return tagged

    def _plain(self, value: Any, plain: Any = ABSENT) -> Any:
        """Return the JSON of a value by its own class."""
        if plain is not ABSENT:
            return plain
        kind = type(value)
        if kind in _JSON:
            return self._finite(value)
        if kind is list or kind is dict or isinstance(value, _ROWS):
            return ABSENT
        if isinstance(value, Enum):
            return self._enum(value)
        self._check_asked(value)
        if self._is_hidden and isinstance(value, SECRETS):
            return ABSENT
        return json.loads(self._codec_of(kind).encode(value, "it", is_hidden=self._is_hidden))

    def _check_asked(self, value: Any) -> None:
        """The codec that asks for tags, asked again, would ask for them again."""
        if value is self._refused:
            raise ValueError(f"nothing says how to write a {type(value).__qualname__}")

    @staticmethod
    def _finite(value: Any) -> Any:
        if type(value) is float and not is_finite(value):
            raise ValueError(f"{value} is not JSON")
        return value

    def _dict(self, value: dict[Any, Any], plain: Any, back: Any, *, is_other: bool) -> Any:
        is_object = not is_other and TAG not in value and all(type(key) is str for key in value)
        if not is_object:
            pairs = [
                [self.write(part, self._plain(part), ABSENT) for part in pair]
                for pair in value.items()
            ]
            return {TAG: "dict", "of": pairs}
        plains = plain if type(plain) is dict and plain.keys() == value.keys() else {}
        backs = back if type(back) is dict and back.keys() == value.keys() else {}
        return {
            key: self.write(
                item,
                plains[key] if key in plains else self._plain(item),
                backs.get(key, ABSENT),
            )
            for key, item in value.items()
        }

    def _row(self, value: Any, plain: Any, back: Any) -> Any:
        is_type = type(value) is type(back) and len(back) == len(value)
        items = self._items(value, plain, back if is_type else ABSENT)
        if is_type and getattr(value, "maxlen", None) == getattr(back, "maxlen", None):
            return items
        if type(value) is list and back is ABSENT:
            return items
        tagged = {TAG: type(value).__qualname__, "of": items}
        if (most := getattr(value, "maxlen", None)) is not None:
            tagged["maxlen"] = most
        return tagged

    def _items(self, value: Any, plain: Any, back: Any) -> list[Any]:
        plains = plain if type(plain) is list and len(plain) == len(value) else None
        backs = None
        if back is not ABSENT and len(back) == len(value):
            known = {item: item for item in back} if isinstance(value, (set, frozenset)) else None
            backs = list(back) if known is None else [known.get(item, ABSENT) for item in value]
        return [
            self.write(
                item,
                self._plain(item) if plains is None else plains[number],
                ABSENT if backs is None else backs[number],
            )
            for number, item in enumerate(value)
        ]

    @staticmethod
    def _enum(value: Enum) -> Any:
        name = type(value).__qualname__
        if isinstance(value, Flag) or value.name not in type(value).__members__:
            return {TAG: name, "of": value.value}
        return {TAG: name, "name": value.name}

    def _instance(self, value: Any, plain: Any, back: Any, *, is_type: bool) -> Any:
        if is_type and back is not ABSENT:
            # Its class is what it should be: what differs is in it.
            parts, others = parts_of(value) or {}, parts_of(back) or {}
            if is_root(type(value)):
                of = self.write(parts["root"], plain, others["root"])
                return of if given_to(value) else {TAG: ["root"], "of": of}
            made = {
                name: self.write(parts[name], item, others.get(name, ABSENT))
                if name in parts
                else item
                for name, item in plain.items()
            }
            if given_to(value) == given_to(back):
                return made
            if not self._names_classes:
                return {**made, TAG: left_out_of(value)}
        self._check_asked(value)
        codec = self._codec_of(type(value))
        written = json.loads(codec.encode(value, "it", is_hidden=self._is_hidden))
        name = type(value).__qualname__
        if isinstance(written, dict) and not is_root(type(value)) and TAG not in written:
            return {TAG: name, **written}
        return {TAG: name, "of": written}


def is_root(cls: type) -> bool:
    """Return True if a class has one value, and no fields."""
    return issubclass(cls, pydantic.RootModel)


def _zone_of(value: datetime | time) -> dict[str, Any]:
    zone = value.tzinfo
    said: dict[str, Any] = {"fold": value.fold} if value.fold else {}
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return {**said, "zone": zone.key}
    if isinstance(zone, timezone):
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        said["offset"] = [offset.days, offset.seconds, offset.microseconds]
        return said if name == timezone(offset).tzname(None) else {**said, "name": name}
    return said


# ---------------------------------------------------------------- reading


_GATED = frozenset(
    {
        "any", "bool", "bytes", "complex", "dataclass", "date", "datetime", "decimal", "deque",
        "dict", "enum", "float", "frozenset", "int", "json-or-python", "lax-or-strict", "list",
        "model", "multi-host-url", "named-tuple", "set", "str", "time", "timedelta", "tuple",
        "url", "uuid",
    }
)  # fmt: skip
"""Kinds of schemas before which a tag may stand. Those of functions are not among them: a validator
sees what was chosen behind it.
"""

_BASES: dict[str, type] = {"str": str, "int": int, "float": float, "bytes": bytes}


def weave_in(schema: Any, codec_of: Codecs) -> Any:
    """A core schema that reads tags.

    Args:
        schema: It, as values without tags are read.
        codec_of: Gives the codec of a class.
    """
    definitions: list[Any] = []

    def gate(part: dict[str, Any]) -> dict[str, Any]:
        kind = part.get("type")
        if kind == "definitions":
            definitions.extend(part["definitions"])
            return dict(part["schema"])
        if kind not in _GATED:
            return part
        if kind == "any":
            return _anything(codec_of) | ({"ref": part["ref"]} if "ref" in part else {})
        if kind in ("list", "set", "frozenset", "deque"):
            part.setdefault("items_schema", _anything(codec_of))
        elif kind == "dict":
            part.setdefault("values_schema", _anything(codec_of))
        ref = part.pop("ref", None)
        inner = f"pgflow-{len(definitions)}"
        definitions.append({**part, "ref": inner})
        plain = {"type": "definition-ref", "schema_ref": inner}
        gated: dict[str, Any] = {
            "type": "tagged-union",
            "discriminator": _is_tagged if kind != "model" else _discriminator_of(part["cls"]),
            "choices": {"plain": plain, "tagged": _tagged(part, plain, codec_of)},
        }
        return gated | ({} if ref is None else {"ref": ref})

    woven = coreschemas.rebuild(schema, gate)
    return {"type": "definitions", "schema": woven, "definitions": definitions}


def _is_tagged(value: Any) -> str:
    return "tagged" if isinstance(value, dict) and type(value.get(TAG)) is str else "plain"


def _is_model_tagged(value: Any) -> str:
    return "tagged" if _leaves_out(value) else _is_tagged(value)


def _discriminator_of(cls: type) -> Callable[[Any], str]:
    """Return the discriminator for the tag of a model. A tag there may be that of what its
    root holds.
    """

    def is_tagged(value: Any) -> str:
        if not isinstance(value, dict):
            return "plain"
        name = value.get(TAG)
        is_own = (name == ["root"] and value.keys() == {TAG, "of"}) or any(
            inner.__qualname__ == name for inner in _subclasses(cls)
        )
        return "tagged" if is_own else "plain"

    return is_tagged if is_root(cls) else _is_model_tagged


def _leaves_out(value: Any) -> bool:
    """Return True for the JSON of a model of which fields were left out."""
    return isinstance(value, dict) and type(value.get(TAG)) is list


def _plainly(function: Callable[[Any], Any]) -> dict[str, Any]:
    return {"type": "function-plain", "function": {"type": "no-info", "function": function}}


def _tagged(part: dict[str, Any], plain: dict[str, Any], codec_of: Codecs) -> dict[str, Any]:
    kind, cls = part["type"], part.get("cls")
    if kind in ("model", "dataclass"):
        assert isinstance(cls, type)
        return _plainly(lambda value: _instance_of(cls, value, codec_of))
    if kind == "enum":
        assert isinstance(cls, type)
        return _plainly(lambda value: _member_of(cls, value))
    fields: dict[str, Any] = {TAG: {"type": "str"}, "of": plain}
    more = {"zone": "str", "fold": "int", "offset": "any", "name": "str", "maxlen": "int"}
    if kind == "dict":
        keys = part.get("keys_schema", _anything(codec_of))
        pair = {"type": "tuple", "items_schema": [keys, part["values_schema"]]}
        fields["of"] = {"type": "list", "items_schema": pair}
    own = {
        "type": "function-after",
        "function": {
            "type": "no-info",
            "function": _chosen_row if kind == "json-or-python" else _chosen,
        },
        "schema": {
            "type": "typed-dict",
            "fields": {
                **{
                    name: {"type": "typed-dict-field", "schema": inner, "required": True}
                    for name, inner in fields.items()
                },
                **{
                    name: {"type": "typed-dict-field", "schema": {"type": said}, "required": False}
                    for name, said in more.items()
                },
            },
            "extra_behavior": "forbid",
        },
    }
    base = _BASES.get(kind)
    if base is None or set(part) - {"type", "metadata", "strict"}:
        return own
    return {
        "type": "tagged-union",
        "discriminator": lambda value: "own" if value[TAG] == kind else "other",
        "choices": {"own": own, "other": _plainly(lambda value: _subclass_member(base, value))},
    }


def _anything(codec_of: Codecs) -> dict[str, Any]:
    return _plainly(lambda value: untag_within(value, codec_of))


def _chosen(said: dict[str, Any]) -> Any:
    """Return the value of a tag, read by the annotation."""
    value, name = said["of"], said[TAG]
    if name == "dict" and isinstance(value, list):
        return dict(value)
    if type(value).__qualname__ != name:
        raise ValueError(f"it is tagged as {name}, and reads as {type(value).__qualname__}")
    if isinstance(value, (datetime, time)):
        return _in_zone(value, said)
    if isinstance(value, collections.deque):
        return collections.deque(value, said.get("maxlen"))
    return value


def _chosen_row(said: dict[str, Any]) -> Any:
    """The same of a Sequence, which JSON has as a list."""
    value = said["of"]
    return tuple(value) if said[TAG] == "tuple" and type(value) is list else _chosen(said)


def _in_zone(value: Any, said: dict[str, Any]) -> Any:
    if "zone" in said:
        value = value.replace(tzinfo=_zone(said["zone"]))
    elif "offset" in said:
        offset = timedelta(*said["offset"])
        name = (said["name"],) if "name" in said else ()
        value = value.replace(tzinfo=timezone(offset, *name))
    return value.replace(fold=said.get("fold", 0))


def _zone(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except (OSError, LookupError, ValueError) as error:
        raise ValueError(f"this system has no time zone {key!r}") from error


def _subclasses(cls: type) -> Iterator[type]:
    yield cls
    below: list[type] = type.__subclasses__(cls)
    for inner in below:
        yield from _subclasses(inner)


def _named(cls: type, name: str) -> type:
    found = [inner for inner in _subclasses(cls) if inner.__qualname__ == name]
    if not found:
        raise ValueError(
            f"it is tagged as a {name}, and no subclass of {cls.__qualname__} of that name is "
            "loaded: import its module"
        )
    return found[-1]


def _instance_of(cls: type, value: dict[str, Any], codec_of: Codecs) -> Any:
    chosen = cls if _leaves_out(value) else _named(cls, value[TAG])
    rest = without(value)
    is_wrapped = is_root(chosen) or (rest.keys() == {"of"} and _leaves_out(rest["of"]))
    content = rest["of"] if is_wrapped and "of" in rest else rest
    back = _read(codec_of(chosen), content, f"a {chosen.__qualname__}")
    if _leaves_out(value):
        put_marks(back, [((), value[TAG])])
    return back


def _read(codec: Any, content: Any, what: str) -> Any:
    try:
        return codec.decode(json.dumps(content), what)
    except NotStorable as error:
        raise ValueError(str(error)) from error  # another member of a union may fit


def _member_of(cls: type, value: dict[str, Any]) -> Any:
    if value[TAG] != cls.__qualname__:
        raise ValueError(f"it is tagged as {value[TAG]}, and must be a {cls.__qualname__}")
    try:
        return cls[value["name"]] if "name" in value else cls(value["of"])  # type: ignore[index]
    except (LookupError, TypeError) as error:
        raise ValueError(f"{cls.__qualname__} has no such member") from error


def _subclass_member(base: type, value: dict[str, Any]) -> Any:
    """A member of an enum of texts or numbers where those are annotated; or a bool for an int."""
    if base is int and value[TAG] == "bool" and type(value.get("of")) is bool:
        return value["of"]
    for cls in _subclasses(base):
        if issubclass(cls, Enum) and cls.__qualname__ == value[TAG]:
            return _member_of(cls, value)
    raise ValueError(f"it is tagged as a {value[TAG]}, which is not a loaded {base.__name__}")


def untag_within(value: Any, codec_of: Codecs) -> Any:
    """Return a value without an annotation, with its tags resolved."""
    if isinstance(value, list):
        return [untag_within(item, codec_of) for item in value]
    if isinstance(value, dict):
        if type(value.get(TAG)) is str:
            return untag(value, codec_of)
        if _leaves_out(value):  # of a model that is read without its class
            if value[TAG] == ["root"]:
                return untag_within(value.get("of"), codec_of)
            value = without(value)
        return {key: untag_within(item, codec_of) for key, item in value.items()}
    return value


def without(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object without its tag."""
    return {key: item for key, item in value.items() if key != TAG}


def untag(value: Any, codec_of: Codecs) -> Any:
    """Return the value of a tag in a value without an annotation."""
    if _is_tagged(value) == "plain":
        return untag_within(value, codec_of)
    name = value[TAG]
    if name in _known:
        return _instance_of(_known[name], value, codec_of)
    if name in _BUILTIN:
        return _read(codec_of(_BUILTIN[name]), value, f"a {name}")
    if name in _SCALARS and type(value.get("of")) is _SCALARS[name]:
        return value["of"]
    if name in _SECRET:
        held = untag_within(value.get("of"), codec_of)
        keep_secret(held)
        return _SECRET[name](held)
    rows = {"tuple": tuple, "set": set, "frozenset": frozenset, "list": list}
    items = untag_within(value.get("of"), codec_of)
    if name in rows and isinstance(items, list):
        return rows[name](items)
    if name == "deque" and isinstance(items, list):
        return collections.deque(items, value.get("maxlen"))
    if name == "dict" and isinstance(items, list):
        return dict(items)
    raise ValueError(
        f"it is tagged as a {name}, which needs an annotation: annotate it with its class"
    )
