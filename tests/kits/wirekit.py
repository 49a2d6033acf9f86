"""Calls on a wire of the engine's own, and one that is on its way for as long as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import psycopg
from servers import HANG_SECONDS

from pgflow._db.connect import ConnectOptions
from pgflow._db.query import Query
from pgflow._db.wire import OwnWire, Wire, open_wire


def query(sql: Any, *params: Any) -> Query[Any]:
    return Query(sql, params, lambda rows: rows)


def on_wire(
    dsn: str,
    use: Callable[[OwnWire], Awaitable[Any]],
    prepare_threshold: int | None = 3,
    *,
    timeout_seconds: float = HANG_SECONDS,
) -> Any:
    """On a connection of its own."""

    async def main() -> Any:
        wire = await open_wire(ConnectOptions(dsn, prepare_threshold), "test", timeout_seconds)
        try:
            return await use(wire)
        finally:
            await wire.close()

    return asyncio.run(main())


async def asleep(
    wire: Wire, conn: psycopg.Connection, call: Coroutine[Any, Any, Any]
) -> asyncio.Task[Any]:
    """A call of ``pg_sleep``, once the server is at it."""
    task = asyncio.create_task(call)
    while not sleeps(wire, conn):
        await asyncio.sleep(0)
    return task


def sleeps(wire: Wire, conn: psycopg.Connection) -> bool:
    """Return True if the server is in ``pg_sleep`` for this wire."""
    pid = wire.connection.info.backend_pid
    return bool(
        conn.execute(
            "select from pg_stat_activity where pid = %s and wait_event = 'PgSleep'", (pid,)
        ).fetchall()
    )
