"""Providers of psycopg's connections: they give a ``@transaction`` its connection.

A provider hands out transactions of one library. It is picked by the annotation of the step's first
parameter. psycopg's own connections are built in; SQLAlchemy's come with ``pgflow.sqlalchemy``,
Django's with ``pgflow.django``. A provider knows nothing of the engine:
it opens, runs a statement, commits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, LiteralString
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from pgflow._db.deadlines import BEGIN_SECONDS, Limit
from pgflow._db.failures import database_error
from pgflow._db.query import Row
from pgflow._db.wire import Statement, SyncWire, Wire
from pgflow._transactions import citus
from pgflow._transactions.provider import AsyncTransaction, Transaction, is_class

_BEGIN: dict[str | None, LiteralString] = {
    None: "begin read write",
    "read committed": "begin isolation level read committed read write",
    "repeatable read": "begin isolation level repeatable read read write",
    "serializable": "begin isolation level serializable read write",
}


_ROLLBACK: Statement = ("rollback", ())

MISSES_FORGIVEN = 8
"""Times that the engine prepares its statements again before it asks how often they are gone.
psycopg deallocates all of a connection when a body rolls back by itself, to a savepoint too; a pool
whose connections are reset by DISCARD ALL loses them each time.
"""

_NOT_AS_PREPARED = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
)
"""Deallocated, or prepared by another process: a pooler gives each transaction another session."""

_prepared: WeakKeyDictionary[
    psycopg.AsyncConnection[Any] | psycopg.Connection[Any], dict[str, bytes]
] = WeakKeyDictionary()
"""Names of the statements that the engine has prepared on connections that others use too."""


class _Preparing:
    """Switch of the engine's prepared statements on connections of a pool,
    which the application uses too.
    """

    def __init__(self) -> None:
        self._prepares = True
        self._begun = self._missed = 0

    def _names(self, connection: Any) -> dict[str, bytes] | None:
        """Return the names of the statements prepared there; None if nothing may be prepared."""
        self._begun += 1
        names = _prepared.get(connection)
        if names is None:
            names = _prepared[connection] = {}
            citus.watch_commits(connection)
        return names if self._prepares and connection.prepare_threshold is not None else None

    def _missing(self, connection: Any) -> None:
        """Forget the statements prepared there, which turned out to be gone; where that is the
        rule, prepare nothing more.
        """
        _prepared[connection] = {}
        self._missed += 1
        if self._missed > MISSES_FORGIVEN + self._begun // 8:
            self.stop_preparing()

    def stop_preparing(self) -> None:
        """Something deallocates what is prepared while it is needed."""
        self._prepares = False


_LOST_TO_THE_BODY = "the body has deallocated what the engine had prepared; it runs again"


class _Transaction:
    """Opened with its first statement, in the same round trip; so the connection may still be
    another until then.
    """

    has_hooks = False

    def __init__(self, provider: Any, connection: Any, begin: LiteralString) -> None:
        self._provider = provider
        self._begin: LiteralString | None = begin
        self._take(connection)

    def _take(self, connection: Any) -> None:
        connection.row_factory = tuple_row  # whatever its last user liked better
        self.connection = self.driver_connection = connection
        self._is_ours = True
        self._wire = self._provider.wire(connection)

    def fileno(self) -> int:
        fileno: int = self.connection.fileno()
        return fileno


class _PsycopgTransaction(_Transaction):
    connection: psycopg.Connection[Any]
    _provider: PsycopgProvider
    _wire: SyncWire

    def close(self) -> None:
        """Roll back an open transaction, and return the connection in any case."""
        if not self._is_ours:
            return
        self._is_ours = False
        try:
            if (
                self.connection.pgconn.transaction_status != TransactionStatus.IDLE
                and not self.connection.closed
            ):
                with Limit(self.connection.fileno(), BEGIN_SECONDS):
                    self._roll_back()
        except psycopg.Error:
            self.connection.close()  # it was just lost; the outcome of the body is already known
        finally:
            self._provider.replace(self.connection, is_left=False)
            self._provider.pool.putconn(self.connection)

    def _roll_back(self) -> None:
        """By our wire: psycopg would deallocate all that is prepared, ours too."""
        try:
            self._wire.rows(_ROLLBACK)
        except _NOT_AS_PREPARED:
            self.connection.rollback()

    def leave_behind(self) -> None:
        """Let the pool open another connection: the body outlives its step and keeps this one."""
        self._provider.replace(self.connection, is_left=True)

    def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        if self._begin is None:
            return self._rows((sql, params))[0]
        begin, self._begin = self._begin, None
        return self._begun((begin, ()), (sql, params))[1]

    def _begun(self, *statements: Statement) -> list[list[Row]]:
        """A connection that died while idle is found out here, without a look before each use:
        another is taken.
        """
        pool = self._provider.pool
        has_missed, is_first = False, True
        for tries_left in reversed(range(pool.max_size + 3)):
            try:
                with Limit(None if is_first else self.connection.fileno(), BEGIN_SECONDS):
                    # The caller has a limit for the first.
                    return self._wire.rows(*statements)
            except _NOT_AS_PREPARED:
                self.connection.rollback()
                if has_missed:
                    self._provider.stop_preparing()
                has_missed = True
                self._wire = self._provider.wire_anew(self.connection)
            except psycopg.Error:
                if not (tries_left and self.connection.closed):
                    raise
                self.close()
                self._take(pool.getconn())
                is_first = False
        raise AssertionError

    def _rows(self, *statements: Statement) -> list[list[Row]]:
        try:
            return self._wire.rows(*statements)
        except _NOT_AS_PREPARED as error:
            self._provider.stop_preparing()
            raise psycopg.errors.SerializationFailure(_LOST_TO_THE_BODY) from error

    def flush(self) -> None:
        """Psycopg holds nothing back."""

    def commit(self) -> None:
        self._rows(("commit", ()))
        if citus.unfinished:
            self._finish()

    def execute_and_commit(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        """As that of the async transaction."""
        try:
            rows = self._rows((sql, params), ("commit", ()))[0]
        except Exception as error:
            if getattr(database_error(error), "sqlstate", None) is None:
                self.connection.close()
            raise
        if citus.unfinished:
            self._finish()
        return rows

    def _finish(self) -> None:
        """As that of the async transaction."""
        for pause_seconds in citus.looks(self.connection):
            with citus.logging_errors():
                if self._rows(citus.IS_UNFINISHED)[0][0][0]:
                    time.sleep(pause_seconds)
                    continue
            return


class PsycopgProvider(_Preparing):
    """psycopg connections for ``def`` steps, from a pool."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        super().__init__()
        self.pool = pool
        self._most = pool.max_size
        # Connections kept by bodies that outlive their steps.
        self._left_behind: set[object] = set()
        self._lock = threading.Lock()

    def replace(self, connection: object, *, is_left: bool) -> None:
        """The pool may have as many more connections as are left behind."""
        with self._lock:
            if is_left == (connection in self._left_behind):
                return
            (self._left_behind.add if is_left else self._left_behind.remove)(connection)
            self.pool.resize(self.pool.min_size, self._most + len(self._left_behind))

    def provides(self, annotation: Any) -> bool:
        """``psycopg.Connection``."""
        return is_class(annotation, psycopg.Connection)

    def wire(self, connection: psycopg.Connection[Any]) -> SyncWire:
        """The engine's own calls on a connection of the pool."""
        names = self._names(connection)
        return SyncWire(connection, prepares=names is not None, names=names)

    def wire_anew(self, connection: psycopg.Connection[Any]) -> SyncWire:
        """The same after what was prepared there turned out to be gone."""
        self._missing(connection)
        return self.wire(connection)

    @contextmanager
    def begin(self, isolation: str | None) -> Iterator[Transaction]:
        """Open a transaction on a connection of the pool."""
        transaction = _PsycopgTransaction(self, self.pool.getconn(), _BEGIN[isolation])
        try:
            yield transaction
        finally:
            transaction.close()


