"""Claims again when a rate, or the end of a run, lets the next run of a queue start.

The database counts what starts (``sql/runs/lines.sql``). A rate may cause a claim to find less than
it asked for, and no notification follows when the rate allows the next run. So after such a claim
this loop asks for that time, and claims then. A worker whose queues have no rate only checks
whether one was set. A limit admits the next run when one ends: with a limit on a queue, each end
here brings a claim with it, even after a claim that came short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import psycopg

from pgflow._db.calls import lines as line_calls
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.parts import Loop, Tasks
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

LOOK_EVERY_SECONDS = 15.0
"""Interval between checks for new rules of queues. Until then, polls find the runs."""


class Lines(Loop):
    """Claims when a rate lets a run start. It keeps whether a queue has a rate, and whether a claim
    came short.

    Attributes:
        is_limited: True if a queue has a limit.

    Args:
        queues: Queues that the worker serves.
        want_claims: Called when a rate lets a run start.
    """

    name = "the loop of lines"

    def __init__(
        self,
        tasks: Tasks,
        control: WorkerConnection,
        queues: Sequence[str],
        want_claims: Callable[[], None],
    ) -> None:
        super().__init__(tasks)
        self._control = control
        self._queues = queues
        self._want_claims = want_claims
        self._short = asyncio.Event()
        self._has_rate = False
        self.is_limited = False

    def came_short(self) -> None:
        """Note that a claim found less than it asked for."""
        if self._has_rate:
            self._short.set()

    async def loop(self) -> None:
        """Ask when the next run may start, and claim then."""
        while True:
            try:
                await self._look()
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot look for rates: %s", redacted(error))
            try:
                async with asyncio.timeout(LOOK_EVERY_SECONDS):
                    await self._short.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        self._short.clear()
        turns = await self._control.ask(line_calls.next_turn(self._queues))
        seconds, self.is_limited = turns.seconds, turns.is_limited
        self._has_rate = seconds is not None
        if seconds is not None and seconds < LOOK_EVERY_SECONDS:
            await asyncio.sleep(seconds)
            self._short.clear()
            self._want_claims()
