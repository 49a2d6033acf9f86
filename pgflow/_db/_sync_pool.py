# Made by tools/colours.py from pgflow/_db/_async_pool.py; edit that one.
"""Pools of connections, which hand out none that is dead or leads to a server that was left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from pgflow._db.connect import (
    GETCONN_SECONDS,
    PATIENCE_SECONDS,
    Connection,
    ConnectOptions,
    has_news,
    is_left,
    learn,
    patiently,
    pool_parameters,
    set_up,
)
from pgflow._db.deadlines import BEGIN_SECONDS, Limit


def _is_alive(connection: psycopg.Connection[Any], options: ConnectOptions) -> bool:
    if not options.prepares:
        connection.prepare_threshold = None
    try:
        if has_news(connection):
            with Limit(connection.pgconn.socket, BEGIN_SECONDS):
                ConnectionPool.check_connection(connection)
    except psycopg.Error:
        connection.close()
    else:
        if is_left(connection):
            connection.close()
    return not connection.closed


class Pool(ConnectionPool[Any]):
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
            configure=set_up if is_lent else learn,
            connection_class=Connection,
        )
        self._options = options

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]:
        """A connection that is alive."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            try:
                connection: psycopg.Connection[Any] = super().getconn(
                    min(GETCONN_SECONDS, deadline - time.monotonic())
                )
            except PoolTimeout:
                if time.monotonic() >= deadline:
                    raise
                continue
            try:
                is_alive = _is_alive(connection, self._options)
            except BaseException:
                self.putconn(connection)
                raise
            if is_alive:
                return connection
            self.putconn(connection)


def make_pool(
    options: ConnectOptions, application_name: str, max_size: int, *, is_lent: bool = False
) -> ConnectionPool[Any]:
    """A closed pool.

    ``is_lent``: its connections are for the application's transactions, whose isolation level is
    the application's.
    """
    return Pool(options, application_name, max_size, is_lent=is_lent)


@contextmanager
def lent(pool: ConnectionPool[Any], patience_seconds: float = PATIENCE_SECONDS) -> Iterator[Any]:
    """A connection of a pool for the time of a block, whose server must answer or be there."""
    connection = pool.getconn()
    try:
        with patiently(connection, patience_seconds):
            yield connection
    finally:
        pool.putconn(connection)  # which rolls back what an error has left open
