"""Wakes: news for others after a commit, of runs to wake, lanes with work, mail and outcomes.

None of it is needed for correctness: what is not told is found by the next poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

import psycopg

from pgflow._db.calls import wake as wake_calls
from pgflow._db.calls import worker as worker_calls
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.listener import DONE_CHANNEL, WORK_CHANNEL, chunks, payloads
from pgflow.errors import PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

NOTIFY_AFTER_SECONDS = 0.002
"""Notifications wait so long for company: each commit that notifies takes a lock that all such commits share."""

NOTIFY_EVERY_SECONDS = 0.01
"""At most so often: each costs the worker's process a round trip, which among many runs would be one for every two or three of them."""


class WakesHost(Protocol):
    """Interface of the worker, as wakes need it."""

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs something beside."""

    def woken(self, lanes: list[int], mail: list[int]) -> None:
        """Lanes with ready runs, and leased runs with mail."""

    def runs_ended(self, chains: list[int]) -> None:
        """Chains whose outcome is durable."""

    def poll_now(self) -> None:
        """Sweeps at once instead of at the next poll."""


class Wakes:
    """See the module."""

    def __init__(self, host: WakesHost, control: WorkerConnection) -> None:
        self._host = host
        self._control = control
        self._to_wake: set[int] = set()
        self._lanes: set[int] = set()
        self._mail: set[int] = set()
        self._done: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = -NOTIFY_EVERY_SECONDS

    def wake_soon(self, chains: Iterable[int]) -> None:
        """Wakes runs, many in one transaction."""
        was_idle = not self._to_wake
        self._to_wake.update(chains)
        if was_idle and self._to_wake:
            self._host.spawn(self._wake())

    async def _wake(self) -> None:
        while self._to_wake:
            chains, self._to_wake = self._to_wake, set()
            try:
                woken = await self._control.ask(wake_calls.wake(sorted(chains), tell=False))
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.debug("cannot wake, the next poll will: %s", redacted(error))
                return
            self._host.woken(woken.lanes, woken.mail)
            if woken.ended:
                self._host.runs_ended(woken.ended)
            if woken.busy:
                self._host.poll_now()

    def tell(self, *, lanes: Iterable[int] = (), mail: Iterable[int] = (), done: Iterable[int] = ()) -> None:
        """Notifies other workers of lanes with work and of runs with mail, and clients of chains that are done."""
        self._lanes.update(lanes)
        self._mail.update(mail)
        self._done.update(done)
        if self._timer is None and (self._lanes or self._mail or self._done):
            loop = asyncio.get_running_loop()
            when = max(loop.time() + NOTIFY_AFTER_SECONDS, self._sent_at + NOTIFY_EVERY_SECONDS)
            self._timer = loop.call_at(when, lambda: self._host.spawn(self.send()))

    async def send(self) -> None:
        """Sends what there is to tell."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sent_at = asyncio.get_running_loop().time()
        messages = [(WORK_CHANNEL, text) for text in payloads(self._lanes, self._mail)]
        messages += [(DONE_CHANNEL, text) for text in chunks(self._done)]
        self._lanes, self._mail, self._done = set(), set(), set()
        for channel, text in messages:
            try:
                await self._control.ask(worker_calls.notify(channel, text))
            except (psycopg.Error, OSError, TimeoutError, PgflowError) as error:
                log.debug("cannot notify: %s", redacted(error))
