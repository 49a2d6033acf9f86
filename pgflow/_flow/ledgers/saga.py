"""Sagas: when an exception leaves a block, the effects done in it are taken back,
the last one first.

Compensations are calls like all others, issued by the workflow's own code where the exception
passes: a replay issues them again, so they go on wherever a crash has left them. Each compensation
is an effect with a key of its own. What is not known yet is settled before anything is taken back,
and what cannot be taken back makes the run stuck: a saga is never called compensated while it is
not.

A run that continues as new hands on what it would have to take back: the effects of blocks that are
open, and those outside of blocks that something takes back. The next generation begins with them at
the bottom of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar, Token
from typing import Any

from pgflow._engine.calls import Call, ChildCall, Waiter
from pgflow._engine.children import Children
from pgflow._engine.effects import EffectCall, EffectStage
from pgflow._engine.host import ContinueAsNew
from pgflow._engine.ledger import Ledger
from pgflow._engine.loop import Unwind
from pgflow._flow.ledgers.undo_plan.propose import Planning, planning_of
from pgflow._flow.ledgers.undo_plan.run import Planned, Reversible, Undoable
from pgflow._flow.scope import WorkflowScope, async_scope, sync_scope
from pgflow._flow.step import Step
from pgflow._model.codecs import MAX_BYTES
from pgflow._model.decisions import Decision
from pgflow._model.protocol import SagaEntry
from pgflow.errors import DefinitionError, NotStorable, WrongState

Enlisted = tuple[Reversible, EffectCall]


class Block:
    """A saga block. Tasks that were made in it may outlive it:
    what they do then belongs to the block around.
    """

    def __init__(self, around: Block | None, planning: Planning | None = None) -> None:
        self.around = around
        self.planning = planning
        self.effects: list[Enlisted] = []
        self.is_open = True


innermost: ContextVar[Block | None] = ContextVar("pgflow_saga", default=None)

_ROOM_BYTES = 1024
"""Bytes reserved for the rest of a unit in which a parent records the effects of a child."""

_NOT_AN_END = (Unwind, GeneratorExit, ContinueAsNew)
"""Exceptions that leave code which goes on elsewhere."""


def _enlisting(scope: WorkflowScope) -> list[Enlisted]:
    """Return the list for effects that are asked for now:
    that of the innermost open block, else of the run.
    """
    block = innermost.get()
    while block is not None and not block.is_open:
        block = block.around
    return scope.effects if block is None else block.effects


def enlist(scope: WorkflowScope, effect: Undoable, call: EffectCall) -> None:
    """Add an effect to the block, with the planner to ask if it has no compensation."""
    planning = None if effect.has_compensation else _planning()
    _enlisting(scope).append((effect if planning is None else Planned(effect, planning), call))


def _planning() -> Planning | None:
    """Return the plan options of the innermost open block that has a planner, or None."""
    block = innermost.get()
    while block is not None and not (block.is_open and block.planning is not None):
        block = block.around
    return None if block is None else block.planning


def enlist_all(scope: WorkflowScope, block: Block | None, effects: list[Enlisted]) -> None:
    """Enlist the effects of a child that has completed, in the innermost block still open of those
    in which it was started.
    """
    while block is not None and not block.is_open:
        block = block.around
    (scope.effects if block is None else block.effects).extend(effects)


def _is_in_block() -> bool:
    block = innermost.get()
    while block is not None and not block.is_open:
        block = block.around
    return block is not None


async def give_up_child(scope: WorkflowScope, call: ChildCall) -> None:
    """The code waits no longer for a child. In a saga block it is waited for all the same, until it
    has taken back what it did.
    """
    waiter: Any = scope.execution.parts[Children].unwant(call) if _is_in_block() else None
    if waiter is None:
        scope.execution.cancel_call(call)
    while waiter is not None and not waiter.done():
        with suppress(asyncio.CancelledError, Exception):
            # How it ended; its parent is being cancelled already.
            await asyncio.shield(waiter)
    if waiter is not None and not waiter.cancelled():
        waiter.exception()  # marks it as retrieved


def give_up_child_sync(scope: WorkflowScope, call: ChildCall) -> None:
    """The same in a thread."""
    waiter = scope.execution.parts[Children].unwant(call) if _is_in_block() else None
    if waiter is None:
        scope.execution.cancel_call(call)
    assert scope.thread is not None
    while waiter is not None and not waiter.done():
        with suppress(asyncio.CancelledError):
            scope.thread.block(call)


def check_carried(scope: WorkflowScope) -> None:
    """Refuse to continue as new with an effect that the next generation could not compensate.

    Raises:
        NotStorable: Its arguments cannot be read back as they are annotated.
        WrongState: This generation has taken back the effects of earlier ones.
    """
    if scope.is_last:
        raise WrongState(
            "a block has taken back what earlier generations did, and the next one would be handed "
            "it again: let the run end, and start another"
        )
    in_blocks = [enlisted for block in scope.blocks for enlisted in block.effects]
    for effect, call in in_blocks + [
        (e, c) for e, c in scope.effects if c.is_bound or e.has_compensation
    ]:
        if call.number and call.is_in_place:
            effect.check_request(call)


def saga(
    *,
    goal: str | None = None,
    planner: Step[[Any], Decision[Any]] | None = None,
    steps: Sequence[Step[..., Any]] = (),
    inherits: bool = False,
) -> AbstractAsyncContextManager[None]:
    """Return a block that compensates its effects, the last first, when an exception leaves it.

    Effects with an unknown outcome are settled first, and accepted ones are awaited until they are
    confirmed or rejected. An effect without a ``compensate`` makes the run stuck until a person has
    undone it, unless the block has a planner. A block that ends normally hands its effects to the
    block around it, and at last to the run, which compensates them if it fails or is cancelled. A
    block that :func:`pgflow.continue_as_new` leaves continues in the next generation, without its
    planner.

    Args:
        goal: Purpose of the block, in words, for the planner.
        planner: A ``@decision`` that is called with an :class:`~pgflow.effects.UndoRequest` for
            each effect without a ``compensate`` and chooses a list of
            :class:`~pgflow.effects.PlannedCall`. Inner blocks without a planner use it too. If a
            step of the plan is refused or fails, the run is stuck as without a planner.
        steps: The steps that a plan may call by their names.
        inherits: True to take over the effects of earlier generations: they are then compensated
            with the block, not only if the run fails. The run must end after that.

    Raises:
        DefinitionError: The planner is not a decision, or a plan cannot call one of the steps.

    Example::

        async with pgflow.effects.saga(goal="a trip to Lima", planner=propose, steps=[cancel]):
            seat = await book_seat(trip)
            await charge(card, seat.cents)
    """
    scope = async_scope("pgflow.effects.saga()", "pgflow.sync.saga()")
    return _saga(scope, _planning_of(planner, goal, steps), inherits=inherits)


def _planning_of(
    planner: Step[..., Any] | None, goal: str | None, steps: Sequence[Step[..., Any]]
) -> Planning | None:
    if planner is not None:
        return planning_of(planner, goal, steps)
    if steps:
        raise DefinitionError("saga(steps=...) are for a plan: pass planner= too")
    return None


@asynccontextmanager
async def _saga(
    scope: WorkflowScope, planning: Planning | None, *, inherits: bool
) -> AsyncIterator[None]:
    block, token = _enter(scope, planning, inherits=inherits)
    try:
        yield
    except BaseException as error:
        if _is_undone(scope, block, error):
            await take_back(scope, block.effects, all_of_them=True)
        _leave(scope, block, token)
        raise
    _leave(scope, block, token)


def saga_sync(
    *,
    goal: str | None = None,
    planner: Step[[Any], Decision[Any]] | None = None,
    steps: Sequence[Step[..., Any]] = (),
    inherits: bool = False,
) -> AbstractContextManager[None]:
    """A block whose effects are taken back, the last first, when an exception leaves it; see
    :func:`pgflow.effects.saga`.
    """
    scope, _ = sync_scope("pgflow.sync.saga()", "pgflow.effects.saga()")
    return _sync_saga(scope, _planning_of(planner, goal, steps), inherits=inherits)


@contextmanager
def _sync_saga(
    scope: WorkflowScope, planning: Planning | None, *, inherits: bool
) -> Iterator[None]:
    block, token = _enter(scope, planning, inherits=inherits)
    try:
        yield
    except BaseException as error:
        if _is_undone(scope, block, error):
            take_back_sync(scope, block.effects, all_of_them=True)
        _leave(scope, block, token)
        raise
    _leave(scope, block, token)


def _enter(
    scope: WorkflowScope, planning: Planning | None, *, inherits: bool
) -> tuple[Block, Token[Block | None]]:
    block = Block(innermost.get(), planning)
    if inherits:
        own = [enlisted for enlisted in scope.effects if not _is_inherited(enlisted[1])]
        block.effects = [enlisted for enlisted in scope.effects if _is_inherited(enlisted[1])]
        scope.effects = own
    scope.blocks = [*scope.blocks, block]
    return block, innermost.set(block)


def _is_inherited(call: EffectCall) -> bool:
    """Return True if an earlier generation of the run did it."""
    return call.number == 0 and not call.is_of_child


def _is_undone(scope: WorkflowScope, block: Block, error: BaseException) -> bool:
    """Return True if what was done in a block is to be taken back for what leaves it. No generation
    may follow if that was inherited: the next one would inherit it again.
    """
    if isinstance(error, ContinueAsNew):
        _bind(block)
    if isinstance(error, _NOT_AN_END):
        return False
    if any(_is_inherited(call) for _, call in block.effects):
        scope.is_last = True
    return True


def _leave(scope: WorkflowScope, block: Block, token: Token[Block | None]) -> None:
    """Close a block, and hand its remaining effects on."""
    block.is_open = False
    scope.blocks = [other for other in scope.blocks if other is not block]
    with suppress(ValueError):
        # It is left in another task than it was entered in, whose context has its own innermost.
        innermost.reset(token)
    around = block.around
    while around is not None and not around.is_open:
        around = around.around
    (scope.effects if around is None else around.effects).extend(block.effects)


def _bind(block: Block) -> None:
    """The block goes on in what is around it: all that was done in it must be taken back, by a
    person if nothing else does.
    """
    for _, call in block.effects:
        call.is_bound = True


def _adopt(scope: WorkflowScope) -> None:
    """The run ends, and with it the blocks that its tasks have open:
    what was done in them is the run's now.
    """
    if not scope.blocks:
        return
    blocks, scope.blocks = scope.blocks, ()
    for block in reversed(blocks):
        block.is_open = False
        _bind(block)
        scope.effects.extend(block.effects)
        block.effects.clear()
    scope.effects.sort(key=lambda enlisted: enlisted[1].number or enlisted[1].of_call)


def hand_on(scope: WorkflowScope, end: ContinueAsNew) -> None:
    """Set the effects that the next generation compensates if it fails: those of this one and its
    children, beside the inherited ones.
    """
    _adopt(scope)
    own = [
        (effect, call)
        for effect, call in scope.effects
        if not scope.execution.parts[Ledger].is_foreign(call)
    ]
    left = [(effect, call) for effect, call in own if call.is_bound or effect.has_compensation]
    end.saga = [(call, effect.code) for effect, call in left if call.number]
    end.of_children = [call.key for _, call in left if call.is_of_child]


def is_done(call: EffectCall) -> bool:
    """Return True if there is something to take back."""
    return call.was_done


def _undoing_all(
    scope: WorkflowScope, effects: list[Enlisted], *, all_of_them: bool
) -> Iterator[Call]:
    """Yield each effect to take back, the last one first, and then the calls that compensate it.
    Each is over before the next is issued. Tasks that go on meanwhile may add to the effects.
    """
    while effects:
        effect, call = effects.pop()
        if all_of_them or call.is_bound or effect.has_compensation:
            yield call
            if is_done(call):
                yield from _undoing(scope, effect, call)


async def take_back(scope: WorkflowScope, effects: list[Enlisted], *, all_of_them: bool) -> None:
    """Compensate effects, the last first. A cancellation meanwhile is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    for call in _undoing_all(scope, effects, all_of_them=all_of_them):
        cancelled = await _closed(scope, call) or cancelled
    if cancelled is not None:
        raise cancelled


