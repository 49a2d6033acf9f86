"""The database of a simulation: pgflow's own functions, a clock that the simulator moves, and
places to halt.

Only this database is changed, never the files: `now_()` reads a sequence, which costs no
transaction to move and ticks by a microsecond at each look, so that no two times are alike; commits
wait for no disk; and between statements of some functions stands a place where a call can be
halted, to let others go on meanwhile. A broken variant is a replacement in the text of a function,
made in the same way.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from tests.kits import servers
from tests.simulator.wire import Wire

T0_US = 1_900_000_000_000_000
"""Time at which the clock of every episode begins."""

QUEUES = ("q1", "q2")
LIMITED, LIMIT = "q2", 3
"""Queue with a limit, and the number of its runs that may be leased at once."""
WORKFLOWS = ("a", "b")
POOLS = ("left", "right")
"""Pools of runs, which draw on a third."""
ACCOUNTS = 4

SETUP = f"""
create schema sim;
create sequence sim.clock minvalue 0 start {T0_US};
create table sim.booked (run_id bigint not null, call int not null, token bigint not null);
create index booked_run on sim.booked (run_id);
create table sim.account (account_id int primary key, balance bigint not null);

create or replace function pgflow.now_() returns timestamptz language sql volatile
set search_path = pg_catalog, pg_temp
as $$ select timestamptz 'epoch' + nextval('sim.clock') * interval '1 microsecond' $$;

grant usage on schema sim to public;
grant usage, select, update on sequence sim.clock to public;

-- Halts a call that was told to halt here, until the one who told it lets go of the lock.
create function sim.halt(place text) returns void language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('sim.halt', true) = place then
    perform set_config('sim.halt', '', false);
    perform pg_advisory_lock(1, pg_backend_pid());
    perform pg_advisory_unlock(1, pg_backend_pid());
  end if;
end
$$;
"""

RESET = f"""
set pgflow.rewrites = 'on';
truncate pgflow.run_key, pgflow.run, pgflow.outcome, pgflow.deadline, pgflow.ready, pgflow.lease, pgflow.parked, pgflow.wait, pgflow.timer,
  pgflow.held, pgflow.signal, pgflow.run_update, pgflow.update_asker, pgflow.undelivered, pgflow.nudge, pgflow.unit, pgflow.step_beat, pgflow.worker,
  pgflow.pool, pgflow.spend, pgflow.reservation, pgflow.charge, pgflow.pool_change, pgflow.lock, pgflow.lock_wait,
  pgflow.lock_nudge, pgflow.lock_broken, pgflow.seal, pgflow.seal_round, pgflow.seal_day, pgflow.seal_pending,
  pgflow.schedule, pgflow.schedule_declaration, pgflow.schedule_change, pgflow.evidence, pgflow.rate, sim.booked, sim.account restart identity;
update pgflow.seal_state set is_on = true, passed_run_id = 0, next_run_id = null, waits_for = null, looked_upto = 0,
  cycle_began_at = null, next_look_at = null;
