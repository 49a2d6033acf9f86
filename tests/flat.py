"""The cost of a unit of work on the way through very many: `python -m tests.flat SERVER_DSN [--units
N] [--only NAME ...]`.

One worker plays N starts, parks, wakes, sleeps, children of N / 1000 parents in turn, items of ten
maps, steps of runs that continue, and steps of runs of ten; then a rule of retention removes these.
A last line says what part of their cost their removal takes, and how large the tables were before
and after it, and once as many runs had been played again. For each tenth of the way a line shows the cost of a unit:
Python functions that the worker called, statements that it sent, and buffers and WAL that these
took. None of them is a time. Load changes how much goes into one batch and when a vacuum comes, so
a single tenth may be off. Milliseconds of processor time stand beside them and are not judged.

A cost is flat if the last four tenths take at most a tenth more than the second to the fifth; in
the first, caches are cold. The objects that the worker keeps must not grow with the units either,
except in the one run of the maps, whose journal grows. The exit code is 1 if something is not flat.
The server needs `pg_stat_statements` in `shared_preload_libraries`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import statistics
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, LiteralString

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "kits"))

from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import FrameType

import servers

import pgflow
from pgflow import AsyncApp, Signal, step, workflow
from pgflow._worker.options import WorkerOptions
from pgflow._worker.upkeep import FAMILIES_A_BATCH

PARTS = 10
"""Lines of a table."""
EARLY, LATE = slice(1, 5), slice(6, 10)
"""Parts that are compared."""
MOST_TIMES = 1.1
"""Cost of a unit in the late parts, as a multiple of that in the early ones."""
MOST_KEPT = 0.1
"""Objects that a worker may keep of each unit."""
SLEEPS = 10
"""Sleeps of a run."""
CHILDREN = 1_000
"""Children of a parent."""
STEPS = 100
"""Steps of a generation."""
STARTS = 100
"""Runs of a start."""
ENDED_STEPS = 10
"""Steps of a run that is removed."""
CHAINS = 10
"""Chains of runs that continue."""
CONCURRENCY = 128

word = Signal("word", int)


class Way:
    """The units that are done, counted by the workflows of this process.

    Attributes:
        unit: Name of the units that count now.
        done: Number of them.
        over: Set when all of it is counted.
    """

    def __init__(self) -> None:
        self.unit = ""
        self.done = 0
        self.over = asyncio.Event()
        self._part = self._parts = 0
        self._mark: Callable[[], None] = self.over.set

    def begin(self, unit: str, units: int, mark: Callable[[], None]) -> None:
        """Begin a way of so many units, and call this at the end of each part."""
        self.unit, self.done = unit, 0
        self._part, self._parts, self._mark = units // PARTS, 0, mark
        self.over.clear()

    def count(self, unit: str, units: int = 1) -> None:
        """Count so many, if they are of this kind."""
        if unit != self.unit or self._parts == PARTS:
            return
        self.done += units
        if self.done >= self._part * (self._parts + 1):
            self._parts += 1
            self._mark()
            if self._parts == PARTS:
                self.over.set()


way = Way()


@step
async def small(n: int) -> int:
    way.count("steps")
    return n


@workflow
async def sleeping(n: int) -> int:
    for _ in range(SLEEPS):
        await pgflow.sleep(0.001)
    way.count("sleeps", SLEEPS)
    return n


@workflow
async def parking(n: int) -> int:
    way.count("parks")
    total = n + await word.wait()
    way.count("wakes")
    return total


@workflow
async def child(n: int) -> int:
    way.count("children")
    return n


@workflow
async def item(n: int) -> int:
    way.count("items")
    return n


@workflow
async def parent(children: int) -> int:
    for n in range(children):
        await pgflow.run_child(child, n)
    return children


@workflow
async def mapping(items: int) -> int:
    for _ in range(PARTS):
        await pgflow.map(item, range(items))
    return items


@workflow
async def continuing(steps: int) -> int:
    for n in range(min(STEPS, steps)):
        await small(n)
    return steps if steps <= STEPS else pgflow.continue_as_new(steps - STEPS)


@workflow
async def ending(n: int) -> int:
    for _ in range(ENDED_STEPS):
        await small(n)
    way.count("steps that end", ENDED_STEPS)
    return n


FLOWS = [sleeping, parking, child, item, parent, mapping, continuing, ending]


@dataclass
class Counts:
    """What was counted up to a moment, or between two.

    Attributes:
        units: Units that were done.
        calls: Python functions that the worker's loop called.
        statements: Statements of the database.
        buffers: Buffers of 8 KiB that the statements touched.
        wal: Bytes that they wrote to the log.
        objects: Objects that the garbage collector of this process knows; no difference.
        worker_ms: Processor time of this process.
        server_ms: Of the server's processes that serve this database; 0 if it is elsewhere.
        resident_mb: Memory of this process; no difference.
    """

    units: int
    calls: float
    statements: float
    buffers: float
    wal: float
    objects: float
    worker_ms: float
    server_ms: float
    resident_mb: float

    def since(self, before: Counts) -> Counts:
        """Return what a unit took since then."""
        units = self.units - before.units
        kept = {"units": units, "objects": self.objects, "resident_mb": self.resident_mb}
        taken = {
            one.name: (getattr(self, one.name) - getattr(before, one.name)) / units
            for one in fields(self)
        }
        return Counts(**(taken | kept))  # type: ignore[arg-type]


JUDGED = ("calls", "statements", "buffers", "wal")

COUNTED = """
select sum(s.calls), sum(s.shared_blks_hit + s.shared_blks_read), sum(s.wal_bytes)
from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = current_database() and s.toplevel and s.query not like '%pg_stat_%'
"""

SIZE = """
select sum(pg_total_relation_size(oid)) from pg_class
where relnamespace = 'pgflow'::regnamespace and relkind = 'r'
"""


class Counter:
    """Counts for one database and this process.

    Args:
        conn: A connection of its own.
    """

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._calls = 0
        self._ticks: dict[int, int] = {}
        conn.execute("create extension if not exists pg_stat_statements")

    def note(self, _frame: FrameType, event: str, _arg: object) -> None:
        """Take note of a call: this is a profile function of Python."""
        if event == "call":
            self._calls += 1

    @contextmanager
    def counting(self, *, is_on: bool = True) -> Iterator[None]:
        """Count the calls of this thread, or stop counting for a while."""
        before = sys.getprofile()
        sys.setprofile(self.note if is_on else None)
        try:
            yield
        finally:
            sys.setprofile(before)

    def execute(self, query: LiteralString, params: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        """Execute a statement, which counts, too."""
        return self._conn.execute(query, params)

    def size(self) -> int:
        """Return the bytes of all tables of pgflow, after a vacuum as autovacuum does it."""
        self._conn.execute("vacuum")
        return int((self._conn.execute(SIZE).fetchone() or (0,))[0])

    def take(self) -> Counts:
        """Return the counts of now. Nothing goes on meanwhile in this process."""
        with self.counting(is_on=False):
            gc.collect()
            row = self._conn.execute(COUNTED).fetchone() or (0,) * 3
            statements, buffers, wal = map(float, row)
            times, pages = os.times(), Path("/proc/self/statm").read_text().split()[1]
            return Counts(
                units=way.done,
                calls=self._calls,
                statements=statements,
                buffers=buffers,
                wal=wal,
                objects=len(gc.get_objects()),
                worker_ms=(times.user + times.system) * 1e3,
                server_ms=self._server_ms(),
                resident_mb=int(pages) * os.sysconf("SC_PAGESIZE") / 1e6,
            )

    def _server_ms(self) -> float:
        pids = "select pid from pg_stat_activity where datname = current_database()"
        for (pid,) in self._conn.execute(pids):
            try:
                said = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended, or the server is elsewhere
            self._ticks[pid] = int(said[11]) + int(said[12])
        return sum(self._ticks.values()) * 1e3 / os.sysconf("SC_CLK_TCK")


@dataclass
class Played:
    """One way.

    Attributes:
        unit: Name of its units.
        parts: What a unit took in each part.
        unsound: What `check()` has to say.
    """

    unit: str
    parts: list[Counts]
    unsound: list[str] = field(default_factory=list)

    def _mean(self, name: str, parts: slice) -> float:
        return statistics.mean(getattr(part, name) for part in self.parts[parts])

    @property
    def grown(self) -> list[str]:
        """What is not flat, one line each."""
        found = []
        for name in (*JUDGED, "objects"):
            early, late = self._mean(name, EARLY), self._mean(name, LATE)
            units = (len(self.parts) // 2) * self.parts[0].units
            is_flat = late <= MOST_TIMES * early
            if name == "objects":
                is_flat = self.unit == "items" or late - early <= MOST_KEPT * units
            if not is_flat:
                found.append(f"{self.unit}: {name} grew from {early:,.2f} to {late:,.2f}")
        return found

    def __str__(self) -> str:
        names = [one.name for one in fields(Counts)]
        lines = [self.unit, "".join(f"{name:>12}" for name in names)]
        lines += [
            "".join(
                f"{value:12,.0f}" if value >= 1000 or name == "units" else f"{value:12.3f}"
                for name in names
                for value in [getattr(part, name)]
            )
            for part in self.parts
        ]
        return "\n".join(lines)


def share_of(part: Played, whole: Played) -> str:
    """Return the part of the cost of a way that another takes, of as many units."""

    def sum_of(played: Played, *names: str) -> float:
        return sum(getattr(one, name) * one.units for one in played.parts for name in names)

    costs = [(name,) for name in ("statements", "buffers", "wal")]
    shares = [
        f"{sum_of(part, *names) / sum_of(whole, *names):.1%} of {' and '.join(names)}"
        for names in (*costs, ("worker_ms", "server_ms"))
    ]
    return f"{part.unit} take {', '.join(shares)} of {whole.unit}"


class Player:
    """Plays ways, one after the other.

    Args:
        app: The app.
        counter: Of its database.
        units: Units of each way.
    """

    def __init__(self, app: AsyncApp, counter: Counter, units: int) -> None:
        self._app = app
        self._counter = counter
        self._units = units

    async def play(self, name: str) -> list[Played]:
        """Play the ways of a name of :data:`WAYS`."""
        units = self._units
        if name == "parks":
            started = await self._walk("starts", self._start(parking, units))
            parked = await self._walk("parks", self._work())
            self._counter.execute(SIGNALS)
            return [started, parked, await self._walk("wakes", self._work())]
        if name == "sleeps":
            await self._start(sleeping, units // SLEEPS)
        elif name == "children":
            await self._start(parent, units // CHILDREN, CHILDREN)
        elif name == "items":
            await self._start(mapping, 1, units // PARTS)
        elif name == "removals":
            return await self._end_and_remove(units // ENDED_STEPS)
        else:
            await self._start(continuing, CHAINS, units // CHAINS)
        return [await self._walk(name, self._work())]

    async def _end_and_remove(self, runs: int) -> list[Played]:
        await self._start(ending, runs)
        ended = await self._walk("steps that end", self._work())
        sizes = [self._counter.size()]
        self._counter.execute("select pgflow.set_retention('all', 0)")
        removed = await self._walk("removed steps", self._remove(runs))
        sizes.append(self._counter.size())
        await self._start(ending, runs)
        way.begin("steps that end", self._units, lambda: None)
        await self._work()
        sizes.append(self._counter.size())
        print(share_of(removed, ended))
        print("tables have", ", ".join(f"{size:,}" for size in sizes), "bytes", end="\n\n")
        return [ended, removed]

    async def _remove(self, runs: int) -> None:
        """Remove ended runs in batches of a worker, or smaller ones if there are few."""
        query, after = "select * from pgflow.retire_runs(%s, %s)", 0
        while after is not None:
            most = min(FAMILIES_A_BATCH, runs // PARTS)
            gone, after = self._counter.execute(query, (most, after)).fetchone() or (0, None)
            way.count("removed steps", gone * ENDED_STEPS)

    async def _start(self, flow: Any, runs: int, given: int | None = None) -> None:
        for first in range(0, runs, STARTS):
            numbers = range(first, min(first + STARTS, runs))
            await self._app.start_many(flow, [(n if given is None else given,) for n in numbers])
            way.count("starts", len(numbers))

    async def _work(self) -> None:
        async with self._app._work(WorkerOptions(concurrency=CONCURRENCY)):
            await way.over.wait()

    async def _walk(self, unit: str, act: Coroutine[Any, Any, None]) -> Played:
        marks: list[Counts] = []
        way.begin(unit, self._units, lambda: marks.append(self._counter.take()))
        marks.append(self._counter.take())
        with self._counter.counting():
            await act
        played = Played(unit, [late.since(early) for early, late in itertools.pairwise(marks)])
        print(played, *played.grown, sep="\n", end="\n\n", flush=True)
        return played


WAYS = ("parks", "sleeps", "children", "items", "steps", "removals")
"""Ways by name. That of parks has three: runs start, park and wake; that of removals two."""

SIGNALS = "select pgflow.send_signal(key, 'word', '1') from pgflow.run"


async def play(server_dsn: str, units: int, names: Sequence[str] = WAYS) -> list[Played]:
    """Play each of these ways in a database of its own, and print what it took."""
    found = []
    for name in names:
        database = servers.create_database(server_dsn)
        try:
            dsn = servers.dsn_of(server_dsn, database)
            servers.install_schema(dsn)
            with psycopg.connect(dsn, autocommit=True) as conn:
                async with AsyncApp(dsn, include=FLOWS) as app:
                    found += await Player(app, Counter(conn), units).play(name)
            found[-1].unsound += servers.unsound(dsn)
        finally:
            servers.drop_database(server_dsn, database)
    return found


def main() -> int:
    """Play, and say what is not flat."""
    parser = argparse.ArgumentParser("python -m tests.flat", description=__doc__)
    parser.add_argument("dsn", help="a server on which databases may be made")
    parser.add_argument("--units", type=int, default=100_000, help="units of each way")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS, help="ways to play")
    given = parser.parse_args()
    gc.freeze()
    found = asyncio.run(play(given.dsn, given.units, given.only))
    grown = [line for played in found for line in (*played.grown, *played.unsound)]
    print(*grown, sep="\n")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
