"""Values of a graph as JSON, with their types, and back.

The serialiser of the framework makes msgpack of a value, in which an object is its class and its
fields. Here the same is written as JSON, so that you can read messages in the table. On the way
back it is msgpack again, so that the framework still decides which classes it makes. Values that
would need pickle are refused.

Objects of one name that begins with ``$`` represent values that JSON lacks.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol

from pgflow.errors import NotStorable

KEYS = ormsgpack.OPT_NON_STR_KEYS


def to_json(serde: SerializerProtocol, value: Any, what: str) -> Any:
    """Return a value as JSON.

    Raises:
        NotStorable: Nothing but a pickle could hold it.
    """
    kind, data = serde.dumps_typed(value)
    if kind == "msgpack":
        return {"v": _written(_unpacked(data))}
    if kind == "null":
        return {"v": None}
    if kind.partition("+")[0] == "pickle":
        raise NotStorable(f"{what} can only be pickled, which pgflow does not: {type(value)!r}")
    return {"type": kind, "base64": base64.b64encode(data).decode()}


def from_json(serde: SerializerProtocol, stored: Any) -> Any:
    """Return the value of what :func:`to_json` has made."""
    if "v" not in stored:
        if stored["type"].partition("+")[0] == "pickle":
            raise NotStorable("a value that was stored is a pickle, which pgflow does not read")
        return serde.loads_typed((stored["type"], base64.b64decode(stored["base64"])))
    return serde.loads_typed(("msgpack", ormsgpack.packb(_read(stored["v"]), option=KEYS)))


class _Ext:
    """An object of msgpack: the number of its kind, and its content."""

    def __init__(self, code: int, data: bytes) -> None:
        self.code, self.data = code, data


def _unpacked(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_Ext, option=KEYS)


def _written(value: Any) -> Any:
    """Return JSON for what msgpack holds."""
    if isinstance(value, str):
        return {"$text": _base64(value.encode())} if "\0" in value else value
    if isinstance(value, bytes):
        return {"$bytes": _base64(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, _Ext):
        return {"$object": [value.code, _written(_unpacked(value.data))]}
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    if isinstance(value, dict):
        return _written_map(value)
    return value


def _written_map(value: dict[Any, Any]) -> Any:
    is_plain = all(isinstance(key, str) and "\0" not in key for key in value)
    if is_plain and not any(key.startswith("$") for key in value):
        return {key: _written(item) for key, item in value.items()}
    return {"$map": [[_written(key), _written(item)] for key, item in value.items()]}


def _read(value: Any) -> Any:
    """Return what can be packed, for JSON that :func:`_written` has made."""
    if isinstance(value, list):
        return [_read(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = next(iter(value), "")
    if not name.startswith("$"):
        return {key: _read(item) for key, item in value.items()}
    return _READERS[name](value[name])


def _object(parts: list[Any]) -> ormsgpack.Ext:
    code, held = parts
    return ormsgpack.Ext(code, ormsgpack.packb(_read(held), option=KEYS))


def _key(key: Any) -> Any:
    """Return a key of a map: a list there was a tuple."""
    read = _read(key)
    return tuple(read) if isinstance(read, list) else read


_READERS: dict[str, Any] = {
    "$text": lambda data: base64.b64decode(data).decode(),
    "$bytes": base64.b64decode,
    "$float": float,
    "$object": _object,
    "$map": lambda pairs: {_key(key): _read(item) for key, item in pairs},
}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
