"""Workers that freeze, die, or come back all at once: who goes on with their runs, when, and how
often.
"""

from __future__ import annotations

import signal
from math import ceil, log2
from typing import Any

import psycopg

from tests.campaigns.ground import (
    Feed,
    Fleet,
    Ground,
    audit,
    booked,
    drain,
    not_completed,
    start,
    start_bookings,
    wait_until,
)
from tests.campaigns.nursery import Child
from tests.kits import servers
from tests.kits.evidence import Evidence
from tests.kits.processes import one

LEASES = """
select l.run_id, l.token from pgflow.lease l join pgflow.worker w using (worker_id)
where w.pid = %s and exists (select from pgflow.unit u where u.run_id = l.run_id and u.seq > l.last_seq)
"""


def held_by(conn: psycopg.Connection[Any], pid: int) -> dict[int, int]:
    """Runs that a process holds and has got on with, so that its death makes none of them suspect;
    and their tokens.
    """
    return dict(conn.execute(LEASES, (pid,)).fetchall())


def busiest(conn: psycopg.Connection[Any], fleet: Fleet, number: int) -> list[Child] | None:
    """The workers with the most runs; None as long as they have only a few."""
    held = {member: len(held_by(conn, member.pid)) for member in fleet.members}
    most = sorted(fleet.members, key=lambda member: -held[member])[:number]
    return most if sum(held[member] for member in most) > 4 else None


BEGUN_AGAIN = """
select count(*) > 0 from unnest(%s::bigint[]) as r (run_id)
where exists (select from pgflow.lease l where l.run_id = r.run_id) or exists (select from pgflow.outcome o where o.run_id = r.run_id)
"""


def allow_deaths(conn: psycopg.Connection[Any], *queues: str) -> None:
    """Lets innocent runs lose as many workers as a campaign takes: five in a row without progress
    would, rightly, make one stuck.
    """
    for queue in queues:
        conn.execute(
            "select pgflow.set_queue(%s, jsonb_build_object('max_deaths', 1000))", (queue,)
        )


def is_taken(conn: psycopg.Connection[Any], runs: dict[int, int]) -> bool:
    """Return True if no run is held under these tokens any more."""
    return (
        one(conn, "select count(*) from pgflow.lease where token = any(%s)", list(runs.values()))
        == 0
    )


def zombies(ground: Ground) -> list[Evidence]:
    """Workers stand still for longer than others believe them alive, and go on when others have
    their runs.
    """
    wanted = ground.scaled(20, 1000)
    frozen_runs = 0
    with ground.database() as (dsn, conn):
        allow_deaths(conn, "default", "slow")
        feeds = [Feed(conn, 24, 12, 30), Feed(conn, 12, 8, 60, "slow_booking", "slow")]
        with ground.workers(dsn, 3, queues=("default", "slow"), concurrency=64) as fleet:
            while frozen_runs < wanted:
                frozen_runs += _freeze(conn, fleet, feeds)
            drain(conn)
        lost, doubled = (
            sum(counts)
            for counts in zip(*(booked(conn, feed.keys, feed.steps) for feed in feeds), strict=True)
        )
        wrong = (*not_completed(conn, [key for feed in feeds for key in feed.keys]), *audit(conn))
    ground.happened("runs taken from a frozen worker that woke up again (G7)", frozen_runs, 20)
    return [
        Evidence(
            "G7",
            "worker stopped past its lease, woken when others have its runs",
            frozen_runs,
            lost,
            doubled,
            wrong,
        )
    ]


def _freeze(conn: psycopg.Connection[Any], fleet: Fleet, feeds: list[Feed]) -> int:
    """Freezes two workers that are busy, until others have all their runs; how many those were."""
    for feed in feeds:
        feed.fill()
    victims = wait_until(lambda: busiest(conn, fleet, 2), "two workers have runs")
    for victim in victims:
        victim.send(signal.SIGSTOP)
    try:
        held = {
            run: token for victim in victims for run, token in held_by(conn, victim.pid).items()
        }
        wait_until(lambda: is_taken(conn, held), "others take the runs of a frozen worker")
        wait_until(lambda: one(conn, BEGUN_AGAIN, list(held)), "others go on")
    finally:
        for victim in victims:
            victim.send(signal.SIGCONT)
    return len(held)


def recoveries(ground: Ground) -> list[Evidence]:
    """Workers are killed; how often the hearts of others beat before each of their runs goes on."""
    wanted = ground.scaled(6, 1000)
    found: list[int] = []
    with ground.database() as (dsn, conn):
        allow_deaths(conn, "default")
        feed = Feed(conn, 20, 8, 40)
        with ground.workers(dsn, 3, dead_after=1.0, concurrency=64) as fleet:
            while len(found) < wanted:
                feed.fill()
                found += _kill_and_watch(conn, fleet)
            drain(conn)
        lost, doubled = booked(conn, feed.keys, feed.steps)
        wrong = (*not_completed(conn, feed.keys), *audit(conn))
    ground.happened("runs of killed workers (G13)", len(found), wanted)
    return [
        Evidence(
            "G13",
            "worker killed with -9: all runs to their end",
            len(feed.keys),
            lost,
            doubled,
            wrong,
        ),
        Evidence(
            "G14",
            "worker killed with -9",
            0,
            wrong=too_slow(found),
            figure=after_beats(found),
            shared=len(found),
        ),
    ]


