"""Every function that a role of people may call, as the catalog has it, with hostile arguments: what it
refuses, it refuses by one of our codes, and what it does leaves the tables sound.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from sqlkit import begin, commit, fill_beta, finish, flush, hold, rows, start, unit, wait_for

Conn = psycopg.Connection[Any]
SEED = 20261201
TRIES = 40
"""Calls of each function."""

PEOPLE = [
    "pgflow_client", "pgflow_approver", "pgflow_speaker", "pgflow_operator", "pgflow_auditor",
    "pgflow_declarer", "h_acme",
]  # fmt: skip

FUNCTIONS: LiteralString = """
  select p.proname, coalesce(p.proargnames[1:p.pronargs], '{}'), array(
    select format_type(t, null) from unnest(p.proargtypes) with ordinality u (t, n) order by n
  ), p.pronargs - p.pronargdefaults, array(
    select r from unnest(%s::text[]) r where has_function_privilege(r, p.oid, 'execute')
  )
  from pg_proc p
  where p.pronamespace = 'pgflow'::regnamespace and p.prokind = 'f'
  order by p.proname, p.oid
"""

TAKES_ITS_OWN = {
    "flow_source": "program", "list_ended": "place", "period_now": "tz", "record_flow": "program",
    "refill_schedules": "slots", "said_of_update": "payload", "declare_schedules": "worker_id",
    "open_entity": "idle_timeout_ms",
}  # fmt: skip
"""Parameters that carry back what another function of ours or a view has given: they may be told in
Postgres' words. An idle time-out ends the session, as it was told to.
"""
MAY_LACK_RIGHTS = {"drop_workflow"}
"""Functions that work with the rights of their caller on objects of the application."""

DEEP = "[" * 199 + "]" * 199
TEXTS: list[Any] = [
    None, "", " ", "k", "over", "waits", "stuck", "live", "beta-done", "nope", "s", "r", "p", "x'y\"z",
    "a\nb\r\n\t", "\x01\x1b[31m", "é" * 200, "x" * 256, "x" * 5000, "\u202e", "%s%I%L", "$1", "{}", "*",
    "\\", "a.b", "'; drop table x; --", "default", "hello", "pgflow_client", "public", "NaN", "UTC",
    "../..", "*/5 * * * *", "0 0 31 2 *", "infinity", "all", "skip", "start", "orders", "usd",
]  # fmt: skip
JSON: list[Any] = [
    None, "null", "{}", "[]", "1", '"x"', "true", "-0.0", "1e400", "123456789012345678901234567890",
    '{"a": 1}', "[null]", "[[]]", "[1]", '["x"]', "[[1, 2, 3]]", "[{}]", '{"": null}', DEEP, f"[{DEEP}]",
    f"[{DEEP[:180]}{DEEP[-180:]}]", '"\\u0000"', '{"$codec": 1}', '{"value": 1, "why": 2}',
    '{"k": {"v": 1}}', '[["a", "{}"]]', '[["a", "{}", 1, 2, 3]]', "[[null, null]]", '[["a", "not json"]]',
    '{"usd": -1}', '{"usd": "NaN"}', '{"usd": 1e300}', '{"usd": 1e-400}', '{"every": 0}', '{"every": 1e400}',
    '{"every": 60, "offset": "x"}', '{"every": 60, "not_on": 1}', '{"every": 60, "only_on": ["x"]}',
    '{"every": 60, "start_at": "now"}', '{"cron": 5}', '{"cron": ["* * * * *"], "tz": "Nowhere"}',
    '{"concurrency": 1e30}', '{"rate": "1/0s"}', '{"rate": 5}', '{"weights": {"a": "x"}}', '{"max_deaths": 1e20}',
    '{"pools": 1}', '{"pools": [{}]}', '{"queues": [{"queue": "q", "rules": 1}]}', '{"codes": 1}',
    '{"codes": [[1, 2]]}', '{"schedules": [{"name": "z"}]}', '{"relays": [{"name": "r", "topics": 1}]}',
    '[{"name": "z", "limits": {"usd": 1}, "soft": "x"}]', '[{"name": "z", "limits": 1, "hard": "x"}]',
    '[{"queue": "q", "rules": null}]', '[{"name": "s", "workflow": "w", "spec": {"every": 1}, "priority": "x"}]',
    '[{"collection": "c", "path": ["k"], "value": 1, "ttl_ms": "x"}]',
    '[{"collection": "c", "path": ["k"], "value": 1, "ttl_ms": 1e400}]',
    '[{"collection": "c", "path": ["k"], "value": 1, "once": "maybe"}]',
    '[{"collection": "c", "path": 1, "value": 1}]', '[{"collection": "c", "path": ["k"], "value": "\\u0000"}]',
    '[{"risk": "x"}]', '{"pgflow_history": "1"}', '{"pgflow_anchor": "1", "days": [1]}',
    '{"pgflow_history": "1", "key": "h", "workflow": "w", "queue": "q", "input": "x", "status": "failed", "units": []}',
]  # fmt: skip
FLOATS: list[Any] = [
    None, "NaN", "Infinity", "-Infinity", "0", "-1", "1e308", "1e-320", "1", "1e15", "9e18",
]  # fmt: skip
TIMES: list[Any] = [
    None, "infinity", "-infinity", "4714-11-24 BC", "294276-12-31 23:59:59+00", "2000-01-01",
]  # fmt: skip
LISTS: list[Any] = [
    None, "{}", "{NULL}", "{1,NULL}", "{{1,2},{3,4}}", "[5:6]={1,2}", "{0}", "{-1}", "{1,1}",
]  # fmt: skip
HOSTILE: dict[str, list[Any]] = {
    "text": TEXTS,
    "json": JSON,
    "jsonb": [value for value in JSON if value is None or "u0000" not in value],
    "integer": [None, 0, 1, -1, 2, 2**31 - 1, -(2**31), 100],
    "bigint": [None, 0, 1, -1, 2, 3, 2**63 - 1, -(2**63), 2**62],
    "double precision": FLOATS,
    "numeric": FLOATS,
    "boolean": [None, True, False],
    "timestamp with time zone": TIMES,
    "interval": [None, "0", "-1 day", "1000000 years", "1 mon"],
    "bytea": [None, b"", b"\0\xff", b"x" * 262145],
    "text[]": LISTS,
    "name[]": LISTS,
    "integer[]": LISTS,
    "bigint[]": LISTS,
    "uuid": [None, "00000000-0000-0000-0000-000000000000"],
}  # fmt: skip
PLAUSIBLE: dict[str, list[Any]] = {
    "key": ["k", "over", "waits", "stuck", "live", "acme-own"], "workflow": ["demo", "hello"],
    "queue": ["default"], "name": ["s", "r", "p", "go", "step", "hello"], "pool": ["p"],
    "relay": ["r"], "collection": ["c"], "tenant": ["", "acme", "beta"],
    "payload": ["1", '{"a": 1}'], "input": ["{}", '{"a": 1}'], "labels": ['{"a": "b"}'],
}  # fmt: skip
"""Values that lead somewhere, so that the hostile one beside them is looked at."""


@pytest.fixture
def filled(db: Conn) -> Conn:
    """Runs in many states, and one of each thing that has a name."""
    db.execute("create role h_acme in role pgflow_tenant")
    db.execute("select pgflow.grant_tenant('h_acme', 'acme')")
    fill_beta(db, '"hush"')
    start(db, key="acme-own", tenant="acme")
    start(db, key="k")
    commit(db, wait_for(begin(db, key="waits"), "go"))
    over = begin(db, key="over")
    commit(db, flush(over, unit("c", 1, "step", '"x"')))
    finish(db, over)
    commit(db, hold(begin(db, key="stuck")))
    begin(db, key="live")
    db.execute(
        """
        select pgflow.set_pool('p', '{"usd": 9}');
        select pgflow.set_schedule('s', 'demo', '{"every": 3600}');
        select pgflow.declare_relay('r', '{orders}');
        select pgflow.publish('orders', '"x"');
        select pgflow.put_documents('[{"collection": "c", "path": ["k"], "value": 1}]');
        create schema flowing;
        set search_path = flowing;
        select pgflow.create_workflow('hello(a int)', 'begin return a; end');
        reset search_path;
        """
    )
    return db


def arguments(
    chance: random.Random, names: list[str], types: list[str], required: int
) -> list[tuple[str, str, Any]]:
    """Name, type and value of each argument of a call: one or more of them are hostile."""
    given = [n for n in range(len(types)) if n < required or chance.random() < 0.5]
    hostile = set(chance.sample(given, min(len(given), chance.choice([1, 1, 1, 2, 99]))))
    return [
        (
            names[n],
            types[n],
            chance.choice(
                PLAUSIBLE[names[n]]
                if n not in hostile
                and names[n] in PLAUSIBLE
                and types[n] in ("text", "json", "jsonb")
                else HOSTILE.get(types[n], [None])
            ),
        )
        for n in given
    ]


def complaint(conn: Conn, role: str, name: str, given: list[tuple[str, str, Any]]) -> str | None:
    """Call a function as a role, and take it back; return what is wrong with its answer."""
    call = sql.SQL("select r::text from pgflow.{}({}) r limit 50").format(
        sql.Identifier(name),
        sql.SQL(", ").join(
            sql.SQL("{} => %s::{}").format(sql.Identifier(parameter), sql.SQL(kind))
            for parameter, kind, _ in given
        ),
    )
    try:
        with conn.transaction(force_rollback=True):
            conn.execute("set local statement_timeout = '30s'")
            conn.execute(sql.SQL("set local role {}").format(sql.Identifier(role)))
            conn.execute(call, [value for _, _, value in given]).fetchall()
            conn.execute("reset role")
            conn.execute("set constraints all immediate")
    except psycopg.Error as error:
        if (error.sqlstate or "").startswith("PF"):
            return None
        if "portal parameter" in (error.diag.context or ""):
            return None  # no value of the type: the function was not called
        if error.sqlstate == "42501" and name in MAY_LACK_RIGHTS:
            return None
        shown = {parameter: str(value)[:60] for parameter, _, value in given}
        return (
            f"{name} as {role}: {error.sqlstate} {error.diag.message_primary}: {json.dumps(shown)}"
        )
    return None


@pytest.mark.full
def test_no_argument_of_a_call_gets_an_error_that_is_not_ours(filled):
    chance = random.Random(SEED)
    tried: Counter[str] = Counter()
    found = []
    for name, names, types, required, roles in filled.execute(FUNCTIONS, (PEOPLE,)).fetchall():
        for turn in range(TRIES if roles and types else 0):
            given = arguments(chance, names, types, required)
            own = TAKES_ITS_OWN.get(name)
            if any(parameter == own for parameter, _, _ in given):
                continue
            role = roles[turn % len(roles)]
            tried[role] += 1
            found.append(complaint(filled, role, name, given))
    assert [line for line in found if line is not None] == []
    assert tried.total() > 4000
    assert len(tried) == len(PEOPLE)
    assert rows(filled, "select invariant || ': ' || detail from pgflow.check()") == []
