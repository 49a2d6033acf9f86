"""Logins of tenants: what one of them may call or read, as the catalog has it, shows and changes nothing of another."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from sqlkit import claim_one, fill_beta, finish, one, rows, start

from pgflow.inspect import Tenants, ask, read_tenants

if TYPE_CHECKING:
    from collections.abc import Iterator

Conn = psycopg.Connection[Any]
SECRET = "beta-hush"


@contextmanager
def acting_as(conn: Conn, role: str, tenant: str = "") -> Iterator[None]:
    """Call as a login would that has no right but its own; ``tenant`` narrows the session."""
    with conn.transaction():
        conn.execute(sql.SQL("set local role {}").format(sql.Identifier(role)))
        conn.execute("select set_config('pgflow.tenant', %s, true)", (tenant,))
        yield
        conn.execute("reset role")
        conn.execute("select set_config('pgflow.tenant', '', true)")


@pytest.fixture
def tenants(db: Conn) -> Conn:
    """acme and beta with a login each, ``h_acme`` and ``h_beta``, and one for both, ``h_both``."""
    for role, names in {"h_acme": ["acme"], "h_beta": ["beta"], "h_both": ["acme", "beta"]}.items():
        db.execute(sql.SQL("create role {} in role pgflow_tenant").format(sql.Identifier(role)))
        for name in names:
            db.execute("select pgflow.grant_tenant(%s, %s)", (role, name))
    return db


def test_who_acts_for_all_learns_that_there_are_tenants_and_no_tenant_does(tenants: Conn) -> None:
    asked = Tenants((), has_others=False)
    assert ask(tenants, read_tenants()) == asked
    start(tenants, key="plain")
    assert ask(tenants, read_tenants()) == asked
    start(tenants, key="own", tenant="acme")
    assert ask(tenants, read_tenants()) == Tenants((), has_others=True)
    with acting_as(tenants, "h_beta"):
        assert ask(tenants, read_tenants()) == Tenants(("beta",), has_others=False)


@pytest.fixture
def filled(tenants: Conn) -> Conn:
    """beta has runs in many states, each with a secret wherever a value or a label can be."""
    secret = f'"{SECRET}"'
    waits, common = fill_beta(tenants, secret)
    start(tenants, key="beta-batch", workflow="gather", **common)
    tenants.execute(
        "select pgflow.fill_batch('beta-batch', 'gather', array[%s]::bigint[], false, 'beta')",
        (waits.run_id,),
    )
    tenants.execute(
        "select pgflow.send_update('beta-queued', 'add', %s, 'u1', 'beta')", (f'{{"a": {secret}}}',)
    )
    tenants.execute("select pgflow.cancel_run('beta-queued', %s, 'beta')", (SECRET,))
    start(tenants, key="acme-own", tenant="acme")
    with tenants.transaction():
        tenants.execute("select pgflow.open_blob('beta')")
        tenants.execute(
            "select pgflow.add_chunk(blob_id, 0, %s) from pgflow.blob", (SECRET.encode(),)
        )
        tenants.execute("select pgflow.finish_blob(blob_id) from pgflow.blob")
        digest = one(tenants, "select encode(digest, 'hex') from pgflow.blob")
        named = {"doc": {"pgflow": "blob", "digest": digest, "size_bytes": len(SECRET)}}
        start(tenants, key="beta-blob", tenant="beta", input=json.dumps(named))
    return tenants


def arguments_of(conn: Conn, tenant: str) -> dict[str, Any]:
    """A value for each name that a parameter of a granted function has: what leads to runs of beta."""
    runs = rows(conn, "select run_id from pgflow.run where tenant = 'beta'")
    return {
        "tenant": tenant,
        "key": "beta-queued",
        "batch": "beta-batch",
        "workflow": "gather",
        "chains": runs,
        "run_ids": runs,
        "run_id": runs[0],
        "ids": runs,
        "call": 1,
        "lane_id": one(conn, "select min(lane_id) from pgflow.lane"),
        "blob": one(conn, "select blob_id from pgflow.blob"),
        "n": 0,
        "data": b"x",
        "digest": one(conn, "select encode(digest, 'hex') from pgflow.blob"),
        "name": "state",
        "stream": "stream",
        "update_id": "u1",
        "runs": '[["beta-new", "{}"]]',
        "payload": '{"a": 1}',
        "at": "2020-01-01",
    }


FUNCTIONS: LiteralString = """
  select p.proname, array(
    select n from unnest(p.proargnames[1:p.pronargs]) with ordinality as a (n, i)
    where i <= p.pronargs - p.pronargdefaults or n in ('tenant', 'chains', 'run_ids')
  ), p.proargnames[1:p.pronargs] @> '{tenant}'
  from pg_proc p
  where p.pronamespace = 'pgflow'::regnamespace and has_function_privilege('pgflow_tenant', p.oid, 'execute')
  order by p.oid
"""
VIEWS: LiteralString = """
  select c.relname from pg_class c
  where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v'
    and has_table_privilege('pgflow_tenant', c.oid, 'select')
