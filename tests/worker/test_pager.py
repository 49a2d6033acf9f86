"""The pager: whoever is needed is told, at least once, under one id, however the need arose."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from clikit import pgflow as cli
from records import count, eventually, launch, recover, run_row, wait_until
from servers import HANG_SECONDS

import pgflow
from pgflow import Page, step, workflow
from pgflow._worker.pager import Pager
from pgflow.effects import effect
from pgflow.errors import DefinitionError
from pgflow.testing import AsyncHarness

MINUTES = timedelta(minutes=2)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NoReplyError(Exception):
    """It went out, and nothing came back."""


@effect(risk="irreversible")
async def wire(cents: int) -> str:
    raise NoReplyError(cents)


@workflow
async def pay(cents: int) -> str:
    return await wire(cents)


@workflow
async def pay_and_wait(cents: int) -> str:
    task = asyncio.create_task(wire(cents))
    await pgflow.sleep(timedelta(days=1))
    return await task


@step
async def forever() -> None:
    await asyncio.sleep(3600)


@workflow
async def deadly() -> None:
    await forever()


def paged(conn: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return conn.execute(
        "select kind, paged_at is not null, tries, last_error from pgflow.page order by run_id, "
        "call"
    ).fetchall()


def has_failed(conn: psycopg.Connection[Any], tries: int, error: str) -> bool:
    """Return True if so many calls have failed, the last with this, and that is recorded: until
    then the page is leased.
    """
    is_given_back = conn.execute(
        "select bool_and(next_at < pgflow.now_() + interval '25 seconds') from pgflow.page"
    ).fetchall() == [(True,)]
    return is_given_back and paged(conn) == [("effect", False, tries, error)]


async def stuck(aflow: AsyncHarness, conn: psycopg.Connection[Any], what: Any = pay) -> Any:
    """A run that owes an effect which only a person can settle."""
    run = await launch(aflow, what, 5)
    await eventually(
        lambda: run_row(conn, run.key, "status")[0] in ("stuck", "waiting"), "it waits for somebody"
    )
    return run


@pytest.mark.full
async def test_an_effect_that_only_a_person_can_settle_is_told_once(aflow, conn):
    pages: list[Page] = []

    @aflow.app.pager
    async def tell(page: Page) -> None:
        pages.append(page)

    run = await stuck(aflow, conn)
    await eventually(lambda: paged(conn) == [("effect", True, 0, None)], "somebody is told")
    ((key,),) = conn.execute("select effect from pgflow.effects").fetchall()
    (page,) = pages
    assert (page.effect, page.kind, page.run, page.workflow, page.name) == (
        key,
        "effect",
        run.key,
        "pay",
        "wire",
    )
    assert page.id == f"{key}#{(page.since - EPOCH) // timedelta(microseconds=1)}"
    assert (page.why, page.reason, page.attempt) == ("it raised", "raised", 1)
    await aflow.skip(timedelta(days=3))
    assert len(pages) == 1
    ((at,),) = conn.execute("select paged_at from pgflow.obligations").fetchall()
    (row,) = cli(aflow.app.dsn, "owed").data
    assert row["paged_at"].startswith(at.date().isoformat())
    assert " PAGED " in cli(aflow.app.dsn, "owed", tty=True, width=160).out
    conn.execute("select pgflow.settle_effect(%s, 'confirmed', '\"sent\"')", (key,))
    await eventually(lambda: run_row(conn, run.key, "status")[0] == "completed", "it goes on")
    assert aflow._worker is not None
    aflow._worker.poll_now()
    await eventually(lambda: count(conn, "pgflow.page") == 0, "nobody is needed any more")


@pytest.mark.full
async def test_an_effect_that_needs_somebody_again_is_told_again(aflow, conn):
    pages: list[Page] = []
    aflow.app.pager(pages.append)
    run = await stuck(aflow, conn)
    await eventually(lambda: paged(conn) == [("effect", True, 0, None)], "somebody is told")
    await aflow.app.settle_effect(
        str(pages[0].effect), "absent", why="the bank has nothing", by="grace"
    )
    await eventually(lambda: len(pages) == 2, "it was tried again, and somebody is told again")
    await eventually(lambda: paged(conn) == [("effect", True, 0, None)], "that is recorded")
    first, second = pages
    assert (first.effect, first.run) == (second.effect, second.run) == (second.effect, run.key)
    assert first.id != second.id
    assert first.since < second.since
    assert second.attempt == 1
    await aflow.skip(timedelta(days=3))
    assert len(pages) == 2


@pytest.mark.full
async def test_an_effect_left_by_a_run_that_was_ended_is_told_again(aflow, conn):
    pages: list[Page] = []
    aflow.app.pager(pages.append)
    await stuck(aflow, conn, pay_and_wait)
    await aflow.skip(timedelta(0))
    await eventually(lambda: len(pages) == 1, "somebody is told")
    # as if it were looked after again
    conn.execute("update pgflow.owed set due_at = pgflow.now_() + interval '1 hour'")
    await aflow.skip(timedelta(0))
    await eventually(lambda: count(conn, "pgflow.page") == 0, "nobody is needed")
    conn.execute("select pgflow.cancel_run(%s, force => true)", (pages[0].run,))
    await aflow.skip(timedelta(0))
    await eventually(lambda: len(pages) == 2, "nobody looks after it any more")
    assert pages[0].id != pages[1].id
    assert pages[0].since < pages[1].since


@pytest.mark.full
async def test_an_effect_beside_a_run_that_goes_on_is_told_too(aflow, conn):
    pages: list[Page] = []
    aflow.app.pager(pages.append)
    run = await stuck(aflow, conn, pay_and_wait)
    assert run_row(conn, run.key, "status") == ("waiting",)
    await aflow.skip(timedelta(0))
    await eventually(lambda: [page.kind for page in pages] == ["effect"], "somebody is told")


@pytest.mark.full
def test_a_sync_hook_is_called_in_a_thread_and_a_stuck_run_says_why(flow, conn):
    pages: list[tuple[Page, str]] = []

    @flow.app.pager()
    def tell(page: Page) -> None:
        pages.append((page, threading.current_thread().name))

    @workflow
    async def waits_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    run = launch(flow, waits_for_nothing)
    wait_until(lambda: paged(conn) == [("stuck", True, 0, None)], "somebody is told")
    ((page, thread),) = pages
    assert (page.kind, page.run, page.name, page.reason) == (
        "stuck",
        run.key,
        "deadlock",
        "deadlock",
    )
    assert "nothing can bring" in page.why
    assert thread.startswith("pgflow-pager")
    conn.execute("select pgflow.resume_run(%s)", (run.key,))
    wait_until(lambda: len(pages) == 2, "it is stuck again, and that is told again")
    assert pages[0][0].id != pages[1][0].id


@pytest.mark.full
async def test_what_a_reaper_made_stuck_is_told_by_whoever_comes_later(aflow, conn):
    run = await launch(aflow, deadly)
    conn.execute("update pgflow.queue set max_deaths = 1")
    await eventually(lambda: count(conn, "pgflow.lease") == 1, "it is claimed")
    await eventually(
        lambda: aflow._worker is not None and len(aflow._worker._bodies) == 1, "its body runs"
    )
    # so that the death counts as one without progress
    conn.execute("update pgflow.lease set last_seq = last_seq + 1")
    await aflow.crash()
    assert run_row(conn, run.key, "status, reason") == ("stuck", "poison")
    assert paged(conn) == []
    pages: list[Page] = []
    aflow.app.pager(pages.append)
    await aflow.until_idle()
    await eventually(
        lambda: [(page.kind, page.name) for page in pages] == [("stuck", "poison")],
        "somebody is told",
    )


@pytest.mark.full
async def test_a_hook_that_fails_is_called_again_after_a_while(aflow, conn):
    pages: list[Page] = []

    @aflow.app.pager
    async def tell(page: Page) -> None:
        pages.append(page)
        if len(pages) < 3:
            raise ConnectionResetError("a secret")

    await stuck(aflow, conn)
    await eventually(lambda: has_failed(conn, 1, "ConnectionResetError"), "it has failed")
    await aflow.skip(timedelta(seconds=4))
    assert len(pages) == 1
    await aflow.skip(timedelta(seconds=6))
    await eventually(lambda: has_failed(conn, 2, "ConnectionResetError"), "it has failed again")
    await aflow.skip(timedelta(seconds=20))
    await eventually(lambda: paged(conn) == [("effect", True, 0, None)], "somebody is told")
    assert [page.attempt for page in pages] == [1, 2, 3]
    assert len({page.id for page in pages}) == 1


@pytest.mark.parametrize("is_sync", [True, pytest.param(False, marks=pytest.mark.full)])
async def test_a_hook_that_is_cancelled_has_told_nobody(aflow, conn, is_sync):
    pages: list[Page] = []

    def tell(page: Page) -> None:
        pages.append(page)
        if len(pages) == 1:
            raise concurrent.futures.CancelledError

    async def tell_async(page: Page) -> None:
        pages.append(page)
        if len(pages) == 1:
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner

    aflow.app.pager(tell if is_sync else tell_async)
    await stuck(aflow, conn)
    await eventually(lambda: has_failed(conn, 1, "CancelledError"), "it has failed")
    await aflow.skip(timedelta(seconds=6))
    await eventually(lambda: paged(conn) == [("effect", True, 0, None)], "somebody is told")


@pytest.mark.full
async def test_a_sync_hook_that_hangs_is_not_called_again_while_it_does(aflow, conn):
    pages: list[Page] = []
    answer = threading.Event()

    @aflow.app.pager(timeout=timedelta(milliseconds=50))
    def tell(page: Page) -> None:
        pages.append(page)
        answer.wait(HANG_SECONDS)

    await stuck(aflow, conn)
    await eventually(lambda: has_failed(conn, 1, "TimeoutError"), "it has failed")
    await aflow.skip(timedelta(seconds=6))
    await eventually(lambda: has_failed(conn, 2, "TimeoutError"), "it has failed again")
    assert len(pages) == 1
    answer.set()
    await aflow.skip(timedelta(seconds=20))
    await eventually(lambda: paged(conn) == [("effect", True, 0, None)], "somebody is told")


def _loop_of(task: asyncio.Task[Any]) -> Any:
    return task.get_coro().cr_frame.f_locals.get("loop")  # type: ignore[union-attr]


async def test_a_worker_whose_pager_is_gone_has_failed(aflow, conn):
    aflow.app.pager(print)
    await aflow.until_idle()
    worker = aflow._worker
    assert worker is not None
    (loop,) = [
        task
        for task in worker._context.tasks._tasks
        if isinstance(getattr(_loop_of(task), "__self__", None), Pager)
    ]
    loop.cancel()
    await asyncio.wait_for(worker.failed.wait(), HANG_SECONDS)


@pytest.mark.full
async def test_a_worker_lost_between_the_call_and_its_record_is_followed_by_another_call(
    aflow, conn
):
    pages: list[Page] = []

    @aflow.app.pager
    async def tell(page: Page) -> None:
        pages.append(page)
        if len(pages) == 1:
            await asyncio.sleep(3600)

    await stuck(aflow, conn)
    await eventually(lambda: len(pages) == 1, "it is called")
    await recover(aflow)
    assert paged(conn) == [("effect", False, 1, None)]
    assert len(pages) == 1, "as long as the first may be under way"
    await aflow.skip(MINUTES)
    await eventually(lambda: paged(conn) == [("effect", True, 0, None)], "somebody is told")
    assert [page.id for page in pages] == [pages[0].id] * 2


@pytest.mark.full
async def test_a_hook_may_be_called_again_while_nothing_is_done(aflow, conn):
    pages: list[Page] = []
    aflow.app.pager(again_after=timedelta(hours=1))(pages.append)
    await stuck(aflow, conn)
    await eventually(lambda: paged(conn) == [("effect", True, 0, None)], "somebody is told")
    await aflow.skip(timedelta(minutes=50))
    assert len(pages) == 1
    await aflow.skip(timedelta(minutes=11))
    await eventually(lambda: len(pages) == 2, "somebody is told again")


@pytest.mark.full
async def test_two_workers_do_not_tell_the_same(aflow, conn):
    await stuck(aflow, conn)
    first = conn.execute("select page_id from pgflow.claim_pages()").fetchall()
    assert (len(first), conn.execute("select page_id from pgflow.claim_pages()").fetchall()) == (
        1,
        [],
    )


async def test_what_is_said_of_a_call_whose_lease_is_over_counts_for_nothing(aflow, conn):
    await stuck(aflow, conn)
    claim, sent = (
        "select run_id, call, kind, leased_until from pgflow.claim_pages()",
        "select pgflow.page_sent(%s, %s, %s, %s)",
    )
    failed = "select pgflow.page_failed(%s, %s, %s, %s, 'late')"
    (late,) = conn.execute(claim).fetchall()
    conn.execute(failed, late)
    assert paged(conn) == [("effect", False, 1, "late")]
    conn.execute(sent, late)
    assert paged(conn) == [("effect", False, 1, "late")], "it has been said"
    await aflow.skip(MINUTES)
    (late,) = conn.execute(claim).fetchall()
    await aflow.skip(MINUTES)
    (newer,) = conn.execute(claim).fetchall()
    for query in (sent, failed):
        conn.execute(query, late)
        assert paged(conn) == [("effect", False, 3, "late")]
    conn.execute(sent, newer)
    assert paged(conn) == [("effect", True, 0, None)]


async def test_without_a_pager_nothing_is_kept(aflow, conn):
    run = await stuck(aflow, conn)
    await aflow.skip(MINUTES)
    assert run_row(conn, run.key, "status") == ("stuck",)
    assert paged(conn) == []


def test_a_pager_that_can_never_work_is_refused():
    app = pgflow.App("")
    with pytest.raises(DefinitionError, match="must be a function"):
        app.pager(3)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="must be greater than zero"):
        app.pager(again_after=timedelta(0))(print)
    app.pager(print)
    with pytest.raises(DefinitionError, match="the app has a pager"):
        app.pager(print)
