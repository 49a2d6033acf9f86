"""What a landed version relies on goes on beside the one at hand: its schema is upgraded, its workers' calls still resolve.

The landed versions are those of `tests/landed/`; `tests.states` says how to record one. `python -m tests.upgrades`
upgrades each with runs in flight, while its workers work.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg
import pytest
import states
from catalog import dump_catalog

from pgflow import schema

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
        "select worker_id, beat from pgflow.observe_workers()", "select pgflow.leave_worker(%s::int)",
    ]  # fmt: skip


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
