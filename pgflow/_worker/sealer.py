"""The sealer: seals what has been recorded, once an operator has asked for it.

The database does the work, decides what is due and lets one worker at a time do it
(``sql/ledgers/seals.sql``). A round is small, and while there is more to do the sealer rests four
times as long as a round has taken: it shares the connection with claims and polls, and whoever
waits for those must not notice.
"""

from __future__ import annotations

import asyncio
import logging
import time

import psycopg

from pgflow._db.calls import seals as seal_calls
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.parts import Loop, Tasks
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

RUNS_A_ROUND = 100
REST = 4.0
FIRST_SECONDS = 1.0
"""A worker that has just come has better things to do."""
OFF_SECONDS = 60.0
"""Time between two questions of a worker whether sealing was switched on."""


class Sealer(Loop):
    """See the module. It keeps nothing but the wish to seal at once."""

    name = "the loop of seals"

    def __init__(self, tasks: Tasks, control: WorkerConnection) -> None:
        super().__init__(tasks)
        self._control = control
        self._wanted = asyncio.Event()

    def look_now(self) -> None:
        """Seals at once instead of at the next time."""
        self._wanted.set()

    async def loop(self) -> None:
        """Seals round after round."""
        wait = FIRST_SECONDS
        while True:
            try:
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                wait = await self._seal()
            except (psycopg.Error, OSError, TimeoutError) as error:
                wait = OFF_SECONDS
                log.warning("cannot seal the journal: %s", redacted(error))

    async def _seal(self) -> float:
        """Return the seconds until the next round, after one."""
        began = time.monotonic()
        sealed = await self._control.ask(seal_calls.seal_units(RUNS_A_ROUND))
        if sealed.has_more:
            return REST * (time.monotonic() - began)
        return OFF_SECONDS if sealed.wait_seconds is None else max(sealed.wait_seconds, 0.05)
