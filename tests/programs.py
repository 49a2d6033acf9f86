"""Random workflow programs: grown from a seed, run durably, and computed by a plain interpreter to
compare.

Whatever is done to the workers meanwhile, the durable run of a program must return what the plain
interpreter does, have written each transactional step exactly once, and each outside step under one
key only. Every part of a program has a path, by which parts, rows and signals are named; nothing in
a program depends on a race.

The seed also draws the harm: kills, freezes and cut connections, each at a moment that is counted
in units of the journal. Whoever is frozen thaws when the others have taken it for dead.

`python -m tests.programs DSN [--programs N] [--seed S]` runs programs under harm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

import pgflow
from pgflow import AsyncApp, Retries, Signal, read, step, transaction, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Confirmed, StillUnknown, effect

sys.path.insert(0, str(Path(__file__).parent / "kits"))

import servers
from evidence import Evidence, Findings
from processes import WorkerProcess, one, worker
from servers import wait_until

PRIME = 1_000_003
LOT = 60
HARMS = {"kill": 8, "freeze": 4, "cut": 4}
"""Harm that is done to the workers of a lot."""
HANG_SECONDS = 1800.0
MS = timedelta(milliseconds=1)
SCHEMA = """
create schema fuzz;
create table fuzz.written (path text not null, key text not null);
create table fuzz.acted (path text not null, key text not null);
create table fuzz.charged (path text not null, key text not null);
create table fuzz.refunded (path text not null, key text not null);
"""

LEAVES = (
    "read", "read", "step", "step", "transaction", "transaction", "refused", "flaky", "nap", "note",
    "late", "dropped", "effect", "effect", "chosen", "undone",
)  # fmt: skip
BRANCHES = ("seq", "seq", "gather", "gather", "group", "map", "child", "thread", "shielded")


@dataclass(frozen=True)
class Part:
    """A part of a program. ``n`` makes its value."""

    kind: str
    path: str
    n: int
    parts: tuple[Part, ...] = ()


def grow(rng: random.Random, path: str, depth: int, *, signals: bool, quiet: bool = False) -> Part:
    """A random part; a quiet one leaves nothing behind, so that it may be given up at any
    moment.
    """
    if depth == 0 or rng.random() < 0.25:
        kinds: tuple[str, ...] = (
            ("read", "nap") if quiet else (*LEAVES, "signal") if signals else LEAVES
        )
        return Part(rng.choice(kinds), path, rng.randrange(1, 1000))
    kind = rng.choice(("seq", "gather") if quiet else BRANCHES)
    width = rng.randrange(1, 4)
    below = kind in ("child", "thread")
    parts: tuple[Part, ...] = ()
    if kind == "thread":
        parts = tuple(
            Part(
                rng.choice(("read", "step", "transaction", "nap", "map")),
                f"{path}.{i}",
                rng.randrange(1, 1000),
            )
            for i in range(width)
        )
    elif kind != "map":
        parts = tuple(
            grow(rng, f"{path}.{i}", depth - 1, signals=signals and not below, quiet=quiet)
            for i in range(width)
        )
    return Part(kind, path, rng.randrange(1, 1000), parts)


def program_of(seed: int) -> list[Part]:
    """The trees of a program, one for each generation of its run."""
    rng = random.Random(seed)
    return [
        grow(rng, f"p{seed}~{generation}", rng.randrange(1, 4), signals=True)
        for generation in range(rng.choice((1, 1, 1, 2, 3)))
    ]


def find(part: Part, path: str) -> Part:
    """The part with this path."""
    while part.path != path:
        part = next(p for p in part.parts if path == p.path or path.startswith(f"{p.path}."))
    return part


def every(part: Part) -> list[Part]:
    """The part and all below it."""
    return [part, *(below for p in part.parts for below in every(p))]


def mix(values: list[int], start: int = 7) -> int:
    """A number that depends on all of them and on their order."""
    for value in values:
        start = (start * 31 + value) % PRIME
    return start


def plain(part: Part) -> int:
    """Return the value of the part."""
    match part.kind:
        case "refused" | "late" | "dropped" | "undone":
            return -part.n
        case "nap" | "note":
            return 0
        case "map":
            return mix([part.n + i for i in range(part.n % 4)])
        case kind if part.parts or kind in BRANCHES:
            return mix([plain(p) for p in part.parts])
    return part.n


def result_of(seed: int) -> int:
    """Return the value of the program."""
    return mix([plain(part) for part in program_of(seed)])


class Refusal(Exception):
    """An outcome that is an error."""


@read
async def look(n: int) -> int:
    return n


@step(retries=Retries(max_attempts=4, first_delay=MS))
async def act(path: str, n: int) -> int:
    async with await psycopg.AsyncConnection.connect(
        servers.witness(os.environ["PGFLOW_DSN"]), autocommit=True
    ) as conn:
        await conn.execute(
            "insert into fuzz.acted values (%s, %s)", (path, pgflow.idempotency_key())
        )
    return n


@transaction
async def write(conn: psycopg.AsyncConnection[Any], path: str, n: int) -> int:
    await conn.execute("insert into fuzz.written values (%s, %s)", (path, pgflow.idempotency_key()))
    return n


@transaction
def write_in_thread(conn: psycopg.Connection[Any], path: str, n: int) -> int:
    conn.execute("insert into fuzz.written values (%s, %s)", (path, pgflow.idempotency_key()))
    return n


@step(raises=(Refusal,))
async def refuse(n: int) -> int:
    raise Refusal(n)


async def outside(table: str, path: str) -> None:
    """Leaves a row that no rollback removes."""
    async with await psycopg.AsyncConnection.connect(
        servers.witness(os.environ["PGFLOW_DSN"]), autocommit=True
    ) as conn:
        await conn.execute(
            f"insert into fuzz.{table} values (%s, %s)", (path, pgflow.idempotency_key())
        )  # type: ignore[arg-type]


@effect(
    risk="compensable",
    raises=[Refusal],
    settle_retries=Retries(max_attempts=1000, first_delay=20 * MS, max_delay=100 * MS),
    timeout=timedelta(seconds=1),
    settle_after=timedelta(seconds=1.5),
)
async def charge(path: str, n: int, *, refuses: bool = False) -> int:
    """Is charged once, whoever dies: the reply to every third charge is lost, on its first
    attempt.
    """
    if refuses:
        raise Refusal(n)
    await outside("charged", path)
    if n % 3 == 0 and pgflow.run_info().step_attempt == 1:
        raise ConnectionResetError(path)
    return n


@charge.settle
async def _(path: str, n: int, *, refuses: bool = False) -> Confirmed[int] | Absent | StillUnknown:
    del refuses
    async with await psycopg.AsyncConnection.connect(
        servers.witness(os.environ["PGFLOW_DSN"]), autocommit=True
    ) as conn:
        found = await (
            await conn.execute(
                "select from fuzz.charged where path = %s and key = %s",
                (path, pgflow.idempotency_key()),
            )
        ).fetchone()
    return Absent() if found is None else Confirmed(n)


@charge.compensate
async def refund(n: int, path: str, *_: int, **__: bool) -> None:
    del n
    await outside("refunded", path)


@decision()
async def choose(n: int) -> Choice[int]:
    return Choice(n, why="it is the only one")


@read(retries=Retries(max_attempts=3, first_delay=MS))
async def stumble(n: int) -> int:
    if (pgflow.run_info().step_attempt or 0) < 2:
        raise ValueError("the first attempt fails")
    return n


def named(path: str) -> Signal[int]:
    """The signal of a part."""
    return Signal(path, int)


async def perform(part: Part, seed: int, generation: int) -> int:
    """Does in a workflow what `plain` computes."""

    async def do(p: Part) -> int:
        return await perform(p, seed, generation)

    match part.kind:
        case "read":
            return await look(part.n)
        case "step":
            return await act(part.path, part.n)
        case "transaction":
            return await (
                write(part.path, part.n) if part.n % 2 else write_in_thread.aio(part.path, part.n)
            )
        case "refused":
            try:
                return await refuse(part.n)
            except Refusal as refusal:
                return -int(refusal.args[0])
        case "flaky":
            return await stumble(part.n)
        case "nap":
            await pgflow.sleep(timedelta(milliseconds=part.n % 20))
            return 0
        case "note":
            pgflow.set_state(at=part.path, when=pgflow.now(), who=str(pgflow.uuid()))
            pgflow.emit("notes", part.path)
            return int(pgflow.random()) + (0 if pgflow.patched("fuzz") else 1)
        case "signal":
            return await named(part.path).wait()
        case "late":
            try:
                return await named(f"never {part.path}").wait(
                    timeout=timedelta(milliseconds=1 + part.n % 10)
                )
            except TimeoutError:
                return -part.n
        case "dropped":
            return await _drop(part)
        case "effect":
            return await charge(part.path, part.n)
        case "chosen":
            chosen = await choose(part.n)
            return await charge.because(chosen)(part.path, chosen.value)
        case "undone":
            try:
                async with pgflow.effects.saga():
                    await charge(part.path, part.n)
                    await charge(part.path, part.n, refuses=True)
            except Refusal as refusal:
                return -int(refusal.args[0])
            raise AssertionError(part.path)
        case "seq":
            return mix([await do(p) for p in part.parts])
        case "gather" | "shielded":
            waits = [
                asyncio.shield(do(p)) if part.kind == "shielded" else do(p) for p in part.parts
            ]
            return mix(await asyncio.gather(*waits))
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(do(p)) for p in part.parts]
            return mix([task.result() for task in tasks])
        case "map":
            return mix(
                (
                    await pgflow.map(look, [part.n + i for i in range(part.n % 4)], max_parallel=2)
                ).values
            )
        case "child" if part.n % 2:
            child = await pgflow.start_child(branch, seed, generation, part.path)
            return await child.result()
        case "child":
            return await pgflow.run_child(branch, seed, generation, part.path)
        case "thread":
            return await pgflow.run_child(branch_in_thread, seed, generation, part.path)
    raise AssertionError(part.kind)


async def _drop(part: Part) -> int:
    """Begins something that leaves nothing behind, and gives it up."""
    rng = random.Random(part.path)
    quiet = grow(rng, part.path, 2, signals=False, quiet=True)
    task = asyncio.create_task(perform(quiet, 0, 0))
    await look(1)
    task.cancel()
    await asyncio.wait([task])
    return -part.n


@workflow
async def branch(seed: int, generation: int, path: str) -> int:
    part = find(program_of(seed)[generation], path)
    return mix([await perform(p, seed, generation) for p in part.parts])


@workflow
def branch_in_thread(seed: int, generation: int, path: str) -> int:
    values = []
    for part in find(program_of(seed)[generation], path).parts:
        if part.kind == "read":
            values.append(look.sync(part.n))
        elif part.kind == "step":
            values.append(act.sync(part.path, part.n))
        elif part.kind == "transaction":
            values.append(write_in_thread(part.path, part.n))
        elif part.kind == "map":
            values.append(
                mix(pgflow.sync.map(look, [part.n + i for i in range(part.n % 4)]).values)
            )
        else:
            pgflow.sync.sleep(timedelta(milliseconds=part.n % 20))
            values.append(0)
    return mix(values)


@workflow
async def program(seed: int, generation: int = 0, total: int = 7) -> int:
    trees = program_of(seed)
    total = mix([await perform(trees[generation], seed, generation)], total)
    if generation + 1 < len(trees):
        pgflow.continue_as_new(seed, generation + 1, total)
    return total


app = AsyncApp(include=[program, branch, branch_in_thread])


def start(conn: psycopg.Connection[Any], seeds: list[int]) -> None:
    """Starts the programs, and sends about half of their signals."""
    for seed in seeds:
        conn.execute(
            "select pgflow.start_run('program', %s, %s)", (json.dumps({"seed": seed}), f"p{seed}")
        )
    rng = random.Random(sum(seeds))
    for seed, part in signals_of(seeds):
        if rng.random() < 0.5:
            send(conn, seed, part)


def signals_of(seeds: list[int]) -> list[tuple[int, Part]]:
    """Parts that wait for a signal."""
    return [
        (seed, part)
        for seed in seeds
        for tree in program_of(seed)
        for part in every(tree)
        if part.kind == "signal"
    ]


def send(conn: psycopg.Connection[Any], seed: int, part: Part) -> None:
    """Sends the signal of a part."""
    verb = "deliver_signal" if part.n % 2 else "send_signal"
    conn.execute(f"select pgflow.{verb}(%s, %s, %s::json)", (f"p{seed}", part.path, str(part.n)))


def send_rest(conn: psycopg.Connection[Any], seeds: list[int]) -> None:
    """Sends the signals that `start` has not."""
    rng = random.Random(sum(seeds))
    for seed, part in signals_of(seeds):
        if rng.random() >= 0.5:
            send(conn, seed, part)


TABLES = {
    "written": ("transaction",),
    "acted": ("step",),
    "charged": ("effect", "chosen", "undone"),
    "refunded": ("undone",),
}
"""Tables, and the parts that write into each."""

ONCE = ("written",)
"""Tables into which nothing is written twice; elsewhere the key stays the same, whoever was frozen
in the act.
"""


def judge(conn: psycopg.Connection[Any], seeds: list[int]) -> list[str]:
    """Return the differences from the plain interpreter, one line each."""
    wrong = []
    rows = dict(
        conn.execute(
            "select key, (status, output::text, error->>'message')::text from pgflow.runs where "
            "workflow = 'program'"
        ).fetchall()
    )
    wrong += [
        f"p{s}: {rows[f'p{s}']}, not {result_of(s)}"
        for s in seeds
        if not rows[f"p{s}"].startswith(f"(completed,{result_of(s)},")
    ]
    parts = [part for seed in seeds for tree in program_of(seed) for part in every(tree)]
    for table, kinds in TABLES.items():
        found = {
            p: (n, keys)
            for p, n, keys in conn.execute(
                f"select path, count(*), count(distinct key) from fuzz.{table} group by path"
            )
        }
        expected = {part.path for part in parts if part.kind in kinds}
        wrong += [f"{path}: not in {table}" for path in expected - found.keys()]
        wrong += [f"{path}: nobody asked for it" for path in found.keys() - expected]
        wrong += [
            f"{path}: {n} rows, {keys} keys in {table}"
            for path, (n, keys) in found.items()
            if keys > 1 or (table in ONCE and n > 1)
        ]
    return wrong + [
        f"{i}: {d}" for i, d in conn.execute("select invariant, detail from pgflow.check()")
    ]


OPEN = "select count(*) from pgflow.runs where status not in ('completed', 'failed', 'cancelled', 'stuck')"
AT_WORK = "select count(*) from pgflow.runs where status in ('queued', 'running')"
UNITS = "select count(*) from pgflow.unit"
IS_REGISTERED = "select count(*) from pgflow.worker where pid = %s"
CUT = """
select count(pg_terminate_backend(pid)) from (
  select pid from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and starts_with(application_name, 'pgflow') order by random() limit 2
) x
"""


class Harm:
    """Two workers, to which things are done."""

    def __init__(self, dsn: str, conn: psycopg.Connection[Any], stack: ExitStack) -> None:
        self._conn = conn
        self._start = lambda: stack.enter_context(
            worker(dsn, "--concurrency", "30", module="programs")
        )
        self._workers = [self._start(), self._start()]
        self._frozen: list[WorkerProcess] = []

    def do(self, what: str, victim: int) -> None:
        """Kills or freezes a worker that has registered, and has another take its place; or cuts
        two connections.
        """
        if what == "cut":
            wait_until(lambda: one(self._conn, CUT), "a connection is cut", HANG_SECONDS)
            return
        process = wait_until(
            lambda: self._registered(victim), "a worker is there to be harmed", HANG_SECONDS
        )
        if what == "freeze":
            process.send(signal.SIGSTOP)
            self._frozen.append(process)
        else:
            process.process.kill()
        self._workers[victim] = self._start()

    def _registered(self, victim: int) -> WorkerProcess | None:
        self.is_over()
        process = self._workers[victim]
        return process if one(self._conn, IS_REGISTERED, process.pid) else None

    def is_over(self) -> bool:
        """Has those go on whom the others have taken for dead, and others take the place of workers
        that have left; returns whether nobody is frozen.
        """
        for process in list(self._frozen):
            if not one(self._conn, IS_REGISTERED, process.pid):
                process.send(signal.SIGCONT)
                self._frozen.remove(process)
        for place, process in enumerate(self._workers):
            if process.process.poll() is not None:
                self._workers[place] = self._start()
        return not self._frozen


def run_under_harm(
    dsn: str, seeds: list[int], harms: dict[str, int], workers_dsn: str | None = None
) -> list[str]:
    """Return the differences that are left when programs have run on workers that were harmed.

    Args:
        dsn: Database with the schema, as whoever looks on.
        seeds: Seeds of the programs. The first also draws the order of the harm.
        harms: How often each harm is done.
        workers_dsn: The same database as the workers, if they come as somebody else.
    """
    rng = random.Random(seeds[0])
    plan = [what for what, times in harms.items() for _ in range(times)]
    rng.shuffle(plan)
    with psycopg.connect(servers.witness(dsn), autocommit=True) as conn, ExitStack() as stack:
        conn.execute(SCHEMA)
        harm = Harm(workers_dsn or dsn, conn, stack)
        for number, what in enumerate(plan):
            portion = seeds[number :: len(plan)]
            start(conn, portion)
            wanted = one(conn, UNITS) + rng.randint(1, 20)

            def has_come(wanted: int = wanted) -> bool:
                harm.is_over()
                return one(conn, UNITS) >= wanted or one(conn, AT_WORK) == 0

            wait_until(has_come, "the programs come to the next harm", HANG_SECONDS)
            harm.do(what, rng.randrange(2))
            send_rest(conn, portion)
        wait_until(
            lambda: harm.is_over() and one(conn, OPEN) == 0, "all programs end", HANG_SECONDS
        )
        return judge(conn, seeds)


def prove(server_dsn: str, amount: int, seed: int) -> Findings:
    """Runs so many lots of sixty programs, each in a database and under harm of its own."""
    wrong: list[str] = []
    for lot in range(amount):
        name = servers.create_database(server_dsn)
        dsn = servers.dsn_of(server_dsn, name)
        servers.install_schema(dsn)
        first = (seed * 1000 + lot) * 100
        try:
            wrong += run_under_harm(dsn, list(range(first, first + LOT)), HARMS)
        finally:
            servers.drop_database(server_dsn, name)
    fault = "workers killed, frozen past their lease and cut off under random programs"
    of_rows = tuple(
        line
        for line in wrong
        if re.search(rf" in ({'|'.join(TABLES)})$|nobody asked for it$", line)
    )
    rest = tuple(line for line in wrong if line not in of_rows)
    done = {what: times * amount for what, times in HARMS.items()}
    return Findings(
        "programs",
        seed,
        [
            Evidence("G13", fault, LOT * amount, wrong=rest),
            Evidence("G1", fault, 0, wrong=of_rows, shared=LOT * amount),
            Evidence("G7", fault, 0, wrong=of_rows, shared=done["freeze"]),
        ],
        {what: (times, times) for what, times in done.items()},
    )


def main() -> int:
    """Runs programs in worker processes that are harmed again and again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="an empty database with the schema")
    parser.add_argument("--programs", type=int, default=LOT)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lots = max(1, options.programs // LOT)
    harms = {what: times * lots for what, times in HARMS.items()}
    seeds = list(range(options.seed * 100_000, options.seed * 100_000 + options.programs))
    wrong = run_under_harm(options.dsn, seeds, harms)
    print(f"{len(seeds)} programs, {harms}, {len(wrong)} differences")
    for line in wrong:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
