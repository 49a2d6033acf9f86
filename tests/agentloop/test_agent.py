"""The loop of an agent, in both colours: its turns, its generations, its judge, and what is taken
back. `examples/agents/loop.py` is one of it, which `python -m tests.loops` harms at each point.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from records import SOON, launch, recover, result_of, run_row, settle
from servers import HANG_SECONDS

import pgflow
from pgflow import RunFailed, agent, read, step, workflow
from pgflow.agent import Outcome
from pgflow.authority import Approve, Reject, TakeOver
from pgflow.decisions import Choice, decision
from pgflow.effects import effect


@dataclass(frozen=True)
class Goal:
    """A sum to reach, and how the judges are to be asked."""

    total: int
    judge: str = "oracle"
    at_most: int = 10**9
    turns: int = 100


@dataclass(frozen=True)
class State:
    total: int = 0
    said: tuple[str, ...] = ()
    declined: int = 0
    summaries: int = 0


class World:
    """The outside: every call that reached it, with its key."""

    calls: list[tuple[str, int]]
    keys: list[str]
    model: int
    stale: set[int]
    refused: set[int]
    sure: float


@pytest.fixture(autouse=True)
def world() -> None:
    World.calls, World.keys, World.model, World.sure = [], [], 0, 0.5
    World.stale, World.refused = set(), set()


class TooMuch(Exception):
    """The world refuses a sum."""


@read
def look(goal: Goal, state: State) -> int:
    return goal.total - state.total


@decision()
def decide(goal: Goal, state: State, missing: int) -> Choice[int | None]:
    World.model += 1
    return Choice(None if missing <= 0 else 1, why=f"{missing} are missing", model="small-1")


@effect(risk="compensable", raises=[TooMuch])
def add(n: int) -> str:
    if World.model in World.refused:
        raise TooMuch
    World.calls.append(("add", n))
    World.keys.append(pgflow.idempotency_key())
    return f"added {n}"


@add.precondition
def _(n: int) -> bool:
    return World.model not in World.stale


@add.compensate
def subtract(said: str, n: int) -> None:
    assert said == f"added {n}"
    World.calls.append(("subtract", n))


@step
def summarise(goal: Goal, state: State) -> State:
    return replace(state, said=(f"{len(state.said)} said",), summaries=state.summaries + 1)


@decision()
def grade(goal: Goal, state: State) -> Choice[float]:
    return Choice(World.sure, why="it looks right")


def fold(state: State, n: int, said: str) -> State:
    pgflow.set_state(total=state.total + n)
    return replace(state, total=state.total + n, said=(*state.said, said))


def decline(state: State, n: int, verdict: pgflow.authority.Verdict[int]) -> State:
    return replace(state, declined=state.declined + 1, total=state.total + n)


def known(goal: Goal, state: State) -> bool | None:
    return state.total <= goal.at_most if goal.judge == "oracle" else None


@workflow
async def adds(goal: Goal, state: State | None = None) -> Outcome[State]:
    async def oracle(goal: Goal, state: State) -> bool | None:
        return known(goal, state)

    async def review(goal: Goal, state: State) -> pgflow.authority.Verdict[Goal]:
        return await pgflow.authority.gate("review", goal, timeout=timedelta(hours=1))

    return await agent.loop(
        goal,
        state or State(),
        observe=look.aio,
        decide=decide.aio,
        act=add.aio,
        fold=fold,
        decline=decline,
        oracle=oracle,
        grade=None if goal.judge == "person" else grade.aio,
        review=None if goal.judge == "model" else review,
        ends=[TooMuch],
        turns=goal.turns,
        compact=summarise.aio,
    )


@workflow
def adds_sync(goal: Goal, state: State | None = None) -> Outcome[State]:
    def review(goal: Goal, state: State) -> pgflow.authority.Verdict[Goal]:
        return pgflow.sync.gate("review", goal, timeout=timedelta(hours=1))

    return agent.sync.loop(
        goal,
        state or State(),
        observe=look,
        decide=decide,
        act=add,
        fold=fold,
        decline=decline,
        oracle=known,
        grade=None if goal.judge == "person" else grade,
        review=None if goal.judge == "model" else review,
        ends=[TooMuch],
        turns=goal.turns,
        compact=summarise,
    )


BOTH = pytest.mark.parametrize("made", [adds, adds_sync])


def added(n: int) -> list[tuple[str, int]]:
    return [("add", 1)] * n


@pytest.mark.full
@BOTH
def test_it_goes_around_until_the_decision_is_that_nothing_is_left(flow, conn, made):
    run = launch(flow, made, Goal(3))
    outcome = run.result(SOON)
    assert (outcome.how, outcome.state.total, outcome.why) == ("good", 3, "")
    assert World.calls == added(3)
    assert run.state() == {"total": 3}
    assert World.model == 4
    ids = [d for (d,) in conn.execute("select decision from pgflow.decisions order by call")]
    found = [key.startswith(f"{d}/add") for key, d in zip(World.keys, ids, strict=False)]
    assert found == [True] * 3


@pytest.mark.full
@BOTH
def test_what_was_decided_and_done_before_a_crash_is_not_again(flow, made):
    run = settle(flow, made, Goal(2, judge="person"))
    for _ in range(3):
        recover(flow)
    flow.answer("review")
    assert run.result(SOON).how == "good"
    assert (World.model, World.calls) == (3, added(2))


@pytest.mark.full
@BOTH
def test_what_is_stale_is_looked_at_and_decided_again(flow, made):
    World.stale = {1, 2}
    outcome = result_of(flow, made, Goal(1))
    assert (outcome.how, World.calls, World.model) == ("good", added(1), 4)


async def test_an_act_of_two_effects_whose_second_is_stale_leaves_nothing_of_the_first(aflow):
    @effect(risk="compensable")
    async def hold(n: int) -> None:
        World.calls.append(("hold", n))

    @hold.compensate
    async def release(_: None, n: int) -> None:
        World.calls.append(("release", n))

    async def act(n: int) -> str:
        await hold(n)
        return await add.aio(n)

    @workflow
    async def both(goal: Goal, state: State) -> Outcome[State]:
        return await agent.loop(
            goal, state, observe=look.aio, decide=decide.aio, act=act, fold=fold
        )

    World.stale = {1}
    outcome = await result_of(aflow, both, Goal(1), State())
    assert outcome.how == "good"
    assert World.calls == [("hold", 1), ("release", 1), ("hold", 1), ("add", 1)]


@BOTH
def test_after_its_turns_it_goes_on_as_a_new_generation_with_a_shorter_state(flow, conn, made):
    outcome = result_of(flow, made.options(key="k"), Goal(5, turns=2))
    assert (outcome.how, outcome.state.total) == ("good", 5)
    assert outcome.state.summaries == 2
    found = outcome.state.said
    assert found == ("3 said", "added 1"), "a summary of a summary, and what came since"
    assert run_row(conn, "k", "generation, status") == (3, "completed")
    assert World.calls == added(5)
    assert len(set(World.keys)) == 5


@pytest.mark.full
@BOTH
def test_a_goal_that_is_missed_takes_back_what_all_generations_did(flow, conn, made):
    outcome = result_of(flow, made.options(key="k"), Goal(5, at_most=4, turns=2))
    assert (outcome.how, outcome.why) == ("compensated", "NotGood")
    assert World.calls == added(5) + [("subtract", 1)] * 5
    assert run_row(conn, "k", "generation, status") == (3, "completed")
    undone = """select count(*) from pgflow.effects e where e.compensates is null
      and (select count(*) from pgflow.effects c where c.compensates = e.effect and c.status = 'confirmed') = 1"""
    assert conn.execute(undone).fetchone() == (5,)


@pytest.mark.full
async def test_a_crash_while_earlier_generations_are_taken_back_takes_each_back_once(aflow):
    entered, tries = asyncio.Event(), 0

    @effect(risk="compensable")
    async def put(n: int) -> str:
        return f"put {n}"

    @put.compensate
    async def take(_: str, n: int) -> None:
        nonlocal tries
        tries += 1
        World.calls.append(("take", n))
        if tries % 2:
            entered.set()
            await asyncio.sleep(60)

    async def nobody(goal: Goal, state: State) -> bool | None:
        return False

    @workflow
    async def puts(goal: Goal, state: State | None = None) -> Outcome[State]:
        return await agent.loop(
            goal,
            state or State(),
            observe=look.aio,
            decide=decide.aio,
            act=put,
            fold=fold,
            oracle=nobody,
            turns=1,
        )

    run = await launch(aflow, puts, Goal(3))
    for _ in range(3):
        working = asyncio.create_task(aflow.until_idle())
        await asyncio.wait_for(entered.wait(), HANG_SECONDS)
        entered.clear()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await aflow.crash()
    await aflow.until_idle()
    assert (await run.result(SOON)).how == "compensated"
    assert tries == 6, "each was tried again once, under its key"


async def test_a_run_that_has_taken_back_its_earlier_generations_does_not_continue(aflow):
    @workflow
    async def again(goal: Goal, state: State | None = None) -> str:
        outcome = await agent.loop(
            goal,
            state or State(),
            observe=look.aio,
            decide=decide.aio,
            act=add.aio,
            fold=fold,
            ends=[TooMuch],
            turns=1,
        )
        pgflow.continue_as_new(Goal(1), outcome.state)

    World.refused = {2}
    with pytest.raises(RunFailed, match="let the run end"):
        await result_of(aflow, again, Goal(2))
    assert World.calls == [("add", 1), ("subtract", 1)]


async def test_a_state_that_has_grown_long_is_compacted_before_the_turns_are_over(aflow, conn):
    @workflow
    async def talks(goal: Goal, state: State) -> Outcome[State]:
        return await agent.loop(
            goal,
            state,
            observe=look.aio,
            decide=decide.aio,
            act=add.aio,
            fold=fold,
            is_long=lambda state: len(state.said) > 2,
            compact=summarise.aio,
        )

    outcome = await result_of(aflow, talks.options(key="k"), Goal(5), State())
    assert (outcome.how, outcome.state.said) == ("good", ("3 said",))
    assert run_row(conn, "k", "generation, status") == (3, "completed")


async def test_a_workflow_that_could_not_continue_is_refused_before_anything_is_done(aflow):
    @workflow
    async def short(goal: Goal) -> Outcome[State]:
        return await agent.loop(
            goal, State(), observe=look.aio, decide=decide.aio, act=add.aio, fold=fold
        )

    @workflow
    async def idle(goal: Goal, state: State) -> Outcome[State]:
        return await agent.loop(
            goal, state, observe=look.aio, decide=decide.aio, act=add.aio, fold=fold, turns=0
        )

    aflow.include(short, idle)
    with pytest.raises(RunFailed, match="it must take both, in this order"):
        await (await aflow.start(short, Goal(1))).result(SOON)
    with pytest.raises(RunFailed, match="turns of an agent's generation must be 1 or more"):
        await (await aflow.start(idle, Goal(1), State())).result(SOON)
    assert World.model == 0


@BOTH
def test_a_refusal_that_it_names_ends_it_and_everything_is_taken_back(flow, made):
    World.refused = {2}
    outcome = result_of(flow, made, Goal(3))
    assert (outcome.how, outcome.why, outcome.state.total) == ("compensated", "TooMuch", 1)
    assert World.calls == [("add", 1), ("subtract", 1)]


async def test_any_other_error_fails_the_run_and_takes_back_the_same(aflow):
    def breaks(state: State, n: int, said: str) -> State:
        if state.total == 1:
            raise ValueError("no such state")
        return fold(state, n, said)

    @workflow
    async def broken(goal: Goal, state: State) -> Outcome[State]:
        return await agent.loop(
            goal, state, observe=look.aio, decide=decide.aio, act=add.aio, fold=breaks
        )

    with pytest.raises(RunFailed, match="no such state"):
        await result_of(aflow, broken, Goal(3), State())
    assert World.calls == [("add", 1)] * 2 + [("subtract", 1)] * 2


@BOTH
@pytest.mark.parametrize(
    ("judge", "sure", "answer", "how"),
    [
        ("model", 0.8, None, "good"),
        ("model", 0.79, None, "needs review"),
        ("either", 0.79, Approve(), "good"),
        ("either", 0.79, TakeOver("mine"), "good"),
        ("either", 0.79, Reject("no"), "compensated"),
        ("either", 0.79, "nobody", "needs review"),
        ("person", 0, Reject("no"), "compensated"),
    ],
)
def test_a_model_that_is_not_sure_leaves_it_to_a_person_and_a_guess_undoes_nothing(
    flow, made, judge, sure, answer, how
):
    World.sure = sure
    run = settle(flow, made, Goal(1, judge=judge))
    if answer == "nobody":
        flow.skip(timedelta(hours=2))
    elif answer is not None:
        flow.answer("review", answer)
    assert run.result(SOON).how == how
    assert (("subtract", 1) in World.calls) == (how == "compensated")


@pytest.mark.full
async def test_a_no_at_a_gate_of_the_policy_is_declined_as_one_at_its_own(aflow, conn):
    conn.execute("""select pgflow.set_policy('[{"name": "add"}]', 'limits')""")
    run = await settle(aflow, adds, Goal(2))
    await aflow.answer("policy/add", Reject("not now"))
    await aflow.until_idle()
    await aflow.answer("policy/add")
    outcome = await run.result(SOON)
    assert (outcome.how, outcome.state.declined, World.calls) == ("good", 1, added(1))


@pytest.mark.full
async def test_without_a_decline_a_no_ends_it(aflow):
    async def gate(n: int) -> pgflow.authority.Verdict[int]:
        return await pgflow.authority.gate("add", n)

    @workflow
    async def asks(goal: Goal, state: State) -> Outcome[State]:
        return await agent.loop(
            goal, state, observe=look.aio, decide=decide.aio, gate=gate, act=add.aio, fold=fold
        )

    run = await settle(aflow, asks, Goal(2), State())
    await aflow.answer("add", Approve(edit=2))
    outcome = await run.result(SOON)
    assert (outcome.how, World.calls) == ("good", [("add", 2)]), "the edit is what is done"
    run = await settle(aflow, asks, Goal(2), State())
    await aflow.answer("add")
    await aflow.until_idle()
    await aflow.answer("add", Reject("enough"))
    outcome = await run.result(SOON)
    assert (outcome.how, outcome.why) == ("compensated", "Declined")
    assert World.calls[1:] == [("add", 1), ("subtract", 1)]
