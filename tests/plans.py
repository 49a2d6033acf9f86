"""A large database, and the plans that Postgres really used for the hot statements in it.

The statements stand inside stored functions, so nothing is gained by explaining copies of them:
`auto_explain` reports the plan of every statement that a call ran, nested ones too, with the
buffers it touched. Each call is made with statistics from when the tables were nearly empty
(``small``), of now (``fresh``), from when all rows of those that are worked off were dead
(``drained``), and from when all were empty (``empty``), with generic and with custom plans;
everything is rolled back.

A call passes if it reads large tables only in the ways that it names (by addresses of rows it
always may), and touches no more buffers (of 8 KiB) than its bound, by plans that cost less than
those that a server with LLVM compiles (`jit`). `lease` may be read from end to end by what looks
for the runs of a worker or of a queue with a limit: it has as many rows as all workers hold runs,
and every claim would pay for a further index. `queues` counts every open run.

`prove` puts it into words for the proof, and `python -m tests.plans DSN` prints it all. With
`--beside-few` it prints instead what each call reads as a multiple of that in a small database.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

sys.path.insert(0, str(Path(__file__).parent / "kits"))

from collections.abc import Callable, Iterator, Sequence

import servers
from evidence import Evidence, Findings

from pgflow._db.query import Query
from pgflow.inspect import RunFilter, list_effects, list_runs, list_schedules

STATISTICS = ("small", "fresh", "drained", "empty")
"""In this order: those of nearly empty tables cannot be had again once the tables are full."""
PLANS = ("force_generic_plan", "force_custom_plan")
KINDS = tuple(itertools.product(STATISTICS, PLANS))
"""Every kind of statistics with every kind of plans."""
FULL_SECONDS = 100
"""A layer that has less time draws the plans of each kind of statistics by lot."""

JIT_ABOVE_COST = 100_000
"""A server with LLVM compiles a statement whose plan costs more, by default, each time before it
runs it.
"""
LARGE_ROWS = 5_000
"""A table with more rows than this is never to be read from end to end."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of runs in each place."""

    finished: int = 1_000_000
    unclaimable: int = 100_000
    """Ready before all others, in a lane that nobody serves, in a queue that is paused, or in a
    line.
    """
    ready: int = 100_000
    parked: int = 100_000
    leased: int = 10_000
    held: int = 10_000
    kin: int = 1_000
    """Number of generations that continue another, and of children."""
    events: int = 1_000_000
    """Most events that a relay has yet to take."""
    partition: int = 300_000
    """Runs of a partition of the journal."""


FEW = Sizes(finished=40, unclaimable=20, ready=40, parked=40, leased=10, held=10, kin=5)
BASE = Sizes(finished=20_000, unclaimable=20_000, ready=20_000, parked=20_000)
"""Few runs that have ended or are parked, and as many of the others as the calls name."""


@dataclass(frozen=True)
class Ids:
    """The first run of each place; a place ends where the next begins."""

    finished: int
    unclaimable: int
    ready: int
    parked: int
    leased: int
    held: int
    end: int

    @classmethod
    def after(cls, last: int, sizes: Sizes) -> Ids:
        starts = [last + 1]
        for size in (
            sizes.finished,
            sizes.unclaimable,
            sizes.ready,
            sizes.parked,
            sizes.leased,
            sizes.held,
        ):
            starts.append(starts[-1] + size)
        return cls(*starts)


SERVED = list(range(1, 9))
FOREIGN, PAUSED, LIMITED, RARE, LINED = 9, 10, 11, 12, 13

LANES = """
insert into pgflow.queue (queue, paused_at, max_running) values
  ('default', null, null), ('elsewhere', null, null), ('paused', now(), null), ('limited', null, 5000);
insert into pgflow.queue (queue, is_lined) values ('lined', true);
insert into pgflow.line (queue, key, max_per_key) values ('lined', 'labels.user', 1);
insert into pgflow.line_state (queue) values ('lined');
insert into pgflow.lane (queue, workflow) select 'default', 'flow_' || n from generate_series(1, 8) n order by n;
insert into pgflow.lane (queue, workflow) values ('elsewhere', 'foreign'), ('paused', 'resting'), ('limited', 'few'), ('default', 'rare'), ('lined', 'standing');
insert into pgflow.worker (pid, beat, beat_at, started_at, concurrency, host, version, queues)
select n, 0, now(), now(), 100, 'host', 'test', '{default}' from generate_series(1, 50) n;
insert into pgflow.code (first_at, last_at, is_pinned, workflow, version, code_hash)
select now(), now(), false, 'flow_' || n, 'v', 'h' from generate_series(1, 8) n;
insert into pgflow.worker_code (worker_id, code_id) select w.worker_id, c.code_id from pgflow.worker w cross join pgflow.code c;
insert into pgflow.code_signal (code_id, signal, shape) select code_id, 'go', '{"is": ["number"], "whole": true}' from pgflow.code;
"""

# The first `kin` ready runs go on where the first finished ones ended; the next are children of the
# first leased ones.
PLACES = """
insert into pgflow.run (
  run_id, chain_id, root_run_id, parent_run_id, parent_call, close_policy, created_at, run_at, deadline_at, root, generation, lane_id, priority, tenant, key, input, labels, pool
)
select i, case when c.is_next then i - {ready} + {finished} else i end, case when c.is_child then i - {ready} - {kin} + {leased} else i end,
  case when c.is_child then i - {ready} - {kin} + {leased} end, case when c.is_child then 2 end, case when c.is_child then 'c' end::"char",
  {base} + i * interval '1 ms',
  case when i >= {parked} and i < {leased} and i % 5 = 4 then {base} + interval '90 days' + i * interval '1 ms' end,
  case when i >= {parked} and i % 10 = 0 then case when i % 1000 = 0 then now() - interval '1 s' else {base} + interval '200 days' end end,
  md5(i::text)::uuid, case when c.is_next then 2 else 1 end,
  case when i >= {unclaimable} and i < {ready} then case when i % 5 = 4 then 13 when i % 2 = 0 then 9 else 10 end
    when i % 100 = 7 and i >= {ready} and i < {parked} or i >= {leased} and i < {held} and i % 20 = 7 then 11
    when i % 5000 = 7 then 12
    else i % 8 + 1 end,
  0, '', 'key-' || case when c.is_next then i - {ready} + {finished} else i end, '{{"n": 1}}', case when i % 10 = 0 then jsonb_build_object('customer', 'c' || i / 10 % 5000) end,
  case when i >= {leased} + 4000 and i < {held} then 'user-' || i - {leased} + {ready} end
from generate_series({finished}, {end} - 1) i
cross join lateral (select i >= {ready} and i < {ready} + {kin} as is_next, i >= {ready} + {kin} and i < {ready} + 2 * {kin} as is_child) c;

insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority, suspect, has_begun)
select r.run_id, r.created_at, case when r.lane_id = 13 then -13 else r.lane_id end, case when r.run_id % 10 = 1 then 1 else 0 end, 0, 0,
  case when r.run_id < {ready} + 40 and r.run_id >= {ready} and r.run_id % 10 = 1 then 1 else 0 end, case when r.run_id % 10 = 1 then true end
from pgflow.run r where r.run_id >= {unclaimable} and r.run_id < {parked};

-- Four of each key.
insert into pgflow.line_run (run_id, rank, lane_id, is_fresh, queue, key)
select r.run_id, 0, 13, true, 'lined', 'user-' || r.run_id / 20 from pgflow.run r where r.run_id >= {unclaimable} and r.run_id < {ready} and r.lane_id = 13;

insert into pgflow.lease (run_id, token, claimed_at, worker_id, lane_id, last_seq, attempt, priority, suspect)
select r.run_id, r.run_id * 1000 + 7, now(), r.run_id / 100 % 50 + 1, r.lane_id, 0, 1, 0, 0
from pgflow.run r where r.run_id >= {leased} and r.run_id < {held};

insert into pgflow.held (run_id, held_at, lane_id, last_seq, attempt, priority, has_begun, state, reason, code_hash)
select r.run_id, now(), r.lane_id, 1, 1, 0, true, case r.run_id % 2 when 0 then 'paused' else 'stuck' end, case r.run_id % 2 when 0 then 'asked' else 'nondeterminism' end, 'old'
from pgflow.run r where r.run_id >= {held} and r.run_id < {end};

-- Parked: of five, two wait for a signal with a time-out, two sleep, one has not begun. Those that have also wait for an effect that was accepted.
insert into pgflow.parked (run_id, chain_id, token, parked_at, lane_id, last_seq, priority)
select r.run_id, r.chain_id, case when r.run_id % 5 < 4 then r.run_id * 1000 + 7 end, now(), r.lane_id,
  case when r.run_id % 5 = 0 and r.run_id < {parked} + 500 then 4 when r.run_id % 5 < 4 then 3 else 0 end, 0
from pgflow.run r where r.run_id >= {parked} and r.run_id < {leased};

insert into pgflow.deadline (run_id, due_at) select r.run_id, r.deadline_at from pgflow.run r where r.run_id >= {parked} and r.deadline_at is not null;
"""

