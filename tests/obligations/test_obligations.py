"""Obligations: what a run owes is closed by somebody, or stays on the books; never dropped."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from records import HOUR, SOON, eventually, launch, result_of, run_row, settle
from sqlkit import one, rows

import pgflow
from pgflow import InvalidArgument, RunCancelled, RunFailed, RunNotFound, Signal, Workflow, workflow
from pgflow.authority import Admit, Approve, Approved, Obligation, Pool
from pgflow.errors import NotAllowed, NotInRunError, NotStorable, WrongState
from pgflow.testing import AsyncHarness

Conn = psycopg.Connection[Any]


go = Signal("go", str)
overdue = Signal("overdue", Obligation)
DAY = timedelta(days=1)
alarms: list[Any] = []


@pytest.fixture(autouse=True)
def world() -> None:
    alarms.clear()


@pgflow.step
async def sound(what: str) -> None:
    alarms.append(what)


@workflow
async def escalate(obligation: Obligation) -> str:
    await sound(f"{obligation.what} for {obligation.to}")
    return obligation.key


@workflow
async def promises(due: float | None = None, outlives: bool = False) -> str:
    refund = pgflow.authority.owe(
        "refund", to="ada", due=due, outlives=outlives, detail={"eur": 30}
    )
    return refund.key


@workflow
def promises_in_sync() -> str:
    return pgflow.authority.owe("refund", to="ada").key


@workflow
async def keeps() -> str:
    refund = pgflow.authority.owe("refund", to="ada")
    said = await go.wait()
    if said == "waive":
        pgflow.authority.waive(refund, by="ada", why="she does not want it")
    elif said == "transfer":
        pgflow.authority.transfer(refund, "support", why="it takes weeks")
    elif said == "fail":
        raise ValueError("no money")
    else:
        pgflow.authority.discharge(refund.key, evidence={"receipt": said})
    return said


def owed(conn: Conn, columns: str = "name, state") -> list[Any]:
    return rows(conn, f"select {columns} from pgflow.obligations order by opened_at, run_id, call")


def key_of(conn: Conn) -> str:
    return one(conn, "select effect from pgflow.obligations")


def events(conn: Conn, columns: str = "kind, name") -> list[Any]:
    return rows(
        conn,
        f"select {columns} from pgflow.unit where kind in ('O', 'D', 'B') order by run_id, seq",
    )


async def waits(aflow: AsyncHarness, conn: Conn, key: str) -> None:
    await aflow.until_idle()
    assert run_row(conn, key, "status, reason_code") == ("waiting", "owes")


async def test_a_run_that_owes_does_not_complete_until_it_is_discharged(aflow, conn):
    run = await launch(aflow, promises.options(key="k"))
    await waits(aflow, conn, "k")
    root = one(conn, "select root::text from pgflow.run")
    assert owed(conn, "key, kind, name, state, owed_to, due_at, detail, effect, outlives") == [
        (
            "k",
            "obligation",
            "refund",
            "open",
            "ada",
            None,
            {"eur": 30},
            f"{root}/owe/refund/1",
            False,
        )
    ]
    assert run_row(conn, "k", "reason_detail") == ({"obligations": 1},)
    await aflow.app.discharge(key_of(conn), {"receipt": 7}, by="bob")
    assert await run.result(SOON) == f"{root}/owe/refund/1"
    assert owed(conn) == []
    assert events(conn, "kind, name, call, payload->>'verdict', payload->>'by'") == [
        ("O", "refund", 1, None, None),
        ("D", "refund", 1, "discharged", "bob (postgres)"),
    ]
    found = one(conn, "select payload->'evidence' from pgflow.unit where kind = 'D'")
    assert found == {"receipt": 7}


@pytest.mark.parametrize(
    ("said", "verdict"), [("r-1", "discharged"), ("waive", "waived"), ("transfer", "transferred")]
)
async def test_the_code_closes_what_it_owes(aflow, conn, said, verdict):
    run = await launch(aflow, keeps)
    await run.send(go, said)
    assert await run.result(SOON) == said
    assert events(conn, "kind, payload->>'verdict'") == [("O", None), ("D", verdict)]
    held = [("refund", "open", "support", True)] if said == "transfer" else []
    assert owed(conn, "name, state, holder, outlives") == held


def test_a_sync_workflow_owes_as_an_async_one_does(flow, conn):
    run = settle(flow, promises_in_sync.options(key="k"))
    assert run_row(conn, "k", "status, reason_code") == ("waiting", "owes")
    flow.app.waive(key_of(conn), by="ada", why="never mind")
    assert run.result(SOON).endswith("/owe/refund/1")


async def test_each_use_of_a_name_is_an_obligation_of_its_own(aflow, conn):
    @workflow
    async def twice() -> list[str]:
        return [pgflow.authority.owe(what, outlives=True).key for what in ("a", "b", "a")]

    run = await launch(aflow, twice)
    root = one(conn, "select root::text from pgflow.run")
    assert await run.result(SOON) == [f"{root}/owe/{place}" for place in ("a/1", "b/1", "a/2")]
    assert sorted(owed(conn, "effect")) == sorted(await run.result(SOON))


async def test_what_is_closed_twice_counts_once_and_the_code_goes_on(aflow, conn):
    run = await settle(aflow, keeps)
    await aflow.app.waive(key_of(conn), by="eve", why="a mistake")
    await aflow.until_idle()
    assert owed(conn) == []
    await run.send(go, "r-1")
    assert await run.result(SOON) == "r-1"
    assert events(conn, "payload->>'verdict'")[1:] == ["waived", "discharged"]


@pytest.mark.full
async def test_what_outlives_its_run_is_closed_after_the_outcome(aflow, conn):
    key = await result_of(aflow, promises, None, True)
    assert owed(conn, "effect, state, outlives") == [(key, "open", True)]
    await aflow.app.transfer(key, "support", why="they know her", by="bob")
    assert owed(conn, "holder, state") == [("support", "open")]
    await aflow.app.discharge(key, "by hand", by="bob")
    assert owed(conn) == []
    with pytest.raises(RunNotFound, match="no open obligation"):
        await aflow.app.discharge(key)
    with pytest.raises(RunNotFound):
        await aflow.app.waive(key, by="bob", why="once more")
    found = events(conn, "kind, token = 0, payload->>'verdict'")[1:]
    assert found == [("D", True, "transferred"), ("D", True, "discharged")]


async def test_what_a_failed_run_owes_stays_for_a_person(aflow, conn):
    run = await launch(aflow, keeps)
    await run.send(go, "fail")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert owed(conn, "name, state, reason") == [("refund", "open", "failed")]
    found = rows(conn, "select kind, effect from pgflow.needs_person_()")
    assert found == [("obligation", key_of(conn))]
    await aflow.app.discharge(key_of(conn), by="bob")
    assert owed(conn) == []


@pytest.mark.full
@pytest.mark.parametrize("has_ended", [False, True])
async def test_what_a_cancelled_run_owes_stays_for_a_person(aflow, conn, has_ended):
    run = await settle(aflow, promises if has_ended else keeps)
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(SOON)
    assert owed(conn, "name, state, reason") == [("refund", "open", "cancelled")]


async def test_a_run_ended_by_force_drops_nothing(aflow, conn):
    run = await settle(aflow, keeps.options(key="k"))
    conn.execute("select pgflow.force_cancel_run('k')")
    with pytest.raises(RunCancelled):
        await run.result(SOON)
    assert owed(conn, "name, state, reason") == [("refund", "open", "cancelled")]
    await aflow.app.waive(key_of(conn), by="bob", why="she is gone")


@pytest.mark.full
async def test_a_word_that_crosses_the_end_of_its_run_counts(aflow, conn):
    """The sender has seen the run open; by the time it commits, the run has failed."""
    run = await settle(aflow, keeps)
    with conn.transaction():
        conn.execute("select pgflow.discharge(%s, '1')", (key_of(conn),))
        await run.send(go, "fail")
        with pytest.raises(RunFailed):
            await run.result(SOON)
    await aflow.app.nudge()
    await eventually(lambda: owed(conn) == [], "the next wake takes it")
    assert events(conn, "kind, payload->>'verdict'")[1:] == [("D", "discharged")]
    assert one(conn, "select count(*) from pgflow.signal") == 0


@workflow
async def hands_on(key: str | None = None) -> str:
    if key is None:
        key = pgflow.authority.owe("refund").key
        await go.wait()
        pgflow.continue_as_new(key)
    return key


async def test_a_word_that_crosses_the_next_generation_counts_and_holds_nobody_up(aflow, conn):
    """The run hands its debt on while the sender's transaction is open."""
    run = await settle(aflow, hands_on.options(key="k"))
    with conn.transaction():
        conn.execute("select pgflow.discharge(%s)", (key_of(conn),))
        await run.send(go, "on")
        await eventually(
            lambda: run_row(conn, "k", "generation, status") == (2, "waiting"), "it goes on"
        )
    await aflow.app.nudge()
    assert await run.result(SOON)
    assert owed(conn) == []


