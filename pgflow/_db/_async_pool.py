"""Pools of connections, which hand out none that is dead or leads to a server that was left."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from pgflow._db.connect import (
    GETCONN_SECONDS,
    PATIENCE_SECONDS,
    AsyncConnection,
    ConnectOptions,
    has_news,
    is_left,
    learn_async,
    patiently,
    pool_parameters,
    set_up_async,
)
from pgflow._db.deadlines import BEGIN_SECONDS, Limit


async def _is_alive_async(
    connection: psycopg.AsyncConnection[Any], options: ConnectOptions
) -> bool:
    if not options.prepares:
        connection.prepare_threshold = None
    try:
        if has_news(connection):
            with Limit(connection.pgconn.socket, BEGIN_SECONDS):
                await AsyncConnectionPool.check_connection(connection)
    except psycopg.Error:
        await connection.close()
    else:
        if is_left(connection):
            await connection.close()
    return not connection.closed


class AsyncPool(AsyncConnectionPool[Any]):
    """A pool that hands out no connection that has died while it was idle, as far as this end can
    know, and none to a server that was left.

    The pool's own ``check=`` waits for a second, two, four, before it looks at the next connection:
    those that it gets instead of the dead may have died too by then, where the server ends idle
    sessions soon.
    """

    def __init__(
        self, options: ConnectOptions, application_name: str, max_size: int, *, is_lent: bool
    ) -> None:
        super().__init__(
            **pool_parameters(options, application_name, max_size),
            configure=set_up_async if is_lent else learn_async,
            connection_class=AsyncConnection,
        )
        self._options = options

    async def getconn(self, timeout: float | None = None) -> psycopg.AsyncConnection[Any]:
        """A connection that is alive."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            try:
                connection: psycopg.AsyncConnection[Any] = await super().getconn(
                    min(GETCONN_SECONDS, deadline - time.monotonic())
                )
            except PoolTimeout:
                if time.monotonic() >= deadline:
                    raise
                continue
            try:
                is_alive = await _is_alive_async(connection, self._options)
            except BaseException:
                await self.putconn(connection)
                raise
            if is_alive:
                return connection
            await self.putconn(connection)


def make_pool_async(
    options: ConnectOptions, application_name: str, max_size: int, *, is_lent: bool = False
) -> AsyncConnectionPool[Any]:
    """A closed pool.

    ``is_lent``: its connections are for the application's transactions, whose isolation level is
    the application's.
    """
    return AsyncPool(options, application_name, max_size, is_lent=is_lent)


@asynccontextmanager
async def lent_async(
    pool: AsyncConnectionPool[Any], patience_seconds: float = PATIENCE_SECONDS
) -> AsyncIterator[Any]:
    """A connection of a pool for the time of a block, whose server must answer or be there."""
    connection = await pool.getconn()
    try:
        with patiently(connection, patience_seconds):
            yield connection
    finally:
        await pool.putconn(connection)  # which rolls back what an error has left open
