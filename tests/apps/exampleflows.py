"""Workflows that between them use everything the engine offers, each with what happens to it from
outside.

Used by the tests of replay, divergence and determinism; run as a program, this file runs or replays
them and speaks JSON, so that another Python can be asked to do the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
from enginekit import Worker, divergence, saw
from enginestore import Store, StoredRun

import pgflow
from pgflow import Retries, Signal, read, step, transaction, workflow
from pgflow._model.units import Unit
from pgflow.authority import Admit
from pgflow.errors import BudgetExceeded


class Declined(Exception):
    """An error that a step declares."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"declined with {code}")
        self.code = code
        self.reason = reason


@read
async def look_up(name: str) -> dict[str, Any]:
    return {"name": name, "size": len(name), "pair": (1, 2)}


@step
async def add(a: int, b: int) -> int:
    return a + b


@step
async def book(item: str) -> tuple[str, int]:
    return item, len(item)


@step
async def ship(item: Any) -> Any:
    return {"shipped": item, 7: (1, 2)}


@step(raises=(Declined,))
async def charge(cents: int) -> str:
    if cents > 100:
        raise Declined(402, reason="too much")
    return f"receipt {cents}"


@step(retries=Retries(3, first_delay=timedelta(seconds=0.2), backoff=20))
async def flaky(item: int) -> int:
    if item % 3 == 0:
        raise ValueError(f"no {item}", {"item": item})
    return item * 10


@step
async def clean_up(what: str) -> None:
    return None


@step
def count(text: str) -> int:
    return len(text)


@transaction
def write_row(conn: psycopg.Connection[Any], row: int) -> int:
    return row + 1000


paid = Signal("paid", int)
news = Signal("news", str)


@workflow
async def in_sequence(n: int) -> list[Any]:
    found = await look_up("ab" * n)
    total = 0
    for i in range(n):
        total = await add(total, i)
        saw(total)
    pair = await book("x")
    saw(pair)
    return [found, total, pair, await ship((1, 2))]


async def _chain(i: int) -> int:
    first = await add(i, 1)
    saw("first", i, first)
    second = await look_up(str(first))
    return await add(second["size"], first)


@workflow
async def gathering(n: int) -> list[int]:
    return await asyncio.gather(*(_chain(i) for i in range(n)))


@workflow
async def timing_out(n: int) -> list[Any]:
    outcome: list[Any] = []
    for i in range(n):
        try:
            async with asyncio.timeout(0.5 + i):
                outcome.append(await add(i, i))
        except TimeoutError as error:
            saw(error)
            outcome.append("late")
            await clean_up(f"late {i}")
    try:
        outcome.append(await asyncio.wait_for(ship("slow"), 30))
    except TimeoutError:
        outcome.append("too slow")
    saw(outcome)
    return outcome


@workflow
async def waiting_for_signals(n: int) -> list[Any]:
    got: list[Any] = []
    for _ in range(n):
        try:
            got.append(await paid.wait(timeout=timedelta(seconds=3)))
        except TimeoutError as error:
            saw(error)
            got.append(None)
        got.append(await add(len(got), 1))
        saw(got)
    await asyncio.sleep(0.3)
    await pgflow.sleep(timedelta(hours=1))
    got.append(await news.wait())
    return got


@workflow(raises=(Declined,))
async def charged_child(cents: int) -> str:
    return await charge(cents)


@workflow
async def having_children(n: int) -> list[Any]:
    results = await asyncio.gather(
        *(pgflow.run_child(charged_child, 99 + i) for i in range(n)), return_exceptions=True
    )
    saw(*results)
    for result in results:
        saw(result.__cause__ if isinstance(result, BaseException) else result)
    return [r if isinstance(r, str) else type(r).__name__ for r in results]


@workflow
async def telling_of_children(n: int) -> int:
    """Notes something as each child comes back: two may come back in one answer of the database."""

    async def one(i: int) -> None:
        await pgflow.run_child(charged_child, i)
        pgflow.set_state(**{f"child {i}": "done"})

    async with asyncio.TaskGroup() as group:
        for i in range(n):
            group.create_task(one(i))
    return await add(n, n)