@pytest.mark.full
@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_word_that_crosses_a_restart_counts(aflow, conn, has_failed):
    """Only into the journal of a run that has ended is it written at once: a restart waits then."""
    run = await launch(aflow, keeps.options(key="k"))
    if has_failed:
        await run.send(go, "fail")
        with pytest.raises(RunFailed):
            await run.result(SOON)
    await aflow.until_idle()
    key = key_of(conn)
    with conn.transaction():
        conn.execute("select pgflow.discharge(%s)", (key,))
        again = asyncio.ensure_future(aflow.app.restart("k"))
        if has_failed:
            with psycopg.connect(aflow.app.dsn, autocommit=True) as watcher:
                waits = (
                    "select count(*) = 1 from pg_stat_activity where wait_event_type = 'Lock' "
                    "and datname = current_database()"
                )
                await eventually(lambda: one(watcher, waits), "the restart waits")
        else:
            await again
    await again
    await aflow.app.nudge()
    await eventually(lambda: key not in owed(conn, "effect"), "the word has counted")
    assert "discharged" in events(conn, "payload->>'verdict'")


@pytest.mark.full
async def test_a_word_that_retention_keeps_from_being_recorded_is_looked_for_again(
    aflow, conn, dsn
):
    run = await launch(aflow, keeps)
    await run.send(go, "fail")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    await aflow.until_idle()
    await aflow.crash()
    key = key_of(conn)
    word = (
        "insert into pgflow.signal (chain_id, run_id, call, kind, name, sent_at, sent_by, payload)"
        " select run_id, run_id, call, 'e', name, now(), 'bob',"
        " json_build_object('obligation', %s::text, 'verdict', 'discharged') from pgflow.owed"
    )
    conn.execute(word, (key,))
    aside = "select pgflow.put_mail_aside_(array(select run_id from pgflow.run), now())"
    with psycopg.connect(dsn) as retention:
        retention.execute("select pg_advisory_xact_lock(pgflow.latch_('retention'))")
        conn.execute(aside)
        conn.execute(aside)
        assert one(conn, "select count(*) from pgflow.nudge") == 1
    conn.execute("select pgflow.wake()")
    assert owed(conn) == []


