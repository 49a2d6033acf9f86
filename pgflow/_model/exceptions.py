"""Exceptions as data: encoding and rebuilding them.

An exception is stored as the names of its classes (the MRO), its arguments, those of its attributes
that are JSON, its text, where it was raised, and its causes. It is rebuilt - on the first run too,
so that ``except`` behaves the same live and on replay - as the nearest class of that MRO which is
already known here: a builtin, one named in ``raises=``, or one of the app's ``errors=``. No
constructor of yours runs and nothing is imported. Where only ``Exception`` would be left, it
becomes :class:`StepFailed`.

Errors must always be storable, whatever they hold: a NUL in a message must not leave a run open for
good. So they are cleaned and cut, never refused; each part has a limit, so that the whole has one.
Passwords that they quote are masked before anything is written.
"""

from __future__ import annotations

import builtins
import json
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pgflow import errors as pgflow_errors
from pgflow._model.codecs import is_deeper
from pgflow._model.frames import is_own
from pgflow.errors import DefinitionError, PgflowError, StepFailed
from pgflow.texts import (
    MASK,
    is_secret_name,
    looks_secret,
    text_of,
    without_secrets,
    without_secrets_in,
)

MAX_MESSAGE_CHARS = 16_384
MAX_ARGUMENT_BYTES = 65_536
MAX_ARGUMENTS_BYTES = 131_072
"""Limit on all arguments together, and on all fields."""
MAX_ARGUMENT_DEPTH = 50
MAX_TRACEBACK_LINES = 30
MAX_NAME_CHARS = 512
MAX_CLASSES = 32
MAX_CAUSES = 8
MAX_ERROR_BYTES = 900_000
"""With all causes; below the limit of a payload, since the outcome of a child wraps its error."""

ErrorData = dict[str, Any]
"""type, mro, args, fields, message, traceback, cause (of the same form)."""


