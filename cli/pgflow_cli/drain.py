"""A worker for cron: it takes what is ready, and ends when there is nothing more that it could take.

Idle means: no run here, nothing that could be claimed, nothing due, and no lease of a worker that may be
dead. A worker counts as possibly dead until its beat has moved since we first saw it: one that is alive shows
it within a beat, one that is not is found dead by the heart, and its runs become ready. So the runs of a
runner that was killed are taken up by the next tick, and a busy fleet elsewhere does not keep this one.

It needs no session: no LISTEN, no prepared statements, no session locks. So it works through any pooler.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString

from pgflow._calls import replay as replay_calls
from pgflow._calls import wake as wake_calls
from pgflow._io import Query
from pgflow._io.connect import make_pool, make_pool_async
from pgflow.app import AsyncApp
from pgflow.app._base import refuse_schedules
from pgflow.options import Definitions, WorkerOptions
from pgflow.providers import AsyncPsycopgProvider, PsycopgProvider
from pgflow.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from pgflow.units import Claim
    from pgflow_cli.serving import Stop

LOOK_SECONDS = 0.05
TRANSACTION_CONNECTIONS = 4
SILENCE_LOOK_SECONDS = 0.25


class Drainer(Worker):
    """A worker that takes no more than so many runs, and remembers which.

    Attributes:
        taken: The chains of the runs that it has taken.
        dry: Whether the last claim that asked for something was answered with less.
    """

    def __init__(self, *arguments: Any, max_runs: int | None = None) -> None:
        super().__init__(*arguments)
        self.max_runs = max_runs
        self.taken: set[int] = set()
        self.dry = False

    @property
    def is_full(self) -> bool:
        """Whether it has taken as many runs as it may."""
        return self.max_runs is not None and len(self.taken) >= self.max_runs

    @property
    def is_busy(self) -> bool:
        """Whether it holds runs, or is about to."""
        return bool(self.executions) or self._claiming > 0

    def _free(self) -> int:
        free = super()._free()
        return free if self.max_runs is None else min(free, self.max_runs - len(self.taken) - self._claiming)

    def claim_request(self, ending: int) -> tuple[int, list[int], int, bool] | None:
        """A claim that rides with a commit may ask for more than is left: where there is a limit, none does."""
        return None if self.max_runs is not None else super().claim_request(ending)

    def claims_arrived(self, claims: list[Claim], asked: int) -> None:
        """Remembers what was taken."""
        self.taken.update(claim.chain_id for claim in claims)
        self.dry = len(claims) < asked
        super().claims_arrived(claims, asked)

    async def look_once_more(self) -> float | None:
        """Sweeps, then claims: answers in how many seconds the next timer is due, and leaves `dry` true if there is nothing to do."""
        polled = await self._control.ask(wake_calls.poll())
        self.woken(polled.lanes, polled.mail)
        if polled.ended:
            self.runs_ended(polled.ended)
        self.dry = polled.busy == 0 and not polled.lanes
        count = self._free()
        if self.dry and count > 0:
            await self._claim(count)
        return polled.next_due_seconds


@dataclass
class Silence:
    """Which workers may be dead: those whose beat has not moved since it was first seen."""

    first: dict[int, int | None] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)

    def look(self, rows: list[tuple[int, int | None]]) -> bool:
        """Whether one of these (worker, beat) may be dead."""
        for worker_id, beat in rows:
            if beat is not None and self.first.setdefault(worker_id, beat) != beat:
                self.alive.add(worker_id)
        return any(worker_id not in self.alive for worker_id, _ in rows)


_HOLDERS = """
select h.worker_id, w.beat
from (
  select distinct worker_id from pgflow.runs
  where status = 'running' and queue = any(%s::text[]) and workflow = any(%s::text[]) and worker_id <> %s::int
) h left join pgflow.workers w on w.worker_id = h.worker_id
"""

_LEFT = """
select exists (
  select from pgflow.runs r join pgflow.queues q on q.queue = r.queue
  where r.status = 'queued' and r.queue = any(%s::text[]) and r.workflow = any(%s::text[]) and q.paused_at is null
)
"""


class Drain:
    """Drains the queues of an app.

    Attributes:
        drainer: The worker that does it.
    """

    def __init__(self, app: AsyncApp, drainer: Drainer, linger_seconds: float) -> None:
        self.drainer = drainer
        self._app = app
        self._linger = linger_seconds
        self._silence = Silence()

    async def until_idle(self) -> str:
        """Works until there is nothing to do, or as many runs were taken as may be: answers ``idle`` or ``full``."""
        while True:
            if not self.drainer.is_busy and (ending := await self._is_over()):
                return ending
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_over(self) -> str | None:
        if self.drainer.is_full:
            return "full"
        # In this order: what a worker that is found dead in between has held is ready by the time of the claim.
        may_be_dead = await self._someone_may_be_dead()
        next_due = await self.drainer.look_once_more()
        if not self.drainer.dry or self.drainer.is_busy:
            return None
        if may_be_dead:
            await asyncio.sleep(SILENCE_LOOK_SECONDS)
            return None
        return None if next_due is not None and next_due <= self._linger else "idle"

    async def _someone_may_be_dead(self) -> bool:
        holders = await self._ask(_HOLDERS, self.drainer.worker_id)
        return self._silence.look([(row[0], row[1]) for row in holders])

    async def work_left(self) -> bool:
        """Whether there is something ready."""
        return bool((await self._ask(_LEFT))[0][0])

    async def next_wake_at(self) -> datetime | None:
        """When the next timer is due."""
        return (await self._app.ask(replay_calls.idle_state())).next_due_at

    async def _ask(self, sql: LiteralString, *params: Any) -> list[Any]:
        mine = (list(self.drainer.options.queues), list(self.drainer.definitions.workflows))
        return await self._app.ask(Query(sql, (*mine, *params), lambda rows: rows))


@asynccontextmanager
async def draining(app: AsyncApp, options: WorkerOptions, max_runs: int | None, linger_seconds: float) -> AsyncIterator[Drain]:
    """A worker of an open app at work, and what is needed to see when it is done; at the end it hands back what it holds."""
    async with AsyncExitStack() as stack:
        connect = app._connect
        assert connect is not None, "the app is open"
        refuse_schedules(app.definitions.workflows.values(), options.queues)
        sync_pool = make_pool(connect, "pgflow step", TRANSACTION_CONNECTIONS)
        async_pool = make_pool_async(connect, "pgflow step", TRANSACTION_CONNECTIONS)
        sync_pool.open(wait=False)
        stack.callback(sync_pool.close)
        await async_pool.open(wait=False)
        stack.push_async_callback(async_pool.close)
        brought = app.definitions
        definitions = Definitions(
            brought.workflows,
            brought.errors,
            [*brought.providers, PsycopgProvider(sync_pool), AsyncPsycopgProvider(async_pool)],
            brought.interceptors,
            brought.replacements,
        )
        drainer = Drainer(connect, definitions, options, max_runs=max_runs)
        await drainer.start()
        stack.push_async_callback(drainer.stop)
        yield Drain(app, drainer, linger_seconds)


# ---------------------------------------------------------------- once


@dataclass(frozen=True)
class Limits:
    """When to end, in seconds; how many runs to take at most."""

    runtime: float
    grace: float
    linger: float
    runs: int | None


@dataclass(frozen=True)
class Drained:
    """How a drain ended.

    Attributes:
        outcome: ``idle``, ``full``, ``out of time``, ``stopped`` by a signal, or ``broken``.
        seconds: How long it took.
        taken: The chains of the runs that were taken.
        work_left: Whether something is ready.
        next_wake_at: When the next timer is due.
    """

    outcome: str
    seconds: float
    taken: set[int]
    work_left: bool
    next_wake_at: datetime | None


def drain_once(app: AsyncApp, options: WorkerOptions, limits: Limits, stop: Stop) -> Drained:
    """Drains the queues of an app until there is nothing to do, or a limit or a signal ends it."""
    return asyncio.run(_drain(app, options, limits, stop))


async def _drain(app: AsyncApp, options: WorkerOptions, limits: Limits, stop: Stop) -> Drained:
    began = time.monotonic()
    asked = stop.event()
    async with app:
        async with draining(app, options, limits.runs, limits.linger) as drain:
            outcome = await _until(drain, asked, limits.runtime - limits.grace)
        left, next_wake_at = await drain.work_left(), await drain.next_wake_at()
    return Drained(outcome, time.monotonic() - began, drain.drainer.taken, left, next_wake_at)


async def _until(drain: Drain, asked: asyncio.Event, seconds: float) -> str:
    """Lets it work until it is idle or full, is asked to stop, runs out of time, or breaks."""
    waits = {
        asyncio.ensure_future(drain.until_idle()): None,
        asyncio.ensure_future(asked.wait()): "stopped",
        asyncio.ensure_future(drain.drainer.failed.wait()): "broken",
    }
    done, pending = await asyncio.wait(waits, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
    for wait in pending:
        wait.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    if not done:
        return "out of time"
    first = done.pop()
    return waits[first] or str(first.result())
