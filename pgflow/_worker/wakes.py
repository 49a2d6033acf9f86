"""Wakes runs that a commit sent something to, after it, in a separate transaction.

Correctness does not depend on it: the next poll finds what was not woken.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import psycopg

from pgflow._db.calls import wake as wake_calls
from pgflow._model.claims import Offer
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.news import News
from pgflow._worker.parts import Tasks
from pgflow._worker.poller import Poller
from pgflow._worker.runs import Runs
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class Wakes:
    """Wakes chains. While there are chains to wake, one task is running."""

    def __init__(
        self, control: WorkerConnection, tasks: Tasks, runs: Runs, news: News, poller: Poller
    ) -> None:
        self._control = control
        self._runs = runs
        self._tasks = tasks
        self._news = news
        self._poller = poller
        self._chains: set[int] = set()

    def wake_soon(
        self,
        chains: Iterable[int],
        lanes: Collection[int],
        offers: Mapping[int, Offer] = MappingProxyType({}),
    ) -> None:
        """Wake runs, many in one transaction, except those that are here, which look by themselves.
        Announce the lanes, whose runs are already ready.

        The nudges of the runs that are here remain for the next poll, which then has nothing to do
        for them.
        """
        if lanes:
            self._news.woken(list(lanes), [])
        was_idle = not self._chains
        self._chains.update(self._runs.hear(chains, offers))
        if was_idle and self._chains:
            self._tasks.spawn(self._wake())

    async def _wake(self) -> None:
        while self._chains:
            # Take them all: what arrives during the query goes with the next one.
            chains, self._chains = self._chains, set()
            try:
                woken = await self._control.ask(wake_calls.wake(sorted(chains), tell=False))
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.debug("cannot wake; the next poll will: %s", redacted(error))
                return
            self._news.woken(woken.lanes, woken.mail)
            if woken.ended:
                self._news.have_told(woken.ended)
            if woken.busy:
                self._poller.look_now()
