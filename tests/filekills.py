"""Workers of files are killed inside nodes and between them, again and again: `python -m
tests.filekills SERVER_DSN [--kills N] [--seed S]`.

One file has what a file can have: shells, agents, a loop, a group with a loop in it, children for
the items of a list, an approval, a retry and an external node. Each run of it is worked on by
workers that die by SIGKILL at moments drawn by the seed, until it has lost a few of them; the last
one is left alone. Each node writes to a file of witnesses, which is on the disk before anything
else happens, and looks whether another process of its kind is alive.

What was recorded when a worker died is never done again, no two processes of a node are alive at a
time, the external node is done at most once, and each run completes with the same words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "apps"))
sys.path.insert(0, str(Path(__file__).parent / "kits"))

import servers
from processes import WorkerProcess
from runkit import WITNESS, recorded, seen, write

from pgflow import Approve, AsyncApp
from pgflow.declare import parse_workflow
from pgflow.declare.durable import Settings, declared, freeze
from pgflow.inspect import GateRow, ask_async, list_gates

KILLS_OF_A_RUN = 8
LONGEST_LIFE_SECONDS = 4.0
PATIENCE_SECONDS = 120
OUTPUT = "4 done a b"

NODES = """
- {id: a, bash: %(a)s}
- {id: b, bash: %(b)s}
- {id: c, bash: %(c)s, depends_on: [a]}
- {id: d, bash: %(d)s, depends_on: [a, b]}
- {id: think, prompt: "think $a.output", depends_on: [a]}
- {id: talk, prompt: "talk $b.output", depends_on: [b]}
- id: refine
  loop: {prompt: "refine $a.output", until: DONE, max_iterations: 5}
  depends_on: [c, d]
- id: rounds
  depends_on: [c]
  loop_group:
    max_iterations: 6
    until_bash: 'test $(cat count) -ge 4'
    nodes:
      - {id: x, bash: %(x)s}
      - {id: "y", bash: %(y)s, depends_on: [x]}
      - {id: z, prompt: "z $y.output", depends_on: ["y"]}
- id: kids
  workflow: kid
  depends_on: [d]
  fan_out: {items: '["1", "2", "3"]', max_parallel: 2}
- {id: flaky, bash: %(flaky)s, retry: {max_attempts: 2, delay_ms: 1000}, depends_on: [b]}
- {id: e, bash: %(e)s, depends_on: [think, talk]}
- id: ask
  approval: {message: "Publish $a.output?", capture_response: true}
  depends_on: [refine, rounds, kids, flaky, e]
- {id: publish, bash: %(publish)s, effect: external, depends_on: [ask]}
- {id: f, bash: %(f)s, depends_on: [publish]}
- {id: g, bash: %(g)s, depends_on: [publish]}
- {id: last, bash: %(last)s, depends_on: [f, g]}
"""
SAYS = {
    "a": "echo a",
    "b": "echo b",
    "c": "echo c",
    "d": "echo d $a.output $b.output",
    "x": "echo $a.output",
    "y": "n=$(echo $PGFLOW_STEP | grep -o '[0-9]*/' | tr -d /); echo $n > count; echo $n",
    "flaky": "test -e tried || { touch tried; echo 'HTTP 503' >&2; exit 1; }; echo fine",
    "e": "echo e",
    "publish": "echo done",
    "f": "echo f",
    "g": "echo g",
    "last": "echo $(cat count) $publish.output $a.output $b.output",
}
KID = """
- id: born
  bash: 'echo "born $ARGUMENTS begins" >> witness; sync witness; echo $ARGUMENTS'
