"""Upgrades beside a landed version: its schema is upgraded, and its workers' calls still resolve.

The landed versions are those of `tests/landed/`; `tests.states` says how to record one. `python -m
tests.upgrades` upgrades each with runs in flight, while its workers work.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
import servers
import states
import upgrades
from catalog import dump_catalog, touched
from records import count, eventually, run_row

from pgflow import AsyncApp, Signal, schema, workflow
from pgflow._worker.options import WorkerOptions
from pgflow._worker.worker import Worker
from pgflow.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=states.names())
def state(request: pytest.FixtureRequest) -> Iterator[states.State]:
    with states.unpacked(request.param) as state:
        yield state


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        yield conn


def numbered(statement: str) -> str:
    """With Postgres's own placeholders."""
    count = iter(range(1, 1000))
    return re.sub(r"%[s%]", lambda found: "%" if found[0] == "%%" else f"${next(count)}", statement)


def unresolved(conn: psycopg.Connection, statements: list[str]) -> list[str]:
    """Statements whose functions, arguments or columns the catalog at hand does not have."""
    said = []
    for statement in statements:
        try:
            conn.execute(f"prepare landed as {numbered(statement)}")
        except psycopg.ProgrammingError as error:
            said.append(f"{statement}: {error.diag.message_primary}")
        else:
            conn.execute("deallocate landed")
    return said


def test_a_recorded_state_is_what_its_name_says(state):
    assert states.name_of(state.folder) == state.name


def test_what_a_landed_version_calls_stays(state, empty):
    schema.migrate(empty)
    assert unresolved(empty, state.calls()) == []


def test_a_call_that_is_gone_is_named(state, empty):
    schema.migrate(empty)
    calls = state.calls()
    assert len(calls) > 40
    empty.execute("drop function pgflow.leave_worker(int)")
    empty.execute("alter function pgflow.observe_workers() rename to observed_workers")
    assert [line.partition(": ")[0] for line in unresolved(empty, calls)] == [
        "select worker_id, beat from pgflow.observe_workers()",
        "select pgflow.leave_worker(%s::int)",
    ]


FUNCTIONS = """
    select p.proname, string_to_array(p.proargtypes::text, ' ')::oid[]::regtype[]::text[], p.pronargs - p.pronargdefaults
    from pg_proc p where p.pronamespace = 'pgflow'::regnamespace
"""


def test_what_functions_of_a_landed_version_call_stays(state, empty):
    """A call that waits for the installer's locks goes on in the text it began with, and asks for
    the functions of then.
    """
    schema.install(empty, state.assets)
    landed = empty.execute(FUNCTIONS).fetchall()
    assert len(landed) > 100
    schema.migrate(empty)
    ours = empty.execute(FUNCTIONS).fetchall()
    gone = [
        f"{name}({', '.join(types)})"
        for name, types, _ in landed
        if not any(
            n == name and t[: len(types)] == types and needed <= len(types) for n, t, needed in ours
        )
    ]
    assert gone == []


def test_a_call_that_an_upgrade_has_overtaken_comes_to_its_end(state, empty_dsn, empty):
    """It goes on in the functions that it began with, whatever has taken their place."""
    schema.install(empty, state.assets)
    with (
        ThreadPoolExecutor(2) as pool,
        psycopg.connect(empty_dsn, autocommit=True) as holder,
        psycopg.connect(empty_dsn, autocommit=True) as client,
    ):
        client.execute("set deadlock_timeout = '1min'")
        client.execute("select pgflow.start_run(workflow => 'w', input => '{}', key => 'before')")
        holder.execute(servers.MIDWAY.format(""))
        installing = pool.submit(schema.migrate_dsn, empty_dsn)
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


def test_functions_that_have_made_way_may_be_called_by_nobody_and_are_gone_with_an_upgrade_an_hour_later(
    state, empty
):
    schema.install(empty, state.assets)
    schema.migrate(empty)
    former = "select oid::regprocedure::text, proacl::text, obj_description(oid, 'pg_proc') from pg_proc where proname ~ '^former_\\d+$'"
    found = empty.execute(former).fetchall()
    assert found
    assert [
        acl
        for _, acl, _ in found
        if "pgflow_worker" in acl or "pgflow_client" in acl or "{=" in acl or ",=" in acl
    ] == []
    schema.install(empty, touched(schema.own_assets()))
    assert empty.execute(former).fetchall() == found
    for signature, _, said in found:
        empty.execute(
            f"comment on function {signature} is "
            f"'{re.sub(r' until [^ ]+Z:', ' until 2026-01-01T00:00:00Z:', said)}'"
        )
    schema.migrate(empty)
    assert empty.execute(former).fetchall() == []


VIEWS = """
    select c.relname, a.attname, a.atttypid::regtype::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
    where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v'
"""


def test_what_a_landed_version_reads_stays(state, empty):
    """Its command line, its metrics and the queries of its users name columns of views."""
    schema.install(empty, state.assets)
    landed = set(empty.execute(VIEWS).fetchall())
    assert len(landed) > 100
    schema.migrate(empty)
    assert landed - set(empty.execute(VIEWS).fetchall()) == set()


def test_a_landed_schema_becomes_the_one_of_a_fresh_install(state, empty):
    schema.install(empty, state.assets)
    schema.migrate(empty)
    upgraded = dump_catalog(empty, with_server_details=True)
    assert empty.execute("select * from pgflow.check()").fetchall() == []
    empty.execute("drop schema pgflow cascade")
    schema.migrate(empty)
    assert upgraded == dump_catalog(empty, with_server_details=True)


BEFORE_FROZEN = [
    json.loads(line) for line in (states.LANDED / "before_frozen.jsonl").read_text().splitlines()
]
"""Rows of `pgflow.migration` where a copy installed it that came before migrations were frozen:
{name: hash}.
"""


def test_a_schema_from_before_migrations_were_frozen_is_left_alone_and_one_line_says_what_to_do(
    state, empty
):
    schema.install(empty, state.assets)
    before = dump_catalog(empty)
    for applied in BEFORE_FROZEN:
        empty.execute("delete from pgflow.migration")
        for row in applied.items():
            empty.execute(
                "insert into pgflow.migration (number, name, sha256) values (left(%s, 4)::int, %s, "
                "%s)",
                (row[0], *row),
            )
        with pytest.raises(
            SetupError,
            match="from before migrations were frozen. End its runs with that copy, then `drop "
            "schema",
        ) as refused:
            schema.migrate(empty)
        assert type(refused.value) is SetupError
        assert "\n" not in str(refused.value)
    assert len(BEFORE_FROZEN) > 20
    assert dump_catalog(empty) == before


@pytest.mark.full
@pytest.mark.parametrize("name", states.names())
def test_workers_of_a_landed_version_go_on_while_its_schema_is_upgraded(server_dsn, name):
    figures, wrong = upgrades.play(server_dsn, name, 15, 1)
    assert wrong == []
    assert figures["in_flight"]
    assert figures["completed_by_old_workers_alone"] >= 10


def test_the_newest_states_of_the_history_become_a_fresh_install_and_their_runs_go_on(server_dsn):
    assert upgrades.upgrade_history(server_dsn, 2)[1] == []


# ------------------------------------------------- a worker that works while its schema is upgraded

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
            f"the schema is now of {stamp(999)}; this worker is of {ours} and goes on: start the new "
            "version in its place"
        )
    ]
    assert run_row(conn, "before", "status") == run_row(conn, "after", "status") == ("completed",)


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
            await asyncio.wait_for(worker.failed.wait(), 10)
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
