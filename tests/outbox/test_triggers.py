"""Triggers: a change of a row starts a run, once, in the transaction that changes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from clikit import pgflow as run_cli
from sqlkit import one, rows

import pgflow
from pgflow import workflow
from pgflow._flow.triggers import Trigger
from pgflow.errors import DefinitionError
from pgflow.events import Change

TABLE = "create table orders (id int primary key, status text, total numeric default 0)"


@dataclass
class Order:
    id: int
    status: str
    total: float = 0


@pgflow.events.on("orders", when="new.status = 'paid'", old_differs=["status"])
@workflow
async def fulfil(order: Order) -> int:
    return order.id


@pgflow.events.on(
    "public.orders", operations=["insert", "update", "delete"], name="watch", always=True
)
@workflow
async def watch(change: Change) -> Change:
    return change


def trigger(made: Any) -> Trigger:
    (found,) = made.triggers
    assert isinstance(found, Trigger)
    return found


def install(conn: psycopg.Connection[Any], made: Any) -> None:
    conn.execute(trigger(made).ddl())


def started(conn: psycopg.Connection[Any]) -> list[Any]:
    return rows(conn, "select input->'order'->>'id' from pgflow.runs order by run_id")


@pytest.mark.full
async def test_a_row_that_comes_to_meet_the_condition_starts_one_run(aflow, conn):
    aflow.include(fulfil)
    conn.execute(TABLE)
    install(conn, fulfil)
    install(conn, fulfil)  # which changes nothing
    conn.execute("insert into orders values (1, 'new'), (2, 'paid'), (3, 'new')")
    conn.execute("update orders set status = 'paid' where id = 1")
    conn.execute("update orders set total = 5 where id = 1")  # paid already
    conn.execute("update orders set status = 'sent'")
    with conn.transaction(force_rollback=True):
        conn.execute("update orders set status = 'paid'")
    assert started(conn) == ["2", "1"]
    await aflow.until_idle()
    assert rows(conn, "select status from pgflow.runs") == ["completed", "completed"]


@pytest.mark.full
async def test_copy_and_updates_of_many_rows_start_a_run_for_each(aflow, conn):
    aflow.include(fulfil)
    conn.execute(TABLE)
    install(conn, fulfil)
    with conn.cursor() as cursor, cursor.copy("copy orders (id, status) from stdin") as copy:
        for number in range(100):
            copy.write_row((number, "paid" if number % 2 else "new"))
    assert len(started(conn)) == 50
    conn.execute("update orders set status = 'paid'")
    assert sorted(map(int, started(conn))) == list(range(100))
    await aflow.until_idle()


async def test_a_workflow_may_get_all_of_the_change(aflow, conn):
    aflow.include(watch)
    conn.execute(TABLE)
    install(conn, watch)
    conn.execute("insert into orders values (1, 'new')")
    conn.execute("update orders set status = 'paid'")
    conn.execute("delete from orders")
    new = {"id": 1, "status": "new", "total": 0}
    paid = {**new, "status": "paid"}
    await aflow.until_idle()
    keys = rows(conn, "select key from pgflow.runs order by run_id")
    assert [await aflow.app.get(key, watch).result() for key in keys] == [
        Change("public.orders", "insert", new, None),
        Change("public.orders", "update", paid, new),
        Change("public.orders", "delete", None, paid),
    ]


def test_what_logical_replication_applies_starts_runs_only_if_that_is_said(conn):
    conn.execute(TABLE)
    install(conn, fulfil)
    install(conn, watch)
    conn.execute("set session_replication_role = replica")  # as whoever applies does
    conn.execute("insert into orders values (1, 'paid')")
    assert rows(conn, "select workflow from pgflow.runs") == [watch.name]


def test_whoever_writes_to_the_table_needs_no_right_on_pgflow_and_no_path_leads_astray(conn):
    conn.execute(TABLE)
    install(conn, fulfil)
    conn.execute("create role writes_orders")
    try:
        conn.execute("grant insert on orders to writes_orders")
        conn.execute("create schema evil")
        conn.execute(
            "create function evil.to_json(anyelement) returns json"
            " language sql as $$ select '{}'::json $$"
        )
        conn.execute("grant usage on schema evil to writes_orders")
        conn.execute("set role writes_orders; set search_path = evil, pg_catalog, public")
        conn.execute("insert into public.orders values (1, 'paid')")
        conn.execute("reset role; reset search_path")
        assert started(conn) == ["1"]
        made = "select prosecdef, proconfig from pg_proc p where p.proname = %s"
        assert one(conn, made, trigger(fulfil).name) == (True, ["search_path=pg_catalog, pg_temp"])
    finally:
        conn.execute("reset role; reset search_path; drop owned by writes_orders")
        conn.execute("drop role writes_orders")


def test_an_altered_disabled_or_removed_trigger_is_found(conn):
    conn.execute(TABLE)
    install(conn, fulfil)
    name = trigger(fulfil).name
    state = "select state from pgflow.triggers"
    assert rows(conn, state) == ["installed"]
    conn.execute(f'alter table orders disable trigger "{name}_ins"')
    assert rows(conn, state) == ["disabled"]
    conn.execute(f'alter table orders enable always trigger "{name}_ins"')
    assert rows(conn, state) == ["altered"]
    install(conn, fulfil)
    assert rows(conn, state) == ["installed"]
    conn.execute(f'drop trigger "{name}_upd" on orders')
    assert rows(conn, state) == ["altered"]
    conn.execute("drop table orders")
    assert rows(conn, state) == ["removed"]


def test_a_trigger_is_removed_by_its_own_statements(conn):
    conn.execute(TABLE)
    install(conn, fulfil)
    conn.execute(trigger(fulfil).removal())
    assert rows(conn, "select 1 from pgflow.triggers") == []
    conn.execute("insert into orders values (1, 'paid')")
    assert started(conn) == []


MODULE = """
import pgflow

