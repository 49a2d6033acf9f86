"""Plans for taking back what nobody wrote an inverse for: reviewed, bounded, run once, and never
only said to be done.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from gatekit import gates
from records import SOON, count, eventually, launch, result_of, run_row, settle
from servers import HANG_SECONDS

import pgflow
from pgflow import RunFailed, step, transaction, workflow
from pgflow._flow.ledgers.undo_plan import propose as plan
from pgflow.decisions import Choice, decision
from pgflow.effects import Accepted, PlannedCall, UndoRequest, effect
from pgflow.errors import DefinitionError
from pgflow.testing import AsyncHarness

GIVE_BACK = PlannedCall("give_back")


class World:
    """World of a planner: its proposal, its requests, and every call that reached the outside, with
    its key.
    """

    plan: Any
    told: list[UndoRequest]
    acts: list[tuple[str, str]]
    trouble: Exception | None


@pytest.fixture(autouse=True)
def world() -> None:
    World.plan, World.told, World.acts, World.trouble = [], [], [], None


@pytest.fixture
def shop(conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    return furnish(conn)


def furnish(conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    conn.execute("drop schema if exists shop cascade")
    conn.execute(
        "create schema shop; create table shop.seats (id int primary key, free int); create table "
        "shop.money (id int, cents int)"
    )
    conn.execute("insert into shop.seats values (1, 9); insert into shop.money values (1, 100)")
    return conn


class Trouble(Exception):
    """Trouble that makes a run fail."""


def act(name: str) -> None:
    World.acts.append((name, pgflow.idempotency_key()))


@decision(retries=1)
async def propose(request: UndoRequest) -> Choice[Any]:
    World.told.append(request)
    if World.trouble is not None:
        raise World.trouble
    return Choice(World.plan, why="the inverse of what was done", model="m-1")


@decision()
async def choose() -> Choice[int]:
    return Choice(1, why="by the window", evidence=["map-3"])


@effect(risk="compensable")
async def take_seat(seat: int, name: str) -> str:
    act("take")
    return f"{name} in {seat}"


@effect(risk="compensable", dedup_window=timedelta(days=1))
async def return_seat(seat: int) -> str | Accepted:
    """Gives a seat back."""
    act("return")
    return Accepted("later") if seat == 99 else "returned"


@effect(risk="irreversible")
async def burn(seat: int) -> None:
    act("burn")


@step
async def tell(text: str) -> None:
    act(f"tell {text}")


@transaction
async def note(conn: psycopg.AsyncConnection[Any], cents: int) -> None:
    await conn.execute("update shop.money set cents = cents + %s", (cents,))


@transaction
async def give_back(conn: psycopg.AsyncConnection[Any]) -> None:
    await conn.execute("update shop.seats set free = free + 1 where id = 1")


@transaction
async def break_down(conn: psycopg.AsyncConnection[Any]) -> None:
    await conn.execute("update shop.seats set nothing = 1 where id = 1")


STEPS = [return_seat, burn, tell, note, give_back, break_down]


@workflow(raises=[Trouble])
async def outing() -> None:
    async with pgflow.effects.saga(goal="an evening at the theatre", planner=propose, steps=STEPS):
        await take_seat.because(await choose())(1, "ada")
        raise Trouble


def free(conn: psycopg.Connection[Any]) -> int:
    (found,) = conn.execute("select free from shop.seats where id = 1").fetchone() or (0,)
    return int(found)


async def end_failed(run: Any) -> None:
    with pytest.raises(RunFailed) as failed:
        await run.result(SOON)
    assert isinstance(failed.value.__cause__, Trouble)


async def stays_owed(
    aflow: AsyncHarness, conn: psycopg.Connection[Any], flow: Any = outing
) -> tuple[str, dict[str, Any]]:
    """A run whose effect is not taken back: stuck, with one open obligation; answers why, and the
    obligation.
    """
    run = await settle(aflow, flow)
    status, error = run_row(conn, run.key, "status, error")
    assert status == "stuck"
    ((name, key, detail),) = conn.execute(
        "select name, effect, detail from pgflow.obligations where state = 'unknown'"
    ).fetchall()
    assert name == "take_seat.compensate"
    assert detail["why"] in error["message"]
    closed = "select count(*) from pgflow.effects where key = %s and compensates is not null and status = 'confirmed'"
    assert conn.execute(closed, (run.key,)).fetchone() == (0,)
    await aflow.app.settle_effect(key, "confirmed", why="by hand", by="ada")
    if detail["why"].endswith("not yet done"):
        await aflow.app.confirm_effect("later")
    await end_failed(run)
    assert count(conn, "pgflow.obligations") == 0
    return detail["why"], detail


async def undo_by_plan(aflow: AsyncHarness) -> Any:
    """Has an outing fail that a plan of four calls takes back; the answer is what the planner was
    told.
    """
    World.plan = [
        PlannedCall("return_seat", {"seat": 1}),
        GIVE_BACK,
        PlannedCall("note", {"cents": 5}),
        PlannedCall("tell", {"text": "sorry"}),
    ]
    aflow.include(outing)
    await end_failed(await aflow.start(outing))
    (told,) = World.told
    return told


@pytest.mark.full
async def test_the_planner_knows_what_was_done_and_why(aflow, shop):
    told = await undo_by_plan(aflow)
    assert (told.effect, told.request, told.reply, told.risk) == (
        "take_seat",
        {"seat": 1, "name": "ada"},
        "ada in 1",
        "compensable",
    )
    assert told.because is not None
    assert (told.because.why, told.because.evidence, told.goal) == (
        "by the window",
        ["map-3"],
        "an evening at the theatre",
    )
    assert told.steps["return_seat"].endswith(": Gives a seat back.")
    assert told.steps["note"] == "note(cents: 'int') -> 'None'"
    assert told.key == World.acts[0][1]


@pytest.mark.full
async def test_a_plan_is_run_step_by_step(aflow, shop):
    await undo_by_plan(aflow)
    assert [name for name, _ in World.acts] == ["take", "return", "tell sorry"]
    (plan_key,) = shop.execute(
        "select decision from pgflow.decisions where name = 'propose'"
    ).fetchone() or ("",)
    assert [key for _, key in World.acts[1:]] == [f"{plan_key}/return_seat/1", f"{plan_key}/tell/4"]
    assert (
        free(shop),
        shop.execute("select cents from pgflow.effects, shop.money limit 1").fetchone(),
    ) == (10, (105,))


async def test_the_ledgers_tell_of_a_plan_that_was_run(aflow, shop):
    told = await undo_by_plan(aflow)
    assert shop.execute(
        "select name, status, compensates from pgflow.effects order by call"
    ).fetchall() == [
        ("take_seat", "confirmed", None),
        ("return_seat", "confirmed", None),
        ("take_seat.compensate", "confirmed", told.key),
    ]
    assert shop.execute(
        "select why, compensation from pgflow.provenance where name = 'take_seat'"
    ).fetchall() == [("by the window", "confirmed")]
    units = shop.execute(
        "select event, name from pgflow.timeline where name like 'pgflow.%' order by seq"
    ).fetchall()
    assert units == [("step_completed", "pgflow.review")]


@pytest.mark.full
def test_sync_sagas_have_planners_too(flow, shop):
    @workflow(raises=[Trouble])
    def sync_outing() -> None:
        with pgflow.sync.saga(goal="an evening", planner=propose, steps=STEPS):
            take_seat.sync(1, "ada")
            raise Trouble

    World.plan = [{"call": "return_seat", "arguments": {"seat": 1}}, GIVE_BACK]
    with pytest.raises(RunFailed):
        result_of(flow, sync_outing)
    assert (World.told[0].goal, World.told[0].because, free(shop)) == ("an evening", None, 10)
    assert [name for name, _ in World.acts] == ["take", "return"]


@pytest.mark.full
def test_in_a_sync_saga_what_is_refused_stays_owed(flow, shop):
    @workflow
    def sync_outing() -> None:
        with pgflow.sync.saga(planner=propose):
            take_seat.sync(1, "ada")
            raise Trouble

    World.trouble = ConnectionError("no model today")
    run = settle(flow, sync_outing)
    assert run.status() == "stuck"
    ((why,),) = shop.execute("select detail->>'why' from pgflow.obligations").fetchall()
    assert why == "the planner propose failed: no model today"


@pytest.mark.full
async def test_an_inverse_that_is_declared_is_preferred_and_a_block_inside_has_the_planner_of_the_one_around(
    aflow, shop
):
    @effect(risk="compensable")
    async def rent() -> str:
        return "car"

    @rent.compensate
    async def take_back(_car: str) -> None:
        act("give back")

    @workflow(raises=[Trouble])
    async def nested() -> None:
        async with pgflow.effects.saga(goal="outer", planner=propose, steps=[give_back]):
            await rent()
            async with pgflow.effects.saga(goal="inner", planner=propose, steps=[give_back]):
                await take_seat(1, "ada")
            async with pgflow.effects.saga():
                await take_seat(2, "bob")
            raise Trouble

    World.plan = [GIVE_BACK]
    aflow.include(nested)
    await end_failed(await aflow.start(nested))
    found = [(told.goal, told.request["seat"], list(told.steps)) for told in World.told]
    assert found == [("outer", 2, ["give_back"]), ("inner", 1, ["give_back"])]
    assert World.acts[-1][0] == "give back"


@pytest.mark.full
@pytest.mark.parametrize("where", ["review", "return_seat", "after the transaction"])
async def test_a_crash_goes_on_where_it_was_and_asks_the_planner_no_second_time(aflow, shop, where):
    World.plan = [
        PlannedCall("return_seat", {"seat": 1}),
        GIVE_BACK,
        PlannedCall("tell", {"text": "sorry"}),
    ]
    entered = asyncio.Event()

    async def stop_once(here: str) -> None:
        if here == where and not entered.is_set():
            entered.set()
            await asyncio.sleep(60)

    async def review(*args: Any) -> Any:
        await stop_once("review")
        return await plan.REVIEW.fn(*args)

    async def slow_give_back(conn: psycopg.AsyncConnection[Any]) -> None:
        await give_back.fn(conn)
        await stop_once("after the transaction")

    async def slow_return(seat: int) -> str:
        act("return")
        await stop_once("return_seat")
        return "returned"

    aflow.include(outing)
    for real, fake in (
        (plan.REVIEW, review),
        (give_back, slow_give_back),
        (return_seat, slow_return),
    ):
        aflow.replace(real, fake)
    run = await aflow.start(outing)
    await asyncio.wait_for(entered.wait(), HANG_SECONDS)
    await eventually(
        lambda: count(shop, "pgflow.decisions", "name = 'propose'") == 1, "the choice is recorded"
    )
    await aflow.crash()
    World.plan = [PlannedCall("burn", {"seat": 1})]
    await aflow.until_idle()
    await end_failed(run)
    assert (len(World.told), free(shop)) == (1, 10)
    assert len(set(World.acts)) == 3
    assert World.acts[-1][0] == "tell sorry"


REFUSED = [
    ([PlannedCall("tell", {"text": "x"}), PlannedCall("burn", {"seat": 1})],
        "needs a gate: step 2, burn: burn is irreversible"),
    ([PlannedCall("os.system", {"command": "rm"})],
        "needs a gate: step 1, os.system: no step that may be called here is named 'os.system'"),
    ([PlannedCall("take_seat", {"seat": 1, "name": "eve"})],
        "needs a gate: step 1, take_seat: no step that may be called"),
    ([PlannedCall("return_seat", {"seat": "one"})],
        "what return_seat would be called with does not fit"),
    ([PlannedCall("return_seat", {"seat": 1, "also": 2})],
        "what return_seat would be called with does not fit"),
    ([PlannedCall("return_seat")], "what return_seat would be called with does not fit"),
    ([PlannedCall("note", {"cents": 1, "conn": "x"})],
        "what note would be called with does not fit"),
]  # fmt: skip


@pytest.mark.full
async def test_a_plan_with_one_step_that_is_refused_is_refused_as_a_whole(aflow, shop):
    for proposed, why in REFUSED:
        World.plan, World.acts = proposed, []
        said, detail = await stays_owed(aflow, shop)
        assert why in said
        assert detail["plan"].endswith("/propose/1")
        assert [s["call"] for s in detail["steps"]] == [step.call for step in proposed]
        found = [bool(s.get("refused")) for s in detail["steps"]]
        assert found == [False] * (len(proposed) - 1) + [True]
        assert ([name for name, _ in World.acts], free(shop)) == (["take"], 9)


RULES = [
    ('{"name": "return_seat", "approvers": ["ann"]}', ["policy/return_seat"]),
    ('{"name": "give_back", "approvers": ["ann"]}', ["policy/give_back"]),
    (
        '{"risk": "compensable", "predicate": "$.seat == 7", "approvers": ["ann"]}',
        ["policy/return_seat"],
    ),
    (
        '{"author": "model", "approvers": ["ann"]}',
        ["policy/give_back", "policy/return_seat", "policy/tell"],
    ),
]


async def at_gate_of_plan(aflow: AsyncHarness, shop: psycopg.Connection[Any], rule: str) -> Any:
    """A run that asks for leave to take an effect back as a model has planned."""
    shop.execute("select pgflow.set_policy(%s::jsonb, 'careful')", (f"[{rule}]",))
    World.plan = [
        GIVE_BACK,
        PlannedCall("return_seat", {"seat": 7}),
        PlannedCall("tell", {"text": "sorry"}),
    ]
    aflow.include(outing, outing_sync)
    return await settle(aflow, outing)


@pytest.mark.full
@pytest.mark.parametrize(("rule", "names"), RULES)
async def test_what_the_policy_wants_a_gate_for_is_asked_before_anything_is_taken_back(
    rule, names, aflow, shop
):
    if "model" in rule:  # the effect itself rests on no model
        assert len(names) == 3
    run = await at_gate_of_plan(aflow, shop, rule)
    for name in names:
        found = gates(shop, "name, why, approvers")
        assert found == [(name, "the inverse of what was done", ["ann"])]
        assert ([name for name, _ in World.acts], free(shop)) == (["take"], 9)
        await aflow.crash()
        await aflow.answer(name, pgflow.authority.Approve(), by="ann")
        await aflow.until_idle()
    await end_failed(run)
    assert ([name for name, _ in World.acts], free(shop)) == (["take", "return", "tell sorry"], 10)
    assert count(shop, "pgflow.obligations") == 0


@workflow(raises=[Trouble])
def outing_sync() -> None:
    with pgflow.sync.saga(goal="an evening at the theatre", planner=propose, steps=STEPS):
        take_seat.sync(1, "ada")
        raise Trouble


@pytest.mark.full
def test_so_it_is_in_a_sync_workflow(flow, shop):
    shop.execute("""select pgflow.set_policy('[{"name": "return_seat"}]', 'careful')""")
    World.plan = [GIVE_BACK, PlannedCall("return_seat", {"seat": 7})]
    run = settle(flow, outing_sync)
    assert (gates(shop, "name"), free(shop)) == (["policy/return_seat"], 9)
    flow.answer("policy/return_seat", pgflow.authority.Approve())
    with pytest.raises(RunFailed):
        run.result(SOON)
    assert ([name for name, _ in World.acts], free(shop)) == (["take", "return"], 10)


@pytest.mark.full
async def test_a_plan_without_leave_is_not_run_and_a_person_takes_the_effect_back(aflow, shop):
    run = await at_gate_of_plan(aflow, shop, '{"name": "return_seat", "timeout": 60}')
    await aflow.answer("policy/return_seat", pgflow.authority.Reject("not yet"), by="ann")
    await aflow.until_idle()
    ((key, detail),) = shop.execute(
        "select effect, detail from pgflow.obligations where state = 'unknown'"
    ).fetchall()
    assert "step 2 of the plan, return_seat, was not approved" in detail["why"]
    assert "ann rejected it: not yet" in detail["why"]
    assert ([name for name, _ in World.acts], free(shop)) == (["take"], 9)
    await aflow.app.settle_effect(key, "confirmed", why="by hand", by="ada")
    await end_failed(run)


@pytest.mark.full
async def test_an_edit_of_a_step_is_what_is_run(aflow, shop):
    run = await at_gate_of_plan(aflow, shop, '{"author": "model"}')
    await aflow.answer("policy/give_back", pgflow.authority.Approve(), by="ann")
    await aflow.until_idle()
    (gate,) = gates(shop, "gate")
    with pytest.raises(pgflow.InvalidArgument, match="seat is missing"):
        await aflow.app.answer(gate, pgflow.authority.Approve(edit={"chair": 8}), by="ann")
    await aflow.answer("policy/return_seat", pgflow.authority.Approve(edit={"seat": 8}), by="ann")
    await aflow.answer("policy/tell", pgflow.authority.Approve(), by="ann")
    await end_failed(run)
    requests = "select request from pgflow.effects where name = 'return_seat'"
    assert shop.execute(requests).fetchall() == [({"seat": 8},)]
    assert World.acts[-1][0] == "tell sorry"


@pytest.mark.full
async def test_a_step_that_a_person_took_over_is_not_run(aflow, shop):
    run = await at_gate_of_plan(aflow, shop, '{"author": "model"}')
    for name in ("policy/give_back", "policy/return_seat", "policy/tell"):
        await aflow.answer(name, pgflow.authority.TakeOver("by hand"), by="ann")
        await aflow.until_idle()
    await end_failed(run)
    assert ([name for name, _ in World.acts], free(shop)) == (["take"], 9)
    told = "select status, said_by from pgflow.effects where name = 'return_seat'"
    assert shop.execute(told).fetchall() == [("confirmed", "ann")]
    assert count(shop, "pgflow.obligations") == 0


NONSENSE = [
    ([], "empty plan"), (None, "empty plan"), ("undo it", "invalid plan"), (7, "invalid plan"), ({"call": "tell"}, "invalid plan"),
    ([["tell"]], "invalid plan: step 1"), ([{"call": 1}], "invalid plan: step 1"),
    ([{"call": "tell", "arguments": "x"}], "invalid plan: step 1"), ([{"call": "tell", "eval": "x"}], "invalid plan: step 1"), ([{"sql": "select 1"}], "invalid plan: step 1"),
    ([GIVE_BACK] * 51, "at most 50 steps"),
]  # fmt: skip


@pytest.mark.parametrize(("proposed", "why"), NONSENSE)
def test_nonsense_is_no_plan(proposed, why):
    with pytest.raises(plan.PlanRefused, match=why):
        plan.read_plan(proposed)


@pytest.mark.full
async def test_a_planner_that_fails_leaves_the_debt_open(aflow, shop):
    for proposed, trouble, why in (
        ([], None, "the planner returned an empty plan"),
        ("cancel the seat", None, "the planner returned an invalid plan"),
        ([], ValueError("overloaded"), "the planner propose failed: overloaded"),
        (no_choice, None, "the planner propose failed: decision propose must return"),
    ):
        World.plan, World.trouble, World.acts = proposed, trouble, []
        if proposed is no_choice:
            aflow.replace(propose, no_choice)
        said, detail = await stays_owed(aflow, shop)
        assert said.startswith(why)
        assert detail["steps"] == []
        assert [name for name, _ in World.acts] == ["take"]


async def no_choice(_request: UndoRequest) -> Any:
    return []


@pytest.mark.full
async def test_a_step_that_is_not_done_leaves_the_debt_open_and_says_what_was(aflow, shop):
    for n, second, why in (
        (
            1,
            {"call": "break_down", "arguments": {}},
            "step 2 of the plan, break_down, failed: psycopg.errors.UndefinedColumn: column",
        ),
        (
            2,
            {"call": "return_seat", "arguments": {"seat": 99}},
            "step 2 of the plan, return_seat, was accepted, which is not yet done",
        ),
    ):
        World.plan = [GIVE_BACK, second, {"call": "tell", "arguments": {"text": "sorry"}}]
        said, detail = await stays_owed(aflow, shop)
        assert said.startswith(why)
        assert ([s.get("done") for s in detail["steps"]], free(shop)) == ([True, None, None], 9 + n)
    assert "tell sorry" not in [name for name, _ in World.acts]


def test_what_cannot_be_a_planner_or_a_step_of_a_plan_is_refused_where_it_is_said():
    @step
    async def rest(*texts: str) -> None: ...

    @step(name="tell")
    async def other() -> None: ...

    for planner, steps, why in (
        (tell, [], "must be a @decision"),
        (propose, [choose], "a plan may call"),
        (propose, [tell, other], "are named 'tell'"),
        (propose, [rest], "cannot be passed by its name"),
        (propose, [print], "a plan may call"),
    ):
        with pytest.raises(DefinitionError, match=why):
            plan.planning_of(planner, None, steps)  # type: ignore[arg-type]


@pytest.mark.full
async def test_a_planner_is_not_told_the_defaults_of_steps(aflow, shop):
    @step
    async def send(text: str, token: str = "s3cret", *, n: int = 7) -> None: ...

    @workflow(raises=[Trouble])
    async def sending() -> None:
        async with pgflow.effects.saga(planner=propose, steps=[send, give_back]):
            await take_seat(1, "ada")
            raise Trouble

    World.plan = [GIVE_BACK]
    aflow.include(sending)
    await end_failed(await aflow.start(sending))
    found = World.told[0].steps["send"]
    assert found == "send(text: 'str', token: 'str' = ..., *, n: 'int' = ...) -> 'None'"


def test_the_policy_judges_acts_in_their_order(shop):
    shop.execute(
        """select pgflow.set_policy('[{"name": "b", "amount": "$.cents", "above": 5}]', 'careful')"""
    )
    acts = '[["a", "reversible", {}], ["b", "reversible", {"cents": 9}], ["b", "compensable", {"cents": 1}]]'
    assert shop.execute(
        "select pgflow.judge_plan(%s::jsonb), pgflow.judge_plan('[]')", (acts,)
    ).fetchone() == ([None, {"version": 1, "terms": None}, None], [])


@pytest.mark.full
@pytest.mark.parametrize("effects", ["compensate", "reuse"])
async def test_a_plan_takes_back_again_what_is_done_again_and_is_not_taken_back_itself(
    aflow, shop, effects
):
    World.plan = [PlannedCall("return_seat", {"seat": 1}), GIVE_BACK]
    run = await launch(aflow, outing.options(key="k"))
    await end_failed(run)
    assert free(shop) == 10
    await aflow.app.restart("k", effects=effects)
    await end_failed(run)
    assert [name for name, _ in World.acts] == ["take", "return"] * 2
    assert len({key for _, key in World.acts}) == 4
    assert free(shop) == 11
    assert shop.execute("select * from pgflow.check()").fetchall() == []