FACTS = """
insert into pgflow.run_key (tenant, key, chain_id, root, retention_seconds)
select '', 'key-' || i, i, md5(i::text)::uuid, case when i % 50 = 3 then 3600 end from generate_series({finished}, {end} - 1) i where i < {ready} or i >= {ready} + {kin};

insert into pgflow.outcome (run_id, token, finished_at, status, output, error)
select i, i * 1000 + 7, {base} + i * interval '1 ms' + interval '1 min', case when i < {finished} + {kin} then 'continued' when i % 50 = 0 then 'failed' else 'completed' end,
  case when i >= {finished} + {kin} and i % 50 > 0 then '{{"total": 12}}'::json end, case when i >= {finished} + {kin} and i % 50 = 0 then '{{"message": "no"}}'::json end
from generate_series({finished}, {unclaimable} - 1) i;

insert into pgflow.unit (run_id, token, at, recorded_at, due_at, seq, call, kind, name, payload, starts)
select i, i * 1000 + 7, {base} + i * interval '1 ms', {base} + i * interval '1 ms', null, s, s, 'c', 'step', case s when 1 then '{{"done": true}}'::json end,
  case s when 1 then '[[1, "s", "step", "1", null]]'::json end
from generate_series({finished}, {unclaimable} - 1) i cross join generate_series(1, 2) s;

insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
select i, i * 1000 + 7, now(), now(), 1, 1, 'c', 'step', '{{"done": true}}'
from generate_series({unclaimable}, {end} - 1) i where i < {parked} and i % 10 = 1 or i >= {leased};

insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name)
select i, i * 1000 + 7, now(), now(), 2, 2, 'k', 'flow' from generate_series({leased}, {leased} + {kin} - 1) i;

insert into pgflow.unit (run_id, token, at, recorded_at, due_at, seq, call, kind, name)
select i, i * 1000 + 7, now(), now(), case when i % 10 in (2, 3) then {base} else {base} + interval '60 days' end + i * interval '1 ms', 1, 1, 't', case when i % 5 < 2 then 'go' end
from generate_series({parked}, {leased} - 1) i where i % 5 < 4;

insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
select i, i * 1000 + 7, now(), now(), s, 3, case s when 2 then 'i' else 'A' end, 'render',
  case s when 2 then jsonb_build_object('key', 'key-' || i, 'risk', 'reversible')::json else json_build_object('ref', 'ref-' || i) end
from generate_series({parked}, {leased} - 1) i cross join generate_series(2, 3) s where i % 5 < 4;

insert into pgflow.wait (run_id, call, kind, name) select i, 1, 's', 'go' from generate_series({parked}, {leased} - 1) i where i % 5 < 2;

insert into pgflow.timer (due_at, run_id, call)
select case when i % 5 = 4 then {base} + interval '90 days' when i % 10 in (2, 3) then {base} else {base} + interval '60 days' end + i * interval '1 ms', i, case i % 5 when 4 then 0 else 1 end
from generate_series({parked}, {leased} - 1) i;

-- Mail that nobody waits for yet, at every fifth parked run; mail of finished runs that a nudge will put aside.
insert into pgflow.signal (chain_id, sent_at, kind, name, payload)
select i, now(), 's', 'other', '1' from generate_series({parked}, {leased} - 1) i where i % 5 = 0;

insert into pgflow.signal (chain_id, sent_at, kind, name, payload)
select i, now(), 's', 'go', '1' from generate_series({finished}, {unclaimable} - 1) i where i % 150 = 0;

insert into pgflow.nudge (chain_id) select i from generate_series({finished}, {unclaimable} - 1) i where i % 150 = 0;

insert into pgflow.owed (run_id, call, opened_at, kind, name, detail)
select i, 3, now() + i * interval '1 ms', 'effect', 'render', jsonb_build_object('state', 'accepted', 'key', 'key-' || i, 'ref', 'ref-' || i)
from generate_series({parked}, {leased} - 1) i where i % 5 < 4;

insert into pgflow.owed (run_id, call, opened_at, due_at, kind, name, owed_to, detail)
select i, 9, now(), {base} + interval '60 days', 'obligation', 'refund', 'ada',
  jsonb_build_object('state', 'open', 'key', md5(i::text)::uuid || '/owe/refund/1', 'outlives', true)
from generate_series({finished}, least({finished} + 100, {unclaimable}) - 1) i;

insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
select i, i * 1000 + 7, {base} + i * interval '1 ms', {base} + i * interval '1 ms', case when i % 5 = 0 then 4 else 3 end, 9, 'O', 'refund',
  json_build_object('key', md5(i::text)::uuid || '/owe/refund/1', 'outlives', true)
from generate_series({finished}, least({finished} + 100, {unclaimable}) - 1) i;

-- Gates that some of the parked have asked at, too.
insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, key, payload)
select i, i * 1000 + 7, now(), now(), 4, 4, 'g', 'leave', 'gate-' || i,
  '{{"request": {{"cents": 500}}, "hash": "h", "approvers": ["ann"], "quorum": 1, "timeout": null, "on_timeout": "expire", "escalate": [], "needs_value": false, "decision": null, "path": [], "shape": true}}'
from generate_series({parked}, least({parked} + 500, {leased}) - 1) i where i % 5 = 0;

insert into pgflow.gate (run_id, chain_id, asked_at, call, seq, quorum, needs_value, gate, name, on_timeout, payload_hash, approvers, escalate)
select i, i, now(), 4, 4, 1, false, 'gate-' || i, 'leave', 'expire', 'h', '{{ann}}', '{{}}' from generate_series({parked}, least({parked} + 500, {leased}) - 1) i where i % 5 = 0;

insert into pgflow.owed (run_id, call, opened_at, kind, name, owed_to, detail)
select i, 4, now(), 'gate', 'leave', 'ann', jsonb_build_object('state', 'asked', 'gate', 'gate-' || i)
from generate_series({parked}, least({parked} + 500, {leased}) - 1) i where i % 5 = 0;

insert into pgflow.wait (run_id, call, kind, name)
select i, 4, 'g', 'leave' from generate_series({parked}, least({parked} + 500, {leased}) - 1) i where i % 5 = 0;

insert into pgflow.effect_beat (run_id, call, look_at, beat_at, timeout_seconds, can_ask)
select i, 3, {base} + interval '60 days' + i * interval '1 ms', now(), 1e7, false from generate_series({parked}, {leased} - 1) i where i % 5 < 4;

-- Pools under one; the last leased runs draw on them and have reserved for a call, and some finished ones have spent.
insert into pgflow.pool (made_at, soft, is_hard, name, pools, tz, limits)
select now(), 0.8, false, 'user-' || i, array['user-' || i, 'tenant'], 'UTC', '{{"usd": 10}}' from generate_series({ready}, {parked} - 1) i;

insert into pgflow.pool (made_at, soft, is_hard, name, pools, tz, limits) values (now(), 0.8, false, 'tenant', '{{tenant}}', 'UTC', '{{"usd": 1000000000}}')
on conflict do nothing;

insert into pgflow.reservation (run_id, reserved_at, call, pools, periods, amounts)
select i, now(), 2, array['user-' || i - {leased} + {ready}, 'tenant'], '{{-infinity,-infinity}}', '{{"usd": 1}}' from generate_series({leased} + 4000, {held} - 1) i;

insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
select i, i * 1000 + 7, now(), now(), 2, 2, 'm', 'ask', '{{"amounts": {{"usd": 1}}}}' from generate_series({leased} + 4000, {held} - 1) i;

insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
select i, i * 1000 + 7, {base} + i * interval '1 ms', {base} + i * interval '1 ms', 3, 0, 'M', 'ask', '{{"call": 1, "amounts": {{"usd": "1"}}}}' from generate_series({finished}, {unclaimable} - 1) i where i % 5 = 0;

insert into pgflow.charge (run_id, charged_at, seq, call, name, pools, periods, amounts)
select i, now(), 3, 1, 'ask', '{{tenant}}', '{{-infinity}}', '{{"usd": 1}}' from generate_series({finished}, {unclaimable} - 1) i where i % 5 = 0;

insert into pgflow.spend (period_at, pool, unit, allowed, admitted, reserved)
select '-infinity', 'user-' || i, 'usd', 10, r.n, r.n from generate_series({ready}, {parked} - 1) i
cross join lateral (select case when i - {ready} + {leased} < {held} and i - {ready} >= 4000 then 1 else 0 end as n) r;

insert into pgflow.spend as s (period_at, pool, unit, allowed, admitted, charged, reserved)
select '-infinity', 'tenant', 'usd', 1000000000, c.n + r.n, c.n, r.n
from (select count(*) as n from pgflow.charge) c, (select count(*) as n from pgflow.reservation) r
on conflict (pool, period_at, unit) do update set admitted = excluded.admitted, charged = excluded.charged, reserved = excluded.reserved;

-- Events that a relay has yet to take, and parked runs that wait for one of them or for none.
insert into pgflow.event (event_id, xid, at, topic, key, payload)
select i, '3', now(), case when i % 10 = 0 then 'rare' else 'orders' end, 'key-' || i % 1000, json_build_object('n', i)
from generate_series({finished}, least({finished} + {events}, {unclaimable}) - 1) i;

select setval('pgflow.event_id_seq', max(event_id)) from pgflow.event;

insert into pgflow.event_wait (chain_id, event_id, value, is_current, name, topic, path, match)
select i, 0, jsonb_hash_extended(to_jsonb(i), 0), true, 'event', 'orders', '{{n}}', jsonb_build_object('n', i)
from generate_series({parked}, {leased} - 1) i where i % 5 < 4;

insert into pgflow.step_beat (run_id, call, attempt, beat_at) select i, 2, 1, now() from generate_series({leased}, {held} - 1) i where i % 3 > 0;

-- Hourly schedules, three of them due; of every fourth all workers say the same.
insert into pgflow.schedule (name, created_at, changed_at, after_at, due_at, look_at, overlap, catch_up, workflow, queue, spec, declared, input, upcoming)
select s.name, now(), now(), u.slots[16], u.slots[1], u.slots[1], 'allow', 'latest', 'flow_1', 'default', '{{"every": 3600}}', case when i % 4 = 0 then jsonb_build_object('name', s.name) end, '{{}}', u.slots
from generate_series(1, 4 * {kin}) i cross join lateral (select 'schedule-' || {finished} || '-' || i as name) s cross join lateral (
  select array_agg(case when i <= 3 then now() - interval '10 s' else now() + interval '1 day' + i * interval '10 s' end + n * interval '1 h' order by n) as slots from generate_series(0, 15) n
) u;

insert into pgflow.schedule_declaration (declared_at, worker_id, schedule, declared)
select now(), w.worker_id, s.name, s.declared from pgflow.schedule s cross join pgflow.worker w where s.declared is not null on conflict do nothing;
"""


