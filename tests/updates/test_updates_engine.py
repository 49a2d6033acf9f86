"""Updates in the engine: every order of them, of time and of deaths comes to an end that replays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from enginekit import Worker, divergence
from enginestore import Store
from exampleflows import write_row

import pgflow
from pgflow import Signal, step, workflow
from pgflow._model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

go = Signal("go", int)


@step
async def note(text: str) -> str:
    return text


@workflow
async def serving(n: int) -> list[str]:
    """Serves beside steps and signals, until it has enough."""
    said: list[str] = []

    async def beside() -> None:
        for _ in range(3):
            said.append(await note(f"signal {await go.wait()}"))

    signals = asyncio.create_task(beside())
    await pgflow.updates.serve(said, until=lambda: sum(s.startswith("update") for s in said) == n)
    await signals
    try:
        await pgflow.updates.serve(said, timeout=60)
    except TimeoutError:
        said.append("over")
    return said


@serving.update
async def slow(said: list[str], word: str) -> int:
    said.append(await note(f"update {word}"))
    await asyncio.sleep(1)
    return len(said)


@serving.update
def quick(said: list[str], word: str) -> int:
    if word == "fails":
        raise ValueError(word)
    said.append(f"update {word}")
    return len(said)


@quick.validator
def check(said: list[str], word: str) -> None:
    if word == "no":
        raise ValueError("no")


def ask(update_id: str, name: str, word: str) -> Callable[[Store], None]:
    return lambda store: store.ask(store.runs[1], update_id, name, word=word)


def tell(n: int) -> Callable[[Store], None]:
    return lambda store: store.send(store.runs[1], "go", n)


EVENTS = (
    ask("1", "slow", "a"), tell(1), ask("2", "quick", "no"), ask("3", "quick", "b"), tell(2),
    ask("3", "quick", "b"), ask("4", "quick", "fails"), ask("5", "nonsense", "x"), tell(3),
    ask("6", "slow", "c"),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_run_that_serves_ends_in_any_order_of_updates_time_and_deaths(seed):
    store = Store(serving)
    store.coming = list(EVENTS)
    run = store.start(serving, 3)
    worker = Worker(store, seed=seed).finish_dying(0.03)
    assert run.place == "ended", worker.played
    assert divergence(run) is None
    assert store.replies == {
        "1": "done", "2": "rejected", "3": "done", "4": "failed", "5": "rejected", "6": "done",
    }  # fmt: skip
    taken = [unit.payload for unit in run.units if unit.kind == Kind.UPDATE_TAKEN]
    assert len(taken) == len(set(taken)) == 4
    assert run.kinds().count(Kind.UPDATE_REPLIED) == 4


def test_receipt_and_answer_of_a_plain_handler_are_one_commit():
    @workflow
    async def one() -> int:
        told: list[int] = []
        await pgflow.updates.serve(told, until=lambda: bool(told))
        return told[0]

    @one.update
    def tell(told: list[int], n: int) -> int:
        told.append(n)
        return n

    store = Store(one)
    run = store.start(one)
    Worker(store).finish()
    assert (run.place, run.kinds()) == ("parked", "")
    store.ask(run, "1", "tell", n=7)
    Worker(store).finish()
    assert (run.kinds(), run.result(), store.replies) == ("hb", 7, {"1": "done"})
    assert divergence(run) is None


def test_a_transaction_of_a_handler_commits_behind_the_receipt_of_its_update():
    @workflow
    async def books() -> int:
        rows: list[int] = []
        await pgflow.updates.serve(rows, until=lambda: bool(rows))
        return rows[0]

    @books.update
    async def book(rows: list[int], n: int) -> int:
        rows.append(await write_row.aio(n))
        return rows[0]

    store = Store(books)
    run = store.start(books)
    store.ask(run, "1", "book", n=7)
    worker = Worker(store)
    worker.play("claim 1", "send 1", "commit 1", "ack 1")
    assert [body.call.name for body in worker.bodies] == ["write_row"]
    assert (run.kinds(), store.mail != []) == ("", True)
    assert "fence write_row 2" not in worker.offered()
    worker.play("send 1", "commit 1")
    assert (run.kinds(), store.mail) == ("h", [])
    worker.finish()
    assert (run.kinds(), store.replies) == ("hcb", {"1": "done"})
    assert divergence(run) is None


def test_other_code_at_an_update_is_a_divergence():
    def make(name: str) -> Any:
        @workflow(name="one")
        async def one() -> int:
            told: list[int] = []
            await pgflow.updates.serve(told, until=lambda: bool(told))
            return told[0]

        def tell(told: list[int], n: int) -> int:
            told.append(n)
            return n

        tell.__name__ = name
        one.update(tell)
        return one

    @workflow(name="one")
    async def sleeps() -> int:
        await pgflow.sleep(60)
        return 7

    store = Store(make("tell"))
    run = store.start(store.workflows["one"])
    store.ask(run, "1", "tell", n=7)
    Worker(store).finish()
    assert run.result() == 7
    assert divergence(run) is None
    assert divergence(run, sleeps) is not None
    assert divergence(run, make("other")) is not None
