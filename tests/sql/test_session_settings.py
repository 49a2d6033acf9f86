"""Sessions with styles, zones and rules of their own: whatever calls pgflow in SQL gets the same from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import servers
from flowkit import make, work
from sqlkit import claim_one, commit, connect, flush, one, register, rows, unit, wait_for, wake

if TYPE_CHECKING:
    from collections.abc import Iterator

    Conn = psycopg.Connection[Any]

SETTINGS: dict[str, dict[str, str]] = {
    "times": {"timezone": "Pacific/Apia", "datestyle": "SQL, DMY", "intervalstyle": "sql_standard"},
    "west": {"timezone": "America/St_Johns", "datestyle": "German", "intervalstyle": "iso_8601"},
    "digits": {"extra_float_digits": "-10"},
    "strings": {"standard_conforming_strings": "off", "backslash_quote": "off", "array_nulls": "off",
        "bytea_output": "escape", "escape_string_warning": "off"},
    "encoding": {"client_encoding": "LATIN1"},
    "plpgsql": {"check_function_bodies": "off", "plpgsql.variable_conflict": "use_column",
        "plpgsql.extra_errors": "all"},
    "identifiers": {"quote_all_identifiers": "on", "transform_null_equals": "on"},
    "row security": {"row_security": "off"},
    "levels": {"default_transaction_isolation": "serializable",
        "default_transaction_deferrable": "on"},
    "time-outs": {"statement_timeout": "60000", "lock_timeout": "10000",
        "idle_in_transaction_session_timeout": "60000"},
    "plans": {"plan_cache_mode": "force_custom_plan", "enable_sort": "off", "enable_hashjoin": "off",
        "max_parallel_workers_per_gather": "4", "parallel_setup_cost": "0"},
}  # fmt: skip

BODY = r"""
declare
  n numeric := 1.50; moment timestamptz := '2026-03-04 05:06:07.5+00'; span interval := '1 day 02:03:04';
  f float8 := 0.1; b bytea := '\x00ff'; t text := 'a\b''c'; s jsonb;
begin
  a: f := f * 3; moment := moment + span;
  wait for go into s;
  b: insert into mark (what) values (encode(b, 'hex'));
  return jsonb_build_object('n', n, 'moment', extract(epoch from moment), 'span', extract(epoch from span),
    'f', f, 'b', encode(b, 'hex'), 't', t, 's', s);
end
"""
SPEC = {
    "cron": ["30 2 * * *", "0 9 1 * 1"],
    "tz": "Europe/London",
    "not_on": ["2030-04-02"],
    "start_at": "2030-03-30T00:00:00+00:00",
}
SLOTS = "select array(select extract(epoch from u)::bigint from unnest(upcoming) u) from pgflow.schedule where name = %s"
NEXT = "select extract(epoch from pgflow.next_time('0 9 L * *', 'America/New_York', '2030-01-01T00:00:00Z'))::bigint"


def play(conn: Conn, name: str = "w") -> dict[str, Any]:
    """Return what a session gets from one call after another."""
    put = json.dumps([{"collection": name, "path": ["k"], "value": 0.1, "ttl_ms": 60000}])
    worker = register(conn)
    conn.execute("select pgflow.set_schedule(%s, 'demo', %s)", (name, json.dumps(SPEC)))
    conn.execute("select pgflow.fire_schedules(%s)", (worker,))
    conn.execute(
        "select pgflow.set_pool(%s, '{\"usd\": 0.1}', per => 'day', tz => 'Asia/Tokyo')", (name,)
    )
    conn.execute(
        "select pgflow.start_run('demo', %s, key => %s)", ('{"f": 0.1, "n": 1e22, "t": "é"}', name)
    )
    claim = claim_one(conn, worker=worker)
    commit(conn, flush(claim, unit("c", 1, "step", "0.30000000000000004")))
    commit(conn, wait_for(claim, "go", 2))
    conn.execute("select pgflow.send_signal(%s, 'go', '1.50')", (name,))
    wake(conn)
    made = make(conn, f"{name}()", BODY)
    conn.execute("select pgflow.start_run(%s, '{}', key => %s)", (name, f"flow {name}"))
    work(conn)
    conn.execute("select pgflow.send_signal(%s, 'go', '{\"x\": 0.1}')", (f"flow {name}",))
    work(conn)
    conn.execute("select pgflow.put_documents(%s)", (put,))
    return {
        "slots": one(conn, SLOTS, name),
        "next": one(conn, NEXT),
        "period": one(
            conn,
            "select extract(epoch from period_at)::bigint from pgflow.budgets where pool = %s",
            name,
        ),
        "version": made.partition(" is ")[2],
        "flow": one(
            conn,
            "select status, output::text, error->>'message' from pgflow.runs where key = %s",
            f"flow {name}",
        ),
        "journal": rows(
            conn,
            "select event, name, payload::text from pgflow.timeline where key = %s order by seq",
            name,
        ),
        "document": one(
            conn, "select value::text from pgflow.get_documents(%s, '[[\"k\"]]')", name
        ),
    }


@pytest.fixture(scope="module")
def expected(server_dsn: str, template: str) -> Iterator[dict[str, Any]]:
    """What a session with the settings of the server gets."""
    database = servers.create_database(server_dsn, template)
    with connect(servers.dsn_of(server_dsn, database)) as plain:
        yield play(plain)
    servers.drop_database(server_dsn, database)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_session_gets_the_same_whatever_its_settings(conn, expected, settings):
    for name, value in SETTINGS[settings].items():
        conn.execute("select set_config(%s, %s, false)", (name, value))
    assert play(conn) == expected
    assert expected["flow"][0] == "completed"
    assert len(expected["slots"]) == 16
