"""The engine's calls on libpq itself: what goes out and comes back is what psycopg would send and
read, errors and all.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from servers import HANG_SECONDS
from wirekit import asleep, on_wire, query, sleeps

from pgflow import InvalidArgument, RunNotFound
from pgflow._db.connect import ConnectOptions, connect_async
from pgflow._db.failures import is_ambiguous, is_infrastructure
from pgflow._db.query import JsonTexts
from pgflow._db.wire import OwnWire, Wire, open_wire

ROWS = "select %s::text, %s::bigint, %s::bigint[], %s::boolean, %s::float8, %s::timestamptz, %s::json, null::int, '100%%'"
VALUES = ("é", -(2**62), [1, 2**40], True, 0.1, datetime(2026, 1, 2, tzinfo=UTC), '{"a": 1.50}')


def beside_psycopg(
    dsn: str, use: Callable[[Wire], Awaitable[Any]], *, prepares: bool = False
) -> Any:
    """On a connection that psycopg uses too."""

    async def main() -> Any:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            return await use(Wire(connection, prepares=prepares))

    return asyncio.run(main())


@pytest.mark.parametrize("prepares", [True, False])
def test_values_come_back_as_psycopg_reads_them(dsn, prepares):
    async def use(wire: Wire) -> tuple[Any, Any]:
        cursor = await wire.connection.execute(ROWS, VALUES)
        return [await wire.ask(query(ROWS, *VALUES)) for _ in range(3)], await cursor.fetchall()

    ours, theirs = beside_psycopg(dsn, use, prepares=prepares)
    assert ours == [theirs] * 3
    assert theirs[0][-1] == "100%"


def test_a_statement_is_prepared_once(dsn):
    async def use(wire: Wire) -> Any:
        for n in range(3):
            await wire.ask(query("select %s::int", n))
        return await wire.ask(
            query("select count(*) from pg_prepared_statements where statement = 'select $1::int'")
        )

    assert on_wire(dsn, use) == [(1,)]


@pytest.mark.parametrize("prepares", [True, False])
@pytest.mark.parametrize(
    "texts", [['{"a": "\\\\ \\" \\n é"}', "[1, 2.50]", "null", '"NULL"'], ["1"], []]
)
def test_texts_of_json_go_out_as_they_are(dsn, prepares, texts):
    async def use(wire: Wire) -> Any:
        return await wire.ask(
            query(
                "select %s::int, array(select t::text from unnest(%s::json[]) t), %s::text",
                7,
                JsonTexts(texts),
                "x",
            )
        )

    assert beside_psycopg(dsn, use, prepares=prepares) == [(7, texts, "x")]


@pytest.mark.parametrize("text", ["{", '"\0"', ""])
def test_a_text_that_is_no_json_is_refused_as_the_callers_mistake(dsn, text):
    with pytest.raises(InvalidArgument):
        on_wire(dsn, lambda wire: wire.ask(query("select %s::json[]", JsonTexts(["1", text]))))


def test_no_rows_are_an_empty_list(dsn):
    assert on_wire(dsn, lambda wire: wire.ask(query("select 1 where false"))) == []


def test_documents_larger_than_any_buffer_go_out_and_come_back(dsn):
    text = "x" * 5_000_000
    assert on_wire(dsn, lambda wire: wire.ask(query("select %s::text", text))) == [(text,)]


def test_several_statements_are_one_round_trip_and_answer_each(dsn):
    async def use(wire: Wire) -> Any:
        answers = await wire.rows(
            ("begin", ()), ("select %s::int", (1,)), ("select 2 where false", ()), ("commit", ())
        )
        return answers, wire.connection.info.transaction_status

    assert on_wire(dsn, use) == ([[], [(1,)], [], []], psycopg.pq.TransactionStatus.IDLE)


def test_after_a_statement_that_fails_none_is_run(dsn, conn):
    conn.execute("create table public.t (n int)")

    async def use(wire: Wire) -> Any:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await wire.rows(
                ("begin", ()),
                ("insert into public.t values (1)", ()),
                ("select 1 / %s::int", (0,)),
                ("commit", ()),
            )
        status = wire.connection.info.transaction_status
        await wire.connection.rollback()
        return status, await wire.ask(query("select count(*) from public.t"))

    assert beside_psycopg(dsn, use) == (psycopg.pq.TransactionStatus.INERROR, [(0,)])


def test_the_engine_s_errors_are_its_exceptions(dsn):
    with pytest.raises(RunNotFound, match="nobody"):
        on_wire(
            dsn,
            lambda wire: wire.ask(
                query("select pgflow.send_signal(%s::text, 's', 'null')", "nobody")
            ),
        )


DEFERRED = """
create table public.late (n int);
create function public.refuse() returns trigger language plpgsql as $$
begin
  if new.n < 0 then
    perform pg_terminate_backend(pg_backend_pid());
  elsif new.n > 0 then
    raise exception using errcode = lpad(new.n::text, 5, '0'), message = 'refused by the commit';
  end if;
  return null;