def clean(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Text without passwords and what Postgres cannot store, cut to a limit of characters."""
    # A truncated password could not be recognised; of a giant text only a bounded part is searched.
    text = without_secrets(text[: limit + MAX_MESSAGE_CHARS])
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.replace("\0", "�").encode("utf-8", "replace").decode()


def _name(cls: type) -> str:
    return clean(f"{cls.__module__}.{cls.__qualname__}", MAX_NAME_CHARS)


def _as_json(value: Any) -> tuple[Any, int] | None:
    """A value as it will come back, and its size in bytes; None if it cannot be stored."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        if looks_secret(text):
            value = without_secrets_in(json.loads(text))
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        size = len(text) if text.isascii() else len(json.dumps(value))
        if size > MAX_ARGUMENT_BYTES or "\\u0000" in text or is_deeper(text, MAX_ARGUMENT_DEPTH):
            return None
        return json.loads(text), size
    except Exception:  # noqa: BLE001 - values may have methods, and these may raise anything
        return None


def _arguments(error: BaseException) -> list[Any]:
    try:
        args = error.args
        if isinstance(error, OSError) and error.filename is not None:  # which its args leave out
            args = (error.errno, error.strerror, error.filename)
        values = list(args)
    except Exception:  # noqa: BLE001 - as above
        return []
    kept: list[Any] = []
    left = MAX_ARGUMENTS_BYTES
    for value in values:
        found = _as_json(value)
        if found is None:
            text = clean(text_of(value, f"({type(value).__qualname__})"))
            found = text, len(json.dumps(text))
        left -= found[1]
        if left < 0:
            return [*kept, f"(and {len(values) - len(kept)} more)"]
        kept.append(found[0])
    return kept


def _fields(error: BaseException) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    left = MAX_ARGUMENTS_BYTES
    for name, value in list(vars(error).items()):
        if not isinstance(name, str) or name.startswith("__"):
            continue
        shown = MASK if isinstance(value, str) and is_secret_name(name) else value
        named, found = _as_json(name), _as_json(shown)
        if named is not None and found is not None and named[1] + found[1] <= left:
            left -= named[1] + found[1]
            kept[name] = found[0]
    return kept


def _classes(error: BaseException) -> list[str]:
    """Names of its classes: of a very long line the first, which are its own,
    and the last, which are builtins.
    """
    names = [
        _name(cls) for cls in type(error).__mro__ if cls not in (object, BaseException, Exception)
    ]
    return (
        names
        if len(names) <= MAX_CLASSES
        else names[: MAX_CLASSES // 2] + names[-MAX_CLASSES // 2 :]
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception that it was raised from, the cause of that,
    and so on until one repeats.
    """
    seen = {id(error)}
    cause = error.__cause__
    while cause is not None and id(cause) not in seen and len(seen) <= MAX_CAUSES:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__


class Recorded(Exception):
    """An error that was recorded elsewhere, to be recorded here as it was.

    Attributes:
        data: Result of :func:`encode_error`.
    """

    def __init__(self, data: ErrorData) -> None:
        super().__init__(data.get("message"))
        self.data = data


def encode_error(error: BaseException, *, with_traceback: bool = True) -> ErrorData:
    """Return an exception with its causes as JSON-able data. Never raises.

    Local variables are never part of it: a traceback here is file, line and source only.

    Args:
        error: The exception.
        with_traceback: True to add the place at which it was raised.
    """
    try:
        return _encode_all(error, with_traceback=with_traceback)
    except Exception:  # noqa: BLE001 - an error that fails wherever it is touched is an error all the same
        name = clean(type(error).__qualname__, MAX_NAME_CHARS)
        return {
            "type": name,
            "mro": [],
            "args": [],
            "message": f"(an error of {name} that cannot be described)",
        }


def _encode_all(error: BaseException, *, with_traceback: bool) -> ErrorData:
    if isinstance(error, Recorded):
        return error.data
    data = _encode_one(error, with_traceback=with_traceback)
    last, left = data, MAX_ERROR_BYTES - len(json.dumps(data))
    for cause in _causes(error):
        encoded = _encode_one(cause, with_traceback=with_traceback)
        left -= len(json.dumps(encoded))
        if left < 0:
            break
        last["cause"] = last = encoded
    return data


def _encode_one(error: BaseException, *, with_traceback: bool) -> ErrorData:
    data: ErrorData = {
        "type": _name(type(error)),
        "mro": _classes(error),
        "args": _arguments(error),
        "message": clean(
            text_of(
                error,
                f"(an error of {clean(type(error).__qualname__, MAX_NAME_CHARS)} whose text cannot "
                "be read)",
            )
        ),
    }
    fields = _fields(error)
    if fields:
        data["fields"] = fields
    if with_traceback and error.__traceback__ is not None:
        frames = _telling(traceback.extract_tb(error.__traceback__))[-MAX_TRACEBACK_LINES:]
        data["traceback"] = [
            clean(f"{f.filename}:{f.lineno} {f.name}: {f.line or ''}", 500) for f in frames
        ]
    return data


def _telling(frames: Sequence[traceback.FrameSummary]) -> Sequence[traceback.FrameSummary]:
    """Frames without those of the engine, which say nothing of an error in code that it runs.

    Those below the last line of that code are kept, except for a single one: more of them are of an
    error that the engine itself has come to, unless they take the outcome of a call.
    """
    others = [n for n, frame in enumerate(frames) if not is_own(frame.filename)]
    if not others:
        return frames
    below = frames[others[-1] + 1 :]
    is_of_engine = len(below) > 1 and below[-1].name != _TAKE
    return [frames[n] for n in others] + ([*below] if is_of_engine else [])


_TAKE = "take"
"""Method of a sync call's waiter that raises the error of the call."""


_STEERING = (StopIteration, StopAsyncIteration)
"""Exceptions that steer Python itself: no future takes the first, and neither is an error."""

_EXCLUDED = {
    "Exception",
    "BaseException",
    "BaseExceptionGroup",
    "ExceptionGroup",
    "StopIteration",
    "StopAsyncIteration",
}


def _builtin_errors() -> dict[str, type[Exception]]:
    found = [
        cls
        for cls in vars(builtins).values()
        if isinstance(cls, type) and issubclass(cls, Exception)
    ]
    found += [
        cls
        for cls in vars(pgflow_errors).values()
        if isinstance(cls, type) and issubclass(cls, PgflowError)
    ]
    return {_name(cls): cls for cls in found if cls.__name__ not in _EXCLUDED}


_BUILTIN = _builtin_errors()


_registered: dict[str, type[Exception]] = {}


def register_errors(*classes: type[Exception]) -> None:
    """Register error classes of an integration, so that every app of this process can raise
    recorded errors as these classes.

    Call it when the module of the integration is imported, so that every process that works on its
    runs has the classes. For your own errors use ``raises=`` of a step and ``errors=`` of an app.

    Args:
        *classes: The classes. They are found by module and name, and rebuilt without calling
            ``__init__``.

    Raises:
        DefinitionError: An argument is not an exception class.
    """
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, Exception)) or issubclass(cls, _STEERING):
            raise DefinitionError(f"register_errors() takes classes of exceptions, not {cls!r}")
    _registered.update({_name(cls): cls for cls in classes})


class ErrorClasses:
    """The classes as which errors may be rebuilt: builtins, pgflow's own,
    those registered, and those given.
    """

    __slots__ = ("_given",)

    def __init__(self, *groups: Iterable[type[Exception]]) -> None:
        self._given = {
            _name(cls): cls
            for group in groups
            for cls in group
            if issubclass(cls, Exception) and not issubclass(cls, _STEERING)
        }

    def nearest(self, mro: Sequence[str]) -> type[Exception] | None:
        """The first known class of an MRO."""
        known = (
            self._given.get(name) or _registered.get(name) or _BUILTIN.get(name) for name in mro
        )
        return next((cls for cls in known if cls is not None), None)


def rebuild_error(data: ErrorData, known: ErrorClasses, attempts: int = 1) -> Exception:
    """Return the exception of the data, with its causes. Equal data give equal exceptions.

    Args:
        data: Result of :func:`encode_error`, perhaps by way of the database.
        known: The classes that may be rebuilt.
        attempts: Number of tries of the step, should it become :class:`StepFailed`.
    """
    error = _rebuild_one(data, known, attempts)
    if data.get("cause"):
        error.__cause__ = rebuild_error(data["cause"], known)
    return error


def _rebuild_one(data: ErrorData, known: ErrorClasses, attempts: int) -> Exception:
    mro = list(data.get("mro", ()))
    while mro:
        cls = known.nearest(mro)
        if cls is None:
            break
        error = _instance(cls, data)
        if error is not None:
            return error
        mro = mro[mro.index(_name(cls)) + 1 :]
    return StepFailed(
        str(data.get("type", "?")).removeprefix("builtins."), str(data.get("message", "")), attempts
    )


def _instance(cls: type[Exception], data: ErrorData) -> Exception | None:
    """An instance of a class; None where the class does not allow it."""
    fields = data.get("fields", {})
    error = _make(cls, tuple(data.get("args", ())), fields)
    message = data.get("message", "")
    if error is not None and clean(text_of(error, "")) == message:
        return error
    if issubclass(cls, UnicodeError) and cls is not UnicodeError:
        return None  # its text needs the bytes or characters that could not be stored
    if _name(cls) == data.get("type"):
        return error
    # Its own class made another text, which matters more than the arguments.
    spoken = _make(cls, (message,), fields)
    return spoken if spoken is not None and clean(text_of(spoken, "")) == message else error


def _make(cls: type[Exception], args: tuple[Any, ...], fields: dict[str, Any]) -> Exception | None:
    try:
        error = cls.__new__(cls, *args)
        # The builtin class that it is made of keeps things
        # where only its own constructor can put them.
        builtin = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        builtin.__init__(error, *args)  # type: ignore[misc]
        vars(error).update(fields)
        str(error)
    except Exception:  # noqa: BLE001 - a class with its own idea of construction: the next of the MRO
        return None
    return error if isinstance(error, Exception) else None
