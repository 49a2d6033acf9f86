"""Budgets as workflows meet them: what is admitted, what is charged, and what happens in between."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from records import SOON, recover, result_of, settle
from sqlkit import Claim, claim_one, commit, flush

import pgflow
from pgflow import (
    AsyncRun,
    InvalidArgument,
    Retries,
    RunFailed,
    Signal,
    read,
    step,
    transaction,
    workflow,
)
from pgflow.authority import Admit, Pool
from pgflow.decisions import Choice, decision
from pgflow.effects import Ref, effect
from pgflow.errors import BudgetExceeded
from pgflow.testing import AsyncHarness

CENT = Decimal("0.01")


class Book:
    """Things that bodies did, in this process."""

    asked: list[str]
    fails = 0


@pytest.fixture(autouse=True)
def book() -> None:
    Book.asked = []
    Book.fails = 0


@step(retries=Retries(3, 0.001))
async def ask(question: str, costs: str = "0.3") -> str:
    Book.asked.append(question)
    pgflow.authority.charge(usd=Decimal(costs), tokens=100, model="m1")
    if Book.fails:
        Book.fails -= 1
        raise ValueError("overloaded")
    return f"answer to {question}"


@workflow
async def agent(questions: list[str]) -> list[str]:
    answers = []
    try:
        for question in questions:
            answers.append(await ask.options(admit=Admit(usd=Decimal("0.4")))(question))
    except BudgetExceeded as refused:
        said = refused.reason, refused.pool, refused.unit, refused.left, refused.asked
        answers.append(" ".join(map(str, said)))
    return answers


def sums(conn: psycopg.Connection, pool: str, unit: str = "usd") -> tuple[Any, ...]:
    """Charged, reserved and remaining of a pool."""
    found = conn.execute(
        "select charged, reserved, remaining from pgflow.budgets where pool = %s and unit = %s",
        (pool, unit),
    ).fetchone()
    assert found is not None
    return found


@pytest.mark.full
async def test_calls_are_admitted_until_the_pool_lacks_what_the_next_one_may_cost(aflow, conn):
    aflow(pools=[Pool("user", usd=1)]).include(agent)
    run = await aflow.start(agent.options(pool="user"), ["a", "b", "c", "d"])
    found = await run.result(SOON)
    assert found == ["answer to a", "answer to b", "answer to c", "used_up user usd 0.1 0.4"]
    assert Book.asked == ["a", "b", "c"], "the body of a refused call never starts"
    assert sums(conn, "user") == (Decimal("0.9"), 0, Decimal("0.1"))
    assert sums(conn, "user", "tokens") == (300, 0, None)
    spent = conn.execute(
        "select step, model, pool, sum(usd), count(*) from pgflow.charges group by 1, 2, 3"
    ).fetchall()
    assert spent == [("ask", "m1", "user", Decimal("0.9"), 3)]


async def test_an_admission_costs_no_commit_of_its_own(aflow, conn):
    aflow(pools=[Pool("user", usd=9)]).include(agent)
    run = await aflow.start(agent.options(pool="user"), ["a", "b"])
    await run.result(SOON)
    commits = conn.execute("select count(distinct recorded_at) from pgflow.unit").fetchone()
    kinds = conn.execute(
        "select string_agg(kind::text, '' order by seq) from pgflow.unit"
    ).fetchone()
    assert kinds == ("mMcmMc",)
    assert commits == (3,), "each outcome leaves with the question for the next call"


async def test_what_a_workflow_does_not_catch_fails_the_run_with_what_is_left(aflow):
    @workflow
    async def spend() -> str:
        return await ask.options(admit=Admit(usd=2))("a")

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    with pytest.raises(RunFailed) as failed:
        await run.result(SOON)
    refused = failed.value.__cause__
    assert isinstance(refused, BudgetExceeded)
    assert (refused.pool, refused.unit, refused.limit, refused.left, refused.asked) == (
        "user",
        "usd",
        1,
        1,
        2,
    )
    assert "pool 'user' has 1 left, and the call asks for 2" in str(refused)


async def test_failed_tries_share_the_reservation_and_their_charges_are_kept(aflow, conn):
    Book.fails = 2
    aflow(pools=[Pool("user", usd=2, calls=10)]).include(agent)
    run = await aflow.start(agent.options(pool="user"), ["a"])
    assert await run.result(SOON) == ["answer to a"]
    assert sums(conn, "user") == (Decimal("0.9"), 0, Decimal("1.1"))
    assert sums(conn, "user", "calls") == (3, 0, 7), "each try is a call"


async def crash_in_a_call(aflow: AsyncHarness, admit: Admit) -> AsyncRun[str]:
    """Return a run whose worker has crashed in a call that charged a cent; its next try ends."""
    entered = asyncio.Event()

    @step
    async def once() -> str:
        Book.asked.append("once")
        pgflow.authority.charge(usd=CENT)
        if len(Book.asked) == 1:
            entered.set()
            await asyncio.Event().wait()
        return "done"

    @workflow
    async def spend() -> str:
        return await once.options(admit=admit)()

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    await entered.wait()
    await aflow.crash()
    return run


@pytest.mark.full
async def test_a_try_after_a_crash_takes_up_the_reservation_of_the_one_before(aflow, conn):
    run = await crash_in_a_call(aflow, Admit(usd=Decimal("0.6")))
    await aflow.until_idle()
    assert await run.result(SOON) == "done"
    assert Book.asked == ["once", "once"]
    assert conn.execute("select count(*) from pgflow.unit where kind = 'm'").fetchone() == (1,)
    assert sums(conn, "user") == (CENT, 0, 1 - CENT)


@read
async def look() -> str:
    pgflow.authority.charge(usd=CENT)
    return "seen"


@decision()
async def decide() -> Choice[str]:
    pgflow.authority.charge(usd=CENT)
    return Choice("act", why="because", model="m2")


@effect(risk="reversible")
async def act() -> str:
    pgflow.authority.charge(usd=CENT)
    return "done"


@transaction
async def book_it(conn: psycopg.AsyncConnection[Any]) -> str:
    pgflow.authority.charge(usd=CENT)
    await conn.execute("select 1")
    return "booked"


@step
def think() -> str:
    pgflow.authority.charge(usd=CENT)
    return "thought"


PENNY = Admit(usd=CENT)


@workflow
async def everything() -> list[str]:
    seen = await look.options(admit=PENNY)()
    d = await decide.options(admit=PENNY)()
    done = await act.options(admit=PENNY).because(d)()
    booked = await book_it.options(admit=PENNY)()
    thought = await think.options(admit=PENNY).aio()
    pgflow.authority.charge(usd=CENT, gpu_hours=2)
    return [seen, done, booked, thought]


@workflow
def everything_sync() -> list[str]:
    seen = look.options(admit=PENNY).sync()
    d = decide.options(admit=PENNY).sync()
    done = act.options(admit=PENNY).because(d).sync()
    booked = book_it.options(admit=PENNY).sync()
    thought = think.options(admit=PENNY)()
    pgflow.authority.charge(usd=CENT, gpu_hours=2)
    return [seen, done, booked, thought]


@pytest.mark.full
@pytest.mark.parametrize("flow_of", [everything, everything_sync], ids=["async", "sync"])
async def test_steps_of_every_class_are_admitted_and_charged(aflow, conn, flow_of):
    aflow(pools=[Pool("user", usd=1)]).include(flow_of)
    run = await aflow.start(flow_of.options(pool="user"))
    assert await run.result(SOON) == ["seen", "done", "booked", "thought"]
    assert sums(conn, "user") == (6 * CENT, 0, 1 - 6 * CENT)
    assert sums(conn, "user", "gpu_hours") == (2, 0, None)
    of_decision = conn.execute(
        "select step, model, decision is not null from pgflow.charges where step in ('decide', 'act') order by seq"
    )
    assert of_decision.fetchall() == [("decide", "m2", True), ("act", None, True)]


@pytest.mark.parametrize(
    "step_of", [look, decide, act, book_it], ids=["read", "decision", "effect", "transaction"]
)
async def test_steps_of_every_class_are_refused(aflow, conn, step_of):
    @workflow
    async def spend() -> str:
        try:
            await step_of.options(admit=Admit(usd=2))()
        except BudgetExceeded as refused:
            return refused.reason
        return "done"

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    assert await run.result(SOON) == "used_up"
    assert conn.execute("select count(*) from pgflow.owed").fetchone() == (0,)


async def test_a_transaction_that_is_rolled_back_keeps_what_its_body_has_spent(aflow, conn):
    @transaction
    async def flaky(conn: psycopg.AsyncConnection[Any]) -> str:
        pgflow.authority.charge(usd=CENT)
        Book.asked.append("x")
        if len(Book.asked) == 1:
            raise ValueError("no")
        return "booked"

    @workflow
    async def spend() -> str:
        return await flaky.options(retries=Retries(2, 0.001), admit=Admit(usd=Decimal("0.5")))()

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    assert await run.result(SOON) == "booked"
    assert sums(conn, "user") == (2 * CENT, 0, 1 - 2 * CENT)


async def test_a_commit_that_fails_keeps_what_the_body_has_spent(aflow, conn):
    conn.execute(
        "create table public.tries (n int); create sequence public.fails;"
        "create function public.fail_once() returns trigger language plpgsql as $$ begin "
        "if nextval('public.fails') = 1 then raise serialization_failure; end if; return null; end $$;"
        "create constraint trigger late after insert on public.tries deferrable initially deferred "
        "for each row execute function public.fail_once()"
    )

    @transaction
    async def unlucky(conn: psycopg.AsyncConnection[Any]) -> str:
        pgflow.authority.charge(usd=CENT)
        Book.asked.append("x")
        await conn.execute("insert into public.tries values (1)")
        return "booked"

    @workflow
    async def spend() -> str:
        return await unlucky.options(admit=Admit(usd=Decimal("0.5"), calls=2))()

    aflow(pools=[Pool("user", usd=1, calls=9)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    assert await run.result(SOON) == "booked"
    assert Book.asked == ["x", "x"]
    assert sums(conn, "user") == (2 * CENT, 0, 1 - 2 * CENT)
    assert sums(conn, "user", "calls")[0] >= 1, "the try that was committed counts"


async def test_a_run_without_a_pool_is_told_so(aflow):
    @workflow
    async def spend() -> str:
        await ask.options(admit=Admit(usd=2))("a")
        return "done"

    with pytest.raises(RunFailed, match="the run has no pool: start it with"):
        await result_of(aflow, spend)


async def test_a_call_may_name_its_pool(aflow, conn):
    @workflow
    async def spend() -> str:
        return await ask.options(admit=Admit(usd=Decimal("0.3"), pool="search"))("a")

    aflow(pools=[Pool("search", usd=1), Pool("user", usd=1)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    await run.result(SOON)
    assert sums(conn, "search")[0] == Decimal("0.3")
    assert sums(conn, "user")[0] == 0


async def test_children_draw_on_the_pool_of_their_parent_or_on_one_of_their_own(aflow, conn):
    @workflow
    async def parent() -> list[list[str]]:
        one = await pgflow.run_child(agent, ["a"])
        two = await pgflow.run_child(agent.options(budget={"usd": Decimal("0.5")}), ["b", "c"])
        three = await pgflow.run_child(
            agent.options(key="kid", budget={"usd": Decimal("0.5")}), ["d", "e"]
        )
        return [one, two, three]

    aflow(pools=[Pool("user", usd=5)]).include(parent, agent)
    run = await aflow.start(parent.options(pool="user"))
    _, two, three = await run.result(SOON)
    assert two[0] == "answer to b"
    assert two[1].startswith("used_up run/")
    assert three[1].startswith("used_up run/")
    assert sums(conn, "user")[0] == Decimal("0.9")


async def test_a_run_may_have_limits_of_its_own(aflow):
    answers = await result_of(aflow, agent.options(budget={"usd": Decimal("0.5")}), ["a", "b"])
    assert answers[1].startswith("used_up run/")
    many = await aflow.app.start_many(
        agent.options(budget={"usd": Decimal("0.5")}), [(["a", "b"],), (["c"],)]
    )
    assert len(await many[0].result(SOON)) == 2


async def test_no_step_of_a_run_under_a_hard_pool_starts_once_it_is_revoked(aflow):
    @step
    async def free() -> int:
        Book.asked.append("free")
        return 1

    @step
    async def stop() -> None:
        await aflow.app.revoke_pool("user", why="enough", by="ada")

    @workflow
    async def spend() -> str:
        await free()
        await stop()
        try:
            await free()
        except BudgetExceeded as refused:
            return refused.reason
        return "done"

    aflow(pools=[Pool("user", usd=1, hard=True)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    assert await run.result(SOON) == "revoked"
    assert Book.asked == ["free"]


budget_alert = Signal("budget", dict[str, Any])


async def test_a_run_that_passes_the_soft_threshold_is_sent_a_signal(aflow):
    @workflow
    async def careful() -> dict[str, Any]:
        await ask.options(admit=Admit(usd=Decimal("0.4")))("a")
        await ask.options(admit=Admit(usd=Decimal("0.4")))("b")
        return await budget_alert.wait()

    aflow(pools=[Pool("user", usd=1, soft=0.7)]).include(careful)
    run = await aflow.start(careful.options(pool="user"))
    alert = await run.result(SOON)
    assert (alert["pool"], alert["unit"], alert["limit"]) == ("user", "usd", "1")


@pytest.mark.parametrize(
    ("spent", "admit"),
    [(CENT, Admit(usd=Decimal("0.5"))), (0, PENNY)],
    ids=["spent", "said nothing"],
)
async def test_a_call_that_is_given_up_returns_its_reservation_and_keeps_what_it_spent(
    aflow, conn, spent, admit
):
    entered = asyncio.Event()

    @step
    async def slow() -> None:
        if spent:
            pgflow.authority.charge(usd=spent)
        entered.set()
        await asyncio.Event().wait()

    @workflow
    async def spend() -> str:
        try:
            async with asyncio.timeout(60):
                await slow.options(admit=admit)()
        except TimeoutError:
            return "late"
        return "done"

    aflow(pools=[Pool("user", usd=1, calls=9)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    await entered.wait()
    await aflow.skip(61)
    assert await run.result(SOON) == "late"
    if spent:
        assert sums(conn, "user") == (CENT, 0, 1 - CENT)
    assert sums(conn, "user", "calls") == (1, 0, 8)


async def test_a_body_may_charge_more_units_than_one_charge_has_room_for(aflow, conn):
    @step
    async def odd() -> None:
        for n in range(100):
            pgflow.authority.charge(usd=1e-20, **{f"unit_{n:02}_{'x' * 50}": 0.1 + 0.2})

    @workflow
    async def spend() -> None:
        await odd()
        with pytest.raises(InvalidArgument, match="at most 32 units"):
            pgflow.authority.charge(**{f"u{n}": 1 for n in range(40)})

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    await (await aflow.start(spend.options(pool="user"))).result(SOON)
    assert conn.execute("select count(*) from pgflow.charge").fetchone() == (4,)
    assert sums(conn, "user", f"unit_99_{'x' * 50}")[0] == Decimal("0.30000000000000004")


async def test_what_a_run_spent_is_not_charged_again_when_it_is_repeated(aflow, conn):
    @workflow
    async def spend() -> str:
        pgflow.authority.charge(usd=CENT)
        answer = await ask.options(admit=Admit(usd=Decimal("0.3")))("a")
        await pgflow.sleep(3600)
        pgflow.authority.charge(usd=CENT)
        return answer

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    run = await settle(aflow, spend.options(pool="user"))
    await aflow.skip(3700)
    await run.result(SOON)
    assert sums(conn, "user")[0] == Decimal("0.3") + 2 * CENT
    assert Book.asked == ["a"]


async def test_seconds_are_charged_by_the_time_that_a_try_takes(aflow, conn):
    @workflow
    async def spend() -> str:
        return await ask.options(admit=Admit(seconds=30))("a")

    aflow(pools=[Pool("user", seconds=60)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    await run.result(SOON)
    charged, reserved, _ = sums(conn, "user", "seconds")
    assert 0 < charged < 10
    assert reserved == 0


async def test_a_rewound_run_asks_again_for_what_it_does_again(aflow, conn):
    aflow(pools=[Pool("user", usd=1)]).include(agent)
    run = await aflow.start(agent.options(pool="user", key="r"), ["a"])
    await run.result(SOON)
    await aflow.app.rewind("r", 1, effects="repeat")
    await aflow.until_idle()
    assert await aflow.app.get("r", agent).result(SOON) == ["answer to a"]
    assert sums(conn, "user") == (Decimal("0.6"), 0, Decimal("0.4"))


@pytest.mark.full
async def test_a_run_that_failed_for_want_of_a_budget_goes_on_from_there_after_a_grant(aflow, conn):
    @workflow
    async def spend() -> list[str]:
        admit = Admit(usd=Decimal("0.4"))
        return [await ask.options(admit=admit)(question) for question in "abc"]

    aflow(pools=[Pool("user", usd=Decimal("0.9"))]).include(spend)
    run = await aflow.start(spend.options(pool="user", key="r"))
    with pytest.raises(RunFailed, match="not admitted"):
        await run.result(SOON)
    await aflow.app.grant_budget("user", {"usd": 1}, why="go on", by="ada")
    await aflow.app.retry("r")
    await aflow.until_idle()
    assert await aflow.app.get("r", spend).result(SOON) == [f"answer to {q}" for q in "abc"]
    assert Book.asked == ["a", "b", "c"], "what was done before is not done again"
    assert sums(conn, "user") == (Decimal("0.9"), 0, Decimal("1.0"))


async def test_the_next_generation_draws_on_the_same_pool(aflow, conn):
    @workflow
    async def loop(left: int) -> str:
        await ask.options(admit=Admit(usd=Decimal("0.3")))("a")
        if left:
            pgflow.continue_as_new(left - 1)
        return "done"

    aflow(pools=[Pool("user", usd=1)]).include(loop)
    run = await aflow.start(loop.options(pool="user"), 1)
    assert await run.result(SOON) == "done"
    assert sums(conn, "user") == (Decimal("0.6"), 0, Decimal("0.4"))


def test_the_sync_kit_takes_pools_too(flow, conn):
    flow(pools=[Pool("user", usd=1)]).include(agent)
    run = flow.start(agent.options(pool="user"), ["a"])
    assert run.result(SOON) == ["answer to a"]
    flow.app.set_pool(Pool("other", usd=2, parent="user"))
    flow.app.grant_budget("other", {"usd": 3})
    assert sums(conn, "other")[2] == 5


def taken_over(conn: psycopg.Connection, question: dict[str, Any]) -> None:
    """A worker takes up the run, asks the database this, and is lost with the answer."""
    claim: Claim = claim_one(conn)
    answer = commit(conn, flush(claim, **question))
    assert answer.units_of(claim)
    conn.execute("select pgflow.reap_worker(%s, 0)", (claim.worker,))


go = Signal("go", int)


@pytest.mark.full
async def test_a_run_that_ends_while_it_still_repeats_its_journal_returns_what_is_left(aflow, conn):
    entered = asyncio.Event()

    @step
    async def slow() -> None:
        entered.set()
        await asyncio.Event().wait()

    @workflow
    async def spend() -> str:
        other = asyncio.ensure_future(slow.options(admit=PENNY)())
        await go.wait()
        del other
        return "gone"

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    await entered.wait()
    await aflow.crash()
    await run.send(go, 1)
    taken_over(conn, {"signals": [[1, "go"]], "park": False, "idle": False, "cancelled": False})
    assert conn.execute("select count(*) from pgflow.reservation").fetchone() == (1,)
    await aflow.until_idle()
    assert await run.result(SOON) == "gone"
    assert sums(conn, "user") == (0, 0, 1)


@pytest.mark.full
async def test_what_the_database_has_closed_returns_what_is_left_though_the_worker_was_lost(
    aflow, conn
):
    entered = asyncio.Event()

    @effect(risk="reversible")
    async def act() -> str:
        entered.set()
        await asyncio.Event().wait()
        return "done"

    @workflow
    async def spend() -> str:
        done = await act.options(admit=PENNY)()
        await go.wait()
        return done

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    run = await aflow.start(spend.options(pool="user"))
    await entered.wait()
    await recover(aflow)
    await aflow.crash()
    (key,) = conn.execute("select effect from pgflow.effects").fetchone() or ()
    conn.execute("select pgflow.settle_effect(%s, 'confirmed', '\"done\"')", (key,))
    conn.execute("select pgflow.poll()")
    asked = {"open_effects": [1], "park": False, "idle": False, "cancelled": False}
    taken_over(conn, asked)
    await aflow.until_idle()
    assert sums(conn, "user") == (0, 0, 1)
    await run.send(go, 1)
    assert await run.result(SOON) == "done"


async def test_a_fork_asks_again_for_a_call_that_it_has_inherited(aflow, conn):
    run = await crash_in_a_call(aflow, PENNY)
    conn.execute("select pgflow.fork_run(%s, 'copy', effects => 'repeat')", (run.key,))
    await aflow.until_idle()
    assert await run.result(SOON) == "done"
    admitted = conn.execute(
        "select run_id, count(*) from pgflow.unit where kind = 'm' group by run_id order by run_id"
    )
    assert [n for _, n in admitted.fetchall()] == [1, 2]
    assert sums(conn, "user") == (2 * CENT, 0, 1 - 2 * CENT)


async def test_what_a_result_costs_that_is_made_anew_is_charged(aflow, conn):
    @step
    async def render() -> Ref:
        pgflow.authority.charge(usd=CENT)
        Book.asked.append("x")
        return Ref("store", str(len(Book.asked)))

    @workflow
    async def spend() -> str:
        made = await render.options(admit=PENNY)()
        await go.wait()
        return made.id

    async def has(ref: Ref) -> bool:
        return ref.id == "2"

    aflow(pools=[Pool("user", usd=1)]).include(spend)
    aflow.app.ref_checker("store")(has)
    run = await settle(aflow, spend.options(pool="user"))
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == "2"
    assert sums(conn, "user") == (2 * CENT, 0, 1 - 2 * CENT)