@pgflow.events.on("orders", when="new.status = '{status}'")
@pgflow.workflow
async def fulfil(order: dict) -> None: ...
"""


def test_the_command_line_prints_and_compares(dsn, conn, tmp_path):
    conn.execute(TABLE)
    for number, status in enumerate(("paid", "sent")):
        (tmp_path / f"flows{number}.py").write_text(MODULE.format(status=status))
    (tmp_path / "nothing.py").write_text("import pgflow\napp = pgflow.AsyncApp()\n")

    def ask(*given: str) -> tuple[int, str]:
        result = run_cli(dsn, "triggers", *(str(tmp_path / g) if ".py" in g else g for g in given))
        return result.code, result.out

    def states(*given: str) -> list[str]:
        code, out = ask(*given, "--json")
        found = [row["state"] for row in json.loads(out)]
        assert code == (1 if any(state != "installed" for state in found) else 0)
        return found

    assert states("flows0.py") == ["missing"]
    code, sql = ask("flows0.py", "--sql")
    assert code == 0
    conn.execute(sql)
    assert states("flows0.py") == states() == ["installed"]
    assert states("flows1.py") == ["outdated"]
    assert states("nothing.py") == ["not in the code"]


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("orders", {"when": "lower(new.status) = 'paid'"}, "not plain"),
        ("orders", {"when": "exists (select 1)"}, "not plain"),
        ("orders", {"when": "new.id in (select 1)"}, "not plain"),
        ("orders", {"when": "new.id::text = '1'"}, "not plain"),
        ("orders", {"when": "new.id = 1; drop table orders"}, "more than a condition"),
        ("orders", {"when": "new.id = 1 limit 1"}, "more than a condition"),
        ("orders", {"when": "new.id = "}, "cannot be parsed"),
        ("orders", {"when": "status = 'paid'"}, "must be one of new or old"),
        ("orders", {"when": "a.new.id = 1"}, "must be one of new or old"),
        ("orders", {"when": "old.id = 1", "operations": ["insert"]}, "which there is not"),
        ("orders", {"when": "new.id = 1", "operations": ["delete"]}, "which there is not"),
        ("orders", {"operations": ["truncate"]}, "operations are"),
        ("orders", {"operations": []}, "operations are"),
        ("orders", {"old_differs": "status"}, "a list of columns"),
        ("orders", {"old_differs": [""]}, "not a column"),
        ("orders", {"old_differs": ["a"], "operations": ["insert"]}, "requires updates"),
        ("orders", {"name": "x; drop"}, "a name has"),
        ("a.b.c", {}, "not a table"),
        ("orders o", {}, "not a table"),
        ("f(1)", {}, "not a table"),
    ],
)
def test_what_no_trigger_can_be_is_refused(table, options, said):
    async def fn(order: dict[str, Any]) -> None: ...

    with pytest.raises(DefinitionError, match=said):
        pgflow.events.on(table, **options)(workflow(fn))


def test_on_stands_above_a_workflow_of_one_parameter():
    with pytest.raises(DefinitionError, match="must be above"):
        pgflow.events.on("orders")(len)  # type: ignore[type-var]

    @workflow
    async def none() -> None: ...

    with pytest.raises(DefinitionError, match="one parameter"):
        pgflow.events.on("orders")(none)


@pytest.mark.parametrize(
    ("when", "row", "fires"),
    [
        ("new.status = 'it''s'", "(1, 'it''s')", True),
        ("new.id between 1 and 3 and not new.status in ('a', 'b')", "(2, 'c')", True),
        ("new.status is null or new.id < -1", "(1, null)", True),
        ('NEW."Odd "', None, False),
        ("new.status is not distinct from null", "(1, 'x')", False),
    ],
)
def test_a_condition_means_what_postgres_takes_it_for(conn, when, row, fires):
    async def fn(order: dict[str, Any]) -> None: ...

    made = pgflow.events.on("orders", when=when)(workflow(fn))
    if row is None:
        conn.execute('create table orders (id int, "Odd " boolean)')
        row = "(1, false)"
    else:
        conn.execute(TABLE)
    install(conn, made)
    conn.execute(f"insert into orders values {row}")  # type: ignore[arg-type]
    assert bool(rows(conn, "select 1 from pgflow.runs")) is fires