def _undoing(scope: WorkflowScope, effect: Reversible, call: EffectCall) -> Iterator[Call]:
    """Yield the calls that compensate an effect. Each is over before the next is issued."""
    plan = effect if isinstance(effect, Planned) and call.stage == EffectStage.CONFIRMED else None
    if not scope.execution.parts[Ledger].may_take_back(
        call, planner=None if plan is None else plan.planner
    ):
        return
    if plan is not None:
        yield from plan.undo(scope, call)
    else:
        yield effect.issue_compensation(scope, call)


def _watch(scope: WorkflowScope, call: Call) -> Any:
    """Return a waiter for the end of a call. An effect ends when it is closed, even if its waiter
    is cancelled.
    """
    return (
        scope.execution.parts[Ledger].watch(call) if isinstance(call, EffectCall) else call.waiter
    )


async def _closed(scope: WorkflowScope, call: Call) -> asyncio.CancelledError | None:
    cancelled = None
    waiter: Any = _watch(scope, call)
    while waiter is not None and not waiter.done():
        try:
            await asyncio.shield(waiter)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001 - the caller reads its outcome
            break
    return cancelled


def take_back_sync(scope: WorkflowScope, effects: list[Enlisted], *, all_of_them: bool) -> None:
    """The same in a thread."""
    cancelled: asyncio.CancelledError | None = None
    for call in _undoing_all(scope, effects, all_of_them=all_of_them):
        cancelled = _closed_sync(scope, call) or cancelled
    if cancelled is not None:
        raise cancelled


