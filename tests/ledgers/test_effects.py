"""Effects: intent before the act, no blind repetition, and an outcome for whatever was not
known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import HOUR, SOON, eventually, launch, recover, result_of, run_row, settle
from servers import HANG_SECONDS

import pgflow
from pgflow import InvalidArgument, Retries, RunNotFound, workflow
from pgflow.effects import Absent, Accepted, Confirmed, StillUnknown, effect
from pgflow.errors import DefinitionError, EffectFailed, NeedsGate, Stale, WrongState
from pgflow.testing import AsyncHarness, set_clock

SLOWLY = Retries(
    max_attempts=4, first_delay=timedelta(minutes=1), backoff=1, max_delay=timedelta(minutes=1)
)


class CardDeclined(Exception):
    """The bank says no."""


class LostReply(Exception):
    """The request went out and nothing came back."""


@dataclass
class Bank:
    """A counterparty with a book of its own, which loses replies on demand."""

    booked: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    lose: Callable[[int], bool] = lambda _: False
    book_before_losing: bool = True
    forgets: bool = False

    def charge(self, cents: int, key: str) -> str:
        self.calls.append(key)
        lost = self.lose(len(self.calls))
        if not lost or self.book_before_losing:
            self.booked.setdefault(key, cents)
        if lost:
            raise LostReply(key)
        return f"charge of {self.booked[key]}"

    def find(self, key: str) -> str | None:
        self.asked.append(key)
        return None if self.forgets or key not in self.booked else f"charge of {self.booked[key]}"


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> Bank:
    found = Bank()
    monkeypatch.setitem(_BANKS, "bank", found)
    return found


_BANKS: dict[str, Bank] = {}


def the_bank() -> Bank:
    return _BANKS["bank"]


@effect(
    risk="compensable", raises=[CardDeclined], settle_retries=SLOWLY, timeout=timedelta(seconds=20)
)
async def charge(cents: int) -> str:
    if cents > 1000:
        raise CardDeclined("too much")
    return the_bank().charge(cents, pgflow.idempotency_key())


@charge.settle
async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
    del cents
    found = the_bank().find(pgflow.idempotency_key())
    return Confirmed(found) if found else Absent()


@effect(risk="irreversible", timeout=timedelta(seconds=20))
async def wire(cents: int) -> str:
    return the_bank().charge(cents, pgflow.idempotency_key())


@effect(risk="irreversible", keyed=False, settle_retries=SLOWLY, timeout=timedelta(seconds=20))
async def post(cents: int) -> str:
    return the_bank().charge(cents, pgflow.idempotency_key())


@post.settle
async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
    del cents
    return Absent()


@effect(risk="compensable", dedup_window=HOUR, settle_retries=SLOWLY)
async def charge_again(cents: int) -> str:
    return the_bank().charge(cents, pgflow.idempotency_key())


@charge_again.settle
async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
    del cents
    found = the_bank().find(pgflow.idempotency_key())
    return Confirmed(found) if found else StillUnknown()


@workflow(raises=[CardDeclined])
async def pay(cents: int) -> str:
    return await charge(cents)


@workflow
async def pay_by_wire(cents: int) -> str:
    return await wire(cents)


@workflow
async def pay_by_post(cents: int) -> str:
    return await post(cents)


@workflow
async def pay_insistently(cents: int) -> str:
    return await charge_again(cents)


def effects(
    conn: psycopg.Connection[Any], columns: str = "name, status, attempts, unknowns"
) -> list[tuple[Any, ...]]:
    return conn.execute(f"select {columns} from pgflow.effects order by run_id, call").fetchall()  # type: ignore[call-overload,no-any-return]


def owed(conn: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return conn.execute(
        "select name, state from pgflow.obligations order by run_id, call"
    ).fetchall()


def kinds(conn: psycopg.Connection[Any]) -> str:
    return "".join(
        kind
        for (kind,) in conn.execute("select kind from pgflow.unit order by run_id, seq").fetchall()
    )


async def test_an_effect_is_intended_before_it_acts_and_confirmed_after(aflow, conn, bank):
    seen: list[Any] = []

    async def fake(cents: int) -> str:
        seen.append(
            conn.execute(
                "select kind, key, payload->'request' from pgflow.unit where kind = 'i'"
            ).fetchall()
        )
        seen.append(owed(conn))
        return the_bank().charge(cents, pgflow.idempotency_key())

    aflow.include(pay)
    aflow.replace(charge, fake)
    run = await aflow.start(pay, 100)
    assert await run.result(SOON) == "charge of 100"
    ((key,),) = conn.execute("select root || '/charge/1' from pgflow.run").fetchall()
    assert seen == [[("i", key, {"cents": 100})], [("charge", "intended")]]
    assert bank.calls == [key]
    assert effects(conn, "effect, name, status, risk, request, result, attempts") == [
        (key, "charge", "confirmed", "compensable", {"cents": 100}, "charge of 100", 1)
    ]
    assert owed(conn) == []


def test_sync_effects_keep_the_same_books(flow, conn, bank):
    @effect(risk="reversible")
    def reserve(n: int) -> int:
        return len(the_bank().charge(n, pgflow.idempotency_key()))

    @workflow
    def shop() -> int:
        return reserve(3) + charge.sync(100).__len__()

    assert result_of(flow, shop) == len("charge of 3") + len("charge of 100")
    assert effects(conn) == [("reserve", "confirmed", 1, 0), ("charge", "confirmed", 1, 0)]
    assert len(bank.calls) == 2


async def test_a_definite_refusal_is_failed_and_raised_as_itself(aflow, conn, bank):
    with pytest.raises(pgflow.RunFailed) as failed:
        await result_of(aflow, pay, 5000)
    assert isinstance(failed.value.__cause__, CardDeclined)
    assert bank.calls == []
    assert effects(conn, "name, status, error->>'message'") == [("charge", "failed", "too much")]


async def test_a_lost_reply_is_asked_after_and_never_sent_again(aflow, conn, bank):
    bank.lose = lambda _: True
    assert await result_of(aflow, pay, 100) == "charge of 100"
    assert len(bank.calls) == 1
    assert bank.asked == bank.calls
    assert effects(conn) == [("charge", "confirmed", 1, 1)]
    assert kinds(conn) == "iUEC"


@pytest.mark.full
async def test_absent_is_believed_only_when_no_attempt_can_be_under_way(aflow, conn, bank):
    bank.lose = lambda n: n == 1
    bank.book_before_losing = False
    run = await settle(aflow, pay, 100)
    assert owed(conn) == [("charge", "unknown")]
    assert await run.status() == "waiting"
    await aflow.skip(timedelta(seconds=25))
    assert len(bank.calls) == 1, "thirty seconds, the time-out and ten more, are not over"
    await aflow.skip(timedelta(seconds=10))
    assert await run.result(SOON) == "charge of 100"
    assert len(bank.calls) == 2
    assert len(set(bank.calls)) == 1, "one key"
    assert effects(conn, "status, attempts, said_by") == [("confirmed", 2, "settle")]


async def hope_until_stuck(aflow: AsyncHarness, bank: Bank) -> Any:
    """A run that is stuck, since the counterparty that lost its reply could not say what became
    of it, four times.
    """
    bank.lose = lambda _: True

    @effect(risk="compensable", settle_retries=SLOWLY)
    async def hope(cents: int) -> str:
        return the_bank().charge(cents, pgflow.idempotency_key())

    answers: list[StillUnknown | Exception] = [
        StillUnknown(),
        ConnectionError("down"),
        StillUnknown(),
        StillUnknown(),
    ]

    @hope.settle
    async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
        del cents
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @workflow
    async def hopeful() -> str:
        return await hope(7)

    run = await settle(aflow, hopeful)
    for _ in range(3):
        assert await run.status() == "waiting"
        await aflow.skip(timedelta(minutes=2))
    assert await run.status() == "stuck"
    assert answers == []
    return run


@pytest.mark.full
async def test_a_counterparty_that_cannot_say_is_asked_again_and_at_last_a_person(
    aflow, conn, bank
):
    run = await hope_until_stuck(aflow, bank)
    ((key, detail),) = conn.execute(
        "select effect, detail->>'state' from pgflow.obligations"
    ).fetchall()
    assert detail == "unknown"
    assert key in run_row(conn, run.key, "error->>'message'")[0]


@pytest.mark.full
async def test_a_person_says_what_no_counterparty_could(aflow, conn, bank):
    run = await hope_until_stuck(aflow, bank)
    ((key,),) = conn.execute("select effect from pgflow.obligations").fetchall()
    await aflow.app.settle_effect(
        key, "confirmed", "seen on the statement", why="statement of May", by="ada"
    )
    assert await run.result(SOON) == "seen on the statement"
    assert len(bank.calls) == 1
    assert effects(conn, "status, said_by, unknowns") == [("confirmed", "ada (postgres)", 5)]


@pytest.mark.full
async def test_without_a_way_to_ask_the_run_is_stuck_and_a_person_decides(aflow, conn, bank):
    bank.lose = lambda _: True
    run = await settle(aflow, pay_by_wire, 9)
    assert run_row(conn, run.key, "status, reason") == ("stuck", "effect")
    key = bank.calls[0]
    with pytest.raises(InvalidArgument, match="confirmed, failed or absent"):
        await aflow.app.settle_effect(key, "perhaps")  # type: ignore[arg-type]
    with pytest.raises(RunNotFound, match="no open effect"):
        await aflow.app.settle_effect("nothing", "confirmed")
    await aflow.app.settle_effect(key, "failed", why="the bank never saw it", by="grace")
    with pytest.raises(pgflow.RunFailed) as failed:
        await run.result(SOON)
    assert isinstance(failed.value.__cause__, EffectFailed)
    assert "grace" in str(failed.value.__cause__)
    assert len(bank.calls) == 1


async def test_a_retry_by_a_person_asks_the_counterparty_again(aflow, conn, bank):
    bank.lose = lambda _: True

    @effect(
        risk="compensable",
        settle_retries=Retries(max_attempts=1, first_delay=timedelta(milliseconds=1)),
    )
    async def hope(cents: int) -> str:
        return the_bank().charge(cents, pgflow.idempotency_key())

    knows = False

    @hope.settle
    async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
        return Confirmed(f"found {cents}") if knows else StillUnknown()

    @workflow
    async def hopeful() -> str:
        return await hope(7)

    run = await settle(aflow, hopeful)
    assert await run.status() == "stuck"
    knows = True
    conn.execute("select pgflow.retry_run(%s)", (run.key,))
    conn.execute("select pgflow.wake()")
    assert await run.result(SOON) == "found 7"
    assert len(bank.calls) == 1


@pytest.mark.full
async def test_a_person_may_say_that_nothing_was_done_and_it_is_tried_again(aflow, conn, bank):
    bank.lose = lambda n: n == 1
    bank.book_before_losing = False
    run = await settle(aflow, pay_by_wire, 9)
    await aflow.app.settle_effect(bank.calls[0], "absent", by="ada")
    assert await run.result(SOON) == "charge of 9"
    assert len(bank.calls) == 2
    assert kinds(conn) == "iUEjC"


async def test_absent_does_not_repeat_what_has_no_key(aflow, conn, bank):
    bank.lose = lambda _: True
    bank.book_before_losing = False
    run = await settle(aflow, pay_by_post, 9)
    assert await run.status() == "waiting", "the attempt may still be under way"
    await aflow.skip(timedelta(seconds=31))
    assert run_row(conn, run.key, "status, reason") == ("stuck", "effect")
    assert len(bank.calls) == 1


@pytest.mark.full
async def test_within_the_window_the_same_key_is_sent_again_and_past_it_it_is_settled_first(
    aflow, conn, bank
):
    bank.lose = lambda n: n <= 2
    run = await settle(aflow, pay_insistently, 9)
    await aflow.skip(timedelta(minutes=2))
    assert len(bank.calls) == 2
    assert bank.asked == []
    await aflow.skip(timedelta(hours=2))
    assert await run.result(SOON) == "charge of 9"
    assert len(bank.calls) == 2
    assert len(bank.asked) == 1
    assert effects(conn, "status, attempts") == [("confirmed", 2)]


@pytest.mark.full
@pytest.mark.parametrize(("minutes", "sent", "asked"), [(54, 2, 0), (56, 1, 1)])
async def test_what_could_arrive_only_after_the_window_is_not_sent_again(
    aflow, bank, minutes, sent, asked
):
    """The window is an hour; an attempt may be under way for five minutes and ten seconds."""
    bank.lose = lambda n: n == 1
    run = await settle(aflow, pay_insistently, 9)
    await aflow.skip(timedelta(minutes=minutes))
    assert await run.result(SOON) == "charge of 9"
    assert (len(bank.calls), len(bank.asked)) == (sent, asked)


@pytest.mark.full
async def test_a_worker_lost_in_the_window_leaves_an_unknown_outcome(aflow, conn, bank):
    entered = asyncio.Event()

    async def slow(cents: int) -> str:
        the_bank().charge(cents, pgflow.idempotency_key())
        entered.set()
        await asyncio.sleep(60)
        return "never"

    aflow.include(pay)
    aflow.replace(charge, slow)
    run = await aflow.start(pay, 100)
    await asyncio.wait_for(entered.wait(), HANG_SECONDS)
    await recover(aflow)
    assert await run.result(SOON) == "charge of 100"
    assert len(bank.calls) == 1
    assert kinds(conn) == "iUEC"
    found = conn.execute("select payload->>'reason' from pgflow.unit where kind = 'U'").fetchall()
    assert found == [("worker_lost",)]


@pytest.mark.full
async def test_a_time_out_is_not_a_failure(aflow, conn, bank):
    @effect(risk="compensable", timeout=timedelta(milliseconds=50), settle_retries=SLOWLY)
    async def slow(cents: int) -> str:
        the_bank().charge(cents, pgflow.idempotency_key())
        await asyncio.sleep(60)
        return "never"

    @slow.settle
    async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
        del cents
        return Confirmed(str(the_bank().find(pgflow.idempotency_key())))

    @workflow
    async def patient() -> str:
        return await slow(4)

    assert await result_of(aflow, patient) == "charge of 4"
    assert effects(conn) == [("slow", "confirmed", 1, 1)]
    assert len(bank.calls) == 1


@pytest.mark.full
async def test_a_precondition_that_does_not_hold_leaves_the_world_alone(aflow, conn, bank):
    @effect(risk="compensable")
    async def buy(cents: int) -> str:
        return the_bank().charge(cents, pgflow.idempotency_key())

    @buy.precondition
    async def _(cents: int) -> bool:
        return cents < 10

    @workflow
    async def shopper(cents: int) -> str:
        try:
            return await buy(cents)
        except Stale as stale:
            return f"stale: {stale}"

    assert await result_of(aflow, shopper, 5) == "charge of 5"
    assert (await (await aflow.start(shopper, 50)).result(SOON)).startswith(
        "stale: the precondition of effect buy"
    )
    assert len(bank.calls) == 1
    assert effects(conn) == [("buy", "confirmed", 1, 0), ("buy", "failed", 1, 0)]


async def test_what_verification_does_not_find_is_unknown(aflow, conn, bank):
    @effect(risk="compensable", settle_retries=SLOWLY)
    async def buy(cents: int) -> str:
        return the_bank().charge(cents, pgflow.idempotency_key())

    @buy.verify
    async def _(found: str, cents: int) -> bool:
        return found == f"charge of {cents + 1}"

    @buy.settle
    async def _(cents: int) -> Confirmed[str] | Absent | StillUnknown:
        return Confirmed(f"checked {cents}")

    @workflow
    async def shopper() -> str:
        return await buy(5)

    assert await result_of(aflow, shopper) == "checked 5"
    assert kinds(conn) == "iUEC"
    assert len(bank.calls) == 1


def test_what_would_call_an_attempt_absent_that_may_be_under_way_is_refused():
    with pytest.raises(DefinitionError, match="settled after"):

        @effect(risk="reversible", settle_after=timedelta(seconds=1), timeout=timedelta(seconds=2))
        async def hasty() -> None: ...


def test_what_belongs_to_an_effect_has_its_colour():
    @effect(risk="reversible")
    async def coloured() -> None: ...

    with pytest.raises(DefinitionError, match="async def"):
        coloured.settle(lambda: Absent())  # type: ignore[arg-type,return-value]


@pytest.mark.full
async def test_an_effect_does_not_rest_on_what_was_read_too_long_ago(aflow, conn, bank):
    @pgflow.read(max_age=HOUR)
    async def price() -> int:
        return 7

    @workflow
    async def shopper(wait_seconds: float) -> str:
        cents = await price()
        await pgflow.sleep(wait_seconds)
        try:
            return await charge(cents)
        except Stale as stale:
            cents = await price()
            return f"{stale}; then {await charge(cents)}"

    fresh = await launch(aflow, shopper, 1800)
    old = await settle(aflow, shopper, 4000)
    await aflow.skip(timedelta(seconds=1900))
    assert await fresh.result(SOON) == "charge of 7"
    await aflow.skip(timedelta(seconds=4100))
    assert (
        await old.result(SOON)
        == "effect charge rests on a result of price that is too old; nothing was done; "
        "then charge of 7"
    )
    assert len(bank.calls) == 2


@effect(risk="irreversible")
async def transfer(cents: int) -> str | Accepted:
    the_bank().charge(cents, pgflow.idempotency_key())
    return Accepted(f"T-{cents}")


@workflow
async def payout(cents: int) -> str:
    taken = await transfer(cents)
    assert isinstance(taken, Accepted)
    return f"under {taken.ref}"


@pytest.mark.full
async def test_a_run_that_owes_does_not_end_before_its_effect_is_confirmed(aflow, conn, bank):
    run = await settle(aflow, payout, 12)
    assert await run.status() == "waiting"
    assert owed(conn) == [("transfer", "accepted")]
    await recover(aflow)
    assert await run.status() == "waiting"
    with pytest.raises(RunNotFound, match="T-13"):
        await aflow.app.confirm_effect("T-13")
    await aflow.app.confirm_effect("T-12", value={"at": "noon"}, by="webhook")
    assert await run.result(SOON) == "under T-12"
    assert effects(conn, "status, ref, said_by") == [("confirmed", "T-12", "webhook (postgres)")]
    assert owed(conn) == []
    assert len(bank.calls) == 1


async def test_a_confirmation_may_come_while_the_code_still_goes_on(aflow, conn, bank):
    go = pgflow.Signal("go", str)

    @workflow
    async def payout_slowly() -> str:
        taken = await transfer(5)
        assert isinstance(taken, Accepted)
        return taken.ref + await go.wait()

    run = await settle(aflow, payout_slowly)
    await aflow.app.confirm_effect("T-5", "failed", why="account closed", by="webhook")
    await aflow.until_idle()
    assert effects(conn, "status") == [("failed",)]
    await run.send(go, "!")
    assert await run.result(SOON) == "T-5!"
    assert len(bank.calls) == 1


@pytest.mark.full
async def test_a_next_generation_has_keys_of_its_own(aflow, conn, bank):
    @workflow
    async def monthly(months: int) -> int:
        await charge(months)
        if months > 1:
            pgflow.continue_as_new(months - 1)
        return months

    assert await result_of(aflow, monthly, 3) == 1
    assert len(set(bank.calls)) == len(bank.calls) == 3
    assert sorted(bank.booked.values()) == [1, 2, 3]


@pytest.mark.full
async def test_an_effect_that_the_code_gave_up_is_still_followed_to_its_end(aflow, conn, bank):
    may_end = asyncio.Event()

    async def slow(cents: int) -> str:
        await may_end.wait()
        return the_bank().charge(cents, pgflow.idempotency_key())

    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(60):
                return await charge(100)
        except TimeoutError:
            return "gave up"

    aflow.include(impatient)
    aflow.replace(charge, slow)
    run = await aflow.start(impatient)
    await eventually(lambda: "i" in kinds(conn), "it is intended")
    set_clock(aflow._dsn, timedelta(seconds=61))
    aflow._worker.poll_now()  # type: ignore[union-attr]
    await eventually(lambda: "X" in kinds(conn), "the code has given it up")
    assert await run.status() == "running"
    may_end.set()
    assert await run.result(SOON) == "gave up"
    assert effects(conn) == [("charge", "confirmed", 1, 0)]


@pytest.mark.full
async def test_an_effect_left_open_by_force_can_still_be_closed(aflow, conn, bank):
    bank.lose = lambda _: True
    run = await settle(aflow, pay_by_wire, 9)
    conn.execute("select pgflow.cancel_run(%s, 'enough', force => true)", (run.key,))
    await aflow.until_idle()
    assert await run.status() == "cancelled"
    assert owed(conn) == [("wire", "unknown")]
    found = conn.execute("select runs from pgflow.drop_history(pgflow.now_())").fetchone()
    assert found == (0,), "what is owed is not forgotten"
    await aflow.app.settle_effect(bank.calls[0], "confirmed", "found it", by="ada")
    assert owed(conn) == []
    assert effects(conn, "status, said_by") == [("confirmed", "ada (postgres)")]


@pytest.mark.full
async def test_an_effect_under_way_cannot_be_settled(aflow, conn, bank):
    may_end = asyncio.Event()

    async def slow(cents: int) -> str:
        await may_end.wait()
        return the_bank().charge(cents, pgflow.idempotency_key())

    aflow.include(pay)
    aflow.replace(charge, slow)
    run = await aflow.start(pay, 3)
    await eventually(lambda: owed(conn) != [], "it is intended")
    ((key,),) = conn.execute("select effect from pgflow.obligations").fetchall()
    with pytest.raises(WrongState, match="under way"):
        await aflow.app.settle_effect(key, "confirmed", "me")
    may_end.set()
    assert await run.result(SOON) == "charge of 3"


@pytest.mark.full
async def test_the_policy_says_what_needs_a_gate(aflow, conn, bank):
    rules = '[{"name": "charge", "amount": "$.cents", "above": 500}, {"risk": "irreversible", "predicate": "$.cents == 9"}]'
    ((version,),) = conn.execute("select pgflow.set_policy(%s, 'first')", (rules,)).fetchall()
    assert version == 1

    @workflow
    async def both(cents: int) -> list[str]:
        said = []
        for pay_it in (charge, wire):
            try:
                said.append(await pay_it(cents))
            except NeedsGate as refused:
                said.append(str(refused))
        return said

    aflow.include(both)
    refused = "effect {} was not approved: ann rejected it: too much; it did not run"
    first, second = await aflow.start(both, 600), await aflow.start(both, 9)
    await aflow.answer("policy/charge", pgflow.authority.Reject("too much"), by="ann")
    await aflow.answer("policy/wire", pgflow.authority.Reject("too much"), by="ann")
    assert await first.result(SOON) == [refused.format("charge"), "charge of 600"]
    assert await second.result(SOON) == ["charge of 9", refused.format("wire")]
    assert sorted(bank.booked.values()) == [9, 600]
    assert effects(conn, "name, policy_version") == [("wire", 1), ("charge", 1)]
    conn.execute("select pgflow.set_policy('[]', 'none')")
    assert await (await aflow.start(both, 9)).result(SOON) == ["charge of 9", "charge of 9"]


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("{}", "array"),
        ('[{"gate": 1}]', "not 'gate'"),
        ('[{"risk": "none"}]', "cannot be"),
        ('[{"amount": "$.x"}]', "cannot be"),
        ('[{"predicate": "$.x =="}]', "cannot be read"),
        ("[1]", "not ''"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(conn, rules, says):
    with pytest.raises(psycopg.Error, match=says) as refused:
        conn.execute("select pgflow.set_policy(%s, 'bad')", (rules,))
    assert refused.value.sqlstate == "PF003"
