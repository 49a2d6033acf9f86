"""Roles and databases with settings of their own, and poolers: what pgflow works with, and what it
refuses by name.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import servers
from clikit import pgflow as cli
from poolers import bouncer
from records import count, wait_until
from servers import HANG_SECONDS

from pgflow import App, Signal, schema, step, transaction, workflow
from pgflow.app import _base
from pgflow.errors import ServerUnsupported

LONG = timedelta(seconds=HANG_SECONDS)

go = Signal("go", str)


@step
async def echo(text: str) -> str:
    return text


@transaction
async def note(conn: psycopg.AsyncConnection[Any], text: str) -> str:
    row = await (
        await conn.execute("insert into public.noted values (%s) returning text, now()", (text,))
    ).fetchone()
    assert row is not None
    return f"{row[0]} in {row[1].year}"


@transaction
def note_sync(conn: psycopg.Connection[Any], text: str) -> str:
    row = conn.execute("insert into public.noted values (%s) returning text", (text,)).fetchone()
    assert row is not None
    return str(row[0])


@workflow
async def work(text: str) -> list[str]:
    return [
        await echo(text),
        (await note(text)).partition(" in ")[0],
        await note_sync.aio(text),
        await go.wait(),
    ]


TEXT = "tschüß 漢 \U0001f600 \\ ' \""

SETTINGS = {
    "strings": ["standard_conforming_strings = off", "backslash_quote = off", "array_nulls = off",
        "transform_null_equals = on"],
    "times": ["datestyle = 'SQL, DMY'", "timezone = 'Pacific/Apia'",
        "intervalstyle = 'sql_standard'", "extra_float_digits = -10", "bytea_output = 'escape'"],
    "latin 1": ["client_encoding = 'LATIN1'"],
    "no encoding": ["client_encoding = 'SQL_ASCII'"],
    "names": ["search_path = 'nowhere'", "row_security = off", "quote_all_identifiers = on"],
    "plans": ["jit = on", "jit_above_cost = 0", "enable_indexscan = off", "enable_nestloop = off"],
    "isolation": ["default_transaction_isolation = 'serializable'",
        "default_transaction_deferrable = on"],
    "time-outs": ["statement_timeout = 2000", "lock_timeout = 100",
        "idle_in_transaction_session_timeout = 500", "idle_session_timeout = 400"],
    "replica": ["session_replication_role = replica"],
}  # fmt: skip


def settle(conn: psycopg.Connection, settings: list[str]) -> None:
    """Gives the database these settings and no others, for every session that begins from now
    on.
    """
    (name,) = conn.execute("select current_database()").fetchone()
    conn.execute(f'alter database "{name}" reset all')  # the audit after the test takes its time
    for setting in settings:
        conn.execute(f'alter database "{name}" set {setting}')


@pytest.mark.full
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_run_comes_to_the_same_whatever_the_database_is_set_to(dsn, conn, settings):
    conn.execute("create table public.noted (text text)")
    settle(conn, settings)
    paged = []
    with App(dsn, include=[work, deadlocked]) as app:
        app.pager(paged.append)
        with app.worker(poll_seconds=0.1):
            run = app.start(work.options(key="ü", labels={"ä": TEXT}), TEXT)
            app.send("ü", go, TEXT)
            assert run.result(LONG) == [TEXT] * 4
            stuck = app.start(deadlocked)
            wait_until(lambda: paged, "a person is told")
            assert paged[0].run == stuck.key
    assert count(conn, "pgflow.held") == 1
    found = conn.execute("select labels from pgflow.runs where key = 'ü'").fetchone()
    assert found == ({"ä": TEXT},)
    listed = cli(dsn, "list", "--json")
    assert {row["key"] for row in listed.data} == {"ü", stuck.key}
    settle(conn, [])


@workflow
async def deadlocked() -> None:
    await asyncio.get_running_loop().create_future()


def partitions(conn: psycopg.Connection) -> int:
    return count(conn, "pg_inherits", "inhparent = 'pgflow.unit'::regclass")


def test_the_journal_gets_its_partitions_whatever_strings_mean(dsn, conn):
    settle(conn, SETTINGS["strings"])
    with psycopg.connect(dsn, autocommit=True) as session:
        before = partitions(conn)
        session.execute("select pgflow.add_unit_partitions(ahead => 5)")
        assert partitions(conn) == before + 2
        assert session.execute(
            "select pgflow.json_depth_(%s)", (r'{"a": ["[[\"[", {}]}',)
        ).fetchone() == (3,)


def test_no_literal_of_a_function_means_something_else_where_backslashes_are_escapes(db):
    """The text of a function is read with the settings of whoever calls it."""
    query = "select proname, prosrc from pg_proc where pronamespace = 'pgflow'::regnamespace"
    without_escapes = {
        name: re.sub(r"\be'(?:[^'\\]|\\.|'')*'", "", re.sub(r"--.*", "", text))
        for name, text in db.execute(query)
    }
    assert [name for name, text in without_escapes.items() if "\\" in text] == []


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_store_every_text_is_refused_in_one_line(server_dsn, encoding):
    name = servers.create_database(server_dsn)
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        admin.execute(f'drop database "{name}"')
        admin.execute(
            f"create database \"{name}\" encoding '{encoding}' lc_collate 'C' lc_ctype 'C' "
            "template template0"
        )
    dsn = servers.dsn_of(server_dsn, name)
    try:
        with pytest.raises(
            ServerUnsupported,
            match=rf"^database {name} has the encoding {encoding}, .*create database",
        ):
            schema.migrate_dsn(dsn)
        answer = cli(dsn, "migrate")
        assert answer.code == 2
        assert answer.err.count("\n") <= 1
        assert f"encoding {encoding}" in answer.err
    finally:
        servers.drop_database(server_dsn, name)


@pytest.fixture(autouse=True)
def _said_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_base, "_pooled", set())
    return


@step
async def count_up(n: int) -> int:
    return n


@transaction
async def add(conn: psycopg.AsyncConnection[Any], n: int) -> int:
    for _ in range(4):  # often enough for psycopg to prepare it
        await conn.execute("select %s::int", (n,))
    await conn.execute("insert into added values (%s)", (n,))
    return n


@transaction
def add_sync(conn: psycopg.Connection[Any], n: int) -> int:
    for _ in range(4):
        conn.execute("select %s::int", (n,))
    conn.execute("insert into added values (%s)", (n,))
    return n


@workflow
async def busy(n: int) -> int:
    total = 0
    for i in range(n):
        total += await count_up(i) + await add(i) + await add_sync.aio(i)
    return total


def work_through(address: str, runs: int) -> bool:
    """Has runs worked on through a pooler by an app with every default; whether it listens."""
    with App(address, include=[busy]) as app, app.worker(concurrency=20, poll_seconds=0.1):
        started = app.start_many(busy, [(5,) for _ in range(runs)])
        assert [run.result(LONG) for run in started] == [30] * runs
        return app.listens


@pytest.mark.full
def test_a_pooler_in_transaction_mode_is_noticed_and_worked_with(dsn, conn, caplog):
    conn.execute("create table added (n int)")
    with caplog.at_level(logging.WARNING, "pgflow"), bouncer(dsn, "transaction") as address:
        assert not work_through(address, 40)
    assert [r.message for r in caplog.records if "pooler" in r.message] == [
        (
            "the connection uses a pooler in transaction mode: nothing is prepared, and work is "
            "found by polling"
        )
    ]
    assert "prepared statement" not in caplog.text
    assert (count(conn, "added"), count(conn, "pgflow.held")) == (400, 0)


@pytest.mark.full
def test_a_pooler_in_session_mode_changes_nothing(dsn, conn, caplog):
    conn.execute("create table added (n int)")
    with bouncer(dsn, "session") as address:
        assert work_through(address, 5)
    assert "pooler" not in caplog.text


@pytest.mark.full
def test_a_pooler_that_was_not_noticed_is_named_once_it_loses_what_was_prepared(
    dsn, conn, caplog, monkeypatch
):
    monkeypatch.setattr(_base, "is_behind_pooler", lambda *_: False)
    conn.execute("create table added (n int)")
    with caplog.at_level(logging.WARNING, "pgflow"), bouncer(dsn, "transaction") as address:
        work_through(address, 40)
    # the app and its worker
    assert 1 <= caplog.text.count("seems to use a pooler in transaction mode") <= 2
    assert (count(conn, "added"), count(conn, "pgflow.held")) == (400, 0)
    found = conn.execute("select status, count(*) from pgflow.runs group by 1").fetchall()
    assert found == [("completed", 40)]


def test_who_prepares_nothing_and_does_not_listen_is_not_asked_about_poolers(dsn, monkeypatch):
    def asked(*_: object) -> bool:
        raise AssertionError

    monkeypatch.setattr(_base, "is_behind_pooler", asked)
    with App(dsn, include=[busy], prepare_threshold=None, listen=False) as app:
        assert not app.listens