update pgflow.schedule_state set fleet = null, kept_until = null, keeper = null;
alter sequence pgflow.run_id_seq restart;
alter sequence pgflow.nudge_id_seq restart;
alter sequence pgflow.lock_fence_seq restart;
alter sequence sim.clock restart;
update pgflow.queue set paused_at = null, max_running = case when queue = '{LIMITED}' then {LIMIT} end, max_deaths = 3;
insert into pgflow.pool (made_at, is_hard, name, pools, tz, limits)
select timestamptz 'epoch', false, p, array[p, 'top'], 'UTC', '{{"usd": 40}}'::jsonb from unnest('{{{",".join(POOLS)}}}'::text[]) p
union all select timestamptz 'epoch', false, 'top', array['top'], 'UTC', '{{"usd": 60}}'::jsonb;
insert into sim.account select i, 0 from generate_series(1, {ACCOUNTS}) i
"""


class Change(NamedTuple):
    """In this function this text, which stands there once, becomes that."""

    function: str
    old: str
    new: str


class Halt(NamedTuple):
    """A place between two statements of a function, before this text."""

    place: str
    function: str
    before: str


HALTS = (
    Halt("wake: nudges seen", "wake",
        "  select array_agg(c order by c), array_agg(pgflow.newest_run_(c)"),
    Halt("wake: newest runs chosen", "wake",
        "  looked := array(\n    select k.run_id from (\n      select p.run_id"),
    Halt("wake: parked locked", "wake", "  for control in"),
    Halt("wake: controls applied", "wake", "  ready_ids := array("),
    Halt("wake: mail of leases seen", "wake", "  if mail <> '{}' then"),
    Halt("wake: before nudges go", "wake", "  delete from pgflow.nudge n using"),
    Halt("due: timers seen", "wake_due_", "  locked := array(\n    select k.run_id"),
    Halt("due: parked locked", "wake_due_", "  -- Whoever held the row before"),
    Halt("poll: clock read", "poll", "  perform pgflow.expire_runs_"),
    Halt("poll: expired", "poll", "  select w.lanes, w.mail, w.ended, w.busy + has_more::int into"),
    Halt("commit: leases locked", "commit_units", "  if careful or not are_ours"),
    Halt("commit: units there", "commit_units", "  if batch->'questions' @?"),
    Halt("commit: before the pools", "commit_units", "  if batch ? 'draws' then"),
    Halt("commit: pools locked", "commit_units", "    perform pgflow.settle_budgets_(batch"),
    Halt("answer: mail seen", "answer_all_", "  foreach kind in array"),
    Halt("answer: before the look", "answer_kind_",
        "      is_news := true;\n      for pos, seq, units in select l.*"),
    Halt("answer: before the park", "answer_all_", "    to_wake := to_wake || pgflow.park_all_("),
    Halt("claim: heads seen", "take_heads_", "  if heads is null then"),
    Halt("claim: heads locked", "take_heads_", "  if locked is null then"),
    Halt("fence: lease locked", "fence_step", "  if held_token is distinct from token then"),
    Halt("reap: worker locked", "reap_worker", "  if coalesce(current_beat, -1)"),
    Halt("reap: leases locked", "reap_worker", "  with gone as ("),
    Halt("release: leases locked", "release_runs", "  with gone as ("),
    Halt("control: place locked", "apply_controls_", "  looked := true;"),
    Halt("deliver: place locked", "deliver_signal", "  if me is null or"),
    Halt("deliver: wait found", "deliver_signal", "  t := pgflow.now_();"),
    Halt("answer: updates seen", "offer_updates_", "  return query"),
    Halt("commit: updates taken", "settle_updates_", "  if gone <> taken then"),
    Halt("update: id taken", "send_update", "  if is_new then"),
    Halt("start: key taken", "insert_run_", "  is_new := true;"),
    Halt("fire: schedule locked", "keep_schedules", "    coming := cardinality(s.upcoming)"),
    Halt("fire: run started", "fire_slot_", "  s.error := null;\n"),
    Halt("lock: key tried", "take_lock", "  t := pgflow.now_();"),
    Halt("lock: given back", "nudge_key_", "  if not pgflow.try_key_(key)"),
    Halt("locks: nudges seen", "sweep_locks_", "  for wanted in"),
)  # fmt: skip

AUDIT = "select invariant, detail from pgflow.check()"
SEAL = "select sealed from pgflow.seal_units(at_once => true)"
UNSEALED = """
select o.run_id from pgflow.outcome o where not exists (
  select from pgflow.seal s
  where s.run_id = o.run_id and s.outcome_hash = pgflow.hash_(pgflow.outcome_text_(o))
    and s.upto_seq = (select coalesce(max(u.seq), 0) from pgflow.unit u where u.run_id = o.run_id)
)
"""
EVERY_SECONDS = 600
MISCOUNTED = f"""
select format('schedule %s: %s fired, %s skipped, %s missed up to %s', s.name, s.fired, s.skipped, s.missed, s.last_slot_at)
from pgflow.schedule s
where s.last_slot_at is not null and s.name like 'alone%' and (
  s.fired + s.skipped + s.missed + cardinality(s.buffered)
    <> floor(extract(epoch from s.last_slot_at) / {EVERY_SECONDS}) - floor(extract(epoch from s.created_at) / {EVERY_SECONDS})
  or s.fired <> (select count(*) from pgflow.run r where starts_with(r.key, s.name || '/') and r.generation = 1 and r.parent_run_id is null)
)
"""
"""Schedules of which a slot is lost or was counted twice; of those that nobody meddles with."""
# The clock of the simulation moves when it is read; whoever looks on must not move it.
NOW_FOR_ONLOOKERS = (
    "(timestamptz 'epoch' + (select last_value from sim.clock) * interval '1 microsecond')"
)


class Database:
    """A database made for simulations; dropped at the end."""

    def __init__(self, server_dsn: str, changes: tuple[Change, ...] = ()) -> None:
        self.server_dsn = server_dsn
        self.name = servers.create_database(server_dsn)
        self.dsn = servers.dsn_of(server_dsn, self.name)
        servers.install_schema(self.dsn)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(f'alter database "{self.name}" set synchronous_commit = off')  # type: ignore[arg-type]
            conn.execute(f'alter database "{self.name}" set jit = off')  # type: ignore[arg-type]
            conn.execute(f'alter database "{self.name}" set plan_cache_mode = force_generic_plan')  # type: ignore[arg-type]
            conn.execute(SETUP)  # type: ignore[arg-type]
            for halt in HALTS:
                _replace(
                    conn,
                    Change(
                        halt.function,
                        halt.before,
                        f"  perform sim.halt('{halt.place}');\n{halt.before}",
                    ),
                )
            for change in changes:
                _replace(conn, change)
            _leave_out_the_machine(conn)
            conn.execute("select pgflow.serve_lanes(%s, %s)", (list(QUEUES), list(WORKFLOWS)))
            self.limited = {
                lane
                for (lane,) in conn.execute(
                    "select lane_id from pgflow.lane where queue = %s", (LIMITED,)
                )
            }
            conn.execute(
                _definition(conn, "check_starts_").replace("pgflow.now_()", NOW_FOR_ONLOOKERS)
            )  # type: ignore[arg-type]

    def reset(self, wire: Wire) -> None:
        """Everything is as it was after the set-up, numbers included."""
        wire.run(RESET)

    def drop(self) -> None:
        servers.drop_database(self.server_dsn, self.name)


def _replace(conn: psycopg.Connection, change: Change) -> None:
    text = _definition(conn, change.function)
    assert text.count(change.old) == 1, (
        f"{change.function} has this text {text.count(change.old)} times: {change.old}"
    )
    conn.execute(text.replace(change.old, change.new))  # type: ignore[arg-type]


def _definition(conn: psycopg.Connection, function: str) -> str:
    found = conn.execute(
        "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'pgflow'::regnamespace "
        "and proname = %s",
        (function,),
    ).fetchall()
    assert len(found) == 1, f"{len(found)} functions are called {function}"
    return found[0][0]


NOT_SIMULATED = (
    # No crash of the server happens here, so no commit need wait for the disk.
    (
        "set_config('synchronous_commit', 'on', true)",
        "set_config('synchronous_commit', 'off', true)",
    ),
    # A slow machine must not end a transaction that the scheduler keeps open.
    (
        "set_config('idle_in_transaction_session_timeout', '5000', true)",
        "set_config('idle_in_transaction_session_timeout', '0', true)",
    ),
)


def _leave_out_the_machine(conn: psycopg.Connection) -> None:
    """Nothing depends on how fast disks and processors are."""
    for real, simulated in NOT_SIMULATED:
        found = conn.execute(
            "select proname from pg_proc where pronamespace = 'pgflow'::regnamespace and prosrc "
            "like %s",
            (f"%{real}%",),
        ).fetchall()
        assert found, f"no function says {real}"
        for (function,) in found:
            conn.execute(_definition(conn, function).replace(real, simulated))  # type: ignore[arg-type]
