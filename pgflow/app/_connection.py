"""A client on one connection, for programs that do one thing and end, such as the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from pgflow._client._sync.client import Client
from pgflow._client._sync.session import Session
from pgflow._client.gates import Mapping
from pgflow._db.calls import result, start, worker
from pgflow._db.query import OnConnection, Query, Steps, run, run_steps
from pgflow._model.durations import Duration
from pgflow._worker.listener import DONE_CHANNEL, chunks
from pgflow.app._sync import wake_and_tell
from pgflow.errors import WrongState
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

T = TypeVar("T")


class ConnectionClient(Client):
    """A client on a connection of yours: each call is a transaction of its own, and those inside
    :meth:`transaction` are one. Nothing is sent twice, and nothing runs in the background.

    Args:
        connection: An open connection in autocommit mode.

    Example::

        with psycopg.connect(dsn, autocommit=True) as connection:
            ConnectionClient(connection).cancel("order-1", why="ordered twice")
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._interceptors, self._errors, self._envelopes = [], (), None
        self._mapping = Mapping()
        self._chains: set[int] = set()
        self._lanes: set[int] = set()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do all that is called in the block in one transaction, and wake the runs after it. A
        block in another one is a savepoint.
        """
        chains, lanes = set(self._chains), set(self._lanes)
        try:
            with self._connection.transaction():
                yield
        except BaseException:
            self._chains, self._lanes = chains, lanes
            raise
        self._wake()

    def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        del once  # nothing is sent twice
        answer = run(self._connection, query)
        if wakes:
            self._note(answer.chains, answer.lanes)  # type: ignore[attr-defined]
        return answer

    def _perform(self, make: Callable[[int], Steps[T]], *, once: bool) -> T:
        del once
        with self._connection.transaction():
            return run_steps(OnConnection(self._connection), make(0))

    def _started(self, started: start.Started) -> None:
        self._note(started.chains, [started.lane_id])

    def _session(self) -> Session:
        return self

    def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """For handles of runs."""
        return self._ask(query, wakes=wakes)

    def wait(self, key: str, chain_id: int, timeout: Duration | None) -> result.Ended:
        """For handles of runs: refuse, since nothing listens for results here.

        Raises:
            WrongState: Always.
        """
        del chain_id, timeout
        raise WrongState(f"a ConnectionClient does not wait for run {key!r}: use an App")

    def wait_for(
        self,
        what: str,
        chain_id: int,
        query: Query[T],
        is_there: Callable[[T], bool],
        timeout: Duration | None,
    ) -> T | result.Ended:
        """For handles of updates: refuse, see :meth:`wait`."""
        del query, is_there
        return self.wait(what, chain_id, timeout)

    def _note(self, chains: Iterable[int], lanes: Iterable[int]) -> None:
        self._chains.update(chains)
        self._lanes.update(lanes)
        self._wake()

    def _wake(self) -> None:
        """Wake the runs that have mail and notify workers, once their transaction is committed."""
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            return
        chains, self._chains = sorted(self._chains), set()
        lanes, self._lanes = self._lanes, set()
        try:
            for text in chunks(set(wake_and_tell(self._connection, chains, lanes))):
                run(self._connection, worker.notify(DONE_CHANNEL, text))
        except psycopg.Error as error:
            # The mail is committed, so it must not be sent again, and the next poll wakes too.
            log.warning(
                "could not notify a worker, so its next poll picks this up: %s", redacted(error)
            )
