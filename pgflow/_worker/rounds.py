"""A loop that does a round of work, rests, and does the next.

Most loops of a worker look for something in the database, and rest until there may be more. A round
that meets trouble with the database or the connection is logged, and the next one comes later.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import ClassVar

from pgflow._db.failures import DATABASE_ERRORS
from pgflow._worker.context import WorkerContext
from pgflow._worker.parts import Loop, wait_for
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class Rounds(Loop, ABC):
    """A loop that does round after round, and rests between them.

    Attributes:
        work: Name of the work, for the log if a round fails.

    Args:
        retry_seconds: Rest after a round that failed.
        first_seconds: Delay of the first round.
        wanted: Event that ends a rest.
    """

    work: ClassVar[str]

    def __init__(
        self,
        context: WorkerContext,
        *,
        retry_seconds: float,
        first_seconds: float = 0.0,
        wanted: asyncio.Event | None = None,
    ) -> None:
        super().__init__(context.tasks)
        self._control = context.control
        self._retry_seconds = retry_seconds
        self._first_seconds = first_seconds
        self._wanted = wanted or asyncio.Event()

    async def loop(self) -> None:
        """Do round after round."""
        wait = self._first_seconds
        while True:
            await wait_for(self._wanted, wait)
            # Before the round: what is announced during it is looked for in the next.
            self._wanted.clear()
            try:
                wait = await self.round()
            except DATABASE_ERRORS as error:
                wait = self._retry_seconds
                log.warning("cannot %s: %s", self.work, redacted(error))

    @abstractmethod
    async def round(self) -> float:
        """Do one round, and return the seconds until the next."""
