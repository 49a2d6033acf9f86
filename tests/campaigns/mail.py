"""Messages: signals under kills, and runs that nobody is notified of."""

from __future__ import annotations

import json
import random
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
    spread,
    start,
    wait_until,
)
from tests.kits import servers
from tests.kits.evidence import Evidence
from tests.kits.processes import one


def signals_under_kills(ground: Ground) -> list[Evidence]:
    """Several senders signal the same runs, now and then without committing, while workers are
    killed.
    """
    senders, runs, each = 4, ground.scaled(4, 60), 8
    seed = ground.rng.random()
    with ground.database() as (dsn, conn):
        keys = [
            start(conn, "following", f"run-{n}", key=f"run-{n}", count=senders * each)
            for n in range(runs)
        ]

        def send(sender: int) -> int:
            rng = random.Random(f"{seed}/{sender}")
            letters = [key for key in keys for _ in range(each)]
            rng.shuffle(letters)
            numbers = dict.fromkeys(keys, 0)
            taken_back = 0
            with psycopg.connect(servers.witness(dsn), autocommit=True) as mine:
                for key in letters:
                    if rng.random() < 0.2:
                        taken_back += _send(mine, key, "never sent", commit=False)
                    _send(mine, key, f"{sender}-{numbers[key]}", commit=True)
                    numbers[key] += 1
            return taken_back

        kills, wanted = 0, ground.scaled(3, 100)
        letters = runs * senders * each

        def harm() -> bool:
            """Kills a worker whenever a further part of the signals is taken."""
            nonlocal kills
            taken = one(conn, "select count(*) from app.booked")
            if kills < wanted and taken >= kills * letters // (wanted + 1):
                fleet.replace(ground.rng.choice(fleet.members))
                kills += 1
            return kills == wanted

        with ground.workers(dsn, 2, concurrency=10) as fleet:
            sending = at_once(
                senders + 1, lambda n: send(n) if n < senders else wait_until(harm, "all kills")
            )
            taken_back = sum(sending[:senders])
            drain(conn)
        lost, doubled, wrong = _delivered(conn, keys, senders, each)
        wrong += [*not_completed(conn, keys), *audit(conn)]
    ground.happened("workers killed while signals were taken (G31)", kills, wanted)
    ground.happened("signals rolled back (G31)", taken_back, runs)
    return [
        Evidence(
            "G31",
            "senders against kills and rollbacks",
            runs * senders * each,
            lost,
            doubled,
            tuple(wrong[:5]),
            f"{kills} kills, {taken_back} signals rolled back",
        )
    ]


def _send(conn: psycopg.Connection[Any], key: str, text: str, *, commit: bool) -> int:
    """Sends and wakes, as a client does; 1 if it was taken back."""
    with conn.transaction(force_rollback=not commit):
        chain = one(conn, "select pgflow.send_signal(%s, 'go', %s::json)", key, json.dumps(text))
    if commit:
        conn.execute("select pgflow.wake(array[%s::bigint])", (chain,))
    return not commit


def _delivered(
    conn: psycopg.Connection[Any], keys: list[str], senders: int, each: int
) -> tuple[int, int, list[str]]:
    """Lost and doubled deliveries, and those out of their sender's order."""
    lost = doubled = 0
    wrong = []
    for key in keys:
        notes = [
            note
            for (note,) in conn.execute(
                "select note from app.booked where key = %s order by n", (key,)
            )
        ]
        lost += senders * each - len(set(notes))
        doubled += len(notes) - len(set(notes))
        for sender in range(senders):
            mine = [int(note.split("-")[1]) for note in notes if note.startswith(f"{sender}-")]
            if mine != sorted(mine):
                wrong.append(f"{key} took the signals of sender {sender} in the order {mine}")
        wrong += [f"{key} took a signal that was never sent"] if "never sent" in notes else []
    return lost, doubled, wrong


SWALLOW = """
create schema mute;
create sequence mute.swallowed;
create function mute.pg_notify(text, text) returns void language sql as $$ select nextval('mute.swallowed') $$;
do $$ begin execute format('alter database %I set search_path = mute, pg_catalog, public', current_database()); end $$
"""


PICKED_UP = """
select extract(epoch from b.at - r.created_at)::float8 from app.booked b join pgflow.run r using (key) where starts_with(r.key, 'start-')
union all
select extract(epoch from b.at - s.sent_at)::float8 from app.booked b join app.sent s using (key)
"""


def lost_notifications(ground: Ground) -> list[Evidence]:
    """Workers listen and nothing comes: every notification is swallowed. Starts, signals and timers
    are found by polling.
    """
    poll_seconds, count = 0.4, ground.scaled(12, 200)
    delays: list[float] = []
    with ground.database() as (dsn, conn):
        conn.execute(SWALLOW)
        conn.execute(
            "create table app.sent (key text, sent_at timestamptz default clock_timestamp())"
        )
        with (
            ground.workers(dsn, 2, poll_seconds=poll_seconds, concurrency=50),
            App(dsn, include=jobs.WORKFLOWS) as app,
        ):
            for n in range(count):
                app.start(jobs.booking.options(key=f"start-{n}"), f"start-{n}", 1)
                app.start(jobs.following.options(key=f"mail-{n}"), f"mail-{n}", 1)
                conn.execute("select pg_sleep(%s)", (ground.rng.uniform(0, 2 * poll_seconds / 12),))
                conn.execute("select pgflow.send_signal(%s, 'go', '1')", (f"mail-{n}",))
                conn.execute("insert into app.sent values (%s)", (f"mail-{n}",))
            drain(conn)
        keys = [f"{kind}-{n}" for kind in ("start", "mail") for n in range(count)]
        lost, doubled = booked(conn, keys, 1)
        delays = [delay for (delay,) in conn.execute(PICKED_UP)]
        swallowed = one(conn, "select last_value from mute.swallowed")
        wrong = [*not_completed(conn, keys), *audit(conn)]
    ground.happened("notifications swallowed (G15)", swallowed, count // 2)
    return [
        Evidence(
            "G15",
            "every notification lost",
            len(keys),
            lost,
            doubled,
            tuple(wrong),
            f"picked up: {spread(delays)} (poll {poll_seconds} s)",
        )
    ]
