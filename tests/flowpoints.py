"""Sessions that work on workflows in SQL are killed between any two statements of the driver, and in
each kind of step: `python -m tests.flowpoints SERVER_DSN [--kills N] [--seed S] [--sessions N]
[--workers N] [--programs N]`.

The functions of the driver get a call of `point` between their statements, and so do the rows that
steps write. At each such place a session dies once in a lot of programs: it is ended by the server,
or its process is killed, which brings the whole server down. With ``--workers``, workers in Python
drive the runs too, and are killed at some moment. The programs, and what is expected of them, are
those of `tests.flowprograms`. Beside them run some that are paused and cancelled, whose locks are
broken and whose budget is spent: each step of theirs must happen at most once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg

from tests import flowprograms
from tests.flowprograms import OPEN, UNITS, Process, Session, ask, patiently

# flowprograms makes the kits importable by their names
import servers  # isort: skip

LOT, COPIES = 25, 8
"""Programs in one database, and runs of each."""
DRIVER = """
select p.proname, pg_get_functiondef(p.oid) from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = 'pgflow'::regnamespace and l.lanname = 'plpgsql' and p.provolatile = 'v' and p.proname in (
  'advance', 'ask_flow_', 'end_flow_', 'record_unit_', 'spend_', 'leave_block_', 'withdraw_', 'let_go_', 'fail_node_',
  'fold_items_', 'keep_undo_', 'serve_flows', 'claim_flows', 'share_session', 'unshare_session', 'reap_sessions',
  'work_until', 'run_timed')
  and p.oid <> 'pgflow.withdraw_(bigint, text)'::regprocedure -- of a rewind
"""
DOOMED = """
select pgflow.set_pool('few', '{"usd": 9}');
select pgflow.create_workflow('doomed(n int)', $$
declare
  v jsonb;
begin
  begin
    za: insert into trace (key, what) values (run->>'key', 'za');
    undo za: insert into trace (key, what) values (run->>'key', 'undo za');
    lock 'z' || n % 4 loop
      zb: insert into trace (key, what) values (run->>'key', 'zb');
        if n % 5 = 0 then perform pgflow.cancel_run(run->>'key'); end if;
        if n % 11 = 0 then perform pgflow.force_cancel_run(run->>'key'); end if;
      ask zgate(n => n) timeout '0.5 s' into v;
      zc timeout '1 min': perform 1 / (n % 2);
        if n % 7 = 0 then perform pgflow.cancel_run(run->>'key'); end if;
    end loop;
  exception when division_by_zero then
    zd: insert into trace (key, what) values (run->>'key', 'zd');
  end;
  zf timeout '1 min' retry 99 every '0 s': perform pg_sleep(0.02);
    if nextval('flaky') % 4 > 0 then raise exception 'flaky'; end if;
  spend '{"usd": 1}';
  for each r in select g from generate_series(1, 3) g run leaf(n => r.g + n) at most 2 into v;
exception when others then
  ze timeout '1 min': insert into trace (key, what) values (run->>'key', 'ze');
  if n % 2 = 0 then
    raise;
  end if;
end $$);
select pgflow.start_run('doomed', json_build_object('n', n), key => 'z' || n, pool => case when n % 3 < 2 then 'few' end)
from generate_series(1, 80) n;
"""
"""Runs that are paused, cancelled and lose their locks."""
OPEN_DOOMED = "select key from pgflow.runs where workflow = 'doomed' and finished_at is null order by random() limit 1"
ORDERS = (
    f"select pgflow.pause_run(key) from ({OPEN_DOOMED}) r",
    *[f"select pgflow.resume_run(key) from ({OPEN_DOOMED}) r"] * 4,
    f"select pgflow.cancel_run(key) from ({OPEN_DOOMED}) r where random() < 0.5",
    f"select pgflow.force_cancel_run(key) from ({OPEN_DOOMED}) r where random() < 0.5",
    (
        "select pgflow.break_lock(l.key, 'on purpose'), pgflow.pause_run(l.holder), pgflow.resume_run(l.holder)"
        " from pgflow.locks l where l.key like 'z%' limit 1"
    ),
)
"""What operators do meanwhile."""
END = "select pgflow.force_cancel_run(key) from pgflow.runs where workflow = 'doomed' and finished_at is null"
IDLE = "select not exists (select from pgflow.runs where finished_at is null and parent_run_id is null)"
POINTS = """
create table public.aim (place text not null, signal text not null, size bigint not null);
create function public.point(place text) returns boolean language plpgsql security definer as $$
declare
  aim public.aim;
