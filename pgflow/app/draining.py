"""A worker for cron: it takes what is ready,
and ends when there is nothing more that it could take.

It fires schedules as any worker does, and whatever is due of them before it ends.

Idle means: no run here, nothing that could be claimed, nothing due, and no lease of a worker that
may be dead. A worker counts as possibly dead until its beat has moved since we first saw it: one
that is alive shows it within a beat, one that is not is found dead by the heart, and its runs
become ready. So the runs of a runner that was killed are taken up by the next tick, and a busy
fleet elsewhere does not keep this one.

It needs no session: no LISTEN, no prepared statements, no session locks.
So it works through any pooler.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pgflow import inspect
from pgflow.errors import WorkerFailed

if TYPE_CHECKING:
    from pgflow.app import AsyncApp, Worker

LOOK_SECONDS = 0.05
SILENCE_LOOK_SECONDS = 0.25
SPENDING_LOOK_SECONDS = 0.5


@dataclass
class Silence:
    """Silence of workers, which may be dead: their beat has not moved since it was first seen."""

    first: dict[int, int | None] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)

    def look(self, holders: list[inspect.Holder]) -> bool:
        """Return True if one of these workers may be dead."""
        for holder in holders:
            beat = holder.beat
            if beat is not None and self.first.setdefault(holder.worker_id, beat) != beat:
                self.alive.add(holder.worker_id)
        return any(holder.worker_id not in self.alive for holder in holders)


@dataclass
class Drain:
    """Drains the queues of an app with a worker of it.

    Attributes:
        worker: The worker that does it.
    """

    app: AsyncApp
    worker: Worker
    limits: Limits
    _silence: Silence = field(default_factory=Silence)
    _counted_at: float = field(default_factory=time.monotonic)

    async def until_idle(self) -> str:
        """Works until there is nothing to do, or as many runs were taken or as much was spent as
        may be: answers ``idle`` or ``full``.
        """
        while True:
            await self._bound_spending()
            if not self.worker.is_busy and (ending := await self._is_over()):
                return ending
            await asyncio.sleep(LOOK_SECONDS)

    async def _bound_spending(self) -> None:
        """Takes no further run once those that were taken have spent the budget."""
        tally, limits = self.worker.options.tally, self.limits
        is_due = time.monotonic() - self._counted_at >= SPENDING_LOOK_SECONDS
        if not limits.budget or tally is None or tally.is_full or not tally.chains or not is_due:
            return
        self._counted_at = time.monotonic()
        question = inspect.sum_taken(sorted(tally.chains), limits.began_at)
        spent = await inspect.ask_async(self.app, question)
        if any(spent.get(unit, 0) >= most for unit, most in limits.budget.items()):
            tally.most = len(tally.chains)

    async def _is_over(self) -> str | None:
        tally = self.worker.options.tally
        if tally is not None and tally.is_full:
            return "full"
        # In this order: what a worker that is found dead in between has held
        # is ready by the time of the claim.
        may_be_dead = await self._someone_may_be_dead()
        swept = await self.worker.sweep()
        if not swept.was_dry or self.worker.is_busy:
            return None
        if may_be_dead:
            await asyncio.sleep(SILENCE_LOOK_SECONDS)
            return None
        due = swept.next_due_seconds
        return None if due is not None and due <= self.limits.linger else "idle"

    async def _someone_may_be_dead(self) -> bool:
        """Return True if a worker that has runs of ours may be dead."""
        options = self.worker.options
        mine = list(options.queues), list(self.worker.definitions.workflows)
        holders = inspect.list_holders(*mine, but=self.worker.worker_id)
        return self._silence.look(await inspect.ask_async(self.app, holders))


# ---------------------------------------------------------------- once


@dataclass(frozen=True)
class Limits:
    """Limits of a drain, in seconds.

    Attributes:
        runtime: Longest time that it takes, the grace included.
        grace: Time for which running steps may go on at the end.
        linger: Time for which it waits for what is due so soon.
        budget: Amounts by unit from which on no further run is taken.
        began_at: Time since which charges count, on the database's clock.
    """

    runtime: float
    grace: float
    linger: float
    budget: Mapping[str, Decimal]
    began_at: datetime


@dataclass(frozen=True)
class Drained:
    """End of a drain.

    Attributes:
        outcome: ``idle``, ``full``, ``out of time``, ``stopped`` by a signal, or ``broken``.
        seconds: Time that it took.
        taken: The chains of the runs that were taken.
        work_left: True if something is ready.
        next_wake_at: Time at which the next timer is due.
    """

    outcome: str
    seconds: float
    taken: set[int]
    work_left: bool
    next_wake_at: datetime | None


async def drain_once(
    app: AsyncApp, settings: Mapping[str, Any], limits: Limits, stop: Callable[[], asyncio.Event]
) -> Drained:
    """Drains the queues of an app until there is nothing to do, or a limit or a signal ends it.

    Args:
        app: The app.
        settings: Options of the worker, as `AsyncApp.worker` takes them, with a tally.
        limits: The limits.
        stop: Maker of the event that is set once the drain is to end.
    """
    began = time.monotonic()
    asked = stop()
    outcome = ""
    async with app:
        try:
            async with app.worker(**settings) as worker:
                outcome = "broken"
                drain = Drain(app, worker, limits)
                outcome = await _until(drain, asked, limits.runtime - limits.grace)
        except WorkerFailed:
            if not outcome:  # it has not started
                raise
        mine = list(settings["queues"]), list(app.definitions.workflows)
        left = await inspect.ask_async(app, inspect.has_queued(*mine))
        next_wake_at = (await inspect.ask_async(app, inspect.read_idleness())).next_due_at
    seconds, taken = time.monotonic() - began, settings["tally"].chains
    return Drained(outcome, seconds, taken, left, next_wake_at)


async def _until(drain: Drain, asked: asyncio.Event, seconds: float) -> str:
    """Lets it work until it is idle or full, is asked to stop, runs out of time, or breaks."""
    waits = {
        asyncio.ensure_future(drain.until_idle()): None,
        asyncio.ensure_future(asked.wait()): "stopped",
        asyncio.ensure_future(drain.worker.failed.wait()): "broken",
    }
    done, pending = await asyncio.wait(
        waits, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED
    )
    for wait in pending:
        wait.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    if not done:
        return "out of time"
    first = done.pop()
    return waits[first] or str(first.result())
