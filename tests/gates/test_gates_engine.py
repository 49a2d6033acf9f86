"""Gates in the engine: every order of answers, time and deaths comes to an end that replays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from enginekit import Worker, divergence, run_to_end
from enginestore import Store

import pgflow
from pgflow import step, workflow
from pgflow._model.kinds import Kind


@step
async def note(text: str) -> str:
    return text


@workflow
async def asking(n: int) -> list[str]:
    """Several gates at once, steps beside them, one that is given up."""

    async def one(name: str, on_timeout: Any) -> str:
        verdict = await pgflow.authority.gate(name, n, timeout=60, on_timeout=on_timeout)
        return await note(f"{name}: {type(verdict).__name__}")

    said = await asyncio.gather(one("a", "expire"), one("b", "reject"), one("c", "approve"))
    try:
        async with asyncio.timeout(30):
            await pgflow.authority.gate("d", n, timeout=3600)
        said.append("d")
    except TimeoutError:
        said.append(await note("given up"))
    return said


def answer(call: int, verdict: str, value: Any = None) -> Callable[[Store], None]:
    """An answer, which is refused if nothing is asked under the call."""
    return lambda store: store.answer_gate(store.runs[1], call, verdict, value) and None


EVENTS = (
    answer(1, "approve"), answer(2, "approve", 7), answer(3, "take_over", 8), answer(1, "reject"),
    answer(4, "approve"), answer(7, "approve"), answer(8, "approve"), answer(9, "approve"),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_run_at_gates_ends_in_any_order_of_answers_time_and_deaths(seed):
    store = Store(asking)
    store.coming = list(EVENTS)
    run = store.start(asking, 3)
    worker = Worker(store, seed=seed).finish_dying(0.03)
    assert run.place == "ended", worker.played
    assert divergence(run) is None
    answered = [unit.call for unit in run.units if unit.kind == Kind.GATE_ANSWERED]
    given_up = [unit.call for unit in run.units if unit.kind == Kind.CALL_CANCELLED]
    asked = [unit.call for unit in run.units if unit.kind == Kind.GATE_ASKED]
    assert len(asked) == len(set(asked)) == 4
    assert len(answered) == len(set(answered))
    assert set(asked) - set(answered) <= set(given_up)


def test_a_gate_is_asked_by_the_commit_with_which_the_run_parks():
    @workflow
    async def alone(n: int) -> str:
        return repr(await pgflow.authority.gate("a", n))

    store = Store(alone)
    run = store.start(alone, 1)
    Worker(store).finish()
    assert (run.place, run.kinds()) == ("parked", "g")
    assert store.answer_gate(run, 1, "approve")
    assert not store.answer_gate(run, 1, "reject")
    Worker(store).finish()
    assert (run.kinds(), run.result()) == ("gG", "Approved(value=1, by=(), edited=False)")
    assert divergence(run) is None


def test_other_code_at_the_gate_is_a_divergence():
    @workflow
    async def timed(n: int) -> str:
        return repr(await pgflow.authority.gate("a", n, timeout=60))

    @workflow(name="timed")
    async def other_request(n: int) -> str:
        return repr(await pgflow.authority.gate("a", n + 1, timeout=60))

    @workflow(name="timed")
    async def other_name(n: int) -> str:
        return repr(await pgflow.authority.gate("b", n, timeout=60))

    store, run = run_to_end(timed, 1)
    assert run.kinds() == "gG"
    assert divergence(run) is None
    for changed in (other_request, other_name):
        assert divergence(run, changed) is not None
    del store
