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

from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import lines as line_calls
from pgflow._db.calls.claim import Lane
from pgflow._db.query import Query
from pgflow._worker.context import WorkerContext
from pgflow._worker.rounds import Rounds

log = logging.getLogger("pgflow")

# Bounds how long a lane waits that polls miss: one committed after a lane with a higher number.
LANES_EVERY_SECONDS = 5.0


class Lanes(Rounds):
    """Keeps the lanes that this worker serves. It requests claims when one of them has work.

    Attributes:
        served: The lanes as last read, by number.
    """

    name = "the loop of lanes"
    work = "look for lanes"

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(
            context, retry_seconds=LANES_EVERY_SECONDS, first_seconds=LANES_EVERY_SECONDS
        )
        self.served: dict[int, Lane] = {}
        self._workflows = context.definitions.workflows
        self._queues = context.options.queues
        self._want_claims = context.wanted.claims.set
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

    async def round(self) -> float:
        """Read the lanes, when a new one is reported and periodically."""
        await self.look(self._control.ask)
        return LANES_EVERY_SECONDS

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


class QueueRates(Rounds):
    """Claims when a rate lets a run start. It keeps whether a queue has a rate, and whether a claim
    came short.

    Attributes:
        is_limited: True if a queue has a limit.
    """

    name = "the loop of rates"
    work = "look for rates"

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context, retry_seconds=RATES_EVERY_SECONDS)
        self._queues = context.options.queues
        self._want_claims = context.wanted.claims.set
        self._has_rate = False
        self.is_limited = False

    def claim_was_short(self) -> None:
        """Note that a claim found less than it asked for."""
        if self._has_rate:
            self._wanted.set()

    async def round(self) -> float:
        """Ask when the next run may start, and claim then."""
        turns = await self._control.ask(line_calls.next_turn(self._queues))
        seconds, self.is_limited = turns.seconds, turns.is_limited
        self._has_rate = seconds is not None
        if seconds is not None and seconds < RATES_EVERY_SECONDS:
            await asyncio.sleep(seconds)
            self._wanted.clear()
            self._want_claims()
        return RATES_EVERY_SECONDS
