"""Workers of files are killed inside nodes and at commits, again and again: `python -m
tests.filekills SERVER_DSN [--kills N] [--seed S] [--lanes N]`.

One file has what a file can have, in more than twenty nodes: shells, a program, agents, a loop, a
group with a loop in it, a child, children for the items of a list, an approval, a retry and an
external node. Each run of it is worked on by workers that die by SIGKILL, until it has lost many;
the last one is left alone. Each node writes to a file of witnesses, which is on the disk before
anything else happens, and looks whether another process of its kind is alive.

A first run, whose workers live, says at which commits and in which nodes a worker can die. Then
each worker has an aim: inside a node, before a commit, or after it and before its answer. The aim
is the one of those to come that was met the least. So no node and no commit is left out, and the
figures say how often each was met.

What was recorded when a worker died is never done again, no two processes of a node are alive at a
time, the external node is done at most once, and each run completes with the same words. The
figures say how long processes of nodes outlived a worker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "apps"))
sys.path.insert(0, str(Path(__file__).parent / "kits"))

import servers
from runkit import WITNESS, recorded, seen, write

from pgflow import AsyncApp
from pgflow.authority import Approve, Reject
from pgflow.declare import parse_workflow
from pgflow.declare.durable import Settings, declared, freeze
from pgflow.errors import RunNotFound
from pgflow.inspect import GateRow, ask_async, list_gates
from tests.campaigns.nursery import Child, Nursery

ROLES = "tests.kits.mortals"
COMMITS = "commits"
KILLS_OF_A_RUN = 24
LONGEST_LIFE_SECONDS = 4.0
LONGEST_AIM_SECONDS = 15.0
NEAR = 8
"""Commits to come among which a worker's aim is."""
REST_SECONDS = 0.15
"""Seconds that a node is at work."""
PATIENCE_SECONDS = 120
PROCESSES = Path("/proc")
OUTPUT = "4 done a b p k"

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
      - id: w
        loop: {prompt: "w $y.output", until: DONE, max_iterations: 4}
        depends_on: [x]
- id: kids
  workflow: kid
  depends_on: [d]
  fan_out: {items: '["1", "2", "3"]', max_parallel: 2}
- {id: one, workflow: kid, input: k, depends_on: [b]}
- id: program
  script: %(program)s
  runtime: uv
  depends_on: [b]
- {id: flaky, bash: %(flaky)s, retry: {max_attempts: 2, delay_ms: 1000}, depends_on: [b]}
- {id: e, bash: %(e)s, depends_on: [think, talk]}
- id: ask
  approval: {message: "Publish $a.output?", capture_response: true}
  depends_on: [refine, rounds, kids, flaky, e, one, program]
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
    "last": "echo $(cat count) $publish.output $a.output $b.output $program.output $one.output",
}
PROGRAM = """
import os, pathlib, time
def witness(said):
    with open("witness", "a") as file:
        file.write("program " + said + "\\n")
        file.flush()
        os.fsync(file.fileno())
witness("begins")
alive = pathlib.Path("alive-program")
if alive.exists():
    try:
        os.kill(int(alive.read_text()), 0)
        witness("twice")
    except ProcessLookupError:
        pass
alive.write_text(str(os.getpid()))
time.sleep(0.15)
witness("ends")
print("p" if $b.output == "b" else "wrong")
"""
KID = """
- id: born
  bash: %(born)s
"""
BORN = f'PGFLOW_STEP="born-$ARGUMENTS"{WITNESS}echo $ARGUMENTS'


class Aim(NamedTuple):
    """Moment at which a worker is to die: ``inside`` a node, ``before`` or ``after`` a commit."""

    when: str
    what: str


