"""Upgrades: what a release calls and reads stays, its runs in flight end, its workers go on.

The releases are those of `tests/releases/`, and the version at hand, which is upgraded to an imagined
next one. `python -m tests.upgrades` plays the same for longer.
"""

from __future__ import annotations

import asyncio
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
import releases
import servers
import upgrades
from catalog import dump_catalog, touched
from records import count, eventually, run_row

from pgflow import AsyncApp, Signal, schema, workflow
from pgflow._worker.options import WorkerOptions
from pgflow._worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture(scope="module")
def later() -> Iterator[upgrades.Version]:
    """The imagined next version."""
    with upgrades.next_version() as version:
        yield version


@pytest.mark.full
@pytest.mark.parametrize(
    "path",
    [None, *releases.recorded()],
    ids=lambda path: "this version" if path is None else path.name,
)
def test_the_runs_in_flight_of_a_release_end_after_its_upgrade(server_dsn, later, path, tmp_path):
    path = path or releases.write(upgrades.record_at_hand(server_dsn), tmp_path)
    record = releases.read(path)
    places = {"pgflow.ready", "pgflow.lease", "pgflow.parked", "pgflow.held", "pgflow.signal"}
    assert places <= record.rows.keys()
    to = later if path.parent == tmp_path else upgrades.AT_HAND
    assert upgrades.upgrade_record(server_dsn, record, to) == []


@pytest.mark.full
def test_workers_go_on_while_their_schema_is_upgraded(server_dsn):
    figures, wrong = upgrades.play(server_dsn, 12, 1)
    assert wrong == []
    assert figures["in_flight"]
    assert figures["completed_by_old_workers_alone"] >= 8


@pytest.mark.full
def test_no_transaction_of_an_application_fails_while_tables_in_use_are_altered(server_dsn):
    figures, wrong = upgrades.play_tables(server_dsn, 7, 1)
    assert wrong == []
    assert figures["application_transactions"] > 7 * 20


def test_the_migrations_of_releases_are_frozen():
    ours = schema.own_assets()
    for path in releases.recorded():
        assert releases.changed_migrations(releases.read(path), ours) == []


def test_a_change_of_a_migration_of_a_release_is_named():
    ours = schema.own_assets()
    record = releases.Record(ours._replace(version="0.0.1"), {}, {})
    assert releases.changed_migrations(record, ours) == []
    first, *rest = ours.migrations
    edited = first._replace(text=f"{first.text}--")
    for changed in ((edited, *rest), tuple(rest)):
        (line,) = releases.changed_migrations(record, ours._replace(migrations=changed))
        assert line.startswith(f"{first.name} is of release 0.0.1")


def test_the_numbers_of_migrations_run_from_one_without_a_gap():
    numbers = [file.number for file in schema.own_assets().migrations]
    assert numbers == list(range(1, len(numbers) + 1))


def test_what_a_version_calls_or_reads_and_is_gone_is_named(conn):
    before = upgrades.callable_names(conn)
    assert min(map(len, before)) > 100
    assert upgrades.missing(before, upgrades.callable_names(conn)) == []
    with conn.transaction(force_rollback=True):
        conn.execute("drop function pgflow.leave_worker(int)")
        conn.execute("alter function pgflow.observe_workers() rename to observed_workers")
        conn.execute("alter view pgflow.workers rename column host to machine")
        gone = upgrades.missing(before, upgrades.callable_names(conn))
    assert sorted(gone) == ["leave_worker(integer)", "observe_workers()", "workers.host.text"]


@pytest.mark.full
def test_an_upgraded_schema_is_a_fresh_one_and_what_made_way_is_gone_an_hour_later(empty, later):
    former = "select oid::regprocedure::text, proacl::text, obj_description(oid, 'pg_proc') from pg_proc where proname ~ '^former_\\d+$'"
    schema.migrate(empty)
    schema.install(empty, later.assets)
    upgraded = dump_catalog(empty, with_server_details=True)
    found = empty.execute(former).fetchall()
    assert len(found) == 1
    assert not re.search(r"pgflow_(worker|client)|[{,]=", found[0][1])
    schema.install(empty, touched(later.assets))
    assert empty.execute(former).fetchall() == found
    for signature, _, said in found:
        long_ago = re.sub(r" until [^ ]+Z:", " until 2026-01-01T00:00:00Z:", said)
        empty.execute(f"comment on function {signature} is '{long_ago}'")
    schema.install(empty, later.assets)
    assert empty.execute(former).fetchall() == []
    empty.execute("drop schema pgflow cascade")
    schema.install(empty, later.assets)
    assert upgraded == dump_catalog(empty, with_server_details=True)


