"""Sagas: when an exception leaves a block, the effects done in it are taken back, the last one first.

Compensations are calls like all others, issued by the workflow's own code where the exception passes: a
replay issues them again, so they go on wherever a crash has left them. Each is an effect with a key of its
own. What is not known yet is settled before anything is taken back, and what cannot be taken back makes the
run stuck: a saga is never called compensated while it is not.

A run that continues as new hands on what it would have to take back: the effects of blocks that are open, and
those outside of blocks that something takes back. The next generation begins with them at the bottom of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar, Token
from typing import Any, Protocol

from pgflow._engine.calls import Call, ChildCall, EffectCall, Waiter
from pgflow._engine.host import ContinueAsNew
from pgflow._engine.loop import Unwind
from pgflow._scope import WorkflowScope, async_scope, sync_scope


class Reversible(Protocol):
    """An effect, as a saga sees it."""

    @property
    def has_compensation(self) -> bool:
        """Whether something is declared that takes it back."""

    @property
    def code(self) -> str:
        """Where it stands in the code, for the generation that has to find it there."""

    def check_request(self, effect: EffectCall) -> None:
        """Refuses one of these effects whose arguments could not be read back from its request."""

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


def enlister(scope: WorkflowScope) -> Callable[[list[Enlisted]], None]:
    """Remembers, later, effects that belong where the code stands now: those of a child, once it has completed."""
    begun_in = _innermost.get()

    def enlist_all(effects: list[Enlisted]) -> None:
        block = begun_in
        while block is not None and not block.is_open:
            block = block.around
        (scope.effects if block is None else block.effects).extend(effects)

    return enlist_all


def _is_in_block() -> bool:
    block = _innermost.get()
    while block is not None and not block.is_open:
        block = block.around
    return block is not None


async def give_up_child(scope: WorkflowScope, call: ChildCall) -> None:
    """The code waits no longer for a child. In a saga block it is waited for all the same, until it has taken back what it did."""
    waiter: Any = scope.execution.unwant(call) if _is_in_block() else None
    if waiter is None:
        scope.execution.cancel_call(call)
    while waiter is not None and not waiter.done():
        with suppress(asyncio.CancelledError, Exception):  # how it ended; its parent is being cancelled already
            await asyncio.shield(waiter)
    if waiter is not None and not waiter.cancelled():
        waiter.exception()  # nobody else asks for it


def give_up_child_sync(scope: WorkflowScope, call: ChildCall) -> None:
    """The same in a thread."""
    waiter = scope.execution.unwant(call) if _is_in_block() else None
    if waiter is None:
        scope.execution.cancel_call(call)
    assert scope.thread is not None
    while waiter is not None and not waiter.done():
        with suppress(asyncio.CancelledError):
            scope.thread.block([call])


def check_carried(scope: WorkflowScope) -> None:
    """Refuses to continue as new with an effect that the next generation could not take back.

    Raises:
        NotStorable: Its arguments cannot be read back as they are annotated.
    """
    in_blocks = [enlisted for block in scope.blocks for enlisted in block.effects]
    for effect, call in in_blocks + [(e, c) for e, c in scope.effects if c.is_bound or e.has_compensation]:
        if call.number and call.is_in_place:
            effect.check_request(call)


def saga() -> AbstractAsyncContextManager[None]:
    """A block whose effects are taken back, the last first, when an exception leaves it.

    Effects that are not known yet are settled first, and those that were accepted are waited for until they are
    confirmed or rejected. An effect without a ``compensate`` makes the run stuck until a person has said that it
    is taken back. Leaving the block in peace hands its effects on to the
    block around it, and at last to the run, which takes back what can be taken back when it fails or is
    cancelled. A block that :func:`pgflow.continue_as_new` leaves goes on in the next generation.

    Example::

        async with pgflow.saga():
            seat = await book_seat(trip)
            await charge(card, seat.cents)
    """
    scope = async_scope("pgflow.saga()", "pgflow.sync.saga()")
    return _saga(scope)


@asynccontextmanager
async def _saga(scope: WorkflowScope) -> AsyncIterator[None]:
    block, token = _enter(scope)
    try:
        yield
    except ContinueAsNew:
        _bind(block)
        _leave(scope, block, token)
        raise
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
    block, token = _enter(scope)
    try:
        yield
    except ContinueAsNew:
        _bind(block)
        _leave(scope, block, token)
        raise
    except _NOT_AN_END:
        _leave(scope, block, token)
        raise
    except BaseException:
        take_back_sync(scope, block.effects, all_of_them=True)
        _leave(scope, block, token)
        raise
    _leave(scope, block, token)


def _enter(scope: WorkflowScope) -> tuple[Block, Token[Block | None]]:
    block = Block(_innermost.get())
    scope.blocks.append(block)
    return block, _innermost.set(block)


def _leave(scope: WorkflowScope, block: Block, token: Token[Block | None]) -> None:
    """Closes a block, and hands on what is left in it."""
    block.is_open = False
    if block in scope.blocks:
        scope.blocks.remove(block)
    try:
        _innermost.reset(token)
    except ValueError:  # it is left in another task than it was entered in, whose context has its own idea of the innermost
        pass
    around = block.around
    while around is not None and not around.is_open:
        around = around.around
    (scope.effects if around is None else around.effects).extend(block.effects)


def _bind(block: Block) -> None:
    """The block goes on in what is around it: all that was done in it must be taken back, by a person if nothing else does."""
    for _, call in block.effects:
        call.is_bound = True


def _adopt(scope: WorkflowScope) -> None:
    """The run ends, and with it the blocks that its tasks have open: what was done in them is the run's now."""
    if not scope.blocks:
        return
    while scope.blocks:
        block = scope.blocks.pop()
        block.is_open = False
        _bind(block)
        scope.effects.extend(block.effects)
        block.effects.clear()
    scope.effects.sort(key=lambda enlisted: enlisted[1].number)


