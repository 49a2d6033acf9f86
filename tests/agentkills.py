"""Workers of agents of pydantic-ai are killed at every point, again and again: `python -m
tests.agentkills SERVER_DSN [--kills N] [--seed S]`.

The agent asks its model five times, and calls two tools at once, an effect, a transaction, a tool
that is code of the workflow, and one that a person approves. Two runs of it, one in each colour,
are worked on by processes that die by SIGKILL: at an arrival at a point, or while the run waits at
its gate. Some are killed at the same point several times.

Each request is recorded once, and no request is made again after that. Each act has one key, and is
done at most once more for each kill. A transaction counts once, and the budget is exact.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "apps"))
sys.path.insert(0, str(Path(__file__).parent / "kits"))

import pydantic_ai_jobs as jobs
import servers

from pgflow import Approve, AsyncApp, Pool
from pgflow._worker.heartbeat import Rhythm
from pgflow.inspect import ask_async, list_gates

KILLS_OF_A_PLAY = 11
PATIENCE_SECONDS = 60
AT_THE_GATE = "at the gate"
EXPECTED = Counter({"model": 5, "tool": 2, "effect": 1, "publish": 1})
"""Keys of each kind in a run."""

POOL = Pool("play", usd=1000)


def serve(dsn: str, point: str, arrivals: int) -> None:
    """Work until death, or until the parent says stop: in a process of its own."""
    jobs.fate = jobs.Fate(point, arrivals, dsn)
    asyncio.run(_serve(dsn))


async def _serve(dsn: str) -> None:
    app = AsyncApp(dsn, include=[jobs.work, jobs.work_in_thread], pools=[POOL])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    rhythm = Rhythm(beat=0.2, look=0.1, dead_after=1)
    async with app, app.worker(poll_seconds=0.1, rhythm=rhythm):
        await stop.wait()


class Play:
    """Two runs, and the processes that they lose."""

    def __init__(self, dsn: str, chance: random.Random, kills: int) -> None:
        self.dsn = dsn
        self.chance = chance
        self.kills = kills
        self.killed: Counter[str] = Counter()
        self.keys: list[str] = []

    def play(self) -> list[str]:
        """Start the runs, kill, and return what is wrong."""
        self.keys = asyncio.run(self.begin())
        points = [*jobs.POINTS, AT_THE_GATE]
        self.chance.shuffle(points)
        points += self.chance.choices(points, k=max(0, self.kills - len(points)))
        for point in sorted(points[: self.kills], key=_place_of):
            self.live(point)
        self.live("")
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return [complaint for key in self.keys for complaint in self.judge(conn, key)]

    async def begin(self) -> list[str]:
        """Start one run of each colour."""
        async with AsyncApp(
            self.dsn, include=[jobs.work, jobs.work_in_thread], pools=[POOL]
        ) as app:
            await app.set_pool(POOL)
            return [
                (await app.start(workflow.options(pool="play"), "go")).key
                for workflow in (jobs.work, jobs.work_in_thread)
            ]

    def live(self, point: str) -> None:
        """Let a process live until it dies at the point, or all runs have ended."""
        process = multiprocessing.get_context("fork").Process(
            target=serve, args=(self.dsn, point, self.chance.choice([1, 1, 2]))
        )
        process.start()
        try:
            until = time.monotonic() + PATIENCE_SECONDS
            while process.is_alive() and time.monotonic() < until:
                process.join(0.05)
                if self.sees_to_gates(process, point) or self.has_ended():
                    break
            if process.exitcode is None and point != AT_THE_GATE:
                assert process.pid is not None
                os.kill(process.pid, signal.SIGTERM if self.has_ended() else signal.SIGKILL)
            process.join()
            if process.exitcode == -signal.SIGKILL:
                self.killed[point or "late"] += 1
        finally:
            process.kill()
            process.join()

    def sees_to_gates(self, process: Any, point: str) -> bool:
        """Be the person who is asked, once the processes that die earlier have died; or kill the
        process while a run waits. True if that was done.
        """
        if point not in (AT_THE_GATE, "approved tool", ""):
            return self.all_wait()
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            waiting = conn.execute("select count(*) from pgflow.gates").fetchone()
        if not waiting or not waiting[0]:
            return False
        if point == AT_THE_GATE:
            process.kill()
            process.join()
            return True
        asyncio.run(self.answer())
        return False

    def all_wait(self) -> bool:
        """Return True if no run would ever come to a point before the gate."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            row = conn.execute(
                "select bool_and(status = 'waiting') from pgflow.runs where key = any(%s)",
                (self.keys,),
            ).fetchone()
        return bool(row and row[0])

    async def answer(self) -> None:
        async with AsyncApp(self.dsn) as app:
            for gate in await ask_async(app, list_gates(limit=None)):
                await app.answer(gate.gate, Approve(), by="ops")

    def has_ended(self) -> bool:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            row = conn.execute(
                "select bool_and(status in ('completed', 'failed', 'cancelled')) from pgflow.runs"
                " where key = any(%s)",
                (self.keys,),
            ).fetchone()
        return bool(row and row[0])

    def judge(self, conn: psycopg.Connection[Any], key: str) -> list[str]:
        """Compare what was recorded with what was done."""

        def rows(sql: Any) -> list[tuple[Any, ...]]:
            return conn.execute(sql, (key,)).fetchall()

        wrong = []
        ((status, output),) = rows("select status, output from pgflow.runs where key = %s")
        if (status, output) != ("completed", "done"):
            wrong.append(f"{key} is {status} and says {output!r}")
        done = rows(
            "select kind, key, count(*) from witness where run = %s group by kind, key order by 1"
        )
        if (found := Counter(kind for kind, _, _ in done)) != EXPECTED:
            wrong.append(f"{key}: keys of acts are {dict(found)}")
        if (again := sum(times - 1 for *_, times in done)) > 2 * self.killed.total():
            wrong.append(f"{key}: {again} acts were repeated for {self.killed.total()} kills")
        decisions = rows("select decision from pgflow.decisions where key = %s")
        if len(decisions) != jobs.TURNS or len(set(decisions)) != jobs.TURNS:
            wrong.append(f"{key} has {len(decisions)} requests on record")
        ((written,),) = rows("select count(*) from written where run = %s")
        if written != 1:
            wrong.append(f"{key} has written {written} times")
        ((spent,),) = rows("select coalesce(sum(usd), 0) from pgflow.charges where key = %s")
        if Decimal(spent) != jobs.PRICE * jobs.TURNS:
            wrong.append(f"{key} was charged {spent}")
        return wrong


