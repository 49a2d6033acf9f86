"""Wakes: runs that a commit gave a reason to look at, woken after it in a transaction of its own.

None of it is needed for correctness: what is not woken is found by the next poll.
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
    """See the module. It keeps the chains that are to be woken;
    while there are some, one task is at it.
    """

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
        """Wakes runs, many in one transaction, but for those that are here, which look by
        themselves; lanes have ready runs already.

        What the nudges of those say is found by the next poll, which has nothing to do then.
        """
        if lanes:
            self._news.woken(list(lanes), [])
        was_idle = not self._chains
        self._chains.update(self._runs.hear(chains, offers))
        if was_idle and self._chains:
            self._tasks.spawn(self._wake())

    async def _wake(self) -> None:
        while self._chains:
            chains, self._chains = self._chains, set()
            try:
                woken = await self._control.ask(wake_calls.wake(sorted(chains), tell=False))
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.debug("cannot wake, the next poll will: %s", redacted(error))
                return
            self._news.woken(woken.lanes, woken.mail)
            if woken.ended:
                self._news.have_told(woken.ended)
            if woken.busy:
                self._poller.look_now()
