"""The poller: finds work whose notification was lost. No run depends on a notification."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable

import psycopg

from pgflow._db.calls import wake as wake_calls
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.lanes import Lanes
from pgflow._worker.news import News
from pgflow._worker.pager import Pager
from pgflow._worker.parts import Loop, Tasks
from pgflow._worker.runs import Runs
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

LEAST_SECONDS = 0.001
"""The resolution of event loops' clocks is a millisecond."""


def due_after(due_seconds: float, took_seconds: float) -> float:
    """Return the seconds from the answer to a poll until the next one, for a timer.

    The server counts from the question. Polls rest for at least as long as they take, so that
    timers due in quick succession share a poll.

    Args:
        due_seconds: Until the timer is due, by the answer; negative if it is overdue.
        took_seconds: From the question to the answer.
    """
    return max(due_seconds - took_seconds, took_seconds, LEAST_SECONDS)


class Poller(Loop):
    """Polls the database. Its only state is the request to poll at once.

    Args:
        want_claims: Called after every poll: there may be work.
        pager: Looks whenever a poll at once is requested; None without a hook.
        poll_seconds: Between polls if nothing is due sooner.
    """

    name = "the loop of polls"

    def __init__(
        self,
        tasks: Tasks,
        control: WorkerConnection,
        runs: Runs,
        lanes: Lanes,
        news: News,
        want_claims: Callable[[], None],
        pager: Pager | None,
        poll_seconds: float,
    ) -> None:
        super().__init__(tasks)
        self._control = control
        self._runs = runs
        self._lanes = lanes
        self._news = news
        self._want_claims = want_claims
        self._pager = pager
        self._poll_seconds = poll_seconds
        self._wanted = asyncio.Event()
        self._poked_at = -math.inf

    def look_now(self) -> None:
        """Poll at once, and look for due pages."""
        self._wanted.set()
        if self._pager is not None:
            self._pager.look_now()

    async def loop(self) -> None:
        """Poll when something is due, and every `poll_seconds`."""
        now = asyncio.get_running_loop().time
        has_said = False
        while True:
            wait = self._poll_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - spreads the load
            asked_at = now()
            try:
                polled = await self.poll()
                has_said = False
                if polled.next_due_seconds is not None:
                    wait = min(wait, due_after(polled.next_due_seconds, now() - asked_at))
                if polled.busy:
                    # Busy runs were locked or moving, which ends soon.
                    wait = min(wait, 0.02)
                self._want_claims()
                wait = min(wait, self._poke_waiting())
            except (psycopg.Error, OSError, TimeoutError) as error:
                # The heart logs how long an outage lasts.
                level = logging.DEBUG if has_said else logging.WARNING
                log.log(level, "cannot poll: %s", redacted(error))
                has_said = True
            self._wanted.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    def _poke_waiting(self) -> float:
        """Make waiting runs look at the database. Requested polls do not make it more frequent,
        because each look has a cost.

        Returns:
            Seconds until they should look again.
        """
        now = asyncio.get_running_loop().time()
        if now - self._poked_at >= self._poll_seconds * 0.8:
            self._poked_at = now
            self._runs.poke_waiting()
        return self._poked_at + self._poll_seconds - now

    async def poll(self) -> wake_calls.Polled:
        """Poll once, and route the result."""
        polled = await self._control.ask(wake_calls.poll())
        self._lanes.polled(polled.newest_lane)
        self._news.woken(polled.lanes, polled.mail)
        if polled.ended:
            self._news.have_told(polled.ended)
        return polled