class _AsyncPsycopgTransaction(_Transaction):
    connection: psycopg.AsyncConnection[Any]
    _provider: AsyncPsycopgProvider
    _wire: Wire

    async def close(self) -> None:
        """Roll back an open transaction, and return the connection in any case."""
        if not self._is_ours:
            return
        self._is_ours = False
        try:
            if (
                self.connection.pgconn.transaction_status != TransactionStatus.IDLE
                and not self.connection.closed
            ):
                with Limit(self.connection.fileno(), BEGIN_SECONDS):
                    await self._roll_back()
        except psycopg.Error:
            # It was just lost; the outcome of the body is already known.
            await self.connection.close()
        finally:
            await self._provider.pool.putconn(self.connection)

    async def _roll_back(self) -> None:
        """By our wire: psycopg would deallocate all that is prepared, ours too."""
        try:
            await self._wire.rows(_ROLLBACK)
        except _NOT_AS_PREPARED:
            await self.connection.rollback()

    async def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        if self._begin is None:
            return (await self._rows((sql, params)))[0]
        begin, self._begin = self._begin, None
        return (await self._begun((begin, ()), (sql, params)))[1]

    async def _begun(self, *statements: Statement) -> list[list[Row]]:
        """A connection that died while idle is found out here, without a look before each use:
        another is taken.
        """
        pool = self._provider.pool
        has_missed = False
        for tries_left in reversed(range(pool.max_size + 3)):
            try:
                return await self._ask(*statements)
            except _NOT_AS_PREPARED:
                await self.connection.rollback()
                if has_missed:
                    self._provider.stop_preparing()
                has_missed = True
                self._wire = self._provider.wire_anew(self.connection)
            except psycopg.Error:
                if not (tries_left and self.connection.closed):
                    raise
                await self.close()
                self._take(await pool.getconn())
        raise AssertionError

    async def _ask(self, *statements: Statement) -> list[list[Row]]:
        return await self._wire.rows(*statements)

    async def _rows(self, *statements: Statement) -> list[list[Row]]:
        try:
            return await self._ask(*statements)
        except _NOT_AS_PREPARED as error:
            self._provider.stop_preparing()
            raise psycopg.errors.SerializationFailure(_LOST_TO_THE_BODY) from error

    async def flush(self) -> None:
        """Psycopg holds nothing back."""

    async def commit(self) -> None:
        await self._rows(("commit", ()))
        if citus.unfinished:
            await self._finish()

    async def execute_and_commit(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        """The last statement and COMMIT in one round trip; COMMIT only if the statement succeeds.

        Where the server has not answered, the connection is closed: what became of the transaction
        can be asked then.
        """
        try:
            rows = (await self._rows((sql, params), ("commit", ())))[0]
        except Exception as error:
            if getattr(database_error(error), "sqlstate", None) is None:
                await self.connection.close()
            raise
        if citus.unfinished:
            await self._finish()
        return rows

    async def _finish(self) -> None:
        """Wait until the rows of this commit are on all nodes of Citus: the next body of the run
        would not see them, and change nothing without an error.
        """
        for pause_seconds in citus.looks(self.connection):
            with citus.logging_errors():
                if (await self._rows(citus.IS_UNFINISHED))[0][0][0]:
                    await asyncio.sleep(pause_seconds)
                    continue
            return


class AsyncPsycopgProvider(_Preparing):
    """psycopg connections for ``async def`` steps, from a pool."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        super().__init__()
        self.pool = pool

    def provides(self, annotation: Any) -> bool:
        """``psycopg.AsyncConnection``."""
        return is_class(annotation, psycopg.AsyncConnection)

    def wire(self, connection: psycopg.AsyncConnection[Any]) -> Wire:
        """The engine's own calls on a connection of the pool."""
        names = self._names(connection)
        return Wire(connection, prepares=names is not None, names=names)

    def wire_anew(self, connection: psycopg.AsyncConnection[Any]) -> Wire:
        """The same after what was prepared there turned out to be gone."""
        self._missing(connection)
        return self.wire(connection)

    @asynccontextmanager
    async def begin_async(self, isolation: str | None) -> AsyncIterator[AsyncTransaction]:
        """Open a transaction on a connection of the pool."""
        transaction = _AsyncPsycopgTransaction(self, await self.pool.getconn(), _BEGIN[isolation])
        try:
            yield transaction
        finally:
            await transaction.close()
