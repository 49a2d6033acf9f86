"""The terminal screen: a person on call sees what needs them, opens it, and mends it by a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from clikit import make_stuck
from psycopg import sql
from psycopg.conninfo import make_conninfo
from records import SOON
from sqlkit import begin, commit, flush, unit
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, TextArea

import pgflow
from pgflow import Retries, Signal, step, workflow
from pgflow.app import AsyncApp
from pgflow.console.backend import Backend
from pgflow.console.gates import orders_of_gate
from pgflow.console.orders import Person
from pgflow.decisions import Choice, decision
from pgflow.effects import Accepted, StillUnknown, effect
from pgflow.errors import GateClosed, PayloadChanged
from pgflow.inspect import find_gate
from pgflow.tui.asking import Ask
from pgflow.tui.live import ImpatientBackend
from pgflow.tui.screen import Board, Find, Page, Top
from pgflow.tui.stories import StoryReader
from pgflow.tui.views import VIEWS

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness

EVIL = "ask-\u202e2\x1b[31m[bold red]"
ANN = Person("ann", ("ops",))

paid = Signal("paid", dict)
_answers: list[str] = []


@decision()
def pick(carrier: str) -> Choice[str]:
    return Choice(carrier, why="cheapest by Friday", evidence=["dhl 4"], alternatives=["ups"])


@effect(risk="irreversible")
def book(carrier: str) -> str | Accepted:
    raise ConnectionError("the reply was lost")


@book.settle
def _(carrier: str) -> StillUnknown:
    return StillUnknown()


@workflow
def ship(carrier: str) -> str:
    return str(book(pick(carrier).value))


@workflow
async def ask_first(order: dict[str, Any]) -> str:
    return repr(
        await pgflow.authority.gate("approve-order", order, approvers=["ops"], timeout=3600)
    )


@workflow
async def await_payment(order: str) -> str:
    return str(await paid.wait())


@step(retries=Retries(max_attempts=1))
async def fetch() -> str:
    if not _answers:
        raise ConnectionError("no answer")
    return _answers[0]


@workflow
async def tries() -> str:
    return await fetch()


@asynccontextmanager
async def screen(
    app: AsyncApp, person: Person | None = ANN, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[Top, Pilot[None]]]:
    top = Top(ImpatientBackend(app, 2), person, "here", tick_seconds=0.3)
    async with top.run_test(size=size) as pilot:
        yield top, pilot


def words(top: Top) -> str:
    """All that is seen, as text."""
    lines = [
        "".join(segment.text for segment in strip)
        for strip in top.screen._compositor.render_strips()
    ]
    return "\n".join(lines)


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    """Wait until something is seen."""
    async with asyncio.timeout(SOON.total_seconds()):
        while not holds():
            await pilot.pause(0.01)


async def sees(top: Top, pilot: Pilot[None], *texts: str) -> None:
    try:
        await until(pilot, lambda: all(text in words(top) for text in texts))
    except TimeoutError:
        raise AssertionError((texts, words(top))) from None


def is_at(top: Top, kind: type) -> Callable[[], bool]:
    return lambda: isinstance(top.screen, kind)


async def open_run(top: Top, pilot: Pilot[None], key: str) -> None:
    await pilot.press("slash")
    await until(pilot, is_at(top, Find))
    top.screen.query_one(Input).value = key
    await pilot.press("enter")


def type_into(top: Top, field: str, text: str) -> None:
    widget = top.screen.query_one(f"#field-{field}")
    if isinstance(widget, TextArea):
        widget.text = text
    else:
        assert isinstance(widget, Input)
        widget.value = text


@pytest.mark.full
async def test_a_person_mends_what_the_screen_shows(
    aflow: AsyncHarness, conn: psycopg.Connection[Any]
) -> None:
    aflow.include(ask_first, tries, await_payment)
    _answers.clear()
    asked = await aflow.start(ask_first.options(key=EVIL), {"sku": "boots", "qty": 20})
    waits = await aflow.start(await_payment.options(key="invoice-1"), "o")
    failed = await aflow.start(tries.options(key="tries-1"))
    await aflow.until_idle()
    async with screen(aflow.app) as (top, pilot):
        await sees(top, pilot, "approve-order", "tries-1", "ConnectionError: no answer")
        assert "\u202e" not in words(top) and "\x1b" not in words(top)
        await pilot.press("enter")
        await sees(
            top, pilot, "The exact request", '"qty": 20', "a Approve", "e Edit, then approve"
        )
        await pilot.press("e")
        await until(pilot, is_at(top, Ask))
        type_into(top, "edit", '{"sku": "boots", "qty": ')
        type_into(top, "why", "too many")
        await pilot.press("ctrl+s")
        await sees(top, pilot, "the edit is not JSON")
        type_into(top, "edit", '{"sku": "boots", "qty": 2}')
        await sees(top, pilot, "$ pgflow edit", "answer_gate(", "under the name ann")
        await pilot.press("ctrl+s")
        await sees(top, pilot, "your answer is recorded", "this gate is closed")
        await pilot.press("escape", "3")
        await sees(top, pilot, "invoice-1", "signal paid")
        await open_run(top, pilot, "invoice-1")
        await sees(top, pilot, "It waits for a signal", "s Send a signal", "x Cancel")
        await pilot.press("s")
        await until(pilot, is_at(top, Ask))
        assert top.screen.query_one("#field-name", Input).value == "paid"
        type_into(top, "payload", '{"cents": 7}')
        await pilot.press("ctrl+s")
        await sees(top, pilot, "The signal is in its mailbox.")
        await pilot.press("escape")
        await open_run(top, pilot, "tries-1")
        await sees(top, pilot, "t Retry")
        _answers.append("here")
        await pilot.press("t")
        await until(pilot, is_at(top, Ask))
        await pilot.press("ctrl+s")
        await sees(top, pilot, "The run will try again.")
    await aflow.until_idle()
    assert "'qty': 2" in await asked.result(SOON)
    assert await waits.result(SOON) == "{'cents': 7}"
    assert await failed.result(SOON) == "here"
    told = conn.execute("select t.* from pgflow.timeline t where key = 'tries-1'").fetchall()
    assert "ann" in str(told)


async def test_a_run_that_is_not_there_is_said_in_one_line(aflow: AsyncHarness) -> None:
    async with screen(aflow.app, size=(200, 24)) as (top, pilot):
        await until(pilot, is_at(top, Board))
        await open_run(top, pilot, "nobody")
        await sees(top, pilot, "no run has the key 'nobody'. It was never started", "removed. ")


async def test_a_page_that_is_left_while_it_reads_ends_without_a_word(aflow: AsyncHarness) -> None:
    class Leaving(Page):
        async def show(self) -> None:
            await self.query("*").remove()
            left.set()

    left = asyncio.Event()
    async with screen(aflow.app) as (top, pilot):
        await top.push_screen(Leaving(("run", "nobody")))
        await until(pilot, left.is_set)
        await top.pop_screen()
        await until(pilot, is_at(top, Board))


async def test_an_answer_counts_for_what_was_shown_and_for_nothing_else(
    aflow: AsyncHarness,
) -> None:
    aflow.include(ask_first)
    await aflow.start(ask_first.options(key="ask-1"), {"qty": 20})
    await aflow.until_idle()
    reader = StoryReader(Backend(aflow.app), ANN, datetime.now(UTC), 80)
    place = (await reader.read(("run", "ask-1"))).links[0][1]
    shown = next(order for order in (await reader.read(place)).orders if order.key == "a")
    with pytest.raises(PayloadChanged):
        gate = replace(await Backend(aflow.app).ask(find_gate(place[1])), payload_hash="0" * 64)
        stale = orders_of_gate(gate, gate.request, is_clear=True, person=ANN)[0]
        await stale.give(Backend(aflow.app), {"why": ""})
    await shown.give(Backend(aflow.app), {"why": "fine"})
    with pytest.raises(GateClosed):
        await reader.read(place)


@pytest.mark.full
async def test_the_statement_that_is_shown_does_the_same(
    aflow: AsyncHarness, conn: psycopg.Connection[Any]
) -> None:
    aflow.include(ask_first, await_payment)
    asked = await aflow.start(ask_first.options(key="it's"), {"qty": 20})
    waits = await aflow.start(await_payment.options(key="a\\b"), "o")
    await aflow.until_idle()
    reader = StoryReader(Backend(aflow.app), ANN, datetime.now(UTC), 80)
    gate = (await reader.read(("run", "it's"))).links[0][1]
    shown = {order.key: order for order in (await reader.read(gate)).orders}
    conn.execute(shown["e"].sql({"edit": '{"qty": 2}', "why": "it's too many"}))
    told = {order.key: order for order in (await reader.read(("run", "a\\b"))).orders}
    conn.execute(told["s"].sql({"name": "paid", "payload": '{"cents": 7}'}))
    await aflow.until_idle()
    assert "'qty': 2" in await asked.result(SOON) and "ann" in await asked.result(SOON)
    assert await waits.result(SOON) == "{'cents': 7}"


@pytest.mark.full
async def test_an_effect_of_unknown_outcome_is_settled_by_its_key(aflow: AsyncHarness) -> None:
    aflow.include(ship)
    run = await aflow.start(ship.options(key="ship-1"), "dhl")
    await aflow.until_idle()
    async with screen(aflow.app, size=(200, 50)) as (top, pilot):
        await sees(top, pilot, "book", "Its outcome is unknown", "Look at it")
        await pilot.press("enter")
        await sees(top, pilot, "c Settle: confirmed", "1 run ship-1", '"carrier": "dhl"')
        await pilot.press("1")
        await sees(top, pilot, "pick: dhl; because cheapest by Friday; evidence", "IDEMPOTENCY KEY")
        await pilot.press("escape", "c")
        await until(pilot, is_at(top, Ask))
        type_into(top, "value", '"booked"')
        await pilot.press("ctrl+s")
        await sees(top, pilot, "fill in first: How do you know")
        type_into(top, "why", "their backend says so")
        await pilot.press("ctrl+s")
        await sees(top, pilot, "Your verdict on the effect is recorded.")
    await aflow.until_idle()
    assert await run.result(SOON) == "booked"


@pytest.mark.full
async def test_whoever_only_looks_is_offered_no_order(
    aflow: AsyncHarness, conn: psycopg.Connection[Any]
) -> None:
    make_stuck(conn, "stuck-1")
    async with screen(aflow.app, person=None) as (top, pilot):
        await sees(top, pilot, "looks only", "stuck-1")
        await pilot.press("enter")
        await sees(top, pilot, "It cannot go on without a person.")
        assert "Retry" not in words(top)
        await pilot.press("t", "x")
        await pilot.pause()
        assert is_at(top, Page)()


@pytest.mark.full
async def test_a_role_that_may_only_look_is_told_so(
    aflow: AsyncHarness, conn: psycopg.Connection[Any], dsn: str
) -> None:
    make_stuck(conn, "stuck-1")
    auditor = make_conninfo(dsn, options="-c role=pgflow_auditor")
    async with AsyncApp(auditor, listen=False) as app, screen(app) as (top, pilot):
        await sees(top, pilot, "stuck-1")
        await pilot.press("enter")
        await sees(top, pilot, "t Retry")
        await pilot.press("t")
        await until(pilot, is_at(top, Ask))
        await pilot.press("ctrl+s")
        await sees(top, pilot, "may not use pgflow.retry_run", "pgflow_operator")
        await pilot.press("escape")
        await until(pilot, is_at(top, Page))


@pytest.mark.full
@pytest.mark.alone
async def test_a_database_that_does_not_answer_is_told_of_and_found_again(
    aflow: AsyncHarness, conn: psycopg.Connection[Any], dsn: str
) -> None:
    make_stuck(conn, "stuck-1")
    name = sql.Identifier(conn.info.dbname)
    allow = sql.SQL("alter database {} with allow_connections {}")
    async with AsyncApp(dsn, listen=False) as app, screen(app) as (top, pilot):
        await sees(top, pilot, "stuck-1")
        with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as other:
            other.execute(allow.format(name, sql.SQL("false")))
            try:
                other.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s "
                    "and application_name like 'pgflow app%%'",
                    [conn.info.dbname],
                )
                await sees(top, pilot, "No answer from the database since", "stuck-1")
            finally:
                other.execute(allow.format(name, sql.SQL("true")))
        make_stuck(conn, "stuck-2")
        await sees(top, pilot, "2 runs")
        assert "No answer" not in words(top)


@pytest.mark.full
async def test_a_worker_tells_which_runs_it_holds_and_what_they_do(
    aflow: AsyncHarness, conn: psycopg.Connection[Any]
) -> None:
    held = begin(conn, "ship", key=EVIL)
    begin(conn, "ship", key="theirs", tenant="other")
    starts = '[[1, "s", "pack", "1", null]]'
    commit(conn, flush(held, unit(kind="s", name="pack", starts=starts)))
    async with screen(aflow.app, size=(80, 24)) as (top, pilot):
        await pilot.press("4")
        await sees(top, pilot, "WORKER", "1-7 view")
        await until(pilot, lambda: bool(top.screen.query_one(DataTable).row_count))
        await pilot.press("enter")
        await sees(top, pilot, "Runs that it holds", "pack")
        assert "theirs" not in words(top) and "\u202e" not in words(top)
        await pilot.press("1")
        await sees(top, pilot, "A worker holds it and runs its code.")


@pytest.mark.full
async def test_every_view_fits_a_small_and_a_large_terminal(
    aflow: AsyncHarness, conn: psycopg.Connection[Any]
) -> None:
    aflow.include(await_payment)
    await aflow.start(await_payment.options(key="order/" + "x" * 120), "o")
    await aflow.until_idle()
    make_stuck(conn, "stuck-1")
    for size in ((80, 24), (200, 50)):
        async with screen(aflow.app, size=size) as (top, pilot):
            for number, view in enumerate(VIEWS, 1):
                await pilot.press(str(number))
                await sees(
                    top,
                    pilot,
                    view.empty if view.name in ("gates", "debts", "budgets") else "1-7 view",
                )
                table = top.screen.query_one(DataTable)
                assert table.virtual_size.width <= size[0], view.name
                assert "q quit" in words(top)
            assert is_at(top, Board)()
