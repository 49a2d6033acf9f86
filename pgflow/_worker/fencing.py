"""Turns of transactional steps: one step of a run fences and commits at a time, in whichever thread
its body runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from contextlib import asynccontextmanager
from typing import Any

from pgflow._db.query import Query
from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._worker.acknowledged import Acknowledged
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.runs import Runs
from pgflow._worker.suspects import Suspects
from pgflow._worker.threads import Answer, Posts


class Turns:
    """The turns of all runs. Waiters check again whenever something of their run has changed.

    Attributes:
        waiting: The waiters of each run.

    Args:
        runs: The runs of this worker.
        suspects: Cleared by the durable result of a body.
        acknowledged: Notes durable units.
        control: Runs queries outside of the step's transaction.
    """

    def __init__(
        self, runs: Runs, suspects: Suspects, acknowledged: Acknowledged, control: WorkerConnection
    ) -> None:
        self._runs = runs
        self._suspects = suspects
        self._acknowledged = acknowledged
        self._control = control
        self._loop = asyncio.get_running_loop()
        self.waiting: dict[Execution, list[asyncio.Future[None]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        """Tasks that threads wait for; a loop keeps no reference to its tasks."""
        runs.when_left(self.changed)

    @staticmethod
    def is_free(execution: Execution) -> bool:
        """Return True if a step of the run may fence at once, or the run is over."""
        return execution.over or execution.flushing.may_fence

    async def wait_for(self, execution: Execution) -> None:
        """Wait until a step of the run may fence."""
        while not self.is_free(execution):
            turn = self._loop.create_future()
            self.waiting.setdefault(execution, []).append(turn)
            await turn

    def changed(self, execution: Execution) -> None:
        """Wake the waiters of a run, so that they check again."""
        for turn in self.waiting.pop(execution, ()):
            if not turn.done():
                turn.set_result(None)

    def fenced(self, execution: Execution, seq: int) -> None:
        """Note that a transaction of the run is committed: its units up to this seq are durable."""
        self._suspects.got_on(execution)
        execution.flushing.acknowledged_at(time.monotonic())
        self._acknowledged.note(
            execution.run_id, execution.claim.token, seq, execution.claim.key, has_ended=False
        )

    def go_on(self, execution: Execution) -> None:
        """Release the outcome of a finished transaction and give the next one its turn."""
        if not execution.over:
            self._runs.guard(execution, execution.advance)
        self.changed(execution)

    async def ask_elsewhere(self, query: Query[Any]) -> Any:
        """Run a query on the worker's connection until there is an answer."""
        return await self._control.insist(query)

    def answer(self, coroutine: Coroutine[Any, Any, Any], answer: Answer) -> None:
        """Run a coroutine and pass its result to a waiting thread."""
        task = self._loop.create_task(_answered(coroutine, answer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)


async def _answered(coroutine: Coroutine[Any, Any, Any], answer: Answer) -> None:
    try:
        value = await coroutine
    except asyncio.CancelledError as error:
        # The thread itself is not cancelled: to it this is an error like others.
        answer.fail(FutureCancelled(*error.args))
        raise
    except Exception as error:  # noqa: BLE001 - raised in the thread
        answer.fail(error)
    else:
        answer.give(value)


class FenceQueue:
    """Turns of a transactional attempt (`pgflow._transactions.protocol.Fencing`), for a body on the
    worker's loop.
    """

    def __init__(self, turns: Turns, execution: Execution) -> None:
        self._turns = turns
        self._execution = execution
        self._limit: asyncio.Timeout | None = None
        self._over = False

    @asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """Wrap a body in a thread. Once the block ends, by a time-out or otherwise, the thread may
        no longer fence.
        """
        try:
            async with asyncio.timeout(None) as self._limit:
                yield
        finally:
            self._over = True

    def start_clock(self, seconds: float) -> None:
        """Start the time-out of the body in the thread. It ends when the body takes its turn."""
        if self._limit is not None and not self._over:
            self._limit.reschedule(asyncio.get_running_loop().time() + seconds)

    async def take_turn(self, call: StepCall, text: str) -> Flush | None:
        if self._over:
            return None
        if self._limit is not None:
            self._limit.reschedule(None)
        await self._turns.wait_for(self._execution)
        return self._execution.begin_fence(call, text)

    def take_turn_for(self, call: StepCall, text: str, answer: Answer) -> None:
        """Take a turn for a thread, without a task of the loop if the turn is free."""
        if not self._over and not self._turns.is_free(self._execution):
            self._turns.answer(self.take_turn(call, text), answer)
            return
        if self._limit is not None and not self._over:
            self._limit.reschedule(None)
        try:
            answer.give(None if self._over else self._execution.begin_fence(call, text))
        except BaseException as error:
            answer.fail(error)
            raise

    async def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        self.turn_ended(call, flush, committed, at_us)

    def turn_ended(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        """End the turn and schedule what follows it."""
        self._execution.flushing.end_fence(call, flush, committed=committed, at_us=at_us)
        if committed:
            self._turns.fenced(self._execution, flush.last_seq)
        # In the next turn of the loop, once the connection is back at its provider.
        asyncio.get_running_loop().call_soon(self._turns.go_on, self._execution)

    async def ask_elsewhere(self, query: Query[Any]) -> Any:
        return await self._turns.ask_elsewhere(query)

    async def pause(self, tries: int) -> None:
        await asyncio.sleep(min(0.01 * 2**tries, 0.5))


class FenceQueueFromThread:
    """Turns for a body in a thread: each move runs on the worker's loop."""

    def __init__(self, turns: Turns, queue: FenceQueue, posts: Posts) -> None:
        self._turns = turns
        self._queue = queue
        self._posts = posts
        self._committed: tuple[StepCall, Flush, bool, int] | None = None

    def take_turn(self, call: StepCall, text: str) -> Flush | None:
        flush: Flush | None = self._posts.ask(self._queue.take_turn_for, call, text)
        return flush

    def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        if committed:  # reported at the end of the body, once the connection is back
            self._committed = call, flush, committed, at_us
        else:
            self._posts.post(self._queue.turn_ended, call, flush, committed, at_us)

    def tell_end(self) -> None:
        """Report a turn that ended with a commit to the loop, after the connection was returned."""
        if self._committed is not None:
            self._posts.post(self._queue.turn_ended, *self._committed)

    def ask_elsewhere(self, query: Query[Any]) -> Any:
        return self._posts.ask(
            lambda answer: self._turns.answer(self._turns.ask_elsewhere(query), answer)
        )

    def pause(self, tries: int) -> None:
        self._posts.ask(lambda answer: self._turns.answer(self._queue.pause(tries), answer))