async def test_an_open_transaction_closes_an_obligation_or_rolls_that_back(aflow, conn, dsn):
    run = await settle(aflow, promises)
    async with await psycopg.AsyncConnection.connect(dsn) as mine:
        await aflow.app.using(mine).discharge(key_of(conn))
        await mine.rollback()
        await aflow.until_idle()
        assert owed(conn) == [("refund", "open")]
        await aflow.app.using(mine).discharge(key_of(conn))
    assert await run.result(SOON)


@pytest.mark.full
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_verbs_work_at_every_isolation_level(flow, conn, level):
    flow.include(promises)
    runs = [flow.start(promises), flow.start(promises, None, True)]
    flow.until_idle()
    for key in owed(conn, "effect"):
        with conn.transaction():
            conn.execute(f"set transaction isolation level {level}")
            conn.execute("select pgflow.transfer_obligation(%s, 'ada')", (key,))
            conn.execute("select pgflow.discharge(%s)", (key,))
    for run in runs:
        assert run.result(SOON)
    flow.until_idle()
    assert owed(conn) == []


async def test_discharge_closes_the_debt_of_an_effect_too(aflow, conn):
    @pgflow.effects.effect(risk="compensable")
    async def charge() -> str:
        return "paper"

    @charge.compensate
    async def _(paper: str) -> None: ...

    @workflow
    async def order() -> str:
        await charge()
        return await go.wait()

    run = await settle(aflow, order.options(key="k"))
    effect_key = one(conn, "select effect from pgflow.effects")
    conn.execute("select pgflow.force_cancel_run('k')")
    with pytest.raises(RunCancelled):
        await run.result(SOON)
    assert owed(conn) == [("charge", "uncompensated")]
    await aflow.app.discharge(effect_key, "given back in cash", by="bob")
    assert owed(conn) == []


@pytest.mark.full
async def test_only_who_may_settle_effects_discharges_the_debt_of_one(aflow, conn):
    @pgflow.effects.effect(risk="compensable")
    async def charge() -> str:
        return "paper"

    @charge.compensate
    async def _(paper: str) -> None: ...

    @workflow
    async def order() -> str:
        await charge()
        return await go.wait()

    await settle(aflow, order.options(key="k"))
    effect_key = one(conn, "select effect from pgflow.effects")
    conn.execute("select pgflow.force_cancel_run('k')")
    await aflow.app.nudge()
    await eventually(lambda: owed(conn) == [("charge", "uncompensated")], "it is owed")
    for role, may in (("pgflow_client", False), ("pgflow_worker", True), ("pgflow_operator", True)):
        with conn.transaction(force_rollback=True):
            conn.execute(f"set local role {role}")  # type: ignore[arg-type]
            if may:
                conn.execute("select pgflow.discharge(%s)", (effect_key,))
                continue
            with pytest.raises(psycopg.Error, match="may discharge obligations") as refused:
                conn.execute("select pgflow.discharge(%s)", (effect_key,))
            assert refused.value.sqlstate == NotAllowed.sqlstate


async def test_an_effect_that_is_not_settled_is_not_discharged(aflow, conn):
    @pgflow.effects.effect(risk="irreversible")
    async def wire() -> pgflow.effects.Accepted:
        return pgflow.effects.Accepted("r-1")

    @workflow
    async def pay() -> None:
        await wire()

    run = await settle(aflow, pay)
    with pytest.raises(WrongState, match="settled, not discharged"):
        await aflow.app.discharge(key_of(conn))
    await aflow.app.confirm_effect("r-1")
    await run.result(SOON)


async def test_a_run_with_an_effect_and_an_obligation_waits_for_both(aflow, conn):
    @pgflow.effects.effect(risk="irreversible")
    async def wire() -> pgflow.effects.Accepted:
        return pgflow.effects.Accepted("r-2")

    @workflow
    async def pay() -> str:
        pgflow.authority.owe("receipt")
        await wire()
        return "done"

    run = await settle(aflow, pay.options(key="k"))
    assert run_row(conn, "k", "status, reason_code") == ("waiting", "effect")
    await aflow.app.confirm_effect("r-2")
    await waits(aflow, conn, "k")
    await aflow.app.discharge(key_of(conn))
    assert await run.result(SOON) == "done"