BEATS_TO_DIE = 6
"""Beats that a worker of a campaign misses before it counts as dead (`roles.worker`)."""
MOST_BEATS = 4 * BEATS_TO_DIE
"""Beats of the others within which a dead worker's run goes on: the time-out, a second, and as long
again, since whoever counts the beats may come late.
"""


def too_slow(found: list[int]) -> tuple[str, ...]:
    """Return a complaint if the others' hearts have beaten too often before a run went on."""
    return (
        (f"a run went on only after {max(found)} beats of the others, the bound is {MOST_BEATS}",)
        if max(found, default=0) > MOST_BEATS
        else ()
    )


def after_beats(found: list[int]) -> str:
    """For the table."""
    return f"went on elsewhere after at most {max(found, default=0)} beats of the others ({BEATS_TO_DIE} missed ones are a death)"


def _kill_and_watch(conn: psycopg.Connection[Any], fleet: Fleet) -> list[int]:
    """Kills one worker and starts another: beats of the others until each of its runs is held by
    somebody else or has moved on.
    """
    (victim,) = wait_until(lambda: busiest(conn, fleet, 1), "a worker has runs")
    victim.send(signal.SIGKILL)
    heart = Heart(conn, victim.pid)
    held = held_by(conn, victim.pid)
    fleet.replace(victim)
    return watch(conn, held, heart)


class Heart:
    """Counts the beats of a worker that was there when another died."""

    def __init__(self, conn: psycopg.Connection[Any], dead: int) -> None:
        self._conn = conn
        query = "select pid, beat from pgflow.worker where pid <> %s"
        self._before = dict(conn.execute(query, (dead,)).fetchall())

    def beats(self) -> int:
        """Return the beats since: those of whoever has had the most."""
        now = self._conn.execute("select pid, beat from pgflow.worker").fetchall()
        return max(
            (beat - self._before[pid] for pid, beat in now if pid in self._before), default=0
        )


WAITING = """
select run_id from pgflow.lease where run_id = any(%(ids)s) and token = any(%(tokens)s)
union select run_id from pgflow.ready where run_id = any(%(ids)s) and suspect < 2
"""


def watch(conn: psycopg.Connection[Any], held: dict[int, int], heart: Heart) -> list[int]:
    """Return the beats until each run went on. Runs that two workers died over are left out: they
    are tried in groups.
    """
    waiting, found = set(held), list[int]()
    suspects: set[int] = set()

    def look() -> bool:
        left = {
            run
            for (run,) in conn.execute(
                WAITING, {"ids": list(waiting), "tokens": list(held.values())}
            )
        }
        suspects.update(
            run
            for (run,) in conn.execute(
                "select run_id from pgflow.ready where suspect > 1 and run_id = any(%s)",
                (list(waiting),),
            )
        )
        found.extend([heart.beats()] * len(waiting - left - suspects))
        waiting.intersection_update(left)
        return not waiting

    wait_until(look, "the runs of a dead worker go on")
    return found


def recoveries_at_limit_one(ground: Ground) -> list[Evidence]:
    """The only run that a queue admits is held by a worker that is killed: the queue must not wait
    for it for ever.
    """
    rounds = ground.scaled(1, 60)
    found: list[int] = []
    with ground.database() as (dsn, conn):
        conn.execute(
            "select pgflow.set_queue('single', jsonb_build_object('concurrency', 1, 'max_deaths', 1000))"
        )
        keys = start_bookings(conn, rounds * 3 + 2, steps=10, ms=20, queue="single")
        with ground.workers(dsn, 2, queues=("single",), dead_after=1.0) as fleet:
            for _ in range(rounds):
                found += _kill_holder(conn, fleet)
            drain(conn)
        lost, doubled = booked(conn, keys, 10)
        wrong = (*not_completed(conn, keys), *audit(conn), *too_slow(found))
    ground.happened("killed holders of a queue's only place (G14)", len(found), 1)
    return [
        Evidence(
            "G14",
            "worker killed with -9, queue with a limit of 1",
            len(found),
            lost,
            doubled,
            wrong,
            after_beats(found),
        )
    ]


def _kill_holder(conn: psycopg.Connection[Any], fleet: Fleet) -> list[int]:
    holder = wait_until(
        lambda: next((m for m in fleet.members if held_by(conn, m.pid)), None),
        "one of the workers has the run",
    )
    holder.send(signal.SIGKILL)
    heart = Heart(conn, holder.pid)
    held = held_by(conn, holder.pid)
    fleet.replace(holder)
    wait_until(lambda: is_taken(conn, held), "the dead worker's run is taken from it")
    other = "select count(*) from pgflow.lease"
    wait_until(
        lambda: one(conn, other) or one(conn, "select count(*) from pgflow.ready") == 0,
        "the queue goes on",
    )
    return [heart.beats()] if held else []


