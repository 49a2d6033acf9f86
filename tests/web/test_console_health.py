"""The console's pages of the database and of a worker: what is wrong, and who does what."""

from __future__ import annotations

import secrets

import psycopg
import pytest
from clikit import as_role
from sqlkit import begin, commit, flush, unit
from test_console_pages import ANN, seen_in
from webkit import Browser, address, form_of, is_harmless

import pgflow
from pgflow.console import health
from pgflow.inspect import LargePartition, SealLag, ServerState, SnapshotRow, TableRow
from pgflow.web import Principal


@pytest.mark.full
async def test_the_health_of_the_database_names_who_keeps_dead_rows(aflow, dsn, monkeypatch):
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/health")
    assert is_harmless(page) == []
    seen_in(page, "Oldest snapshot under 5 m", "Tables the largest first", "Slow statements")
    page = await browser.get("/sql/page", page="/health")
    seen_in(
        page, "format('select pg_terminate_backend(%s)', a.pid)", "make_interval(secs => 300.0)"
    )
    monkeypatch.setattr("pgflow.web.pages.health.LONG_SECONDS", 0.0)
    async with await psycopg.AsyncConnection.connect(dsn, application_name="reports") as other:
        await other.execute("set transaction isolation level repeatable read")
        await other.execute("select count(*) from pgflow.run")
        page = await browser.get("/health")
        pid = other.info.backend_pid
        seen_in(page, f"The process {pid} of", "(reports) keeps dead rows")
        seen_in(page, f"select pg_terminate_backend({pid})")


@pytest.mark.full
async def test_a_role_that_sees_only_its_own_sessions_is_told_so(aflow, conn, dsn):
    role = f"console_auditor_{secrets.token_hex(3)}"
    conn.execute(f"create role {role} login password 'secret'; grant pgflow_auditor to {role}")
    try:
        async with pgflow.AsyncApp(as_role(dsn, role)) as app:
            seen_in(await Browser(app, ANN).get("/health"), "grant pg_read_all_stats to ROLE")
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}")
    assert "pg_read_all_stats" not in (await Browser(aflow.app, ANN).get("/health")).words


def test_each_thing_that_is_wrong_has_its_remedy():
    server = ServerState("17.0", True, ["autovacuum", "fsync"], 10, 95, 97, True)
    table = TableRow("ready", 10, 5, 50_000, None, True)
    lag = SealLag(True, 1, None, 0, 7, None, None, 0, None, None, None, True)  # type: ignore[arg-type]
    found = [
        *health.judge_server(server),
        *health.judge_tables([table, TableRow("unit_1", 10, 5, 50_000, None, False)]),
        *health.judge_snapshots([SnapshotRow("replication slot s", None, None, "x", None, "y")]),
        *health.judge_journal([LargePartition("unit_1", 5, "busy", 3, "12 MB")], [], lag),
    ]
    assert [one.name for one in found] == [
        "standby", "setting", "setting", "connections", "dead rows", "snapshot", "partition",
        "seals",
    ]  # fmt: skip
    assert found[1].remedy == "alter system set autovacuum = on; select pg_reload_conf()"
    assert found[4].remedy == "vacuum pgflow.ready"
    assert found[5].found == "The replication slot s keeps dead rows."
    healthy = ServerState("17.0", False, [], 10, 5, 97, True)
    assert list(health.judge_server(healthy)) == []


@pytest.mark.full
async def test_a_worker_shows_what_it_does(aflow, conn):
    held = begin(conn, key="held-1")
    starts = '[[2, "s", "ship", "1", null]]'
    commit(conn, flush(held, unit(name="pick", starts=starts)))
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/workers")
    assert f"/worker?id={held.worker}" in page.links
    page = await browser.get("/worker", id=str(held.worker))
    assert is_harmless(page) == []
    seen_in(page, "held-1", "started ship", "host:1", "Version test")
    assert f"/worker?id={held.worker}" in (await browser.get("/run", key="held-1")).links
    assert await browser.status("/worker", id="99999") == 404
    assert await browser.status("/worker", id="'") == 404


@pytest.mark.full
async def test_a_search_is_saved_by_a_name_and_is_its_persons_own(aflow):
    bob, eve = (Browser(aflow.app, Principal(name, ["operate"])) for name in ("bob", "eve"))
    search = address("/filters", status="failed", label="customer=acme")
    assert search in (await bob.get("/runs", status="failed", label="customer=acme")).links
    for wrong in ("", " ", "x" * 61):
        assert (await bob.submit(search, {"verb": "save"}, name=wrong)).status_code == 400
    evil = "<script>alert(1)</script>"
    for name in ("failed of  acme", evil):
        answer = await bob.submit(search, {"verb": "save"}, name=name)
        assert answer.headers["location"] == "/runs?status=failed&label=customer%3Dacme"
    page = await bob.get("/runs")
    assert is_harmless(page) == []
    seen_in(page, "failed of acme", evil, "Saved searches")
    assert "failed of acme" not in (await eve.get("/runs")).words
    assert is_harmless(await bob.get("/filters")) == []
    forget = {"verb": "forget", "name": "failed of acme"}
    with pytest.raises(AssertionError, match="no form"):
        form_of(await eve.get("/filters"), forget)
    assert (await bob.submit("/filters", forget)).headers["location"] == "/filters"
    assert "failed of acme" not in (await bob.get("/filters")).words
    viewer = Browser(aflow.app, Principal("bob", ["view"]))
    assert await viewer.status(search) == 403
    assert await bob.status("/filters", status="lost") == 400


async def test_only_so_many_searches_are_saved(aflow, monkeypatch):
    monkeypatch.setattr("pgflow.web.pages.filters.MOST_FILTERS", 1)
    bob = Browser(aflow.app, Principal("bob", ["operate"]))
    search = address("/filters", status="failed")
    for name, status in (("a", 303), ("b", 400), ("a", 303)):
        assert (await bob.submit(search, {"verb": "save"}, name=name)).status_code == status, name
