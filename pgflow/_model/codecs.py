"""Values as JSON text: encoding and decoding them.

What a workflow sees on its first run must be what it sees on every replay, so a step returns
``decode(encode(value))`` always. A :class:`Codec` does both, by the annotation of the function:
pydantic for models, dataclasses, datetimes, Decimal, UUID, Enum and bytes; plain JSON where nothing
is annotated. Nothing is ever pickled, and no name found in data is ever imported.

Pydantic's defaults are made for answers to browsers and lose something on the way: bytes that are
not UTF-8, NaN (it becomes null), fields with different names for reading and writing. Here bytes
are base64, NaN is refused, and fields are stored under their own names (aliases are read too). What
a class says in its own configuration of bytes and NaN holds.

The text is stored as it is, in columns of type ``json``. What Postgres or another client could not
read back (NUL, lone surrogates, NaN, numbers of more than 4,299 digits, more than 200 levels, more
than 1 MiB) is refused here with a typed error; the server checks what it is sent by other clients.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Generic, NoReturn, TypeVar, get_args

import pydantic
from pydantic_core import (
    PydanticSerializationError,
    SchemaSerializer,
    SchemaValidator,
    from_json,
    to_jsonable_python,
)

from pgflow._model import coreschemas, proofs, shapes, tags, upcasters
from pgflow._model.decimals import outside_strings, reader_of
from pgflow.errors import DefinitionError, NotStorable
from pgflow.texts import keep_secret

T = TypeVar("T")

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 200
# CPython reads integers of 4,300 characters (sys.int_info.default_max_str_digits), and pydantic
# before 2.14 counts the sign as one of them.
MAX_DIGITS = 4299

ENVELOPE = '{"$codec"'
"""Beginning of the text of an encoded value, and of no other value
(:mod:`pgflow._model.envelopes`).
"""

quote_json = json.encoder.encode_basestring
"""JSON string of a Python string, without escaping what is not ASCII."""

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_CONSTANT = re.compile("NaN|Infinity")
_DIGITS = re.compile(r"[0-9]+")
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def check_text(text: str, what: str) -> str:
    """Return a JSON text, or raise NotStorable if Postgres or a reader could not take it.

    The common case costs a few scans at C speed: each limit is tested exactly only where a bound on
    it has been crossed.
    """
    size = len(text)
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise NotStorable(
                f"{what} holds a lone surrogate, which is not text: {error.reason}"
            ) from None
    if size > MAX_BYTES:
        raise NotStorable(
            f"{what} is {size:,} bytes of JSON; the limit is 1 MiB: store it elsewhere and pass a "
            "reference"
        )
    if text.startswith(ENVELOPE):
        raise NotStorable(
            f"{what} begins with the key '$codec' and would be taken for an encoded value: rename "
            "the key"
        )
    if "\\u0000" in text and _NUL.search(text):
        raise NotStorable(f"{what} holds the character NUL, which text in Postgres cannot")
    if (
        size > MAX_DEPTH
        and text.count("[") + text.count("{") > MAX_DEPTH
        and is_deeper(text, MAX_DEPTH)
    ):
        raise NotStorable(f"{what} is nested more than {MAX_DEPTH} levels deep")
    if size > MAX_DIGITS and _has_long_run(text) and _has_long_run(outside_strings(text)):
        raise NotStorable(f"{what} holds a number of more than {MAX_DIGITS:,} digits")
    return text


def is_deeper(text: str, most: int) -> bool:
    """Return True if a JSON text is nested deeper than so many levels: take the innermost brackets
    away, level by level.
    """
    brackets = outside_strings(text).encode().translate(_TO_SQUARE, _NO_BRACKETS)
    levels = 0
    while brackets and levels < most:
        brackets = brackets.replace(b"[]", b"")
        levels += 1
    return bool(brackets)


def _has_long_run(text: str) -> bool:
    """Return True if more than MAX_DIGITS digits stand side by side: so many cover one of the
    places that are looked at.
    """
    for place in range(MAX_DIGITS, len(text), MAX_DIGITS + 1):
        if "0" <= text[place] <= "9":
            before = text[place - MAX_DIGITS : place]
            first = place - (len(before) - len(before.rstrip("0123456789")))
            run = _DIGITS.match(text, first, first + MAX_DIGITS + 1)
            if run is not None and run.end() - first > MAX_DIGITS:
                return True
    return False


def _plain(value: Any) -> Any:
    """Return an object as the JSON encoder can write it;
    called for types that the encoder does not know.
    """
    if isinstance(value, pydantic.BaseModel):
        # A model would follow its own configuration, and write NaN as null.
        return codec_for(type(value)).to_plain(value)
    return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants")


_encode_loosely = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
).encode
write_json = SchemaSerializer({"type": "any"}, coreschemas.CONFIG).to_json
"""Write a value of JSON's own types as bytes."""


