"""Random programs come to what a plain interpreter says, whatever is killed while they run."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack

import programs
import psycopg
import pytest
import servers
from processes import WorkerProcess, eventually, one, worker

from pgflow import App, testing

OPEN = "select count(*) from pgflow.runs where status not in ('completed', 'failed', 'cancelled', 'stuck')"


CUT = """
select count(pg_terminate_backend(pid)) from (
  select pid from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and starts_with(application_name, 'pgflow') order by random() limit 2
) x
"""


class Harm:
    """Two workers, one of which is killed, frozen for longer than others believe it alive, or cut
    off, every fraction of a second.
    """

    def __init__(self, dsn: str, conn: psycopg.Connection, stack: ExitStack, seed: int) -> None:
        self.kills = self.freezes = self.cuts = 0
        self._conn = conn
        self._rng = random.Random(seed)
        self._start = lambda: stack.enter_context(
            worker(dsn, "--concurrency", "30", module="programs")
        )
        self._workers = [self._start(), self._start()]
        self._frozen: list[tuple[float, WorkerProcess]] = []
        self._next = time.monotonic() + 1

    def do_some(self) -> None:
        """Does the next harm, if it is time."""
        now = time.monotonic()
        for thaw_at, process in [f for f in self._frozen if f[0] < now]:
            self._frozen.remove((thaw_at, process))
            process.send(signal.SIGCONT)
        if now < self._next:
            return
        self._next = now + self._rng.uniform(0.2, 1.2)
        chance, victim = self._rng.random(), self._rng.randrange(2)
        process = self._workers[victim]
        if chance < 0.3:
            self.cuts += one(self._conn, CUT)
            return
        if chance < 0.5:
            process.send(signal.SIGSTOP)
            self._frozen.append((now + self._rng.uniform(0.5, 3), process))
            self.freezes += 1
        else:
            process.process.kill()
            self.kills += 1
        self._workers[victim] = self._start()


def run_under_kills(
    dsn: str,
    seeds: list[int],
    max_kills: int,
    patience_seconds: float,
    workers_dsn: str | None = None,
) -> tuple[Harm, list[str]]:
    """Runs programs on worker processes that are harmed: the harm done, and the differences. The
    workers may come as somebody else.
    """
    with psycopg.connect(servers.witness(dsn), autocommit=True) as conn, ExitStack() as stack:
        conn.execute(programs.SCHEMA)
        programs.start(conn, seeds)
        harm = Harm(workers_dsn or dsn, conn, stack, seeds[0])
        has_sent = False

        def done() -> bool:
            nonlocal has_sent
            if harm.kills < max_kills:
                harm.do_some()
            if harm.kills >= 2 and not has_sent:
                programs.send_rest(conn, seeds)
                has_sent = True
            return has_sent and one(conn, OPEN) == 0

        eventually(done, "all programs come to their end", patience_seconds)
        return harm, programs.judge(conn, seeds)


@pytest.mark.full
def test_programs_whose_workers_are_killed_come_to_what_the_plain_interpreter_says(dsn):
    seeds = list(range(60))
    harm, wrong = run_under_kills(dsn, seeds, 12, patience_seconds=180)
    assert wrong == []
    assert harm.kills >= 2
    with App(dsn, include=[programs.program, programs.branch, programs.branch_in_thread]) as app:
        testing.replay_all(app)


def test_every_kind_of_part_is_in_these_programs():
    kinds = {
        part.kind
        for seed in range(60)
        for tree in programs.program_of(seed)
        for part in programs.every(tree)
    }
    assert kinds == {*programs.LEAVES, *programs.BRANCHES, "signal"}
    assert any(len(programs.program_of(seed)) == 3 for seed in range(60))