def poison(ground: Ground) -> list[Evidence]:
    """Runs that end the process of whoever works on them, among others that do not."""
    count = ground.scaled(1, 20)
    deaths_allowed = 3
    # Its licence to begin is progress: the first death is not counted against it. Neighbours that
    # die with it twice, before they have recorded anything, are told from it in groups that halve.
    most_tries = count * (deaths_allowed + 1 + ceil(log2(20 + count)))
    ended = 0
    with ground.database() as (dsn, conn):
        conn.execute(
            "select pgflow.set_queue('default', jsonb_build_object('max_deaths', %s::int))",
            (deaths_allowed,),
        )
        healthy = start_bookings(conn, 20, steps=10, ms=20)
        bad = [start(conn, "poison", f"bad-{n}", key=f"bad-{n}") for n in range(count)]

        def restart() -> None:
            nonlocal ended
            ended += fleet.restart_dead()

        with ground.workers(dsn, 2) as fleet:
            drain(conn, restart)
        lost, doubled = booked(conn, healthy, 10)
        reasons = dict(
            conn.execute(
                "select key, concat(status, ' ', reason) from pgflow.runs where key = any(%s)",
                (bad,),
            ).fetchall()
        )
        tries = dict(conn.execute("select key, count(*) from app.seen group by key").fetchall())
        wrong = [
            f"{key} is {reasons.get(key)}" for key in bad if reasons.get(key) != "stuck poison"
        ]
        wrong += [f"{key} was tried {n} times" for key, n in tries.items() if n > most_tries]
        wrong += [*not_completed(conn, healthy), *audit(conn)]
    ground.happened("workers ended by a poisonous step (G16)", sum(tries.values()), 2 * count)
    return [
        Evidence(
            "G16",
            "step that ends its worker's process",
            count,
            lost,
            doubled,
            tuple(wrong),
            f"tried at most {max(tries.values(), default=0)} times; {ended} processes ended, "
            f"{len(healthy)} neighbours completed",
        )
    ]


CUT = """
with there as materialized (
  select pid, row_number() over (order by hashtext(pid::text || %s)) as place, count(*) over () as n
  from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
)
select count(pg_terminate_backend(pid)) from there where place <= greatest(n * 2 / 5, %s)
"""
CALLS = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = 'claim_runs'"


def stampede(ground: Ground) -> list[Evidence]:
    """Two fifths of an idle fleet's connections, and one a worker at least, are cut at one moment:
    how many claims that brings.
    """
    processes, each = ground.scaled(2, 4), 5
    poll_seconds, watched_seconds = 0.5, 1.5
    scratch = ground.scratch()
    with scratch.database() as dsn, psycopg.connect(servers.witness(dsn), autocommit=True) as conn:
        conn.execute(
            "do $$ begin execute format('alter database %I set track_functions = pl', "
            "current_database()); end $$"
        )
        with ground.workers(
            dsn, processes, count=each, poll_seconds=poll_seconds, dead_after=10
        ) as fleet:
            workers = processes * each
            wait_until(
                lambda: one(conn, "select count(*) from pgflow.worker") == workers,
                "all workers are there",
            )
            idle, _ = _claims_in(conn, watched_seconds)
            cut = one(conn, CUT, str(ground.rng.random()), workers)
            after, took_seconds = _claims_in(conn, watched_seconds)
            wait_until(
                lambda: one(conn, "select count(*) from pgflow.worker") == workers,
                "all workers are still there",
            )
            start_bookings(conn, 20, 2)
            drain(conn)
            del fleet
        wrong = tuple(audit(conn))
    # A poll brings one claim, a connection that is back at most one more.
    bound = workers * (took_seconds / (0.8 * poll_seconds) + 1) + cut
    if after > bound:
        wrong = (*wrong, f"{after} claims in {took_seconds:.1f} s, the bound is {bound:.0f}")
    ground.happened("connections cut at one moment (G18)", cut, workers)
    return [
        Evidence(
            "G18",
            f"{cut} connections of {workers} workers cut at one moment",
            1,
            wrong=wrong,
            figure=f"{after / watched_seconds:.0f} claims/s after it, {idle / watched_seconds:.0f} "
            "before",
        )
    ]


def _claims_in(conn: psycopg.Connection[Any], seconds: float) -> tuple[int, float]:
    """Return the claims of so many seconds, and how many those were by the database's clock."""
    now = "select extract(epoch from clock_timestamp())::float8"
    conn.execute("select pg_stat_clear_snapshot()")
    began, before = one(conn, now), one(conn, CALLS)
    conn.execute("select pg_sleep(%s)", (seconds,))
    return int(one(conn, CALLS) - before), one(conn, now) - began
