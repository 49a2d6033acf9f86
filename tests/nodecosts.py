"""Costs of a node of a file beside those of the bare process: `python -m tests.nodecosts SERVER_DSN
[--rounds N] [--script SCRIPT]`.

Each round plays, one after the other, the same shells as bare processes and as nodes, in turn and
eight at once, and files of a thousand nodes that do nothing. So a machine that others use too slows
all alike, and the medians of the ratios say what a node costs. A shell in turn is also played as
the bare loop that any durable execution has: the process, and one row that is committed after it.

Prints figures and judges none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "kits"))

import servers

from pgflow import AsyncApp
from pgflow.declare import parse_workflow
from pgflow.declare.durable import Settings, declared, freeze

SHELLS = 100
NOTHINGS = 1000
AT_ONCE = 8


class Costs:
    """Plays files and bare processes.

    Args:
        app: The app, whose worker is at work.
        conn: A connection of the bare loop.
        folder: Folder of the files.
        script: Script of each shell.
    """

    def __init__(
        self, app: AsyncApp, conn: psycopg.AsyncConnection[object], folder: Path, script: str
    ) -> None:
        self.app = app
        self.conn = conn
        self.folder = folder
        self.script = script

    async def bare(self) -> None:
        """Run one bare process."""
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", self.script, stdin=-1, stdout=-1, stderr=-1
        )
        await process.communicate()

    async def bare_in_turn(self) -> None:
        """Run the shells bare, one after the other."""
        for _ in range(SHELLS):
            await self.bare()

    async def bare_loop(self) -> None:
        """Run them bare, with a row that is committed after each."""
        for number in range(SHELLS):
            await self.bare()
            await self.conn.execute("insert into bare_loop values (%s)", (number,))

    async def bare_at_once(self) -> None:
        """Run them bare, so many at once."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with slots:
                await self.bare()

        await asyncio.gather(*(one() for _ in range(SHELLS)))

    def nodes(self, count: int, *, in_turn: bool, does: bool) -> Callable[[], Awaitable[None]]:
        """Return what runs a file to its end. The file is read before."""
        path = self.folder / "nodes.yaml"
        lines = ["name: nodes", "description: Nodes.", "nodes:"]
        for number in range(count):
            after = f", depends_on: [n{number - 1}]" if in_turn and number else ""
            lines.append(f"- {{id: n{number}, bash: {json.dumps(self.script)}{after}}}")
        path.write_text("\n".join(lines))
        frozen = freeze(parse_workflow(path))
        stubs = {} if does else {f"n{number}": "nothing" for number in range(count)}
        settings = Settings(cwd=str(self.folder), stubs=stubs, parallel=AT_ONCE)

        async def play() -> None:
            run = await self.app.start(declared, frozen, settings, "", {})
            await run.result()

        return play

    def plays(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """All that a round plays, by name."""
        return {
            "bare in turn": self.bare_in_turn,
            "bare loop": self.bare_loop,
            "nodes in turn": self.nodes(SHELLS, in_turn=True, does=True),
            "bare at once": self.bare_at_once,
            "nodes at once": self.nodes(SHELLS, in_turn=False, does=True),
            "nothing in turn": self.nodes(NOTHINGS, in_turn=True, does=False),
            "nothing at once": self.nodes(NOTHINGS, in_turn=False, does=False),
        }


async def measured(dsn: str, rounds: int, script: str) -> dict[str, list[float]]:
    """Return the seconds of each play, by name, after a first round that is dropped."""
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
            AsyncApp(dsn, include=[declared]) as app,
            app.worker(),
        ):
            await conn.execute("create table bare_loop (n int)")
            plays = Costs(app, conn, Path(folder), script).plays()
            for number in range(rounds + 1):
                for name, play in plays.items():
                    began = time.perf_counter()
                    await play()
                    if number:
                        seconds[name].append(time.perf_counter() - began)
    return seconds


def report(seconds: dict[str, list[float]]) -> dict[str, float]:
    """The figures: milliseconds a shell, ratios of the same round, and nodes a second."""

    def ratio(one: str, other: str) -> float:
        pairs = zip(seconds[one], seconds[other], strict=True)
        return round(statistics.median(mine / theirs for mine, theirs in pairs), 2)

    told = {
        f"{name}, ms": round(statistics.median(taken) / SHELLS * 1000, 2)
        for name, taken in seconds.items()
        if not name.startswith("nothing")
    }
    rates = {
        f"{name}, nodes/s": round(NOTHINGS / statistics.median(taken))
        for name, taken in seconds.items()
        if name.startswith("nothing")
    }
    return {
        **told,
        "in turn, nodes / bare": ratio("nodes in turn", "bare in turn"),
        "in turn, nodes / bare loop": ratio("nodes in turn", "bare loop"),
        "at once, nodes / bare": ratio("nodes at once", "bare at once"),
        **rates,
    }


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="a superuser's DSN of a server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--script", default="true", help="what each shell does")
    options = parser.parse_args()
    name = servers.create_database(options.server)
    try:
        dsn = servers.dsn_of(options.server, name)
        servers.install_schema(dsn)
        print(
            json.dumps(report(asyncio.run(measured(dsn, options.rounds, options.script))), indent=2)
        )
    finally:
        servers.drop_database(options.server, name)


if __name__ == "__main__":
    main()
