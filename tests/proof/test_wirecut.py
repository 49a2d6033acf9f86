"""The line is cut at every message: the work is done all the same, once. And the proxy that cuts
cuts where it is told.
"""

from __future__ import annotations

import asyncio
import select
import struct
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgflow import App, AsyncApp, Signal, workflow
from pgflow._db.failures import is_ambiguous, is_infrastructure
from pgflow.app._sync import Portal
from tests import wirecut
from tests.kits.wire import Cut, Framer, Proxy, statement_name
from tests.kits.wirepaths import PATHS

if TYPE_CHECKING:
    from collections.abc import Iterator

go = Signal("go", int)


@workflow
async def waiting() -> int:
    return await go.wait()


# ---------------------------------------------------------------- the proxy


@pytest.fixture(scope="module")
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


@pytest.fixture
def proxy(dsn: str, portal: Portal) -> Iterator[Proxy]:
    proxy = Proxy(dsn, portal)
    proxy.open()
    yield proxy
    proxy.close()


@pytest.fixture
def cut_dsn(dsn: str, proxy: Proxy) -> str:
    return make_conninfo(dsn, host="127.0.0.1", port=proxy.port)


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, application_name="me", autocommit=True)


def test_messages_are_whole_however_the_bytes_come():
    startup = struct.pack("!II", 8 + 5, 196608) + b"a\0b\0\0"
    stream = (
        struct.pack("!II", 8, 80877103)
        + startup
        + b"Q"
        + struct.pack("!I", 4 + 3)
        + b"go\0"
        + b"S"
        + struct.pack("!I", 4)
    )
    at_once = Framer(is_client=True).feed(stream)
    assert [kind for kind, _ in at_once] == ["ssl", "startup", "Q", "S"]
    assert b"".join(message for _, message in at_once) == stream
    framer = Framer(is_client=True)
    assert [m for n in range(len(stream)) for m in framer.feed(stream[n : n + 1])] == at_once


@pytest.mark.parametrize(("sql", "name"), [
    (b"select pgflow.fence_step($1)", "fence_step"), (b"select pg_notify($1, $2)", "pg_notify"), (b" COMMIT", "commit"), (b"", ""),
])  # fmt: skip
def test_a_statement_goes_by_the_function_that_it_calls(sql, name):
    assert statement_name(sql) == name


def test_an_untouched_line_passes_everything(proxy, cut_dsn):
    with connect(cut_dsn) as conn:
        assert conn.execute("select %s::text", ("x" * 200_000,)).fetchone() == ("x" * 200_000,)
    assert proxy.messages["me", "select"] == ["P", "B", "D", "E", "S"]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("side", "happened"), [("before", False), ("after", True), ("during", True)]
)
def test_a_cut_is_on_the_side_that_was_asked_for(proxy, cut_dsn, conn, side, happened, reset):
    conn.execute("create table t (n int)")
    with connect(cut_dsn) as victim:
        victim.execute("begin")
        victim.execute("insert into t values (1)")
        proxy.arm(Cut("me", "commit", 1, side, reset))
        with pytest.raises(psycopg.OperationalError):
            victim.execute("commit")
        assert victim.broken
    wait_until_settled(proxy)
    assert [what for _, _, what in proxy.fired] == ["commit"]
    assert conn.execute("select count(*) from t").fetchone() == (int(happened),)
    with connect(cut_dsn) as again:
        assert again.execute("select 1").fetchone() == (1,)


@pytest.mark.full
def test_a_server_may_believe_in_a_line_for_longer_than_its_client(proxy, cut_dsn, conn):
    conn.execute("create table t (n int)")
    with connect(cut_dsn) as victim:
        victim.execute("begin")
        victim.execute("insert into t values (1)")
        ((xid,),) = victim.execute("select pg_current_xact_id()::text").fetchall()
        proxy.arm(Cut("me", "commit", 1, "before", linger_seconds=0.5))
        with pytest.raises(psycopg.OperationalError):
            victim.execute("commit")
    assert conn.execute("select pg_xact_status(%s::xid8)", (xid,)).fetchone() == ("in progress",)
    wait_until_settled(proxy)


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_connection_can_be_cut_while_it_is_made(proxy, cut_dsn, side):
    proxy.arm(Cut("me", "connect", 1, side))
    with pytest.raises(psycopg.OperationalError):
        connect(cut_dsn)
    assert proxy.is_done


def wait_until_settled(proxy: Proxy) -> None:
    from servers import wait_until

    wait_until(lambda: proxy.is_settled, "the server has finished what was cut")


# ---------------------------------------------------------------- pgflow


@pytest.mark.parametrize("what", ["wake", "pg_notify"])
def test_a_signal_that_is_committed_was_sent_even_if_nobody_could_be_woken(
    proxy, cut_dsn, conn, what
):
    with App(cut_dsn, include=[waiting]) as app:
        app.start(waiting.options(key="w"))
        proxy.arm(Cut("pgflow app", what, 1, "before"))
        app.send("w", go, 1)
        assert app.get("w", waiting).status() == "queued"
    assert conn.execute("select count(*) from pgflow.signal").fetchone() == (1,)