end $$;
create constraint trigger late after insert on public.late deferrable initially deferred for each row execute function public.refuse();
"""


@pytest.mark.parametrize("prepares", [True, False])
@pytest.mark.parametrize("before", [0, 1], ids=["alone", "behind another"])
@pytest.mark.parametrize(
    ("n", "sqlstates"), [(40001, {"40001"}), (53100, {"53100"}), (-1, {"57P01", None})]
)
def test_an_error_of_the_commit_behind_the_answer_is_the_answer(
    dsn, conn, prepares, before, n, sqlstates
):
    """The server says that a statement is complete, and only then commits."""
    conn.execute(DEFERRED)
    insert = ("insert into public.late values (%s) returning n", (n,))

    async def use(wire: Wire) -> Any:
        with pytest.raises(psycopg.Error) as error:
            await wire.rows(*[("select 1", ())] * before, insert)
        again = (
            None if wire.connection.closed else await wire.rows(("select 2", ()), ("select 3", ()))
        )
        assert is_infrastructure(error.value)
        return error.value.sqlstate, again

    found, again = on_wire(dsn, use, 3 if prepares else None)
    assert found in sqlstates  # where the connection ends with it, its end may be seen first
    assert again == (None if n < 0 else [[(2,)], [(3,)]])
    assert conn.execute("select count(*) from public.late").fetchone() == (0,)


def test_an_answer_without_its_end_is_no_answer():
    """A server that dies between its answer and its commit has said that the statement is
    complete.
    """
    complete = b"1\0\0\0\x042\0\0\0\x04n\0\0\0\x04C\0\0\0\x0dSELECT 0\0"

    async def main(server: socket.socket) -> None:
        loop, port = asyncio.get_running_loop(), server.getsockname()[1]
        address = f"host=127.0.0.1 port={port} user=nobody sslmode=disable gssencmode=disable"
        opening = asyncio.create_task(psycopg.AsyncConnection.connect(address, autocommit=True))
        theirs, _ = await loop.sock_accept(server)
        with theirs:
            theirs.setblocking(False)
            await loop.sock_recv(theirs, 10_000)
            facts = (b"server_version\x0015.0\0", b"client_encoding\0UTF8\0")
            greeting = b"".join(b"S" + struct.pack("!i", 4 + len(fact)) + fact for fact in facts)
            await loop.sock_sendall(theirs, b"R\0\0\0\x08\0\0\0\0" + greeting + b"Z\0\0\0\x05I")
            wire = OwnWire(await opening, prepares=False, timeout_seconds=HANG_SECONDS)
            call = asyncio.create_task(wire.rows(("select", ())))
            await loop.sock_recv(theirs, 10_000)
            await loop.sock_sendall(theirs, complete)
        with pytest.raises(psycopg.Error) as error:
            await call
        assert is_infrastructure(error.value)
        assert is_ambiguous(error.value)
        await wire.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        asyncio.run(main(server))


def test_an_error_of_a_commit_that_is_a_statement_is_its_answer(dsn, conn):
    conn.execute(DEFERRED)

    async def use(wire: Wire) -> Any:
        await wire.rows(("begin", ()), ("insert into public.late values (40001)", ()))
        with pytest.raises(psycopg.errors.SerializationFailure):
            await wire.rows(("insert into public.late values (0) returning n", ()), ("commit", ()))
        return wire.connection.info.transaction_status

    assert beside_psycopg(dsn, use) == psycopg.pq.TransactionStatus.IDLE
    assert conn.execute("select count(*) from public.late").fetchone() == (0,)


@pytest.mark.parametrize("statement", ["copy (select 1) to stdout", "copy public.late from stdin"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_statement_that_answers_no_rows_but_a_stream_is_refused_and_its_connection_closed(
    dsn, conn, statement, count
):
    conn.execute(DEFERRED)

    async def use(wire: Wire) -> bool:
        with pytest.raises(psycopg.Error):
            await wire.rows(*[(statement, ())] * count)
        return wire.connection.closed

    assert beside_psycopg(dsn, use)


@pytest.mark.parametrize("text", ["a\0b", "half \ud800"])
def test_what_no_text_can_hold_is_refused_before_it_is_sent(dsn, text):
    async def use(wire: Wire) -> Any:
        with pytest.raises(InvalidArgument):
            await wire.ask(query("select %s::text", text))
        return await wire.ask(query("select 1"))

    assert on_wire(dsn, use) == [(1,)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_that_is_cancelled_leaves_no_statement_running(dsn, conn, count):
    async def use(wire: Wire) -> Any:
        call = await asleep(wire, conn, wire.rows(*[("select pg_sleep(60)", ())] * count))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not sleeps(wire, conn)
        return await wire.ask(query("select 1"))

    assert on_wire(dsn, use) == [(1,)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_that_is_cancelled_again_while_it_ends_closes_its_connection(dsn, conn, count):
    async def use(wire: Wire) -> bool:
        call = await asleep(wire, conn, wire.rows(*[("select pg_sleep(60)", ())] * count))
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return wire.connection.closed

    assert beside_psycopg(dsn, use)


def test_a_connection_that_breaks_under_a_call_is_infrastructure_and_closed(dsn, conn):
    async def use(wire: Wire) -> Any:
        call = await asleep(wire, conn, wire.ask(query("select pg_sleep(60)")))
        conn.execute("select pg_terminate_backend(%s)", (wire.connection.info.backend_pid,))
        with pytest.raises(psycopg.Error) as error:
            await call
        with pytest.raises(psycopg.Error) as again:
            await wire.ask(query("select 1"))
        return (
            is_infrastructure(error.value),
            is_infrastructure(again.value),
            wire.connection.closed,
        )

    assert on_wire(dsn, use) == (True, True, True)


def test_a_call_without_an_answer_in_time_raises_and_its_connection_is_closed(dsn):
    async def main() -> Any:
        wire = await open_wire(ConnectOptions(dsn), "test", 0.05)
        for n in range(3):
            assert await wire.ask(query("select %s::int", n)) == [
                (n,)
            ]  # each call has its own time
        with pytest.raises(TimeoutError):
            await wire.ask(query("select pg_sleep(60)"))
        return wire.connection.closed

    assert asyncio.run(main())


def test_an_idle_connection_that_ends_is_known_to_be_closed(dsn, conn):
    async def use(wire: OwnWire) -> None:
        pid = wire.connection.info.backend_pid
        conn.execute("select pg_terminate_backend(%s, 5000)", (pid,))
        while not wire.connection.closed:
            await asyncio.sleep(0)

    on_wire(dsn, use)


def test_a_connection_that_is_given_up_half_way_is_closed_though_its_task_is_kept():
    async def main(silent: socket.socket) -> None:
        loop, port = asyncio.get_running_loop(), silent.getsockname()[1]
        opening = asyncio.create_task(
            connect_async(
                ConnectOptions(f"host=127.0.0.1 port={port} user=nobody sslmode=disable"), "test"
            )
        )
        theirs, _ = await loop.sock_accept(silent)
        with theirs:
            theirs.setblocking(False)
            assert await loop.sock_recv(theirs, 10_000) != b""
            opening.cancel()
            await asyncio.wait([opening])
            assert await loop.sock_recv(theirs, 1) == b""
        assert opening.cancelled()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        asyncio.run(main(silent))
