"""How exceptions become data and come back.

An exception is stored as the names of its classes (the MRO), its arguments, those of its attributes
that are JSON, its text and where it was raised. It is rebuilt - on the first run too, so that
``except`` behaves the same live and on replay - as the nearest class of that MRO which is already
known here: a builtin, one named in ``raises=``, or one of the app's ``errors=``. No constructor runs
and nothing is imported. Where only ``Exception`` would be left, it becomes :class:`StepFailed`.

Texts of errors must always be storable, whatever they hold: a NUL in a message must not leave a run
open for good. So they are cleaned and cut, never refused.
"""

from __future__ import annotations

import builtins
import json
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

from pgflow import errors as pgflow_errors
from pgflow.errors import PgflowError, StepFailed

MAX_MESSAGE_CHARS = 16_384
MAX_ARGUMENT_CHARS = 65_536
MAX_TRACEBACK_LINES = 30

ErrorData = dict[str, Any]
"""type, mro, args, fields, message, traceback."""


def clean(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Text without what Postgres cannot store, cut to a limit."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.replace("\0", "�").encode("utf-8", "replace").decode()


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return clean(str(error))
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the error
        return f"(an error of {type(error).__qualname__} whose text cannot be read)"


def _storable(value: Any) -> bool:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        return False
    return len(text) <= MAX_ARGUMENT_CHARS and "\\u0000" not in text and text.count("[") + text.count("{") < 100


def _argument(value: Any) -> Any:
    if _storable(value):
        return value
    try:
        return clean(str(value))
    except Exception:  # noqa: BLE001 - as above
        return f"({type(value).__qualname__})"


def encode_error(error: BaseException, *, with_traceback: bool = True) -> ErrorData:
    """Returns an exception as JSON-able data; never raises.

    Local variables are never part of it: a traceback here is file, line and source only.
    """
    data: ErrorData = {
        "type": _name(type(error)),
        "mro": [_name(cls) for cls in type(error).__mro__ if cls not in (object, BaseException, Exception)],
        "args": [_argument(arg) for arg in error.args],
        "message": _message(error),
    }
    fields = {name: value for name, value in vars(error).items() if not name.startswith("__") and _storable(value)}
    if fields:
        data["fields"] = fields
    if with_traceback and error.__traceback__ is not None:
        frames = traceback.extract_tb(error.__traceback__)[-MAX_TRACEBACK_LINES:]
        data["traceback"] = [clean(f"{f.filename}:{f.lineno} {f.name}: {f.line or ''}", 500) for f in frames]
    return data


_EXCLUDED = {"Exception", "BaseException", "BaseExceptionGroup", "ExceptionGroup", "StopIteration", "StopAsyncIteration"}


def _builtin_errors() -> dict[str, type[Exception]]:
    found = [cls for cls in vars(builtins).values() if isinstance(cls, type) and issubclass(cls, Exception)]
    found += [cls for cls in vars(pgflow_errors).values() if isinstance(cls, type) and issubclass(cls, PgflowError)]
    return {_name(cls): cls for cls in found if cls.__name__ not in _EXCLUDED}


_BUILTIN = _builtin_errors()


class ErrorClasses:
    """The classes as which errors may be rebuilt: builtins, pgflow's own, and those given."""

    __slots__ = ("_known",)

    def __init__(self, *groups: Iterable[type[Exception]]) -> None:
        self._known = dict(_BUILTIN)
        for group in groups:
            self._known.update({_name(cls): cls for cls in group})

    def nearest(self, mro: Sequence[str]) -> type[Exception] | None:
        """The first known class of an MRO."""
        return next((self._known[name] for name in mro if name in self._known), None)


def rebuild_error(data: ErrorData, known: ErrorClasses, attempts: int = 1) -> Exception:
    """Returns the exception that the data stands for; the same for the same data."""
    mro = list(data.get("mro", ()))
    while mro:
        cls = known.nearest(mro)
        if cls is None:
            break
        error = _instance(cls, data)
        if error is not None:
            return error
        mro = mro[mro.index(_name(cls)) + 1 :]
    return StepFailed(str(data.get("type", "?")).removeprefix("builtins."), str(data.get("message", "")), attempts)


def _instance(cls: type[Exception], data: ErrorData) -> Exception | None:
    """An instance made without its constructor; None where the class does not allow it."""
    args = tuple(data.get("args", ()))
    try:
        error = cls.__new__(cls, *args)
        error.args = args
        vars(error).update(data.get("fields", {}))
        str(error)
    except Exception:  # noqa: BLE001 - a class with its own idea of construction: the next of the MRO
        return None
    return error if isinstance(error, Exception) else None
