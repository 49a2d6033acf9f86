"""Sagas: when an exception leaves a block, the effects done in it are taken back, the last one first.

Compensations are calls like all others, issued by the workflow's own code where the exception passes: a
replay issues them again, so they go on wherever a crash has left them. Each is an effect with a key of its
own. What is not known yet is settled before anything is taken back, and what cannot be taken back makes the
run stuck: a saga is never called compensated while it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from pgflow._engine.calls import Call, EffectCall, Waiter
from pgflow._engine.host import ContinueAsNew
from pgflow._engine.loop import Unwind
from pgflow._scope import WorkflowScope, async_scope, sync_scope


class Reversible(Protocol):
    """An effect, as a saga sees it."""

    @property
    def has_compensation(self) -> bool:
        """Whether something is declared that takes it back."""

    def issue_compensation(self, scope: WorkflowScope, effect: EffectCall) -> EffectCall:
        """Asks for one of these effects to be taken back; if nothing is declared, by a person."""


Enlisted = tuple[Reversible, EffectCall]

_innermost: ContextVar[list[Enlisted] | None] = ContextVar("pgflow_saga", default=None)

_NOT_AN_END = (Unwind, GeneratorExit, ContinueAsNew)
"""What leaves code that goes on elsewhere."""


def enlist(scope: WorkflowScope, effect: Reversible, call: EffectCall) -> None:
    """Remembers an effect in the innermost saga, else in the run."""
    block = _innermost.get()
    (scope.effects if block is None else block).append((effect, call))


def saga() -> AbstractAsyncContextManager[None]:
    """A block whose effects are taken back, the last first, when an exception leaves it.

    Effects that are not known yet are settled first. An effect without a ``compensate`` makes the run stuck
    until a person has said that it is taken back. Leaving the block in peace hands its effects on to the
    block around it, and at last to the run, which takes back what can be taken back when it fails or is
    cancelled.

    Example::

        async with pgflow.saga():
            seat = await book_seat(trip)
            await charge(card, seat.cents)
    """
    scope = async_scope("pgflow.saga()", "pgflow.sync.saga()")
    return _saga(scope)


@asynccontextmanager
async def _saga(scope: WorkflowScope) -> AsyncIterator[None]:
    around = _innermost.get()
    block: list[Enlisted] = []
    token = _innermost.set(block)
    try:
        yield
    except _NOT_AN_END:
        raise
    except BaseException:
        _innermost.reset(token)
        await take_back(scope, block, all_of_them=True)
        raise
    else:
        _innermost.reset(token)
        (scope.effects if around is None else around).extend(block)


def sync_saga() -> AbstractContextManager[None]:
    """The same for sync workflows; see :func:`pgflow.saga`."""
    scope, _ = sync_scope("pgflow.sync.saga()", "pgflow.saga()")
    return _sync_saga(scope)


@contextmanager
def _sync_saga(scope: WorkflowScope) -> Iterator[None]:
    around = _innermost.get()
    block: list[Enlisted] = []
    token = _innermost.set(block)
    try:
        yield
    except _NOT_AN_END:
        raise
    except BaseException:
        _innermost.reset(token)
        take_back_sync(scope, block, all_of_them=True)
        raise
    else:
        _innermost.reset(token)
        (scope.effects if around is None else around).extend(block)


def _is_done(call: EffectCall) -> bool:
    return call.closed_as in ("confirmed", "accepted")


def _wanted(block: list[Enlisted], *, all_of_them: bool) -> Iterator[Enlisted]:
    for effect, call in reversed(block):
        if all_of_them or effect.has_compensation:
            yield effect, call


async def take_back(scope: WorkflowScope, block: list[Enlisted], *, all_of_them: bool) -> None:
    """Compensates effects, the last first; a cancellation on the way is raised once they are taken back."""
    cancelled: asyncio.CancelledError | None = None
    for effect, call in _wanted(block, all_of_them=all_of_them):
        cancelled = await _closed(scope, call) or cancelled
        if _is_done(call):
            cancelled = await _closed(scope, effect.issue_compensation(scope, call)) or cancelled
    if cancelled is not None:
        raise cancelled


async def _closed(scope: WorkflowScope, call: EffectCall) -> asyncio.CancelledError | None:
    cancelled = None
    waiter: Any = scope.execution.watch(call)
    while waiter is not None and not waiter.done():
        try:
            await asyncio.shield(waiter)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def take_back_sync(scope: WorkflowScope, block: list[Enlisted], *, all_of_them: bool) -> None:
    """The same in a thread."""
    cancelled: asyncio.CancelledError | None = None
    for effect, call in _wanted(block, all_of_them=all_of_them):
        cancelled = _closed_sync(scope, call) or cancelled
        if _is_done(call):
            cancelled = _closed_sync(scope, effect.issue_compensation(scope, call)) or cancelled
    if cancelled is not None:
        raise cancelled


def _closed_sync(scope: WorkflowScope, call: EffectCall) -> asyncio.CancelledError | None:
    cancelled = None
    waiter: Waiter | None = scope.execution.watch(call)
    assert scope.thread is not None
    while waiter is not None and not waiter.done():
        try:
            scope.thread.block([Call(call.number, call.name, waiter)])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def guarded(scope: WorkflowScope, main: Callable[[], Any]) -> Any:
    """Runs a workflow's function; if it ends with an exception, what can be taken back is."""
    try:
        return await main()
    except _NOT_AN_END:
        raise
    except BaseException:
        await take_back(scope, scope.effects, all_of_them=False)
        raise


def guarded_sync(scope: WorkflowScope, main: Callable[[], Any]) -> Any:
    """The same in a thread."""
    try:
        return main()
    except _NOT_AN_END:
        raise
    except BaseException:
        take_back_sync(scope, scope.effects, all_of_them=False)
        raise