def _place_of(point: str) -> int:
    """Return when a run comes by a point."""
    order = (
        "asked", "answered", "tool begins", "tool ends", "effect begins", "effect ends",
        "transaction", "between", AT_THE_GATE, "approved tool",
    )  # fmt: skip
    return order.index(point)


def main() -> int:
    """Plays it, and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="server, as a superuser")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    wrong: list[str] = []
    killed: Counter[str] = Counter()
    plays = 0
    name = servers.create_database(options.dsn)
    try:
        dsn = servers.dsn_of(options.dsn, name)
        servers.install_schema(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("create table witness (run text, kind text, key text)")
            conn.execute("create table written (run text)")
        while killed.total() < options.kills and plays < options.kills:
            play = Play(dsn, chance, KILLS_OF_A_PLAY)
            wrong += play.play()
            plays += 1
            killed += play.killed
            print(f"{plays} plays, {killed.total()} kills", file=sys.stderr, flush=True)
        with psycopg.connect(dsn, autocommit=True) as conn:
            row = conn.execute("select coalesce(sum(reserved), 0) from pgflow.budgets").fetchone()
            if row and row[0]:
                wrong.append(f"{row[0]} is still reserved")
        wrong += servers.unsound(dsn)
    finally:
        servers.drop_database(options.dsn, name)
    print(json.dumps({"plays": plays, "kills": killed.total(), "points": killed}, indent=2))
    for line in wrong[:40]:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
