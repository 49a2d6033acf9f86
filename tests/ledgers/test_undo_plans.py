"""Plans for taking back what nobody wrote an inverse for: reviewed, bounded, run once, and never
only said to be done.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import SOON, count, eventually, run_row
from servers import HANG_SECONDS

import pgflow
from pgflow import RunFailed, step, transaction, workflow
from pgflow._db.calls import plan as calls
from pgflow._flow.ledgers.undo_plan import propose as plan
from pgflow._flow.ledgers.undo_plan import statements as lineage
from pgflow._flow.ledgers.undo_plan.statements import (
    Table,
    UnreadableSql,
    read_statement,
    table_named,
)
from pgflow.decisions import Choice, decision
from pgflow.effects import Accepted, PlannedCall, PlannedSql, UndoRequest, effect
from pgflow.errors import DefinitionError

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness, Harness

GIVE_BACK = "update shop.seats set free = free + 1 where id = 1"


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


@effect(risk="compensable", writes=["shop.seats"])
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


STEPS = [return_seat, burn, tell, note]


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
    aflow.include(flow)
    run = await aflow.start(flow)
    await aflow.until_idle()
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


# ---------------------------------------------------------------- a plan that is run


async def undo_by_plan(aflow: AsyncHarness) -> Any:
    """Has an outing fail that a plan of four calls takes back; the answer is what the planner was
    told.
    """
    World.plan = [
        PlannedCall("return_seat", {"seat": 1}),
        PlannedSql(GIVE_BACK),
        PlannedCall("note", {"cents": 5}),
        PlannedCall("tell", {"text": "sorry"}),
    ]
    aflow.include(outing)
    await end_failed(await aflow.start(outing))
    (told,) = World.told
    return told


@pytest.mark.full
async def test_the_planner_knows_what_was_done_and_why(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
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
    assert told.tables == ("shop.seats",)
    assert told.key == World.acts[0][1]


@pytest.mark.full
async def test_a_plan_is_run_step_by_step(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
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


async def test_the_ledgers_tell_of_a_plan_that_was_run(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
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
    assert units == [("step_completed", "pgflow.review"), ("step_completed", "pgflow.sql")]


@pytest.mark.full
def test_sync_sagas_have_planners_too(flow: Harness, shop: psycopg.Connection[Any]) -> None:
    @workflow(raises=[Trouble])
    def sync_outing() -> None:
        with pgflow.sync.saga(goal="an evening", planner=propose, steps=STEPS):
            take_seat.sync(1, "ada")
            raise Trouble

    World.plan = [{"call": "return_seat", "arguments": {"seat": 1}}, {"sql": GIVE_BACK}]
    flow.include(sync_outing)
    with pytest.raises(RunFailed):
        flow.start(sync_outing).result(SOON)
    assert (World.told[0].goal, World.told[0].because, free(shop)) == ("an evening", None, 10)
    assert [name for name, _ in World.acts] == ["take", "return"]


@pytest.mark.full
def test_in_a_sync_saga_what_is_refused_stays_owed(
    flow: Harness, shop: psycopg.Connection[Any]
) -> None:
    @workflow
    def sync_outing() -> None:
        with pgflow.sync.saga(planner=propose):
            take_seat.sync(1, "ada")
            raise Trouble

    World.trouble = ConnectionError("no model today")
    flow.include(sync_outing)
    run = flow.start(sync_outing)
    flow.until_idle()
    assert run.status() == "stuck"
    ((why,),) = shop.execute("select detail->>'why' from pgflow.obligations").fetchall()
    assert why == "the planner propose failed: no model today"


@pytest.mark.full
async def test_an_inverse_that_is_declared_is_preferred_and_a_block_inside_has_the_planner_of_the_one_around(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    @effect(risk="compensable")
    async def rent() -> str:
        return "car"

    @rent.compensate
    async def give_back(_car: str) -> None:
        act("give back")

    @workflow(raises=[Trouble])
    async def nested() -> None:
        async with pgflow.effects.saga(goal="outer", planner=propose, steps=[tell]):
            await rent()
            async with pgflow.effects.saga(goal="inner", planner=propose):
                await take_seat(1, "ada")
            async with pgflow.effects.saga():
                await take_seat(2, "bob")
            raise Trouble

    World.plan = [{"sql": GIVE_BACK}]
    aflow.include(nested)
    await end_failed(await aflow.start(nested))
    assert [(told.goal, told.request["seat"], list(told.steps)) for told in World.told] == [
        ("outer", 2, ["tell"]),
        ("inner", 1, []),
    ]
    assert World.acts[-1][0] == "give back"


# ---------------------------------------------------------------- crashes


@pytest.mark.full
@pytest.mark.parametrize("where", ["review", "return_seat", "after the statement"])
async def test_a_crash_goes_on_where_it_was_and_asks_the_planner_no_second_time(
    aflow: AsyncHarness, shop: psycopg.Connection[Any], where: str
) -> None:
    World.plan = [
        PlannedCall("return_seat", {"seat": 1}),
        PlannedSql(GIVE_BACK),
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

    async def run_sql(*args: Any) -> int:
        done = await plan.RUN_SQL.fn(*args)
        await stop_once("after the statement")
        return int(done)

    async def slow_return(seat: int) -> str:
        act("return")
        await stop_once("return_seat")
        return "returned"

    aflow.include(outing)
    for real, fake in ((plan.REVIEW, review), (plan.RUN_SQL, run_sql), (return_seat, slow_return)):
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


# ---------------------------------------------------------------- plans that are refused


REFUSED = [
    (
        [PlannedCall("tell", {"text": "x"}), PlannedCall("burn", {"seat": 1})],
        "needs a gate: step 2, burn: burn is irreversible",
    ),
    (
        [PlannedCall("os.system", {"command": "rm"})],
        "needs a gate: step 1, os.system: no step that may be called here is named 'os.system'",
    ),
    (
        [PlannedCall("take_seat", {"seat": 1, "name": "eve"})],
        "needs a gate: step 1, take_seat: no step that may be called",
    ),
    (
        [PlannedCall("return_seat", {"seat": "one"})],
        "what return_seat would be called with does not fit",
    ),
    (
        [PlannedCall("return_seat", {"seat": 1, "also": 2})],
        "what return_seat would be called with does not fit",
    ),
    ([PlannedCall("return_seat")], "what return_seat would be called with does not fit"),
    (
        [PlannedCall("note", {"cents": 1, "conn": "x"})],
        "what note would be called with does not fit",
    ),
    (
        [PlannedSql(GIVE_BACK), PlannedSql("update shop.money set cents = 0 where id = 1")],
        "needs a gate: step 2, sql: it writes shop.money, which the effect does not",
    ),
    (
        [PlannedSql(f"{GIVE_BACK}; drop table shop.money")],
        "needs a gate: step 1, sql: it is 2 statements, not one",
    ),
]


@pytest.mark.full
async def test_a_plan_with_one_step_that_is_refused_is_refused_as_a_whole(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    for proposed, why in REFUSED:
        World.plan, World.acts = proposed, []
        said, detail = await stays_owed(aflow, shop)
        assert why in said
        assert detail["plan"].endswith("/propose/1")
        texts = [s.get("call", s.get("sql", "")).lower().replace('"', "") for s in detail["steps"]]
        assert texts == [getattr(p, "call", getattr(p, "sql", "")) for p in proposed]
        assert [bool(s.get("refused")) for s in detail["steps"]] == [False] * (
            len(proposed) - 1
        ) + [True]
        assert ([name for name, _ in World.acts], free(shop)) == (["take"], 9)


RULES = [
    ('{"name": "return_seat", "approvers": ["ann"]}', ["policy/return_seat"]),
    ('{"name": "pgflow.sql", "approvers": ["ann"]}', ["policy/pgflow.sql"]),
    (
        '{"risk": "compensable", "predicate": "$.seat == 7", "approvers": ["ann"]}',
        ["policy/return_seat"],
    ),
    (
        '{"author": "model", "approvers": ["ann"]}',
        ["policy/pgflow.sql", "policy/return_seat", "policy/tell"],
    ),
]


def asked(shop: psycopg.Connection[Any], columns: str = "name") -> list[Any]:
    rows = shop.execute(f"select {columns} from pgflow.gates order by asked_at, call").fetchall()  # type: ignore[arg-type]
    return [row[0] if len(row) == 1 else row for row in rows]


async def at_gate_of_plan(aflow: AsyncHarness, shop: psycopg.Connection[Any], rule: str) -> Any:
    """A run that asks for leave to take an effect back as a model has planned."""
    shop.execute("select pgflow.set_policy(%s::jsonb, 'careful')", (f"[{rule}]",))
    World.plan = [
        PlannedSql(GIVE_BACK),
        PlannedCall("return_seat", {"seat": 7}),
        PlannedCall("tell", {"text": "sorry"}),
    ]
    aflow.include(outing, outing_sync)
    run = await aflow.start(outing)
    await aflow.until_idle()
    return run


@pytest.mark.full
@pytest.mark.parametrize(("rule", "gates"), RULES)
async def test_what_the_policy_wants_a_gate_for_is_asked_before_anything_is_taken_back(
    rule: str, gates: list[str], aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    if "model" in rule:  # the effect itself rests on no model
        assert len(gates) == 3
    run = await at_gate_of_plan(aflow, shop, rule)
    for name in gates:
        assert asked(shop, "name, why, approvers") == [
            (name, "the inverse of what was done", ["ann"])
        ]
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
def test_so_it_is_in_a_sync_workflow(flow: Harness, shop: psycopg.Connection[Any]) -> None:
    shop.execute("""select pgflow.set_policy('[{"name": "return_seat"}]', 'careful')""")
    World.plan = [PlannedSql(GIVE_BACK), PlannedCall("return_seat", {"seat": 7})]
    flow.include(outing_sync)
    run = flow.start(outing_sync)
    flow.until_idle()
    assert (asked(shop), free(shop)) == (["policy/return_seat"], 9)
    flow.answer("policy/return_seat", pgflow.authority.Approve())
    with pytest.raises(RunFailed):
        run.result(SOON)
    assert ([name for name, _ in World.acts], free(shop)) == (["take", "return"], 10)


@pytest.mark.full
async def test_a_plan_without_leave_is_not_run_and_a_person_takes_the_effect_back(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
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
async def test_an_edit_of_a_step_is_what_is_run(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    run = await at_gate_of_plan(aflow, shop, '{"author": "model"}')
    more = "update shop.seats set free = free + 5 where id = 1"
    (gate,) = asked(shop, "gate")
    with pytest.raises(pgflow.InvalidArgument):
        await aflow.app.answer(gate, pgflow.authority.Approve(edit={"text": more}), by="ann")
    await aflow.answer("policy/pgflow.sql", pgflow.authority.Approve(edit={"sql": more}), by="ann")
    await aflow.until_idle()
    (gate,) = asked(shop, "gate")
    with pytest.raises(pgflow.InvalidArgument, match="seat is missing"):
        await aflow.app.answer(gate, pgflow.authority.Approve(edit={"chair": 8}), by="ann")
    await aflow.answer("policy/return_seat", pgflow.authority.Approve(edit={"seat": 8}), by="ann")
    await aflow.answer("policy/tell", pgflow.authority.Approve(), by="ann")
    await end_failed(run)
    assert free(shop) == 14
    requests = "select request from pgflow.effects where name = 'return_seat'"
    assert shop.execute(requests).fetchall() == [({"seat": 8},)]
    assert World.acts[-1][0] == "tell sorry"


@pytest.mark.full
async def test_an_edit_may_do_no_more_than_a_plan(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    run = await at_gate_of_plan(aflow, shop, '{"name": "pgflow.sql"}')
    await aflow.answer(
        "policy/pgflow.sql",
        pgflow.authority.Approve(edit={"sql": "delete from shop.money where true"}),
    )
    await aflow.until_idle()
    ((key, detail),) = shop.execute(
        "select effect, detail from pgflow.obligations where state = 'unknown'"
    ).fetchall()
    assert "it writes shop.money" in detail["why"]
    assert count(shop, "shop.money") == 1
    await aflow.app.settle_effect(key, "confirmed", why="by hand", by="ada")
    await end_failed(run)


@pytest.mark.full
async def test_a_step_that_a_person_took_over_is_not_run(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    run = await at_gate_of_plan(aflow, shop, '{"author": "model"}')
    for name in ("policy/pgflow.sql", "policy/return_seat", "policy/tell"):
        await aflow.answer(name, pgflow.authority.TakeOver("by hand"), by="ann")
        await aflow.until_idle()
    await end_failed(run)
    assert ([name for name, _ in World.acts], free(shop)) == (["take"], 9)
    told = "select status, said_by from pgflow.effects where name = 'return_seat'"
    assert shop.execute(told).fetchall() == [("confirmed", "ann")]
    assert count(shop, "pgflow.obligations") == 0


NONSENSE = [
    ([], "empty plan"), (None, "empty plan"), ("undo it", "invalid plan"), (7, "invalid plan"), ({"call": "tell"}, "invalid plan"),
    ([["tell"]], "invalid plan: step 1"), ([{"call": "tell", "sql": "x"}], "invalid plan: step 1"), ([{"call": 1}], "invalid plan: step 1"),
    ([{"call": "tell", "arguments": "x"}], "invalid plan: step 1"), ([{"call": "tell", "eval": "x"}], "invalid plan: step 1"), ([{"sql": None}], "invalid plan: step 1"),
    ([{"sql": GIVE_BACK}] * 51, "at most 50 steps"),
]  # fmt: skip


@pytest.mark.parametrize(("proposed", "why"), NONSENSE)
def test_nonsense_is_no_plan(proposed: Any, why: str) -> None:
    with pytest.raises(plan.PlanRefused, match=why):
        plan.read_plan(proposed)


@pytest.mark.full
async def test_a_planner_that_fails_leaves_the_debt_open(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
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
async def test_a_step_that_is_not_done_leaves_the_debt_open_and_says_what_was(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    for n, second, why in (
        (
            1,
            {"sql": "update shop.seats set nothing = 1 where id = 1"},
            "step 2 of the plan, sql, failed: psycopg.errors.UndefinedColumn: column",
        ),
        (
            2,
            {"call": "return_seat", "arguments": {"seat": 99}},
            "step 2 of the plan, return_seat, was accepted, which is not yet done",
        ),
    ):
        World.plan = [{"sql": GIVE_BACK}, second, {"call": "tell", "arguments": {"text": "sorry"}}]
        said, detail = await stays_owed(aflow, shop)
        assert said.startswith(why)
        assert ([s.get("done") for s in detail["steps"]], free(shop)) == ([True, None, None], 9 + n)
    assert "tell sorry" not in [name for name, _ in World.acts]


def test_what_cannot_be_a_planner_or_a_step_of_a_plan_is_refused_where_it_is_said() -> None:
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
    for writes, why in (
        ("shop.seats", "a sequence"),
        (["seats"], "needs its schema"),
        (["a.b.c"], "needs its schema"),
        ([f"a.{'b' * 64}"], "63 bytes"),
    ):
        with pytest.raises(DefinitionError, match=why):
            effect(risk="compensable", writes=writes)


# ---------------------------------------------------------------- what a statement writes


OURS = frozenset(
    {
        Table("shop", "seats"),
        Table("shop", "Odd.Name"),
        Table("shop", "orders"),
        Table("shop", "user"),
    }
)

FINE = [
    "update shop.seats set free = free + 1 where id = 1",
    "UPDATE Shop.SEATS SET free = 1 WHERE id = 1",
    'update "shop"."seats" as s set free = s.free + 1 where s.id in (select id from shop.orders)',
    'delete from shop."Odd.Name" where id = 1 returning *',
    (
        "insert into shop.seats (id, free) values (1, default) on conflict (id) do update set free = "
        "excluded.free"
    ),
    "insert into shop.seats select id, n from shop.orders where n is not null",
    "with gone as (delete from shop.seats where id = 1 returning *) select * from gone",
    (
        "with o as (select * from shop.orders) update shop.seats set free = o.n from o where o.id = "
        "seats.id"
    ),
    (
        "merge into shop.seats s using (values (1, 2)) v(id, n) on s.id = v.id when matched then "
        "update set free = v.n when not matched then insert (id, free) values (v.id, v.n)"
    ),
    (
        "update shop.seats set free = coalesce(free, 0) + (select count(*) from shop.orders) where day "
        "< now() - '1 day ago'::interval"
    ),
    (
        "update shop.seats set free = array[array[.5, 0.5], array[1., -1e3]]::numeric(9, 2)[], note = "
        "'a\\b' where day = cast('P1M' as interval)"
    ),
    'update shop.user set free = "user".free + 1 where "user".id = 1 and "default" = 2',
    (
        "merge into shop.seats s using shop.orders o on s.id = o.id when not matched then insert (id, "
        "free) values (o.id, default)"
    ),
    (
        "update shop.seats set note = 'it''s; drop table x -- no', data = data || '{\"a\": 1}' where "
        "data->>'k' = 'v'"
    ),
    "/* give it back */ update shop.seats set free = 10 where id = 1 -- done",
]

HOSTILE = [
    # another table
    ("update shop.money set cents = 0 where id = 1", "writes shop.money"),
    ('update shop."Seats" set free = 1 where id = 1', 'writes shop."Seats"'),
    ("update other.seats set free = 1 where id = 1", "writes other.seats"),
    ("delete from pg_temp.seats where id = 1", "writes pg_temp.seats"),
    ("delete from pgflow.unit where true", "writes pgflow.unit"),
    (("with x as (delete from shop.money where id = 1 returning *) update shop.seats set free = 1 "
     "where id in (select id from x)"), "writes shop.money"),
    ("with x as (update shop.money set cents = 0 where id = 1) delete from shop.seats where id = 1", "writes shop.money"),
    (("with x as (with y as (delete from shop.money where true returning *) select * from y) delete "
     "from shop.seats where id = 1"), "writes shop.money"),
    ("merge into shop.money m using shop.seats s on m.id = s.id when matched then delete", "writes shop.money"),
    ("insert into shop.money select * from shop.seats", "writes shop.money"),
    ("insert into pg_catalog.pg_authid select * from shop.seats", "writes pg_catalog.pg_authid"),
    # names that a search path could give away
    ("update seats set free = 1 where id = 1", "lacks its schema"),
    ("with seats as (select 1) update seats set free = 1 where id = 1", "lacks its schema"),
    ("delete from shop.seats where id in (select id from secrets)", "lacks its schema"),
    ("delete from x.shop.seats where id = 1", "not a table by its name"),
    ("delete from shop.seats where id in (select id from x.shop.money)", "named with a database"),
    ('delete from shop."seats\0" where true', "not a text"),
    ('delete from u&"\\0073hop".seats where true', "cannot be read"),
    ('with "pg_authid" as (select 1) delete from shop.seats where id in (select oid from pg_authid)', "belongs to the system"),
    # more than one statement, or none
    ("", "empty"), (" ; ", ""), ("-- nothing", ""), ("update shop.seats set", ""), ("take it back", ""),
    (f"{GIVE_BACK}; {GIVE_BACK}", "2 statements"),
    (f"{GIVE_BACK}; commit; drop table shop.money", "3 statements"),
    # statements that are no such writes
    ("select 1", "writes nothing"), ("table shop.seats", "writes nothing"), ("select * into shop.copy from shop.seats", "Into"),
    ("truncate shop.seats", "Truncate"), ("drop table shop.seats", "Drop"), ("alter table shop.seats add x int", "Alter"),
    ("create table shop.seats2 as select * from shop.seats", "Create"), ("create rule r as on insert to shop.seats do instead delete from shop.money", ""),
    ("grant all on shop.seats to public", "Grant"), ("copy shop.seats from program 'rm -rf /'", "Copy"), ("copy shop.seats to '/tmp/x'", "Copy"),
    ("do $$ begin delete from shop.money; end $$", "Command"), ("call shop.empty()", "Command"), ("explain analyze delete from shop.seats where id = 1", "Command"),
    ("prepare p as delete from shop.money", "Command"), ("execute p", "Command"), ("lock table shop.seats", "Command"), ("set role postgres", "Command"),
    ("set local search_path = evil", "Set"), ("begin", "Transaction"), ("commit", "Commit"), ("rollback", "Rollback"), ("notify x", ""), ("listen x", ""),
    ("vacuum shop.seats", ""), ("refresh materialized view shop.seats", ""), ("declare c cursor for select 1", ""), ("fetch all from c", ""),
    ("reindex table shop.seats", ""), ("comment on table shop.seats is 'x'", ""), ("delete from shop.seats where current of c", "cannot be read"),
    # what is read, and how long
    ("insert into shop.seats table auth.secrets", ""),
    ("insert into shop.seats select * from auth.secrets", "reads auth.secrets"),
    ("update shop.seats set free = 1 where exists (select from shop.money)", "reads shop.money"),
    (("update shop.seats s set free = m.cents from shop.orders o join shop.money m on m.id = o.id "
     "where s.id = o.id"), "reads shop.money"),
    ("delete from shop.seats using shop.orders, shop.money where true", "reads shop.money"),
    ("merge into shop.seats s using shop.money m on m.id = s.id when matched then delete", "reads shop.money"),
    (("merge into shop.seats s using shop.orders o on m.id = s.id when matched then update set free "
     "= (select max(cents) from shop.money)"), "reads shop.money"),
    ("with m as (select * from shop.money) update shop.seats set free = m.cents from m where true", "reads shop.money"),
    (("with m as (with n as (select * from shop.money) select * from n) delete from shop.seats "
     "where id in (select id from m)"), "reads shop.money"),
    (("insert into shop.seats select id, 1 from shop.orders union all select id, cents from "
     "shop.money"), "reads shop.money"),
    ("delete from shop.seats where id = 1 returning (select cents from shop.money)", "reads shop.money"),
    (("insert into shop.seats values (1, (select cents from shop.money)) on conflict (id) do update "
     "set free = 1"), "reads shop.money"),
    (("insert into shop.seats values (1, 1) on conflict (id) do update set free = (select cents "
     "from shop.money)"), "reads shop.money"),
    (("delete from shop.seats where id in (select id from shop.orders order by (select cents from "
     "shop.money))"), "reads shop.money"),
    (("with recursive x as (select 1 as n union all select n from x) delete from shop.seats where "
     "id in (select n from x)"), "recursive"),
    # values that a parser could change, and words that are no names
    ("update shop.seats set free = 1 where day < now() - interval '1 day ago'", "Interval"), ("update shop.seats set d = interval 'P1M' where id = 1", "Interval"),
    ("update shop.seats set d = interval '1 day 04:05:06' where id = 1", "Interval"), ("update shop.seats set d = interval '1' month where id = 1", "Interval"),
    ("update shop.seats set free = default where id = 1", "default where a name"), ("delete from shop.seats where user = 'ada'", "user where a name"),
    (("merge into shop.seats s using shop.orders o on s.id = o.id when not matched then insert "
     "default values"), ""),
    ("insert into shop.seats select 1_000", "neither a number nor a name"), ("insert into shop.seats select 1x", "neither a number nor a name"),
    ("update shop.seats set free = 0x1F where id = 1", ""),
    # functions, operators and types that could do anything
    ("update shop.seats set free = shop.pay(1) where id = 1", "Dot"),
    ("update shop.seats set free = pay(1) where id = 1", "calls pay()"),
    ('update shop.seats set free = "Pay"(1) where id = 1', "calls Pay()"),
    ("delete from shop.seats where id = (select setval('shop.s', 1))", "calls setval()"),
    ("delete from shop.seats where nextval('shop.s') > 0", ""),
    ("delete from shop.seats where pg_notify('x', 'y') is null", "calls pg_notify()"),
    ("delete from shop.seats where pg_sleep(1e9) is null", "calls pg_sleep()"),
    ("delete from shop.seats where query_to_xml('delete from shop.money', true, true, '') is null", "calls query_to_xml()"),
    ("delete from shop.seats where set_config('search_path', 'evil', true) = ''", "calls set_config()"),
    ("delete from shop.seats where lo_unlink(1) = 1", "calls lo_unlink()"),
    ("delete from shop.seats where pg_terminate_backend(pid) ", "calls pg_terminate_backend()"),
    ("insert into shop.seats select * from dblink('host=evil', 'select 1') as t(a int)", "calls dblink()"),
    ("insert into shop.seats select * from shop.rows_of(1)", ""),
    ("delete from shop.seats where id operator(shop.=) 1", "Operator"),
    ("update shop.seats set free = 'x'::shop.evil where id = 1", "not built in"),
    ("update shop.seats set free = (shop.seats).pay where id = 1", "Dot"),
    # texts that two parsers could read in two ways
    ("update shop.seats set note = e'\\'; drop table shop.money; --' where id = 1", "ByteString"),
    ("update shop.seats set note = $$x$$ where id = 1", "RawString"),
    ("update shop.seats set note = u&'\\0041' where id = 1", "UnicodeString"),
    ("update shop.seats set free = $1 where id = 1", "Parameter"), (("update shop.seats set free = "
                                                                    "%s where id = 1"), ""),
    ("update shop.seats set free = :x where id = 1", ""), ("delete from shop.seats where " + "(" * 900 + "true" + ")" * 900, "nest deeper"),
    ("delete from shop.seats where note = '" + "x" * 20_000 + "'", "not a text"),
    ("delete from shop.seats where a" + "[1]" * 3000 + " = 1", "more than 2000 words"), ("delete from shop.seats where a[1][1] = 1", "it holds ]["),
    # every row, and what is the system's
    ("delete from shop.seats", "every row"), ("update shop.seats set free = 0", "every row"), ("delete from shop.seats using shop.orders", "every row"),
    ("insert into shop.seats select oid, 1 from pg_catalog.pg_authid", "belongs to the system"),
    ("insert into shop.seats select 1, 2 from information_schema.tables", "belongs to the system"),
    ("update shop.seats set free = 1 where exists (select from pgflow.owed)", "belongs to the system"),
    ("delete from shop.seats where id in (select id from shop.money for update)", "Lock"),
]  # fmt: skip


@pytest.mark.parametrize("sql", FINE)
def test_a_statement_that_writes_what_the_effect_wrote_may_be_run(sql: str) -> None:
    judged = plan.judge(PlannedSql(sql), {}, OURS)
    assert judged.refused is None
    assert read_statement(judged.step["sql"]).text == judged.step["sql"]


@pytest.mark.parametrize(("sql", "why"), HOSTILE)
def test_a_statement_that_could_write_anything_else_is_refused(sql: str, why: str) -> None:
    refused = plan.judge(PlannedSql(sql), {}, OURS).refused
    assert refused is not None
    assert why in refused


DEEP = [
    ("array[", "]"), ("date(", ")"), ("struct(", ")"), ("date[", "]"), ('"numeric"(', ")"), ("numeric (", ")"), ("(", ")"), ("array(select ", ")"),
    ("coalesce(", ")"), ("{", "}"), ("x::struct<a ", ">"), ("x::array<", ">"), ("cast(x as map<", ">)"),
]  # fmt: skip


@pytest.mark.parametrize(("opened", "closed"), DEEP)
def test_what_would_take_long_to_parse_is_refused_before_it_is_parsed(
    opened: str, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    monkeypatch.setattr("sqlglot.parse", lambda text, **_: parsed.append(text))
    sql = f"update shop.seats set free = {opened * 16}1{closed * 16} where id = 1"
    refused = plan.judge(PlannedSql(sql), {}, OURS).refused
    assert refused is not None
    assert "nest deeper" in refused or "which no type of Postgres" in refused
    assert parsed == []


def test_a_value_that_the_parser_has_changed_is_found_in_the_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lineage, "_PARTS", lineage._PARTS | {"Interval"})
    for value in ("'1 day ago'", "'P1M'", "'1 day 04:05:06'"):
        with pytest.raises(UnreadableSql, match="a string or number in it reads differently"):
            read_statement(f"update shop.seats set d = interval {value} where id = 1")


def test_every_branch_of_a_statement_is_read() -> None:
    many = "with a as (insert into x.a values (1)), b as (update x.b set c = 1 where true), c as (delete from x.c where true) merge into x.d using x.e on true when matched then update set f = 1"
    assert [str(table) for table in sorted(read_statement(many).writes)] == [
        "x.a",
        "x.b",
        "x.c",
        "x.d",
    ]
    assert read_statement(many).reads == {Table("x", "e")}
    with pytest.raises(UnreadableSql):
        read_statement(7)  # type: ignore[arg-type]


def test_a_table_is_named_as_sql_names_it() -> None:
    assert table_named('Shop."Odd.Na""me"') == Table("shop", 'Odd.Na"me')
    assert str(table_named('Shop."Odd.Na""me"')) == 'shop."Odd.Na""me"'


# ---------------------------------------------------------------- what no text shows


LEAK = "create function shop.leak() returns trigger language plpgsql as $$ begin {} return null; end $$;"
PAY = "update shop.money set cents = 0;"
HIDDEN = [
    ("trigger", LEAK.format(PAY) + "create trigger t after update on shop.seats for each row "
                                   "execute function shop.leak()", "shop.money"),
    ("trigger that changes no row", LEAK.format("delete from shop.money where false;") + "create trigger t after update on shop.seats execute function shop.leak()", "shop.money"),
    ("trigger that truncates", LEAK.format("truncate shop.money;") + "create trigger t after update on shop.seats execute function shop.leak()", "shop.money"),
    ("trigger that makes a table", LEAK.format("create table shop.loot as select 1;") + "create trigger t after update on shop.seats execute function shop.leak()", "shop.loot"),
    ("trigger at the end", LEAK.format(PAY) + "create constraint trigger t after update on "
                                              "shop.seats deferrable initially deferred for each "
                                              "row execute function shop.leak()", "shop.money"),
    ("rule", f"create rule r as on update to shop.seats do also {PAY}", "shop.money"),
    ("cascade", ("create table shop.tickets (seat int references shop.seats on update cascade); "
                "insert into shop.tickets values (1)"), "shop.tickets"),
    ("view", ("alter table shop.seats rename to places; create view shop.seats as select * from "
             "shop.places"), "shop.places"),
    ("child", "create table shop.boxes () inherits (shop.seats)", "shop.boxes"),
]  # fmt: skip


@pytest.mark.full
async def test_what_a_statement_writes_behind_its_back_is_rolled_back(
    aflow: AsyncHarness, conn: psycopg.Connection[Any]
) -> None:
    for what, made, table in HIDDEN:
        furnish(conn).execute(made)
        World.plan = [PlannedSql("update shop.seats set free = free + 1, id = 2 where id = 1")]
        why, _ = await stays_owed(aflow, conn)
        assert f"the statement has also written {table}, by a trigger" in why, what
        assert (free(conn), conn.execute("select cents from shop.money").fetchone()) == (
            9,
            (100,),
        ), what


async def test_a_partition_is_part_of_its_table(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    shop.execute(
        "drop table shop.seats; create table shop.seats (id int, free int) partition by list (id)"
    )
    shop.execute(
        "create table shop.seats_1 partition of shop.seats for values in (1); create table "
        "shop.seats_2 partition of shop.seats default"
    )
    shop.execute("insert into shop.seats values (1, 9)")
    World.plan = [PlannedSql("update shop.seats set free = free + 1, id = 1 where id = 1")]
    aflow.include(outing)
    await end_failed(await aflow.start(outing))
    assert free(shop) == 10


async def test_a_function_of_the_same_name_in_the_search_path_is_not_called(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    shop.execute(
        "create function public.lower(varchar) returns text language plpgsql as $$ begin update "
        "shop.money set cents = 0; return 'x'; end $$"
    )
    shop.execute("alter table shop.seats add name varchar; update shop.seats set name = 'ADA'")
    shop.execute(f'alter database "{shop.info.dbname}" set search_path = public, pg_catalog')
    World.plan = [PlannedSql("update shop.seats set name = lower(name) where id = 1")]
    aflow.include(outing)
    await end_failed(await aflow.start(outing))
    assert shop.execute("select name, cents from shop.seats, shop.money").fetchone() == ("ada", 100)


@pytest.mark.full
async def test_the_server_gives_a_statement_no_more_time_than_it_may_have(
    aflow: AsyncHarness,
    shop: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(plan, "STATEMENT_LIMIT", timedelta(seconds=2))
    monkeypatch.setattr(plan, "LOCK_LIMIT", timedelta(milliseconds=50))
    World.plan = [PlannedSql(GIVE_BACK)]
    aflow.include(outing)
    with caplog.at_level("DEBUG", "pgflow"), shop.transaction():
        shop.execute("lock table shop.seats")
        run = await aflow.start(outing)
        await eventually(
            lambda: "lock timeout" in caplog.text, "it has given up its wait, to try again"
        )
    await end_failed(run)
    assert free(shop) == 10
    shop.execute(
        LEAK.format("loop end loop;")
        + "create trigger t after update on shop.seats for each row execute function shop.leak()"
    )
    said, _ = await stays_owed(aflow, shop)
    assert "QueryCanceled" in said
    assert free(shop) == 10


def test_a_lower_limit_that_is_set_stays(shop: psycopg.Connection[Any]) -> None:
    query = calls.confine(timedelta(seconds=50), timedelta(seconds=20))
    shown = "select current_setting('statement_timeout'), current_setting('lock_timeout')"
    for before, after in ((("0", "0"), ("50s", "20s")), (("3s", "1min"), ("3s", "20s"))):
        with shop.transaction():
            shop.execute(
                "select set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, "
                "true)",
                before,
            )
            shop.execute(query.sql, query.params)
            assert shop.execute(shown).fetchone() == after


@pytest.mark.full
async def test_a_planner_is_not_told_the_defaults_of_steps(
    aflow: AsyncHarness, shop: psycopg.Connection[Any]
) -> None:
    @step
    async def send(text: str, token: str = "s3cret", *, n: int = 7) -> None: ...

    @workflow(raises=[Trouble])
    async def sending() -> None:
        async with pgflow.effects.saga(planner=propose, steps=[send]):
            await take_seat(1, "ada")
            raise Trouble

    World.plan = [PlannedSql(GIVE_BACK)]
    aflow.include(sending)
    await end_failed(await aflow.start(sending))
    assert (
        World.told[0].steps["send"]
        == "send(text: 'str', token: 'str' = ..., *, n: 'int' = ...) -> 'None'"
    )


def test_what_a_transaction_has_written_is_seen_by_its_locks(shop: psycopg.Connection[Any]) -> None:
    written = "select schema_name, table_name from pgflow.written_tables()"
    with shop.transaction():
        shop.execute("select * from shop.seats for update")
        assert shop.execute(written).fetchall() == []
        shop.execute("delete from shop.seats where false")
        assert shop.execute(written).fetchall() == [("shop", "seats")]


def test_the_policy_judges_acts_in_their_order(shop: psycopg.Connection[Any]) -> None:
    shop.execute(
        """select pgflow.set_policy('[{"name": "b", "amount": "$.cents", "above": 5}]', 'careful')"""
    )
    acts = '[["a", "reversible", {}], ["b", "reversible", {"cents": 9}], ["b", "compensable", {"cents": 1}]]'
    assert shop.execute(
        "select pgflow.judge_plan(%s::jsonb), pgflow.judge_plan('[]')", (acts,)
    ).fetchone() == ([None, {"version": 1, "terms": None}, None], [])
    # As workers of before ask.
    assert shop.execute(
        "select pgflow.judge_acts(%s::jsonb), pgflow.judge_acts('[]')", (acts,)
    ).fetchone() == ([None, 1, None], [])


@pytest.mark.full
@pytest.mark.parametrize("effects", ["compensate", "reuse"])
async def test_a_plan_takes_back_again_what_is_done_again_and_is_not_taken_back_itself(
    aflow: AsyncHarness, shop: psycopg.Connection[Any], effects: Any
) -> None:
    World.plan = [PlannedCall("return_seat", {"seat": 1}), PlannedSql(GIVE_BACK)]
    aflow.include(outing)
    run = await aflow.start(outing.options(key="k"))
    await end_failed(run)
    assert free(shop) == 10
    await aflow.app.restart("k", effects=effects)
    await end_failed(run)
    assert [name for name, _ in World.acts] == ["take", "return"] * 2
    assert len({key for _, key in World.acts}) == 4
    assert free(shop) == 11
    assert shop.execute("select * from pgflow.check()").fetchall() == []
