"""Kill -9 at named points, again and again: `python -m tests.crashes DSN [--kills N] [--seed S]`.

Workers are forked from this process, which holds no thread of its own then. Each victim is told a
point and a number, and kills itself with SIGKILL when it reaches that point for the n-th time.
Others go on, and runs are started until every kill of the plan has happened: how fast the machine
is changes nothing. At the end every run must have completed, each of its transactional steps booked
exactly once, each keyed step seen under exactly one key, and `pgflow.check()` must find nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

import pgflow
from pgflow import Signal, read, step, transaction, workflow
from pgflow._db.calls import commit as commit_calls
from pgflow._db.calls import wake as wake_calls
from pgflow._engine.flush import Flush
from pgflow._worker.bodies import Bodies
from pgflow._worker.claims import Claims
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.executor import Executor
from pgflow._worker.options import Rhythm, WorkerOptions
from pgflow.app import AsyncApp
from pgflow.errors import PgflowError

sys.path.insert(0, str(Path(__file__).parent / "kits"))

import servers
from evidence import Evidence, Findings

POINTS = (
    "before claim commit", "after claim", "before body", "in body", "in transaction", "after body",
    "before commit", "after commit before ack", "before transaction commit",
    "after transaction commit before ack", "at park", "at wake", "at completion",
)  # fmt: skip
STEPS = 4
RHYTHM = Rhythm(beat=0.2, look=0.05, dead_after=1.0)
CONCURRENCY = 8
AT_ONCE = 3
"""Victims that are alive at a time."""
MOST_LEFT = 100
"""Victims of one point that may leave before they come to it."""
BROKEN_EXIT = 70
"""Exit code of a process in which this program itself is wrong."""

go = Signal("go", int)


@transaction
async def book(conn: psycopg.AsyncConnection[Any], key: str, n: int) -> int:
    await conn.execute("insert into app.booked values (%s, %s)", (key, n))
    _reach("in transaction")
    return n


@step(retries=10)
async def tell(key: str, n: int) -> str:
    """An outside write: the witness is another connection, which no transaction of the engine can
    take back.
    """
    async with await psycopg.AsyncConnection.connect(
        servers.witness(os.environ["CRASH_DSN"]), autocommit=True
    ) as witness:
        await witness.execute(
            "insert into app.told values (%s, %s, %s)", (key, n, pgflow.idempotency_key())
        )
    _reach("in body")
    return f"told {n}"


@read
async def look(n: int) -> int:
    return n


@workflow
async def job(key: str) -> int:
    total = 0
    for n in range(STEPS):
        total += await look(1)
        total += await book(key, n)
        await tell(key, n)
    total += await go.wait()
    total += await pgflow.run_child(part, key)
    return total


@workflow
async def part(key: str) -> int:
    return await book(f"{key}/part", 0)


DOUBLES_NOT_SHOWN = """
select count(*) from (select idempotency_key as k from app.told group by 1 having count(*) > 1) t
where not exists (select from pgflow.repeated_steps s where s.idempotency_key = t.k)
"""
"""Acts that the witness saw more than once, and that nobody who asks the view would find."""

EXPECTED = STEPS + sum(range(STEPS)) + 1


class _Point:
    """The point at which this process is to die, and how often it has been passed."""

    name: str | None = None
    remaining = 0


def _reach(name: str) -> None:
    if _Point.name == name:
        _Point.remaining -= 1
        if _Point.remaining <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _arm(name: str, nth: int) -> None:
    """Puts the point where it belongs, by wrapping one method of the worker."""
    _Point.name, _Point.remaining = name, nth
    wrap = {
        "before claim commit": _arm_claim,
        "after claim": _arm_claimed,
        "before body": _arm_body,
        "after body": _arm_return,
        "before commit": _arm_commit,
        "after commit before ack": _arm_commit,
        "at park": _arm_commit,
        "at completion": _arm_commit,
        "before transaction commit": _arm_transaction,
        "after transaction commit before ack": _arm_transaction,
        "at wake": _arm_wake,
    }.get(name)
    if wrap is not None:
        wrap(name)


def _arm_claim(name: str) -> None:
    original = WorkerConnection.ask

    async def ask(self: WorkerConnection, query: Any) -> Any:
        if "claim_runs" not in query.sql or _Point.remaining > 1:
            _Point.remaining -= "claim_runs" in query.sql
            return await original(self, query)
        connection = await psycopg.AsyncConnection.connect(servers.witness(os.environ["CRASH_DSN"]))
        await connection.execute(query.sql, query.params)
        _reach(name)
        return []

    WorkerConnection.ask = ask  # type: ignore[method-assign]


def _arm_claimed(name: str) -> None:
    original = Claims.arrived

    def arrived(self: Claims, request: Any, claims: list[Any], *parked: Any) -> Any:
        if claims:
            _reach(name)
        return original(self, request, claims, *parked)

    Claims.arrived = arrived  # type: ignore[method-assign]


def _arm_body(name: str) -> None:
    original = Bodies.start

    def start(self: Bodies, execution: Any, call: Any) -> None:
        _reach(name)
        original(self, execution, call)

    Bodies.start = start  # type: ignore[method-assign]


def _arm_return(name: str) -> None:
    original = Bodies.returned

    def returned(self: Bodies, execution: Any, result: Any) -> None:
        _reach(name)
        original(self, execution, result)

    Bodies.returned = returned  # type: ignore[method-assign]


def _concerns(name: str, flush: Flush) -> bool:
    if name == "at park":
        return bool(flush.question and flush.question.get("park"))
    return flush.ending is not None if name == "at completion" else True


def _arm_commit(name: str) -> None:
    original = Executor.execute
    before = (
        _Point.remaining % 2 == 0
        if name in ("at park", "at completion")
        else name == "before commit"
    )

    async def execute(
        self: Executor, wire: Any, items: list[Any], server: Any, *, careful: bool
    ) -> Any:
        concerned = any(_concerns(name, flush) for _, flush in items)
        if concerned and before:
            _reach(name)
        if concerned and not before and _Point.remaining <= 1:
            apart: list[str] = []
            await wire.ask(
                commit_calls.commit_units(self._document(items, apart), apart, careful=careful)
            )
        if concerned and not before:
            _reach(name)
        return await original(self, wire, items, server, careful=careful)

    Executor.execute = execute  # type: ignore[method-assign]


def _arm_transaction(name: str) -> None:
    from pgflow._transactions.psycopg import _AsyncPsycopgTransaction

    original = _AsyncPsycopgTransaction.execute_and_commit

    async def execute_and_commit(self: Any, sql: Any, params: Any) -> Any:
        if name.startswith("before"):
            if _Point.remaining <= 1:
                await self._wire.rows((sql, params))  # the fence holds, and COMMIT is never sent
            _reach(name)
        rows = await original(self, sql, params)
        if name.startswith("after"):
            _reach(name)
        return rows

    _AsyncPsycopgTransaction.execute_and_commit = execute_and_commit  # type: ignore[method-assign]


def _arm_wake(name: str) -> None:
    original = WorkerConnection.ask

    async def ask(self: WorkerConnection, query: Any) -> Any:
        if query.sql == wake_calls.wake([], tell=False).sql:
            _reach(name)
        return await original(self, query)

    WorkerConnection.ask = ask  # type: ignore[method-assign]


def fork_worker(dsn: str, point: str | None, nth: int) -> int:
    """Forks a worker; returns its pid."""
    return fork(lambda: _arm(point or "", nth), dsn, [job, part], RHYTHM)


def fork(arm: Callable[[], None], dsn: str, include: list[Any], rhythm: Rhythm) -> int:
    """Forks a process that works on these workflows until its worker has failed, as of one that
    the others have taken for dead; returns its pid.
    """
    pid = os.fork()
    if pid:
        return pid
    code = BROKEN_EXIT
    try:
        logging.disable(logging.CRITICAL)
        random.seed()
        arm()
        code = asyncio.run(_work(dsn, include, rhythm))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


async def _work(dsn: str, include: list[Any], rhythm: Rhythm) -> int:
    app = AsyncApp(dsn, include=include)
    options = WorkerOptions(concurrency=CONCURRENCY, poll_seconds=0.2, rhythm=rhythm)
    async with app:
        with contextlib.suppress(PgflowError, psycopg.Error):
            async with app._work(options) as worker:
                await worker.failed.wait()
    return 0


def died_as_told(pid: int) -> bool | None:
    """Return True if a victim has killed itself, False if it has ended in another way, None if it
    lives.
    """
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended != pid:
        return None
    code = os.waitstatus_to_exitcode(status)
    assert code != BROKEN_EXIT, "a worker could not be made to die: see its traceback"
    return code == -signal.SIGKILL


class Driver:
    """Starts runs, keeps workers going, and counts.

    Args:
        kills: Times that each point is met.
        workers_dsn: DSN of the workers, if they come as somebody else than who looks on.
    """

    points: tuple[str, ...] = POINTS
    fork = staticmethod(fork_worker)

    def __init__(self, dsn: str, kills: int, seed: int, workers_dsn: str | None = None) -> None:
        self.dsn = dsn
        self.workers_dsn = workers_dsn or dsn
        rng = random.Random(seed)
        self.plan = [(point, rng.randint(1, 6)) for point in self.points for _ in range(kills)]
        rng.shuffle(self.plan)
        self.fired: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.victims: dict[int, tuple[str, int]] = {}
        self.healthy: list[int] = []
        self.keys: list[str] = []
        self.held: set[int] = set()
        """Runs that a victim held when it died."""

    def run(self) -> dict[str, Any]:
        """Makes every kill of the plan, then lets everything drain."""
        with psycopg.connect(servers.witness(self.dsn), autocommit=True) as conn:
            self._prepare(conn)
            self.healthy = [self.fork(self.workers_dsn, None, 0)]
            while self.plan or self.victims:
                self._start_runs(conn)
                self._arm_victims()
                self._bury(conn)
                self._tend()
                self._attend(conn)
                time.sleep(0.005)
            self._drain(conn)
            figures = self._judge(conn)
        for pid in self.healthy:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return figures

    def _tend(self) -> None:
        """Has others take the place of workers that have left."""
        for place, pid in enumerate(self.healthy):
            if died_as_told(pid) is not None:
                self.healthy[place] = self.fork(self.workers_dsn, None, 0)

    def _attend(self, conn: psycopg.Connection[Any]) -> None:
        """Does what the runs need of somebody outside."""

    def _prepare(self, conn: psycopg.Connection[Any]) -> None:
        conn.execute(
            "create schema app; create table app.booked (key text, n int); create table app.told "
            "(key text, n int, idempotency_key text)"
        )
        conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1000))")

    def _start_runs(self, conn: psycopg.Connection[Any]) -> None:
        open_runs = conn.execute(
            "select count(*) from pgflow.runs where status not in ('completed', 'failed', "
            "'cancelled')"
        ).fetchone()[0]  # type: ignore[index]
        for _ in range(max(0, 24 - open_runs)):
            key = f"job-{len(self.keys)}"
            self.keys.append(key)
            conn.execute(
                "select pgflow.start_run('job', %s::json, %s)", (json.dumps({"key": key}), key)
            )
            conn.execute("select pgflow.send_signal(%s, 'go', '1')", (key,))

    def _arm_victims(self) -> None:
        while self.plan and len(self.victims) < AT_ONCE:
            point, nth = self.plan.pop()
            self.victims[self.fork(self.workers_dsn, point, nth)] = point, nth

    def _bury(self, conn: psycopg.Connection[Any]) -> None:
        for pid in list(self.victims):
            as_told = died_as_told(pid)
            if as_told is None:
                continue
            kill = self.victims.pop(pid)
            if as_told:
                self.fired[kill[0]] += 1
            else:  # the others took it for dead, and it has left before it came to its point
                self.plan.append(kill)
                self.left[kill[0]] += 1
                assert self.left[kill[0]] < MOST_LEFT, f"no worker comes to the point {kill[0]}"
            self.held |= {
                run_id
                for (run_id,) in conn.execute(
                    "select l.run_id from pgflow.lease l join pgflow.worker w using (worker_id) "
                    "where w.pid = %s",
                    (pid,),
                )
            }

    def _drain(self, conn: psycopg.Connection[Any]) -> None:
        self.healthy.append(self.fork(self.workers_dsn, None, 0))
        while conn.execute(
            "select count(*) from pgflow.runs where status not in ('completed', 'failed', "
            "'cancelled')"
        ).fetchone()[0]:  # type: ignore[index]
            self._tend()
            self._attend(conn)
            time.sleep(0.02)

    def _judge(self, conn: psycopg.Connection[Any]) -> dict[str, Any]:
        def one(sql: str) -> Any:
            return conn.execute(sql).fetchone()[0]  # type: ignore[index]

        expected = len(self.keys) * (STEPS + 1)
        return {
            "kills": dict(self.fired),
            "runs": len(self.keys),
            "transactional_steps": expected,
            "lost": expected - one("select count(distinct (key, n)) from app.booked"),
            "doubled": one("select count(*) - count(distinct (key, n)) from app.booked"),
            "told": one("select count(*) from app.told"),
            "keys_per_step": one(
                "select max(c) from (select count(distinct idempotency_key) c from app.told group "
                "by key, n) x"
            ),
            "doubles_not_shown": one(DOUBLES_NOT_SHOWN),
            "wrong_results": one(
                "select count(*) from pgflow.runs where workflow = 'job' and (status <> "
                f"'completed' or output::text <> '{EXPECTED}')"
            ),
            "violations": conn.execute("select invariant, detail from pgflow.check()").fetchall(),
            "held_and_not_ended": one(
                "select count(*) from pgflow.runs where status <> 'completed' and run_id = "
                f"any('{{{','.join(map(str, self.held))}}}')"
            ),
        }


def verdict(figures: dict[str, Any]) -> list[str]:
    """Return complaints; none if nothing is wrong."""
    wrong = [
        f"{name}: {figures[name]}"
        for name in ("lost", "doubled", "wrong_results", "doubles_not_shown", "held_and_not_ended")
        if figures[name]
    ]
    if figures["keys_per_step"] != 1:
        wrong.append("a step acted under two keys")
    if figures["violations"]:
        wrong.append(f"check(): {figures['violations'][:3]}")
    return wrong


def prove(server_dsn: str, amount: int, seed: int) -> Findings:
    """Kills workers, at each point so many times."""
    name = servers.create_database(server_dsn)
    dsn = os.environ["CRASH_DSN"] = servers.dsn_of(server_dsn, name)
    servers.install_schema(dsn)
    try:
        figures = Driver(dsn, amount, seed).run()
    finally:
        servers.drop_database(server_dsn, name)
    kills = sum(figures["kills"].values())
    steps, lost, doubled = figures["transactional_steps"], figures["lost"], figures["doubled"]
    fault = f"kill -9 at {len(POINTS)} named points"
    return Findings(
        "crashes",
        seed,
        [
            Evidence("G1", fault, steps, lost, doubled, tuple(verdict(figures))),
            Evidence("G12", fault, figures["told"], doubled=figures["keys_per_step"] - 1),
            Evidence("G13", fault, 0, lost=figures["wrong_results"], shared=figures["runs"]),
            Evidence("G14", fault, 0, lost=figures["held_and_not_ended"], shared=kills),
        ],
        {f"kill {point}": (figures["kills"].get(point, 0), amount) for point in POINTS},
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn")
    parser.add_argument("--kills", type=int, default=20, help="times that each point must fire")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["CRASH_DSN"] = options.dsn
    figures = Driver(options.dsn, options.kills, options.seed).run()
    print(json.dumps(figures, indent=2, default=str))
    wrong = verdict(figures)
    for line in wrong:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
