"""The decorators that declare steps. Each defines what a retry may do.

``@read`` may be run again freely. ``@step`` is run again under the same idempotency key.
``@transaction`` writes the application's rows and its own result in one transaction. ``@effect`` is
never repeated blindly, and ``@decision`` records a choice with its reasons.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from pgflow._flow.ledgers.effect import (
    DEFAULT_SETTLING,
    AsyncEffect,
    EffectOptions,
    SyncEffect,
)
from pgflow._flow.ledgers.handover import declare
from pgflow._flow.step import (
    AsyncStep,
    Step,
    SyncStep,
    check_callable,
    check_no_method,
    look_like,
    tell_is_awaited,
)
from pgflow._model.decisions import Choice, Decision
from pgflow._model.durations import Duration, duration
from pgflow._model.effects import Risk
from pgflow._model.gates import GateRequest
from pgflow._model.kinds import StepKind
from pgflow._model.options import Retries, retries_of
from pgflow.errors import DefinitionError

P = ParamSpec("P")
R = TypeVar("R")


class Connection(Protocol):
    """Type of the first parameter of a ``@transaction``: anything that commits and rolls back."""

    def commit(self) -> Any:
        """Commit its writes."""

    def rollback(self) -> Any:
        """Roll its writes back."""


C = TypeVar("C", bound=Connection)


def _wear(made: Step[..., Any]) -> None:
    """Give a step the look and the colour of its function."""
    look_like(made, made.fn)
    if made.is_async:
        tell_is_awaited(made)


_WORDS = {
    StepKind.STEP: "@step",
    StepKind.READ: "@read",
    StepKind.DECISION: "@decision",
    StepKind.TRANSACTION: "@transaction",
}


def _make(
    effect: str,
    name: str | None,
    retries: Retries | int,
    timeout: Duration | None,
    raises: Sequence[type[Exception]],
    aliases: Sequence[str],
    max_age: Duration | None,
    fn: Callable[..., Any],
) -> Any:
    check_callable(fn, _WORDS[effect])
    kind: type[Step[..., Any]] = AsyncStep if inspect.iscoroutinefunction(fn) else SyncStep
    made = kind(fn, effect, name, retries, timeout, raises, aliases)
    made.max_age = duration(max_age, f"max_age of step {made.name}")
    _wear(made)
    return made


# ---------------------------------------------------------------- @step, @read


class _Step(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncStep[P, R, Callable[P, R]]: ...


@overload
def step(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
    fn: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncStep[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
@overload
def step(fn: Callable[P, R], /) -> SyncStep[P, R, Callable[P, R]]: ...
@overload
def step(
    *,
    name: str | None = None,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
    aliases: Sequence[str] = (),
) -> _Step: ...
def step(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
    aliases: Sequence[str] = (),
) -> Any:
    """Declare an idempotent write to the outside. After a crash, the body runs again under the same
    key.

    It may be a method, of an instance or, under ``@classmethod``, of a class: its body gets that,
    and it is none of the recorded arguments. A worker calls the instance that the code of the
    workflow has there, so make it where a worker starts too.

    Args:
        name: Its name in the journal, at most 255 bytes; the function's own if not given.
        retries: Tries in all (3 if not given), or how to space them.
        timeout: Longest time for one try.
        raises: Errors that are final: never tried again, and raised in the workflow as themselves.
        aliases: Names that it had before: journals that know it by one of them fit.

    Example::

        @step(retries=5)
        async def ship(order_id: int) -> str:
            return await carrier.book(order_id, key=pgflow.idempotency_key())
    """
    make = partial(_make, StepKind.STEP, name, retries, timeout, raises, aliases, None)
    return make(fn) if fn is not None else make


@overload
def read(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
    fn: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncStep[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
@overload
def read(fn: Callable[P, R], /) -> SyncStep[P, R, Callable[P, R]]: ...
@overload
def read(
    *,
    name: str | None = None,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    max_age: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
    aliases: Sequence[str] = (),
) -> _Step: ...
def read(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    max_age: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
    aliases: Sequence[str] = (),
) -> Any:
    """Declare a pure read. It may run again freely, and its result needs no commit of its own.

    Args:
        name: Its name in the journal, at most 255 bytes; the function's own if not given.
        retries: Tries in all (3 if not given), or how to space them.
        timeout: Longest time for one try.
        max_age: Greatest age of the newest result of this read when an effect is intended after it;
            where it is older, nothing is done and the effect raises Stale.
        raises: Errors that are final: never tried again, and raised in the workflow as themselves.
        aliases: Names that it had before: journals that know it by one of them fit.
    """
    make = partial(_make, StepKind.READ, name, retries, timeout, raises, aliases, max_age)
    return make(fn) if fn is not None else make


# ---------------------------------------------------------------- @transaction


class _Transaction(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R, Callable[Concatenate[C, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[C, P], R], /
    ) -> SyncStep[P, R, Callable[Concatenate[C, P], R]]: ...


Isolation = Literal["read committed", "repeatable read", "serializable"]


def make_transaction(
    fn: Callable[..., Any],
    isolation: Isolation | None = None,
    raises: Sequence[type[Exception]] = (),
    provider: Any = None,
    aliases: Sequence[str] = (),
) -> Any:
    """A transactional step whose connection comes from a provider: by the annotation of the first
    parameter, if none is given.
    """
    check_callable(fn, "@transaction")
    check_no_method(fn, "a @transaction", "its first parameter is the connection")
    step = _make(StepKind.TRANSACTION, None, 1, None, raises, aliases, None, fn)
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    if provider is None and (
        not parameters
        or parameters[0].kind
        not in (parameters[0].POSITIONAL_ONLY, parameters[0].POSITIONAL_OR_KEYWORD)
    ):
        raise DefinitionError(
            f"{fn.__qualname__} is a @transaction: its first parameter must be the connection, "
            "annotated with its class"
        )
    step.isolation = isolation
    step.provider = provider
    step.connection_parameter = None
    if provider is None:
        step.connection_parameter = parameters[0].name
        step.__signature__ = signature.replace(parameters=parameters[1:])  # it is not the caller's
    return step


@overload
def transaction(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
    fn: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /
) -> AsyncStep[P, R, Callable[Concatenate[C, P], Coroutine[Any, Any, R]]]: ...
@overload
def transaction(
    fn: Callable[Concatenate[C, P], R], /
) -> SyncStep[P, R, Callable[Concatenate[C, P], R]]: ...
@overload
def transaction(
    *,
    isolation: Isolation = "read committed",
    raises: Sequence[type[Exception]] = (),
    aliases: Sequence[str] = (),
) -> _Transaction: ...
def transaction(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    isolation: Isolation | None = None,
    raises: Sequence[type[Exception]] = (),
    aliases: Sequence[str] = (),
) -> Any:
    """Declare a transactional write. The step's result and the writes of its body commit together
    or not at all.

    The first parameter is the connection; the class it is annotated with picks the provider
    (psycopg's connections are built in). The caller does not pass it.
    The body must not commit or roll back.

    Args:
        isolation: Isolation level of the transaction; the server's default if not given.
        raises: Errors that are raised in the workflow as themselves.
        aliases: Names that it had before: journals that know it by one of them fit.

    Example::

        @transaction
        async def reserve(conn: psycopg.AsyncConnection, sku: str, quantity: int) -> None:
            await conn.execute("update stock set n = n - %s where sku = %s", (quantity, sku))
    """
    make = partial(make_transaction, isolation=isolation, raises=raises, aliases=aliases)
    return make(fn) if fn is not None else make


# ---------------------------------------------------------------- @effect


class _Effect:
    def __init__(
        self,
        terms: EffectOptions,
        name: str | None,
        timeout: Duration | None,
        raises: Sequence[type[Exception]],
        aliases: Sequence[str],
        notify: Step[[GateRequest], Any] | None,
    ) -> None:
        self._terms = terms
        self._notify = notify
        self._aliases = aliases
        self._name = name
        self._timeout = timeout
        self._raises = raises

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncEffect[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncEffect[P, R, Callable[P, R]]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        check_callable(fn, "@effect")
        check_no_method(fn, "an @effect", "it may be settled without an instance")
        kind: Any = AsyncEffect if inspect.iscoroutinefunction(fn) else SyncEffect
        made = kind(fn, self._terms, self._name, self._timeout, self._raises, self._aliases)
        made.notify = self._notify
        _wear(made)
        declare(made)
        return made


def effect(
    *,
    risk: Risk,
    raises: Sequence[type[Exception]] = (),
    dedup_window: Duration | None = None,
    settle_after: Duration | None = None,
    keyed: bool = True,
    timeout: Duration | None = None,
    name: str | None = None,
    settle_retries: Retries | int = DEFAULT_SETTLING,
    aliases: Sequence[str] = (),
    readable: Sequence[str] = (),
    notify: Step[[GateRequest], Any] | None = None,
) -> _Effect:
    """Declare a write to the outside that must not be repeated blindly.

    Its intent is recorded before the body runs. A returned value confirms it, and an exception of
    ``raises=`` means that the counterparty refused. After any other exception, a timeout or the
    loss of the worker, the outcome is unknown. pgflow then resends the same key while the
    counterparty remembers it (``dedup_window``), else calls ``.settle``, and at last asks a person.

    Args:
        risk: Kind of undo: ``reversible``, ``compensable`` or ``irreversible``.
        raises: Definite refusals of the counterparty. Any other exception leaves the outcome
            unknown.
        dedup_window: Time for which the counterparty remembers a key. Until ``settle_after`` before
            it ends, pgflow resends the same key. By default, pgflow queries the counterparty first.
        settle_after: Time after an attempt from which "absent" counts: at least half a second
            longer than ``timeout``, by default ten seconds longer. An attempt that could only start
            in the second half of that slack does not start.
        keyed: True if the counterparty deduplicates by key. If not, only a person may retry the
            effect.
        timeout: Longest time for one attempt; five minutes by default.
        name: Its name in the ledger, at most 255 bytes; the function's name by default.
        settle_retries: Number and intervals of ``.settle`` calls before a person must settle it;
            about nine hours by default.
        aliases: Earlier names, so that existing journals and idempotency keys stay valid.
        readable: Parameters that the policy can read even if the app has a codec. A rule on any
            other argument then counts as fitting, so no act escapes it.
        notify: Step or effect that notifies the approvers of a policy gate, once for each gate.

    Example::

        @effect(risk="compensable", raises=[CardDeclined], dedup_window=timedelta(hours=24))
        async def charge(card: str, cents: int) -> str:
            return await bank.charge(card, cents, key=pgflow.idempotency_key())
    """
    terms = EffectOptions(
        risk,
        keyed=keyed,
        dedup_window=duration(dedup_window, "dedup_window of an effect"),
        settle_after=duration(settle_after, "settle_after of an effect"),
        settle_retries=retries_of(settle_retries, "settle_retries of an effect"),
        readable=(readable,) if isinstance(readable, str) else tuple(readable),
    )
    return _Effect(terms, name, timeout, raises, aliases, notify)


# ---------------------------------------------------------------- @decision


class _Decision(Protocol):
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, Choice[R]]], /
    ) -> AsyncStep[P, Decision[R], Callable[P, Coroutine[Any, Any, Choice[R]]]]: ...
    @overload
    def __call__(
        self, fn: Callable[P, Choice[R]], /
    ) -> SyncStep[P, Decision[R], Callable[P, Choice[R]]]: ...


@overload
def decision(  # pyright: ignore[reportOverlappingOverload]
    fn: Callable[P, Coroutine[Any, Any, Choice[R]]], /
) -> AsyncStep[P, Decision[R], Callable[P, Coroutine[Any, Any, Choice[R]]]]: ...
@overload
def decision(fn: Callable[P, Choice[R]], /) -> SyncStep[P, Decision[R], Callable[P, Choice[R]]]: ...
@overload
def decision(
    *, retries: Retries | int = 3, timeout: Duration | None = None, aliases: Sequence[str] = ()
) -> _Decision: ...
def decision(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    aliases: Sequence[str] = (),
) -> Any:
    """Declare a choice that is made once and recorded with its reasons. A replay gets the same
    choice.

    The body returns a :class:`~pgflow.decisions.Choice`; the workflow gets a
    :class:`~pgflow.decisions.Decision`, on which other calls may rest with ``.because(...)``.

    Args:
        retries: Tries in all (3 if not given), or how to space them.
        timeout: Longest time for one try.
        aliases: Earlier names, so that existing journals and idempotency keys stay valid.

    Example::

        @decision
        async def pick(offers: list[Offer]) -> Choice[Offer]:
            best = min(offers, key=lambda o: o.cents)
            return Choice(best, why="the cheapest", alternatives=[o.seller for o in offers])
    """
    make = partial(_make, StepKind.DECISION, None, retries, timeout, (), aliases, None)
    return make(fn) if fn is not None else make
