"""How values become JSON text and come back.

What a workflow sees on its first run must be what it sees on every replay, so a step returns
``decode(encode(value))`` always. A :class:`Codec` does both, by the annotation of the function:
pydantic for models, dataclasses, datetimes, Decimal, UUID, Enum and bytes; plain JSON where nothing
is annotated. Nothing is ever pickled, and no name found in data is ever imported.

The text is stored as it is, in columns of type ``json``. What Postgres or another client could not
read back (NUL, lone surrogates, NaN, numbers of more than 4,300 digits, more than 200 levels, more
than 1 MiB) is refused here with a typed error; the server checks what it is sent by other clients.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import Any, Generic, NoReturn, TypeVar, cast

import pydantic
from pydantic_core import PydanticSerializationError, to_jsonable_python

from pgflow.errors import NotStorable

T = TypeVar("T")

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 200
MAX_DIGITS = 4300  # CPython refuses to read a longer integer (sys.int_info.default_max_str_digits)

quote_json = json.encoder.encode_basestring
"""JSON string of a Python string, without escaping what is not ASCII."""

_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')


def check_text(text: str, what: str) -> str:
    """Returns the JSON text if it can be stored and read back by everybody, else raises NotStorable.

    The common case costs three scans at C speed: each limit is tested exactly only where a bound on
    it has been crossed.
    """
    size = len(text)
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise NotStorable(f"{what} holds a lone surrogate, which is not text: {error.reason}") from None
    if size > MAX_BYTES:
        raise NotStorable(f"{what} is {size:,} bytes of JSON; the limit is 1 MiB: store it elsewhere and pass a reference")
    if "\\u0000" in text and _NUL.search(text):
        raise NotStorable(f"{what} holds the character NUL, which text in Postgres cannot")
    if size > MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise NotStorable(f"{what} is nested more than {MAX_DEPTH} levels deep")
    if size > MAX_DIGITS and _LONG_NUMBER.search(_STRING.sub('""', text)):
        raise NotStorable(f"{what} holds a number of more than {MAX_DIGITS:,} digits")
    return text


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in re.findall(r"[][{}]", _STRING.sub("", text)):
        depth += 1 if char in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _plain(value: Any) -> Any:
    """What the JSON encoder does with an object it does not know."""
    return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants")


_encode_plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode


def encode_plain(value: Any, what: str) -> str:
    """JSON text of a value whose type nobody declared."""
    try:
        return check_text(_encode_plain(value), what)
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(what, error)


def _refuse(what: str, error: Exception) -> NoReturn:
    if isinstance(error, NotStorable):
        raise error
    reason = "it is nested too deeply, or holds itself" if isinstance(error, RecursionError) else str(error)
    raise NotStorable(f"{what} cannot be stored as JSON: {reason}") from error


class Codec(Generic[T]):
    """Encodes and decodes the values of one annotation."""

    __slots__ = ("_adapter", "annotation")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._adapter: pydantic.TypeAdapter[Any] | None = None if annotation is Any else _adapter(annotation)

    def encode(self, value: T, what: str) -> str:
        """Returns the JSON text of a value.

        Args:
            value: The value.
            what: How an error names it, as in "the result of step charge".

        Raises:
            NotStorable: It cannot be written within the limits.
        """
        if self._adapter is None:
            return encode_plain(value, what)
        try:
            text = self._adapter.dump_json(value, warnings=False).decode()
            if "NaN" in text or "Infinity" in text:
                json.loads(text, parse_constant=_refuse_constant)
        except (PydanticSerializationError, TypeError, ValueError, RecursionError, AttributeError) as error:
            _refuse(what, error)
        return check_text(text, what)

    def decode(self, text: str, what: str) -> T:
        """Returns the value that a JSON text stands for.

        Raises:
            NotStorable: The text does not fit the annotation.
        """
        try:
            if self._adapter is None:
                return cast("T", json.loads(text))
            return cast("T", self._adapter.validate_json(text))
        except (ValueError, RecursionError) as error:
            raise NotStorable(f"{what} does not fit its annotation {describe(self.annotation)}: {_first_line(error)}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _first_line(error: Exception) -> str:
    if isinstance(error, pydantic.ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def describe(annotation: Any) -> str:
    """An annotation as people write it."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


_BYTES_AS_BASE64 = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")


def _adapter(annotation: Any) -> pydantic.TypeAdapter[Any]:
    try:
        return pydantic.TypeAdapter(annotation, config=_BYTES_AS_BASE64)
    except pydantic.PydanticUserError as error:
        if error.code != "type-adapter-config-unused":  # a model, dataclass or TypedDict has a configuration of its own
            raise
        return pydantic.TypeAdapter(annotation)


@lru_cache(maxsize=4096)
def _cached(annotation: Any) -> Codec[Any]:
    return Codec(annotation)


def codec_for(annotation: Any) -> Codec[Any]:
    """The codec of an annotation; the same one for the same annotation."""
    try:
        return _cached(annotation)
    except TypeError:  # an annotation that cannot be hashed, such as Annotated[int, []]
        return Codec(annotation)


ANYTHING: Codec[Any] = Codec(Any)


def _canonical(value: Any) -> Any:
    """Sets have no order of their own and would hash differently in every process."""
    if isinstance(value, (set, frozenset)):
        return sorted(_encode_canonical(item) for item in value)
    return _plain(value)


_encode_canonical = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=_canonical).encode


def hash_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> int:
    """A 63-bit hash of a call's arguments, equal in every process: how a replay knows the same call again.

    Raises:
        NotStorable: An argument has no form that could be compared.
    """
    try:
        text = _encode_canonical([args, kwargs] if kwargs else args)
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(f"an argument of {what}", error)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