@workflow
async def leaving_children(n: int) -> str:
    """Ends with the first child that comes back, although others may have come back with it."""
    tasks = [asyncio.create_task(pgflow.run_child(charged_child, i)) for i in range(n)]
    done, _pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return min(task.result() for task in done)


@workflow
async def napping(n: int) -> int:
    """Sleeps that are due together, and something noted after each."""

    async def one(i: int) -> None:
        await asyncio.sleep(5)
        pgflow.set_state(nap=i)

    await asyncio.gather(*(one(i) for i in range(n)))
    return await add(n, 1)


@workflow
async def mapping(n: int) -> list[Any]:
    result = await pgflow.map(flaky, range(n), max_parallel=2, tolerated_failures=n)
    saw(result.values, *[error for _, error in result.failed])
    return [result.values, [item for item, _ in result.failed]]


@workflow
async def catching(n: int) -> list[str]:
    heard: list[str] = []
    for i in range(n):
        try:
            heard.append(await charge(99 + i * 5))
        except Declined as error:
            saw(error, error.code, error.reason)
            heard.append(f"{error.code} {error.reason}")
        except ValueError:
            heard.append("never")
        finally:
            await clean_up(str(i))
    try:
        await flaky(3)
    except ValueError as error:
        saw(error)
        heard.append(str(error.args[0]))
    return heard


@workflow
async def failing(n: int) -> None:
    await add(n, 1)
    try:
        await flaky(0)
    finally:
        await clean_up("after")


async def _pages(n: int) -> AsyncIterator[int]:
    try:
        for i in range(n):
            yield await add(i, 100)
    finally:
        saw("the generator ends")  # pgflow: ignore[PF201] what the tests compare


@workflow
async def generating(n: int) -> list[int]:
    pages = [page async for page in _pages(n)]
    async for page in _pages(n):
        pages.append(page)
        break
    first = await anext(_pages(1))
    return [*pages, first, await add(0, 0)]


@workflow
async def aborting(n: int) -> list[Any]:
    async def patient(i: int) -> None:
        try:
            await paid.wait()
        except asyncio.CancelledError:
            await clean_up(f"gave up {i}")
            raise

    heard: list[Any] = []
    try:
        async with asyncio.TaskGroup() as group:
            for i in range(n):
                group.create_task(patient(i))
                group.create_task(_chain(i))
            group.create_task(charge.aio(1000))
    except* Declined as errors:
        saw(*errors.exceptions)
        heard.append(len(errors.exceptions))
    return [*heard, await add(n, n)]


@workflow
async def telling(n: int) -> list[Any]:
    started = pgflow.now()
    pgflow.set_state(stage=0, by="telling")
    drawn = [pgflow.random(), str(pgflow.uuid()), pgflow.idempotency_key()]
    for i in range(n):
        pgflow.emit("progress", {"i": i})
        if pgflow.patched(f"change {i}"):
            await add(i, 1)
        pgflow.set_state(stage=i)
        saw(pgflow.now() >= started, pgflow.now())
    drawn.append(pgflow.random())
    saw(started, drawn)
    return [len(drawn), pgflow.patched("end")]


@workflow
async def labelling(n: int) -> dict[str, str]:
    for i in range(n):
        pgflow.set_labels(stage=str(i), **{f"was {i}": "yes", f"was {i - 2}": None})
        await add(i, 1)
        saw(pgflow.run_info().labels)
    return pgflow.run_info().labels


@workflow
async def locked_child(n: int) -> int:
    async with pgflow.lock("shelf") as fence:
        saw(fence)
        return await add(n, 1)