@pytest.mark.full
async def test_a_breach_is_recorded_by_the_database_clock_and_it_stays_owed(aflow, conn):
    before = one(conn, "select pgflow.now_()")
    run = await launch(aflow, promises.options(key="k"), 3600)
    due = await aflow.until_idle()
    assert due is not None
    ((state, due_at, now),) = owed(conn, "state, due_at, pgflow.now_()")
    assert state == "open"
    assert before <= due_at - HOUR <= now
    await aflow.skip(HOUR)
    await eventually(lambda: "B" in events(conn, "kind"), "the run hears of it")
    await waits(aflow, conn, "k")
    assert owed(conn, "name, state") == [("refund", "breached")]
    await aflow.skip(DAY)
    await aflow.until_idle()
    assert events(conn, "kind") == ["O", "B"], "it is breached once"
    await aflow.app.discharge(key_of(conn), "late")
    assert await run.result(SOON)


async def test_a_breach_sends_the_run_a_signal(aflow, conn):
    @workflow
    async def attentive() -> tuple[str, Any]:
        made = pgflow.authority.owe("refund", to="ada", due=HOUR, on_breach=overdue, detail=[1, 2])
        told = await overdue.wait()
        assert told == made
        pgflow.authority.discharge(told)
        return told.key, told.detail

    run = await settle(aflow, attentive)
    key = key_of(conn)
    await aflow.skip(HOUR)
    assert await run.result(SOON) == (key, [1, 2])
    assert sorted(events(conn, "kind")) == ["B", "D", "O"]


async def test_a_breach_starts_a_workflow_once_under_a_key_of_its_own(aflow, conn):
    @workflow
    async def careless() -> str:
        return pgflow.authority.owe(
            "refund", to="ada", due=HOUR, on_breach=escalate, outlives=True
        ).key

    aflow.include(escalate)
    key = await result_of(aflow, careless)
    await aflow.skip(HOUR)
    await eventually(lambda: alarms == ["refund for ada"], "somebody is alarmed")
    await aflow.skip(DAY)
    await aflow.until_idle()
    assert alarms == ["refund for ada"]
    assert run_row(conn, f"{key}/breach", "status, workflow") == ("completed", "escalate")
    assert owed(conn, "state, effect") == [("breached", key)]
    assert events(conn, "kind, token = 0") == [("O", False), ("B", True)]
    await aflow.app.discharge(key)


@pytest.mark.full
async def test_two_sweeps_at_once_breach_an_obligation_once(aflow, conn, dsn):
    @workflow
    async def careless() -> str:
        return pgflow.authority.owe("refund", due=HOUR, on_breach=escalate, outlives=True).key

    aflow.include(escalate)
    run = await launch(aflow, careless)
    await run.result(SOON)
    await aflow.crash()
    await aflow.skip(HOUR)
    with psycopg.connect(dsn) as one_sweep, psycopg.connect(dsn) as another:
        one_sweep.execute("select pgflow.poll()")
        another.execute("select pgflow.poll()")
        another.commit()
        one_sweep.commit()
        another.execute("select pgflow.poll()")
    assert events(conn, "kind") == ["O", "B"]
    assert one(conn, "select count(*) from pgflow.run") == 2


async def test_a_breach_that_cannot_start_its_workflow_pages_a_person(aflow, conn):
    @workflow
    async def careless() -> str:
        return pgflow.authority.owe("refund", due=HOUR, on_breach=escalate, outlives=True).key

    aflow.include(escalate)
    await (await launch(aflow, careless)).result(SOON)
    conn.execute(
        "update pgflow.owed set detail = jsonb_set(detail, '{on_breach,priority}', '99999')"
    )
    await aflow.skip(HOUR)
    await eventually(lambda: owed(conn) == [("refund", "breached")], "it is breached")
    found = rows(conn, "select kind, detail->>'trouble' from pgflow.owed")
    assert found == [("obligation", "PF003")]
    assert rows(conn, "select kind from pgflow.needs_person_()") == ["obligation"]


@pytest.mark.parametrize("named", [None, "others", "its own"])
async def test_what_a_breach_starts_draws_on_the_pool_of_its_run_unless_it_names_another(
    aflow, conn, named
):
    breached: Workflow[[Obligation], str] = escalate
    if named == "its own":
        breached = escalate.options(budget={"usd": Decimal("0.5")})
    elif named is not None:
        breached = escalate.options(pool=named)

    @workflow
    async def careless() -> str:
        return pgflow.authority.owe("refund", due=HOUR, on_breach=breached, outlives=True).key

    aflow(pools=[Pool("user", usd=1), Pool("others", usd=1)]).include(escalate, careless)
    key = await (await aflow.start(careless.options(pool="user"))).result(SOON)
    await aflow.skip(HOUR)
    await eventually(lambda: len(alarms) == 1, "somebody is alarmed")
    pools = one(
        conn,
        "select p.pools from pgflow.run r join pgflow.pool p on p.name = r.pool where r.key = %s",
        f"{key}/breach",
    )
    if named == "its own":
        assert pools[1:] == ["user"]
    else:
        assert pools == [named or "user"]
    await aflow.app.discharge(key)


@pytest.mark.full
async def test_what_the_end_of_the_code_leaves_behind_reserves_nothing_while_the_run_owes(
    aflow, conn
):
    entered = asyncio.Event()

    @pgflow.step
    async def slow() -> None:
        entered.set()
        await asyncio.Event().wait()

    @workflow
    async def careless() -> str:
        other = asyncio.ensure_future(slow.options(admit=Admit(usd=Decimal("0.5")))())
        refund = pgflow.authority.owe("refund")
        await go.wait()
        del other
        return refund.key

    aflow(pools=[Pool("user", usd=1)]).include(careless)
    run = await aflow.start(careless.options(key="k", pool="user"))
    await entered.wait()
    await aflow.crash()
    assert one(conn, "select count(*) from pgflow.reservation") == 1
    await run.send(go, "end")
    await waits(aflow, conn, "k")
    assert rows(conn, "select run_id from pgflow.reservation") == []
    await aflow.app.discharge(key_of(conn))
    await run.result(SOON)


