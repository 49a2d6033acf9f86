"""Registers outside, which refuse old fences, and counters that are entities, under runs whose
workers are killed and frozen: `python -m tests.registers SERVER_DSN [--runs N] [--harms N] [--seed
S]`.

Each run reads its register and writes it back in another transaction, under a lock. Workers die by
SIGKILL, or are stopped for longer than a lock lasts and go on then. At the end each fence must have
had one holder, fences must have grown with each write, and no update may be lost.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent / "apps"))

from collections.abc import Callable

import lock_jobs
import servers
from processes import WorkerProcess, one
from servers import wait_until

KEYS = ("a", "b", "c")
WORKFLOWS = ("rewrite", "rewrite_patiently", "count_up")
WORKERS = 2


def play(
    dsn: str, workflow: str, *, runs: int, harms: int, seed: object, within_seconds: float = 120
) -> tuple[int, list[str]]:
    """Let runs change registers while their workers are harmed.

    Args:
        dsn: A database with the schema, and nothing in it.
        workflow: One of :data:`WORKFLOWS`.
        runs: Number of runs.
        harms: Most kills and freezes, in turn; none once all runs have ended.
        seed: Of the moments of harm.
        within_seconds: Time for all runs to end after the last harm.

    Returns:
        How often a worker was harmed, and what is wrong.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(lock_jobs.REGISTER)
        for key in KEYS:
            conn.execute("insert into app.register (key, n) values (%s, 0)", (key,))
        for i in range(runs):
            given = json.dumps({"key": KEYS[i % len(KEYS)]})
            conn.execute("select pgflow.start_run(%s, %s::json)", (workflow, given))

        def is_over() -> bool:
            return not one(conn, "select count(*) from pgflow.runs where finished_at is null")

        done = _harm(dsn, is_over, harms, random.Random(f"{workflow} {seed}"), within_seconds)
        return done, _judge(conn, workflow, runs)


def _harm(
    dsn: str, is_over: Callable[[], bool], harms: int, rng: random.Random, within_seconds: float
) -> int:
    pause, done = threading.Event(), 0
    with ExitStack() as stack:

        def begin() -> WorkerProcess:
            made = WorkerProcess(dsn, "--concurrency", "10", module="lock_jobs")
            stack.callback(made.process.communicate)
            stack.callback(made.process.kill)
            return made

        workers = [begin() for _ in range(WORKERS)]
        for made in workers:
            made.registered()
        while not is_over() and done < harms:
            victim = workers.pop(0)
            if done % 2:
                victim.send(signal.SIGSTOP)
                pause.wait(lock_jobs.TTL_SECONDS + 1)  # frozen past its time
                victim.send(signal.SIGCONT)
                workers.append(victim)
            else:
                victim.send(signal.SIGKILL)
                workers.append(begin())
                workers[-1].registered()
            done += 1
            pause.wait(rng.uniform(0.05, 0.4))  # a random moment of its work
        wait_until(is_over, "all runs end", within_seconds)
    return done


def _judge(conn: psycopg.Connection[Any], workflow: str, runs: int) -> list[str]:
    wrong = [
        f"{number} runs are {status}"
        for status, number in conn.execute(
            "select status, count(*) from pgflow.runs where status <> 'completed' group by status"
        )
    ]
    times = lock_jobs.TIMES if workflow == "count_up" else 1
    written = {key: times * len(range(n, runs, len(KEYS))) for n, key in enumerate(KEYS)}
    sums = _ENTITIES if workflow == "count_up" else _ENTRIES
    found = {key: numbers for key, *numbers in conn.execute(sums)}
    wrong += [
        f"{key} was raised {written[key]} times, and has {found.get(key)}"
        for key in KEYS
        if found.get(key) != [written[key]] * 3
    ]
    if one(conn, _SHRUNK):
        wrong.append("a register was written under a smaller fence than before")
    wrong += [f"fence {fence} had several holders" for (fence,) in conn.execute(_SHARED).fetchall()]
    return wrong + [
        f"{invariant}: {detail}"
        for invariant, detail in conn.execute("select * from pgflow.check()")
    ]


_ENTRIES = "select key, count(*), count(distinct fence), max(n) from app.entry group by key"
_ENTITIES = """
select e.key, (e.state->>'n')::int, count(*), max(h.version)
from pgflow.entities e join pgflow.entity_updates h using (name, key) group by 1, 2
"""
_SHRUNK = """
select count(*) from (
  select fence, lag(fence) over (partition by key order by n) as before from app.entry
) e where e.before >= e.fence
"""
_SHARED = """
select u.payload->>'fence' from pgflow.unit u where u.kind = 'L'
group by 1 having count(distinct u.run_id) > 1
"""


def main() -> int:
    """Plays each workflow in a database of its own, and prints a line of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="a superuser's")
    parser.add_argument("--runs", type=int, default=6000, help="Runs of each workflow.")
    parser.add_argument("--harms", type=int, default=100, help="Most kills and freezes of each.")
    parser.add_argument("--seed", type=int, default=1, help="Of the moments of harm.")
    options = parser.parse_args()
    failed = False
    for workflow in WORKFLOWS:
        name = servers.create_database(options.dsn)
        try:
            dsn = servers.dsn_of(options.dsn, name)
            servers.install_schema(dsn)
            harms, wrong = play(
                dsn,
                workflow,
                runs=options.runs,
                harms=options.harms,
                seed=options.seed,
                within_seconds=1800,
            )
        finally:
            servers.drop_database(options.dsn, name)
        print(f"{workflow}: {options.runs} runs, {harms} harms, {len(wrong)} wrong", flush=True)
        if harms < options.harms:
            wrong.append(f"the runs were over after {harms} of {options.harms} harms: ask for more")
        for line in wrong:
            print(f"FAILED {line}")
        failed |= bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