@workflow
async def locking(n: int) -> list[Any]:
    async def inside(i: int) -> int:
        async with pgflow.lock("shelf", shared=i % 3 == 0) as fence:
            saw(i, fence)
            return await add(i, 1)

    async def long() -> None:
        async with pgflow.lock("slow") as fence:
            saw(fence)
            await asyncio.sleep(1)

    async def impatient() -> None:
        try:
            async with pgflow.lock("slow", timeout=0.5):
                saw("in time")
        except TimeoutError as error:
            saw(error)

    async def gives_up() -> None:
        try:
            async with asyncio.timeout(0.3), pgflow.lock("slow"):
                saw("soon")
        except TimeoutError as error:
            saw(error)

    sums = await asyncio.gather(*(inside(i) for i in range(n)), pgflow.run_child(locked_child, n))
    await asyncio.gather(long(), impatient(), gives_up())
    try:
        async with pgflow.lock("short", ttl=0.2):
            await asyncio.sleep(1)
            saw(await add(1, 1))
    except pgflow.errors.LockLost as error:
        saw(error)
    try:
        async with pgflow.lock("shelf"), pgflow.lock("shelf"):
            pass
    except pgflow.errors.LockRefused as error:
        saw(error)
    return sums


@workflow
async def locking_round(n: int) -> int:
    async with pgflow.lock("round", shared=True) as fence:
        saw(fence)
        total = await add(n, 1)
        if n < 3:
            pgflow.continue_as_new(n + 1)
    return total


@workflow
async def continuing(n: int, total: int = 0) -> int:
    total = await add(total, n)
    pgflow.set_state(total=total)
    if n > 1:
        pgflow.continue_as_new(n - 1, total)
    return total


@workflow
def in_a_thread(n: int) -> list[Any]:
    first = count("abc")
    result = pgflow.sync.map(flaky, range(n), max_parallel=2, tolerated_failures=n)
    saw(result.values)
    pgflow.sync.sleep(0.5)
    try:
        got = paid.sync.wait(timeout=timedelta(seconds=3))
    except TimeoutError as error:
        saw(error)
        got = -1
    pgflow.set_state(got=got)
    child = pgflow.sync.run_child(charged_child, 5)
    try:
        charge.sync(101)
    except Declined as error:
        saw(error)
    return [first, result.values, got, child]


@workflow
async def writing(n: int) -> list[int]:
    rows = [await write_row.aio(i) for i in range(n)]
    rows += await asyncio.gather(write_row.aio(50), write_row.aio(51), add(1, 1))
    return rows


@workflow
async def writing_and_telling(n: int) -> int:
    """Notes something as each of several parallel transactions comes back."""

    async def one(i: int) -> int:
        row = await write_row.aio(i)
        pgflow.set_state(row=row)
        return row

    return sum(await asyncio.gather(*(one(i) for i in range(n))))


@workflow
async def passing_on(n: int) -> list[int]:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
    lock = asyncio.Lock()
    done: list[int] = []

    async def produce() -> None:
        for i in range(n):
            await queue.put(await add(i, 10))

    async def consume() -> None:
        while True:
            item = await queue.get()
            async with lock:
                done.append((await look_up("z" * item))["size"])
            queue.task_done()

    consumers = [asyncio.create_task(consume()) for _ in range(2)]
    await produce()
    await queue.join()
    for task in consumers:
        task.cancel()
    await asyncio.wait(consumers)
    async for finished in pgflow.as_completed([add(i, 20) for i in range(n)]):
        saw(await finished)
    return sorted(done)


@workflow
async def being_cancelled(n: int) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(news.wait())
            for i in range(n):
                await add(i, 1)
            await paid.wait(timeout=timedelta(days=1))
    finally:
        saw("ending")  # pgflow: ignore[PF201] what the tests compare
        await clean_up("cancelled")
        await asyncio.sleep(0.1)


@workflow
async def choosing(n: int) -> int:
    """Takes the first of several children, and gives up the others."""
    result = await pgflow.map(charged_child, range(n), min_successful=1)
    saw(len(result.values) >= 1)
    return await add(len(result.failed), n)


@workflow
def cancelled_in_a_thread(n: int) -> None:
    try:
        for i in range(n):
            count("x" * i)
        pgflow.sync.map(flaky, [1, 2])
        paid.sync.wait()
    except asyncio.CancelledError:
        saw("cancelled")
        raise
    finally:
        clean_up.sync("after")
        pgflow.set_state(cleaned="up")


