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
from contextvars import ContextVar, Token
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


class Block:
    """A saga block. Tasks that were made in it may outlive it: what they do then belongs to the block around."""

    def __init__(self, around: Block | None) -> None:
        self.around = around
        self.effects: list[Enlisted] = []
        self.is_open = True


_innermost: ContextVar[Block | None] = ContextVar("pgflow_saga", default=None)

_NOT_AN_END = (Unwind, GeneratorExit, ContinueAsNew)
"""What leaves code that goes on elsewhere."""


def _enlisting(scope: WorkflowScope) -> list[Enlisted]:
    """Where effects that are asked for now are remembered: by the innermost open block, else by the run."""
    block = _innermost.get()
    while block is not None and not block.is_open:
        block = block.around
    return scope.effects if block is None else block.effects


def enlist(scope: WorkflowScope, effect: Reversible, call: EffectCall) -> None:
    """Remembers an effect."""
    _enlisting(scope).append((effect, call))


def is_in_saga() -> bool:
    """Whether the code that asks is in a saga block that has effects to take back."""
    block = _innermost.get()
    while block is not None:
        if block.is_open and block.effects:
            return True
        block = block.around
    return False


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
    block, token = _enter()
    try:
        yield
    except _NOT_AN_END:
        _leave(scope, block, token)
        raise
    except BaseException:
        await take_back(scope, block.effects, all_of_them=True)
        _leave(scope, block, token)
        raise
    _leave(scope, block, token)


def sync_saga() -> AbstractContextManager[None]:
    """The same for sync workflows; see :func:`pgflow.saga`."""
    scope, _ = sync_scope("pgflow.sync.saga()", "pgflow.saga()")
    return _sync_saga(scope)


@contextmanager
def _sync_saga(scope: WorkflowScope) -> Iterator[None]:
    block, token = _enter()
    try:
        yield
    except _NOT_AN_END:
        _leave(scope, block, token)
        raise
    except BaseException:
        take_back_sync(scope, block.effects, all_of_them=True)
        _leave(scope, block, token)
        raise
    _leave(scope, block, token)


def _enter() -> tuple[Block, Token[Block | None]]:
    block = Block(_innermost.get())
    return block, _innermost.set(block)


def _leave(scope: WorkflowScope, block: Block, token: Token[Block | None]) -> None:
    """Closes a block, and hands on what is left in it."""
    block.is_open = False
    try:
        _innermost.reset(token)
    except ValueError:  # it is left in another task than it was entered in, whose context has its own idea of the innermost
        pass
    around = block.around
    while around is not None and not around.is_open:
        around = around.around
    (scope.effects if around is None else around.effects).extend(block.effects)


def _is_done(call: EffectCall) -> bool:
    """Whether it was done, and by this run: what a fork has from its origin is the origin's to take back."""
    return call.closed_as in ("confirmed", "accepted") and not call.is_foreign


def _last(effects: list[Enlisted], *, all_of_them: bool) -> Iterator[Enlisted]:
    """What is to be taken back next. Tasks that go on meanwhile may add to it."""
    while effects:
        effect, call = effects.pop()
        if all_of_them or effect.has_compensation:
            yield effect, call


async def take_back(scope: WorkflowScope, effects: list[Enlisted], *, all_of_them: bool) -> None:
    """Compensates effects, the last first; a cancellation on the way is raised once they are taken back."""
    cancelled: asyncio.CancelledError | None = None
    for effect, call in _last(effects, all_of_them=all_of_them):
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


def take_back_sync(scope: WorkflowScope, effects: list[Enlisted], *, all_of_them: bool) -> None:
    """The same in a thread."""
    cancelled: asyncio.CancelledError | None = None
    for effect, call in _last(effects, all_of_them=all_of_them):
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
