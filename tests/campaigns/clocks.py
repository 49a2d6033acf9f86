"""Time: timers while workers die and the server crashes, and workers whose clocks are wrong."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psycopg

from tests.campaigns.ground import (
    Fleet,
    Ground,
    audit,
    booked,
    drain,
    not_completed,
    spread,
    start,
    wait_until,
)
from tests.campaigns.nursery import Nursery
from tests.kits import servers
from tests.kits.evidence import Evidence
from tests.kits.processes import one

NAPS = 3

EARLY = """
select count(*) from pgflow.timeline s join pgflow.timeline f using (run_id, call)
where s.event = 'timer_started' and f.event = 'timer_fired' and f.recorded_at < s.due_at
"""
FIRED_TWICE = "select count(*) - count(distinct (run_id, call)) from pgflow.timeline where event = 'timer_fired'"
LATENESS = """
select extract(epoch from f.recorded_at - s.due_at)::float8 from pgflow.timeline s join pgflow.timeline f using (run_id, call)
where s.event = 'timer_started' and f.event = 'timer_fired'
"""


def start_naps(
    ground: Ground, conn: psycopg.Connection[Any], count: int, longest_ms: int
) -> list[str]:
    """Starts runs that sleep several times, each time for a random while, and book in between."""
    naps = {
        f"nap-{n}": [ground.rng.randint(1, longest_ms) for _ in range(NAPS)] for n in range(count)
    }
    return [start(conn, "napping", key, key=key, naps=each) for key, each in naps.items()]


def judge(conn: psycopg.Connection[Any], keys: list[str]) -> tuple[int, int, list[str], str]:
    """Naps that are lost and doubled, what is wrong beside, and how late timers were."""
    lost, doubled = booked(conn, keys, NAPS)
    doubled += one(conn, FIRED_TWICE)
    early = one(conn, EARLY)
    wrong = [f"{early} timers fired before they were due"] if early else []
    wrong += [*not_completed(conn, keys), *audit(conn)]
    return (
        lost,
        doubled,
        wrong,
        f"0 early, lateness {spread([late for (late,) in conn.execute(LATENESS)])}",
    )


def timers_under_crashes(ground: Ground) -> list[Evidence]:
    """Runs sleep while workers are killed and the server is stopped as by a crash, and started
    again.
    """
    crashes, count = ground.scaled(1, 20), ground.scaled(20, 500)
    scratch = ground.scratch()
    kills = stops = 0
    with scratch.database() as dsn:
        with psycopg.connect(servers.witness(dsn), autocommit=True) as conn:
            keys = start_naps(ground, conn, count, longest_ms=1000 * crashes)
        fleet = Fleet(ground.nursery, dsn, {"concurrency": 50, "dead_after": 1.0})
        with contextlib.closing(_Ending(fleet)):
            fleet.start(2)
            for _ in range(crashes):
                _work_on(dsn, ground.rng.randint(3, 12))
                fleet.replace(ground.rng.choice(fleet.members))
                scratch.stop("immediate")
                scratch.start()
                kills, stops = kills + 1, stops + 1
            with psycopg.connect(servers.witness(dsn), autocommit=True) as conn:
                drain(conn)
        with psycopg.connect(servers.witness(dsn), autocommit=True) as conn:
            lost, doubled, wrong, figure = judge(conn, keys)
    ground.happened("immediate stops of the server (G22, G39)", stops, crashes)
    ground.happened("workers killed while runs slept (G22)", kills, crashes)
    return [
        Evidence(
            "G22",
            "workers killed, server stopped at once and started",
            count * NAPS,
            lost,
            doubled,
            tuple(wrong),
            f"{figure}, the server's absences included",
        ),
        Evidence(
            "G39",
            "server stopped at once and started, fsync on",
            0,
            lost,
            doubled,
            tuple(wrong),
            f"{stops} stops",
            shared=count * NAPS,
        ),
    ]


class _Ending:
    """Ends a fleet although the server may be away."""

    def __init__(self, fleet: Fleet) -> None:
        self.close = fleet.end


WORKED = """
select (select count(*) from app.booked) >= %s
  or (select count(*) from pgflow.outcome) = (select count(*) from pgflow.run)
"""


def _work_on(dsn: str, bookings: int) -> None:
    """Waits until the workers have done so much more, or all."""
    with psycopg.connect(servers.witness(dsn), autocommit=True) as conn:
        wanted = one(conn, "select count(*) from app.booked") + bookings
        wait_until(lambda: one(conn, WORKED, wanted), "the workers work on")


def find_faketime() -> str | None:
    """The library that moves a process's clock, where it is installed."""
    return next((str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


def wrong_clocks(ground: Ground) -> list[Evidence]:
    """Two workers share the work, one an hour ahead of the server's clock and one an hour behind;
    one of each is killed.
    """
    count = ground.scaled(20, 500)
    library = find_faketime()
    with ground.database() as (dsn, conn), contextlib.ExitStack() as stack:
        keys = start_naps(ground, conn, count, longest_ms=400)
        fleets = []
        for hours in (1, -1):
            moved = (
                {"LD_PRELOAD": library, "FAKETIME": f"{hours:+d}h", "DONT_FAKE_MONOTONIC": "0"}
                if library
                else {}
            )
            nursery = stack.enter_context(Nursery(**moved))
            fleet = Fleet(nursery, dsn, {"concurrency": 30, "clock_hours": 0 if library else hours})
            stack.callback(fleet.end)
            fleet.start()
            fleets.append(fleet)
        for fleet in fleets:
            _work_on(dsn, 5)
            fleet.replace(fleet.members[0])
        drain(conn)
        lost, doubled, wrong, figure = judge(conn, keys)
        # Starts at a time and time-outs are decided by the same clock.
        started = "select count(*) from pgflow.unit u where u.recorded_at not between now() - interval '30 min' and now() + interval '30 min'"
        if off := one(conn, started):
            wrong.append(f"{off} units carry the time of a worker")
    ground.happened("workers an hour off (G21)", 2 * len(fleets), 4)
    how = "libfaketime" if library else "Python's clock moved"
    return [
        Evidence(
            "G21",
            f"workers an hour ahead and an hour behind ({how})",
            count * NAPS,
            lost,
            doubled,
            tuple(wrong),
            figure,
        )
    ]
