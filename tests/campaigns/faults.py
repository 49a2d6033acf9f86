"""Errors of the database that say nothing of the work: injected by SQLSTATE, and real ones."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg

from tests.campaigns.ground import (
    Feed,
    Ground,
    audit,
    booked,
    drain,
    not_completed,
    start,
    start_bookings,
    wait_until,
)
from tests.campaigns.scratch import MAX_CONNECTIONS, Scratch
from tests.kits import servers
from tests.kits.evidence import Evidence
from tests.kits.processes import one

INFRASTRUCTURE = (
    "08000", "08001", "08003", "08004", "08006", "08007", "08P01", "57P01", "57P02", "57P03", "57P04", "57P05", "40001", "40P01",
    "53000", "53100", "53200", "53300", "53400", "25006", "55P03",
)  # fmt: skip
OF_THE_WORK = ("22012", "23505", "42P01", "P0001", "57014")
"""Errors that must be recorded: if these were retried too, the others would prove nothing."""


def infrastructure_errors(ground: Ground) -> list[Evidence]:
    """A transactional step, in both colours, meets each error a few times before it succeeds."""
    rounds, times = ground.scaled(1, 20), 3
    with ground.database() as (dsn, conn):
        keys = {}
        for state in (*INFRASTRUCTURE, *OF_THE_WORK):
            for n in range(2 * rounds):
                key = f"{state}/{n}"
                keys[key] = state
                start(conn, "refusing", key, key=key, state=state, times=times, thread=n % 2 == 1)
        with ground.workers(dsn, 1, concurrency=50):
            drain(conn)
        wrong, recorded = [], 0
        query = """
            select r.key, r.status, r.output::text, (select count(*) from pgflow.unit u where u.run_id = r.run_id and u.kind in ('a', 'f')),
              (select count(*) from app.booked b where b.key = r.key) from pgflow.runs r
        """
        retried = [key for key, state in keys.items() if state in INFRASTRUCTURE]
        for key, status, output, errors, rows in conn.execute(query):
            if keys[key] in OF_THE_WORK:
                recorded += (status, errors, rows) == ("failed", 1, 0)
            elif (status, output, errors, rows) != ("completed", str(times + 1), 0, 1):
                wrong.append(
                    f"{key}: {status} with {output} after {times} errors, {errors} of them "
                    f"recorded, {rows} bookings"
                )
        lost, doubled = booked(conn, retried, 1)
        wrong += audit(conn)
    ground.happened("injected errors (G10)", len(retried) * times, len(INFRASTRUCTURE) * 2 * times)
    ground.happened("errors of the work recorded (G10)", recorded, len(OF_THE_WORK) * 2)
    return [
        Evidence(
            "G10",
            f"{len(INFRASTRUCTURE)} SQLSTATEs raised in transactional steps, {times} times each",
            len(retried),
            lost,
            doubled,
            tuple(wrong[:5]),
            "none recorded",
        )
    ]


BOOKED = "select count(*) from app.booked"
TERMINATE = """
select count(pg_terminate_backend(pid)) from (
  select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and starts_with(application_name, 'pgflow')
  order by random() limit 1
) x
"""


def terminated_connections(ground: Ground) -> list[Evidence]:
    """Whenever the workers have booked a little more, a session of theirs is terminated."""
    wanted, kills, terminated_at = ground.scaled(8, 3000), 0, 0
    with ground.database() as (dsn, conn):
        feed = Feed(conn, 24, steps=10, ms=10)

        def terminate() -> bool:
            nonlocal kills, terminated_at
            feed.fill()
            if one(conn, BOOKED) >= terminated_at + 5:
                kills += one(conn, TERMINATE)
                terminated_at = one(conn, BOOKED)
            return kills >= wanted

        with ground.workers(dsn, 2, concurrency=16, dead_after=3.0):
            wait_until(terminate, "sessions are terminated")
            drain(conn)
        lost, doubled = booked(conn, feed.keys, 10)
        wrong = (*not_completed(conn, feed.keys), *audit(conn))
    ground.happened("sessions of workers terminated (G39)", kills, wanted)
    return [
        Evidence(
            "G39",
            "sessions terminated under load",
            len(feed.keys) * 10,
            lost,
            doubled,
            wrong,
            f"{kills} sessions",
        )
    ]


def no_connections_left(ground: Ground) -> list[Evidence]:
    """Somebody takes every connection there is just when the workers have lost theirs."""
    rounds = ground.scaled(1, 20)
    scratch = ground.scratch()
    before = scratch.count_refusals()
    with scratch.database() as dsn, psycopg.connect(servers.witness(dsn), autocommit=True) as conn:
        keys = start_bookings(conn, 12 * rounds, steps=10, ms=20)
        with ground.workers(dsn, 2, concurrency=16, dead_after=2.0):
            for n in range(rounds):
                wait_until(
                    lambda n=n: one(conn, "select count(*) from app.booked") > n * 60,
                    "the workers work",
                )
                _take_all(conn, dsn, scratch)
            drain(conn)
        lost, doubled = booked(conn, keys, 10)
        wrong = (*not_completed(conn, keys), *audit(conn))
        refused = scratch.count_refusals() - before
    # The first refusal of each round is the hog's own.
    ground.happened("connections refused by a full server (G39)", refused - rounds, 3 * rounds)
    return [
        Evidence(
            "G39",
            "too many connections (53300) when the workers lost theirs",
            len(keys) * 10,
            lost,
            doubled,
            wrong,
            f"{refused - rounds} refusals",
        )
    ]


def _take_all(conn: psycopg.Connection[Any], dsn: str, scratch: Scratch) -> None:
    """Terminates the workers' sessions, takes their place, and lets go after they were refused some
    times.
    """
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where "
                "starts_with(application_name, 'pgflow')"
            )
            try:
                stack.enter_context(psycopg.connect(dsn))
            except psycopg.OperationalError:
                break
        refused = scratch.count_refusals()
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where "
            "starts_with(application_name, 'pgflow')"
        )
        wait_until(lambda: scratch.count_refusals() >= refused + 4, "the workers are refused")