class Atlas:
    """Places at which workers can die, in the order of a run that nobody disturbed.

    Attributes:
        commits: Labels of commits.
        nodes: Keys of the nodes that a witness sees begin.
        met: Number of times that each aim was met.
    """

    def __init__(self) -> None:
        self.commits: list[str] = []
        self.nodes: list[str] = []
        self.met: Counter[Aim] = Counter()
        self._lock = threading.Lock()

    def learn(self, folder: Path) -> None:
        """Read what a run has left."""
        said = (folder / COMMITS).read_text().splitlines() if (folder / COMMITS).exists() else []
        self.commits = list(dict.fromkeys(said))
        begun = [line.removesuffix(" begins") for line in seen(folder) if line.endswith(" begins")]
        self.nodes = list(dict.fromkeys(begun))
        self.met.update(dict.fromkeys(self.aims(), 0))

    def aims(self) -> list[Aim]:
        """All of them."""
        return [
            *(Aim(when, label) for label in self.commits for when in ("before", "after")),
            *(Aim("inside", node) for node in self.nodes),
        ]

    def choose(self, folder: Path, chance: random.Random) -> Aim | None:
        """The aim among those to come soon that was met the least."""
        passed = (
            set((folder / COMMITS).read_text().split("\n")) if (folder / COMMITS).exists() else {}
        )
        begun = seen(folder)
        commits = [one for one in self.commits if one not in passed or one in ("park", "end")]
        nodes = [one for one in self.nodes if not begun[f"{one} ends"]]
        aims = [Aim(when, one) for one in commits[:NEAR] for when in ("before", "after")]
        aims += [Aim("inside", one) for one in nodes[: NEAR // 2]]
        with self._lock:
            return min(aims, key=lambda aim: (self.met[aim], chance.random()), default=None)

    def count_met(self) -> str:
        """Say how many of the aims were met."""
        with self._lock:
            return f"{sum(1 for count in self.met.values() if count)}/{len(self.met)}"

    def hit(self, aim: Aim) -> None:
        """Count an aim that was met."""
        with self._lock:
            self.met[aim] += 1


class Play:
    """One run of the file.

    Args:
        dsn: The database.
        folder: Its folder.
        chance: Chance of when workers die.
        kills: Number of workers that it loses.
        nursery: Makes its workers; one of its own if none is given.
        atlas: Places at which they can die; else their lives are of lengths by chance.
    """

    output = OUTPUT
    settings: ClassVar[dict[str, Any]] = {"provider": "python:declared_agents:slow_answer"}
    has_aims = True

    def __init__(
        self,
        dsn: str,
        folder: Path,
        chance: random.Random,
        kills: int,
        nursery: Nursery | None = None,
        atlas: Atlas | None = None,
    ) -> None:
        self.dsn = dsn
        self.folder = folder
        self.chance = chance
        self.kills = kills
        self.nursery = nursery
        self.atlas = atlas
        self.known: dict[str, int] = {}
        self.wrong: list[str] = []
        self.killed: Counter[str] = Counter()
        """Number of workers that died, by how."""
        self.trap: str | None = None
        """Where a worker dies by itself that has no aim, if it does."""
        self.outlived: list[float] = []
        """Seconds for which processes of nodes outlived each of these workers."""

    def play(self) -> None:
        """Start it, kill its workers, and look at what they did."""
        if self.nursery is not None:
            self.play_here()
            return
        with Nursery(ROLES) as self.nursery:
            self.play_here()
        self.nursery = None

    def play_here(self) -> None:
        """Play it with the nursery that is there."""
        key = asyncio.run(self.begin(self.file()))
        self.work_on(key)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            status, output, error = conn.execute(
                "select status, output, error ->> 'message' from pgflow.runs where key = %s", (key,)
            ).fetchone() or ("gone", None, None)
        said = output["output"] if isinstance(output, dict) and "output" in output else output
        if status != "completed" or said != self.output:
            self.wrong.append(f"{key} is {status} and says {said or error!r}")
        lines = seen(self.folder)
        self.wrong += [f"{key}: {line}" for line in lines if line.endswith("twice")]
        if lines["publish begins"] > 1:
            self.wrong.append(f"{key} has published {lines['publish begins']} times")

    def work_on(self, key: str) -> None:
        """Have workers work on it, and die, until it has ended."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            for number in range(self.kills + 1):
                if self.work(conn, key, is_last=number == self.kills):
                    break
            self.look(conn, key)

    def file(self) -> Path:
        """Write the file."""
        write(self.folder, KID % {"born": json.dumps(BORN)}, "mutates_checkout: false", name="kid")
        texts = {name: WITNESS + said for name, said in SAYS.items()} | {"program": PROGRAM}
        nodes = NODES % {name: json.dumps(text) for name, text in texts.items()}
        return write(self.folder, nodes, more="interactive: true")

    async def begin(self, path: Path) -> str:
        """Start it; answer its key."""
        async with AsyncApp(self.dsn, include=[declared]) as app:
            settings: Any = Settings(cwd=str(self.folder), **self.settings)
            return (
                await app.start(declared, freeze(parse_workflow(path), path), settings, "go", {})
            ).key

    def work(self, conn: psycopg.Connection[Any], key: str, *, is_last: bool) -> bool:
        """Have a worker work until it dies; True if the run has ended meanwhile."""
        assert self.nursery is not None
        aim = None if is_last or self.atlas is None else self.atlas.choose(self.folder, self.chance)
        at = list(aim) if aim is not None and aim.when != "inside" else None
        worker = self.nursery.start("files", self.dsn, folder=str(self.folder), at=at)
        try:
            if not is_last:
                self.lie_in_wait(worker)
            has_ended = self.watch(conn, key, worker, aim, is_last=is_last)
            if has_ended or is_last:
                return True
            worker.kill()
            self.outlived.append(empty(self.folder))
            self.look(conn, key)
            return False
        finally:
            worker.kill()

    def watch(
        self,
        conn: psycopg.Connection[Any],
        key: str,
        worker: Child,
        aim: Aim | None,
        *,
        is_last: bool,
    ) -> bool:
        """Wait for the moment of a worker's death; True if the run has ended before."""
        has_goal = aim is not None or self.trap is not None
        life = LONGEST_AIM_SECONDS if has_goal else self.chance.uniform(0, LONGEST_LIFE_SECONDS)
        until = time.monotonic() + (PATIENCE_SECONDS if is_last else life)
        inside = f"{aim.what} begins" if aim is not None and aim.when == "inside" else None
        before = seen(self.folder)[inside] if inside else 0
        while time.monotonic() < until:
            if worker.code is not None:
                self.count(aim)
                return False
            if inside and seen(self.folder)[inside] > before:
                time.sleep(self.chance.uniform(0, REST_SECONDS))
                worker.send(signal.SIGKILL)
                self.count(aim)
                return False
            if self.has_ended(conn, key):
                if aim and aim.when == "after" and dies(worker):
                    self.count(aim)
                return True
            self.answer_if_asked(conn)
            time.sleep(min(0.02, max(0.0, until - time.monotonic())))
        if not is_last:
            self.killed["at some moment"] += 1
        return False

    def count(self, aim: Aim | None) -> None:
        """Count a worker that has died where it was to."""
        self.killed[aim.when if aim else self.trap or "by itself"] += 1
        if aim and self.atlas:
            self.atlas.hit(aim)

    def lie_in_wait(self, worker: Child) -> None:
        """Have a worker killed at a moment that is not one of time; here there is none."""

    def has_ended(self, conn: psycopg.Connection[Any], key: str) -> bool:
        """Return True if the run is over."""
        row = conn.execute(
            "select status in ('completed', 'failed', 'cancelled') from pgflow.runs where key = %s",
            (key,),
        ).fetchone()
        return bool(row and row[0])

    def answer_if_asked(self, conn: psycopg.Connection[Any]) -> None:
        """Look whether there is something to answer, which is cheaper than to be an app."""
        row = conn.execute(
            "select exists (select from pgflow.gates) "
            "or exists (select from pgflow.effects where status = 'unknown')"
        ).fetchone()
        if row and row[0]:
            asyncio.run(self.answer())

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
                with suppress(RunNotFound):  # the run has just taken what was said before
                    await app.settle_effect(effect, "confirmed", {"text": "done"}, by="play")

    def answer_to(self, gate: GateRow) -> Approve | Reject:  # noqa: ARG002 - others look at it
        """The answer of that person."""
        return Approve()

    def look(self, conn: psycopg.Connection[Any], key: str) -> None:
        """Compare what was recorded before with what was done since."""
        lines = seen(self.folder)
        for step, times in self.known.items():
            if lines[f"{step} begins"] != times:
                self.wrong.append(f"{key}: {step} was recorded, and done again")
        done = recorded(conn, key) | born(conn)
        self.known = {step: lines[f"{step} begins"] for step in done}


def dies(worker: Child) -> bool:
    """Return True if a worker dies in a moment, as after the commit that ends its run."""
    until = time.monotonic() + REST_SECONDS
    while worker.code is None and time.monotonic() < until:
        time.sleep(0.01)
    return worker.code is not None


def empty(folder: Path) -> float:
    """Wait until no process works in a folder; return how many seconds that took."""
    began = time.monotonic()
    servers.wait_until(
        lambda: not any(map(partial(works_in, folder), PROCESSES.glob("[0-9]*"))), "no orphan"
    )
    return time.monotonic() - began


def works_in(folder: Path, process: Path) -> bool:
    """Return True for the entry of a process that works in a folder."""
    try:
        return (process / "cwd").readlink().is_relative_to(folder)
    except OSError:  # it has ended, or the entry is of something else
        return False


def born(conn: psycopg.Connection[Any]) -> set[str]:
    """Words of witnesses on the nodes of children that have ended well: of the runs that are open,
    since others have had the same names.
    """
    rows = conn.execute(
        "select r.input->>'message' from pgflow.steps s join pgflow.runs r using (run_id) "
        "join pgflow.runs p on p.run_id = r.parent_run_id "
        "where s.step = 'born' and s.status = 'completed' "
        "and p.status not in ('completed', 'failed', 'cancelled')"
    )
    return {f"born-{message}" for (message,) in rows}


class Lane:
    """A database and a nursery of its own: runs of it and those of other lanes go on together."""

    def __init__(self, server: str, play: type[Play], atlas: Atlas | None, seed: int) -> None:
        self.server = server
        self.make = play
        self.atlas = atlas
        self.chance = random.Random(seed)
        self.wrong: list[str] = []
        self.killed: Counter[str] = Counter()
        self.outlived: list[float] = []
        self.runs = 0

    def play(self, kills: int, *, learns: bool = False) -> None:
        """Lose so many workers."""
        name = servers.create_database(self.server)
        try:
            dsn = servers.dsn_of(self.server, name)
            servers.install_schema(dsn)
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(
                    "select pgflow.set_queue('declared', jsonb_build_object('max_deaths', 1000))"
                )
            with Nursery(ROLES) as nursery:
                while learns or self.killed.total() < kills:
                    self.play_one(dsn, nursery, 0 if learns else kills - self.killed.total())
                    if learns:
                        break
            self.wrong += servers.unsound(dsn)
        finally:
            servers.drop_database(self.server, name)

    def play_one(self, dsn: str, nursery: Nursery, left: int) -> None:
        """Play one run."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            aims = self.atlas if left and self.make.has_aims else None
            most = min(left, KILLS_OF_A_RUN)
            one = self.make(dsn, Path(folder), self.chance, most, nursery, aims)
            one.play()
            if not left and self.atlas:
                self.atlas.learn(Path(folder))
        self.runs += 1
        self.killed += one.killed
        self.wrong += one.wrong
        self.outlived += one.outlived
        seconds = round(time.monotonic() - began, 1)
        met = f", {self.atlas.count_met()} places met" if self.atlas else ""
        print(f"run {self.runs}: {dict(one.killed)} in {seconds} s{met} {one.wrong}", flush=True)
        if left and not one.killed:
            self.killed["none"] += 1


def main(play: type[Play] = Play, description: str | None = __doc__) -> int:
    """Plays it, and prints the figures."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="server, as a superuser")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=1, help="databases that play at once")
    options = parser.parse_args()
    atlas = Atlas() if play.has_aims else None
    lanes = [Lane(options.dsn, play, atlas, options.seed + n) for n in range(options.lanes)]
    if atlas:
        lanes[0].play(0, learns=True)
    with ThreadPoolExecutor(len(lanes)) as pool:
        share = -(-options.kills // len(lanes))
        for done in [pool.submit(lane.play, share) for lane in lanes]:
            done.result()
    wrong = [line for lane in lanes for line in lane.wrong]
    kills = sum((lane.killed for lane in lanes), Counter())
    print(json.dumps(figures(lanes, kills, atlas), indent=2))
    for line in wrong[:40]:
        print(f"FAILED {line}")
    return 1 if wrong else 0


def figures(lanes: list[Lane], kills: Counter[str], atlas: Atlas | None) -> dict[str, Any]:
    """Figures on the runs, and how often each aim was met."""
    told: dict[str, Any] = {"runs": sum(lane.runs for lane in lanes), "kills": kills.total()}
    told["kinds"] = kills
    outlived = [seconds for lane in lanes for seconds in lane.outlived]
    told["orphans"] = {
        "longest_seconds": round(max(outlived, default=0), 2),
        "after_1_s": sum(seconds > 1 for seconds in outlived),
    }
    if atlas is None:
        return told
    for when in ("inside", "before", "after"):
        met = {aim.what: count for aim, count in atlas.met.items() if aim.when == when}
        told[when] = {
            "places": len(met),
            "least": min(met.values(), default=0),
            "never": [what for what, count in met.items() if not count],
        }
    return told


if __name__ == "__main__":
    sys.exit(main())
