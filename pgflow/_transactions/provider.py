"""Interface of libraries of connections, and their deadlines."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, LiteralString, Protocol, runtime_checkable

from pgflow._db.deadlines import BEGIN_SECONDS, Cord, Limit
from pgflow._db.query import Row
from pgflow.errors import DefinitionError


class Transaction(Protocol):
    """An open transaction of a sync library.

    It may have an attribute ``driver_connection``, the psycopg connection underneath. Then trouble
    of other connections of a body is recognised as such. Without it, all trouble of that kind
    counts as this connection's, and is waited out.

    It may have ``fileno()``, the number of its connection's socket. Then the engine's statements on
    it have a deadline, and it is cut if its server is no longer the primary, or if its body
    outlives its step. Without it, a frozen server blocks the body's thread, and a hanging body
    keeps its locks.

    It may have ``leave_behind()``, called if its body outlives its step and keeps the connection:
    once, on another thread, before the connection is cut.

    Errors of ``commit()`` may come from hooks that the library runs after COMMIT, so the journal is
    read to see if it committed. ``has_hooks = False`` promises that there are none: then an error
    of the server means that COMMIT failed.

    It may have ``execute_and_commit(sql, params)``; see :class:`AsyncTransaction`.
    """

    connection: Any
    """Connection for the body of the step, once a first statement was executed."""

    def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        """Run a statement (psycopg's placeholders) in it."""

    def flush(self) -> None:
        """Send statements that the library still holds back."""

    def commit(self) -> None:
        """Commits."""


class AsyncTransaction(Protocol):
    """An open transaction of an async library.

    It may have ``execute_and_commit(sql, params)``, if the library can send both at once, which
    saves a round trip. If that raises without an answer of the server, the transaction's connection
    must be closed. ``driver_connection``, ``fileno()`` and ``has_hooks`` are as for
    :class:`Transaction`.
    """

    connection: Any
    """Connection for the body of the step, once a first statement was executed."""

    async def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        """Run a statement (psycopg's placeholders) in it."""

    async def flush(self) -> None:
        """Send statements that the library still holds back."""

    async def commit(self) -> None:
        """Commits."""


@runtime_checkable
class TransactionProvider(Protocol):
    """Hands out transactions to ``def`` steps. Leaving the context without a commit rolls back."""

    def provides(self, annotation: Any) -> bool:
        """Return True if this provider hands out connections of this annotation."""

    def begin(self, isolation: str | None) -> AbstractContextManager[Transaction]:
        """Open a transaction."""


@runtime_checkable
class AsyncTransactionProvider(Protocol):
    """Hands out transactions to ``async def`` steps."""

    def provides(self, annotation: Any) -> bool:
        """Return True if this provider hands out connections of this annotation."""

    def begin_async(self, isolation: str | None) -> AbstractAsyncContextManager[AsyncTransaction]:
        """Open a transaction."""


def is_class(annotation: Any, *classes: type) -> bool:
    """Return True if an annotation is one of these classes,
    with or without parameters, or a subclass.
    """
    origin = typing.get_origin(annotation) or annotation
    return inspect.isclass(origin) and issubclass(origin, classes)


@contextmanager
def in_time(fileno: int | None) -> Iterator[None]:
    """Cut the connection of this socket if the block takes too long. Waiting calls get an error for
    a lost connection.
    """
    with Limit(fileno, BEGIN_SECONDS):
        yield


@contextmanager
def rolled_back_in_time(fileno: int | None, *, roll_back: Callable[[], None]) -> Iterator[None]:
    """Roll back an open transaction after the block, with a deadline: a frozen server would block
    the caller.

    Args:
        fileno: The connection's socket; None if unknown.
        roll_back: Rolls back; does nothing after a commit.
    """
    cord = None if fileno is None else Cord(fileno)
    try:
        yield
    finally:
        try:
            with suppress(Exception), Limit(cord, BEGIN_SECONDS):
                # The outcome of the body is already known.
                roll_back()
        finally:
            if cord is not None:
                cord.close()


@asynccontextmanager
async def rolled_back_in_time_async(
    fileno: int | None, *, roll_back: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """As :func:`rolled_back_in_time`, for async code."""
    cord = None if fileno is None else Cord(fileno)
    try:
        yield
    finally:
        try:
            with suppress(Exception), Limit(cord, BEGIN_SECONDS):
                await roll_back()
        finally:
            if cord is not None:
                cord.close()


def provider_for(step: Any, providers: Sequence[Any]) -> Any:
    """The provider of a step's transactions: its own, else the first that provides what its first
    parameter is annotated with.

    Raises:
        DefinitionError: None does.
    """
    if step.provider is not None:
        return step.provider
    annotation = step.hints.get(step.connection_parameter, inspect.Parameter.empty)
    wanted = AsyncTransactionProvider if step.is_async else TransactionProvider
    for provider in providers:
        if isinstance(provider, wanted) and provider.provides(annotation):
            return provider
    raise DefinitionError(
        f"no provider hands out what @transaction {step.name} wants as "
        f"{step.connection_parameter!r} ({'async' if step.is_async else 'sync'}, annotated "
        f"{annotation!r}): pass one with App(providers=[...])"
    )
