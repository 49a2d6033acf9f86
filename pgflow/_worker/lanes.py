"""The lanes that a worker serves: those of its queues,
workflows and versions that the database knows.

A start may name a new one at any time, of a version that nothing was pinned to before. So the
worker looks for them when one is heard of, and now and then, since a lane may be committed after
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

LANES_EVERY_SECONDS = 5.0


class Lanes(Loop):
    """See the module.

    Args:
        want_claims: Called when one of our lanes may have work.

    Attributes:
        served: The lanes as they were last read, by number.
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
        """Reads which lanes there are to serve.

        Args:
            ask: Asks the database: once, or until there is an answer.
        """
        versions = [workflow.version for workflow in self._workflows.values()]
        lanes = await ask(claim_calls.serve_lanes(self._queues, list(self._workflows), versions))
        is_new = any(lane.lane_id not in self.served for lane in lanes)
        self.served = {lane.lane_id: lane for lane in lanes}
        if is_new:
            self._want_claims()

    async def loop(self) -> None:
        """Looks for new lanes when one is heard of, and now and then."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LANES_EVERY_SECONDS):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.look(self._control.ask)
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot look for lanes: %s", redacted(error))

    def heard(self, lanes: Iterable[int]) -> None:
        """There are ready runs in these lanes: ours are claimed from, and one that was never heard
        of may be ours.
        """
        for lane in lanes:
            if lane in self.served:
                self._want_claims()
            elif lane not in self._foreign:
                self._foreign.add(lane)
                self._wanted.set()

    def polled(self, newest: int | None) -> None:
        """The newest lane has this number."""
        if (newest or 0) > self._newest:
            self._newest = newest or 0
            self._wanted.set()
