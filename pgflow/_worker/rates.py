"""Rates: counts the runs that this worker ends, and adds the counts to the database's.

An end costs a few additions in memory. The counts travel a few times a minute, in one statement,
however many runs have ended. A worker that is killed loses the counts of its last seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time

from pgflow._db.calls import rates as calls
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._worker.context import WorkerContext
from pgflow._worker.parts import Loop
from pgflow.errors import PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

COUNTS_EVERY_SECONDS = 15.0
IDLE_SECONDS = 60.0
"""Time after which a worker without ends calls all the same: it may be its turn to look at what is
queued.
"""
PLACES = {"completed": 0, "failed": 1, "cancelled": 2}
LEAST_BITS = 10
MOST_BUCKETS = 136


def bucket_of(microseconds: int) -> int:
    """Return the bucket of a duration: the first is below 1.28 ms, and each four double it."""
    least = max(microseconds, 1 << LEAST_BITS)
    bits = least.bit_length()
    return min((bits - 1 - LEAST_BITS) * 4 + (least >> (bits - 3) & 3), MOST_BUCKETS - 1)


class Rates(Loop):
    """Counts ends, and adds them to the database's counts. It keeps those not added yet."""

    name = "the loop of rates"

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context.tasks)
        self._control = context.control
        self._ended: dict[int, list[int]] = {}
        self._took = [0] * MOST_BUCKETS
        self._told_at = 0.0

    def ended(self, lane_id: int, status: str, microseconds: int) -> None:
        """Count the end of a run, and the time since its start."""
        place = PLACES.get(status)
        if place is None:
            return
        counts = self._ended.get(lane_id)
        if counts is None:
            counts = self._ended[lane_id] = [0, 0, 0]
        counts[place] += 1
        self._took[bucket_of(microseconds)] += 1

    async def loop(self) -> None:
        """Add the counts every few seconds."""
        while True:
            await asyncio.sleep(COUNTS_EVERY_SECONDS)
            if self._ended or time.monotonic() - self._told_at > IDLE_SECONDS:
                await self._tell()

    async def stop(self) -> None:
        """Add the last counts."""
        if self._ended:
            await self._tell()

    async def _tell(self) -> None:
        """Add the counts, or keep them for the next time if the database is busy or away."""
        rows = [(lane, done, bad, off) for lane, (done, bad, off) in self._ended.items()]
        took = self._took
        self._ended, self._took = {}, [0] * MOST_BUCKETS
        try:
            await self._control.ask(calls.add_rates(rows, took))
        except (*DATABASE_ERRORS, PgflowError) as error:
            log.debug("rates: %s", redacted(error))
            self._took = [old + new for old, new in zip(took, self._took, strict=True)]
            for lane, *counts in rows:
                newer = self._ended.get(lane, [0, 0, 0])
                self._ended[lane] = [a + b for a, b in zip(counts, newer, strict=True)]
            return
        self._told_at = time.monotonic()
