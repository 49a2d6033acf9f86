"""The turns of a run's transactional steps: one at a time fences and commits, whichever thread its body is in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._io import Query


class TurnsHost(Protocol):
    """What turns need of the worker."""

    async def turn_of(self, execution: Execution) -> None:
        """Waits until a step of the run may fence, or its run is over."""

    def go_on(self, execution: Execution) -> None:
        """Somebody's turn is over: releases what was decided, and lets the next one have it; never raises."""

    def got_on(self, execution: Execution) -> None:
        """What a body of the run came to is durable."""

    def noted(self, execution: Execution, seq: int, *, has_ended: bool) -> None:
        """Units of the run up to this seq were acknowledged."""

    async def ask(self, query: Query[Any]) -> Any:
        """Runs a query on one of the worker's connections, once there is one."""


class Turns:
    """What a transactional attempt needs of the engine (`pgflow.transactions.Turns`), for a body on the worker's loop."""

    def __init__(self, host: TurnsHost, execution: Execution) -> None:
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

    async def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        self._execution.end_fence(call, flush, committed=committed, at_us=at_us)
        if committed:
            self._host.got_on(self._execution)
            self._host.noted(self._execution, flush.last_seq, has_ended=False)
        asyncio.get_running_loop().call_soon(self._host.go_on, self._execution)  # once the connection is back

    async def ask_elsewhere(self, query: Query[Any]) -> Any:
        return await self._host.ask(query)

    async def pause(self, tries: int) -> None:
        await asyncio.sleep(min(0.01 * 2**tries, 0.5))


class TurnsFromThread:
    """The same for a body in a thread: each move is made on the worker's loop."""

    def __init__(self, turns: Turns, loop: asyncio.AbstractEventLoop) -> None:
        self._turns = turns
        self._loop = loop

    def take_turn(self, call: StepCall, text: str) -> Flush | None:
        return asyncio.run_coroutine_threadsafe(self._turns.take_turn(call, text), self._loop).result()

    def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        asyncio.run_coroutine_threadsafe(self._turns.end_turn(call, flush, committed, at_us), self._loop).result()

    def ask_elsewhere(self, query: Query[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(self._turns.ask_elsewhere(query), self._loop).result()

    def pause(self, tries: int) -> None:
        asyncio.run_coroutine_threadsafe(self._turns.pause(tries), self._loop).result()