@pytest.mark.full
def test_a_call_that_an_upgrade_has_overtaken_comes_to_its_end(empty_dsn, empty, later):
    """It goes on in the functions that it began with, whatever has taken their place."""
    schema.migrate(empty)
    with (
        ThreadPoolExecutor(2) as pool,
        psycopg.connect(empty_dsn, autocommit=True) as holder,
        psycopg.connect(empty_dsn, autocommit=True) as client,
    ):
        client.execute("set deadlock_timeout = '1min'")
        client.execute("select pgflow.start_run(workflow => 'w', input => '{}', key => 'before')")
        holder.execute(servers.MIDWAY.format(""))
        installing = pool.submit(schema.install, empty, later.assets)
        servers.wait_until_blocked(empty_dsn)
        calling = pool.submit(
            client.execute,
            "select (pgflow.start_run(workflow => 'w', input => '{}', key => 'k')).*",
        )
        servers.wait_until_blocked(empty_dsn, client.info.backend_pid)
        holder.execute(servers.MIDWAY.format("un"))
        assert installing.result(60).migrations
        assert calling.result(60).fetchone() is not None
    assert empty.execute("select status from pgflow.runs where key = 'k'").fetchone() == ("queued",)
    assert empty.execute("select * from pgflow.check()").fetchall() == []


go = Signal("go", int)


@workflow
async def waits() -> int:
    return await go.wait()


def stamp(schema_number: int, breaking: int = 1) -> str:
    return f"pgflow-engine 0.1.0 (schema {schema_number}, breaking {breaking}, files 1234)"


def put_stamp(conn: psycopg.Connection, comment: str) -> None:
    conn.execute(f"comment on schema pgflow is '{comment}'")


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgflow._worker.upkeep.STRAYS_EVERY_SECONDS", 0.05)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "schema" in record.getMessage()]


@pytest.mark.full
@pytest.mark.unsound  # the stamp is not the one of what is installed
@pytest.mark.usefixtures("looks_often")
def test_a_worker_says_once_that_the_schema_is_newer_and_goes_on(dsn, conn, caplog):
    async def main() -> None:
        app = AsyncApp(dsn, include=[waits])
        async with app:
            worker = Worker(app._resolve(), app.definitions, WorkerOptions(poll_seconds=0.05))
            await worker.start()
            await app.start(waits.options(key="before"))
            await eventually(
                lambda: run_row(conn, "before", "status") == ("waiting",), "the run waits"
            )
            assert conn.execute("select is_outdated from pgflow.workers").fetchall() == [(False,)]
            put_stamp(conn, stamp(999))
            await eventually(lambda: lines(caplog), "the worker has said so")
            assert conn.execute("select is_outdated from pgflow.workers").fetchall() == [(True,)]
            await app.send("before", go, 1)
            await app.start(waits.options(key="after"))
            await app.send("after", go, 2)
            await eventually(lambda: count(conn, "pgflow.outcome") == 2, "both runs have ended")
            assert not worker.failed.is_set()
            await worker.stop()

    caplog.set_level(logging.WARNING, "pgflow")
    asyncio.run(main())
    ours = schema.own_assets().stamp
    assert lines(caplog) == [
        (
            f"the schema is of {stamp(999)}; this worker is of {ours} and continues: start the new "
            "version in its place"
        )
    ]
    assert run_row(conn, "before", "status") == run_row(conn, "after", "status") == ("completed",)


@pytest.mark.unsound
def test_a_worker_that_starts_on_a_newer_schema_says_so(dsn, conn, caplog):
    async def main() -> None:
        app = AsyncApp(dsn, include=[waits])
        async with app, app.worker():
            await eventually(lambda: lines(caplog), "the worker has said so")

    put_stamp(conn, stamp(999))
    asyncio.run(main())
    (line,) = lines(caplog)
    assert line.startswith(f"the schema is of {stamp(999)}; this worker is of ")


@pytest.mark.unsound
@pytest.mark.usefixtures("looks_often")
def test_a_worker_takes_no_further_runs_from_a_schema_that_its_code_cannot_work_with(
    dsn, conn, caplog
):
    async def main() -> None:
        app = AsyncApp(dsn, include=[waits])
        async with app:
            worker = Worker(app._resolve(), app.definitions, WorkerOptions(poll_seconds=0.05))
            await worker.start()
            put_stamp(conn, stamp(999, breaking=999))
            await worker.failed.wait()
            # A claim that it sent before may still be on its way.
            await eventually(lambda: not worker.is_busy, "it holds no runs")
            await app.start(waits.options(key="after"))
            await worker.sweep()
            assert not worker.is_busy
            await worker.stop()

    asyncio.run(main())
    (line,) = lines(caplog)
    assert line.endswith("this worker takes no further runs")
    assert run_row(conn, "after", "status") == ("queued",)


@pytest.mark.unsound
@pytest.mark.usefixtures("looks_often")
def test_a_worker_whose_schema_was_put_back_says_what_to_do(dsn, conn, caplog):
    async def main() -> None:
        app = AsyncApp(dsn, include=[waits])
        async with app:
            worker = Worker(app._resolve(), app.definitions, WorkerOptions(poll_seconds=0.05))
            await worker.start()
            put_stamp(conn, stamp(1))
            await eventually(lambda: lines(caplog), "the worker has said so")
            await worker.stop()

    asyncio.run(main())
    (line,) = lines(caplog)
    assert line.endswith("run `pgflow migrate`")
