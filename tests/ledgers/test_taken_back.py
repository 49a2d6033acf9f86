"""Effects once taken back are done no more: whatever goes on from a part of a journal knows it;
none is taken back twice or forgotten.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from records import SOON, launch, run_row, settle
from sqlkit import Actor, one, rows

import pgflow
from pgflow import InvalidArgument, RunCancelled, RunFailed, Signal, read, step, workflow
from pgflow.effects import Accepted, effect
from pgflow.errors import HasActed, WrongState

Conn = psycopg.Connection[Any]

go = Signal("go", str)
calls: list[str] = []
prices: dict[str, int] = {}


@pytest.fixture(autouse=True)
def world() -> None:
    calls.clear()
    prices.clear()


@effect(risk="compensable")
async def book_stay(name: str) -> str:
    calls.append(f"book {name}")
    return f"paper of {name}"


@book_stay.compensate
async def cancel(paper: str, name: str) -> None:
    assert paper == f"paper of {name}"
    calls.append(f"cancel {name}")


@effect(risk="compensable")
async def order(name: str) -> Accepted:
    calls.append(f"order {name}")
    return Accepted(f"ref {name}")


@step
async def pay() -> str:
    if not prices:
        raise ValueError("no money")
    return "paid"


@read
async def is_cheap() -> bool:
    return not prices


@workflow
async def trip(first: str, second: str) -> str:
    async with pgflow.effects.saga():
        await book_stay(first)
        await book_stay(second)
        await pay()
    return "done"


@workflow
async def leg(name: str) -> str:
    return await book_stay(name)


@workflow
async def journey() -> str:
    async with pgflow.effects.saga():
        await pgflow.run_child(leg.options(key="leg"), "middle")
        await pay()
    return "done"


@workflow
async def two_stages(n: int) -> str:
    async with pgflow.effects.saga():
        if n == 0:
            await pgflow.run_child(leg.options(key="leg"), "middle")
            pgflow.continue_as_new(1)
        await pay()
    return "done"


@workflow
async def shopping(items: list[str]) -> list[str]:
    return [await book_stay(item) for item in items]


@workflow
async def fickle() -> str:
    return await book_stay("tea") if await is_cheap() else "nothing"


@workflow
async def ordering(n: int) -> str:
    if n == 0:
        await order("tea")
        pgflow.continue_as_new(1)
    return await go.wait()


def sound(conn: Conn) -> None:
    assert rows(conn, "select invariant, detail from pgflow.check()") == []


@pytest.mark.full
@pytest.mark.parametrize("effects", ["reuse", "repeat", "compensate"])
def test_no_cut_keeps_an_effect_and_drops_its_compensation(flow, conn, effects):
    run = launch(flow, trip.options(key="k"), "hotel", "flight")
    with pytest.raises(RunFailed):
        run.result(SOON)
    assert calls == ["book hotel", "book flight", "cancel flight", "cancel hotel"]
    undone = one(conn, "select min(seq) from pgflow.effects where compensates is not null")
    for cut in range(2, undone):
        with pytest.raises(
            InvalidArgument,
            match=r"effect book_stay, intended at unit [13], (was taken back at unit \d+|has ended "
            r"at unit 4)\. Cut before",
        ):
            flow.app.rewind("k", cut, effects=effects)
    with pytest.raises(InvalidArgument, match="was taken back"):
        flow.app.retry("k", from_step="pay", effects=effects)
    prices["fare"] = 1
    flow.app.rewind("k", 0, effects=effects)
    assert run.result(SOON) == "done"
    assert calls[4:] == ["book hotel", "book flight"]
    sound(conn)


@pytest.mark.full
@pytest.mark.parametrize("effects", ["reuse", "repeat", "compensate"])
def test_a_retry_goes_back_to_before_what_was_taken_back(flow, conn, effects):
    run = launch(flow, trip.options(key="k"), "hotel", "flight")
    with pytest.raises(RunFailed):
        run.result(SOON)
    prices["fare"] = 1
    with pytest.raises(HasActed, match="what would be dropped has acted: effect book_stay"):
        flow.app.retry("k")
    flow.app.retry("k", effects=effects)
    assert run.result(SOON) == "done"
    assert calls[4:] == ["book hotel", "book flight"]
    assert run_row(conn, "k", "origin_seq") == (0,)
    with pytest.raises(WrongState, match="run 'k' is completed"):
        flow.app.retry("k", effects=effects)
    sound(conn)


@pytest.mark.full
def test_no_cut_keeps_a_child_whose_effects_were_taken_back(flow, conn):
    run = launch(flow, journey.options(key="k"), beside=[leg])
    with pytest.raises(RunFailed):
        run.result(SOON)
    taken = one(
        conn,
        "select max(seq) from pgflow.timeline join pgflow.runs using (run_id) where runs.key = 'k' "
        "and event = 'child_finished'",
    )
    for cut in (taken - 1, taken):
        with pytest.raises(
            InvalidArgument,
            match=r"child leg, started at unit 1, was taken back at unit \d+\. Cut before the one "
            r"or after the other",
        ):
            flow.app.rewind("k", cut, effects="reuse")
    prices["fare"] = 1
    flow.app.retry("k", effects="reuse")
    assert run.result(SOON) == "done"
    assert calls == ["book middle", "cancel middle", "book middle"]
    sound(conn)


@pytest.mark.full
@pytest.mark.parametrize("effects", ["reuse", "repeat", "compensate"])
@pytest.mark.parametrize("has_money", [True, False])
def test_what_a_child_left_to_its_parent_is_not_the_childs_to_do_again(
    flow, conn, effects, has_money
):
    flow.include(two_stages, leg)
    if has_money:
        prices["fare"] = 1
    run = flow.start(two_stages.options(key="k"), 0)
    if has_money:
        assert run.result(SOON) == "done"
    else:
        with pytest.raises(RunFailed):
            run.result(SOON)
    with pytest.raises(
        WrongState,
        match=r"run 'leg' is a child, and its effects are its parent's, 'k', to keep or take "
        r"back\. Rewind the parent, or fork this run",
    ):
        flow.app.restart("leg", effects=effects)
    assert calls == ["book middle"] if has_money else ["book middle", "cancel middle"]
    sound(conn)


def test_what_was_handed_over_and_not_asked_for_is_taken_back(flow, conn):
    run = launch(flow, shopping.options(key="k"), ["milk", "tea", "gin"])
    run.result(SOON)
    flow.app.restart("k", effects="reuse", input={"items": ["milk"]})
    assert run.result(SOON) == ["paper of milk"]
    flow.app.restart("k", effects="reuse", input={"items": []})
    assert run.result(SOON) == []
    assert len(calls) == 3
    flow.app.restart("k", effects="compensate", input={"items": ["tea"]})
    assert run.result(SOON) == ["paper of tea"]
    assert sorted(calls[3:6]) == ["cancel gin", "cancel milk", "cancel tea"]
    assert calls[3:5] == ["cancel gin", "cancel tea"], "the last first"
    assert calls[6:] == ["book tea"]
    sound(conn)


def test_a_fork_of_an_older_generation_is_not_handed_what_a_later_one_took_back(flow, conn):
    run = launch(flow, fickle.options(key="k"))
    assert run.result(SOON) == "paper of tea"
    prices["tea"] = 1
    flow.app.restart("k", effects="compensate")
    assert run.result(SOON) == "nothing"
    prices.clear()
    fork = flow.app.fork("k", generation=1, at=0, effects="reuse")
    assert flow.app.get(fork, fickle).result(SOON) == "paper of tea"
    assert calls == ["book tea", "cancel tea", "book tea"]
    sound(conn)


@pytest.mark.full
def test_a_fork_of_an_older_generation_starts_a_child_anew_that_a_later_one_took_back(flow, conn):
    @workflow
    async def patient() -> str:
        async with pgflow.effects.saga():
            await pgflow.run_child(leg, "middle")
            if await go.wait() == "fail":
                raise ValueError
        return "done"

    flow.include(patient, leg)
    run = settle(flow, patient.options(key="k"))
    flow.app.restart("k", effects="reuse")
    flow.until_idle()
    run.send(go, "fail")
    with pytest.raises(RunFailed):
        run.result(SOON)
    assert calls == ["book middle", "cancel middle"]
    fork = flow.app.fork("k", generation=1, at=0, effects="reuse")
    flow.app.send(fork, go, "go")
    assert flow.app.get(fork, patient).result(SOON) == "done"
    assert calls[2:] == ["book middle"]
    sound(conn)


@pytest.mark.full
@pytest.mark.parametrize("crashes", [False, True])
def test_a_cancel_of_a_run_that_waits_to_continue_as_new_reaches_the_next_generation(
    flow, conn, crashes
):
    run = settle(flow, ordering.options(key="k"), 0)
    assert run_row(conn, "k", "status, reason_code") == ("waiting", "effect")
    flow.app.cancel("k", why="enough")
    flow.until_idle()
    if crashes:
        flow.crash()
    flow.app.confirm_effect("ref tea")
    flow.until_idle()
    with pytest.raises(RunCancelled, match="enough"):
        run.result(SOON)
    assert run_row(conn, "k", "status, generation") == ("cancelled", 2)
    # The next generation takes it with its first commit, or is ended by a wake that comes before
    # its worker.
    cancels = "from pgflow.unit where call = 0 and (kind = 'x' or kind = 'o' and name = 'cancel')"
    assert rows(conn, f"select payload->>'why' {cancels} order by run_id") == ["enough", "enough"]
    assert one(conn, f"select count(distinct payload->>'by') {cancels}") == 1
    sound(conn)


@pytest.mark.full
@pytest.mark.parametrize("by", ["reference", "key"])
def test_a_word_that_crosses_a_rewind_is_recorded_where_the_debt_is_now(flow, conn, dsn, by):
    settle(flow, ordering.options(key="k"), 0)
    cut = one(conn, "select max(seq) from pgflow.timeline")
    key = one(conn, "select effect from pgflow.obligations")
    query = (
        "select pgflow.confirm_effect('ref tea')"
        if by == "reference"
        else f"select pgflow.settle_effect('{key}', 'confirmed')"
    )
    with Actor(dsn) as webhook:
        with conn.transaction():
            conn.execute("select pgflow.rewind_run('k', %s)", (cut,))
            said = webhook.do(lambda its: one(its, query))
            webhook.until_waiting(conn, said)
        said.result()
    conn.execute("select pgflow.wake()")
    flow.until_idle()
    assert rows(conn, "select effect from pgflow.obligations") == []
    assert run_row(conn, "k", "generation") == (3,)
    if by == "reference":
        conn.execute(query)  # the same word, once more
    else:
        with pytest.raises(psycopg.Error, match="no open effect"):
            conn.execute(query)
    sound(conn)
