"""Steps: named pieces of work whose outcome is a unit of the journal.
They are made by the decorators.

Outside a workflow ``@read`` and ``@step`` are plain functions. ``@transaction``, ``@effect`` and
``@decision`` refuse to run there: a forgotten ``start`` must not act without durability.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Coroutine, Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from pgflow._engine.calls import Call, Effect, StepCall, StepSpec
from pgflow._engine.keys import Resting
from pgflow._engine.steps import Steps
from pgflow._flow.scope import StepScope, WorkflowScope, current, locked, resting, variables
from pgflow._model.budgets import Admission, Admit
from pgflow._model.codecs import Codec, codec_for
from pgflow._model.decisions import Decision
from pgflow._model.durations import SHORTEST, Duration, duration
from pgflow._model.exceptions import ErrorClasses
from pgflow._model.kinds import Kind, StepKind
from pgflow._model.names import is_name
from pgflow._model.options import Retries, retries_of
from pgflow.errors import (
    DefinitionError,
    InvalidArgument,
    NotInRunError,
    WrongColourError,
)

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F")

Calls = Generator[Call, Any, Any]
"""Calls that follow one from the other: each is sent the value of the one before, or thrown its
error, and the last word is the outcome of all.
"""


async def follow(scope: WorkflowScope, calls: Calls) -> Any:
    """Wait for each of these calls."""
    try:
        call = next(calls)
        while True:
            try:
                value = await scope.wait(call)
            except BaseException as error:  # noqa: BLE001 - the calls decide what becomes of it
                call = calls.throw(error)
            else:
                call = calls.send(value)
    except StopIteration as end:
        return end.value


def follow_sync(scope: WorkflowScope, calls: Calls) -> Any:
    """The same in a thread."""
    try:
        call = next(calls)
        while True:
            try:
                value = scope.block(call)
            except BaseException as error:  # noqa: BLE001 - the calls decide what becomes of it
                call = calls.throw(error)
            else:
                call = calls.send(value)
    except StopIteration as end:
        return end.value


def is_method_of(fn: Any, instance: Any) -> bool:
    """Return True if a function is written in the body of the class of an instance, or of that
    class itself; anywhere else an attribute is just a step that a class knows.
    """
    cls = instance if isinstance(instance, type) else type(instance)
    home = getattr(fn, "__qualname__", "").rpartition(".")[0]
    return any(base.__qualname__ == home for base in cls.__mro__)


def check_callable(fn: Any, what: str) -> None:
    """Check that a decorator was given a function.

    Raises:
        DefinitionError: It is something that only looks like one.
    """
    if isinstance(fn, (classmethod, staticmethod)):
        raise DefinitionError(
            f"{what} is declared below @{type(fn).__name__}: write @{type(fn).__name__} first, and "
            f"{what} under it"
        )
    if type(fn).__module__.partition(".")[0] == "pgflow":
        raise DefinitionError(
            f"{what} is declared above {fn!r}: declare a function once, and write one that calls "
            "it for the other"
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(
            f"{what} takes a function that returns its result, and {fn.__qualname__} is a "
            "generator: return a list"
        )
    is_function = callable(fn) and not isinstance(fn, (functools.partial, type))
    if not is_function or not hasattr(fn, "__name__") or not hasattr(fn, "__qualname__"):
        raise DefinitionError(
            f"{what} takes a function, not {fn!r}: write a def that calls it, with annotations by "
            "which its result is stored; or call it with pgflow.call(name, fn, ...)"
        )


def check_no_method(fn: Callable[..., Any], what: str, why: str) -> None:
    """Refuse a method.

    Raises:
        DefinitionError: It is one.
    """
    home, _, _ = fn.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(fn).parameters), None)
    if home and not home.endswith("<locals>") and first in ("self", "cls"):
        raise DefinitionError(
            f"{fn.__qualname__} is a method, and {what} cannot be one: {why}. Declare it as a "
            "function outside of the class"
        )


def look_like(made: Any, fn: Callable[..., Any]) -> None:
    """Copy the name, the docstring and the annotations of a function to a decorated object, for
    libraries that read them from tools or handlers. A step made for one call does not need it.
    """
    functools.update_wrapper(made, fn, updated=())


def tell_is_awaited(call: Any) -> None:
    """Mark an object that is not an ``async def`` as awaitable. Python 3.11 knows only asyncio's
    mark.
    """
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(call)
    else:
        call._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


class Step(Generic[P, R_co]):
    """A step of either colour. ``fn`` is the undecorated function, for tests."""

    name: str
    fn: Any
    completes_as: str = Kind.STEP_COMPLETED
    """Kind of the unit that has its result."""

    def __init__(
        self,
        fn: Callable[..., Any],
        effect: str,
        name: str | None,
        retries: Retries | int,
        timeout: Duration | None,
        raises: Sequence[type[Exception]],
        aliases: Sequence[str] = (),
    ) -> None:
        self.fn = fn
        self.name = name or fn.__name__
        self.effect = effect
        self.retries = retries_of(retries, f"retries of step {self.name}")
        self.timeout = duration(timeout, f"timeout of step {self.name}", least_seconds=SHORTEST)
        self.raises = check_errors(raises, f"raises of step {self.name}")
        self.aliases = check_aliases(aliases, f"step {self.name}")
        self.is_async = inspect.iscoroutinefunction(fn)
        self.origin: Step[Any, Any] = self
        self._specs: dict[tuple[type[Exception], ...], StepSpec] = {}
        self._hints: dict[str, Any] | None = None
        self._rests_on: Resting | None = None
        self.max_age: timedelta | None = None
        self.admit: Admission | None = None
        if not is_name(self.name):
            raise DefinitionError(
                f"the name of step {self.name!r} must be a text of 1 to 255 bytes without NUL: "
                "pass name="
            )
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn

    def __repr__(self) -> str:
        """As in error messages."""
        return f"<{type(self).__name__} {self.name}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The step of an instance, where it was declared as a method: its body gets the instance,
        which is not recorded as an argument.
        """
        if instance is None or not is_method_of(self.fn, instance):
            return self
        bound = copy.copy(self)
        bound._specs = {}
        bound.fn = bound.__wrapped__ = self.fn.__get__(instance, owner)
        return bound

    @property
    def hints(self) -> dict[str, Any]:
        """Annotations of the function, resolved when first needed:
        they may name what is defined after it.
        """
        if self._hints is None:
            self._hints = resolve_hints(self.fn)
        return self._hints

    def spec(self, app_errors: tuple[type[Exception], ...]) -> StepSpec:
        """Return the engine's declaration of this step, for an app that knows these errors."""
        found = self._specs.get(app_errors)
        if found is None:
            effect: Effect = self.effect  # type: ignore[assignment]
            found = StepSpec(
                name=self.name,
                effect=effect,
                result=self._result_codec(),
                errors=ErrorClasses(app_errors, self.raises),
                retries=self.retries,
                raises=self.raises,
                definition=self,
                completes_as=self.completes_as,
                aliases=self.aliases,
                timeout_seconds=None if self.timeout is None else self.timeout.total_seconds(),
                max_age_seconds=None if self.max_age is None else self.max_age.total_seconds(),
                admit=self.admit,
            )
            self._specs[app_errors] = found
        return found

    def _result_codec(self) -> Codec[Any]:
        return codec_for(self.hints.get("return", Any), f"the result of step {self.name}")

    def options(
        self,
        *,
        retries: Retries | int | None = None,
        timeout: Duration | None = None,
        admit: Admit | None = None,
    ) -> Self:
        """Return a copy of the step with options.

        Args:
            retries: Tries in all, or how to space them.
            timeout: Longest time for one try.
            admit: Most that the call may cost. It is reserved on the pool of the run before the
                body starts; a pool that lacks it refuses the call, which raises BudgetExceeded.
                Further tries share the reservation.
        """
        other = copy.copy(self)
        other._specs = {}
        if admit is not None:
            other.admit = Admission.of(admit)
        if retries is not None:
            other.retries = retries_of(retries, f"retries of step {self.name}")
        if timeout is not None:
            other.timeout = duration(
                timeout, f"timeout of step {self.name}", least_seconds=SHORTEST
            )
        return other

    def called(self, item: str) -> Self:
        """Return a copy under the name of an item. A run that has called it without goes on."""
        other = copy.copy(self)
        other._specs = {}
        other.name, other.aliases = f"{self.name}: {item}", (self.name, *self.aliases)
        if not is_name(other.name):
            raise InvalidArgument(
                f"the name of an item must be a text without NUL, of 255 bytes at most with "
                f"that of its step, not {other.name!r}"
            )
        return other

    def because(self, decision: Decision[Any], item: str | int | None = None) -> Self:
        """The same step, its calls resting on a decision, which their idempotency keys name:
        ``<decision>/<step>/<item>``.

        Args:
            decision: The decision.
            item: Part of it that the call is about, each at most once; numbered in the order of
                calls if not given.
        """
        other = copy.copy(self)
        other._rests_on = resting_on(decision, item)
        return other

    def resting(self) -> Resting | None:
        """The decision that a call made now rests on."""
        return self._rests_on or resting.get()

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Call the step from async code, whatever its colour."""
        scope = current.get()
        if not isinstance(scope, WorkflowScope):
            self._check_outside(scope)
            return self._plain_async(args, kwargs)
        if scope.thread is not None:
            raise WrongColourError(
                f"{self.name}.aio() is for async workflows: in this sync one, call "
                f"{self.name}.sync()"
            )
        return self._call_async(scope, args, kwargs)

    def sync(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the step from sync code, whatever its colour."""
        scope = current.get()
        if not isinstance(scope, WorkflowScope):
            self._check_outside(scope)
            return self._plain_sync(args, kwargs)
        if scope.thread is None:
            raise WrongColourError(
                f"{self.name}.sync() is for sync workflows: in this async one, await "
                f"{self.name}.aio()"
            )
        return self._call_sync(scope, args, kwargs)

    def _call_sync(
        self, scope: WorkflowScope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R_co:
        return typing.cast("R_co", scope.block(self.issue(scope, args, kwargs)))

    def _check_outside(self, scope: StepScope | None) -> None:
        """Refuses to run outside the code of a workflow where that would not be recorded."""
        if self.effect not in (StepKind.READ, StepKind.STEP):
            where = (
                "outside a workflow"
                if scope is None
                else f"in the body of step {scope.call.name!r}"
            )
            raise NotInRunError(
                f"{self.name}() was called {where}, where its outcome would not be recorded: "
                f"call it from a workflow, or {self.name}.fn() for the undecorated function"
            )

    def issue(
        self, scope: WorkflowScope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StepCall:
        """Ask the engine to run the body."""
        errors = scope.app_errors
        steps = scope.steps
        if steps is None:
            steps = scope.steps = scope.execution.parts[Steps]
        call = steps.issue(
            self._specs.get(errors) or self.spec(errors),
            args,
            kwargs,
            self._rests_on or resting.get(),
        )
        call.variables = variables()
        if self.effect == StepKind.TRANSACTION and (held := locked.get()):
            call.fences = tuple(lock.fence for lock in held)
        return call

    def calls(self, scope: WorkflowScope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Calls:
        """Yield every call that one call of the step makes."""
        return (yield self.issue(scope, args, kwargs))

    async def _call_async(
        self, scope: WorkflowScope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R_co:
        call = self.issue(scope, args, kwargs)
        try:
            return await call.waiter  # type: ignore[misc,no-any-return]
        except asyncio.CancelledError:
            scope.execution.cancel_call(call)
            raise

    async def _plain_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R_co:
        if self.is_async:
            return await self.fn(*args, **kwargs)  # type: ignore[no-any-return]
        value = await asyncio.to_thread(self.fn, *args, **kwargs)
        return await value if asyncio.iscoroutine(value) else value  # type: ignore[no-any-return]

    def _plain_sync(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R_co:
        if self.is_async:
            return asyncio.run(self.fn(*args, **kwargs))  # type: ignore[no-any-return]
        value = self.fn(*args, **kwargs)
        return asyncio.run(value) if asyncio.iscoroutine(value) else value  # type: ignore[no-any-return]


class AsyncStep(Step[P, R_co], Generic[P, R_co, F]):
    """A step made of an ``async def``."""

    fn: F

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
            """Call the step. Await it."""

    else:
        __call__ = Step.aio  # the same function: one call fewer for each step
        tell_is_awaited(__call__)


def own_transaction(
    fn: Callable[..., Coroutine[Any, Any, R]],
    name: str,
    raises: Sequence[type[Exception]] = (),
    timeout: Duration | None = None,
) -> AsyncStep[..., R, Any]:
    """Return a transactional step of pgflow's own: its body gets a connection of the worker first,
    which no call passes.
    """
    made: Any = AsyncStep(fn, StepKind.TRANSACTION, name, 1, timeout, raises)
    made.isolation = made.provider = None
    made.connection_parameter = next(iter(inspect.signature(fn).parameters))
    return made  # type: ignore[no-any-return]


class SyncStep(Step[P, R_co], Generic[P, R_co, F]):
    """A step made of a ``def``."""

    fn: F

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the step from sync code."""
        scope = current.get()
        if isinstance(scope, WorkflowScope) and scope.thread is None:
            raise WrongColourError(
                f"{self.name}() is a sync step: in this async workflow, await {self.name}.aio()"
            )
        return self.sync(*args, **kwargs)


def resting_on(decision: Decision[Any], item: str | int | None) -> Resting:
    """A decision and an item of it, checked."""
    if not isinstance(decision, Decision):
        raise InvalidArgument(
            f"because() takes the value that a @decision returned, not {decision!r}"
        )
    is_item = (
        is_name(item) and "/" not in item
        if isinstance(item, str)
        else item is None or type(item) is int
    )
    if not is_item:
        raise InvalidArgument(
            f"the item of a decision must be a number or a text without '/' and NUL, not {item!r}"
        )
    scope = current.get()
    if isinstance(scope, WorkflowScope):
        scope.decisions[decision.id] = decision
    return decision.id, item


def check_aliases(aliases: Sequence[str], whose: str) -> tuple[str, ...]:
    """Old names, as they were declared.

    Raises:
        DefinitionError: One of them can never have been a name.
    """
    if isinstance(aliases, str) or not all(map(is_name, aliases)):
        raise DefinitionError(
            f"the aliases of {whose} must be a sequence of names of 1 to 255 bytes, not {aliases!r}"
        )
    return tuple(aliases)


def check_errors(errors: Sequence[type[Exception]], what: str) -> tuple[type[Exception], ...]:
    """Return classes of exceptions, as they were declared.

    Raises:
        DefinitionError: One of them is none.
    """
    if isinstance(errors, type) or not all(
        isinstance(cls, type) and issubclass(cls, Exception) for cls in errors
    ):
        raise DefinitionError(
            f"{what} must be a sequence of classes of Exception, as in [ValueError], not {errors!r}"
        )
    return tuple(errors)


def resolve_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of a function with their names looked up."""
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        code = getattr(inspect.unwrap(fn), "__code__", None)
        place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        raise DefinitionError(
            f"the annotations of {fn.__qualname__}{place} cannot be read: {error}"
        ) from error