async def test_a_batch_that_draws_has_the_rows_of_obligations_before_those_of_pools(
    aflow, conn, dsn
):
    """Else a sweep that breaches one, and waits for the pool of a run that is ended by force, waits
    for a batch that waits for the sweep.
    """

    @workflow
    async def fails() -> None:
        pgflow.authority.owe("refund", due=HOUR)
        await go.wait()
        pgflow.authority.charge(usd=Decimal("0.1"))
        raise ValueError("no money")

    aflow(pools=[Pool("user", usd=1)]).include(fails)
    run = await settle(aflow, fails.options(key="k", pool="user"))
    with psycopg.connect(dsn) as sweep:
        sweep.execute("select from pgflow.owed for update")
        await run.send(go, "on")
        await eventually(
            lambda: (
                one(
                    conn,
                    "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
                    "and datname = current_database()",
                )
                == 1
            ),
            "the batch waits for the row",
        )
        # In a circle the sweep is to be the one that is told.
        sweep.execute("set local deadlock_timeout = '1ms'")
        sweep.execute("select pgflow.lock_pools_(array['user'])")
        sweep.commit()
    with pytest.raises(RunFailed):
        await run.result(SOON)


async def test_a_breach_pages_a_person_once(aflow, conn):
    pages: list[pgflow.Page] = []

    @workflow
    async def careless() -> str:
        return pgflow.authority.owe(
            "refund", to="ada", due=HOUR, on_breach="page", outlives=True
        ).key

    @aflow.app.pager
    async def tell(page: pgflow.Page) -> None:
        pages.append(page)

    key = await (await launch(aflow, careless)).result(SOON)
    await aflow.skip(HOUR)
    await eventually(lambda: len(pages) == 1, "somebody is told")
    (page,) = pages
    assert (page.kind, page.name, page.effect, page.reason) == (
        "obligation",
        "refund",
        key,
        "breached",
    )
    assert "ada" in page.why


async def test_a_discharged_obligation_is_not_breached(aflow, conn):
    run = await settle(aflow, promises, 3600)
    await aflow.app.discharge(key_of(conn))
    await run.result(SOON)
    await aflow.skip(DAY)
    await aflow.until_idle()
    assert events(conn, "kind") == ["O", "D"]


async def test_what_a_caller_keeps_locked_makes_no_poll_hurry(aflow, conn, dsn):
    key = await result_of(aflow, promises, 3600, True)
    await aflow.crash()
    conn.execute("update pgflow.owed set due_at = due_at - interval '2 hours'")
    with psycopg.connect(dsn) as caller:
        caller.execute("select pgflow.transfer_obligation(%s, 'support')", (key,))
        assert one(conn, "select next_due_seconds from pgflow.poll()") is None
        assert owed(conn) == [("refund", "open")]
    conn.execute("select pgflow.poll()")
    assert owed(conn, "state, holder") == [("breached", "support")]


@pytest.mark.full
async def test_a_breach_does_what_was_agreed_on_when_it_was_promised(aflow, conn):
    terms: list[Any] = [escalate, overdue]

    @workflow
    async def changing() -> str:
        key = pgflow.authority.owe("refund", to="ada", due=HOUR, on_breach=terms[0]).key
        return key + await go.wait()

    aflow.include(escalate)
    await settle(aflow, changing.options(key="k"))
    terms.reverse()
    await aflow.app.restart("k")
    await aflow.until_idle()
    assert events(conn, "kind")[2:] == ["O", "O"], "the new code has asked for it again"
    await aflow.skip(HOUR)
    await eventually(lambda: alarms == ["refund for ada"], "the workflow is started all the same")
    await aflow.app.discharge(key_of(conn))
    await aflow.app.send("k", go, "!")
    await eventually(lambda: run_row(conn, "k", "status") == ("completed",), "it ends")


async def test_a_due_time_may_be_a_point_in_time(aflow, conn):
    at = datetime(2200, 1, 1, 0, 0, 0, 1, tzinfo=UTC)

    @workflow
    async def dated() -> None:
        pgflow.authority.owe("refund", due=at, outlives=True)

    await (await launch(aflow, dated)).result(SOON)
    assert owed(conn, "due_at") == [at]


@pytest.mark.full
async def test_a_crash_forgets_no_promise_and_makes_none_twice(aflow, conn):
    run = await settle(aflow, keeps)
    await aflow.crash()
    await aflow.app.transfer(key_of(conn), "support")
    await aflow.until_idle()
    await aflow.crash()
    await run.send(go, "r-1")
    await aflow.until_idle()
    assert await run.result(SOON) == "r-1"
    found = events(conn, "kind, payload->>'verdict'")
    assert found == [("O", None), ("D", "transferred"), ("D", "discharged")]
    assert owed(conn) == []


