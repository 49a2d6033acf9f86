"""The connection of a worker, and of whoever waits for results."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pgflow._db.connect import Connection, ConnectOptions, give_up
from pgflow._db.query import Query
from pgflow._worker.body_calls import Cords, OpenTransactions
from pgflow._worker.connection import WorkerConnection


class On:
    """A transaction on this connection, as its provider tells of it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.driver_connection = connection

    def fileno(self) -> int:
        return self.driver_connection.fileno()


PID = Query("select pg_backend_pid()", (), lambda rows: int(rows[0][0]))


@pytest.mark.alone
def test_a_connection_to_a_server_that_did_not_answer_others_is_asked_nothing_more(dsn):
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


def test_a_transaction_on_a_server_that_was_left_is_cut_whenever_it_began(dsn):
    """A server may freeze just after a beat that it has answered: what began after that waits, too."""
    with Connection.connect(dsn) as old:
        give_up(old.server)
        with Connection.connect(dsn) as new:
            transactions = OpenTransactions()
            known: dict[Any, Any] = transactions._known
            with Cords(known, "one", On(old)), Cords(known, "two", On(new)):
                transactions.leave()
                assert new.execute("select 1").fetchone() == (1,)
                with pytest.raises(psycopg.OperationalError):
                    old.execute("select 1")


def test_a_transaction_of_another_library_is_cut_if_it_began_before(dsn):
    with psycopg.connect(dsn) as theirs:
        transactions = OpenTransactions()
        known: dict[Any, Any] = transactions._known
        with Cords(known, "one", On(theirs)):
            transactions.leave()
            assert theirs.execute("select 1").fetchone() == (1,)
            give_up((theirs.info.host, str(theirs.info.port)))
            transactions.leave()
            with pytest.raises(psycopg.OperationalError):
                theirs.execute("select 1")
