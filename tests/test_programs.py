"""Random programs come to what a plain interpreter says, whatever is killed while they run."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

import programs
import psycopg
import pytest
from processes import WorkerProcess, eventually, one, worker

from pgflow import App, testing

OPEN = "select count(*) from pgflow.runs where status not in ('completed', 'failed', 'cancelled', 'stuck')"


def run_under_kills(dsn: str, seeds: list[int], max_kills: int, patience_seconds: float) -> tuple[int, list[str]]:
    """Runs programs on two worker processes, one of which is killed every fraction of a second: kills, differences."""
    rng = random.Random(seeds[0])
    kills, next_kill = 0, time.monotonic() + 1
    with psycopg.connect(dsn, autocommit=True) as conn, ExitStack() as stack:
        conn.execute(programs.SCHEMA)
        programs.start(conn, seeds)
        workers: list[WorkerProcess] = [stack.enter_context(_start(dsn)) for _ in range(2)]

        def done() -> bool:
            nonlocal kills, next_kill
            if kills < max_kills and time.monotonic() > next_kill:
                victim = rng.randrange(2)
                workers[victim].process.kill()
                workers[victim] = stack.enter_context(_start(dsn))
                kills, next_kill = kills + 1, time.monotonic() + rng.uniform(0.2, 1.2)
                if kills == 2:
                    programs.send_rest(conn, seeds)
            return kills >= min(2, max_kills) and one(conn, OPEN) == 0

        eventually(done, "all programs come to their end", patience_seconds)
        return kills, programs.judge(conn, seeds)


def _start(dsn: str):
    return worker(dsn, "--concurrency", "30", module="programs")


@pytest.mark.timeout(240)
def test_programs_whose_workers_are_killed_come_to_what_the_plain_interpreter_says(dsn):
    seeds = list(range(60))
    kills, wrong = run_under_kills(dsn, seeds, 12, patience_seconds=180)
    assert wrong == []
    assert kills >= 2
    with App(dsn, include=[programs.program, programs.branch, programs.branch_in_thread]) as app:
        testing.replay_all(app)


def test_every_kind_of_part_is_in_these_programs():
    kinds = {part.kind for seed in range(60) for tree in programs.program_of(seed) for part in programs.every(tree)}
    assert kinds == {*programs.LEAVES, *programs.BRANCHES, "signal"}
    assert any(len(programs.program_of(seed)) == 3 for seed in range(60))
