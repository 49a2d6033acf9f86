"""Routes what a worker learns of runs: to its own runs, to other processes, and to waiting runs.

Correctness does not depend on it: the next poll finds what was not woken or notified.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from pgflow._db.calls import wake as wake_calls
from pgflow._db.calls import worker as worker_calls
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._model.claims import Offer
from pgflow._worker.context import WorkerContext
from pgflow._worker.lanes import Lanes
from pgflow._worker.listener import (
    DONE_CHANNEL,
    STREAM_CHANNEL,
    WORK_CHANNEL,
    chunks,
    parse_work,
    payloads,
)
from pgflow._worker.parts import Part
from pgflow._worker.runs import Runs
from pgflow.errors import PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

NOTIFY_AFTER_SECONDS = 0.002
"""Delay that collects notifications into one commit, because all notifying commits share a lock."""

NOTIFY_EVERY_SECONDS = 0.01
"""Least interval between notifications. Each costs the worker a round trip, which with many runs
would be one for every two or three of them.
"""

STREAMS_EVERY_SECONDS = 0.05
"""The same where values were emitted and nothing waits for the run: people read those."""


class Notifications(Part):
    """Routes what this worker learns of runs: lanes with work, mail, ends and emitted values,
    whatever the source. Runs that are here look by themselves; other processes are notified, and
    runs elsewhere are woken in the database.

    It collects notifications until its timer fires. While there are chains to wake, one task is
    running. Correctness depends on neither: the next poll finds what was missed.

    Args:
        runs: The runs of this worker.
        lanes: The lanes that it serves.
    """

    def __init__(self, context: WorkerContext, runs: Runs, lanes: Lanes) -> None:
        self._control = context.control
        self._tasks = context.tasks
        self._wanted = context.wanted
        self._wake_waiters = context.wake_waiters
        self._runs = runs
        self._lanes = lanes
        self._ready_lanes: set[int] = set()
        self._mail: set[int] = set()
        self._done: set[int] = set()
        self._emitted: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = -STREAMS_EVERY_SECONDS
        self._chains_to_wake: set[int] = set()
        # Those that this worker has handed back, and may claim again.
        runs.when_released(lambda lanes: self.ready(lanes, []))

    # ------------------------------------------------------------ routing

    def ready(self, lanes: list[int], mail: list[int]) -> None:
        """Handle lanes with ready runs and leased runs with mail: look at this worker's own, and
        notify other workers.
        """
        self._lanes.have_work(lanes)
        self._ready_lanes.update(lanes)
        if mail:
            self._runs.poke(mail)
            self._mail.update(run_id for run_id in mail if run_id not in self._runs.executions)
        self._notify_soon()

    def ended(self, chains: list[int]) -> None:
        """Wake the waiters for chains that have ended or answered a request, here and in other
        processes.
        """
        if self._wake_waiters is not None:
            self._wake_waiters(chains)
        self._done.update(chains)
        self._notify_soon()

    def emitted(self, chains: list[int]) -> None:
        """Notify readers of values that runs emitted."""
        self._emitted.update(chains)
        self._notify_soon()

    def received(self, payload: str) -> None:
        """Handle another process's notification of work."""
        lanes, mail = parse_work(payload)
        self._lanes.have_work(lanes)
        if mail:
            self._runs.poke(mail)

    # ------------------------------------------------------------ waking

    def wake_soon(
        self,
        chains: Iterable[int],
        lanes: Collection[int],
        offers: Mapping[int, Offer] = MappingProxyType({}),
    ) -> None:
        """Wake runs that a commit sent something to, many in one transaction after it, except those
        that are here, which look by themselves. Announce the lanes, whose runs are already ready.

        The nudges of the runs that are here remain for the next poll, which then has nothing to do
        for them.
        """
        if lanes:
            self.ready(list(lanes), [])
        was_idle = not self._chains_to_wake
        self._chains_to_wake.update(self._runs.deliver(chains, offers))
        if was_idle and self._chains_to_wake:
            self._tasks.spawn(self._wake())

    async def _wake(self) -> None:
        while self._chains_to_wake:
            # Take them all: what arrives during the query goes with the next one.
            chains, self._chains_to_wake = self._chains_to_wake, set()
            try:
                woken = await self._control.ask(wake_calls.wake(sorted(chains), tell=False))
            except DATABASE_ERRORS as error:
                log.debug("cannot wake; the next poll will: %s", redacted(error))
                return
            self.ready(woken.lanes, woken.mail)
            if woken.ended:
                self.ended(woken.ended)
            if woken.busy:
                self._wanted.poll()

    # ------------------------------------------------------------ sending

    def _notify_soon(self) -> None:
        has_work = self._ready_lanes or self._mail or self._done
        if not has_work and not self._emitted:
            return
        loop = self._tasks.loop
        interval = NOTIFY_EVERY_SECONDS if has_work else STREAMS_EVERY_SECONDS
        when = max(loop.time() + NOTIFY_AFTER_SECONDS, self._sent_at + interval)
        if self._timer is None or when < self._timer.when() - NOTIFY_AFTER_SECONDS:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self._tasks.begin, self._send)

    async def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sent_at = self._tasks.loop.time()
        messages: list[tuple[str, str]] = []
        if self._ready_lanes or self._mail:
            texts = payloads(self._ready_lanes, self._mail)
            messages += [(WORK_CHANNEL, text) for text in texts]
        if self._done:
            messages += [(DONE_CHANNEL, text) for text in chunks(self._done)]
        if self._emitted:
            messages += [(STREAM_CHANNEL, text) for text in chunks(self._emitted)]
        self._ready_lanes, self._mail, self._done, self._emitted = set(), set(), set(), set()
        for channel, text in messages:
            try:
                await self._control.ask(worker_calls.notify(channel, text))
            except (*DATABASE_ERRORS, PgflowError) as error:
                log.debug("cannot notify: %s", redacted(error))

    async def stop(self) -> None:
        """Send the pending notifications."""
        await self._send()
