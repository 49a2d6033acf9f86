"""The poller: finds work whose notification was lost. No run depends on a notification."""

from __future__ import annotations

import asyncio
import logging
import math
import random

from pgflow._db.calls import wake as wake_calls
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._worker.context import WorkerContext
from pgflow._worker.lanes import Lanes
from pgflow._worker.notifications import Notifications
from pgflow._worker.parts import Loop, wait_for
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
    """Polls the database when `Wanted.polls` is set, when something is due, and periodically.

    Args:
        context: Claims are requested after every poll.
        runs: Those that wait for something only the database knows are poked.
        lanes: Learns of new lanes.
        notifications: Routes what a poll finds.
    """

    name = "the loop of polls"

    def __init__(
        self, context: WorkerContext, runs: Runs, lanes: Lanes, notifications: Notifications
    ) -> None:
        super().__init__(context.tasks)
        self._control = context.control
        self._wanted = context.wanted
        self._poll_seconds = context.options.poll_seconds
        self._runs = runs
        self._lanes = lanes
        self._notifications = notifications
        self._poked_at = -math.inf

    async def loop(self) -> None:
        """Poll when something is due, and every `poll_seconds`."""
        now = asyncio.get_running_loop().time
        is_logged = False
        while True:
            wait = self._poll_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - spreads the load
            asked_at = now()
            try:
                polled = await self.poll()
                is_logged = False
                if polled.next_due_seconds is not None:
                    wait = min(wait, due_after(polled.next_due_seconds, now() - asked_at))
                if polled.busy:
                    # Busy runs were locked or moving, which ends soon.
                    wait = min(wait, 0.02)
                self._wanted.claims.set()
                wait = min(wait, self._poke_waiting())
            except DATABASE_ERRORS as error:
                # The heartbeat logs how long an outage lasts.
                level = logging.DEBUG if is_logged else logging.WARNING
                log.log(level, "cannot poll: %s", redacted(error))
                is_logged = True
            self._wanted.polls.clear()
            await wait_for(self._wanted.polls, wait)

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
        self._notifications.ready(polled.lanes, polled.mail)
        if polled.ended:
            self._notifications.ended(polled.ended)
        return polled
