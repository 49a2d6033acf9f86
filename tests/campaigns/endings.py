"""Ends of runs: one each, whoever else wants to write an outcome, and by a cancel from wherever
they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg

from pgflow import App, RunCancelled
from tests.campaigns import jobs
from tests.campaigns.ground import Ground, at_once, audit, drain, start, wait_until
from tests.kits import servers, sqlkit
from tests.kits.evidence import Evidence
from tests.kits.processes import one

OUTCOME = "select o.xmin::text, o.*::text from pgflow.outcome o where run_id = %s"


def late_writers(ground: Ground) -> list[Evidence]:
    """Have late writers, who no longer hold a run or never did, try to write its outcome after
    another has.
    """
    threads, each = 4, ground.scaled(5, 250)
    seed = ground.rng.random()
    with ground.database() as (dsn, conn):

        def write(thread: int) -> list[str]:
            rng = random.Random(f"{seed}/{thread}")
            with sqlkit.connect(servers.witness(dsn)) as mine:
                # as workers have it, whatever the database's default is
                mine.execute("set default_transaction_isolation = 'read committed'")
                return [
                    line for n in range(each) for line in _too_late(mine, f"lane {thread}", rng, n)
                ]

        told = [line for lines in at_once(threads, write) for line in lines]
        wrong = tuple(line for line in told if line != "refused")
        wrong += tuple(audit(conn))
    ground.happened("writers that came after the outcome (G6)", len(told), threads * each * 8)
    return [
        Evidence(
            "G6",
            "outcome, unit, step, release, cancel by a holder that lost the lease, and after the "
            "end",
            len(told),
            wrong=wrong[:5],
            figure=f"{told.count('refused')} of {len(told)} refused",
        )
    ]


def _too_late(
    conn: psycopg.Connection[Any], workflow: str, rng: random.Random, n: int
) -> list[str]:
    """One run, taken from its holder and ended by another: what each late writer was told,
    'refused' or what went wrong.
    """
    zombie = sqlkit.begin(conn, workflow)
    status = rng.choice(("completed", "failed", "cancelled"))
    if rng.random() < 0.5:
        sqlkit.commit(conn, sqlkit.flush(zombie, sqlkit.unit(payload=str(n))))
    conn.execute(
        "select pgflow.reap_worker(worker_id, beat) from pgflow.worker where worker_id = %s",
        (zombie.worker,),
    )
    lane = zombie.lane_id
    holder = sqlkit.claim_one(conn, lanes=[lane])
    sqlkit.finish(conn, holder, status, output='"first"' if status == "completed" else None)
    before = sqlkit.one(conn, OUTCOME, zombie.run_id)
    told = []
    for name, attempt in _late_attempts(zombie, holder):
        try:
            accepted = attempt(conn)
        except psycopg.Error as error:
            accepted = error.sqlstate != "PF004" and f"{error.sqlstate} {error}"
        after = sqlkit.one(conn, OUTCOME, zombie.run_id)
        told.append(
            "refused"
            if after == before and not accepted
            else f"{name} after {status}: accepted {accepted}, {before} became {after}"
        )
    return told


def _late_attempts(
    zombie: sqlkit.Claim, holder: sqlkit.Claim
) -> list[tuple[str, Callable[[psycopg.Connection[Any]], object]]]:
    """Writes that come too late; each answers what was accepted."""

    def commits(
        late: sqlkit.Claim, *, careful: bool = False, **ending: Any
    ) -> Callable[[psycopg.Connection[Any]], object]:
        flush = sqlkit.flush(late, **ending) if ending else sqlkit.flush(late, sqlkit.unit())

        def commit(conn: psycopg.Connection[Any]) -> object:
            answer = sqlkit.commit(conn, flush, careful=careful)
            # The holder of the outcome may have lost the answer to it: to him it is said that he
            # has written one.
            is_told = answer.bad.get(late.run_id) in (
                ("lost",) if late is zombie else ("lost", "already")
            )
            return None if is_told else f"verdict {answer.bad}"

        return commit

    def fence(conn: psycopg.Connection[Any]) -> object:
        with conn.transaction():
            conn.execute(
                "select set_config('pgflow.step', %s, true)", (f"{zombie.run_id}/{zombie.token}/9",)
            )
            return conn.execute(
                "select pgflow.fence_step(%s, %s, 9, '[]')", (zombie.run_id, zombie.token)
            ).fetchone()

    def cancel(conn: psycopg.Connection[Any]) -> object:
        conn.execute("select pgflow.cancel_run(%s, force => true)", (zombie.key,))
        sqlkit.wake(conn, zombie.chain_id)
        return None

    def ask(query: str) -> Callable[[psycopg.Connection[Any]], object]:
        return lambda conn: (
            conn.execute(query, {"run": zombie.run_id, "token": zombie.token}).fetchone()[0] or None
        )  # type: ignore[index]

    return [
        ("completed by the zombie", commits(zombie, outcome=("completed", None, '"second"', None))),
        ("failed by the zombie",
            commits(zombie, outcome=("failed", None, None, '{"message": "no"}'))),
        ("cancelled by the zombie",
            commits(zombie, careful=True, outcome=("cancelled", "late", None, None))),
        ("unit of the zombie", commits(zombie)),
        ("another outcome by the holder",
            commits(holder, outcome=("failed", None, None, '{"message": "no"}'))),
        ("unit of the holder", commits(holder, careful=True)),
        ("step of the zombie", fence),
        ("step that begins", ask("select pgflow.begin_step(%(run)s, %(token)s, 9) is not null")),
        ("sign of life of a step", ask("select pgflow.beat_step(%(run)s, %(token)s, 1, 1, null)")),
        ("release by the zombie",
            ask("select nullif(pgflow.release_runs(array[%(run)s::bigint], "
                "array[%(token)s::bigint]), '{}')")),
        ("cancel", cancel),
    ]  # fmt: skip


STATES = {
    "queued": "queued", "later": "waiting", "paused": "paused", "stuck": "stuck", "in a step": "running", "in a transaction": "running",
    "waiting": "waiting", "waiting for a time": "waiting", "sleeping": "waiting", "trying again": "waiting", "with a child": "waiting",
    "cleaning up": "waiting",
}  # fmt: skip


def cancel_everywhere(ground: Ground) -> list[Evidence]:
    """Runs are cancelled in every state in which a run can be, by force and not."""
    rounds = ground.scaled(1, 10)
    wrong: list[str] = []
    with ground.database() as (dsn, conn):
        keys = {
            f"{kind}/{way}/{n}": kind
            for kind in STATES
            for way in ("gently", "force")
            for n in range(rounds)
        }
        for key, kind in keys.items():
            _bring_about(conn, key, kind)
        with ground.workers(dsn, 1, concurrency=100):
            statuses = "select key, status from pgflow.runs where key = any(%s)"
            wait_until(
                lambda: all(STATES[keys[k]] == s for k, s in conn.execute(statuses, (list(keys),))),
                "every run is in its state",
            )
            for key in keys:
                conn.execute(
                    "select pgflow.cancel_run(%s, 'campaign', force => %s)", (key, "/force/" in key)
                )
            drain(conn, lambda: conn.execute("select pgflow.wake()"))
            # Stuck counts as an end where runs drain: a cancelled one must have left that state,
            # too.
            left = "select count(*) from pgflow.runs where status <> 'cancelled'"
            wait_until(lambda: one(conn, left) == 0, "every run and child is cancelled")
        cleaned = one(conn, "select count(*) from app.booked where key = 'cleaning up'")
        if cleaned != rounds:
            wrong.append(f"{cleaned} of {rounds} runs that were cancelled gently have cleaned up")
        wrong += audit(conn)
    ground.happened("runs cancelled (G36)", len(keys), 2 * len(STATES))
    return [
        Evidence(
            "G36",
            f"cancel and force in each of {len(STATES)} states",
            len(keys),
            wrong=tuple(wrong),
        )
    ]


def _bring_about(conn: psycopg.Connection[Any], key: str, kind: str) -> None:
    """Starts a run that comes to this state, by itself or not."""
    if kind == "later":
        conn.execute(
            "select pgflow.start_run('staying', %s, %s, run_at => now() + interval '1 hour')",
            ('{"kind": "waiting"}', key),
        )
        return
    start(
        conn,
        "staying",
        key,
        queue="of nobody" if kind == "queued" else "default",
        kind="waiting" if kind == "paused" else kind,
    )
    if kind == "paused":
        conn.execute("select pgflow.pause_run(%s)", (key,))


def cancel_against_complete(ground: Ground) -> list[Evidence]:
    """Cancels arrive while runs are about to complete: one of the two, for good, and the books
    agree with it.
    """
    count, steps, seed = ground.scaled(40, 2000), 3, ground.rng.random()
    with (
        ground.database() as (dsn, conn),
        ground.workers(dsn, 2, concurrency=20),
        App(dsn, include=jobs.WORKFLOWS) as app,
    ):

        def race(thread: int) -> list[str]:
            rng = random.Random(f"{seed}/{thread}")
            return [
                _cancel_soon(app, dsn, f"{thread}-{n}", steps, rng.randint(0, steps + 1))
                for n in range(count // 4)
            ]

        told = [line for lines in at_once(4, race) for line in lines]
        drain(conn)
        first = dict(conn.execute("select run_id, xmin::text from pgflow.outcome").fetchall())
        for (key,) in conn.execute("select key from pgflow.run").fetchall():
            app.cancel(key)
        drain(conn, meanwhile=lambda: conn.execute("select pgflow.wake()"))
        wrong = [line for line in told if line not in ("completed", "cancelled")]
        if dict(conn.execute("select run_id, xmin::text from pgflow.outcome").fetchall()) != first:
            wrong.append("an outcome was written again by a cancel after the end")
        query = """
            select r.key, r.status, count(b.n), count(distinct b.n), coalesce(max(b.n), -1)
            from pgflow.runs r left join app.booked b on b.key = r.key group by 1, 2
        """
        for key, status, rows, distinct, last in conn.execute(query):
            if rows != distinct or rows != last + 1 or (status == "completed" and rows != steps):
                wrong.append(f"{key} is {status} with {rows} bookings up to {last}")
        wrong += audit(conn)
    for status in ("completed", "cancelled"):
        ground.happened(f"races that ended {status} (G36)", told.count(status), count // 20)
    return [
        Evidence(
            "G36",
            "cancel against completion",
            len(told),
            wrong=tuple(wrong[:5]),
            figure=f"{told.count('cancelled')} cancelled, {told.count('completed')} completed",
        )
    ]


def _cancel_soon(app: App, dsn: str, key: str, steps: int, after: int) -> str:
    """Starts a run and cancels it once it has booked so often, or has ended; what it came to."""
    run = app.start(jobs.booking.options(key=key), key, steps)
    with psycopg.connect(servers.witness(dsn), autocommit=True) as mine:
        wait_until(lambda: one(mine, BOOKED_OR_ENDED, key, after, key), "it has come so far")
    run.cancel()
    try:
        value = run.result()
    except RunCancelled:
        return "cancelled"
    return "completed" if value == sum(range(steps)) else f"{key} came to {value}"


BOOKED_OR_ENDED = """
select (select count(*) from app.booked where key = %s) >= %s
  or exists (select from pgflow.runs where key = %s and status in ('completed', 'cancelled'))
"""
