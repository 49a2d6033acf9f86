"""The sealer: seals the journal, once an operator has turned sealing on.

The database does the work, decides what is due and lets one worker at a time do it
(``sql/ledgers/seals.sql``). A round is small, and while there is more to do, the sealer rests four
times as long as a round took: it shares its connection with claims and polls, and must not delay
them.
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

# Bounds one transaction, and so the time that claims wait for the shared connection.
RUNS_A_ROUND = 100
REST = 4.0
FIRST_SECONDS = 1.0
"""Delay of the first round of a worker, whose start has more urgent work."""
OFF_SECONDS = 60.0
"""Interval between checks whether sealing was turned on."""


class Sealer(Loop):
    """Seals round after round. Its only state is the request to seal at once."""

    name = "the loop of seals"

    def __init__(self, tasks: Tasks, control: WorkerConnection) -> None:
        super().__init__(tasks)
        self._control = control
        self._wanted = asyncio.Event()

    def look_now(self) -> None:
        """Seal at once."""
        self._wanted.set()

    async def loop(self) -> None:
        """Seal round after round."""
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
        """Seal one round, and return the seconds until the next."""
        began = time.monotonic()
        sealed = await self._control.ask(seal_calls.seal_units(RUNS_A_ROUND))
        if sealed.has_more:
            return REST * (time.monotonic() - began)
        return OFF_SECONDS if sealed.wait_seconds is None else max(sealed.wait_seconds, 0.05)
