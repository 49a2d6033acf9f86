"""The lanes that a worker serves, and when the rules of their queues let the next run start.

A start may create a lane at any time, of a version that no run was pinned to before. So the worker
reads the lanes when it hears of a new one, and periodically, because a lane may be committed after
one with a higher number.

The database counts what starts (``sql/runs/lines.sql``). A rate may cause a claim to find less than
it asked for, and no notification follows when the rate allows the next run. So after such a claim
a loop asks for that time, and claims then. A worker whose queues have no rate only checks whether
one was set. A limit admits the next run when one ends: with a limit on a queue, each end here
brings a claim with it, even after a claim that came short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import psycopg

from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import lines as line_calls
from pgflow._db.calls.claim import Lane
from pgflow._db.query import Query
from pgflow._worker.context import WorkerContext
from pgflow._worker.parts import Loop, wait_for
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

# Bounds how long a lane waits that polls miss: one committed after a lane with a higher number.
LANES_EVERY_SECONDS = 5.0


class Lanes(Loop):
    """Keeps the lanes that this worker serves. It requests claims when one of them has work.

    Attributes:
        served: The lanes as last read, by number.
    """

    name = "the loop of lanes"

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context.tasks)
        self.served: dict[int, Lane] = {}
        self._control = context.control
        self._workflows = context.definitions.workflows
        self._queues = context.options.queues
        self._want_claims = context.wanted.claims.set
        self._wanted = asyncio.Event()
        self._newest = 0
        self._foreign: set[int] = set()

    async def look(self, ask: Callable[[Query[list[Lane]]], Awaitable[list[Lane]]]) -> None:
        """Read the lanes to serve.

        Args:
            ask: Runs the query: once, or until there is an answer.
        """
        versions = [workflow.version for workflow in self._workflows.values()]
        lanes = await ask(claim_calls.serve_lanes(self._queues, list(self._workflows), versions))
        is_new = any(lane.lane_id not in self.served for lane in lanes)
        self.served = {lane.lane_id: lane for lane in lanes}
        if is_new:
            self._want_claims()

    async def loop(self) -> None:
        """Read the lanes when a new one is reported, and periodically."""
        while True:
            await wait_for(self._wanted, LANES_EVERY_SECONDS)
            # Before the look: a lane reported during it is looked for in the next round.
            self._wanted.clear()
            try:
                await self.look(self._control.ask)
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot look for lanes: %s", redacted(error))

    def have_work(self, lanes: Iterable[int]) -> None:
        """Claim if a served lane has ready runs. Read the lanes again if one is unknown: it may be
        one to serve.
        """
        for lane in lanes:
            if lane in self.served:
                self._want_claims()
            elif lane not in self._foreign:
                self._foreign.add(lane)
                self._wanted.set()

    def polled(self, newest: int | None) -> None:
        """Read the lanes again if the newest one has a higher number than before."""
        if (newest or 0) > self._newest:
            self._newest = newest or 0
            self._wanted.set()


RATES_EVERY_SECONDS = 15.0
"""Interval between checks for new rules of queues. Until then, polls find the runs."""


class QueueRates(Loop):
    """Claims when a rate lets a run start. It keeps whether a queue has a rate, and whether a claim
    came short.

    Attributes:
        is_limited: True if a queue has a limit.
    """

    name = "the loop of rates"

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context.tasks)
        self._control = context.control
        self._queues = context.options.queues
        self._want_claims = context.wanted.claims.set
        self._was_short = asyncio.Event()
        self._has_rate = False
        self.is_limited = False

    def claim_was_short(self) -> None:
        """Note that a claim found less than it asked for."""
        if self._has_rate:
            self._was_short.set()

    async def loop(self) -> None:
        """Ask when the next run may start, and claim then."""
        while True:
            try:
                await self._look()
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot look for rates: %s", redacted(error))
            await wait_for(self._was_short, RATES_EVERY_SECONDS)

    async def _look(self) -> None:
        self._was_short.clear()
        turns = await self._control.ask(line_calls.next_turn(self._queues))
        seconds, self.is_limited = turns.seconds, turns.is_limited
        self._has_rate = seconds is not None
        if seconds is not None and seconds < RATES_EVERY_SECONDS:
            await asyncio.sleep(seconds)
            self._was_short.clear()
            self._want_claims()
