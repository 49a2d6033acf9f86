"""Steps that are named where they are called.

A decorator needs a function of the module. What an adapter for a framework has is a closure: the
model or the tool that the framework was about to call, with whatever it holds. ``call`` makes a
step of it for this one call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, TypeVarTuple, overload

from pgflow._flow.scope import WorkflowScope, current
from pgflow._flow.step import Step, resolve_hints
from pgflow._model.durations import Duration
from pgflow._model.kinds import StepKind
from pgflow._model.names import is_name
from pgflow._model.options import Retries
from pgflow.errors import DefinitionError, InvalidArgument, WrongColourError

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


@overload
def call(
    name: str,
    fn: Callable[[*Ts], Coroutine[Any, Any, R]],
    /,
    *args: *Ts,
    returns: Any = None,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
) -> Coroutine[Any, Any, R]: ...
@overload
def call(
    name: str,
    fn: Callable[[*Ts], R],
    /,
    *args: *Ts,
    returns: Any = None,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
) -> Coroutine[Any, Any, R]: ...
def call(name: str, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]  # mypy on TypeVarTuple
    """Call a function as a step with a given name, for adapters whose steps are undecorated
    closures.

    It is a ``@step`` in all else: recorded once, run again under the same idempotency key after a
    crash. Outside a workflow, and in the body of a step, the function is simply called.

    A replay knows the call again by its place, its name and ``args``. Values that the function
    captures are not compared. So pass what must be the same, if it has a form as JSON.

    Args:
        name: Its name in the journal, as with ``@step``. Calls of one name are numbered, so it may
            be used often.
        fn: The function, ``async def`` or ``def``; a method, a ``partial`` or a lambda will do. A
            ``def`` runs in a thread.
        *args: Arguments of the call.
        returns: Type of its result; what its annotation says if not given, and plain JSON where
            there is none.
        retries: Tries in all (3 if not given), or how to space them.
        timeout: Longest time for one try.
        raises: Errors that are final: never tried again, and raised in the workflow as themselves.

    Raises:
        InvalidArgument: The name is not one, or there is nothing to call.
        DefinitionError: Values of its return type cannot be stored.

    Example::

        async def ask() -> ModelResponse:
            return await model.request(messages)

        reply = await pgflow.call(f"model:{model.name}", ask, retries=5)
    """
    step = make(name, fn, **options)
    scope = current.get()
    if isinstance(scope, WorkflowScope) and scope.thread is not None:
        raise WrongColourError(
            "pgflow.call() is for async workflows: in this sync one, call pgflow.sync.call()"
        )
    return step.aio(*args)


def make(
    name: str,
    fn: Callable[..., Any],
    *,
    returns: Any = None,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
) -> Step[..., Any]:
    """A step for one call."""
    if not is_name(name):
        raise InvalidArgument(
            f"the name of a call must be a text of 1 to 255 bytes without NUL, not {name!r}"
        )
    if not callable(fn):
        raise InvalidArgument(
            f"call({name!r}, ...) takes a function that can be called, not {fn!r}"
        )
    made: Step[..., Any] = Step(fn, StepKind.STEP, name, retries, timeout, raises)
    target = _function_of(fn)
    made.is_async = inspect.iscoroutinefunction(target)
    made._hints = {"return": _returned(name, target) if returns is None else returns}
    return made


def _function_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is run in the end."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or isinstance(fn, type):
        return fn
    called: Callable[..., Any] = type(fn).__call__
    return called


def _returned(name: str, target: Callable[..., Any]) -> Any:
    if isinstance(target, type):
        return Any
    try:
        return resolve_hints(target).get("return", Any)
    except DefinitionError as error:
        raise DefinitionError(
            f"call({name!r}, ...) does not know what its function returns: {error}. Pass returns="
        ) from error