def test_a_signal_that_is_committed_was_sent_even_if_nobody_could_be_woken_async(
    proxy, cut_dsn, conn
):
    async def main() -> None:
        async with AsyncApp(cut_dsn, include=[waiting]) as app:
            await app.start(waiting.options(key="w"))
            proxy.arm(Cut("pgflow app", "wake", 1, "after"))
            await app.send("w", go, 1)

    asyncio.run(main())
    assert proxy.is_done
    assert conn.execute("select count(*) from pgflow.signal").fetchone() == (1,)


@pytest.mark.parametrize("reset", [False, True])
def test_connections_that_died_while_idle_are_nobodys_trouble(proxy, cut_dsn, conn, reset):
    async def main() -> None:
        async with AsyncApp(cut_dsn, include=[waiting]) as app:
            run = await app.start(waiting.options(key="w"))
            await asyncio.gather(*(run.status() for _ in range(16)))
            await asyncio.to_thread(proxy.drop, "pgflow app", reset=reset)
            await app.send("w", go, 1)

    asyncio.run(main())
    with App(cut_dsn, include=[waiting]) as app:
        app.get("w", waiting).status()
        proxy.drop("pgflow app", reset=reset)
        app.send("w", go, 2)
    assert conn.execute("select count(*) from pgflow.signal").fetchone() == (2,)


def test_an_answer_that_libpq_made_itself_is_infrastructure(proxy, cut_dsn):
    """After a failed write libpq answers without asking anybody: an error without SQLSTATE, which
    psycopg knows no class for.
    """
    with connect(cut_dsn) as conn:
        conn.pgconn.send_query(b"select pg_sleep(60)")
        proxy.drop("me", reset=True)
        is_there = select.poll()
        is_there.register(conn.fileno(), select.POLLIN)
        assert is_there.poll(5000)
        with pytest.raises(psycopg.OperationalError):
            conn.pgconn.consume_input()
        answer = conn.pgconn.get_result()
        assert answer is not None
    error = psycopg.errors.error_from_result(answer)
    assert (type(error), error.sqlstate) == (psycopg.DatabaseError, None)
    assert is_infrastructure(error)
    assert is_ambiguous(error)


@pytest.mark.parametrize(("count", "what", "side"), [
    (3, "start_runs", "before"), (3, "start_runs", "during"), (3, "start_runs", "after"),
    (400, "start_runs", "after"), (400, "commit", "before"), (400, "commit", "during"), (400, "commit", "after"),
])  # fmt: skip
def test_many_runs_without_keys_are_started_once_though_the_answer_is_lost(
    proxy, cut_dsn, conn, count, what, side
):
    async def main() -> None:
        async with AsyncApp(cut_dsn, include=[waiting]) as app:
            proxy.arm(Cut("pgflow app", what, 1, side))
            keys.append([run.key for run in await app.start_many(waiting, [()] * count)])

    keys: list[list[str]] = []
    with App(cut_dsn, include=[waiting]) as app:
        proxy.arm(Cut("pgflow app", what, 1, side))
        keys.append([run.key for run in app.start_many(waiting, [()] * count)])
    assert proxy.is_done
    asyncio.run(main())
    assert proxy.is_done
    known = [
        row[0] for row in conn.execute("select key from pgflow.run order by run_id").fetchall()
    ]
    assert [set(known[:count]), set(known[count:])] == [set(k) for k in keys]
    assert [len(set(k)) for k in keys] == [count, count]


@workflow
async def nothing() -> None:
    return None


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_run_is_begun_again_once_or_its_caller_hears_that_nobody_knows(
    proxy, cut_dsn, conn, side
):
    with App(cut_dsn, include=[nothing]) as app:
        app.run(nothing.options(key="n"))
        proxy.arm(Cut("pgflow app", "restart_run", 1, side))
        with pytest.raises(psycopg.OperationalError):
            app.restart("n")
        assert proxy.is_done
    assert conn.execute("select count(*) from pgflow.run").fetchone() == (
        2 if side == "after" else 1,
    )


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_fork_without_a_key_is_one_though_the_answer_is_lost(proxy, cut_dsn, conn, side):
    with App(cut_dsn, include=[nothing]) as app:
        app.run(nothing.options(key="n"))
        proxy.arm(Cut("pgflow app", "fork_run", 1, side))
        fork = app.fork("n", at=0)
        assert proxy.is_done
    assert {row[0] for row in conn.execute("select key from pgflow.run").fetchall()} == {"n", fork}


def test_what_is_cut_follows_from_the_seed_and_the_place_alone():
    path = PATHS["start"]
    seen = {("pgflow app", "start_run"): ["P", "B", "D", "E", "S"]}
    more = seen | {("pgflow app", "connect"): ["startup", "p"]}
    few = wirecut.plan(path, seen, 1, percent=50)
    assert 0 < len(few) < len(wirecut.plan(path, seen, 1))
    assert few == wirecut.plan(path, seen, 1, percent=50) != wirecut.plan(path, seen, 2, percent=50)
    assert [c for c in wirecut.plan(path, more, 1, percent=50) if c.what == "start_run"] == few


def test_every_path_says_which_promises_it_tests():
    assert {promise for path in PATHS.values() for promise in path.promises} == set(wirecut.FAULTS)