@pytest.mark.full
async def test_words_and_signals_of_one_look_are_replayed_as_they_came(aflow, conn):
    @workflow
    async def busy() -> list[str]:
        made = [pgflow.authority.owe("a"), pgflow.authority.owe("b")]
        said = []
        for _ in range(3):
            said.append(await go.wait())
            pgflow.set_state(said=len(said))
        for each in made:
            pgflow.authority.discharge(each)
        return said

    run = await settle(aflow, busy)
    await aflow.crash()
    for key in owed(conn, "effect"):
        await aflow.app.transfer(key, "x")
    for word in "uvw":
        await run.send(go, word)
    await aflow.until_idle()
    assert await run.result(SOON) == ["u", "v", "w"]


@pytest.mark.full
async def test_a_verdict_and_a_word_of_one_look_are_replayed_as_they_came(aflow, conn):
    @workflow
    async def asks() -> str:
        refund = pgflow.authority.owe("refund", to="ada")
        verdict = await pgflow.authority.gate("pay", refund.key)
        if isinstance(verdict, Approved):
            pgflow.authority.discharge(refund)
        await go.wait()
        return type(verdict).__name__

    run = await settle(aflow, asks)
    assert run_row(conn, run.key, "reason_code") == ("gate",)
    await aflow.crash()
    await aflow.app.discharge(key_of(conn), by="bob")
    await aflow.app.answer(one(conn, "select gate from pgflow.gates"), Approve(), by="ann")
    await aflow.until_idle()
    assert owed(conn) == []
    await run.send(go, "on")
    assert await run.result(SOON) == "Approved"


@pytest.mark.full
@pytest.mark.parametrize("how", ["continue", "fail", "force", "restart"])
async def test_a_gate_an_obligation_a_lock_and_a_reservation_end_each_in_its_own_way(
    aflow, conn, how
):
    entered = asyncio.Event()

    @pgflow.step
    async def slow() -> None:
        entered.set()
        await asyncio.Event().wait()

    @workflow
    async def busy(n: int = 0) -> str:
        if n:
            return "again"
        pgflow.authority.owe("refund", to="ada")
        async with pgflow.lock("till"):
            asked = asyncio.ensure_future(pgflow.authority.gate("pay", 30))
            other = asyncio.ensure_future(slow.options(admit=Admit(usd=Decimal("0.5")))())
            said = await go.wait()
            del asked, other
            if said == "continue":
                pgflow.continue_as_new(1)
            raise ValueError("no money")

    aflow(pools=[Pool("user", usd=1)]).include(busy)
    run = await aflow.start(busy.options(key="k", pool="user"))
    await entered.wait()
    await eventually(lambda: one(conn, "select count(*) from pgflow.gate") == 1, "it has asked")
    if how == "force":
        conn.execute("select pgflow.cancel_run('k', force => true)")
    elif how == "restart":
        await run.send(go, "fail")
        await eventually(lambda: run_row(conn, "k", "status") == ("failed",), "it has failed")
        await aflow.app.restart("k")  # it is sent again what it had taken, and fails again
        await eventually(lambda: one(conn, "select max(generation) from pgflow.run") == 2, "again")
    else:
        await run.send(go, how)
    if how == "continue":
        await waits(aflow, conn, "k")
    else:
        await eventually(lambda: run_row(conn, "k", "status")[0] in ("failed", "cancelled"), "over")
    assert one(conn, "select count(*) from pgflow.gate") == 0
    assert one(conn, "select count(*) from pgflow.reservation") == 0
    assert owed(conn, "kind, name, state") == [("obligation", "refund", "open")]
    # A later generation has the lock until it ends, whether it asks for it or not.
    assert one(conn, "select count(*) from pgflow.lock") == (how == "continue")
    await aflow.app.discharge(key_of(conn))
    await aflow.until_idle()
    assert owed(conn) == []
    assert one(conn, "select count(*) from pgflow.lock") == 0


@pytest.mark.full
async def test_code_that_closes_another_way_on_a_replay_diverges(aflow, conn):
    verdicts = ["discharge", "waive", *["discharge"] * 9]

    @workflow
    async def fickle() -> str:
        made = pgflow.authority.owe("refund")
        if verdicts.pop(0) == "discharge":
            pgflow.authority.discharge(made)
        else:
            pgflow.authority.waive(made, by="x", why="y")
        return await go.wait()

    await settle(aflow, fickle.options(key="k"))
    await aflow.crash()
    await aflow.app.send("k", go, "1")
    await aflow.until_idle()
    await eventually(
        lambda: run_row(conn, "k", "status, reason_code") == ("stuck", "nondeterminism"), "stuck"
    )
    await aflow.app.retry("k")
    await eventually(lambda: run_row(conn, "k", "status") == ("completed",), "completed")


@workflow
async def goes_on(keys: list[str]) -> list[str]:
    if len(keys) < 2:
        keys.append(pgflow.authority.owe("refund", to="ada", detail=len(keys)).key)
        if len(keys) == 1:
            pgflow.authority.owe("letter", outlives=True)
        pgflow.continue_as_new(keys)
    said = await go.wait()
    if said == "discharge":
        for key in keys:
            pgflow.authority.discharge(key, evidence=said)
    return keys


