"""The async twins of :mod:`pgflow.sqlalchemy`; needs ``sqlalchemy[asyncio]``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, LiteralString

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from pgflow._transactions.join import Adapted, Row
from pgflow._transactions.provider import AsyncTransaction, is_class, rolled_back_in_time_async
from pgflow.errors import InvalidArgument
from pgflow.sqlalchemy import (
    after_commit,
    check_connection,
    isolation_options,
    no_room_is_trouble,
    rows_of,
    socket_of,
    statement,
)

__all__ = ["AsyncEngineProvider", "AsyncSessionProvider", "adapt"]


class _AsyncExecutor:
    """Runs statements on an AsyncSession or AsyncConnection, in its transaction."""

    def __init__(self, target: AsyncSession | AsyncConnection) -> None:
        self._target = target

    async def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        return rows_of(await self._target.execute(*statement(sql, params)))


class _CallersSession(_AsyncExecutor):
    """The session of a caller: whether it has a transaction is known once it has a connection."""

    def __init__(self, session: AsyncSession) -> None:
        super().__init__(session)
        self._session = session

    async def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        _check_connection(self._session, await self._session.connection())
        return await super().execute(sql, params)


def _check_connection(target: AsyncSession | AsyncConnection, connection: AsyncConnection) -> None:
    assert connection.sync_connection is not None, "the connection is not open"
    check_connection(target, connection.sync_connection)


def _driver_connection(connection: AsyncConnection) -> Any:
    assert connection.sync_connection is not None, "the connection is not open"
    return connection.sync_connection.connection.driver_connection


def _socket_of(connection: AsyncConnection) -> int | None:
    return None if connection.sync_connection is None else socket_of(connection.sync_connection)


class _AsyncSessionTransaction(_AsyncExecutor):
    def __init__(self, session: AsyncSession, connection: AsyncConnection) -> None:
        super().__init__(session)
        self.connection: Any = session
        self.driver_connection = _driver_connection(connection)
        self._below = connection

    def fileno(self) -> int | None:
        return _socket_of(self._below)

    async def flush(self) -> None:
        await self.connection.flush()

    async def commit(self) -> None:
        await self.connection.commit()


class _AsyncConnectionTransaction(_AsyncExecutor):
    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__(connection)
        self.connection: Any = connection
        self.driver_connection = _driver_connection(connection)

    def fileno(self) -> int | None:
        return _socket_of(self.connection)

    async def flush(self) -> None:
        """An AsyncConnection holds nothing back."""

    async def commit(self) -> None:
        await self.connection.commit()


class AsyncSessionProvider:
    """Hands ``AsyncSession`` objects to ``async def`` steps.

    Args:
        sessions: An ``async_sessionmaker`` bound to an async engine on the same database as pgflow.
    """

    def __init__(self, sessions: async_sessionmaker[Any]) -> None:
        self._sessions = sessions

    def provides(self, annotation: Any) -> bool:
        """``sqlalchemy.ext.asyncio.AsyncSession``."""
        return is_class(annotation, AsyncSession)

    @asynccontextmanager
    async def begin_async(self, isolation: str | None) -> AsyncIterator[AsyncTransaction]:
        """A new session in a transaction."""
        async with self._sessions() as session:
            with no_room_is_trouble():
                connection = await session.connection(
                    execution_options=isolation_options(isolation)
                )
            _check_connection(session, connection)
            async with rolled_back_in_time_async(
                _socket_of(connection), roll_back=session.rollback
            ):
                yield _AsyncSessionTransaction(session, connection)


class AsyncEngineProvider:
    """Hands ``AsyncConnection`` objects to ``async def`` steps.

    Args:
        engine: An async engine on the same database as pgflow.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def provides(self, annotation: Any) -> bool:
        """``sqlalchemy.ext.asyncio.AsyncConnection``."""
        return is_class(annotation, AsyncConnection)

    @asynccontextmanager
    async def begin_async(self, isolation: str | None) -> AsyncIterator[AsyncTransaction]:
        """A connection in a transaction."""
        async with AsyncExitStack() as opened:
            with no_room_is_trouble():
                connection = await opened.enter_async_context(self._engine.connect())
            await connection.execution_options(**isolation_options(isolation))
            _check_connection(connection, connection)
            async with rolled_back_in_time_async(
                _socket_of(connection), roll_back=connection.rollback
            ):
                yield _AsyncConnectionTransaction(connection)


def adapt(target: Any) -> Adapted:
    """An AsyncSession or AsyncConnection as the engine uses it."""
    if isinstance(target, AsyncSession):
        return Adapted(
            _CallersSession(target), is_async=True, after_commit=after_commit(target.sync_session)
        )
    if isinstance(target, AsyncConnection):
        _check_connection(target, target)
        return Adapted(_AsyncExecutor(target), is_async=True)
    raise InvalidArgument(
        f"app.using() takes an AsyncSession or AsyncConnection of SQLAlchemy, not {target!r}"
    )
