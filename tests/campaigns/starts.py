"""Starts: many at once under one key, and starts and signals inside transactions that do not always
commit.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from typing import Any

import psycopg

from pgflow import App, KeyConflict
from tests.campaigns import jobs
from tests.campaigns.ground import Ground, at_once, audit, drain, start
from tests.kits import servers
from tests.kits.evidence import Evidence
from tests.kits.processes import one

STARTERS = 32


def race_for_keys(ground: Ground) -> list[Evidence]:
    """Thirty-two connections start the same runs at the same time: one by one, and in batches in an
    order of their own.

    Every other key is held: its first start stays on its way until another waits for it.
    """
    keys = [f"k{n}" for n in range(ground.scaled(10, 500))]
    batches = [f"b{n}" for n in range(len(keys))]
    seed, gate = ground.rng.random(), threading.Barrier(STARTERS, timeout=60)

    with ground.database() as (dsn, conn):

        def start_next(
            mine: psycopg.Connection[Any], n: int, at: int
        ) -> tuple[str, int, float, float]:
            if at % 2 == 0 and n == at // 2 % STARTERS:
                return _held(mine, keys[at], gate)
            gate.wait()
            return _timed(mine, keys[at])

        def race(n: int) -> list[tuple[str, int, float, float]]:
            with psycopg.connect(servers.witness(dsn), autocommit=True) as mine:
                return [start_next(mine, n, at) for at in range(len(keys))] + _in_batches(
                    mine, batches, random.Random(f"{seed}/{n}")
                )

        answers = [answer for each in at_once(STARTERS, race) for answer in each]
        runs: dict[str, set[int]] = {}
        for key, run_id, _, _ in answers:
            runs.setdefault(key, set()).add(run_id)
        stored = dict(conn.execute("select key, count(*) from pgflow.run group by key").fetchall())
        lost = sum(stored.get(key, 0) == 0 for key in keys + batches)
        doubled = sum(
            max(stored.get(key, 0), len(runs[key])) - 1
            for key in keys + batches
            if stored.get(key, 0)
        )
        wrong = tuple(audit(conn))
    ground.happened(
        "starts that met another of the same key on its way (G4)",
        _overlaps(answers),
        len(keys[::2]),
    )
    return [
        Evidence(
            "G4",
            f"{STARTERS} connections start the same runs at once",
            len(answers),
            lost,
            doubled,
            wrong,
            f"{len(keys + batches)} keys",
        )
    ]


def _timed(conn: psycopg.Connection[Any], key: str) -> tuple[str, int, float, float]:
    began = time.monotonic()
    run_id = one(
        conn,
        "select run_id from pgflow.start_run('booking', %s::json, %s)",
        json.dumps({"key": key, "steps": 1}),
        key,
    )
    return key, run_id, began, time.monotonic()


def _held(
    conn: psycopg.Connection[Any], key: str, gate: threading.Barrier
) -> tuple[str, int, float, float]:
    """Starts a run before all others may, and commits it once one of them waits for that."""
    with conn.transaction():
        _, run_id, began, _ = _timed(conn, key)
        gate.wait()
        waits = "select exists (select from pg_locks where not granted and pg_backend_pid() = any(pg_blocking_pids(pid)))"
        servers.wait_until(lambda: one(conn, waits), f"a start of {key} waits")
    return key, run_id, began, time.monotonic()


def _in_batches(
    conn: psycopg.Connection[Any], keys: list[str], rng: random.Random
) -> list[tuple[str, int, float, float]]:
    shuffled = rng.sample(keys, len(keys))
    found = []
    for at in range(0, len(shuffled), 10):
        runs = json.dumps(
            [[key, json.dumps({"key": key, "steps": 1})] for key in shuffled[at : at + 10]]
        )
        began = time.monotonic()
        rows = conn.execute(
            "select run_key, run_id from pgflow.start_runs('booking', %s)", (runs,)
        ).fetchall()
        found += [(key, run_id, began, time.monotonic()) for key, run_id in rows]
    return found


def _overlaps(answers: list[tuple[str, int, float, float]]) -> int:
    """Starts that began before the first of their key was over."""
    first = {}
    for key, _, _, ended in answers:
        first[key] = min(first.get(key, ended), ended)
    return sum(began < first[key] < ended for key, _, began, ended in answers)


def conflicts(ground: Ground) -> list[Evidence]:
    """A key is used again for something else: typed refusals, and the first run as it was."""
    count = ground.scaled(10, 300)
    refused, wrong = 0, []
    with ground.database() as (dsn, conn), App(dsn, include=jobs.WORKFLOWS) as app:
        for n in range(count):
            app.start(jobs.booking.options(key=f"k{n}"), f"k{n}", 1)
        before = _all_runs(conn)
        for n in range(count):
            key = f"k{n}"
            for start_other in (
                lambda key=key: app.start(jobs.booking.options(key=key), key, 2),
                lambda key=key: app.start(jobs.slow_booking.options(key=key), key, 1, 0),
                lambda key=key: app.start_many(
                    jobs.booking, [("new", 1), (key, 3)], keys=[f"new {key}", key]
                ),
            ):
                try:
                    start_other()
                    wrong.append(f"{key} was started with something else")
                except KeyConflict:
                    refused += 1
        if _all_runs(conn) != before:
            wrong.append("a run was changed by a start that was refused, or one came into being")
        again = [app.start(jobs.booking.options(key=f"k{n}"), f"k{n}", 1) for n in range(count)]
        with app.worker():
            wrong += [f"{run.key} came to something else" for run in again if run.result() != 0]
        wrong += audit(conn)
    ground.happened("starts refused for their key (G4)", refused, 3 * count)
    return [
        Evidence(
            "G4",
            "same key with another input, workflow or batch",
            3 * count,
            wrong=tuple(wrong),
            figure=f"{refused} KeyConflict",
        )
    ]


def _all_runs(conn: psycopg.Connection[Any]) -> list[Any]:
    """Every run and its place, as rows of the tables: a row that was written again has another
    xmin.
    """
    query = "select r.xmin, r.*::text, p.xmin, p.*::text from pgflow.run r join pgflow.ready p using (run_id) order by run_id"
    return conn.execute(query).fetchall()


ENDS = ("commit", "rollback", "error", "terminated", "terminated while it commits")


def inside_transactions(ground: Ground) -> list[Evidence]:
    """An order, the run for it, and a signal to another run are written in one transaction, which
    ends in every way there is.
    """
    threads, each, seed = 8, ground.scaled(8, 400), ground.rng.random()
    with ground.database() as (dsn, conn), App(dsn, include=jobs.WORKFLOWS) as app:
        conn.execute("create table app.orders (key text primary key)")
        start(conn, "following", "ledger", key="ledger", count=1)

        def shop(thread: int) -> list[str]:
            rng = random.Random(f"{seed}/{thread}")
            with psycopg.connect(dsn, autocommit=True) as killer:
                return [
                    _place(dsn, app, killer, f"{thread}-{n}", rng.choice(ENDS)) for n in range(each)
                ]

        ended = [end for thread in at_once(threads, shop) for end in thread]
        orders = {key for (key,) in conn.execute("select key from app.orders")}
        runs = {key for (key,) in conn.execute("select key from pgflow.run where key <> 'ledger'")}
        sent = {
            key
            for (key,) in conn.execute(
                "select payload #>> '{}' from pgflow.signal where kind = 's'"
            )
        }
        with app.worker():
            drain_all_but(conn, "ledger")
        lost, phantoms = (
            len(orders - runs) + len(orders - sent),
            len(runs - orders) + len(sent - orders),
        )
        wrong = tuple(audit(conn))
    for end in ENDS:
        ground.happened(
            f"transactions with starts that ended by: {end} (G5)",
            ended.count(end),
            max(1, len(ended) // 20),
        )
    return [
        Evidence(
            "G5",
            "transactions that start and signal: rolled back, failed, their session terminated",
            len(ended),
            lost,
            phantoms,
            wrong,
            f"{len(orders)} committed",
        )
    ]


def drain_all_but(conn: psycopg.Connection[Any], key: str) -> None:
    """Waits for all runs but one, which waits for ever."""
    conn.execute("select pgflow.cancel_run(%s)", (key,))
    drain(conn)


def _place(dsn: str, app: App, killer: psycopg.Connection[Any], key: str, end: str) -> str:
    """Places an order in a transaction of its own session, and ends it."""
    with contextlib.suppress(psycopg.Error), contextlib.closing(psycopg.connect(dsn)) as mine:
        mine.execute("insert into app.orders values (%s)", (key,))
        client = app.using(mine)
        client.start(jobs.booking.options(key=key), key, 1)
        client.send("ledger", jobs.go, key)
        if end == "commit":
            mine.commit()
        elif end == "rollback":
            mine.rollback()
        elif end == "error":
            mine.execute("select 1 / 0")
        elif end == "terminated":
            one(killer, "select pg_terminate_backend(%s)", mine.info.backend_pid)
            mine.commit()
        else:
            # The request and the COMMIT are on their way together: either may be first.
            mine.pgconn.send_query(b"commit")
            one(killer, "select pg_terminate_backend(%s)", mine.info.backend_pid)
            mine.pgconn.get_result()
    return end