def _closed_sync(scope: WorkflowScope, call: Call) -> asyncio.CancelledError | None:
    cancelled = None
    waiter: Waiter | None = _watch(scope, call)
    assert scope.thread is not None
    while waiter is not None and not waiter.done():
        try:
            scope.thread.block(Call(call.number, call.name, waiter))
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def _checked(scope: WorkflowScope, value: Any) -> Any:
    """A result; one that cannot be stored is a failure
    while what was done can still be taken back.
    """
    text = scope.execution.end.check_result(value)
    if scope.claim.leaves_saga:
        _check_left(scope, text)
    return value


def _check_left(scope: WorkflowScope, result: str) -> None:
    """Refuse to hand more to the parent than a unit of its journal can hold: the run could never
    continue.
    """
    entries = [
        _stored(scope, effect.entry_of(scope, call))[:6]
        for effect, call in scope.effects
        if is_done(call)
    ]
    size = sum(len(json.dumps(entry, ensure_ascii=False).encode()) + 2 for entry in entries) + len(
        result.encode()
    )
    if size > MAX_BYTES - _ROOM_BYTES:
        raise NotStorable(
            f"what workflow {scope.claim.workflow} did is {size:,} bytes of JSON with its "
            "result, and its parent, which is given it to take it back, can hold 1 MiB: let its "
            f"{len(entries)} effects take and return references, or split it into several "
            "children"
        )