def hand_on(scope: WorkflowScope, end: ContinueAsNew) -> None:
    """Says what the next generation takes back if it fails: what this one and its children did, beside what it was handed itself."""
    _adopt(scope)
    own = [(effect, call) for effect, call in scope.effects if not scope.execution.is_foreign(call)]
    left = [(effect, call) for effect, call in own if call.is_bound or effect.has_compensation]
    end.saga = [(call, effect.code) for effect, call in left if call.number]
    end.of_children = [call.key for _, call in left if call.is_of_child]


def _is_done(call: EffectCall) -> bool:
    return call.closed_as in ("confirmed", "accepted")


def _last(effects: list[Enlisted], *, all_of_them: bool) -> Iterator[Enlisted]:
    """What is to be taken back next. Tasks that go on meanwhile may add to it."""
    while effects:
        effect, call = effects.pop()
        if all_of_them or call.is_bound or effect.has_compensation:
            yield effect, call


async def take_back(scope: WorkflowScope, effects: list[Enlisted], *, all_of_them: bool) -> None:
    """Compensates effects, the last first; a cancellation on the way is raised once they are taken back."""
    cancelled: asyncio.CancelledError | None = None
    for effect, call in _last(effects, all_of_them=all_of_them):
        cancelled = await _closed(scope, call) or cancelled
        if _is_done(call) and scope.execution.may_take_back(call):
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
        if _is_done(call) and scope.execution.may_take_back(call):
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


def _checked(scope: WorkflowScope, value: Any) -> Any:
    """A result; one that cannot be stored is a failure while what was done can still be taken back."""
    if scope.effects:
        scope.execution.check_result(value)
    return value


async def guarded(scope: WorkflowScope, main: Callable[[], Any]) -> Any:
    """Runs a workflow's function; if it ends with an exception, what can be taken back is."""
    try:
        return _checked(scope, await main())
    except ContinueAsNew as end:
        hand_on(scope, end)
        raise
    except _NOT_AN_END:
        raise
    except BaseException:
        _adopt(scope)
        await take_back(scope, scope.effects, all_of_them=False)
        raise


def guarded_sync(scope: WorkflowScope, main: Callable[[], Any]) -> Any:
    """The same in a thread."""
    try:
        return _checked(scope, main())
    except ContinueAsNew as end:
        hand_on(scope, end)
        raise
    except _NOT_AN_END:
        raise
    except BaseException:
        _adopt(scope)
        take_back_sync(scope, scope.effects, all_of_them=False)
        raise