_MALFORMED = (TypeError, LookupError, AttributeError, OverflowError)
"""Errors of reading a tag that nothing here has written."""
_UNPROVEN = (RecursionError, KeyError, AttributeError)
"""Raised by a proof: the value holds itself, or lacks a field."""

_UNWRITABLE = (PydanticSerializationError, TypeError, ValueError)
SHORT = MAX_DEPTH
"""A text of fewer characters is within every limit."""
_REPLACED = "\ufffd"
"""Character that pydantic writes for a lone surrogate in a key."""


def _may_be_nan(part: dict[str, Any]) -> bool:
    """Return True if a part of a core schema takes floats."""
    kind = part.get("type")
    return (
        kind in ("float", "any")
        or (kind in ("list", "set", "frozenset") and "items_schema" not in part)
        or (kind == "dict" and "values_schema" not in part)
    )


def _is_never(_value: Any) -> bool:
    return False


def _is_proven(proof: proofs.Proof, value: Any) -> bool:
    try:
        return proof(value)
    except _UNPROVEN:
        return False


def encode_plain(value: Any, what: str) -> str:
    """JSON text of a value that others read as JSON: it has to be JSON.

    Raises:
        NotStorable: It is not, or not within the limits.
    """
    if _is_proven(proofs.is_json, value):
        return _encode_json(value, what)
    text = encode_loosely(value, what)
    differs = tags.difference(value, json.loads(text))
    if differs is not None:
        raise NotStorable(
            f"{what} cannot be stored as JSON: {differs.place or 'it'} is a "
            f"{differs.kind}, which JSON does not have: pass what is to be read"
        )
    return text


def encode_by_class(value: Any, what: str, *, may_mark: bool = True) -> str:
    """JSON text of a value that others read by a type of their own choice: what is of a class is
    written as that class is.

    Args:
        value: The value.
        what: Name of it for errors.
        may_mark: False if programs read it that are not pgflow: fields of models that were left out
            are then written like all others.

    Raises:
        NotStorable: It would be read as another value even by its own class, or is not within the
            limits.
    """
    if _is_proven(proofs.is_json, value):
        return _encode_json(value, what)
    try:
        parts = _parts_by_class(value, what)
        if not may_mark and isinstance(parts, (dict, list)):
            tags.take_marks(parts)
        return check_text(_encode_loosely(parts), what)
    except (TypeError, ValueError, RecursionError, DefinitionError) as error:
        _refuse(what, error)