async def test_a_run_that_continues_as_new_carries_what_it_owes(aflow, conn):
    run = await settle(aflow, goes_on.options(key="k"), [])
    newest = one(conn, "select max(run_id) from pgflow.run")
    assert sorted(owed(conn, "name, run_id, detail, outlives")) == [
        ("letter", newest, None, True),
        ("refund", newest, 0, False),
        ("refund", newest, 1, False),
    ]
    await run.send(go, "discharge")
    keys = await run.result(SOON)
    assert [key.split("/", 1)[1] for key in keys] == ["owe/refund/1"] * 2
    assert owed(conn) == [("letter", "open")]
    await aflow.app.discharge(key_of(conn))


@pytest.mark.full
async def test_a_word_to_an_earlier_generation_finds_the_one_that_owes(aflow, conn):
    run = await settle(aflow, goes_on.options(key="k"), [])
    await run.send(go, "leave it")
    await waits(aflow, conn, "k")
    for key in owed(conn, "effect"):
        await aflow.app.discharge(key)
    assert len(await run.result(SOON)) == 2


async def rewound(aflow: AsyncHarness, conn: Conn, seq: int) -> None:
    await aflow.app.rewind("k", seq)
    await aflow.until_idle()


@pytest.mark.full
async def test_a_rewind_keeps_what_was_opened_before_it(aflow, conn):
    run = await settle(aflow, keeps.options(key="k"))
    key = key_of(conn)
    await rewound(aflow, conn, 1)
    assert owed(conn, "effect, state") == [(key, "open")]
    assert (
        one(conn, "select generation from pgflow.obligations o join pgflow.runs r using (run_id)")
        == 2
    )
    await run.send(go, "r-1")
    assert await run.result(SOON) == "r-1"
    assert owed(conn) == []


@pytest.mark.full
async def test_a_restart_hands_on_the_promise_and_does_not_make_it_twice(aflow, conn):
    await settle(aflow, keeps.options(key="k"))
    key = key_of(conn)
    await aflow.app.restart("k")
    await aflow.until_idle()
    assert owed(conn, "effect, state, owed_to") == [(key, "open", "ada")]
    assert events(conn, "kind, payload->>'verdict', payload->>'carried', payload->>'key'") == [
        ("O", None, None, key),
        ("D", "handed_on", None, key),
        ("O", None, "again", key),
        ("O", None, None, key),
    ]
    await aflow.app.send("k", go, "r-1")
    await aflow.until_idle()
    assert run_row(conn, "k", "status") == ("completed",)
    assert owed(conn) == []


async def test_a_promise_that_the_new_generation_does_not_make_stays_owed(aflow, conn):
    @workflow
    async def changing(what: str) -> str:
        return pgflow.authority.owe(what, to="ada").key

    await settle(aflow, changing.options(key="k"), "refund")
    await aflow.app.restart("k", input={"what": "letter"})
    await waits(aflow, conn, "k")
    assert sorted(owed(conn)) == [("letter", "open"), ("refund", "open")]
    for key in owed(conn, "effect"):
        await aflow.app.discharge(key)
    await aflow.until_idle()
    assert run_row(conn, "k", "status") == ("completed",)


async def test_what_a_dropped_part_has_discharged_stays_so(aflow, conn):
    run = await launch(aflow, keeps.options(key="k"))
    await run.send(go, "r-1")
    await run.result(SOON)
    await rewound(aflow, conn, 1)
    assert owed(conn) == []
    assert events(conn, "kind, payload->>'verdict', token = 0")[2:] == [
        ("O", None, True),
        ("D", "discharged", True),
        ("D", "discharged", False),
    ], "the code says so again, to no effect"
    assert run_row(conn, "k", "status") == ("completed",)


@pytest.mark.full
async def test_a_failed_run_that_is_retried_is_nobodys_to_see_to(aflow, conn):
    run = await launch(aflow, keeps.options(key="k"))
    await run.send(go, "fail")
    with pytest.raises(RunFailed):
        await run.result(SOON)
    await rewound(aflow, conn, 1)
    assert owed(conn, "state, reason") == [("open", "failed")], "it takes the same signal again"
    await aflow.app.restart("k")
    await aflow.until_idle()
    assert len(owed(conn)) == 1


@pytest.mark.full
async def test_a_fork_owes_nothing_of_its_origin(aflow, conn):
    run = await settle(aflow, keeps.options(key="k"))
    await aflow.app.fork("k", new_key="f")
    await aflow.app.send("f", go, "r-2")
    await eventually(lambda: run_row(conn, "f", "status") == ("completed",), "the fork is through")
    assert owed(conn, "key, state") == [("k", "open")]
    await run.send(go, "r-1")
    assert await run.result(SOON) == "r-1"


async def test_a_fork_that_begins_again_owes_nothing_of_its_origin_either(aflow, conn):
    await settle(aflow, promises.options(key="k"))
    await aflow.app.fork("k", new_key="f")
    await eventually(lambda: run_row(conn, "f", "status") == ("completed",), "the fork is through")
    await aflow.app.rewind("f", 1)
    await eventually(
        lambda: run_row(conn, "f", "generation, status") == (2, "completed"), "it is so again"
    )
    assert owed(conn, "key, state") == [("k", "open")]


async def test_a_history_with_a_word_after_its_end_is_imported(aflow, conn):
    key = await (await launch(aflow, promises, None, True)).result(SOON)
    await aflow.app.discharge(key)
    conn.execute(
        "select pgflow.check_history_("
        "e.history::jsonb || jsonb_build_object('units', pgflow.export_units(e.run_id)::jsonb))"
        " from pgflow.export_runs(array(select run_id from pgflow.run)) e"
    )


