"""Locks: one run at a time is in a block, in the order in which they asked, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import HOUR, SOON, count, events, launch, recover, result_of, settle

import pgflow
from pgflow import Signal, step, transaction, workflow
from pgflow.errors import LockLost, LockRefused

go = Signal("go", str)


@step
async def note(text: str) -> str:
    return text


@workflow
async def hold(key: str) -> int:
    async with pgflow.lock(key) as fence:
        await go.wait()
    return fence


@workflow
async def pass_through(key: str) -> int:
    async with pgflow.lock(key) as fence:
        await note("in")
    return fence


def holders(conn: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    return conn.execute("select key, holder from pgflow.locks order by fence").fetchall()


async def test_a_lock_that_is_free_is_won_at_once_and_given_back_at_the_end_of_its_block(
    aflow, conn
):
    run = await launch(aflow, pass_through, "a")
    assert await run.result(SOON) == 1
    assert holders(conn) == []
    assert events(conn, run.key) == [
        ("lock_won", "a"),
        ("step_started", "note"),
        ("step_completed", "note"),
        ("lock_released", "a"),
    ]


@pytest.mark.full
async def test_a_run_that_waits_is_parked_and_goes_on_when_the_lock_is_given_back(aflow, conn):
    first = await settle(aflow, hold.options(key="first"), "a", beside=[pass_through])
    second = await settle(aflow, pass_through.options(key="second"), "a")
    assert await second.status() == "waiting"
    assert holders(conn) == [("a", "first")]
    shown = "select reason, reason_code, reason_detail from pgflow.runs where key = 'second'"
    assert conn.execute(shown).fetchone() == ("lock a", "lock", {"locks": ["a"]})
    assert conn.execute("select waiters from pgflow.locks").fetchone() == (1,)
    await first.send(go, "on")
    assert await first.result(SOON) == 1
    assert await second.result(SOON) == 2
    found = [e for e in events(conn, "second") if e[0].startswith("lock")]
    assert found == [("lock_asked", "a"), ("lock_won", "a"), ("lock_released", "a")]
    assert holders(conn) == []


@pytest.mark.full
async def test_the_queue_of_a_lock_is_served_in_the_order_in_which_runs_asked(aflow, conn):
    first = await settle(aflow, hold, "a", beside=[pass_through])
    waiting = []
    for _ in range(5):
        waiting.append(await aflow.start(pass_through, "a"))
        await aflow.until_idle()
    await first.send(go, "on")
    assert [await run.result(SOON) for run in waiting] == [2, 3, 4, 5, 6]


@pytest.mark.full
async def test_those_who_share_a_lock_hold_it_together_and_do_not_overtake_one_who_would_not(
    aflow, conn
):
    @workflow
    async def reader(key: str) -> int:
        async with pgflow.lock(key, shared=True) as fence:
            await go.wait()
        return fence

    aflow.include(reader, hold)
    readers = []
    for i in range(2):
        readers.append(await aflow.start(reader.options(key=f"reader-{i}"), "a"))
        await aflow.until_idle()
    assert holders(conn) == [("a", "reader-0"), ("a", "reader-1")]
    writer = await settle(aflow, hold.options(key="writer"), "a")
    late = []
    for i in range(2):
        late.append(await aflow.start(reader.options(key=f"late-{i}"), "a"))
        await aflow.until_idle()
    assert len(holders(conn)) == 2
    for run in readers:
        await run.send(go, "on")
    await aflow.until_idle()
    assert holders(conn) == [("a", "writer")]
    await writer.send(go, "on")
    await aflow.until_idle()
    assert holders(conn) == [("a", "late-0"), ("a", "late-1")]
    for run in late:
        await run.send(go, "on")
        await run.result(SOON)


@pytest.mark.full
async def test_a_crash_of_the_worker_gives_nothing_back(aflow, conn):
    first = await settle(aflow, hold, "a", beside=[pass_through])
    second = await settle(aflow, pass_through, "a")
    await recover(aflow)
    assert await second.status() == "waiting"
    await first.send(go, "on")
    assert [await first.result(SOON), await second.result(SOON)] == [1, 2]


@pytest.mark.full
async def test_the_end_of_a_run_gives_its_locks_back(aflow, conn):
    @workflow
    async def leave_task_behind() -> None:
        async def inside() -> None:
            async with pgflow.lock("a"):
                await go.wait()

        task = asyncio.ensure_future(inside())
        await pgflow.sleep(1)
        assert not task.done()

    run = await settle(aflow, leave_task_behind)
    await aflow.skip(timedelta(seconds=2))
    await run.result(SOON)
    assert holders(conn) == []


@pytest.mark.full
@pytest.mark.parametrize("force", [False, True])
async def test_a_cancelled_run_gives_its_locks_back_and_leaves_the_queues(aflow, conn, force):
    first = await settle(aflow, hold.options(key="first"), "a", beside=[pass_through])
    second = await settle(aflow, hold.options(key="second"), "a")
    third = await settle(aflow, pass_through, "a")
    for run in (second, first):
        chain = conn.execute(
            "select pgflow.cancel_run(%s, force => %s)", (run.key, force)
        ).fetchone()
        conn.execute("select pgflow.wake(array[%s::bigint])", chain)
        await aflow.until_idle()
        assert await run.status() == "cancelled"
    assert await third.result(SOON) == 2
    assert holders(conn) == []
    assert count(conn, "pgflow.lock_wait") == 0


@pytest.mark.full
async def test_a_wait_for_a_lock_times_out_and_leaves_the_queue(aflow, conn):
    @workflow
    async def impatient() -> str:
        try:
            async with pgflow.lock("a", timeout=timedelta(hours=1)):
                return "won"
        except TimeoutError as error:
            return str(error)

    first = await settle(aflow, hold, "a", beside=[impatient])
    second = await settle(aflow, impatient)
    await aflow.skip(HOUR + timedelta(minutes=1))
    assert await second.result(SOON) == "no lock 'a' in time"
    assert count(conn, "pgflow.lock_wait") == 0
    await first.send(go, "on")
    await first.result(SOON)


@pytest.mark.full
async def test_those_behind_one_that_gives_up_share_the_lock_at_once(aflow, conn):
    @workflow
    async def share(timeout: int) -> str:
        try:
            async with pgflow.lock("a", shared=timeout == 0, timeout=timeout or None):
                await go.wait()
        except TimeoutError:
            return "gave up"
        return "shared"

    first = await settle(aflow, share, 0, beside=[hold])
    for give_up in ("time", "cancel", "force"):
        alone = await (aflow.start(share, 60) if give_up == "time" else aflow.start(hold, "a"))
        await aflow.until_idle()
        behind = await settle(aflow, share, 0)
        assert count(conn, "pgflow.lock_wait") == 2
        if give_up == "time":
            await aflow.skip(timedelta(minutes=2))
        else:
            conn.execute(
                "select pgflow.cancel_run(%s, force => %s)", (alone.key, give_up == "force")
            )
        await aflow.until_idle()
        assert (count(conn, "pgflow.lock_wait"), len(holders(conn))) == (0, 2)
        await behind.send(go, "on")
        assert await behind.result(SOON) == "shared"
    await first.send(go, "on")
    assert await first.result(SOON) == "shared"


async def test_a_lock_that_is_won_after_the_code_has_given_up_is_given_back(aflow, conn):
    @workflow
    async def gives_up() -> str:
        try:
            async with asyncio.timeout(3600):
                async with pgflow.lock("a"):
                    return "won"
        except TimeoutError:
            await go.wait()
            return "gave up"

    first = await settle(aflow, hold, "a", beside=[gives_up])
    second = await settle(aflow, gives_up)
    await aflow.skip(HOUR + timedelta(minutes=1))
    assert count(conn, "pgflow.lock_wait") == 0
    await first.send(go, "on")
    await first.result(SOON)
    assert holders(conn) == []
    await second.send(go, "on")
    assert await second.result(SOON) == "gave up"


async def test_a_lock_is_taken_once(aflow, conn):
    @workflow
    async def twice() -> str:
        async with pgflow.lock("a"):
            try:
                async with pgflow.lock("a"):
                    return "twice"
            except LockRefused as error:
                return error.reason

    assert await result_of(aflow, twice) == "reentered"


@workflow
async def nested(outer: str, inner: str) -> str:
    async with pgflow.lock(outer):
        await go.wait()
        try:
            async with pgflow.lock(inner):
                return "both"
        except LockRefused as error:
            return error.reason


@pytest.mark.full
async def test_who_closes_a_circle_of_waits_is_refused_and_the_others_go_on(aflow, conn):
    aflow.include(nested)
    runs = [await aflow.start(nested, *pair) for pair in (("a", "b"), ("b", "c"), ("c", "a"))]
    await aflow.until_idle()
    for run in runs[:2]:
        await run.send(go, "on")
        await aflow.until_idle()
        assert await run.status() == "waiting"
    await runs[2].send(go, "on")
    assert await runs[2].result(SOON) == "deadlock"
    assert [await run.result(SOON) for run in runs[:2]] == ["both", "both"]
    assert holders(conn) == []


@pytest.mark.full
async def test_a_task_beside_the_block_closes_no_circle(aflow, conn):
    @workflow
    async def side_by_side() -> str:
        async def holds_a() -> None:
            async with pgflow.lock("a"):
                await go.wait()

        async def waits_for_b() -> None:
            async with pgflow.lock("b"):
                pass

        await asyncio.gather(holds_a(), waits_for_b())
        return "both"

    other = await settle(aflow, nested, "b", "a", beside=[side_by_side])
    run = await settle(aflow, side_by_side)
    await other.send(go, "on")
    await aflow.until_idle()
    await run.send(go, "on")
    assert await other.result(SOON) == "both"
    assert await run.result(SOON) == "both"


@workflow
async def hold_for_an_hour() -> str:
    try:
        async with pgflow.lock("a", ttl=timedelta(hours=1)) as fence:
            await go.wait()
            await note(f"acts with {fence}")
            return "kept"
    except LockLost as error:
        await note("lost")
        return str(error).partition(":")[2].partition(",")[0].strip()


@pytest.mark.full
async def test_a_holder_whose_time_is_over_hears_of_it_before_it_does_anything_more(aflow, conn):
    first = await settle(aflow, hold_for_an_hour, beside=[pass_through])
    second = await settle(aflow, pass_through, "a")
    await aflow.skip(HOUR + timedelta(minutes=1))
    assert await second.result(SOON) == 2
    await first.send(go, "on")
    assert await first.result(SOON) == "its ttl expired"
    assert ("step_completed", "note") in events(conn, first.key)
    assert [name for kind, name in events(conn, first.key) if kind == "step_completed"] == ["note"]


async def test_a_holder_that_asks_when_its_time_is_over_is_told_though_nobody_has_swept(
    aflow, conn
):
    run = await settle(aflow, hold_for_an_hour)
    answer = """
        select s.is_lost, (s.units->0->>4)::json->>'lost'
        from pgflow.lock l cross join lateral pgflow.settle_locks_(
          jsonb_build_array(jsonb_build_object('run', l.run_id, 'chain', l.run_id, 'token', 1,
            'holds', jsonb_build_array(jsonb_build_array(l.call, l.key, l.fence, false)))),
          '{1}', '{100}', l.expires_at + %s) s
    """
    told = []
    for late in (-timedelta(microseconds=1), timedelta()):
        with conn.transaction(force_rollback=True):
            told.append(conn.execute(answer, (late,)).fetchone())
    assert told[0] == (False, None)
    assert told[1] == (True, "expired")
    await run.cancel()


async def test_a_holder_within_its_time_keeps_it(aflow):
    run = await settle(aflow, hold_for_an_hour)
    await aflow.skip(HOUR - timedelta(minutes=1))
    await run.send(go, "on")
    assert await run.result(SOON) == "kept"


@pytest.mark.full
async def test_an_operator_takes_a_lock_away_and_it_is_recorded(aflow, conn):
    @workflow
    async def long() -> str:
        try:
            async with pgflow.lock("a"):
                await go.wait()
                await note("acts")
                return "kept"
        except LockLost:
            return "lost"

    first = await settle(aflow, long.options(key="first"), beside=[pass_through])
    second = await settle(aflow, pass_through, "a")
    assert conn.execute("select pgflow.break_lock('a', 'it hangs', 'ann')").fetchone() == (1,)
    assert await second.result(SOON) == 2
    await first.send(go, "on")
    assert await first.result(SOON) == "lost"
    said = "select payload->>'lost', payload->>'by', payload->>'why' from pgflow.unit where kind = 'u' and payload::jsonb ? 'lost'"
    assert conn.execute(said).fetchall() == [("broken", "ann (postgres)", "it hangs")]
    broken = "select key, holder, broken_by, why from pgflow.broken_locks"
    assert conn.execute(broken).fetchall() == [("a", "first", "ann (postgres)", "it hangs")]


async def test_a_step_is_not_begun_once_the_lock_is_lost(aflow, conn):
    begun = []

    @step
    async def break_it() -> None:
        conn.execute("select pgflow.break_lock('a', 'it hangs')")

    @step
    async def act() -> None:
        begun.append("act")

    @workflow
    async def loses_it() -> str:
        try:
            async with pgflow.lock("a"):
                await break_it()
                await act()
        except LockLost:
            return "lost"
        return "kept"

    assert await result_of(aflow, loses_it) == "lost"
    assert begun == []


@pytest.mark.full
async def test_a_child_is_not_begun_once_the_lock_is_lost_and_its_key_is_free(aflow, conn):
    @step
    async def break_it() -> None:
        conn.execute("select pgflow.break_lock('a', 'it hangs')")

    @workflow
    async def child() -> str:
        return "child"

    @workflow
    async def loses_it() -> str:
        try:
            async with pgflow.lock("a"):
                await break_it()
                await pgflow.run_child(child.options(key="the child"))
        except LockLost:
            await note("lost")
            return "lost"
        return "kept"

    assert await result_of(aflow, loses_it, beside=[child]) == "lost"
    assert count(conn, "pgflow.run") == 1
    later = await aflow.start(child.options(key="the child"))
    assert await later.result(SOON) == "child"


@pytest.mark.full
async def test_what_asks_a_pool_and_a_person_beside_a_block_asks_again_when_the_lock_is_lost(
    aflow, conn
):
    @step
    async def break_it() -> None:
        conn.execute("select pgflow.break_lock('a', 'it hangs')")

    @workflow
    async def loses_it() -> list[Any]:
        try:
            async with pgflow.lock("a"):
                await break_it()
                costly = note.options(admit=pgflow.authority.Admit(usd=1))
                beside = [
                    asyncio.create_task(costly("beside")),
                    asyncio.create_task(pgflow.authority.gate("ask", "beside")),
                ]
                await costly("inside")
        except LockLost:
            said = [await task for task in beside]
            return [said[0], said[1].value]
        return []

    aflow.include(loses_it)
    conn.execute("select pgflow.set_pool('user', '{\"usd\": 5}')")
    run = await settle(aflow, loses_it.options(pool="user"))
    assert count(conn, "pgflow.gate") == 1
    gate = conn.execute("select gate from pgflow.gates").fetchall()[0][0]
    await aflow.app.answer(gate, pgflow.authority.Approve(), by="ann")
    assert await run.result(SOON) == ["beside", "beside"]
    assert [k for k, _ in events(conn, run.key)].count("budget_admitted") == 1
    assert count(conn, "pgflow.reservation") == 0


@pytest.mark.full
async def test_a_costly_transaction_in_the_block_shows_its_fence_and_settles_its_budget(
    aflow, conn
):
    tries: list[str] = []

    @transaction
    async def book(on: psycopg.AsyncConnection[Any], how: str) -> str:
        pgflow.authority.charge(usd=1)
        tries.append(how)
        if how == "lose":
            conn.execute("select pgflow.break_lock('a', 'it hangs')")
        await on.execute("select 1")
        return "booked"

    @workflow
    async def books(how: str) -> str:
        try:
            async with pgflow.lock("a"):
                return await book.options(admit=pgflow.authority.Admit(usd=2))(how)
        except LockLost:
            return "lost"

    aflow.include(books)
    conn.execute("select pgflow.set_pool('user', '{\"usd\": 5}')")
    kept = await aflow.start(books.options(pool="user"), "keep")
    assert await kept.result(SOON) == "booked"
    spent = "select charged, reserved from pgflow.budgets where pool = 'user'"
    assert conn.execute(spent).fetchall() == [(1, 0)]
    lost = await aflow.start(books.options(pool="user"), "lose")
    assert await lost.result(SOON) == "lost"
    assert conn.execute(spent).fetchall() == [(1 + tries.count("lose"), 0)]


@pytest.mark.full
async def test_a_run_in_a_block_waits_at_a_gate_and_keeps_the_lock(aflow, conn):
    @workflow
    async def asks(by_hand: bool) -> Any:
        async with pgflow.lock("a"):
            return (await pgflow.authority.gate("ask", 1)).value if by_hand else 2

    first = await settle(aflow, asks.options(key="first"), True)
    second = await settle(aflow, asks.options(key="second"), False)
    await aflow.crash()
    assert holders(conn) == [("a", "first")]
    gate = conn.execute("select gate from pgflow.gates").fetchall()[0][0]
    await aflow.app.answer(gate, pgflow.authority.Approve(), by="ann")
    await aflow.until_idle()
    assert await first.result(SOON) == 1
    assert await second.result(SOON) == 2


@pytest.mark.full
async def test_a_child_that_was_given_up_in_the_block_is_ended_though_the_lock_is_lost(aflow, conn):
    @step
    async def break_it() -> None:
        conn.execute("select pgflow.break_lock('a', 'it hangs')")

    @workflow
    async def child() -> None:
        await go.wait()

    @workflow
    async def loses_it() -> str:
        try:
            async with pgflow.lock("a"):
                waiting = asyncio.create_task(pgflow.run_child(child.options(key="the child")))
                await asyncio.sleep(60)
                await break_it()
                waiting.cancel()
                await note("gave up")
        except LockLost:
            return "lost"
        return "kept"

    run = await settle(aflow, loses_it, beside=[child])
    await aflow.skip(HOUR)
    assert await run.result(SOON) == "lost"
    await aflow.until_idle()
    assert await aflow.app.get("the child", child).status() == "cancelled"


@workflow
async def go_round(n: int) -> list[int]:
    async with pgflow.lock("a") as fence:
        await note(str(n))
        if n:
            pgflow.continue_as_new(n - 1)
        await go.wait()
    return [fence]


@pytest.mark.full
async def test_the_next_generation_holds_the_locks_of_the_one_before(aflow, conn):
    run = await settle(aflow, go_round.options(key="round"), 2, beside=[pass_through])
    other = await settle(aflow, pass_through, "a")
    assert holders(conn) == [("a", "round")]
    await run.send(go, "on")
    assert await run.result(SOON) == [1]
    assert await other.result(SOON) == 2


async def test_a_generation_that_shares_what_the_one_before_had_alone_gives_it_back_first(
    aflow, conn
):
    @workflow
    async def opens_up(n: int) -> int:
        async with pgflow.lock("a", shared=not n) as fence:
            await note(str(n))
            if n:
                pgflow.continue_as_new(n - 1)
            await go.wait()
        return fence

    run = await settle(aflow, opens_up.options(key="opens"), 1)
    assert conn.execute("select fence, is_shared from pgflow.locks").fetchall() == [(2, True)]
    await run.send(go, "on")
    assert await run.result(SOON) == 2


async def test_a_generation_that_never_asks_for_its_lock_gives_it_back_at_its_end(aflow, conn):
    @workflow
    async def forgets(n: int) -> None:
        if n:
            async with pgflow.lock("a"):
                pgflow.continue_as_new(n - 1)
        await go.wait()

    run = await settle(aflow, forgets.options(key="forgets"), 1)
    assert holders(conn) == [("a", "forgets")]
    await run.send(go, "on")
    await run.result(SOON)
    assert holders(conn) == []


@pytest.mark.full
async def test_a_rewind_into_the_block_goes_on_holding_and_one_before_it_gives_back(aflow, conn):
    run = await settle(aflow, hold.options(key="first"), "a")
    conn.execute("select pgflow.rewind_run('first', 1)")
    await aflow.until_idle()
    assert conn.execute("select fence, holder from pgflow.locks").fetchall() == [(1, "first")]
    conn.execute("select pgflow.rewind_run('first', 0)")
    await aflow.until_idle()
    assert conn.execute("select fence, holder from pgflow.locks").fetchall() == [(2, "first")]
    await run.send(go, "on")
    assert await run.result(SOON) == 2


async def test_a_rewind_or_a_fork_into_a_block_that_holds_nothing_names_where_to_cut(aflow, conn):
    @workflow
    async def noted(ends: str) -> str:
        async with pgflow.lock("a"):
            await note("one")
            if ends == "later":
                await go.wait()
        return "kept"

    assert await result_of(aflow, noted.options(key="first"), "now") == "kept"
    for order in (
        "pgflow.rewind_run('first', 3, effects => 'repeat')",
        "pgflow.fork_run('first', at_seq => 1, effects => 'repeat')",
    ):
        with pytest.raises(psycopg.Error, match=r"lock a, won at unit 1, would not be held") as no:
            conn.execute(f"select {order}")  # type: ignore[arg-type]
        assert (no.value.sqlstate, no.value.diag.message_hint) == (
            "PF003",
            "Cut at unit 0 or before, so that it is taken again, or at unit 4 or after.",
        )
    conn.execute("select pgflow.rewind_run('first', 0, effects => 'repeat')")
    conn.execute("select pgflow.fork_run('first', 'second')")
    await aflow.until_idle()
    assert await aflow.app.get("first", noted).result(SOON) == "kept"
    assert await aflow.app.get("second", noted).result(SOON) == "kept"

    held = await settle(aflow, noted.options(key="third"), "later")
    with pytest.raises(psycopg.Error, match=r"lock a, won at unit 1, would not be held") as no:
        conn.execute("select pgflow.fork_run('third', 'fourth')")
    assert no.value.diag.message_hint == "Cut at unit 0 or before, so that it is taken again."
    conn.execute("select pgflow.fork_run('third', 'fourth', at_seq => 0, effects => 'repeat')")
    await aflow.until_idle()
    assert holders(conn) == [("a", "third")]
    await held.send(go, "on")
    assert await held.result(SOON) == "kept"
    await aflow.app.get("fourth", noted).send(go, "on")
    assert await aflow.app.get("fourth", noted).result(SOON) == "kept"


async def test_a_retry_of_a_step_that_failed_in_a_block_takes_the_lock_again(aflow, conn):
    broken = True

    @pgflow.read
    async def measure() -> int:
        return 1

    @step(retries=1)
    async def fragile() -> str:
        if broken:
            raise ValueError("not yet")
        return "done"

    @workflow
    async def in_two() -> str:
        async with pgflow.lock("outer"):
            await measure()
            async with pgflow.lock("inner"):
                return await fragile()

    run = await launch(aflow, in_two.options(key="first"), beside=[hold])
    with pytest.raises(pgflow.RunFailed):
        await run.result(SOON)
    other = await settle(aflow, hold, "outer")
    broken = False
    await aflow.app.retry("first")
    await aflow.until_idle()
    assert holders(conn) == [("outer", other.key)]
    await other.send(go, "on")
    await other.result(SOON)
    assert await run.result(SOON) == "done"
    assert holders(conn) == []


@workflow
def hold_sync(key: str) -> int:
    with pgflow.sync.lock(key) as fence:
        go.sync.wait()
    return fence


@pytest.mark.full
def test_sync_workflows_hold_locks_too(flow, conn):
    @workflow
    def waits() -> str:
        try:
            with pgflow.sync.lock("a", ttl=3600, timeout=7200):
                go.sync.wait()
                return "kept"
        except LockLost:
            return "lost"

    first = settle(flow, hold_sync, "a", beside=[waits])
    second = settle(flow, waits)
    first.send(go, "on")
    assert first.result(SOON) == 1
    flow.until_idle()
    flow.crash()
    flow.skip(timedelta(hours=2))
    second.send(go, "on")
    assert second.result(SOON) == "lost"
    assert holders(conn) == []


def test_a_cancelled_sync_run_gives_its_lock_back(flow, conn):
    run = settle(flow, hold_sync, "a")
    run.cancel()
    flow.until_idle()
    assert run.status() == "cancelled"
    assert holders(conn) == []


async def test_the_wrong_colour_is_told_of_the_twin(aflow):
    @workflow
    async def wrong() -> str:
        try:
            pgflow.sync.lock("a")
        except pgflow.errors.WrongColourError as error:
            return str(error)
        return ""

    assert "await pgflow.lock()" in await result_of(aflow, wrong)


async def test_bad_arguments_are_refused_where_they_are_given(aflow):
    @workflow
    async def bad() -> int:
        refused = 0
        for arguments in ({"key": ""}, {"key": "a", "ttl": 0}, {"key": "x" * 256}):
            try:
                pgflow.lock(**arguments)
            except pgflow.InvalidArgument:
                refused += 1
        return refused

    assert await result_of(aflow, bad) == 3
