"""Lines: claims again when a rate, or the end of a run, lets the next run of a queue begin.

The database counts what begins (``sql/runs/lines.sql``). A claim that finds less than it asked for
may have been held back by a rate, and nobody tells the worker when that opens. So this asks, once a
claim came short, and claims at that time. A worker none of whose queues has a rate asks only
whether one has been given one. A limit opens with the end of a run: where a queue has one, each end
here brings a claim with it, though the last one came short.
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
"""Between two questions whether a queue has been given a rule; polls do until then."""


class Lines(Loop):
    """See the module. It keeps whether a queue has a rate, and whether a claim came short.

    Attributes:
        is_limited: True if a queue has a limit.

    Args:
        queues: Queues that the worker serves.
        want_claims: Called when a rate lets a run begin.
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
        """A claim found less than it asked for."""
        if self._has_rate:
            self._short.set()

    async def loop(self) -> None:
        """Asks when the next run may begin, and claims then."""
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
