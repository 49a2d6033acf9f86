"""The lanes that a worker serves: those of its queues, workflows and versions that exist in the
database.

A start may create a lane at any time, of a version that no run was pinned to before. So the worker
reads the lanes when it hears of a new one, and periodically, because a lane may be committed after
one with a higher number.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable

import psycopg

from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls.claim import Lane
from pgflow._db.query import Query
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.parts import Loop, Tasks
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

# Bounds how long a lane waits that polls miss: one committed after a lane with a higher number.
LANES_EVERY_SECONDS = 5.0


class Lanes(Loop):
    """Keeps the lanes that this worker serves.

    Args:
        want_claims: Called when a served lane may have work.

    Attributes:
        served: The lanes as last read, by number.
    """

    name = "the loop of lanes"

    def __init__(
        self,
        tasks: Tasks,
        control: WorkerConnection,
        definitions: Definitions,
        options: WorkerOptions,
        want_claims: Callable[[], None],
    ) -> None:
        super().__init__(tasks)
        self.served: dict[int, Lane] = {}
        self._control = control
        self._workflows = definitions.workflows
        self._queues = options.queues
        self._want_claims = want_claims
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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LANES_EVERY_SECONDS):
                    await self._wanted.wait()
            # Before the look: a lane reported during it is looked for in the next round.
            self._wanted.clear()
            try:
                await self.look(self._control.ask)
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot look for lanes: %s", redacted(error))

    def heard(self, lanes: Iterable[int]) -> None:
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