def build(dsn: str, sizes: Sizes) -> Ids:
    """Fill a database with the schema; its statistics stay those of a few rows, since nobody looks
    again.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(LANES)
        few = _fill(conn, dsn, FEW, 0)
        conn.execute("analyze")
        return _fill(conn, dsn, sizes, few.end)


def _fill(conn: psycopg.Connection[Any], dsn: str, sizes: Sizes, last: int) -> Ids:
    ids = Ids.after(last, sizes)
    numbers = {**vars(ids), "kin": sizes.kin, "events": sizes.events}
    values: dict[str, sql.Composable] = {
        name: sql.SQL("{}::bigint").format(value) for name, value in numbers.items()
    }
    conn.execute("select setval('pgflow.run_id_seq', %s)", (ids.end,))
    for name in _names(conn):
        if name.startswith("unit_") and name != "unit_kind" and not _has_more(conn, name, 0):
            conn.execute(sql.SQL("drop table pgflow.{}").format(sql.Identifier(name)))
    conn.execute("select pgflow.add_unit_partitions(2, %s)", (sizes.partition,))
    for (table,) in conn.execute(TABLES).fetchall():
        conn.execute(
            sql.SQL("alter table pgflow.{} set (autovacuum_enabled = false)").format(
                sql.Identifier(table)
            )
        )
    values["base"] = sql.SQL("(date_trunc('day', now()) - interval '30 days')")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: _insert(dsn, text, values), (PLACES, FACTS)))
    return ids


def _insert(dsn: str, text: str, values: dict[str, sql.Composable]) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set synchronous_commit = off")
        for statement in text.split(";\n"):
            if statement.strip():
                conn.execute(sql.SQL(statement).format(**values))


def _names(conn: psycopg.Connection[Any]) -> list[str]:
    return [name for (name,) in conn.execute(TABLES)]


def _has_more(conn: psycopg.Connection[Any], table: str, rows: int) -> bool:
    query = sql.SQL("select exists (select from pgflow.{} offset %s)").format(sql.Identifier(table))
    return bool(conn.execute(query, (rows,)).fetchone()[0])  # type: ignore[index]


TABLES = "select relname from pg_class where relnamespace = 'pgflow'::regnamespace and relkind = 'r' order by relname"


@dataclass(frozen=True)
class Case:
    """A call, and what it may read. ``buffers`` is the bound, about one and a half times what was
    measured.
    """

    name: str
    query: str
    params: Callable[[Ids], Sequence[Any]]
    buffers: int
    uses: str = ""
    """By what it may read large tables: names of indexes, and `lease:whole` for from end to end."""
    before: tuple[str, ...] = ()
    """Statements run before it in the same transaction, not measured."""
    by_people: bool = False
    """Asked for by a person, with the values in the statement, so that its plan is never a generic
    one; not while tables seem drained.
    """
    stale: int | None = None
    """For what people ask: the bound, instead of `buffers` and `uses`, until autovacuum has seen
    the tables full.
    """
    is_dear: bool = False
    """Its function forbids ways to read on purpose, by settings that price them, and is called so
    seldom that a high cost does not matter.
    """
    drained: int | None = None
    """The bound, instead of `buffers` and `uses`, while statistics say that there is no row: for
    what reads many rows in any case.
    """


BATCH = """with waits as (
    insert into pgflow.batch (batch_id, opened_at, is_whole)
    select run_id, now(), true from pgflow.parked order by run_id limit 1 returning batch_id
  )
  insert into pgflow.batch_member (batch_id, chain_id)
  select w.batch_id, o.run_id from waits w, (
    select run_id from pgflow.outcome where status = 'completed' order by run_id desc limit 20000) o"""
"""A batch whose members have all ended, and completed."""


def tokens(count: int) -> list[int]:
    return list(range(1, count + 1))


def holder(run_id: int) -> int:
    """The worker that holds a leased run: each holds hundreds that stand side by side."""
    return run_id // 100 % 50 + 1


def batch(
    ids: Ids,
    first: int,
    count: int,
    *,
    ends: bool = False,
    sleeps: bool = False,
    seq: int = 1,
    question: Callable[[int], dict[str, Any]] | None = None,
) -> str:
    """Return a document for commit_units: a unit of each of so many leased runs, from this one
    on.
    """
    runs = list(range(ids.leased + first, ids.leased + first + count))
    rest = (
        ["t", None, None, None, 0, 60]
        if sleeps
        else ["c", "step", "null", '[[10, "s", "step", "2", null]]', 0, None]
    )
    document: dict[str, Any] = {
        "worker": holder(runs[0]),
        "runs": [[run, run * 1000 + 7, seq] for run in runs],
        "units": [[run, seq + 1, 9, *rest, run * 1000 + 7] for run in runs],
    }
    if ends:
        document["ends"] = [
            [run, "completed", None, "null", None, run, run * 1000 + 7] for run in runs
        ]
        document["kin"] = runs
    if question:
        document["questions"] = [
            {"run": run, "token": run * 1000 + 7, "chain": run, "seq": seq + 1, **question(run)}
            for run in runs
        ]
    return json.dumps(document)


def gated_run(ids: Ids) -> int:
    """Return a parked run that waits at a gate."""
    return ids.parked + 10 - ids.parked % 5


def parked_key(ids: Ids, rest: int) -> str:
    """Key of a run in the middle of the parked ones, whose number leaves this rest by 5."""
    middle = (ids.parked + ids.leased) // 2
    return f"key-{middle - middle % 5 + rest}"


def number(key: str) -> int:
    return int(key.removeprefix("key-"))


def asking(ids: Ids, first: int, count: int) -> str:
    """Return a document in which so many leased runs end a call and ask their pools for another."""

    def question(_: int) -> dict[str, Any]:
        return {"admits": [{"call": 10, "name": "ask", "amounts": {"usd": "1"}}], "idle": False}

    told = json.loads(batch(ids, first, count, seq=2, question=question))
    told["draws"] = [[run, 2] for run, *_ in told["runs"]]
    return json.dumps(told)


def spending(ids: Ids, first: int, count: int) -> str:
    """Return a document in which calls of so many leased runs are over, with what they cost."""
    told = json.loads(batch(ids, first, count, seq=3))
    cost = json.dumps({"call": 2, "amounts": {"usd": "0.5"}})
    told["units"] = [
        row
        for run, seq, _, *rest in told["units"]
        for row in (
            [run, seq - 1, 0, "M", "ask", cost, None, 0, None, run * 1000 + 7],
            [run, seq, 2, *rest],
        )
    ]
    told["runs"] = [[run, token, 2] for run, token, _ in told["runs"]]
    told["draws"] = [[run, 2] for run, *_ in told["runs"]]
    return json.dumps(told)


CLAIM = "select * from pgflow.claim_runs(%s::int, %s::int[], 10, %s::bigint[], true)"
BEHIND = "select * from pgflow.claim_runs(%s::int, %s::int[], 10, %s::bigint[], true, %s::bigint[])"

SETTLED = "select pgflow.settle_fleet_(now())"
"""The workers that are there have been looked at."""
RELAY = (
    "insert into pgflow.relay (declared_at, name, target, topics, event_id, horizon) "
    "values (now(), 'r', '', '{{orders,rare}}', {finished}, {unclaimable} - 1)"
)


def listed(
    name: str,
    where: RunFilter,
    buffers: int,
    uses: str,
    stale: int | None = None,
    after: Callable[[Ids], int] | None = None,
) -> Case:
    """Return the case of a query of `pgflow list`, word for word: of the first page, or of the one
    behind a run.
    """

    def query(place: int | None) -> Query[Any]:
        return list_runs(where, after=place).first

    def params(ids: Ids) -> Sequence[Any]:
        return query(None if after is None else after(ids)).params

    return Case(
        name,
        query(None if after is None else 1).sql,
        params,
        buffers,
        uses,
        by_people=True,
        stale=stale,
    )


LONG_AGO = "create or replace function pgflow.now_() returns timestamptz language sql volatile set search_path = pg_catalog, pg_temp as $$ select now() - interval '1 year' $$"

REPLACE = "select * from pgflow.start_run(%s, '{\"n\": 2}', %s, if_taken => 'replace', start_id => gen_random_uuid())"

LEASED_CHILD = (
    (
        "insert into pgflow.lease select run_id, 5, now(), 1, lane_id, last_seq, 1, 0, 0 from "
        "pgflow.ready where run_id = {ready} + 1002"
    ),
    "delete from pgflow.ready where run_id = {ready} + 1002",
)
"""Puts a child into the hands of a worker that has its parent."""


def end_of_child(ids: Ids, **more: int) -> str:
    """The batch that ends it."""
    run_id = ids.ready + 1002
    batch = {
        "runs": [[run_id, 5, 0]],
        "units": [],
        "ends": [[run_id, "completed", None, "null", None, run_id, 5]],
        "kin": [run_id],
    }
    return json.dumps(batch | more)


KEEP = "select pgflow.set_retention('all', {days} * 86400)"

CASES = [
    Case("claim of ten from eight lanes", CLAIM, lambda _: (1, SERVED, tokens(10)), 420,
        uses="lease_pkey ready_pkey ready_suspect_idx run_pkey signal_pkey step_beat_pkey "
            "unit_pkey"),
    Case("claim of ten from one lane", CLAIM, lambda _: (1, [3], tokens(10)), 330,
        uses="lease_pkey ready_pkey ready_suspect_idx run_pkey signal_pkey step_beat_pkey"),
    Case("claim of ten from eight lanes, on from the middle of what is ready", BEHIND,
        lambda ids: (1, SERVED, tokens(10), [0, (ids.ready + ids.parked) // 2]), 420,
        uses="lease_pkey ready_pkey ready_suspect_idx run_pkey signal_pkey step_beat_pkey "
            "unit_pkey"),
    Case("claim of ten from one lane, on from the middle of what is ready", BEHIND,
        lambda ids: (1, [3], tokens(10), [0, (ids.ready + ids.parked) // 2]), 330,
        uses="lease_pkey ready_pkey ready_suspect_idx run_pkey signal_pkey step_beat_pkey"),
    Case("claim behind 100,000 of a paused queue, of a foreign lane and in a line", CLAIM,
        lambda _: (1, [*SERVED, PAUSED], tokens(10)), 410,
        uses="lease_pkey ready_pkey ready_suspect_idx run_pkey signal_pkey step_beat_pkey "
            "unit_pkey"),
    Case("claim from a queue with a limit", CLAIM, lambda _: (1, [LIMITED], tokens(10)), 490,
        uses="lease:whole lease_pkey ready_pkey ready_suspect_idx run_pkey signal_pkey "
            "step_beat_pkey"),
    Case("claim of ten from a line of 20,000", CLAIM, lambda _: (1, [LINED], tokens(10)), 950,
        uses="lease_pkey line_run_order_idx line_run_pkey line_run_suspect_idx ready_pkey "
            "ready_run_id_key ready_suspect_idx run_pkey signal_pkey step_beat_pkey"),
    Case("claim from a line, 5,000 keys of which have one that is held", CLAIM,
        lambda _: (1, [LINED], tokens(10)), 57000,
        uses="lease_pkey line_run_order_idx line_run_pkey line_run_suspect_idx line_turn_pkey "
            "ready_pkey ready_run_id_key ready_suspect_idx run_pkey signal_pkey step_beat_pkey",
        before=("insert into pgflow.line_turn (chain_id, run_id, queue, key) select {leased} + n, {leased} + n, 'lined', 'user-' || {unclaimable} / 20 + n from generate_series(0, 5000) n",)),
    Case("claim from a line as its rules are new", CLAIM, lambda _: (1, [LINED], tokens(10)), 53000,
        uses="lease_pkey line_run_order_idx line_run_pkey line_run_suspect_idx ready_pkey "
            "ready_run_id_key ready_suspect_idx run_pkey signal_pkey step_beat_pkey",
        before=("select pgflow.leave_line_('lined', 5000)",)),
    Case("when the next of a line begins",
        "select * from pgflow.next_turn(array['lined', 'default'])", lambda _: (), 45,
        uses="line_run_order_idx", before=("update pgflow.line set rate = 5, rate_seconds = 60",)),
    Case("claim of nothing", CLAIM, lambda _: (1, [PAUSED, 99], tokens(10)), 30,
        uses="lease_pkey ready_suspect_idx run_pkey signal_pkey step_beat_pkey"),
    Case("commit and claim",
        "select * from pgflow.commit_and_claim(%s::jsonb, 1, %s::int[], 10, %s::bigint[], true)",
        lambda ids: (batch(ids, 1001, 10, ends=True), SERVED, tokens(10)), 790,
        uses="deadline_pkey lease_pkey outcome_pkey ready_pkey ready_suspect_idx run_parent_idx "
            "run_pkey signal_pkey step_beat_pkey unit_pkey"),
    Case("release of ten runs", "select pgflow.release_runs(%s::bigint[], %s::bigint[])",
        lambda ids: ([ids.leased + n for n in range(10)],
            [(ids.leased + n) * 1000 + 7 for n in range(10)]), 460,
        uses="lease_pkey run_pkey signal_pkey unit_pkey"),
    Case("release of strays", "select pgflow.release_strays(1, %s::bigint[], now())",
        lambda ids: ([ids.leased],), 9100,
        uses="lease:whole lease_pkey run_pkey signal_pkey unit_pkey"),
    Case("commit of ten units", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1001, 10),), 120, uses="lease_pkey"),
    Case("careful commit of ten units", "select pgflow.commit_units(%s::jsonb, true)",
        lambda ids: (batch(ids, 1001, 10),), 230, uses="lease_pkey unit_pkey"),
    Case("commit of ten ends", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1001, 10, ends=True),), 370,
        uses="deadline_pkey lease_pkey outcome_pkey run_parent_idx run_pkey signal_pkey "
            "step_beat_pkey"),
    Case("commit of ten ends with children and mail", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1, 10, seq=2, ends=True),), 670,
        uses="deadline_pkey lease_pkey outcome_pkey run_generation_key run_parent_idx run_pkey "
            "signal_pkey step_beat_pkey",
        before=(("insert into pgflow.signal (chain_id, sent_at, kind, name) select r, now(), 's', 'go' "
            "from generate_series({leased} + 1, {leased} + 10) r"),)),
    Case("end of a child", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (end_of_child(ids),), 80,
        uses="deadline_pkey lease_pkey outcome_pkey run_parent_idx run_pkey signal_pkey "
            "step_beat_pkey unit_pkey", before=LEASED_CHILD),
    Case("end of a child whose parent the same worker holds",
        "select pgflow.commit_units(%s::jsonb)", lambda ids: (end_of_child(ids, worker=1),), 110,
        uses="deadline_pkey lease_pkey outcome_pkey run_parent_idx run_pkey signal_pkey "
            "step_beat_pkey unit_pkey", before=LEASED_CHILD),
    Case("park of ten for a signal", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1001, 10, sleeps=True,
            question=lambda _: {"signals": [[3, "go"]], "timers": [[9, 2, "W"]], "park": True,
                "idle": True}),), 720, uses="lease_pkey run_pkey signal_pkey unit_pkey wait_pkey"),
    Case("park that finds a message", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1001, 10,
            question=lambda _: {"signals": [[3, "go"]], "child_calls": [2], "park": True,
                "idle": True}),), 480, uses="lease_pkey run_pkey signal_pkey unit_pkey",
        before=(("insert into pgflow.signal (chain_id, sent_at, kind, name) select r, now(), 's', 'go' "
            "from generate_series({leased} + 1001, {leased} + 1010) r"),)),
    Case("park in which a pause is taken", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1001, 1,
            question=lambda _: {"signals": [[3, "go"]], "park": True, "idle": True}),), 90,
        uses="lease_pkey run_pkey signal_pkey unit_pkey",
        before=("select pgflow.pause_run('key-' || ({leased} + 1001))",)),
    Case("hold of ten runs", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1001, 10,
            question=lambda _: {"hold": ["stuck", "nondeterminism", "h", None, "pgflow"]}),), 420,
        uses="lease_pkey signal_pkey"),
    Case("start of two children", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1001, 1,
            question=lambda _: {"children": [[call, "flow_1", "default", "{}", f"child-{call}", 0,
                None, None, None, None, "c"] for call in (3, 4)]}),), 170,
        uses="lease_pkey run_key_pkey run_pkey signal_pkey unit_pkey"),
    Case("continue as new", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1001, 1, question=lambda _: {"continue": "{}"}),), 100,
        uses="deadline_pkey lease_pkey outcome_pkey run_parent_idx run_pkey signal_pkey "
            "step_beat_pkey"),
    Case("admission of ten calls, each by a pool and one above it",
        "select pgflow.commit_units(%s::jsonb)", lambda ids: (asking(ids, 5001, 10),), 1900,
        uses="lease_pkey outcome_pkey owed_pkey pool_pkey reservation_pkey run_pkey signal_pkey "
            "spend_pkey unit_pkey"),
    Case("charges of ten calls, each to a pool and one above it",
        "select pgflow.commit_units(%s::jsonb)", lambda ids: (spending(ids, 5001, 10),), 1700,
        uses="lease_pkey outcome_pkey owed_pkey pool_pkey reservation_pkey run_pkey signal_pkey "
            "spend_pkey unit_pkey"),
    Case("forced end of a leased run", "select pgflow.commit_units(%s::jsonb)",
        lambda ids: (batch(ids, 1, 1, seq=2, question=lambda _: {"park": True}),), 160,
        uses="event_wait_pkey deadline_pkey lease_pkey outcome_pkey owed_obligation_idx "
            "owed_pkey reservation_pkey "
            "run_generation_key run_parent_idx run_pkey signal_pkey step_beat_pkey unit_pkey",
        before=("select pgflow.cancel_run('key-' || ({leased} + 1), force => true)",)),
    Case("commit of one unit",
        "select pgflow.commit_unit(%s::bigint, %s::bigint, 2, 9, 'c', 'step', 'null', null, 0, "
            "%s::int)",
        lambda ids: (ids.leased + 1001, (ids.leased + 1001) * 1000 + 7, holder(ids.leased + 1001)),
        20, uses="lease_pkey"),
    Case("begin of a transactional step",
        "select pgflow.begin_step(%s::bigint, %s::bigint, 9, 0, 1)",
        lambda ids: (ids.leased + 1001, (ids.leased + 1001) * 1000 + 7), 10,
        uses="lease_pkey unit_pkey"),
    Case("fence of a transactional step",
        "select pgflow.fence_step(%s::bigint, %s::bigint, 9, %s::jsonb)",
        lambda ids: (ids.leased + 1001, (ids.leased + 1001) * 1000 + 7,
            json.dumps([[ids.leased + 1001, 2, 9, "c", "step", "null", None, 0, None, 7]])), 20,
        uses="lease_pkey",
        before=("select pgflow.begin_step({leased} + 1001, ({leased} + 1001) * 1000 + 7, 9)",)),
    Case("reading back one unit", "select * from pgflow.read_unit(%s::bigint, 1)",
        lambda ids: (ids.leased + 5,), 20, uses="unit_pkey"),
    Case("reading a journal", "select pgflow.load_units(%s::bigint, 0)",
        lambda ids: (ids.finished + 500,), 20, uses="unit_pkey"),
    Case("sign of life of a step", "select pgflow.beat_step(%s::bigint, %s::bigint, 2, 1, null)",
        lambda ids: (ids.leased + 6, (ids.leased + 6) * 1000 + 7), 30, uses="lease_pkey"),
    Case("what a step said of itself", "select pgflow.step_details(%s::bigint, 2)",
        lambda ids: (ids.leased + 6,), 10, uses="step_beat_pkey"),
    Case("sending a signal", "select pgflow.send_signal(%s::text, 'go', '1')",
        lambda ids: (parked_key(ids, 0),), 44,
        uses="outcome_pkey run_generation_key run_key_pkey run_pkey"),
    Case("handing a signal over", "select * from pgflow.deliver_signal(%s::text, 'go', '1')",
        lambda ids: (parked_key(ids, 0),), 66,
        uses="parked_pkey run_generation_key run_key_pkey run_pkey signal_pkey timer_pkey "
            "wait_pkey"),
    Case("cancel", "select pgflow.cancel_run(%s::text)", lambda ids: (parked_key(ids, 0),), 30,
        uses="run_key_pkey"),
    Case("retry", "select pgflow.retry_run(%s::text)", lambda ids: (f"key-{ids.held + 1}",), 40,
        uses="outcome_pkey run_generation_key run_key_pkey run_pkey"),
    Case("wake of a parked run by a signal", "select * from pgflow.wake(%s::bigint[])",
        lambda ids: ([number(parked_key(ids, 0))],), 110,
        uses="held_pkey lease_pkey nudge_pkey outcome_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_pkey wait_pkey",
        before=("select pgflow.send_signal('{signalled}', 'go', '1')",)),
    Case("wake of a run whose message nobody waits for", "select * from pgflow.wake(%s::bigint[])",
        lambda ids: ([number(parked_key(ids, 0))],), 70,
        uses="held_pkey lease_pkey nudge_pkey outcome_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_pkey wait_pkey",
        before=("select pgflow.send_signal('{signalled}', 'other', '1')",)),
    Case("wake of a leased and of a finished run", "select * from pgflow.wake(%s::bigint[])",
        lambda ids: ([ids.leased + 1001, ids.finished + 5000],), 150,
        uses="held_pkey lease_pkey nudge_pkey outcome_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_pkey wait_pkey",
        before=(("select pgflow.send_signal('key-' || n, 'go', '1') from unnest(array[{leased} + 1001, "
            "{finished} + 5000]) n"),)),
    Case("wake of a continued chain", "select * from pgflow.wake(%s::bigint[])",
        lambda ids: ([ids.finished + 7],), 70,
        uses="held_pkey lease_pkey nudge_pkey outcome_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_pkey wait_pkey",
        before=("select pgflow.send_signal('key-' || ({finished} + 7), 'go', '1')",)),
    Case("wake that cancels a parked run", "select * from pgflow.wake(%s::bigint[])",
        lambda ids: ([number(parked_key(ids, 0))],), 120,
        uses="held_pkey lease_pkey nudge_pkey outcome_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_pkey wait_pkey",
        before=("select pgflow.cancel_run('{signalled}')",)),
    Case("wake that ends a ready run", "select * from pgflow.wake(%s::bigint[])",
        lambda ids: ([ids.ready + 5002],), 160,
        uses="event_wait_pkey deadline_pkey held_pkey lease_pkey nudge_pkey outcome_pkey "
            "owed_obligation_idx "
            "owed_pkey parked_pkey ready_run_id_key reservation_pkey run_generation_key run_parent_idx "
            "run_pkey signal_pkey step_beat_pkey timer_pkey unit_pkey wait_pkey",
        before=("select pgflow.cancel_run('key-' || ({ready} + 5002))",)),
    Case("wake that pauses a parked run", "select * from pgflow.wake(%s::bigint[])",
        lambda ids: ([number(parked_key(ids, 0))],), 120,
        uses="held_pkey lease_pkey nudge_pkey outcome_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_pkey wait_pkey",
        before=("select pgflow.pause_run('{signalled}')",)),
    Case("wake that resumes a held run", "select * from pgflow.wake(%s::bigint[])",
        lambda ids: ([ids.held + 2],), 110,
        uses="held_pkey lease_pkey nudge_pkey outcome_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_pkey wait_pkey",
        before=("select pgflow.resume_run('key-' || ({held} + 2))",)),
    Case("wake of 100 nudged chains", "select * from pgflow.wake(null, 100)", lambda _: (), 7500,
        uses="held_pkey lease_pkey nudge_pkey outcome_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_pkey wait_pkey"),
    Case(
        "poll with nothing to do",
        "select * from pgflow.poll(1000)",
        lambda _: (),
        134,  # some to see whether a run waits for an event that is new, and that no queue has a line
        uses="event_wait_pkey event_wait_behind_idx deadline_due_idx effect_beat_look_idx nudge_pkey owed_due_idx timer_due_idx",
        before=(LONG_AGO, "delete from pgflow.nudge", "delete from pgflow.line"),
    ),
    Case("poll with nothing to do, that tidies a line up", "select * from pgflow.poll(1000)",
        lambda _: (), 326,
        uses="event_wait_pkey event_wait_behind_idx deadline_due_idx effect_beat_look_idx lease_pkey line_run_expires_idx "
            "line_run_order_idx nudge_pkey owed_due_idx timer_due_idx",
        before=(LONG_AGO, "delete from pgflow.nudge")),
    Case("poll that promotes 100 of 20,000 timers", "select * from pgflow.poll(100)", lambda _: (),
        3500,
        uses="event_wait_pkey event_wait_behind_idx line_run_expires_idx line_run_order_idx lease_pkey deadline_due_idx effect_beat_look_idx "
            "nudge_pkey owed_due_idx parked_pkey " "timer_due_idx timer_pkey wait_pkey",
        before=("delete from pgflow.nudge", "delete from pgflow.deadline where due_at <= now()")),
    Case("poll that expires 100 deadlines", "select * from pgflow.poll(100)", lambda _: (), 17000,
        uses="event_wait_pkey event_wait_behind_idx line_run_expires_idx line_run_order_idx lease_pkey deadline_due_idx effect_beat_look_idx "
            "held_pkey lease_pkey nudge_pkey outcome_pkey "
            "owed_due_idx parked_pkey ready_run_id_key run_generation_key run_pkey signal_pkey timer_due_idx "
            "timer_pkey wait_pkey", before=("delete from pgflow.nudge",)),
    Case("poll that tells 100 of 20,000 runs that their effects are silent",
        "select * from pgflow.poll(100)", lambda _: (), 6000,
        uses="event_wait_pkey event_wait_behind_idx line_run_expires_idx line_run_order_idx lease_pkey deadline_due_idx effect_beat_look_idx "
            "effect_beat_pkey held_pkey lease_pkey "
            "nudge_pkey outcome_pkey owed_due_idx owed_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_due_idx timer_pkey wait_pkey",
        before=(LONG_AGO, "delete from pgflow.nudge",
            ("update pgflow.effect_beat set look_at = beat_at - interval '1 day', timeout_seconds = "
                "1 where run_id < {parked} + 125"))),
    Case("beat of an accepted effect", "select pgflow.beat_effect(%s::text, '1')",
        lambda ids: (f"ref-{ids.parked + 7000}",), 160,
        uses="effect_beat_pkey outcome_pkey owed_opened_idx owed_pkey owed_ref_idx run_pkey"),
    Case("poll that breaches 100 obligations", "select * from pgflow.poll(100)", lambda _: (), 9000,
        uses="event_wait_pkey event_wait_behind_idx line_run_expires_idx line_run_order_idx lease_pkey deadline_due_idx effect_beat_look_idx "
            "nudge_pkey outcome_pkey owed_due_idx " "owed_pkey run_pkey timer_due_idx unit_pkey",
        before=(LONG_AGO, "delete from pgflow.nudge",
            "update pgflow.owed set due_at = now() - interval '2 years' where kind = 'obligation'")),
    Case("discharge of an obligation that has outlived its run",
        "select pgflow.discharge(%s::text)",
        lambda ids: (f"{UUID(md5(str(ids.finished + 50).encode()).hexdigest())}/owe/refund/1",),
        160, uses="outcome_pkey owed_obligation_idx owed_pkey run_pkey unit_pkey"),
    Case("first page of 100 gates", "select * from pgflow.gates order by asked_at limit 50",
        lambda _: (), 700, uses="gate_answer_pkey gate_asked_idx gate_pkey run_pkey unit_pkey"),
    Case("answer that closes a gate", "select pgflow.answer_gate(%s::text, 'approve', by => 'ann')",
        lambda ids: (f"gate-{gated_run(ids)}",), 160,
        uses="gate_answer_pkey gate_key run_pkey signal_pkey unit_pkey"),
    Case("wake of a run whose gate is answered", "select * from pgflow.wake(%s::bigint[])",
        lambda ids: ([gated_run(ids)],), 160,
        uses="held_pkey lease_pkey nudge_pkey outcome_pkey parked_pkey ready_run_id_key "
            "run_generation_key run_pkey signal_pkey timer_pkey wait_pkey",
        before=("select pgflow.answer_gate('gate-{gated}', 'approve', by => 'ann')",)),
    Case("first page of 100 obligations",
        "select * from pgflow.obligations where kind = 'obligation' order by opened_at limit 50",
        lambda _: (), 900, uses="effect_beat_pkey owed_opened_idx page_pkey run_pkey",
        by_people=True),
    Case("announcement of a worker",
        "select pgflow.register_worker('host', 1, '{default}', 10, 'test')", lambda _: (), 10),
    Case("beat of a worker", "select * from pgflow.beat(1)", lambda _: (), 2400,
        uses="lease:whole run_pkey signal_pkey"),
    Case("watch over workers", "select * from pgflow.observe_workers()", lambda _: (), 220,
        uses="lease:whole", drained=240),
    Case("reaping a worker with 200 runs", "select * from pgflow.reap_worker(2, 0)", lambda _: (),
        8200, uses="lease:whole lease_pkey run_pkey signal_pkey step_beat_pkey unit_pkey"),
    Case("leave of a worker", "select pgflow.leave_worker(2)", lambda _: (), 10,
        uses="lease:whole"),
    Case("trying stuck runs again", "select pgflow.release_stuck('{flow_1}', '{new}')",
        lambda _: (), 7200, uses="held:whole held_pkey"),
    Case("start of a run", "select * from pgflow.start_run('flow_1', '{}', 'new-key')",
        lambda _: (), 30, uses="run_key_pkey"),
    Case("start of a run that is there",
        "select * from pgflow.start_run(%s::text, '{\"n\": 1}', %s::text)",
        lambda ids: (f"flow_{(ids.ready + 5001) % 8 + 1}", f"key-{ids.ready + 5001}"), 60,
        uses="run_key_pkey run_pkey"),
    Case("start later, with a deadline",
        "select * from pgflow.start_run('flow_1', run_at => now() + interval '1 h', "
            "timeout_seconds => 60)", lambda _: (), 50, uses="run_key_pkey"),
    Case("start of 100 runs", "select * from pgflow.start_runs('flow_1', %s::jsonb)",
        lambda _: (json.dumps([[f"new-{n}", "{}"] for n in range(100)]),), 2500,
        uses="run_key_pkey"),
    Case("start of 100 runs, half of them there",
        "select * from pgflow.start_runs('flow_1', %s::jsonb)",
        lambda ids: (json.dumps([[f"key-{ids.ready + 8000 + 8 * n - (ids.ready + 8000) % 8 if n % 2 else f'n-{n}'}",
            '{"n": 1}'] for n in range(100)]),), 2500, uses="run_key_pkey run_pkey"),
    Case("start that replaces a run that has ended", REPLACE,
        lambda ids: (f"flow_{(ids.finished + 5000) % 8 + 1}", f"key-{ids.finished + 5000}"), 150,
        uses="held_pkey lease_pkey outcome_pkey parked_pkey ready_run_id_key run_generation_key "
            "run_key_pkey run_pkey"),
    Case("start that replaces a run that waits", REPLACE,
        lambda ids: (f"flow_{number(parked_key(ids, 0)) % 8 + 1}", parked_key(ids, 0)), 190,
        uses="held_pkey lease_pkey outcome_pkey parked_pkey ready_run_id_key run_generation_key "
            "run_key_pkey run_pkey"),
    Case("start of 100 runs in a line",
        "select * from pgflow.start_runs('standing', (select json_agg(json_build_array(null, '{}')) from generate_series(1, 100))::jsonb, 'lined')",
        lambda _: (), 5100, uses="ready_run_id_key run_key_pkey run_pkey"),
    Case("start that puts off one that waits",
        "select * from pgflow.start_run(%s, '{\"n\": 2}', %s, debounce_seconds => 60)",
        lambda ids: (f"flow_{number(parked_key(ids, 4)) % 8 + 1}", parked_key(ids, 4)), 190,
        uses="held_pkey lease_pkey deadline_pkey outcome_pkey parked_pkey ready_run_id_key run_generation_key "
            "run_key_pkey run_pkey signal_pkey timer_pkey"),
    Case("start whose items are collected",
        "select * from pgflow.start_run(%s, '{\"n\": [2]}', %s, collect => 9, max_wait_seconds => 60, "
            "start_id => gen_random_uuid())",
        lambda ids: (f"flow_{number(parked_key(ids, 5)) % 8 + 1}", parked_key(ids, 5)), 220,
        uses="held_pkey lease_pkey outcome_pkey parked_pkey ready_run_id_key run_generation_key run_key_pkey run_pkey "
            "signal_pkey timer_pkey"),
    Case("start under a key that counts while its run is open",
        "select * from pgflow.start_run(%s, '{\"n\": 2}', %s, key_seconds => 0)",
        lambda ids: (f"flow_{(ids.finished + 5000) % 8 + 1}", f"key-{ids.finished + 5000}"), 150,
        uses="held_pkey lease_pkey parked_pkey ready_run_id_key outcome_pkey run_generation_key run_key_pkey run_pkey"),
    Case("retiring 100 families", "select * from pgflow.retire_runs(100)", lambda _: (), 3300,
        uses="outcome_pkey owed_pkey run_generation_key run_key_pkey run_parent_idx run_pkey",
        before=(KEEP.format(days=1),)),
    Case("retiring when nothing is old enough", "select * from pgflow.retire_runs(100)",
        lambda _: (), 230,  # most to see that no nudge is left of those that are deleted here
        uses="held_pkey lease_pkey nudge:whole nudge_pkey outcome_pkey parked_pkey ready_run_id_key run_pkey signal_pkey",
        before=(KEEP.format(days=40), "delete from pgflow.nudge"), drained=6_100),
    Case("pruning 100 families",
        "select * from pgflow.drop_history(now() - interval '1 day', 100)", lambda _: (), 5400,
        uses="outcome_pkey owed_pkey run_generation_key run_key_pkey run_parent_idx run_pkey"),
    Case(
        "freeing ten keys",
        "select pgflow.sweep_keys(10, false)",
        lambda _: (),
        1500,
        before=("select setseed(0.5)",),  # it looks at the oldest, and at some from anywhere
        uses="outcome_pkey run_generation_key run_key_retention_idx",
        stale=5000,
    ),
    Case("looking for partitions to shrink",
        "select * from pgflow.shrink_journal(backing_off => true)", lambda _: (), 60,
        uses="unit_pkey", stale=6000, is_dear=True),
    Case("result", "select * from pgflow.result(%s::text)",
        lambda ids: (f"key-{ids.finished + 5000}",), 30,
        uses="held_pkey lease_pkey outcome_pkey parked_pkey ready_run_id_key run_generation_key "
            "run_key_pkey"),
    Case("result of a stuck run", "select * from pgflow.result(%s::text)",
        lambda ids: (f"key-{ids.held + 1}",), 40,
        uses="held_pkey lease_pkey outcome_pkey parked_pkey ready_run_id_key run_generation_key "
            "run_key_pkey"),
    Case("results of 100 chains", "select * from pgflow.results(%s::bigint[])",
        lambda ids: ([ids.finished + 100 * n for n in range(50)] + [ids.parked + 100 * n for n in range(50)],),
        3200, uses="held_pkey outcome_pkey run_generation_key run_pkey"),
    Case("chain of a key", "select pgflow.find_chain(%s::text)",
        lambda ids: (f"key-{ids.finished + 5000}",), 10, uses="run_key_pkey"),
    Case("status of a run", "select pgflow.run_status(%s::text)", lambda ids: (parked_key(ids, 0),),
        30,
        uses="held_pkey lease_pkey outcome_pkey parked_pkey ready_run_id_key run_generation_key "
            "run_key_pkey"),
    Case("state of a run", "select pgflow.run_state(%s::text)",
        lambda ids: (f"key-{ids.finished + 5000}",), 90,
        uses="run_generation_key run_key_pkey unit_pkey"),
    Case("stream of a run", "select * from pgflow.read_stream(%s::text, 's')",
        lambda ids: (f"key-{ids.finished + 5}",), 70,
        uses="run_generation_key run_key_pkey unit_pkey"),
    Case(
        "whether anything is to be done",
        "select * from pgflow.idle_state()",
        lambda _: (),
        1300,
        uses="event_pkey event_topic_idx event_wait:whole deadline_due_idx effect_beat_look_idx "
        "lease_pkey nudge_pkey owed_due_idx ready_pkey "
        "timer_due_idx",
        drained=2_440,  # of events and waits for them too
    ),
    Case(
        "a look at 100 members of a batch of 20,000 that have ended",
        "select pgflow.advance_batch_(b, 100, pgflow.now_()) from pgflow.batch b",
        lambda _: (),
        2_000,  # a dozen for each member
        uses="run_pkey outcome_pkey run_generation_key batch_member_pkey",
        before=(BATCH,),
    ),
    Case("a look for the first failure at 100 members of a batch of 20,000",
        "select pgflow.notice_failure_(b, 100, pgflow.now_()) from pgflow.batch b", lambda _: (),
        1_500, uses="run_pkey outcome_pkey run_generation_key batch_member_pkey",
        before=(BATCH,
            ("insert into pgflow.batch_failure (batch_id, looked, workflow, queue, input) "
                "select batch_id, 10000, 'tell', 'default', '{{}}' from pgflow.batch"))),
    Case(
        "a look at 4,000 schedules, three of them due",
        "select * from pgflow.keep_schedules(1)",
        lambda _: (),
        600,  # eighty for each run that it starts; with all schedules read it would be 680
        uses="run_key_pkey schedule_declaration_pkey",
        before=(SETTLED,),
    ),
    Case("a look at 4,000 schedules by who does not keep them",
        "select * from pgflow.keep_schedules(1)", lambda _: (), 20,
        before=("update pgflow.schedule_state set keeper = 2, kept_until = now() + interval '5 s'",)),
    Case("a tick's look at 4,000 schedules",
        "select * from pgflow.keep_schedules(1, at_once => true)", lambda _: (), 1200,
        uses="schedule_declaration_pkey run_key_pkey", before=(SETTLED,)),
    Case("slots to come of ten schedules", "select pgflow.refill_schedules(%s::jsonb)",
        lambda ids: (json.dumps([{"name": f"schedule-{ids.finished}-{n}", "version": 2,
            "after": "2030-01-01T00:00:00+00:00", "slots": ["2030-01-01T01:00:00+00:00"],
            "is_over": False} for n in range(10, 20)]),), 200,
        before=("update pgflow.schedule set version = 2, upcoming = array[]::timestamptz[], due_at = null, after_at = '2030-01-01 00:00+00' where name like 'schedule-%-1_'",)),
    Case(
        "a worker that says of 1,000 schedules what 50 others have said",
        "select pgflow.declare_schedules(51, (select jsonb_agg(c.declared) from pgflow.schedule c where c.declared is not null))",
        lambda _: (),
        230_000,  # four for each of 51,000 declarations
        uses="schedule_declaration:whole schedule_declaration_pkey",
        before=(
            "insert into pgflow.worker (worker_id, pid, beat, beat_at, started_at, concurrency, host, version, queues) overriding system value values (51, 1, 0, now(), now(), 1, 'host', 'test', array['default']) on conflict do nothing",
        ),
    ),
    Case("whose word on 1,000 schedules counts, when one of 50 workers has come",
        "select * from pgflow.keep_schedules(1)", lambda _: (), 3600,
        uses="run_key_pkey schedule_declaration:whole schedule_declaration_pkey",
        before=("update pgflow.schedule_state set fleet = 1",)),
    Case("a page of schedules", list_schedules(limit=50).first.sql,
        lambda _: list_schedules(limit=50).first.params, 300, by_people=True),
    Case("the run of a key", "select * from pgflow.runs where key = %s::text",
        lambda ids: (parked_key(ids, 0),), 40,
        uses="held_pkey lease_pkey outcome_pkey owed_pkey parked_pkey ready_run_id_key run_key_idx "
            "run_pkey timer_pkey unit_pkey wait_pkey"),
    Case("timeline of a run",
        "select * from pgflow.timeline where run_id = %s::bigint order by seq",
        lambda ids: (ids.finished + 5000,), 30, uses="run_pkey unit_pkey"),
    Case("effects of a run", list_effects(1).first.sql,
        lambda ids: list_effects(ids.parked + 1).first.params, 30,
        uses="owed_pkey run_pkey unit_pkey", by_people=True),
    Case("timeline of a key",
        "select * from pgflow.timeline where key = %s::text order by generation, seq",
        lambda ids: (f"key-{ids.finished + 5000}",), 30, uses="run_key_idx unit_pkey", stale=40000,
        by_people=True),
    Case("steps of a run", "select * from pgflow.steps where run_id = %s::bigint order by call",
        lambda ids: (ids.finished + 5000,), 30, uses="run_pkey unit_pkey"),
    Case("steps of a key", "select * from pgflow.steps where key = %s::text order by call",
        lambda ids: (f"key-{ids.finished + 5000}",), 30, uses="run_key_idx run_pkey unit_pkey"),
    Case("steps of the newest runs", "select * from pgflow.steps order by run_id desc limit 50",
        lambda _: (), 900, uses="run_pkey unit_pkey"),
    Case("children of a run",
        "select key, status, workflow from pgflow.runs where parent_run_id = %s::bigint order by "
            "run_id limit 100", lambda ids: (ids.leased + 7,), 110,
        uses="held_pkey lease_pkey outcome_pkey parked_pkey ready_run_id_key run_parent_idx",
        stale=30_000, drained=3_000),
    listed("newest runs", RunFilter(), 80,
        uses="held_pkey lease_pkey outcome_pkey owed_pkey parked_pkey ready_run_id_key run_pkey "
            "timer_pkey wait_pkey", stale=1200),
    listed(
        "next page of the newest runs",
        RunFilter(),
        800,  # the indexes of places are read from their newest entry on, a page for some 300 runs
        uses="held_pkey lease_pkey outcome_pkey owed_pkey parked_pkey ready_run_id_key run_pkey "
        "timer_pkey wait_pkey",
        stale=1200,
        after=lambda ids: ids.leased,
    ),
    listed("newest queued runs", RunFilter(status=["queued"]), 16000,
        uses="ready_run_id_key run_pkey"),
    listed("newest running runs", RunFilter(status=["running"]), 440, uses="lease_pkey run_pkey"),
    listed("newest waiting runs", RunFilter(status=["waiting"]), 1000,
        uses="owed_pkey parked_pkey run_pkey timer_pkey wait_pkey"),
    listed("newest paused runs", RunFilter(status=["paused"]), 310, uses="held_pkey run_pkey",
        stale=43000),
    listed("newest stuck runs", RunFilter(status=["stuck"]), 310, uses="held_pkey run_pkey",
        stale=43000),
    listed("newest completed runs", RunFilter(status=["completed"]), 9200,
        uses="outcome_pkey run_pkey"),
    listed("newest failed runs", RunFilter(status=["failed"]), 9300,
        uses="outcome_failed_idx run_pkey"),
    listed("newest cancelled runs", RunFilter(status=["cancelled"]), 20,
        uses="outcome_cancelled_idx run_pkey"),
    listed("newest runs of a workflow", RunFilter(workflow=["flow_3"]), 80,
        uses="held_pkey lease_pkey outcome_pkey owed_pkey parked_pkey ready_run_id_key run_pkey "
            "timer_pkey wait_pkey", stale=960),
    listed("newest queued runs of a workflow", RunFilter(workflow=["flow_3"], status=["queued"]),
        16000, uses="ready_run_id_key run_pkey", stale=67000),
    listed("newest failed runs of a workflow", RunFilter(workflow=["flow_3"], status=["failed"]),
        9600, uses="outcome_failed_idx run_pkey", stale=130000),
    listed("newest waiting runs of a rare workflow",
        RunFilter(workflow=["rare"], status=["waiting"]), 37000,
        uses="owed_pkey parked_pkey run_pkey timer_pkey wait_pkey", stale=130000),
    listed("newest runs of a label", RunFilter(labels={"customer": "c77"}), 800,
        uses="held_pkey lease_pkey outcome_pkey owed_pkey parked_pkey ready_run_id_key "
            "run_labels_idx timer_pkey wait_pkey", stale=40000),
    Case("counts of all queues", "select * from pgflow.queues", lambda _: (), 3900,
        uses="held:whole lease:whole parked:whole ready:whole", drained=15_000),
    Case("all lanes", "select * from pgflow.lanes", lambda _: (), 14000, uses="ready:whole"),
    Case("why nobody takes the runs of a lane",
        "select why from pgflow.lane_reasons where lane_id = %s::int", lambda _: (FOREIGN,), 20),
    Case("relays' look at what is new", "select * from pgflow.relay_news(array['r'], 1)",
        lambda _: (), 100, uses="event_pkey event_topic_idx", before=(RELAY,)),
    Case("relay that settles a batch",
        ("select pgflow.settle_events('r', 1, %s::bigint + 100, (select json_agg(json_build_array("
            "%s::bigint + n, case when mod(n, 10) = 0 then 'failed' else 'ok' end, 'why', 1)) "
            "from generate_series(1, 100) n))"), lambda ids: (ids.finished, ids.finished), 1500,
        uses="event_pkey",
        before=(RELAY, "update pgflow.relay set token = 1, leased_until = now()")),
    Case("publishing", "select pgflow.publish('orders', '1', 'key')", lambda _: (), 40),
    Case("whether runs have tenants", "select pgflow.has_tenants()", lambda _: (), 20,
        uses="run_key_pkey"),
    Case("all workers", "select * from pgflow.workers", lambda _: (), 450, uses="lease:whole"),
]  # fmt: skip


@dataclass(frozen=True, order=True)
class Scan:
    """One place of a plan where a large table is read: ``way`` is written as in `Case.uses`."""

    way: str
    query: str


@dataclass(frozen=True)
class Measured:
    """One call under one kind of statistics and of plans."""

    case: Case
    statistics: str
    plans: str
    buffers: int
    seconds: float
    outer_cost: float
    """Cost of the call itself, as the planner reckons."""
    inner_cost: float
    """Cost of the dearest statement in the functions that it calls."""
    compiled: tuple[str, ...]
    """Statements in those that the server has compiled."""
    scans: tuple[Scan, ...]

    @property
    def cost(self) -> float:
        """Cost that is bounded. What reads a view is planned for whoever asks: without statistics
        its cost may be anything.
        """
        return (
            max(self.outer_cost, self.inner_cost) if self.statistics == "fresh" else self.inner_cost
        )

    @property
    def complaints(self) -> list[str]:
        """Complaints on it, one line each."""
        how = f"{self.case.name}, {self.statistics} statistics, {self.plans.removeprefix('force_').replace('_', ' ')}"
        excused = (self.case.drained if self.statistics == "drained" else None) or (
            self.case.stale if self.statistics != "fresh" else None
        )
        bound = excused or self.case.buffers
        said = [f"{how}: {self.buffers} buffers, more than {bound}"] if self.buffers > bound else []
        # A batch is taken for ten questions of a hundred rows each, so its estimates are of no use;
        # the functions run with jit = off in any case.
        is_batch = "commit_units" in self.case.query
        if self.cost >= JIT_ABOVE_COST and not self.case.is_dear and not is_batch:
            said.append(
                f"{how}: a plan that costs {self.cost:,.0f}, which a server with LLVM compiles "
                "each time"
            )
        said += [f"{how}: compiled: {query[:200]}" for query in self.compiled]
        if excused is None:
            said += [
                f"{how}: reads by {scan.way} in: {scan.query[:200]}"
                for scan in self.scans
                if scan.way not in self.case.uses.split()
            ]
        return said


class Explained:
    """Collects what auto_explain says to its client."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.plans: list[dict[str, Any]] = []
        conn.add_notice_handler(self._take)
        conn.execute("load 'auto_explain'")
        for name, value in SETTINGS.items():
            conn.execute(f"set {name} = {value}")

    def _take(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        _, found, plan = (diagnostic.message_primary or "").partition("plan:\n")
        if found:
            self.plans.append(json.loads(plan))

    def clear(self) -> None:
        self.plans.clear()


SETTINGS = {
    "client_min_messages": "notice",
    "auto_explain.log_level": "notice",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_format": "json",
}


def _scans(plan: dict[str, Any], query: str, large: set[str], table: str = "") -> Iterator[Scan]:
    kind, table = plan["Node Type"], plan.get("Relation Name", table)
    family = re.sub(r"^(unit|event)_\d+", r"\1", table)
    if table in large:
        if kind == "Seq Scan":
            yield Scan(f"{family}:whole", query)
        elif "Index Name" in plan:
            yield Scan(re.sub(r"^(unit|event)_\d+", r"\1", plan["Index Name"]), query)
    for part in plan.get("Plans", ()):
        yield from _scans(part, query, large, table)


def measure(
    conn: psycopg.Connection[Any],
    explained: Explained,
    case: Case,
    ids: Ids,
    statistics: str,
    plans: str,
    large: set[str],
) -> Measured:
    """Make one call three times, the first of which brings its plans into the cache, and take it
    all back.
    """
    known = {name: f"{value}::bigint" for name, value in vars(ids).items()} | {
        "signalled": parked_key(ids, 0),
        "gated": str(gated_run(ids)),
    }
    params = case.params(ids)
    buffers, seconds = sys.maxsize, 0.0
    with conn.transaction(force_rollback=True):
        for statement in case.before:
            conn.execute(statement.format(**known))
        for _ in range(3):
            explained.clear()
            with conn.transaction(force_rollback=True):
                begin = time.perf_counter()
                conn.execute(case.query, params, prepare=True)
                seconds = time.perf_counter() - begin
            outer = explained.plans[-1]["Plan"]
            buffers = min(buffers, outer["Shared Hit Blocks"] + outer["Shared Read Blocks"])
    found = {
        scan
        for plan in explained.plans
        for scan in _scans(plan["Plan"], " ".join(plan["Query Text"].split()), large)
    }
    *inside, call = explained.plans
    cost = max((plan["Plan"]["Total Cost"] for plan in inside), default=0.0)
    compiled = {" ".join(plan["Query Text"].split()) for plan in inside if "JIT" in plan}
    return Measured(
        case,
        statistics,
        plans,
        buffers,
        seconds,
        call["Plan"]["Total Cost"],
        cost,
        tuple(sorted(compiled)),
        tuple(sorted(found)),
    )


DRAINED_STATISTICS = """
update pg_class set relpages = pg_relation_size(oid) / 8192, reltuples = 0, relallvisible = 0
where oid in (
  with places as (
    select format('pgflow.%I', name)::regclass as oid
    from unnest('{ready,line_run,lease,parked,held,wait,timer,deadline,signal,nudge,step_beat}'::text[]) name
  )
  select oid from places union all select i.indexrelid from pg_index i join places p on p.oid = i.indrelid
)
"""
"""Statistics of tables whose rows come and go, once a backlog is worked off: the planner then
expects no row, however many come.
"""

SAMPLED = """
select 1 from pg_stats where schemaname = 'pgflow' and tablename = 'run' and attname = 'labels'
  and concat(histogram_bounds, most_common_vals) like '%"c77%'
"""
"""Query that finds the label in the statistics, if it is one of the hundred there: each counts for
a hundredth of all.
"""

EMPTY_STATISTICS = """
update pg_class set relpages = 0, reltuples = 0, relallvisible = 0 where relnamespace = 'pgflow'::regnamespace and relkind in ('r', 'i');
delete from pg_statistic where starelid in (select oid from pg_class where relnamespace = 'pgflow'::regnamespace)
"""


def drawn_plans(seed: int) -> list[tuple[str, str]]:
    """Each kind of statistics with one kind of plans; the next seed has the others."""
    return [(name, PLANS[(n + seed) % len(PLANS)]) for n, name in enumerate(STATISTICS)]


def measure_all(
    dsn: str,
    ids: Ids,
    cases: Sequence[Case] = tuple(CASES),
    kinds: Sequence[tuple[str, str]] = KINDS,
) -> list[Measured]:
    """Every call, under these kinds of statistics and of plans."""
    found = []
    for statistics in STATISTICS:
        with psycopg.connect(dsn, autocommit=True) as conn:
            large = {name for name in _names(conn) if _has_more(conn, name, LARGE_ROWS)}
            if statistics == "fresh":
                conn.execute("vacuum (analyze)")
                while conn.execute(SAMPLED).fetchone():
                    conn.execute("analyze pgflow.run")
            elif statistics == "empty":
                conn.execute(EMPTY_STATISTICS)
            elif statistics == "drained":
                conn.execute(DRAINED_STATISTICS)
        for plans in (plans for name, plans in kinds if name == statistics):
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(f"set plan_cache_mode = {plans}")
                explained = Explained(conn)
                asked = [
                    case
                    for case in cases
                    if not (
                        case.by_people
                        and (plans == "force_generic_plan" or statistics == "drained")
                    )
                ]
                found += [
                    measure(conn, explained, case, ids, statistics, plans, large) for case in asked
                ]
    return found


def run(server_dsn: str, sizes: Sizes, kinds: Sequence[tuple[str, str]] = KINDS) -> list[Measured]:
    """Build the database, make every call in it, and drop it."""
    name = servers.create_database(server_dsn)
    try:
        dsn = servers.dsn_of(server_dsn, name)
        servers.install_schema(dsn)
        return measure_all(dsn, build(dsn, sizes), kinds=kinds)
    finally:
        servers.drop_database(server_dsn, name)


def prove(server_dsn: str, seconds: float, seed: int, sizes: Sizes | None = None) -> Findings:
    """G50. It takes as long as it takes. Where it has little time, each kind of statistics is met
    by the plans that the seed draws, generic or custom; else by both.
    """
    sizes = sizes or Sizes()
    begin = time.monotonic()
    kinds = drawn_plans(seed) if seconds < FULL_SECONDS else KINDS
    found = run(server_dsn, sizes, kinds)
    claims = [one for one in found if one.case.name == "claim of ten from eight lanes"]
    figure = (
        f"{sizes.finished:,} finished, {sizes.unclaimable + sizes.ready:,} ready, {sizes.parked:,} "
        "parked runs; "
        f"a claim of ten touches at most {max(one.buffers for one in claims)} pages, by plans that "
        f"cost at most {max(one.cost for one in claims):,.0f}"
    )
    evidence = Evidence(
        "G50",
        "statistics of empty, drained and nearly empty tables, generic and custom plans",
        len(found),
        wrong=tuple(line for one in found for line in one.complaints),
        figure=figure,
    )
    fired = {
        f"{statistics} statistics": (
            sum(one.statistics == statistics for one in found),
            sum(not case.by_people for case in CASES),
        )
        for statistics in STATISTICS
    }
    return Findings("plans", seed, [evidence], fired, seconds=time.monotonic() - begin)


def print_beside_few(server_dsn: str, sizes: Sizes) -> None:
    """Print how many buffers each call reads in a database of these sizes, as a multiple of those
    that it reads in one with few runs that have ended or are parked.
    """
    kinds = [("fresh", plans) for plans in PLANS]
    pairs = zip(run(server_dsn, BASE, kinds), run(server_dsn, sizes, kinds), strict=True)
    for few, many in sorted(pairs, key=lambda pair: -pair[1].buffers / max(1, pair[0].buffers)):
        times = many.buffers / max(1, few.buffers)
        print(f"{times:7.2f} {few.buffers:7} {many.buffers:7}  {few.plans[6:13]:7} {few.case.name}")


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser("python -m tests.plans", description=__doc__)
    parser.add_argument("dsn", help="a server on which databases may be made")
    parser.add_argument("--finished", type=int, default=Sizes.finished, help="runs that have ended")
    parser.add_argument("--parked", type=int, default=Sizes.parked, help="runs that wait")
    parser.add_argument("--beside-few", action="store_true", help="compare with few of both")
    given = parser.parse_args()
    partition = min(5_000_000, max(Sizes.partition, given.finished // 3))
    sizes = Sizes(finished=given.finished, parked=given.parked, partition=partition)
    if given.beside_few:
        print_beside_few(given.dsn, sizes)
        return
    for one in run(given.dsn, sizes):
        print(
            f"{one.buffers:7} of {one.case.buffers:6} {one.seconds * 1000:7.1f} ms  cost "
            f"{one.cost:12,.0f}  {one.statistics:5} {one.plans[6:13]:7} {one.case.name}"
        )
        print("\n".join(one.complaints), end="\n" if one.complaints else "")


if __name__ == "__main__":
    main()
