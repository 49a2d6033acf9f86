"""The worker's connection for everything except commits: claims, polls, wakes, notifications."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

import psycopg

from pgflow._db.connect import ConnectOptions, cut_if_left, is_left, left_servers
from pgflow._db.failures import (
    DATABASE_ERRORS,
    is_infrastructure,
    is_of_a_pooler,
    is_of_the_data,
    sqlstate_of,
)
from pgflow._db.query import Query
from pgflow._db.wire import OwnWire, open_wire
from pgflow._worker.parts import back_off_seconds
from pgflow.errors import PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

T = TypeVar("T")

# A frozen server keeps its connections open, so each wait has a deadline.
CALL_TIMEOUT_SECONDS = 30.0


class WorkerConnection:
    """One connection, used by one call at a time and reopened when lost."""

    def __init__(
        self,
        options: ConnectOptions,
        name: str,
        timeout_seconds: float = CALL_TIMEOUT_SECONDS,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._options = options
        self._name = name
        self._lock = asyncio.Lock()
        self._wire: OwnWire | None = None
        self._closed = False

    async def ask(self, query: Query[T]) -> T:
        """Run a query once.

        Raises:
            psycopg.Error: The server or the connection reported an error.
            TimeoutError: No answer in time; the connection is given up.
            PgflowError: The connection is closed.
        """
        # One call at a time: a connection has one statement under way.
        async with self._lock:
            if self._closed:
                raise PgflowError(f"connection {self._name!r} is closed")
            wire = self._wire
            if (
                wire is None
                or wire.connection.closed
                or (left_servers and is_left(wire.connection))
            ):
                await self._drop()
                wire = self._wire = await open_wire(
                    self._options, self._name, self._timeout_seconds
                )
            try:
                return await wire.ask(query)
            except psycopg.Error as error:
                if is_of_a_pooler(error):
                    self._options.preparing.end(error)
                    await self._drop()
                raise

    async def insist(self, query: Query[T], *, is_patient: bool = True) -> T:
        """Run an idempotent query until there is an answer.

        Args:
            query: The query.
            is_patient: True to also wait while its function is missing or forbidden, as during an
                upgrade.

        Raises:
            psycopg.Error: The query cannot run with these arguments, or its function is missing or
                forbidden and ``is_patient`` is False.
            PgflowError: As :meth:`ask`.
        """
        tries = 0
        while True:
            try:
                return await self.ask(query)
            except DATABASE_ERRORS as error:
                is_missing = (sqlstate_of(error) or "").startswith("42") and not is_infrastructure(
                    error
                )
                if is_of_the_data(error) or (is_missing and not is_patient):
                    raise
                tries += 1
                level = logging.WARNING if tries == 3 or tries % 16 == 0 else logging.DEBUG
                log.log(level, "%s: %s; retrying", self._name, redacted(error))
                await asyncio.sleep(back_off_seconds(tries, 0.02))

    @property
    def backend_pid(self) -> int | None:
        """Process id of the connection's backend; None if not connected."""
        return (
            None
            if self._wire is None or self._wire.connection.closed
            else self._wire.connection.info.backend_pid
        )

    def leave(self) -> None:
        """Cut a connection to the old primary, so that a call waiting on it fails at once."""
        if self._wire is not None:
            cut_if_left(self._wire.connection)

    def abandon(self) -> None:
        """Cut the connection after the event loop ended without a close."""
        self._closed = True
        if self._wire is not None:
            self._wire.connection.pgconn.finish()

    async def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        await self._drop()

    async def _drop(self) -> None:
        if self._wire is not None:
            await self._wire.close()
            self._wire = None