@workflow
async def giving_up_writes(n: int) -> list[Any]:
    outcome: list[Any] = []
    for i in range(n):
        try:
            async with asyncio.timeout(0.3):
                outcome.append(len(await asyncio.gather(write_row.aio(i), add(i, i), paid.wait())))
        except TimeoutError:
            pgflow.set_state(late=i)
            outcome.append("late")
    saw(outcome)
    return outcome


@workflow
async def enduring(n: int) -> list[Any]:
    """Gives up a step between its tries, waits in vain, and is paused while it waits on."""
    heard: list[Any] = []
    for _ in range(n):
        try:
            async with asyncio.timeout(0.6):
                heard.append(await flaky(0))
        except (TimeoutError, ValueError):
            heard.append("given up")
    try:
        heard.append(await paid.wait(timeout=timedelta(seconds=3)))
    except TimeoutError as error:
        saw(error)
        heard.append("in vain")
    heard.append(await news.wait())
    saw(heard)
    return heard


@workflow
async def owing(n: int) -> str:
    made = [pgflow.authority.owe(f"thing {i}", to="ada", detail={"n": i}) for i in range(n)]
    pgflow.authority.discharge(made[0], evidence=[1, 2])
    said = await news.wait()
    pgflow.authority.transfer(made[1].key, "bob")
    await add(1, 2)
    pgflow.authority.waive(made[2], by="ada", why=said)
    return said


pausing = workflow(name="pausing")(passing_on.fn)


@dataclass(frozen=True)
class Example:
    """A workflow, its argument, and what the world does meanwhile.

    ``result``: what it always comes to; None if that depends on what happens first.
    """

    workflow: Any
    n: int
    result: Any = None
    events: tuple[Callable[[Store], None], ...] = ()
    children: tuple[Any, ...] = ()
    status: str = "completed"

    @property
    def name(self) -> str:
        return self.workflow.name

    def start(self) -> tuple[Store, StoredRun]:
        """The run, in a store of its own."""
        store = Store(self.workflow, *self.children)
        store.coming = list(self.events)
        return store, store.start(self.workflow, self.n)


def _send(name: str, payload: Any) -> Callable[[Store], None]:
    return lambda store: store.send(store.runs[1], name, payload)


def _cancel(store: Store) -> None:
    store.cancel(store.runs[1], "no longer wanted")


def _pause(store: Store) -> None:
    store.pause(store.runs[1])


def _resume(store: Store) -> None:
    store.resume(store.runs[1])


def _discharge(what: str) -> Callable[[Any], Any]:
    """Discharges an obligation of the first run, as soon as it has opened it."""
    return lambda world: world.discharge_named(what)


@workflow
async def spending(n: int) -> list[Any]:
    admit = Admit(usd=Decimal("0.75"), pool="purse")
    spent: list[Any] = []
    for i in range(n):
        spent.append(await add.options(admit=admit)(i, 1))
        saw(spent[-1])
        pgflow.authority.charge(usd=Decimal("0.1"), model="m1")
    at_once = [look_up.options(admit=admit)(str(i)) for i in range(n)]
    for found in await asyncio.gather(*at_once, return_exceptions=True):
        spent.append(str(found.left) if isinstance(found, BudgetExceeded) else found["size"])
    return spent