async def test_a_rewind_takes_along_what_was_said_and_not_heard(aflow, conn):
    await settle(aflow, keeps.options(key="k"))
    await aflow.app.pause("k")
    conn.execute("select pgflow.wake()")
    await aflow.app.discharge(key_of(conn))
    assert owed(conn) == [("refund", "open")]
    await aflow.app.restart("k")
    await aflow.until_idle()
    assert owed(conn) == []
    await aflow.app.send("k", go, "r-1")
    await aflow.until_idle()
    assert run_row(conn, "k", "status") == ("completed",)


def test_obligations_are_for_the_code_of_a_workflow():
    for call in (
        lambda: pgflow.authority.owe("x"),
        lambda: pgflow.authority.discharge("x"),
        lambda: pgflow.authority.transfer("x", "y"),
        lambda: pgflow.authority.waive("x", by="y", why="z"),
    ):
        with pytest.raises(NotInRunError):
            call()


@pytest.mark.parametrize(("wrong", "error", "says"), [
    (lambda: pgflow.authority.owe(""), InvalidArgument, "1 to 255 bytes"),
    (lambda: pgflow.authority.owe("x", to="y" * 300), InvalidArgument, "at most 255"),
    (lambda: pgflow.authority.owe("x", due="soon"), InvalidArgument, "due of owe"),  # type: ignore[arg-type]
    (lambda: pgflow.authority.owe("x", due=datetime(2030, 1, 1)), InvalidArgument, "time zone"),  # noqa: DTZ001
    (lambda: pgflow.authority.owe("x", on_breach=print), InvalidArgument,
        "a signal, a workflow"),  # type: ignore[arg-type]
    (lambda: pgflow.authority.owe("x", on_breach=go), NotStorable, "signal 'go'"),  # type: ignore[arg-type]
    (lambda: pgflow.authority.owe("x", detail="x" * 70_000), InvalidArgument, "64 KiB"),
    (lambda: pgflow.authority.owe("x", detail=object()), NotStorable, "detail"),
    (lambda: pgflow.authority.discharge("nobody's"), InvalidArgument,
        "not an obligation of this run"),
    (lambda: pgflow.authority.transfer("x", ""), InvalidArgument, "to of transfer()"),
    (lambda: pgflow.authority.waive("x", by="", why="y"), InvalidArgument, "by= and why="),
])  # fmt: skip
async def test_what_cannot_be_recorded_is_refused_in_the_code(aflow, conn, wrong, error, says):
    @workflow
    async def tries() -> str:
        try:
            wrong()
        except error as refused:
            return str(refused)
        return "it was taken"

    assert says in await (await launch(aflow, tries)).result(SOON)
    assert owed(conn) == []


async def test_what_cannot_be_stored_in_a_reason_is_replaced(aflow, conn):
    @workflow
    async def careless() -> None:
        pgflow.authority.transfer(pgflow.authority.owe("a"), "desk", why="be\0fore")
        pgflow.authority.waive(pgflow.authority.owe("b"), by="a\0da", why="\ud800" + "x" * 5000)

    await (await launch(aflow, careless)).result(SOON)
    (transferred, by), (waived, said_by) = rows(
        conn,
        "select payload->>'why', payload->>'by' from pgflow.unit where kind = 'D' order by seq",
    )
    assert (transferred, by, said_by) == (
        "be\N{REPLACEMENT CHARACTER}fore",
        None,
        "a\N{REPLACEMENT CHARACTER}da",
    )
    assert len(waived) == 4096


async def test_long_facts_and_evidence_are_kept_whole(aflow, conn):
    @workflow
    async def wordy() -> None:
        made = pgflow.authority.owe("refund", due=HOUR, on_breach=overdue, detail="x" * 60_000)
        await go.wait()
        pgflow.authority.discharge(made, evidence="y" * 500_000)

    run = await settle(aflow, wordy)
    assert one(conn, "select length(detail #>> '{}') from pgflow.obligations") == 60_000
    await run.send(go, "on")
    await run.result(SOON)
    evidence = "select length(payload->>'evidence') from pgflow.unit where kind = 'D'"
    assert one(conn, evidence) == 500_000


@pytest.mark.parametrize(
    "call",
    [
        "discharge(null)",
        "discharge('')",
        "waive_obligation(null, 'x')",
        "transfer_obligation(null, 'x')",
    ],
)
def test_no_key_is_the_key_of_nothing(conn, call):
    with pytest.raises(psycopg.Error, match="no open obligation has the key") as refused:
        conn.execute(f"select pgflow.{call}")  # type: ignore[arg-type]
    assert refused.value.sqlstate == RunNotFound.sqlstate


async def test_waiving_needs_a_reason_and_a_transfer_somebody(aflow, conn):
    run = await settle(aflow, promises)
    with pytest.raises(InvalidArgument):
        await aflow.app.waive(key_of(conn), by="x", why="")
    with pytest.raises(InvalidArgument):
        await aflow.app.transfer(key_of(conn), "")
    await asyncio.gather(*(aflow.app.discharge(key_of(conn)) for _ in range(3)))
    assert await run.result(SOON)
    assert events(conn, "kind") == ["O", "D"]