def _stored(scope: WorkflowScope, entry: SagaEntry) -> SagaEntry:
    """An effect as its parent is given it."""
    what = f"effect {entry.name}"
    result = (
        entry.result if entry.result is None else scope.execution.values.sealed(entry.result, what)
    )
    return entry._replace(request=scope.execution.values.sealed(entry.request, what), result=result)


def _has_failed(scope: WorkflowScope, error: BaseException) -> bool:
    """Return True if what leaves a run is a failure, for which its effects are taken back."""
    if isinstance(error, ContinueAsNew):
        hand_on(scope, error)
    if isinstance(error, _NOT_AN_END):
        return False
    _adopt(scope)
    return True


async def guarded(scope: WorkflowScope, main: Callable[..., Any], *args: Any) -> Any:
    """Run a workflow's function. If it raises, compensate its effects."""
    try:
        value = await main(*args)
        return _checked(scope, value) if scope.effects else value
    except BaseException as error:
        if _has_failed(scope, error):
            await take_back(scope, scope.effects, all_of_them=False)
        raise


def guarded_sync(scope: WorkflowScope, main: Callable[..., Any], *args: Any) -> Any:
    """The same in a thread."""
    try:
        value = main(*args)
        return _checked(scope, value) if scope.effects else value
    except BaseException as error:
        if _has_failed(scope, error):
            take_back_sync(scope, scope.effects, all_of_them=False)
        raise