"""
TABLES: LiteralString = """
  select c.relname from pg_class c
  where c.relnamespace = 'pgflow'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
"""


def contents(conn: Conn) -> dict[str, set[str]]:
    """The rows of all tables, as JSON."""
    return {
        table: set(
            rows(conn, f"select to_json(t)::text from pgflow.{table} t")  # noqa: S608
        )
        for table in rows(conn, TABLES)
    }


def is_of_beta(row: dict[str, Any], runs: list[int]) -> bool:
    named = [row.get(name) for name in ("run_id", "chain_id", "batch_id", "parent_run_id")]
    return row.get("tenant") == "beta" or not set(runs).isdisjoint(filter(None, named))


def trespasses(conn: Conn) -> list[str]:
    """Call and read all that ``h_acme`` may; return what was shown of beta, or done to it."""
    found = []
    before = contents(conn)
    for name, needed, takes_tenant in conn.execute(FUNCTIONS).fetchall():
        for tenant in ("", "beta") if takes_tenant else ("",):
            given = arguments_of(conn, tenant)
            named = ", ".join(f"{one_of} => %({one_of})s" for one_of in needed)
            call = f"select r::text from pgflow.{name}({named}) r"
            if name == "own_tenants":
                continue
            with conn.transaction(force_rollback=True):
                try:
                    with acting_as(conn, "h_acme"):
                        told = str(conn.execute(call.encode(), given).fetchall())
                except psycopg.Error as error:
                    told = str(error)
                    if not (error.sqlstate or "").startswith("PF"):
                        raise
                if SECRET in told or SECRET.encode().hex() in told or "beta-done" in told:
                    found.append(f"{name} shows {told}")
                after = contents(conn)
                lost = {table for table, of in before.items() if of - after[table]}
                found += [f"{name} changes {table}" for table in sorted(lost)]
                for table, of in after.items():
                    found += [
                        f"{name} adds to {table}"
                        for row in of - before[table]
                        if is_of_beta(json.loads(row), given["run_ids"])
                    ]
    for view in rows(conn, VIEWS):
        with acting_as(conn, "h_acme"):
            told = str(rows(conn, f"select v::text from pgflow.{view} v"))  # noqa: S608
        if SECRET in told or "beta" in told:
            found.append(f"view {view}")
    return found


def test_no_call_and_no_view_crosses_from_a_tenant_to_another(filled):
    assert len(rows(filled, VIEWS)) > 15
    assert trespasses(filled) == []


@pytest.mark.full
@pytest.mark.parametrize(("function", "guard", "instead"), [
    ("chain_of_", "tenant := pgflow.own_tenant_(tenant);", ""),
    ("start_runs", "tenant := pgflow.own_tenant_(tenant);", ""),
    ("start_run", "tenant := pgflow.own_tenant_(tenant);", ""),
    ("own_runs_", "and r.tenant = any(own)", ""), ("read_chunk", "b.tenant = own and ", ""),
    ("own_tenants", "not coalesce(", "true or not coalesce("),
])  # fmt: skip
def test_the_probe_notices_a_door_without_its_guard(filled, function, guard, instead):
    query = "select pg_get_functiondef(oid) from pg_proc where proname = %s and pronamespace = 'pgflow'::regnamespace"
    text = one(filled, query, function)
    assert guard in text
    filled.execute(text.replace(guard, instead).encode())
    assert trespasses(filled) != []


def test_a_tenant_sees_and_touches_its_own_runs(tenants):
    with acting_as(tenants, "h_acme"):
        assert start(tenants, key="mine").is_new
        assert start(tenants, key="named", tenant="acme").is_new
        tenants.execute("select pgflow.wake(array[pgflow.send_signal('mine', 'go')])")
        tenants.execute("select pgflow.cancel_run('named')")
        assert one(tenants, "select pgflow.run_status('mine')") == "queued"
        assert rows(tenants, "select key from pgflow.own_runs order by 1") == ["mine", "named"]
        assert set(rows(tenants, "select tenant from pgflow.own_runs")) == {"acme"}
    assert rows(tenants, "select distinct tenant from pgflow.runs") == ["acme"]
    finish(tenants, claim_one(tenants), output='"done"')
    chain = one(tenants, "select pgflow.find_chain('mine', 'acme')")
    results = "select status, output from pgflow.results(array[%s]::bigint[])"
    with acting_as(tenants, "h_acme"):
        assert tenants.execute(results, (chain,)).fetchall() == [("completed", '"done"')]
    with acting_as(tenants, "h_beta"):
        assert tenants.execute(results, (chain,)).fetchall() == [("gone", None)]
        assert tenants.execute(results, (10**9,)).fetchall() == [("gone", None)]


def test_the_same_key_is_another_run_for_another_tenant(tenants):
    with acting_as(tenants, "h_acme"):
        mine = start(tenants, key="order-1", input='{"a": 1}')
    with acting_as(tenants, "h_beta"):
        theirs = start(tenants, key="order-1", input='{"a": 2}')
    assert theirs.is_new
    assert theirs.run_id != mine.run_id


def test_a_login_of_several_tenants_names_the_one_it_acts_for(tenants):
    with (
        pytest.raises(psycopg.Error, match=r"may not act for tenant ''"),
        acting_as(tenants, "h_both"),
    ):
        start(tenants)
    with acting_as(tenants, "h_both", "beta"):
        start(tenants, key="by-setting")
        assert rows(tenants, "select key from pgflow.own_runs where tenant = ''") == ["by-setting"]
    with acting_as(tenants, "h_both"):
        start(tenants, key="by-name", tenant="acme")
        assert len(rows(tenants, "select key from pgflow.own_runs")) == 2
    with (
        pytest.raises(psycopg.Error, match="may not act for tenant 'acme'"),
        acting_as(tenants, "h_both", "beta"),
    ):
        start(tenants, tenant="acme")
    found = "select tenant, key from pgflow.runs order by 1"
    assert tenants.execute(found).fetchall() == [("acme", "by-name"), ("beta", "by-setting")]


def test_a_setting_adds_no_right(tenants):
    start(tenants, key="theirs", tenant="beta")
    with acting_as(tenants, "h_acme", "beta"):
        assert rows(tenants, "select key from pgflow.own_runs") == []
    for tenant in ("", "beta", "acme"):
        with (
            pytest.raises(psycopg.Error, match="may not act for tenant"),
            acting_as(tenants, "h_acme", "beta"),
        ):
            start(tenants, tenant=tenant)


def test_a_member_without_a_grant_acts_for_no_tenant(tenants):
    start(tenants, key="plain")
    tenants.execute("create role h_new in role pgflow_tenant")
    for role in ("h_new", "pgflow_tenant"):
        with acting_as(tenants, role):
            assert rows(tenants, "select key from pgflow.own_runs") == []
        with pytest.raises(psycopg.Error, match="may not act for"), acting_as(tenants, role):
            start(tenants)
    assert one(tenants, "select pgflow.revoke_tenant('h_acme', 'acme')") is True
    assert one(tenants, "select pgflow.revoke_tenant('h_acme', 'acme')") is False
    with pytest.raises(psycopg.Error, match="may not act for"), acting_as(tenants, "h_acme"):
        start(tenants)


def test_an_operator_narrows_a_session_to_a_tenant(tenants):
    start(tenants, key="order", tenant="acme")
    start(tenants, key="order", tenant="beta")
    with acting_as(tenants, "pgflow_operator", "acme"):
        tenants.execute("select pgflow.pause_run('order')")
        assert rows(tenants, "select key from pgflow.own_orders") == ["order"]
        assert len(rows(tenants, "select key from pgflow.own_runs")) == 1
    assert rows(tenants, "select tenant from pgflow.orders") == ["acme"]
    with acting_as(tenants, "pgflow_operator"):
        assert len(rows(tenants, "select key from pgflow.own_runs")) == 2


def test_no_condition_of_a_reader_sees_a_row_of_another_tenant(filled):
    filled.execute(
        "create function pg_temp.leak(text) returns boolean language plpgsql cost 0.0001 as "
        "$$ begin raise notice '%', $1; return true; end $$"
    )
    seen: list[str] = []
    filled.add_notice_handler(lambda told: seen.append(told.message_primary or ""))
    with acting_as(filled, "h_acme"):
        found = rows(filled, "select key from pgflow.own_runs where pg_temp.leak(key)")
        assert found == ["acme-own"]
    assert set(seen) == {"acme-own"}


def test_a_grant_to_a_role_that_acts_for_all_is_refused(tenants):
    tenants.execute("create role h_wide in role pgflow_tenant, pgflow_client")
    tenants.execute("create role h_out")
    for role, reason in {
        "h_wide": "role h_wide acts for every tenant, as a pgflow_client",
        "h_out": "role h_out is not a member of pgflow_tenant",
        "h_none": "there is no role 'h_none'",
    }.items():
        with pytest.raises(psycopg.Error, match=reason), tenants.transaction():
            tenants.execute("select pgflow.grant_tenant(%s, 'acme')", (role,))
    for tenant in ("", "x" * 256):
        with pytest.raises(psycopg.Error, match="1 to 255 bytes"), tenants.transaction():
            tenants.execute("select pgflow.grant_tenant('h_acme', %s)", (tenant,))


def test_a_tenant_draws_on_no_pool_of_others(tenants):
    for pool in ("shared", "acme", "acme/ai"):
        tenants.execute("select pgflow.set_pool(%s, '{\"usd\": 1}')", (pool,))
    with acting_as(tenants, "h_acme"):
        start(tenants, pool="acme")
        start(tenants, pool="acme/ai")
    with (
        pytest.raises(psycopg.Error, match="a tenant does not draw on pool 'shared'"),
        acting_as(tenants, "h_acme"),
    ):
        start(tenants, pool="shared")
