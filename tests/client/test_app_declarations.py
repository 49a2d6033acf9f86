"""What an app declares is set by whichever of its processes comes first: here one that works on
nothing, such as a web server.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from clikit import pgflow as cli
from psycopg.conninfo import make_conninfo

from pgflow import App, AsyncApp, InvalidArgument, Signal, schedule, step, workflow
from pgflow.authority import Pool
from pgflow.errors import MissingGrant, PoolNotFound, RelayNotFound, ScheduleNotFound
from pgflow.events import Relay
from pgflow.queues import Queue

go = Signal("go", int)


@step
def nothing() -> None: ...


@workflow
def plain() -> None: ...


@schedule(every=timedelta(hours=1))
@workflow
def hourly() -> None: ...


@workflow(signals=[go])
async def waits() -> int:
    return await go.wait()


@workflow
def takes(event: dict[str, Any]) -> None: ...


BOTH = pytest.mark.parametrize("colour", [App, AsyncApp])


def within(colour: type, dsn: str, act: Callable[[Any], Any], **parts: Any) -> Any:
    """What an act answers in an open app of a colour."""
    if colour is App:
        with App(dsn, **parts) as app:
            return act(app)

    async def main() -> Any:
        async with AsyncApp(dsn, **parts) as app:
            answer = act(app)
            return await answer if inspect.isawaitable(answer) else answer

    return asyncio.run(main())


def rules(conn: psycopg.Connection, queue: str = "orders") -> Any:
    row = conn.execute("select rules from pgflow.queue_rules where queue = %s", (queue,)).fetchone()
    return row and row[0]


def as_role(dsn: str, role: str) -> str:
    return make_conninfo(dsn, options=f"-c role={role}")


PARTS: dict[str, Any] = {
    "include": [plain, hourly, waits],
    "pools": [Pool("bank", usd=5), Pool("trial", usd=1, parent="bank")],
    "queues": [Queue("orders", key="input.customer", key_rate="20/10s")],
}


@BOTH
@pytest.mark.parametrize("role", ["pgflow_declarer", "pgflow_worker", "pgflow_operator"])
def test_whoever_comes_first_sets_what_the_app_declares(dsn, conn, colour, role):
    as_first = as_role(dsn, role)
    relay = Relay("hook", ["shipped"], to=takes)
    parts = {**PARTS, "include": [*PARTS["include"], takes, relay]}
    within(colour, as_first, lambda app: None, **parts)
    assert rules(conn) == {"key": "input.customer", "key_rate": "20/10s"}
    found = conn.execute("select pool from pgflow.budgets order by 1").fetchall()
    assert found == [("bank",), ("trial",)]
    assert conn.execute("select name from pgflow.schedules").fetchall() == [("hourly",)]
    assert conn.execute("select name from pgflow.relays").fetchall() == [("hook",)]
    as_client = as_role(dsn, "pgflow_client")
    started = within(
        colour, as_client, lambda app: app.start(plain.options(key="k", pool="trial")), **parts
    )
    assert started.key == "k"
    conn.execute("select pgflow.start_run('waits', '{}', key => 'w')")
    with pytest.raises(psycopg.Error, match="the payload of signal 'go' does not fit"):
        conn.execute("select pgflow.send_signal('w', 'go', '\"text\"')")


@BOTH
def test_a_role_without_the_right_starts_all_the_same_and_says_which_grant_it_lacks(
    dsn, conn, colour, caplog
):
    caplog.set_level(logging.WARNING, "pgflow")
    as_client = as_role(dsn, "pgflow_client")

    def start(app: Any) -> Any:
        return app.start(plain.options(key="k"))

    assert within(colour, as_client, start, **PARTS).key == "k"
    (line,) = [record.getMessage() for record in caplog.records]
    for part in ("pool bank", "queue orders", "grant pgflow_declarer to pgflow_client"):
        assert part in line
    with pytest.raises(PoolNotFound, match="no pool is named 'bank'"):
        within(colour, as_client, lambda app: app.start(plain.options(pool="bank")), **PARTS)
    within(colour, dsn, lambda app: None, **PARTS)
    caplog.clear()
    assert within(colour, as_client, start, **PARTS).key == "k"
    assert caplog.records == []


@BOTH
def test_what_people_have_set_stands_until_the_code_says_something_else(dsn, conn, colour):
    def declare(*queues: Queue, **parts: Any) -> None:
        within(colour, dsn, lambda app: None, include=[plain, hourly], queues=queues, **parts)

    declare(Queue("orders", concurrency=5, rate="1/s"), pools=[Pool("bank", usd=5)])
    conn.execute("""select pgflow.set_queue('orders', '{"concurrency": 9}')""")
    conn.execute("""select pgflow.set_pool('bank', '{"usd": 9}')""")
    declare(Queue("orders", concurrency=5, rate="1/s"), pools=[Pool("bank", usd=5)])
    assert rules(conn) == {"concurrency": 9, "rate": "1/s"}
    declare(Queue("orders", concurrency=6), pools=[Pool("bank", usd=6)])
    assert rules(conn) == {"concurrency": 6}
    row = conn.execute("select limits from pgflow.pool where name = 'bank'").fetchone()
    assert row == ({"usd": 6},)
    conn.execute("select pgflow.remove_schedule('hourly')")
    declare()
    assert conn.execute("select name from pgflow.schedules").fetchall() == []


def test_processes_that_come_at_once_set_a_thing_once(dsn, conn):
    async def main() -> None:
        apps = [AsyncApp(dsn, **PARTS) for _ in range(6)]
        async with asyncio.TaskGroup() as group:
            for app in apps:
                group.create_task(app._open())
        for app in apps:
            await app.close()

    asyncio.run(main())
    assert conn.execute("select count(*) from pgflow.queue_changes").fetchone() == (1,)
    assert conn.execute("select count(*) from pgflow.budgets").fetchone() == (2,)
    assert conn.execute("select count(*) from pgflow.schedule_changes").fetchone() == (1,)


def test_an_app_that_declares_nothing_asks_nothing(dsn, monkeypatch):
    monkeypatch.setattr("pgflow._db.calls.declare.undeclared", None)
    within(App, dsn, lambda app: None, include=[plain])


def test_rules_that_no_queue_can_have_are_refused_where_they_are_declared(dsn):
    with pytest.raises(InvalidArgument, match="queue 'q': unknown rule speed; the rules are conc"):
        Queue("q", speed=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="the name of a queue"):
        Queue("")
    with pytest.raises(InvalidArgument, match="per_key, key_rate and weights are of keys"):
        within(App, dsn, lambda app: None, queues=[Queue("q", per_key=1)])


@BOTH
def test_what_is_missing_is_named_by_its_class(dsn, colour):
    for error, act in (
        (PoolNotFound, lambda app: app.revoke_pool("bank")),
        (ScheduleNotFound, lambda app: app.pause_schedule("hourly")),
        (RelayNotFound, lambda app: app.pause_relay("hook")),
    ):
        with pytest.raises(error):
            within(colour, dsn, act)


@BOTH
def test_a_right_that_a_role_lacks_is_our_error_and_names_role_and_grant(dsn, colour):
    as_client = as_role(dsn, "pgflow_client")
    said = "role pgflow_client may not use pgflow.set_queue: grant pgflow_operator to pgflow_client"
    with pytest.raises(MissingGrant, match=said):
        within(colour, as_client, lambda app: app.set_queue("orders", concurrency=1))
    as_nobody = as_role(dsn, "pg_monitor")
    with pytest.raises(MissingGrant, match="grant pgflow_client to pg_monitor"):
        within(colour, as_nobody, lambda app: app.start(plain))
    said = "role pgflow_client may not use pgflow.register_worker: grant pgflow_worker to pgflow_c"
    with App(as_client, include=[plain]) as app, pytest.raises(MissingGrant, match=said):
        with app.worker():
            pass
    with psycopg.connect(as_client) as mine, App(as_client) as app:
        with pytest.raises(MissingGrant, match="grant pgflow_operator to pgflow_client"):
            app.using(mine).set_queue("orders", concurrency=1)


def test_the_command_line_names_role_and_grant_and_asks_about_a_queue_that_nothing_has_used(
    dsn, conn
):
    as_client = as_role(dsn, "pgflow_client")
    refused = cli(as_client, "queues", "set", "orders", "--concurrency", "1", "--yes")
    assert refused.code == 2
    assert "may not use pgflow.set_queue: grant pgflow_operator to pgflow_client" in refused.err
    typed = cli(dsn, "queues", "set", "odrers", "--concurrency", "1")
    assert typed.code == 2
    assert "Nothing has used a queue 'odrers' yet." in typed.err
    assert rules(conn, "odrers") is None
    conn.execute("select pgflow.start_run('plain', '{}', queue => 'orders')")
    assert cli(dsn, "queues", "set", "orders", "--concurrency", "1").code == 0