def _parts_by_class(value: Any, what: str) -> Any:
    if type(value) is list:
        return [_parts_by_class(item, what) for item in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _parts_by_class(item, what) for key, item in value.items()}
    if proofs.is_json(value):
        return value
    if isinstance(value, (dict, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        return json.loads(encode_plain(value, what))
    return json.loads(codec_for(type(value), what).encode(value, what))


def _encode_json(value: Any, what: str) -> str:
    """JSON text of a value of JSON's own types."""
    try:
        text = write_json(value).decode()
        if _REPLACED in text:
            text = _encode_loosely(value)
        _check_constants(text)
    except (ValueError, RecursionError) as error:
        _refuse(what, error)
    return check_text(text, what)


def encode_loosely(value: Any, what: str) -> str:
    """JSON text of a value as pydantic writes it, whatever is lost by that."""
    try:
        return check_text(_encode_loosely(value), what)
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(what, error)


def _refuse(what: str, error: Exception) -> NoReturn:
    if isinstance(error, NotStorable):
        raise error
    reason = (
        "it is nested too deeply, or holds itself"
        if isinstance(error, RecursionError)
        else str(error)
    )
    raise NotStorable(f"{what} cannot be stored as JSON: {reason}") from error


class Codec(Generic[T]):
    """Encodes and decodes the values of one annotation."""

    __slots__ = (
        "_but_for_given",
        "_may_be_nan",
        "_proof",
        "_read",
        "_revealing",
        "_tagged",
        "_upcasting",
        "_write",
        "_writer",
        "annotation",
    )

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._writer: SchemaSerializer | None = None
        self._read: Callable[[str], Any] = from_json
        self._proof: proofs.Proof = proofs.is_json
        self._write: Callable[[Any], bytes] | None = write_json
        """Writes a value of which there is a proof; None if there never is."""
        self._but_for_given: proofs.Proof | None = None
        """Proof for values whose models may lack fields; made when one is needed."""
        self._may_be_nan = True
        self._tagged: Callable[[str], Any] | None = None
        self._revealing: SchemaSerializer | None = None
        """Writes what secrets hold; None if values have no place for one."""
        self._upcasting: tuple[int, Callable[[str], Any]] | None = None
        if annotation is not Any:
            schema = coreschemas.lossless(_core_schema(annotation))
            self._writer = SchemaSerializer(
                coreschemas.own(schema, to_write=True), coreschemas.CONFIG
            )
            self._read = reader_of(coreschemas.own(schema, to_write=False))
            proof = proofs.proof_of(schema)
            self._proof = proof or _is_never
            self._write = None if proof is None else self._writer_of_proven(schema)
            self._may_be_nan = coreschemas.has(schema, _may_be_nan)
            if coreschemas.has_secrets(schema):
                self._revealing = SchemaSerializer(
                    coreschemas.own(coreschemas.revealing(schema, tags.TAG), to_write=True),
                    coreschemas.CONFIG,
                )

    def _writer_of_proven(self, schema: Any) -> Callable[[Any], bytes]:
        assert self._writer is not None
        if not coreschemas.has_two_forms(schema):
            return self._writer.to_json  # options cost as much as the value
        return partial(self._writer.to_json, by_alias=False, round_trip=True, warnings=False)

    def encode(self, value: T, what: str, *, is_hidden: bool = False) -> str:
        """Return the JSON text of a value, which reads back as the same value.

        Args:
            value: The value.
            what: Name for errors, as in "the result of step charge".
            is_hidden: True if an app's codec encrypts the text: then secrets may be in it.

        Raises:
            NotStorable: It cannot be written within the limits, or would come back as another.
        """
        if self._write is None:
            return self._encode_carefully(value, what, is_hidden=is_hidden)
        try:
            if not self._proof(value):
                return self._encode_carefully(value, what, is_hidden=is_hidden)
            text = self._write(value).decode()
        except (*_UNPROVEN, *_UNWRITABLE):
            return self._encode_carefully(value, what, is_hidden=is_hidden)
        if len(text) < SHORT and '"$' not in text and "\\u" not in text and text.isascii():
            if self._may_be_nan and ("NaN" in text or "Infinity" in text):
                self._check_constants(text, what)
            return text
        if self._may_be_nan:
            self._check_constants(text, what)
        check_text(text, what)
        if tags.MARK not in text and _REPLACED not in text:
            return text
        return self._encode_carefully(value, what, is_hidden=is_hidden)

    @staticmethod
    def _check_constants(text: str, what: str) -> None:
        try:
            _check_constants(text)
        except ValueError as error:
            _refuse(what, error)

    def _text_of(self, value: T, what: str, *, is_hidden: bool) -> str:
        """Return the text of a value as its annotation has it, within the limits."""
        if self._writer is None:
            return encode_loosely(value, what)
        writer = (self._revealing if is_hidden else None) or self._writer
        try:
            text = writer.to_json(value, warnings=False, by_alias=False, round_trip=True).decode()
            _check_constants(text)
        except (
            PydanticSerializationError,
            TypeError,
            ValueError,
            RecursionError,
            AttributeError,
        ) as error:
            _refuse(what, error)
        return check_text(text, what)

    def _encode_carefully(self, value: T, what: str, *, is_hidden: bool) -> str:
        """Return the text of a value whose round trip is not proven: read it again and compare. If
        it differs, the text gets tags.
        """
        text: str | None = None
        if self._write is not None and self._is_proven_but_for_given(value):
            marked = self._text_but_for_given(value, what)
            if marked is not None:
                return marked
        back, refused = tags.ABSENT, None
        try:
            text = self._text_of(value, what, is_hidden=is_hidden)
            back = self.decode(text, what)
        except NotStorable as error:
            refused = error
        try:
            differs = tags.difference(
                value, value if back is tags.ABSENT else back, is_hidden=is_hidden
            )
        except (TypeError, ValueError, RecursionError) as error:  # also of a class's own code
            _refuse(what, error)
        if text is not None and refused is None and differs is None:
            return text
        tagged = self._with_tags(value, text, back, what, is_hidden=is_hidden)
        if tagged is not None:
            return tagged
        if differs is not None and not (
            text
            and differs.is_reading
            and tags.MARK not in text
            and tags.is_given(value, json.loads(text))
            and not self._admits(value)
        ):
            changed = NotStorable(f"{what} cannot be stored as JSON: {differs}")
            changed.outline = f"{what} cannot be stored as JSON"  # a place may name keys
            raise changed
        if refused is not None or text is None:
            raise refused or NotStorable(f"{what} cannot be stored as JSON")
        return text

    def _text_but_for_given(self, value: T, what: str) -> str | None:
        """Return the text of a value that comes back, if its models say what was left out. None if
        it holds what would be read as a tag, or may hold a key that is not text.
        """
        text = self._text_of(value, what, is_hidden=False)
        if tags.MARK in text or _REPLACED in text:
            return None
        plain = from_json(text)
        tags.mark(value, plain)
        return check_text(write_json(plain).decode(), what)

    def _is_proven_but_for_given(self, value: T) -> bool:
        if self._but_for_given is None:
            schema = coreschemas.lossless(_core_schema(self.annotation))
            proof = proofs.proof_of(schema, may_leave_out=True)
            self._but_for_given = (
                proof if proof is not None and tags.has_model(schema) else _is_never
            )
        return _is_proven(self._but_for_given, value)

    def _read_but_for_given(self, text: str) -> T | None:
        """Read a value with no tags but those of fields that were left out; None for others."""
        if self._writer is None:
            return None
        plain = from_json(text)
        marks = None if type(plain) is str else tags.take_marks(plain)
        if marks is None:
            return None
        value: T = self._read(write_json(plain).decode())
        return value if tags.put_marks(value, marks) else None

    def _admits(self, value: T) -> bool:
        """Return True if the annotation takes a value as it is, so that reading it must not make
        another of it.
        """
        if self._writer is None:
            return True
        schema = coreschemas.by_instance(coreschemas.lossless(_core_schema(self.annotation)))
        try:
            taken = SchemaValidator(schema).validate_python(value, strict=True)
        except (ValueError, RecursionError):
            return False
        return tags.difference(value, taken) is None

    def _with_tags(
        self, value: T, text: str | None, back: Any, what: str, *, is_hidden: bool
    ) -> str | None:
        """Return the text with tags; None if it is not read as the value either."""
        refused = value if self.annotation is type(value) else tags.ABSENT
        for names_classes in (False, True):
            try:
                made = tags.Writer(
                    codec_for, refused, names_classes=names_classes, is_hidden=is_hidden
                ).write(value, tags.ABSENT if text is None else json.loads(text), back)
                tagged = check_text(_encode_loosely(made), what)
                read = self.decode(tagged, what)
            except (NotStorable, DefinitionError, TypeError, ValueError, RecursionError):
                continue
            if tags.difference(value, read, is_hidden=is_hidden) is None:
                return tagged
        return None

    def shown(self, value: T, what: str) -> Any:
        """Return the JSON of a value as people may see it, with a mask for each secret.

        Raises:
            NotStorable: It has no form as JSON.
        """
        return tags.masked(json.loads(self.encode(value, what, is_hidden=True)))

    def to_plain(self, value: T) -> Any:
        """Return the dicts, lists and so on that :meth:`encode` would write;
        NaN is still in them.
        """
        assert self._writer is not None
        return self._writer.to_python(
            value, mode="json", warnings=False, by_alias=False, round_trip=True
        )

    def decode(self, text: str, what: str) -> T:
        """Return the value of a JSON text.

        Args:
            text: The text.
            what: Name for errors.

        Raises:
            NotStorable: The text does not fit the annotation.
        """
        try:
            value: T = (self._read_tagged if tags.MARK in text else self._read)(text)
        except (ValueError, RecursionError) as error:
            if self._writer is not None and upcasters.is_any():
                try:
                    value = self._upcasting_reader(tagged=tags.MARK in text)(text)
                except (ValueError, RecursionError, *_MALFORMED):
                    # The error of the first reader describes the difference.
                    pass
                else:
                    return self._read_from(value)
            outline = f"{what} does not fit its annotation {describe(self.annotation)}"
            refused = NotStorable(f"{outline}: {_first_line(error)}")
            refused.outline = outline
            raise refused from error
        return self._read_from(value)

    def _read_from(self, value: T) -> T:
        """Have the secrets in a value masked from now on."""
        if self._revealing is not None:
            for held in tags.secrets_in(value):
                keep_secret(held)
        return value

    def _read_tagged(self, text: str) -> T:
        """Read a text in which tags may stand."""
        try:
            plain = self._read_but_for_given(text)
            if plain is not None:
                return plain
            if self._tagged is None:
                self._tagged = self._make_tagged_reader()
            value: T = self._tagged(text)
        except _MALFORMED as error:
            raise ValueError(f"a tag in it is not as tags are: {error}") from error
        return value

    def _make_tagged_reader(self) -> Callable[[str], Any]:
        if self._writer is None:
            return lambda text: tags.untag_within(json.loads(text), codec_for)
        schema = upcasters.weave_in(coreschemas.lossless(_core_schema(self.annotation)))
        woven = tags.weave_in(schema, codec_for)
        return reader_of(coreschemas.own(woven, to_write=False))

    @property
    def shape(self) -> shapes.Shape:
        """Shape of the JSON that :meth:`decode` may accept; all else it certainly refuses."""
        return (
            True
            if self._writer is None
            else shapes.shape_of(
                upcasters.weave_in(coreschemas.lossless(_core_schema(self.annotation)))
            )
        )

    def _upcasting_reader(self, *, tagged: bool) -> Callable[[str], Any]:
        """A reader that lets upcasters try what a class does not take;
        made again when further ones are declared.
        """
        if tagged:
            return self._make_tagged_reader()
        count = upcasters.count()
        if self._upcasting is None or self._upcasting[0] != count:
            schema = upcasters.weave_in(coreschemas.lossless(_core_schema(self.annotation)))
            self._upcasting = count, reader_of(coreschemas.own(schema, to_write=False))
        return self._upcasting[1]


def _check_constants(text: str) -> None:
    if ("NaN" in text or "Infinity" in text) and _CONSTANT.search(outside_strings(text)):
        json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _first_line(error: BaseException) -> str:
    if isinstance(error, pydantic.ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where, complaint = ".".join(map(str, first["loc"])), _complaint(first["type"], first["msg"])
        return f"{where}: {complaint}" if where else complaint
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _complaint(kind: str, message: str) -> str:
    """Return what pydantic says is wrong. Of a validator that has raised, what that says itself.

    Args:
        kind: Kind of the error.
        message: Its message.
    """
    if kind not in ("value_error", "assertion_error"):
        return message
    prefix, _, detail = message.partition(", ")
    return detail or prefix


def describe(annotation: Any) -> str:
    """An annotation as people write it."""
    return (
        annotation.__name__
        if isinstance(annotation, type)
        else str(annotation).replace("typing.", "")
    )


def _core_schema(annotation: Any) -> Any:
    adapter = pydantic.TypeAdapter(annotation)
    if not adapter.pydantic_complete:  # a name was not defined, or a class puts off its building
        adapter.rebuild(raise_errors=True)
    return adapter.core_schema


@lru_cache(maxsize=4096)
def _cached(annotation: Any, _order: Any) -> Codec[Any]:
    return Codec(annotation)


def _order_of(annotation: Any) -> Any:
    """Return the parts of an annotation in their order. Unions are equal in any order, and which of
    two members reads a text depends on it.
    """
    return tuple((part, _order_of(part)) for part in get_args(annotation))


def codec_for(annotation: Any, what: str = "a value") -> Codec[Any]:
    """The codec of an annotation; the same one for the same annotation.

    Args:
        annotation: A type, as it is written behind a parameter or an arrow.
        what: Name of the value for errors, as in "the result of step charge".

    Raises:
        DefinitionError: Values of this annotation have no form as JSON.
    """
    try:
        order = None if isinstance(annotation, type) else _order_of(annotation)
        hash((annotation, order))
    except TypeError:  # such as Annotated[int, []]
        make: Callable[[Any], Codec[Any]] = Codec
    else:
        make = partial(_cached, _order=order)
    try:
        return make(annotation)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # A class may say how it is stored by code of its own, which may raise anything, as
        # pydantic's core does.
        raise DefinitionError(f"{what} cannot be stored: {_first_line(error)}") from error


ANYTHING: Codec[Any] = Codec(Any)


@lru_cache(maxsize=4096)
def _fields_of(cls: type) -> tuple[str, ...] | None:
    """Names of the fields of a model or dataclass; None for other classes."""
    if issubclass(cls, pydantic.BaseModel):
        return tuple(cls.model_fields)
    return (
        tuple(field.name for field in dataclasses.fields(cls))
        if dataclasses.is_dataclass(cls)
        else None
    )


def _canonical(value: Any) -> Any:
    """One level of a value. Sets have no order of their own, and classes may hold sets: both would
    hash differently in every process.
    """
    names = _fields_of(type(value))  # type: ignore[arg-type]
    if names is not None:
        found: dict[str, Any] = getattr(value, "__dict__", {})
        if len(found) != len(names):  # slots, or cached properties
            found = {name: getattr(value, name, None) for name in names}
        return (
            {**found, **extra} if (extra := getattr(value, "__pydantic_extra__", None)) else found
        )
    if isinstance(value, (set, frozenset)):
        return sorted(_encode_canonical(item) for item in value)
    return _plain(value)


_encode_canonical = json.JSONEncoder(
    ensure_ascii=True, separators=(",", ":"), default=_canonical
).encode


_KEYS = (str, int, float, bool, type(None))


def _with_text_keys(value: Any) -> Any:
    """A value whose dicts, as deep as JSON goes by itself, have keys that JSON can have."""
    if isinstance(value, dict):
        return {
            key if type(key) in _KEYS else _encode_canonical(key): _with_text_keys(part)
            for key, part in value.items()
        }
    return [_with_text_keys(part) for part in value] if isinstance(value, (list, tuple)) else value


_encode_any_keys = json.JSONEncoder(
    ensure_ascii=True,
    separators=(",", ":"),
    default=lambda value: _with_text_keys(_canonical(value)),
).encode


def canonical_text(value: Any, what: str) -> str:
    """JSON that is equal in every process for equal values, or NotStorable."""
    try:
        try:
            return _encode_canonical(value)
        except TypeError:  # most often keys that are dates, UUIDs or tuples
            return _encode_any_keys(_with_text_keys(value))
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(what, error)


_SCALARS: dict[type, Callable[[Any], str]] = {
    int: int.__repr__,
    str: json.encoder.encode_basestring_ascii,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
}


def hash_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], what: str, key: bytes | None = None
) -> int:
    """Return a 63-bit hash of a call's arguments, equal in every process, by which a replay
    recognises the call.

    Args:
        args: The arguments by position.
        kwargs: The arguments by name.
        what: Name of the call for errors, as in "step charge".
        key: Secret of at most 64 bytes that prevents guessing arguments from their hash; None for a
            plain hash.

    Raises:
        NotStorable: An argument cannot be compared.
    """
    try:
        # Most calls have a few numbers and texts, for which making an encoder would cost more than
        # encoding.
        text = "" if kwargs else f"[{','.join([_SCALARS[type(one)](one) for one in args])}]"
    except (KeyError, ValueError):  # the latter: a number too long to be written
        text = ""
    if not text:
        text = canonical_text([args, kwargs] if kwargs else args, f"an argument of {what}")
    digest = (
        hashlib.blake2b(text.encode(), digest_size=8)
        if key is None
        else hashlib.blake2b(text.encode(), digest_size=8, key=key)
    )
    return int.from_bytes(digest.digest()) >> 1