EXAMPLES = [
    Example(in_sequence, 3,
        [{"name": "ababab", "size": 6, "pair": (1, 2)}, 3, ("x", 1),
            {"shipped": (1, 2), 7: (1, 2)}]),
    Example(gathering, 3, [2, 3, 4]),
    Example(timing_out, 2),
    Example(waiting_for_signals, 2,
        events=(_send("paid", 5), _send("paid", 6), _send("news", "good"))),
    Example(having_children, 3, ["receipt 99", "receipt 100", "RunFailed"],
        children=(charged_child,)),
    Example(telling_of_children, 3, 6, children=(charged_child,)),
    Example(leaving_children, 3, children=(charged_child,)),
    Example(napping, 3, 4),
    Example(mapping, 5, [[10, 20, 40], [0, 3]]),
    Example(catching, 2, ["receipt 99", "402 too much", "no 3"]),
    Example(failing, 2, status="failed"),
    Example(generating, 2, [100, 101, 100, 100, 0]),
    Example(aborting, 2),
    Example(telling, 3, [4, True]),
    Example(labelling, 3, {"stage": "2", "was 1": "yes", "was 2": "yes"}),
    Example(continuing, 3, 6),
    Example(locking, 4, [1, 2, 3, 4, 5], children=(locked_child,)),
    Example(locking_round, 1, 4),
    Example(in_a_thread, 3, events=(_send("paid", 5),), children=(charged_child,)),
    Example(writing, 2, [1000, 1001, 1050, 1051, 2]),
    Example(writing_and_telling, 3, 3003),
    Example(passing_on, 4, [10, 11, 12, 13]),
    Example(owing, 4, "good",
        events=(_send("news", "good"), _discharge("thing 3"), _discharge("thing 2"))),
    Example(choosing, 3, 3, children=(charged_child,)),
    Example(cancelled_in_a_thread, 2, events=(_cancel,), status="cancelled"),
    Example(giving_up_writes, 3, events=(_send("paid", 1), _send("paid", 2), _send("paid", 3))),
    Example(pausing, 4, [10, 11, 12, 13], events=(_pause, _resume, _pause, _pause, _resume)),
    Example(enduring, 1, events=(_pause, _resume, _send("news", "at last"))),
    Example(being_cancelled, 2, events=(_cancel,), status="cancelled"),
    Example(spending, 3, [1, 2, 3, 1, 1, "0.5"]),
]  # fmt: skip
BY_NAME = {example.name: example for example in EXAMPLES}


def each_example(few: int = 0, many: int = 0) -> Any:
    """Run a test once for each example: with a few seeds, if it takes some, and in full with many."""
    import pytest  # other Pythons that replay what was recorded need not have it

    if not many:
        return pytest.mark.parametrize("example", [pytest.param(e, id=e.name) for e in EXAMPLES])
    some = [pytest.param(e, range(few), id=e.name) for e in EXAMPLES]
    every = [
        pytest.param(e, range(many), id=f"{e.name}-all", marks=pytest.mark.full) for e in EXAMPLES
    ]
    return pytest.mark.parametrize(("example", "seeds"), some + every)


def record(example: Example, seed: int) -> list[dict[str, Any]]:
    """Runs an example in a seeded order of events, and writes down all of its runs."""
    store, _ = example.start()
    Worker(store, seed=seed).finish_at_random()
    fields = (
        "run_id", "chain_id", "generation", "key", "root", "input", "created_us", "parent", "place",
        "status", "output", "error",
    )  # fmt: skip
    return [
        {
            **{name: getattr(run, name) for name in fields},
            "workflow": run.workflow.name,
            "units": run.units,
        }
        for run in store.runs.values()
    ]


def restore(history: dict[str, Any]) -> StoredRun:
    """A run as it was written down."""
    known = {w.name: w for e in EXAMPLES for w in (e.workflow, *e.children)}
    return StoredRun(
        **{
            **history,
            "workflow": known[history["workflow"]],
            "units": [Unit(*unit) for unit in history["units"]],
        }
    )


def obey() -> None:
    """Does what standard input asks for, in JSON: ``record`` these examples with so many ``seeds``,
    or ``replay`` these histories.
    """
    order = json.load(sys.stdin)
    if "record" in order:
        answer: Any = {
            f"{name} {seed}": record(BY_NAME[name], seed)
            for name in order["record"]
            for seed in range(order["seeds"])
        }
    else:
        found = {
            name: [str(d) for run in runs if (d := divergence(restore(run)))]
            for name, runs in order["replay"].items()
        }
        answer = {name: divergences for name, divergences in found.items() if divergences}
    json.dump(answer, sys.stdout)
