"""Processes: asked to stop at any instant, interrupted, forked."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from datetime import timedelta
from typing import Any

import psycopg

from pgflow import App
from tests.campaigns import jobs
from tests.campaigns.ground import (
    Ground,
    at_once,
    audit,
    booked,
    drain,
    not_completed,
    start,
    start_bookings,
    wait_until,
)
from tests.kits.evidence import Evidence
from tests.kits.processes import one

OURS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and starts_with(application_name, 'pgflow')"

RESTING = """
select count(*) from pgflow.lease l join pgflow.worker w using (worker_id) join pgflow.steps s using (run_id)
where w.pid = %s and s.step = 'rest' and s.status = 'started'
"""


def random_sigterms(ground: Ground) -> list[Evidence]:
    """`pgflow workers` is asked to stop at a random instant, its start included."""
    waves, at_a_time = ground.scaled(3, 50), 4
    asked = too_early = during_start = 0
    wrong: list[str] = []
    with ground.database() as (dsn, conn):
        keys = start_bookings(conn, waves * 10, steps=20, ms=20)
        for _ in range(waves):
            began = [ground.nursery.start("command", dsn, concurrency=10) for _ in range(at_a_time)]
            delays = sorted((ground.rng.uniform(0.02, 0.6), child) for child in began)
            pause, slept = threading.Event(), 0.0
            for delay, child in sorted(delays, key=lambda pair: pair[0]):
                pause.wait(delay - slept)  # the instant is what is tried
                slept = delay
                during_start += (
                    one(conn, "select count(*) from pgflow.worker where pid = %s", child.pid) == 0
                )
                child.send(signal.SIGTERM)
            codes = [child.wait() for _, child in delays]
            # The interpreter itself is not asked yet whether it minds.
            too_early += codes.count(-signal.SIGTERM)
            asked += at_a_time - codes.count(-signal.SIGTERM)
            wrong += [
                f"a worker that was asked to stop ended with {code}"
                for code in codes
                if code not in (0, -signal.SIGTERM)
            ]
            left = (
                one(conn, "select count(*) from pgflow.lease"),
                one(conn, "select count(*) from pgflow.worker"),
            )
            wrong += (
                [f"after their end {left[0]} runs are leased and {left[1]} workers registered"]
                if left != (0, 0)
                else []
            )
        with ground.workers(dsn, 1, concurrency=100):
            drain(conn)
        lost, doubled = booked(conn, keys, 20)
        wrong += [*not_completed(conn, keys), *audit(conn)]
    ground.happened("workers asked to stop (G20)", asked, 1)
    return [
        Evidence(
            "G20",
            "SIGTERM at a random instant",
            asked,
            lost,
            doubled,
            tuple(wrong[:5]),
            f"{during_start - too_early} during the start; nothing leased, exit code 0",
        )
    ]


def second_sigterms(ground: Ground) -> list[Evidence]:
    """A second SIGTERM while the worker waits for its steps: a crash, and the runs go on
    elsewhere.
    """
    count = ground.scaled(2, 30)
    wrong = []
    with ground.database() as (dsn, conn):
        keys = start_bookings(conn, count, steps=2, ms=1000)
        for _ in range(count):
            child = ground.nursery.start("command", dsn, concurrency=1, grace="60s")
            wait_until(lambda pid=child.pid: one(conn, RESTING, pid), "it is in a step")
            child.send(signal.SIGTERM)
            wait_until(
                lambda pid=child.pid: one(
                    conn, "select bool_or(stopping) from pgflow.worker where pid = %s", pid
                ),
                "it is about to stop",
            )
            child.send(signal.SIGTERM)
            if (code := child.wait()) != 1:
                wrong.append(f"a second SIGTERM ended it with {code}")
            if (
                one(
                    conn,
                    "select count(*) from pgflow.lease l join pgflow.worker w using (worker_id) "
                    "where w.pid = %s",
                    child.pid,
                )
                != 1
            ):
                wrong.append("what it held is not left as by a crash")
        with ground.workers(dsn, 1, concurrency=50):
            drain(conn)
        lost, doubled = booked(conn, keys, 2)
        wrong += [*not_completed(conn, keys), *audit(conn)]
    ground.happened("second SIGTERMs (G20)", count, 2)
    return [
        Evidence(
            "G20",
            "a second SIGTERM during the grace",
            count,
            lost,
            doubled,
            tuple(wrong[:5]),
            "exit code 1, runs go on elsewhere",
        )
    ]


def interrupts(ground: Ground) -> list[Evidence]:
    """Ctrl-C reaches a program of a user at a random instant, in its steps or out of them."""
    count = ground.scaled(4, 60)
    wrong, interrupted = [], 0
    with ground.database() as (dsn, conn):
        for n in range(count):
            key = start(conn, "slow_booking", f"script-{n}", key=f"script-{n}", steps=20, ms=20)
            start(conn, "booking", f"{key}-main", key=f"{key}-main", steps=60, ms=10)
            child = ground.nursery.start("script", dsn, key=f"{key}-main")
            wait_until(
                lambda key=key: one(conn, "select count(*) from app.booked where key = %s", key),
                "it works",
            )
            threading.Event().wait(ground.rng.uniform(0, 0.1))  # the instant is what is tried
            child.send(signal.SIGINT)
            interrupted += child.wait() == 130
            wait_until(lambda: one(conn, f"select count(*) {OURS}") == 0, "its sessions have ended")
            if leased := one(conn, "select count(*) from pgflow.lease"):
                wrong.append(f"{leased} runs are leased after Ctrl-C")
        with ground.workers(dsn, 1, concurrency=50):
            drain(conn)
        keys = [f"script-{n}" for n in range(count)]
        lost, doubled = booked(conn, keys, 20)
        wrong += [*not_completed(conn, keys), *audit(conn)]
    ground.happened("programs interrupted (G44)", interrupted, 1)
    return [
        Evidence(
            "G44",
            "Ctrl-C in a program that works on runs",
            interrupted,
            lost,
            doubled,
            tuple(wrong[:5]),
            "no session, transaction or lease left",
        )
    ]


def forks(ground: Ground) -> list[Evidence]:
    """A process with an open app forks; parent and children use it at the same time, and threads
    share it.
    """
    children, each = 4, ground.scaled(10, 300)
    wrong: list[str] = []
    with ground.database() as (dsn, conn), App(dsn, include=jobs.WORKFLOWS) as app:
        app.start(jobs.booking.options(key="before"), "before", 1)
        parents = _sessions(conn)
        pids = [_fork(app, f"child-{n}", each) for n in range(children)]
        use(app, "parent", each)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        wrong += [f"a forked process ended with {code}" for code in codes if code]
        if not parents <= _sessions(conn):
            wrong.append("a child closed a session of its parent")
        at_once(8, lambda n: use(app, f"thread-{n}", each))
        names = (
            [f"child-{n}" for n in range(children)] + ["parent"] + [f"thread-{n}" for n in range(8)]
        )
        keys = [f"{name}-{n}" for name in names for n in range(each)]
        with ground.workers(dsn, 1, concurrency=100):
            drain(conn)
            if app.get(keys[-1], jobs.booking).result(timedelta(seconds=20)) != 0:
                wrong.append("another result than the run's")
        lost, doubled = booked(conn, keys, 1)
        wrong += [*not_completed(conn, keys), *audit(conn)]
    ground.happened("forks of a process with open connections (G44)", len(codes), children)
    return [
        Evidence(
            "G44",
            "an open app used after fork, and by 8 threads at once",
            len(keys),
            lost,
            doubled,
            tuple(wrong[:5]),
        )
    ]


def _sessions(conn: psycopg.Connection[Any]) -> set[int]:
    return {pid for (pid,) in conn.execute(f"select pid {OURS}")}


def use(app: App, name: str, count: int) -> None:
    """Starts runs and reads their status."""
    for n in range(count):
        run = app.start(jobs.booking.options(key=f"{name}-{n}"), f"{name}-{n}", 1)
        assert run.status() in ("queued", "running", "completed"), run


def _fork(app: App, name: str, count: int) -> int:
    """A child that uses the app that it finds open; its pid."""
    with warnings.catch_warnings():
        # this process has threads: that is what is tried
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        use(app, name, count)
        app.close()
        code = 0
    finally:
        os._exit(code)