"""


class Play:
    """One run of the file.

    Args:
        dsn: The database.
        folder: Its folder.
        chance: Chance of when workers die.
        kills: Number of workers that it loses.
    """

    output = OUTPUT
    settings: ClassVar[dict[str, Any]] = {"provider": "python:declared_agents:answer"}

    def __init__(self, dsn: str, folder: Path, chance: random.Random, kills: int) -> None:
        self.dsn = dsn
        self.folder = folder
        self.chance = chance
        self.kills = kills
        self.known: dict[str, int] = {}
        self.wrong: list[str] = []
        self.killed: Counter[str] = Counter()
        """Number of workers that died, by how much was recorded then."""

    def play(self) -> None:
        """Start it, kill its workers, and look at what they did."""
        key = asyncio.run(self.begin(self.file()))
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            for number in range(self.kills + 1):
                if self.work(conn, key, is_last=number == self.kills):
                    break
            self.look(conn, key)
            status, output = conn.execute(
                "select status, output from pgflow.runs where key = %s", (key,)
            ).fetchone() or ("gone", None)
        said = output["output"] if isinstance(output, dict) and "output" in output else output
        if status != "completed" or said != self.output:
            self.wrong.append(f"{key} is {status} and says {said!r}")
        lines = seen(self.folder)
        self.wrong += [f"{key}: {line}" for line in lines if line.endswith("twice")]
        if lines["publish begins"] > 1:
            self.wrong.append(f"{key} has published {lines['publish begins']} times")

    def file(self) -> Path:
        """Write the file."""
        write(self.folder, KID, name="kid")
        nodes = NODES % {name: json.dumps(WITNESS + said) for name, said in SAYS.items()}
        return write(self.folder, nodes, more="interactive: true")

    async def begin(self, path: Path) -> str:
        """Start it; answer its key."""
        async with AsyncApp(self.dsn, include=[declared]) as app:
            settings: Any = Settings(cwd=str(self.folder), **self.settings)
            return (await app.start(declared, freeze(parse_workflow(path)), settings, "go", {})).key

    def work(self, conn: psycopg.Connection[Any], key: str, *, is_last: bool) -> bool:
        """Have a worker work until it dies; True if the run has ended meanwhile."""
        worker = WorkerProcess(self.dsn, module="pgflow.declare.durable")
        try:
            worker.registered()
            if not is_last:
                self.lie_in_wait(worker)
            life = self.chance.uniform(0, LONGEST_LIFE_SECONDS)
            until = time.monotonic() + (PATIENCE_SECONDS if is_last else life)
            while time.monotonic() < until:
                if self.has_ended(conn, key):
                    return True
                if worker.process.poll() is not None:
                    break
                asyncio.run(self.answer())
                time.sleep(min(0.1, max(0.0, until - time.monotonic())))
            if not is_last:
                worker.send(signal.SIGKILL)
                worker.finish()
                self.look(conn, key)
                self.killed[f"{len(self.known)} recorded"] += 1
            return is_last
        finally:
            if worker.process.returncode is None:
                worker.send(signal.SIGTERM)
                worker.finish()

    def lie_in_wait(self, worker: WorkerProcess) -> None:
        """Have a worker killed at a moment that is not one of time; here there is none."""

    def has_ended(self, conn: psycopg.Connection[Any], key: str) -> bool:
        """Return True if the run is over."""
        row = conn.execute(
            "select status in ('completed', 'failed', 'cancelled') from pgflow.runs where key = %s",
            (key,),
        ).fetchone()
        return bool(row and row[0])

    async def answer(self) -> None:
        """Be the person who is asked, and who looks at what became of an act."""
        async with AsyncApp(self.dsn, include=[declared]) as app:
            for gate in await ask_async(app, list_gates(limit=None)):
                await app.answer(gate.gate, self.answer_to(gate), by="play")
            with psycopg.connect(self.dsn) as conn:
                unknown = conn.execute(
                    "select effect from pgflow.effects where status = 'unknown'"
                ).fetchall()
            for (effect,) in unknown:
                await app.settle_effect(effect, "confirmed", {"text": "done"}, by="play")

    def answer_to(self, gate: GateRow) -> Approve:  # noqa: ARG002 - others look at it
        """The answer of that person."""
        return Approve()

    def look(self, conn: psycopg.Connection[Any], key: str) -> None:
        """Compare what was recorded before with what was done since."""
        lines = seen(self.folder)
        for step, times in self.known.items():
            if lines[f"{step} begins"] != times:
                self.wrong.append(f"{key}: {step} was recorded, and done again")
        self.known = {step: lines[f"{step} begins"] for step in recorded(conn, key)}


def main(play: type[Play] = Play, description: str | None = __doc__) -> int:
    """Plays it, and prints the figures."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="server, as a superuser")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, left = random.Random(options.seed), options.kills
    wrong: list[str] = []
    places: Counter[str] = Counter()
    runs = 0
    name = servers.create_database(options.dsn)
    try:
        dsn = servers.dsn_of(options.dsn, name)
        servers.install_schema(dsn)
        while left > 0:
            kills = min(left, KILLS_OF_A_RUN)
            with tempfile.TemporaryDirectory() as folder:
                one = play(dsn, Path(folder), chance, kills)
                one.play()
            runs, left = runs + 1, left - max(1, one.killed.total())
            wrong += one.wrong
            places += one.killed
        wrong += servers.unsound(dsn)
    finally:
        servers.drop_database(options.dsn, name)
    print(json.dumps({"runs": runs, "kills": places.total(), "places": places}, indent=2))
    for line in wrong[:40]:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
