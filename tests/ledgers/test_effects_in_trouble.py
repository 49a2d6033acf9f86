"""Effects when things come together: words of people, pauses, slow answers, forced ends, values
that do not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import HOUR, SOON, eventually, launch, recover, result_of, run_row, settle
from servers import HANG_SECONDS
from test_effects import (
    SLOWLY,
    bank,
    charge,
    effects,
    kinds,
    owed,
    pay,
    pay_by_wire,
    the_bank,
    transfer,
    wire,
)

import pgflow
from pgflow import Signal, workflow
from pgflow._model.reasons import WORDS
from pgflow._worker.effect_bodies import EffectAttempts
from pgflow.effects import Absent, Confirmed, StillUnknown, effect
from pgflow.errors import DefinitionError, NotStorable, Stale
from pgflow.testing import AsyncHarness, set_clock

__all__ = ["bank"]  # a fixture

go = Signal("go", str)


def poll(aflow: AsyncHarness) -> None:
    assert aflow._worker is not None
    aflow._worker.poll_now()


async def settled(
    aflow: AsyncHarness, conn: psycopg.Connection, holds: Callable[[], Any], what: str
) -> None:
    """Waits until something holds that a poll brings about."""

    def look() -> Any:
        poll(aflow)
        return holds()

    await eventually(look, what)


@pytest.mark.full
async def test_a_word_counts_before_another_attempt(aflow, conn, bank):
    """Both are due at once: the retry of an unknown effect, and the word of a person that it was
    taken back.
    """
    bank.lose = lambda n: n == 1

    @effect(risk="compensable", dedup_window=HOUR, settle_retries=SLOWLY)
    async def pay_it(cents: int) -> str:
        return the_bank().charge(cents, pgflow.idempotency_key())

    @workflow
    async def payer() -> str:
        return await pay_it(5)

    run = await settle(aflow, payer)
    await aflow.crash()
    set_clock(aflow._dsn, timedelta(minutes=3))
    conn.execute(
        "select pgflow.settle_effect(%s, 'failed', why => 'taken back by telephone')",
        (bank.calls[0],),
    )
    await aflow.until_idle()
    await settled(aflow, conn, lambda: owed(conn) == [], "the word is taken")
    assert len(bank.calls) == 1
    assert await run.status() == "failed"


@pytest.mark.full
async def test_a_word_reaches_a_run_that_waits_for_something_else_too(aflow, conn, bank):
    bank.lose = lambda _: True

    @workflow
    async def both() -> str:
        first, second = await asyncio.gather(wire(1), go.wait())
        return first + second

    run = await settle(aflow, both)
    assert run_row(conn, run.key, "status")[0] == "waiting"
    await recover(aflow)
    await aflow.app.settle_effect(bank.calls[0], "confirmed", "q")
    await settled(aflow, conn, lambda: owed(conn) == [], "the word is taken")
    await run.send(go, "!")
    assert await run.result(SOON) == "q!"


@pytest.mark.full
async def test_what_only_a_person_can_say_does_not_stop_the_clock(aflow, conn, bank):
    bank.lose = lambda _: True

    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(60):
                return await wire(9)
        except TimeoutError:
            return "late"

    run = await settle(aflow, impatient)
    assert run_row(conn, run.key, "status")[0] == "waiting"
    await aflow.skip(timedelta(minutes=5))
    assert "X" in kinds(conn)
    found = run_row(conn, run.key, "status, reason")
    assert found == ("stuck", "effect"), "now nothing else can bring it on"
    await aflow.app.settle_effect(bank.calls[0], "confirmed", "done")
    assert await run.result(SOON) == "late"


@pytest.mark.full
async def test_words_on_several_effects_at_once_are_replayed_as_they_came(aflow, conn, bank):
    bank.lose = lambda n: n >= 2

    @workflow
    async def many() -> str:
        await transfer(1)

        async def one(n: int) -> str:
            got = await wire(n)
            pgflow.set_state(got=got)
            return got

        tasks = [asyncio.create_task(one(1)), asyncio.create_task(one(2))]
        return "".join([await task for task in tasks])

    run = await settle(aflow, many)
    (_, first, second) = [
        key
        for (key,) in conn.execute("select effect from pgflow.obligations order by call").fetchall()
    ]
    with conn.transaction():
        conn.execute("select pgflow.settle_effect(%s, 'confirmed', '\"p\"')", (first,))
        conn.execute("select pgflow.confirm_effect('T-1', value => '{\"at\": \"noon\"}')")
        conn.execute("select pgflow.settle_effect(%s, 'confirmed', '\"q\"')", (second,))
    conn.execute("select pgflow.wake()")
    poll(aflow)
    assert await run.result(SOON) == "pq"
    assert effects(conn, "name, status, result") == [
        ("transfer", "confirmed", {"at": "noon"}),
        ("wire", "confirmed", "p"),
        ("wire", "confirmed", "q"),
    ]


async def test_an_effect_whose_result_cannot_be_stored_was_done_and_its_key_is_not_sent_again(
    aflow, conn
):
    done = []

    @effect(risk="compensable", dedup_window=HOUR, settle_retries=SLOWLY)
    async def buy() -> Any:
        done.append(pgflow.idempotency_key())
        return object()

    @workflow
    async def shop() -> Any:
        return await buy()

    run = await settle(aflow, shop)
    assert len(done) == 1
    assert run_row(conn, run.key, "status, reason") == ("stuck", "effect")
    await aflow.app.settle_effect(done[0], "confirmed", "bought", by="ada")
    assert await run.result(SOON) == "bought"
    assert len(done) == 1


@pytest.mark.full
async def test_a_word_whose_value_does_not_fit_is_told_to_the_code(aflow, conn, bank):
    bank.lose = lambda _: True

    @workflow
    async def payer() -> str:
        try:
            return await wire(9)
        except NotStorable as misfit:
            return f"done, with a value of another kind: {type(misfit).__name__}"

    run = await settle(aflow, payer)
    await aflow.app.settle_effect(bank.calls[0], "confirmed", {"not": "a text"}, by="ada")
    assert await run.result(SOON) == "done, with a value of another kind: NotStorable"
    assert effects(conn, "status") == [("confirmed",)]


@pytest.mark.full
async def test_a_debt_left_by_force_can_be_closed_whatever_its_state(aflow, conn, bank):
    may_end = asyncio.Event()

    async def slow(cents: int) -> str:
        del cents
        await may_end.wait()
        return "late"

    aflow.include(pay)
    aflow.replace(charge, slow)
    run = await aflow.start(pay, 3)
    await eventually(lambda: owed(conn) != [], "it is intended")
    ((key,),) = conn.execute("select effect from pgflow.obligations").fetchall()
    conn.execute("select pgflow.cancel_run(%s, 'enough', force => true)", (run.key,))
    await settled(
        aflow,
        conn,
        lambda: conn.execute("select count(*) from pgflow.outcome").fetchone() == (1,),
        "it is ended",
    )
    may_end.set()
    await aflow.until_idle()
    assert owed(conn) == [("charge", "intended")]
    await aflow.app.settle_effect(key, "absent", why="the bank has nothing", by="ada")
    assert owed(conn) == []
    assert effects(conn, "status") == [("failed",)]


@pytest.mark.full
async def test_a_word_that_came_before_a_forced_end_is_kept(aflow, conn, bank):
    bank.lose = lambda _: True
    run = await settle(aflow, pay_by_wire, 9)
    with conn.transaction():
        conn.execute("select pgflow.settle_effect(%s, 'confirmed', '\"seen\"')", (bank.calls[0],))
        conn.execute("select pgflow.cancel_run(%s, 'enough', force => true)", (run.key,))
    conn.execute("select pgflow.wake()")
    assert run_row(conn, run.key, "status")[0] == "cancelled"
    assert effects(conn, "status, result") == [("confirmed", "seen")]


def absent_in_time(
    conn: psycopg.Connection, asking: asyncio.Event, may_answer: asyncio.Event, *, is_keyed: bool
) -> Any:
    """A workflow with an effect that is lost once; asked, the bank takes its time to say no."""

    @effect(
        risk="compensable", settle_retries=SLOWLY, timeout=timedelta(seconds=20), keyed=is_keyed
    )
    async def act(cents: int) -> str:
        the_bank().calls.append(pgflow.idempotency_key())
        if len(the_bank().calls) == 1:
            raise ConnectionResetError(cents)
        return "again"

    @act.settle
    async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
        del cents
        the_bank().asked.append(kinds(conn))
        asking.set()
        await may_answer.wait()
        return Absent()

    @workflow
    async def asker() -> str:
        return await act(5)

    return asker


@pytest.mark.full
@pytest.mark.parametrize("is_keyed", [True, False])
async def test_absent_counts_by_when_it_was_asked_not_by_when_it_is_recorded(
    aflow, conn, bank, is_keyed
):
    asking, may_answer = asyncio.Event(), asyncio.Event()
    asker = absent_in_time(conn, asking, may_answer, is_keyed=is_keyed)
    run = await launch(aflow, asker)

    async def until_status(*wanted: str) -> str:
        def status() -> str:
            return run_row(conn, run.key, "status")[0]

        await settled(aflow, conn, lambda: status() in wanted, f"it is {wanted}")
        return status()

    await asyncio.wait_for(asking.wait(), HANG_SECONDS)
    conn.execute("select pgflow.pause_run(%s)", (run.key,))
    set_clock(aflow._dsn, timedelta(hours=2))
    may_answer.set()
    await until_status("paused")
    assert len(bank.calls) == 1
    conn.execute("select pgflow.resume_run(%s)", (run.key,))
    status = await until_status("completed", "stuck")
    assert len(bank.asked) == 2, "what was absent at once is asked again"
    assert (len(bank.calls), status) == ((2, "completed") if is_keyed else (1, "stuck"))


def travelling() -> Any:
    """A workflow with an effect whose precondition its own first attempt spoils."""

    @effect(risk="compensable", dedup_window=HOUR, settle_retries=SLOWLY)
    async def seat(cents: int) -> str:
        return the_bank().charge(cents, pgflow.idempotency_key())

    @seat.precondition
    async def _(cents: int) -> bool:
        del cents
        return not the_bank().booked

    @seat.settle
    async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
        del cents
        return Confirmed(str(the_bank().find(pgflow.idempotency_key())))

    @workflow
    async def traveller() -> str:
        try:
            return await seat(5)
        except Stale:
            return "nothing was done"

    return traveller


@pytest.mark.full
@pytest.mark.parametrize(
    "has_codes", [True, False], ids=["a journal of now", "a journal from before the codes"]
)
async def test_a_precondition_that_an_earlier_attempt_has_spoilt_proves_nothing(
    aflow, conn, bank, has_codes
):
    bank.lose = lambda n: n == 1
    traveller = travelling()
    run = await settle(aflow, traveller)
    await aflow.skip(timedelta(minutes=2))
    reasons = conn.execute(
        "select payload->>'reason' from pgflow.unit where kind = 'U' order by seq"
    ).fetchall()
    assert reasons == [("raised",), ("precondition_failed",)]
    await aflow.crash()
    if not has_codes:
        for (reason,) in reasons:
            change = "update pgflow.unit set payload = (payload::jsonb - 'reason' || jsonb_build_object('why', %s::text))::json where payload->>'reason' = %s"
            conn.execute("set pgflow.rewrites = 'on'")
            conn.execute(change, (WORDS[reason], reason))
    await aflow.until_idle()
    await aflow.skip(timedelta(minutes=2))
    assert await run.result(SOON) == "charge of 5"
    assert len(bank.calls) == 1
    found = effects(conn, "attempts, said_by")
    assert found == [(2, "settle")], "after what the second attempt found, the bank was asked"


async def test_infrastructure_in_a_precondition_is_no_outcome(aflow, conn):
    tries = []

    @effect(risk="compensable")
    async def buy(cents: int) -> str:
        return f"bought for {cents}"

    @buy.precondition
    async def _(cents: int) -> bool:
        tries.append(cents)
        if len(tries) == 1:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return True

    @workflow
    async def buyer() -> str:
        return await buy(1)

    assert await result_of(aflow, buyer) == "bought for 1"
    assert kinds(conn) == "iC"


@pytest.mark.parametrize(("late_seconds", "units"), [(8.0, "iC"), (12.0, "iEjC"), (60.0, "iEjC")])
async def test_an_act_begins_only_while_it_surely_ends_before_absent_is_believed(
    aflow, conn, bank, monkeypatch, late_seconds, units
):
    begin = EffectAttempts.act
    delays = iter([late_seconds])

    async def begin_late(self: EffectAttempts, execution: Any, call: Any) -> Any:
        # As if the worker had stood still since the intent was committed, and for no longer.
        call.attempted_us = execution.clock.estimate_us() - int(next(delays, 0) * 1e6)
        return await begin(self, execution, call)

    monkeypatch.setattr(EffectAttempts, "act", begin_late)

    @effect(
        risk="irreversible",
        keyed=False,
        timeout=timedelta(seconds=1),
        settle_after=timedelta(seconds=21),
    )
    async def post(cents: int) -> str:
        return the_bank().charge(cents, pgflow.idempotency_key())

    @workflow
    async def poster() -> str:
        return await post(4)

    await result_of(aflow, poster)
    assert kinds(conn) == units
    assert len(bank.calls) == 1


def test_options_may_not_call_absent_what_is_under_way():
    @effect(risk="reversible", settle_after=timedelta(seconds=30), timeout=timedelta(seconds=20))
    async def act() -> None: ...

    with pytest.raises(DefinitionError, match="settled after"):
        act.options(timeout=HOUR)
    with pytest.raises(DefinitionError, match=r"at least 0\.5 s longer"):
        act.options(timeout=timedelta(seconds=29.9))
    with pytest.raises(DefinitionError, match="not retried"):
        act.options(retries=3)


async def test_what_belongs_to_an_effect_belongs_to_its_variants(aflow, conn, bank):
    bank.lose = lambda _: True

    @effect(risk="reversible", settle_retries=SLOWLY)
    async def act(cents: int) -> str:
        return the_bank().charge(cents, pgflow.idempotency_key())

    quick = act.options(timeout=timedelta(seconds=5))

    @act.settle
    async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
        return Confirmed(f"found {cents}")

    @workflow
    async def actor() -> str:
        return await quick(3)

    assert await result_of(aflow, actor) == "found 3"


async def test_tasks_left_behind_do_nothing_more_while_the_run_owes(aflow, conn, bank):
    done: list[str] = []

    @effect(risk="reversible")
    async def book(name: str) -> str:
        done.append(name)
        return name

    @workflow
    async def hasty() -> str:
        async def behind() -> None:
            await transfer(3)
            await book("after the end")

        task = asyncio.create_task(behind())
        await pgflow.sleep(0.001)
        return f"done while {task.get_name()} goes on"

    run = await launch(aflow, hasty)
    await eventually(lambda: "i" in kinds(conn), "it is intended")
    await settled(
        aflow,
        conn,
        lambda: "T-3" in str(conn.execute("select ref from pgflow.obligations").fetchall()),
        "it is accepted",
    )
    await aflow.app.confirm_effect("T-3")
    assert (await run.result(SOON)).startswith("done while")
    assert set(done) <= {"after the end"}


@pytest.mark.full
async def test_a_run_that_waits_for_a_confirmation_says_that_it_owes(aflow, conn, bank):
    @workflow
    async def payout() -> None:
        await transfer(12)

    run = await settle(aflow, payout)
    assert run_row(conn, run.key, "status, reason") == ("waiting", "effect transfer")
    await aflow.app.confirm_effect("T-12")
    await run.result(SOON)


@pytest.mark.parametrize(("rule", "request_", "needs"), [
    ('{"predicate": "$.at.datetime() > \\"2024-01-01T00:00:00+00:00\\".datetime()"}',
        '{"at": "2025-01-01"}', "gate"),
    ('{"predicate": "$.at.datetime() > \\"2024-01-01T00:00:00+00:00\\".datetime()"}',
        '{"at": "2023-01-01"}', None),
    ('{"predicate": "$.at.datetime() > \\"2024-01-01\\".datetime()"}', '{"at": "no date"}',
        "gate"),
    ('{"amount": "strict $.cents", "above": 5}', "{}", "gate"),
    ('{"amount": "strict $.cents", "above": 5}', '{"cents": 4}', None),
    ('{"amount": "$.cents", "above": 5}', '{"cents": "a lot"}', "gate"),
    ('{"name": "other"}', "{}", None),
    ('{"risk": "reversible", "needs": "nothing"}', "{}", "nothing"),
])  # fmt: skip
def test_a_rule_that_cannot_be_judged_lets_nothing_through(conn, rule, request_, needs):
    conn.execute("select pgflow.set_policy(%s, 'x')", (f"[{rule}]",))
    assert conn.execute(
        "select needs from pgflow.needs_('a', 'reversible', %s)", (request_,)
    ).fetchone() == (needs,)


@pytest.mark.parametrize("limit", ['"NaN"', '"Infinity"', '"-Infinity"', '"x"'])
def test_a_limit_that_is_no_number_is_refused(conn, limit):
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(
            "select pgflow.set_policy(%s, 'x')", (f'[{{"amount": "$.a", "above": {limit}}}]',)
        )
    assert refused.value.sqlstate == "PF003"
