"""Workers of agents are killed at every point, again and again: `python -m tests.agentkills
SERVER_DSN [--kills N] [--only NAME] [--seed S]`.

There is an agent for each framework that has an adapter (`tests/apps/*_jobs.py`), in each colour of
workflow that the adapter takes. Several runs of it are open at a time. The workers on them are
forked by a process that has imported everything. Each is told a point, and dies there by SIGKILL:
in a body, in the code of the workflow, while a person is asked, before a commit or after it. The
aim of each is one of the points that were met the least. Whoever plays answers at gates, buries the
dead at once, and reads what the runs emit, by readers that leave and come back at random.

Each body writes down its key, on the disk, before it does anything else. What was recorded when a
worker died is never done again. In the end each run has done what it should under one key each, has
the words that it should have, and was charged for each request once; its readers have each value
once, in order.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from pgflow import AsyncApp, AsyncRun
from tests.campaigns.nursery import Child, Nursery
from tests.kits import servers

AGENTS = {
    "pydantic-ai": "tests.apps.pydantic_ai_jobs",
    "langgraph": "tests.apps.graph_jobs",
    "openai-agents": "tests.apps.openai_agents_jobs",
}
OPEN_RUNS = 3
PAUSE_SECONDS = 0.02
PATIENCE_SECONDS = 30
"""Time in which a worker should come by its point."""
AT_THE_GATE = "at the gate"
REPORT_SECONDS = 30


def points_of(agent: Any) -> list[str]:
    """Return the points of an agent: of its functions, of its commits, and at its gate."""
    commits = [
        f"{when} the commit of {one}" for one in agent.COMMITS for when in ("before", "after")
    ]
    return [*agent.BODIES, *commits, AT_THE_GATE]


@dataclass
class Life:
    """One run, and what a reader has heard of it."""

    key: str
    heard: list[Any] = field(default_factory=list)
    reader: asyncio.Task[None] | None = None


@dataclass
class Play:
    """Runs of one agent, and the workers that they lose.

    Attributes:
        agent: The module of the agent.
        wanted: Kills at each point.
        until: Time after which nobody is killed any more.
        wrong: Complaints.
        killed: Workers that died, by point.
        ended: Runs that have ended.
    """

    dsn: str
    agent: Any
    wanted: int
    until: float
    chance: random.Random
    book: Path
    nursery: Nursery
    wrong: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    _open: dict[str, Life] = field(default_factory=dict)
    _recorded: set[str] = field(default_factory=set)
    _place: int = 0
    _deeds: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    _started: int = 0

    async def play(self) -> None:
        """Kill until each point has its share; then let the runs come to their end."""
        self.killed.update(dict.fromkeys(points_of(self.agent), 0))
        told = time.monotonic()
        async with (
            AsyncApp(self.dsn) as self.app,
            await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as self.conn,
        ):
            while point := self.choose():
                await self.live(point)
                if time.monotonic() - told > REPORT_SECONDS:
                    told = time.monotonic()
                    print(f"{self.killed.total()} kills, {self.ended} runs", file=sys.stderr)
            await self.live("")
            for life in [*self._open.values()]:
                self.wrong.append(f"{life.key} has not ended")

    def choose(self) -> str | None:
        """Return a point that has been met the least; None if all have their share, or the time
        is over.
        """
        least = min(self.killed.values())
        if least >= self.wanted or time.monotonic() > self.until:
            return None
        return self.chance.choice([point for point, n in self.killed.items() if n == least])

    async def live(self, point: str) -> None:
        """Let a worker live until it dies at the point; without one, until all runs have ended."""
        is_last = not point
        worker = self.nursery.start(
            "serve",
            self.dsn,
            point="" if point == AT_THE_GATE else point,
            arrivals=self.chance.choice((1, 1, 2)),
            book=str(self.book),
        )
        until = time.monotonic() + PATIENCE_SECONDS * (4 if is_last else 1)
        while worker.code is None and time.monotonic() < until:
            if await self.look_after_runs(dies_waiting=point == AT_THE_GATE, is_last=is_last):
                worker.kill()
            elif is_last and not self._open:
                break
            else:
                await asyncio.sleep(PAUSE_SECONDS)
        if worker.code is None and not is_last:
            self.wrong.append(f"nobody came by: {point}")
            del self.killed[point]
        elif not is_last:
            self.killed[point] += 1
        worker.kill()
        await self.bury(worker)

    async def bury(self, worker: Child) -> None:
        """Have the runs of the dead ready at once, and compare what it did with what was recorded
        when it began.
        """
        await self.conn.execute(
            "select pgflow.reap_worker(worker_id, beat) from pgflow.worker where pid = %s",
            (worker.pid,),
        )
        with self.book.open() as book:
            book.seek(self._place)
            for line in book:
                run, kind, key = line.rstrip("\n").split("\t")
                if key in self._recorded:
                    self.wrong.append(f"{run}: {kind} {key} was recorded, and done again")
                self._deeds[run][key] = kind
            self._place = book.tell()
        rows = await self.conn.execute(
            "select idempotency_key from pgflow.steps where key = any(%s) and status = 'completed'"
            " union all select decision from pgflow.decisions where key = any(%s)"
            " union all select effect from pgflow.effects"
            " where key = any(%s) and status = 'confirmed'",
            (keys := list(self._open), keys, keys),
        )
        self._recorded.update(key for (key,) in await rows.fetchall() if key)

    async def look_after_runs(self, *, dies_waiting: bool, is_last: bool) -> bool:
        """Be the person who is asked, judge the runs that have ended, and start others.

        Returns:
            True if somebody is asked, and the worker is to die of it.
        """
        rows = await self.conn.execute(
            "select null, gate from pgflow.gates union all"
            " select key, null from pgflow.runs where key = any(%s) and finished_at is not null",
            (list(self._open),),
        )
        found = await rows.fetchall()
        gates = [gate for _, gate in found if gate]
        if gates and dies_waiting:
            return True
        for gate in gates:
            await self.app.answer(gate, self.agent.ANSWER, by="ops")
        for key in (key for key, _ in found if key):
            self.ended += 1
            self.wrong += await self.judge(self._open.pop(key))
        while not is_last and len(self._open) < OPEN_RUNS:
            flow = self.agent.FLOWS[self._started % len(self.agent.FLOWS)]
            self._started += 1
            run = await self.app.start(flow.options(pool="play"), "go")
            life = self._open[run.key] = Life(run.key)
            life.reader = asyncio.create_task(self.read(run, life))
        return False

    async def read(self, run: AsyncRun[Any], life: Life) -> None:
        """Read what a run emits, and come back where it left off."""
        while True:
            async with aclosing(run.stream("words", offset=len(life.heard))) as values:
                async for value in values:
                    life.heard.append(value)
                    if self.chance.random() < 0.5:
                        break
                else:
                    return

    async def judge(self, life: Life) -> list[str]:
        """Compare what was recorded of a run with what was done, said, spent and heard."""
        agent, key, wrong = self.agent, life.key, list[str]()
        assert life.reader is not None
        await asyncio.wait_for(life.reader, PATIENCE_SECONDS)
        if life.heard != agent.WORDS:
            wrong.append(f"{key}: readers have heard {life.heard}")
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            row = conn.execute(
                "select status, output, error from pgflow.runs where key = %s", (key,)
            )
            status, output, error = row.fetchone() or ("gone", None, None)
            if (status, output) != ("completed", agent.OUTPUT):
                wrong.append(f"{key} is {status} and says {output or error!r}")
            row = conn.execute(
                "select coalesce(sum(usd), 0), count(*) from pgflow.charges where key = %s", (key,)
            )
            spent, charges = row.fetchone() or (None, None)
            if (spent, charges) != (agent.PRICE * agent.CHARGES, agent.CHARGES):
                wrong.append(f"{key} was charged {charges} times, {spent} in all")
            wrong += agent.judge(conn, key)
        return wrong

    def judge_deeds(self) -> None:
        """Compare the keys under which things were done with those that there should be."""
        for run, deeds in self._deeds.items():
            found = Counter(deeds.values())
            if found != self.agent.EXPECTED:
                self.wrong.append(f"{run}: keys of acts are {dict(found)}")


def play(server: str, name: str, wanted: int, minutes: float, seed: int) -> dict[str, Any]:
    """Play one agent in a database of its own; return the figures."""
    began = time.monotonic()
    agent = importlib.import_module(AGENTS[name])
    database = servers.create_database(server)
    try:
        dsn = servers.dsn_of(server, database)
        servers.install_schema(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(
                "select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1000))"
            )
            conn.execute("select pgflow.set_pool('play', '{\"usd\": 1000000}', soft => null)")
            for statement in getattr(agent, "TABLES", ()):
                conn.execute(statement)
        with tempfile.TemporaryDirectory() as folder, Nursery(AGENTS[name]) as nursery:
            book = Path(folder, "book")
            book.touch()
            until = time.monotonic() + 60 * minutes
            played = Play(dsn, agent, wanted, until, random.Random(seed), book, nursery)
            asyncio.run(played.play())
            played.judge_deeds()
        with psycopg.connect(dsn, autocommit=True) as conn:
            row = conn.execute("select coalesce(sum(reserved), 0) from pgflow.budgets").fetchone()
            if row and row[0]:
                played.wrong.append(f"{row[0]} is still reserved")
            played.wrong += servers.complaints(conn)
    finally:
        servers.drop_database(server, database)
    return {
        "agent": name,
        "runs": played.ended,
        "kills": played.killed.total(),
        "points": dict(played.killed),
        "seconds": round(time.monotonic() - began),
        "wrong": [
            *played.wrong,
            *(f"{point}: {n} kills" for point, n in played.killed.items() if n < wanted),
        ],
    }


def main() -> int:
    """Plays, and prints the figures of each agent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="server, as a superuser")
    parser.add_argument("--kills", type=int, default=100, help="at each point")
    parser.add_argument("--only", choices=AGENTS, action="append", help="this agent")
    parser.add_argument(
        "--minutes", type=float, default=60, help="no kill of an agent after so long"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = False
    for name in options.only or AGENTS:
        figures = play(options.dsn, name, options.kills, options.minutes, options.seed)
        wrong = figures.pop("wrong")
        print(json.dumps(figures, indent=2), flush=True)
        for line in wrong[:40]:
            print(f"FAILED {line}")
        failed |= bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