begin
  select a.* into aim from public.aim a where a.place = point.place;
  -- One dies of the places that were set together.
  if found and coalesce((select f.size from pg_stat_file('died', true) f), 0) = aim.size then
    execute format('copy (select) to program %L', format('echo %s >> died; kill -%s %s', quote_literal(place),
      aim.signal, pg_backend_pid()));
    perform pg_sleep(60);
  end if;
  return true;
end $$;
create function public.point_of_row() returns trigger language plpgsql as $$
begin
  assert public.point('in a step: ' || substring(new.what from '^[a-z]+ ?[a-z]*'));
  return null;
end $$;
create trigger point after insert on public.trace for each row execute function public.point_of_row();
"""


def dotted(name: str, text: str) -> tuple[str, list[str]]:
    """Text of a function with a call of `point` between its statements, and the places of these."""
    lines, places = text.split("\n"), []
    before = None  # the declarations
    for number, line in enumerate(lines):
        code = line.split(" -- ")[0].strip()
        if code == "begin":
            before = code
        if not code or code.startswith("--"):
            continue
        if (
            before
            and before.endswith(";")
            and not re.match(r"(return|raise|exit;|continue;)", before)
        ):
            places.append(f"{name}:{number}")
            lines[number] = f"assert public.point('{places[-1]}'); {line}"
        # A statement may take several lines.
        if before:
            goes_on = not re.search(r"(;|\b(begin|then|else|loop|exception))$", before)
            before = f"{before} {code}" if goes_on else code
    return "\n".join(lines), places


def install(dsn: str) -> set[str]:
    """Put the points into a database; return their places."""
    places = {f"in a step: {what}" for what in ("s", "l", "undo l", "undo s")}
    with patiently(dsn) as conn:
        conn.execute(flowprograms.SETUP)
        conn.execute(DOOMED)
        conn.execute(POINTS)
        for name, text in conn.execute(DRIVER).fetchall():
            changed, found = dotted(name, text)
            conn.execute(changed)
            places.update(found)
    return places


class Caller(flowprograms.Session):
    """Works as psql does, or as a worker does, which has steps with a time-out in statements of their own."""

    def work(self, conn: flowprograms.Connection, draw: random.Random) -> None:
        conn.execute(f"set synchronous_commit = {draw.choice(['on', 'on', 'off'])}".encode())
        if draw.random() < 0.4:
            super().work(conn, draw)
            return
        step: Any = {}
        while step is not None:
            (step,) = conn.execute(
                "call pgflow.work_until(%s::jsonb, seconds => 1, until_idle => true)",
                [json.dumps(step)],
            ).fetchone()  # type: ignore[misc]
            if step is not None:
                level = draw.choice(["read committed", "repeatable read"])
                conn.execute(f"begin isolation level {level}".encode())
                (step,) = conn.execute("select pgflow.run_timed(%s)", [json.dumps(step)]).fetchone()  # type: ignore[misc]
                conn.execute("commit")


class Atlas:
    """Places at which sessions can die, and how often they did.

    Each is met once in a lot, so that deaths go on until its last runs end. Most aims are at places
    that were never met.
    """

    def __init__(self) -> None:
        self.places: set[str] = set()
        self.met: Counter[str] = Counter()
        self.lot = 0

    def harm(
        self, dsn: str, sessions: Sequence[Session | Process], draw: random.Random, kills: int
    ) -> Counter[str]:
        """Kill so many times, each at an aim; return what and how often, when nothing is left."""
        self.lot += 1
        done: Counter[str] = Counter()
        workers = [one for one in sessions if isinstance(one, Process)]
        while done.total() < kills and not ask(dsn, IDLE)[0][0]:
            if workers and draw.random() < 0.1 and (pid := workers[0].pid):
                done[workers[0].kill(pid, draw)] += 1
            signal = "KILL" if draw.random() < 0.2 else "TERM"
            known = sorted(one for one in self.places if 0 < self.met[one] < self.lot)
            aims = [one for one in self.places if not self.met[one]]
            died = wait_for(dsn, [*aims, *draw.sample(known, min(len(known), 3))], signal, draw)
            self.met.update(died)
            done["servers" if signal == "KILL" else "sessions"] += len(died)
        ask(dsn, "with old as (delete from public.aim returning true) select from old")
        ask(dsn, END)
        return done + flowprograms.harm(dsn, sessions, draw, 0)


def wait_for(dsn: str, places: list[str], signal: str, draw: random.Random) -> list[str]:
    """Make these places the aims, and be an operator; return where a session has died, nothing once all is over."""
    aimed = """with old as (delete from public.aim) insert into public.aim
      select unnest(%s::text[]), %s, coalesce((select f.size from pg_stat_file('died', true) f), 0) returning true"""
    dead = "select pg_read_file('died', 0, 10000000, true)"
    before = len(said(ask(dsn, dead)))
    ask(dsn, aimed, places, signal)
    seen, give_up = -1, 0.0
    while not (died := said(ask(dsn, dead))[before:]) and not ask(dsn, IDLE)[0][0]:
        if (units := ask(dsn, UNITS)[0][0]) != seen:
            seen, give_up = units, time.monotonic() + servers.HANG_SECONDS
        if time.monotonic() > give_up:
            raise AssertionError(f"it hangs: {ask(dsn, OPEN)}")
        if draw.random() < 0.3:
            with contextlib.suppress(psycopg.Error):
                ask(dsn, draw.choice(ORDERS))
        time.sleep(0.005)
    return died


def said(rows: list[Any]) -> list[str]:
    """Lines of the file of the dead."""
    return (rows[0][0] or "").splitlines()


def play(
    server: str, kills: int, sessions: int, workers: int, seed: str, programs: int = LOT
) -> tuple[flowprograms.Result, Atlas]:
    """Play lots of programs until so many were killed, or something is wrong."""
    atlas, total, lot = Atlas(), flowprograms.Result(), 0
    while total.kills.total() < kills and not total.wrong:
        name = servers.create_database(server)
        dsn = servers.dsn_of(server, name)
        servers.install_schema(dsn)
        atlas.places = install(dsn)
        result = flowprograms.campaign(
            dsn,
            programs=programs,
            kills=kills - total.kills.total(),
            sessions=sessions,
            seed=f"{seed}/{lot}",
            copies=COPIES,
            workers=workers,
            harm=atlas.harm,
            kind=Caller,
        )
        servers.drop_database(server, name)
        lot += 1
        total.runs += result.runs
        total.rows += result.rows
        total.kills += result.kills
        total.wrong += result.wrong
        met = sum(1 for place in atlas.places if atlas.met[place])
        told = f"{result.runs} runs, {result.rows} rows, killed {dict(result.kills)}"
        print(f"lot {lot}: {told}, {met}/{len(atlas.places)} places met", flush=True)
    return total, atlas


def figures(total: flowprograms.Result, atlas: Atlas) -> dict[str, Any]:
    """Figures on the runs, and how often places were met."""
    return {
        "runs": total.runs,
        "rows": total.rows,
        "kills": total.kills,
        "places": len(atlas.places),
        "met": Counter(atlas.met[place] for place in sorted(atlas.places)),
        "never": sorted(place for place in atlas.places if not atlas.met[place]),
    }


def main() -> int:
    """Play it; exit with 1 if anything was lost, doubled or left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="server, as a superuser")
    for name, default in {"kills": 1000, "sessions": 2, "workers": 0, "programs": LOT}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", default="1")
    given = parser.parse_args()
    total, atlas = play(
        given.dsn, given.kills, given.sessions, given.workers, given.seed, given.programs
    )
    print(json.dumps(figures(total, atlas), indent=2))
    for line in total.wrong[:20]:
        print(f"FAILED {line}")
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
