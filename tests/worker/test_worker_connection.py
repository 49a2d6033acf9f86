"""The connection of a worker, and of whoever waits for results."""

from __future__ import annotations

import asyncio

import psycopg

from pgflow._db.connect import ConnectOptions, give_up
from pgflow._db.query import Query
from pgflow._worker.connection import WorkerConnection

PID = Query("select pg_backend_pid()", (), lambda rows: int(rows[0][0]))


def test_a_connection_to_a_server_that_did_not_answer_others_is_asked_nothing_more(
    dsn: str,
) -> None:
    """After a fail-over it would be waited for as long again."""
    info = psycopg.conninfo.conninfo_to_dict(dsn)

    async def main() -> None:
        connection = WorkerConnection(ConnectOptions(dsn), "pgflow test")
        try:
            first = await connection.ask(PID)
            assert await connection.ask(PID) == first == connection.backend_pid
            give_up((str(info["host"]), str(info["port"])))
            second = await connection.ask(PID)
            assert second != first
            assert await connection.ask(PID) == second
        finally:
            await connection.close()

    asyncio.run(main())
