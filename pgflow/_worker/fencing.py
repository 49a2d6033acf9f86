"""The turns of a run's transactional steps: one at a time fences and commits, whichever thread its body is in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from contextlib import asynccontextmanager
from typing import Any, Protocol

from pgflow._db.query import Query
from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._worker.threads import Answer, Posts


class FenceHost(Protocol):
    """Interface of the worker, as turns need it."""

    def has_turn(self, execution: Execution) -> bool:
        """Return True if a step of the run may fence at once, or its run is over."""

    async def turn_of(self, execution: Execution) -> None:
        """Waits until a step of the run may fence, or its run is over."""

    def go_on(self, execution: Execution) -> None:
        """Somebody's turn is over: releases what was decided, and lets the next one have it; never raises."""

    def got_on(self, execution: Execution) -> None:
        """Note that the result of a body of the run is durable."""

    def noted(self, execution: Execution, seq: int, *, has_ended: bool) -> None:
        """Units of the run up to this seq were acknowledged."""

    async def ask(self, query: Query[Any]) -> Any:
        """Runs a query on one of the worker's connections, once there is one."""


class FenceQueue:
    """Turns of a transactional attempt (`pgflow._transactions.protocol.Fencing`), for a body on the worker's loop."""

    def __init__(self, host: FenceHost, execution: Execution) -> None:
        self._host = host
        self._execution = execution
        self._limit: asyncio.Timeout | None = None
        self._over = False

    @asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """Around a body in a thread: once this is left, by its time-out or otherwise, the thread may no longer fence."""
        try:
            async with asyncio.timeout(None) as self._limit:
                yield
        finally:
            self._over = True

    def start_clock(self, seconds: float) -> None:
        """The body in the thread begins; until it takes its turn it must not last longer than this."""
        if self._limit is not None and not self._over:
            self._limit.reschedule(asyncio.get_running_loop().time() + seconds)

    async def take_turn(self, call: StepCall, text: str) -> Flush | None:
        if self._over:
            return None
        if self._limit is not None:
            self._limit.reschedule(None)
        await self._host.turn_of(self._execution)
        return self._execution.begin_fence(call, text)

    def take_turn_for(self, call: StepCall, text: str, answer: Answer) -> None:
        """The same for a thread, without a task of the loop where the turn is free."""
        if not self._over and not self._host.has_turn(self._execution):
            self.answer(self.take_turn(call, text), answer)
            return
        if self._limit is not None and not self._over:
            self._limit.reschedule(None)
        try:
            answer.give(None if self._over else self._execution.begin_fence(call, text))
        except BaseException as error:
            answer.fail(error)
            raise

    def answer(self, coroutine: Coroutine[Any, Any, Any], answer: Answer) -> None:
        """Has a thread told what a coroutine comes to."""
        task = asyncio.get_running_loop().create_task(_answered(coroutine, answer))
        _answering.add(task)
        task.add_done_callback(_answering.discard)

    async def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        self.turn_ended(call, flush, committed, at_us)

    def turn_ended(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        """The turn is over."""
        self._execution.end_fence(call, flush, committed=committed, at_us=at_us)
        if committed:
            self._host.got_on(self._execution)
            self._host.noted(self._execution, flush.last_seq, has_ended=False)
        asyncio.get_running_loop().call_soon(self._host.go_on, self._execution)  # once the connection is back

    async def ask_elsewhere(self, query: Query[Any]) -> Any:
        return await self._host.ask(query)

    async def pause(self, tries: int) -> None:
        await asyncio.sleep(min(0.01 * 2**tries, 0.5))


_answering: set[asyncio.Task[None]] = set()
"""Tasks that threads wait for; a loop keeps no reference to its tasks."""


async def _answered(coroutine: Coroutine[Any, Any, Any], answer: Answer) -> None:
    try:
        value = await coroutine
    except asyncio.CancelledError as error:
        answer.fail(FutureCancelled(*error.args))  # the thread itself is not cancelled: to it this is an error like others
        raise
    except Exception as error:  # noqa: BLE001 - raised in the thread
        answer.fail(error)
    else:
        answer.give(value)


class FenceQueueFromThread:
    """The same for a body in a thread: each move is made on the worker's loop."""

    def __init__(self, turns: FenceQueue, posts: Posts) -> None:
        self._turns = turns
        self._posts = posts
        self._committed: tuple[StepCall, Flush, bool, int] | None = None

    def take_turn(self, call: StepCall, text: str) -> Flush | None:
        flush: Flush | None = self._posts.ask(self._turns.take_turn_for, call, text)
        return flush

    def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        if committed:  # told with the end of the body, once the connection is back
            self._committed = call, flush, committed, at_us
        else:
            self._posts.post(self._turns.turn_ended, call, flush, committed, at_us)

    def tell_end(self) -> None:
        """Tells the loop of a turn that ended with a commit; the connection is back by now."""
        if self._committed is not None:
            self._posts.post(self._turns.turn_ended, *self._committed)

    def ask_elsewhere(self, query: Query[Any]) -> Any:
        return self._posts.ask(lambda answer: self._turns.answer(self._turns.ask_elsewhere(query), answer))

    def pause(self, tries: int) -> None:
        self._posts.ask(lambda answer: self._turns.answer(self._turns.pause(tries), answer))
