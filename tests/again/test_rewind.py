"""Rewind, restart, fork and retry from a step: a part of a run is done again, and nothing of it is
lost.
"""

from __future__ import annotations

import asyncio
import io
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlkit
from records import SOON, calling, count, launch, result_of, run_row, settle, steps
from sqlkit import (
    PATIENT,
    Actor,
    begin,
    child,
    claim,
    claim_one,
    commit,
    finish,
    flush,
    hold,
    mailbox,
    one,
    rows,
    send,
    set_clock,
    start,
    unit,
    wait_for,
    wake,
)

import pgflow
from pgflow import (
    InvalidArgument,
    KeyConflict,
    RunFailed,
    RunNotFound,
    RunStuck,
    Signal,
    read,
    step,
    transaction,
    workflow,
)
from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.errors import HasActed, WrongState
from pgflow.replay.check import find_divergence
from pgflow.replay.histories import export_chain, import_lines, read_history

if TYPE_CHECKING:
    from pgflow.testing import Harness

    Conn = psycopg.Connection[Any]

word = Signal("word", str)
acted: list[tuple[str, str]] = []
"""Acts of every body that ran, as (what, idempotency key)."""
broken: set[str] = set()
"""Names of items that cannot be bought now."""


@pytest.fixture(autouse=True)
def nothing_has_acted() -> None:
    acted.clear()
    broken.clear()


@step
async def buy(item: str) -> str:
    acted.append((item, pgflow.idempotency_key()))
    if item in broken:
        raise ValueError(f"no {item}")
    return f"{item} bought"


@read
async def look(item: str) -> int:
    return len(item)


@transaction
async def book(conn: psycopg.AsyncConnection[Any], item: str) -> str:
    await conn.execute("create table if not exists booked (item text)")
    await conn.execute("insert into booked values (%s)", (item,))
    return f"{item} booked"


@workflow
async def helper(item: str) -> str:
    return await buy(f"{item} for the parent")


@workflow
async def everything(rounds: int) -> list[Any]:
    """Seven or so units of every sort a round."""
    made: list[Any] = []
    for n in range(rounds):
        pgflow.set_state(round=n)
        made.append(await look(f"price {n}"))
        made += await asyncio.gather(buy(f"a{n}"), buy(f"b{n}"))
        made.append(await word.wait())
        made.append(await book(f"seat {n}"))
        made.append(await pgflow.run_child(helper, f"c{n}"))
        pgflow.emit("log", n)
        await pgflow.sleep(0.001)
        assert pgflow.uuid() != pgflow.uuid()
    return made


def units(conn: Conn, key: str) -> int:
    """Return the number of units of a run's newest generation."""
    return one(
        conn,
        "select count(*) from pgflow.timeline t join pgflow.runs r using (run_id) where r.key = %s",
        key,
    )


def seq_of(conn: Conn, key: str, event: str, name: str) -> int:
    return one(
        conn,
        "select max(seq) from pgflow.timeline t join pgflow.runs r using (run_id) where r.key = %s "
        "and event = %s and t.name = %s",
        key,
        event,
        name,
    )


def sound(conn: Conn) -> None:
    assert rows(conn, "select invariant, detail from pgflow.check()") == []


def expected(rounds: int) -> list[Any]:
    return [
        value
        for n in range(rounds)
        for value in (
            len(f"price {n}"),
            f"a{n} bought",
            f"b{n} bought",
            f"word {n}",
            f"seat {n} booked",
            f"c{n} for the parent bought",
        )
    ]


def begin_all(flow: Harness, conn: Conn, keys: list[str], rounds: int = 5) -> None:
    """Runs to be done again, each with all its messages, brought to their ends side by side."""
    flow.include(everything, helper)
    conn.execute("create table if not exists booked (item text)")
    for key in keys:
        run = flow.start(everything.options(key=key), rounds)
        for n in range(rounds):
            run.send(word, f"word {n}")
    for key in keys:
        assert flow.app.get(key, everything).result(SOON) == expected(rounds)


@pytest.mark.full
@pytest.mark.parametrize("effects", ["repeat", "reuse"])
def test_a_run_goes_on_from_every_unit_of_fifty(flow, conn, effects):
    begin_all(flow, conn, ["k"])
    length = units(conn, "k")
    assert length >= 50
    keys = {cut: f"k{cut}" for cut in sorted({*range(0, length + 1, 5), length, 40})}
    begin_all(flow, conn, [*keys.values()])
    for cut, key in keys.items():
        flow.app.rewind(key, min(cut, units(conn, key)), effects=effects)
    sound(conn)
    for cut, key in keys.items():
        assert flow.app.get(key, everything).result(SOON) == expected(5), cut
    sound(conn)
    for cut in (length, 40, 23, 11, 1):  # one that was rewound before
        flow.app.rewind("k40", min(cut, units(conn, "k40")), effects=effects)
        assert flow.app.get("k40", everything).result(SOON) == expected(5), cut
    sound(conn)
    assert count(conn, "pgflow.signal") == count(conn, "pgflow.undelivered") == 0


@pytest.mark.full
def test_a_fork_goes_on_from_every_unit_of_fifty(flow, conn):
    begin_all(flow, conn, ["k"])
    length = units(conn, "k")
    assert length >= 50
    before = conn.execute(
        "select * from pgflow.timeline where key = 'k' order by run_id, seq"
    ).fetchall()
    keys = {
        cut: flow.app.fork("k", f"fork-{cut}", at=cut, effects="repeat", with_mail=True)
        for cut in sorted({*range(0, length + 1, 5), length, 6})
    }
    sound(conn)
    for cut, key in keys.items():
        assert flow.app.get(key, everything).result(SOON) == expected(5), cut
    sound(conn)
    assert (
        conn.execute(
            "select * from pgflow.timeline where key = 'k' order by run_id, seq"
        ).fetchall()
        == before
    )
    found = run_row(conn, "fork-6", "origin_key, origin_generation, origin_seq, generation")
    assert found == ("k", 1, 6, 1)


@pytest.mark.full
def test_a_run_that_continues_as_new_is_rewound_in_its_newest_generation_and_forked_in_any(
    flow, conn
):
    @workflow
    async def chain(left: int, made: list[str]) -> list[str]:
        made = [*made, await buy(f"x{left}"), await word.wait()]
        if left:
            pgflow.continue_as_new(left - 1, made)
        return made

    run = launch(flow, chain.options(key="k"), 2, [])
    for text in "abc":
        run.send(word, text)
    result = ["x2 bought", "a", "x1 bought", "b", "x0 bought", "c"]
    assert run.result(SOON) == result
    for cut in range(units(conn, "k"), -1, -1):
        flow.app.rewind("k", cut, effects="repeat")
        sound(conn)
        assert run.result(SOON) == result
    for generation in (1, 2, 3):
        key = flow.app.fork("k", generation=generation, effects="repeat", with_mail=True)
        for text in "bcd":
            flow.app.send(key, word, text)
        assert flow.app.get(key, chain).result(SOON)[:2] == result[:2]
        sound(conn)
    with pytest.raises(InvalidArgument, match="at unit 4 the run continued as new: cut before it"):
        flow.app.fork("k", generation=1, at=4)
    with pytest.raises(InvalidArgument, match="has no generation 77"):
        flow.app.fork("k", generation=77)


@workflow
async def shopping(items: list[str]) -> list[str]:
    return [await buy(item) for item in items]


@pytest.mark.full
def test_what_has_acted_is_named_and_refused(flow, conn):
    result_of(flow, shopping.options(key="k"), ["milk", "bread"])
    with pytest.raises(
        HasActed,
        match=r"what would be dropped has acted: step buy \(unit 2, completed\), step buy \(unit "
        r"3, completed\)\. Say effects: reuse",
    ):
        flow.app.restart("k")
    with pytest.raises(HasActed, match="unit 3"):
        flow.app.fork("k", at=2)
    with pytest.raises(
        InvalidArgument, match="effects must be reuse, repeat or compensate, not 'again'"
    ):
        flow.app.restart("k", effects="again")  # type: ignore[typeddict-item]
    with pytest.raises(
        InvalidArgument,
        match="a fork leaves its origin as it is: what that has done is its own to take back",
    ):
        flow.app.fork("k", effects="compensate")
    assert run_row(conn, "k", "generation, status") == (1, "completed")


@pytest.mark.full
def test_repeat_does_it_again_under_new_keys_and_reuse_does_nothing_again(flow, conn):
    run = launch(flow, shopping.options(key="k"), ["milk", "bread", "milk"])
    run.result(SOON)
    root = one(conn, "select root::text from pgflow.run")
    first = [("milk", f"{root}/buy/1"), ("bread", f"{root}/buy/2"), ("milk", f"{root}/buy/3")]
    assert acted == first
    flow.app.rewind("k", 2, effects="reuse")
    assert run.result(SOON) == ["milk bought", "bread bought", "milk bought"]
    assert acted == first
    flow.app.rewind("k", 2, effects="repeat")
    run.result(SOON)
    again = [("bread", f"{root}~3/buy/2"), ("milk", f"{root}~3/buy/3")]
    assert acted == first + again
    assert rows(
        conn,
        "select idempotency_key from pgflow.steps s join pgflow.runs r using (run_id) order by call",
    ) == [first[0][1], *(key for _, key in again)]
    flow.app.restart("k", effects="reuse", input={"items": ["milk", "tea", "bread"]})
    assert run.result(SOON) == ["milk bought", "tea bought", "bread bought"]
    assert acted == [*first, *again, ("tea", f"{root}~4/buy/2")], (
        "only what was not asked for before"
    )


@step(retries=pgflow.Retries(max_attempts=4, first_delay=0.001))
async def insist(item: str) -> str:
    acted.append((item, pgflow.idempotency_key()))
    if sum(what == item for what, _ in acted) < 3:
        raise ValueError(f"no {item} yet")
    return f"{item} had"


KEYS = (
    "select (s.call, s.idempotency_key) from pgflow.steps s join pgflow.runs r using (run_id) "
    "where r.key = %s and s.attempts > 0 order by s.call"
)


@pytest.mark.full
def test_a_step_that_is_begun_has_its_key_after_every_cut(flow, conn):
    @workflow
    async def trip() -> None:
        await asyncio.gather(insist("visa"), buy("map"))
        await book("seat")
        await insist("taxi")
        await word.wait()

    settle(flow, trip.options(key="k"))
    keys = dict(rows(conn, KEYS, "k"))
    assert len(keys) == 4
    assert all(keys.values())
    last = units(conn, "k")
    for cut in range(last + 1):
        for order in (
            f"pgflow.rewind_run('k', {cut}, effects => 'reuse')",
            f"pgflow.rewind_run('k', {cut}, effects => 'repeat')",
            f"pgflow.fork_run('k', 'k2', at_seq => {cut}, effects => 'repeat')",
        ):
            with conn.transaction(force_rollback=True):
                conn.execute(f"select {order}")  # type: ignore[arg-type]
                seen = dict(rows(conn, KEYS, "k2" if "fork" in order else "k"))
                assert seen == {call: keys[call] for call in seen}
                # One whose attempts have failed, again after a second cut.
                conn.execute(
                    f"select pgflow.fork_run('k', 'k3', at_seq => {cut}, effects => 'repeat')"
                )  # type: ignore[arg-type]
                assert dict(rows(conn, KEYS, "k3")) == seen
    flow.app.rewind("k", 3, effects="reuse")
    flow.until_idle()
    assert dict(rows(conn, KEYS, "k")) == keys


@pytest.mark.full
def test_what_was_handed_on_is_handed_on_again_asked_for_or_not(flow, conn):
    @workflow
    async def trip(items: list[str], seats: list[str]) -> list[str]:
        return [await buy(item) for item in items] + [await book(seat) for seat in seats]

    run = launch(flow, trip.options(key="k"), ["milk", "bread"], ["12a", "12b"])
    done = run.result(SOON)
    keys = list(acted)
    for _ in range(2):
        flow.app.rewind("k", 1, effects="reuse")
        assert run.result(SOON) == done
    assert rows(
        conn,
        "select idempotency_key from pgflow.steps join pgflow.runs using (run_id) order by call",
    ) == [key for _, key in keys] + [f"{keys[0][1].split('/')[0]}/book/{n}" for n in (1, 2)]
    flow.app.restart("k", effects="reuse", input={"items": ["bread"], "seats": ["12b"]})
    assert run.result(SOON) == ["bread bought", "12b booked"]
    with pytest.raises(
        HasActed,
        match=r"step buy \(unit 2, completed\), step buy .*, transaction book .*, transaction book",
    ):
        flow.app.restart("k")
    flow.app.restart(
        "k", effects="reuse", input={"items": ["milk", "bread"], "seats": ["12a", "12b"]}
    )
    assert run.result(SOON) == done
    assert acted == keys
    assert count(conn, "booked") == 2


@pytest.mark.full
def test_transactions_are_acts_too(flow, conn):
    @workflow
    async def trip(seat: str) -> str:
        return await book(seat)

    run = launch(flow, trip.options(key="k"), "12a")
    run.result(SOON)
    with pytest.raises(HasActed, match=r"transaction book \(unit 1, completed\)"):
        flow.app.restart("k")
    flow.app.restart("k", effects="reuse")
    assert run.result(SOON) == "12a booked"
    assert count(conn, "booked") == 1
    flow.app.restart("k", effects="repeat")
    assert run.result(SOON) == "12a booked"
    assert count(conn, "booked") == 2


@pytest.mark.full
def test_a_failed_run_is_retried_from_the_step_that_failed_under_the_same_key(flow, conn):
    flow.include(shopping)
    broken.add("bread")
    buying = buy.options(retries=1)

    @workflow
    async def once(items: list[str]) -> list[str]:
        return [await buying(item) for item in items]

    run = launch(flow, once.options(key="k"), ["milk", "bread", "tea"])
    with pytest.raises(RunFailed):
        run.result(SOON)
    with pytest.raises(RunFailed):
        flow.app.retry("k", why="perhaps now")
        run.result(SOON)
    broken.clear()
    flow.app.retry("k", why="the baker is back")
    assert run.result(SOON) == ["milk bought", "bread bought", "tea bought"]
    keys = [key for item, key in acted if item == "bread"]
    assert len(keys) == 3
    assert len(set(keys)) == 1, "generation grows on rewind and restart, never on retry"
    assert [item for item, _ in acted].count("milk") == 1
    assert run_row(conn, "k", "generation") == (3,)


@pytest.mark.full
def test_attempts_is_a_budget_of_its_own(flow, conn):
    tries: list[int] = []
    enough = [99]

    @step(retries=pgflow.Retries(max_attempts=2, first_delay=timedelta(0)))
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < enough[0]:
            raise ValueError("not yet")
        return len(tries)

    run = launch(flow, calling(flaky).options(key="k"))
    with pytest.raises(RunFailed):
        run.result(SOON)
    assert len(tries) == 2
    enough[0] = 6
    flow.app.retry("k", from_step="flaky", attempts=4)
    assert run.result(SOON) == 6
    assert steps(conn, "k")[-1] == ("flaky", "completed", 4)
    with pytest.raises(InvalidArgument, match="attempts must be at least 1, not 0"):
        flow.app.retry("k", from_step="flaky", attempts=0, effects="repeat")


def test_what_cannot_be_retried_says_what_can(flow):
    @workflow
    async def fails(how: str) -> None:
        if how == "bad":
            raise ValueError("by itself")

    flow.include(fails)
    for how in ("good", "bad"):
        flow.start(fails.options(key=how), how)
    flow.until_idle()
    with pytest.raises(
        WrongState,
        match="'good' is completed: only a stuck or failed run can be retried. Say from which "
        "step, or restart it",
    ):
        flow.app.retry("good")
    with pytest.raises(WrongState, match="'bad' is failed: no step of it has failed"):
        flow.app.retry("bad")
    with pytest.raises(InvalidArgument, match="has no call of step 'buy'"):
        flow.app.retry("bad", from_step="buy")


@pytest.mark.full
def test_a_recorded_result_is_edited_where_the_run_goes_on_from_it(flow, conn):
    @workflow
    async def decide() -> list[str]:
        first = await buy("milk")
        return [first, await buy(f"more than {first}")]

    run = launch(flow, decide.options(key="k"))
    run.result(SOON)
    at = seq_of(conn, "k", "step_completed", "buy") - 1
    flow.app.rewind("k", at, edit="cream", effects="reuse", why="the bill says cream", by="ann")
    assert run.result(SOON) == ["cream", "more than cream bought"]
    name, said = conn.execute(
        "select name, payload from pgflow.timeline where event = 'operator'"
    ).fetchone()
    assert (name, said["by"], said["why"], said["effects"], said["was"]["status"]) == (
        "rewind", "ann (postgres)", "the bill says cream", "reuse", "completed",
    )  # fmt: skip
    assert (said["edit"]["seq"], said["edit"]["name"], said["origin"]["seq"]) == (at, "buy", at)
    assert said["edit"]["before"] != said["edit"]["after"]
    assert said["was"]["output"] == ["milk bought", "more than milk bought bought"]
    with pytest.raises(InvalidArgument, match="unit 3 is not the result of a step or a decision"):
        flow.app.rewind("k", 3, edit=1, effects="repeat")
    key = flow.app.fork("k", at=2, edit="oats", effects="repeat")
    assert flow.app.get(key, decide).result(SOON) == ["oats", "more than oats bought"]
    key = flow.app.fork("k", at=2, edit=None, effects="repeat")
    with pytest.raises(RunStuck, match="does not fit its annotation str"):
        flow.app.get(key, decide).result(SOON)


@pytest.mark.full
def test_a_step_that_failed_is_given_a_result(flow):
    buying = buy.options(retries=1)

    @workflow
    async def once() -> str:
        return await buying("milk")

    flow.include(once)
    broken.add("milk")
    run = flow.start(once.options(key="k"))
    with pytest.raises(RunFailed):
        run.result(SOON)
    flow.app.rewind("k", 2, edit="bought by hand")
    assert run.result(SOON) == "bought by hand"


@pytest.mark.full
def test_another_input_needs_a_journal_that_does_not_rest_on_it(flow, conn):
    run = launch(flow, shopping.options(key="k"), ["milk"])
    run.result(SOON)
    flow.app.restart("k", input={"items": []}, effects="repeat")
    assert run.result(SOON) == []
    key = flow.app.fork("k", at=0, input={"items": ["tea"]})
    assert flow.app.get(key, shopping).result(SOON) == ["tea bought"]
    with pytest.raises(
        InvalidArgument, match="the input cannot be another where a part of the journal is kept"
    ):
        flow.app.fork(key, at=1, input={"items": []}, effects="repeat")
    with pytest.raises(psycopg.Error, match="the input must be an object"):
        conn.execute("select pgflow.restart_run('k', input => '[]')")


@pytest.mark.full
def test_chance_is_the_same_in_the_kept_part_and_another_after_it(flow, conn):
    @workflow
    async def dice() -> list[str]:
        drawn = [str(pgflow.uuid())]
        await look("a")
        drawn.append(str(pgflow.uuid()))
        await look("b")
        return [*drawn, str(pgflow.uuid()), pgflow.idempotency_key()]

    run = launch(flow, dice.options(key="k"))
    first = run.result(SOON)
    flow.app.rewind("k", 1, effects="repeat")
    second = run.result(SOON)
    assert (first[0] == second[0], first[1] != second[1], first[2] != second[2]) == (
        True,
        True,
        True,
    )
    fork = flow.app.get(flow.app.fork("k", at=2, effects="repeat"), dice).result(SOON)
    assert fork[:2] == second[:2]
    assert fork[2] != second[2]
    assert len({first[3], second[3], fork[3]}) == 3
    flow.app.rewind("k", 1)
    assert run.result(SOON) == second, "nothing has acted: what comes is what came"


@pytest.mark.full
def test_a_waiting_run_is_rewound_and_its_messages_come_again_in_order(flow, conn):
    @workflow
    async def collect(want: int) -> list[str]:
        return [await word.wait(timeout=timedelta(hours=1)) for _ in range(want)]

    run = launch(flow, collect.options(key="k"), 5)
    for text in "abc":
        run.send(word, text)
    flow.until_idle()
    flow.app.pause("k")
    flow.until_idle()
    run.send(word, "d")
    with conn.transaction(force_rollback=True):
        conn.execute("select pgflow.rewind_run('k', 2)")
        assert rows(
            conn, "select payload #>> '{}' from pgflow.signal where kind = 's' order by signal_id"
        ) == ["b", "c", "d"]
        conn.execute("select pgflow.rewind_run('k', 0)")
        assert rows(
            conn, "select payload #>> '{}' from pgflow.signal where kind = 's' order by signal_id"
        ) == ["a", "b", "c", "d"]
    flow.app.rewind("k", 2)
    flow.until_idle()
    assert run.status() == "waiting"
    flow.app.rewind("k", 0)
    run.send(word, "e")
    assert run.result(SOON) == list("abcde")


@pytest.mark.full
def test_a_message_that_came_in_time_comes_in_time_again(flow):
    @workflow
    async def collect() -> list[str]:
        first = await word.wait(timeout=timedelta(minutes=1))
        return [first, await word.wait()]

    run = settle(flow, collect.options(key="k"))
    run.send(word, "in time")
    flow.until_idle()
    flow.skip(timedelta(hours=1))
    flow.until_idle()
    flow.app.rewind("k", 1)
    run.send(word, "the second")
    assert run.result(SOON) == ["in time", "the second"]


@pytest.mark.full
def test_what_was_put_aside_at_the_end_is_there_again(flow, conn):
    @workflow
    async def takes(how_many: int) -> list[str]:
        return [await word.wait() for _ in range(how_many)]

    run = launch(flow, takes.options(key="k"), 1)
    for text in "abc":
        run.send(word, text)
    assert run.result(SOON) == ["a"]
    assert count(conn, "pgflow.undelivered") == 2
    flow.app.restart("k", input={"how_many": 3})
    assert run.result(SOON) == ["a", "b", "c"]
    assert count(conn, "pgflow.undelivered") == 0


def test_a_run_that_a_worker_holds_must_be_paused_first(db):
    run = begin(db, key="k")
    found = refusal(db, "select pgflow.rewind_run('k', 0)")
    assert found == "run 'k' is running. Pause it first, and rewind it once it is paused."
    db.execute("select pgflow.pause_run('k')")
    commit(db, flush(run, unit(), idle=True))
    assert one(db, "select pgflow.run_status('k')") == "paused"
    db.execute("select pgflow.rewind_run('k', 0)")
    assert one(db, "select pgflow.run_status('k')") == "queued"


def test_a_stuck_run_is_rewound_and_what_it_was_is_kept(db):
    run = begin(db, key="k")
    commit(db, flush(run, unit()))
    commit(db, hold(run, detail={"message": "both sides"}))
    new_id, generation, seq = one(
        db, "select run_id, generation, seq from pgflow.rewind_run('k', 1)"
    )
    assert (generation, seq) == (2, 1)
    assert (
        one(
            db,
            "select payload->'was'->'detail'->>'message' from pgflow.unit where run_id = %s and "
            "kind = 'o'",
            new_id,
        )
        == "both sides"
    )
    assert (
        one(db, "select (status, reason)::text from pgflow.outcome where run_id = %s", run.run_id)
        == "(continued,rewind)"
    )
    again = claim_one(db)
    assert (again.run_id, again.generation, again.last_seq) == (new_id, 2, 2)
    finish(db, again)


def test_a_run_that_waits_for_its_time_restarts_at_its_time(db):
    set_clock(db, sqlkit.T0)
    start(db, key="k", run_at=sqlkit.T0 + timedelta(hours=1), timeout_seconds=60)
    db.execute("select pgflow.restart_run('k', input => '{\"a\": 1}')")
    assert one(db, "select pgflow.run_status('k')") == "waiting"
    assert claim(db) == []
    set_clock(db, sqlkit.T0 + timedelta(hours=1))
    sqlkit.poll(db)
    assert claim_one(db).input == '{"a": 1}'


def test_a_deadline_that_has_passed_is_not_carried_and_another_can_be_given(db):
    set_clock(db, sqlkit.T0)
    run = begin(db, key="k", timeout_seconds=60, labels='{"a": "b"}')
    finish(db, run)
    set_clock(db, sqlkit.T0 + timedelta(seconds=30))
    db.execute("select pgflow.restart_run('k')")
    assert one(db, "select due_at from pgflow.deadline") == sqlkit.T0 + timedelta(seconds=60)
    set_clock(db, sqlkit.T0 + timedelta(seconds=90))
    db.execute("select pgflow.restart_run('k', timeout_seconds => 5)")
    assert rows(db, "select due_at from pgflow.deadline") == [sqlkit.T0 + timedelta(seconds=95)]
    db.execute("select pgflow.restart_run('k')")
    set_clock(db, sqlkit.T0 + timedelta(seconds=99))
    db.execute("select pgflow.restart_run('k')")
    assert one(db, "select labels->>'a' from pgflow.runs where key = 'k'") == "b"


@pytest.fixture
def family(db: Conn) -> tuple[sqlkit.Claim, sqlkit.Claim]:
    """A parent that waits for its child, which a worker holds."""
    parent = begin(db, "parent", key="parent")
    commit(db, flush(parent, unit("c", 1), children=[child(2, key="child")]))
    kid = claim_one(db)
    commit(db, flush(parent, child_calls=[2], park=True, idle=True))
    return parent, kid


def refusal(db: Conn, query: str) -> str:
    with pytest.raises(psycopg.Error) as refused, db.transaction():
        db.execute(query)
    return f"{refused.value.diag.message_primary}. {refused.value.diag.message_hint}"


def test_a_child_that_is_open_has_one_parent(db, family):
    said = "child 'child', started at unit 2, is still open at unit 2 and has one parent only. Cut at unit 1 or before, or wait until the child has ended."
    assert refusal(db, "select pgflow.rewind_run('parent', 2)") == said
    assert refusal(db, "select pgflow.fork_run('parent', at_seq => 2)") == said
    assert refusal(db, "select pgflow.rewind_run('parent', 1)").startswith(
        "child 'child', started at unit 2, would be dropped and is still running."
    )
    assert one(db, "select pgflow.run_status('parent')") == "waiting"
    db.execute("select pgflow.rewind_run('parent', 1, children => 'cancel')")
    assert mailbox(db, family[1].chain_id) == [("x", "cancel")]
    found = refusal(db, "select pgflow.rewind_run('parent', 1, children => 'eat')")
    assert "children must be refuse or cancel" in found


def test_the_result_of_a_child_reaches_whoever_waits_for_it_now(db, family):
    finish(db, family[1], output='"done"')
    forked = one(db, "select run_id from pgflow.fork_run('parent', at_seq => 2)")
    rewound = one(db, "select run_id from pgflow.rewind_run('parent', 2)")
    for run in claim(db, 10):
        assert run.run_id in (forked, rewound)
        commit(db, flush(run, child_calls=[2], park=True, idle=True))
        (last,) = sqlkit.journal(db, run.run_id)[-1:]
        assert (last[2], json.loads(last[4])["output"]) == ("K", "done")


def test_a_child_that_was_handed_on_is_handed_on_again(db, family):
    finish(db, family[1], output='"done"')
    for _ in range(3):
        again = one(db, "select run_id from pgflow.rewind_run('parent', 1, effects => 'reuse')")
        handed_on = "select name, key from pgflow.carried where run_id = %s and what = 'child'"
        assert rows(db, handed_on, again) == [("child", "child")]


def test_what_a_child_did_counts_and_its_key_is_free_again(db, family):
    finish(db, family[1])
    assert "child child (unit 2, completed)" in refusal(db, "select pgflow.rewind_run('parent', 1)")
    db.execute("select pgflow.rewind_run('parent', 1, effects => 'repeat')")
    again = claim_one(db)
    commit(db, flush(again, children=[child(2, key="child")]))
    assert sqlkit.journal(db, again.run_id)[-1][2] == "k"


def test_a_child_whose_parent_has_its_result_is_not_rewound(db, family):
    parent, kid = family
    finish(db, kid, output="1")
    db.execute("select pgflow.restart_run('child')")
    wake(db, parent.chain_id)
    assert one(db, "select pgflow.run_status('parent')") == "waiting", (
        "the first result was taken back"
    )
    finish(db, claim_one(db), output="2")
    wake(db, parent.chain_id)
    commit(db, flush(claim_one(db), child_calls=[2]))
    assert (
        refusal(db, "select pgflow.restart_run('child')")
        == "run 'child' is a child, and its parent 'parent' has its result. Rewind the parent, or "
        "fork this run."
    )
    db.execute("select pgflow.fork_run('child', 'other')")
    assert run_row(db, "other", "parent_run_id, generation") == (None, 1)


def effects_in(db: Conn) -> sqlkit.Claim:
    """A run with two effects, each of several units, one open, and a gate."""
    run = begin(db, key="k")
    commit(
        db,
        flush(
            run,
            unit("c", 1),
            unit("i", 2, "pay"),
            unit("C", 2, "pay"),
            unit("i", 3, "send"),
            unit("c", 4),
            unit("i", 5, "call"),
            unit("U", 5, "call"),
        ),
    )
    for call, name in ((3, "send"), (5, "call")):
        db.execute(
            "insert into pgflow.owed (run_id, call, opened_at, kind, name) values (%s, %s, "
            "pgflow.now_(), 'effect', %s)",
            (run.run_id, call, name),
        )
    commit(db, hold(run))
    return run


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 5, 6, 7])
def test_what_is_owed_is_owed_after_a_rewind_too(db, cut):
    run = effects_in(db)
    assert (
        "effect pay, intended at unit 2, has ended at unit 3. Cut before the one or after the "
        "other." in refusal(db, "select pgflow.rewind_run('k', 2)")
    )
    db.execute("select pgflow.rewind_run('k', %s, effects => 'repeat')", (cut,))
    assert rows(db, "select name from pgflow.owed order by name") == ["call", "send"]
    handed = {name for name, opened in (("send", 4), ("call", 6)) if cut >= opened}
    assert set(rows(db, "select name from pgflow.owed where run_id <> %s", run.run_id)) == handed
    sound(db)


def test_effects_are_named_and_open_ones_are_not_reused(db):
    effects_in(db)
    found = refusal(db, "select pgflow.restart_run('k')")
    assert "effect pay (unit 3, effect confirmed), effect send (unit 4, effect intended)" in found
    assert (
        "effect send, intended at unit 4, is not closed, so its result cannot be reused. Settle or "
        "confirm it first, or say"
        in refusal(db, "select pgflow.restart_run('k', effects => 'reuse')")
    )
    found = refusal(db, "select pgflow.fork_run('k', at_seq => 5, effects => 'repeat')")
    assert "effect send, intended at unit 4, is still open at unit 5" in found
    db.execute("select pgflow.fork_run('k', at_seq => 3, effects => 'repeat')")
    assert one(db, "select count(*) from pgflow.owed") == 2


@effect(risk="compensable")
async def charge(item: str) -> str:
    acted.append((item, pgflow.idempotency_key()))
    if item in broken:
        raise ConnectionError("no reply")
    return f"{item} paid"


@charge.compensate
async def refund(paid: str, item: str) -> None:
    acted.append((paid, pgflow.idempotency_key()))


@decision()
async def choose(items: list[str]) -> Choice[str]:
    return Choice(items[0], why="the first")


@workflow
async def spending(items: list[str]) -> list[str]:
    chosen = await choose(items)
    made = [await charge.because(chosen)(chosen.value)]
    with pgflow.because(chosen):
        made += [await charge(item) for item in items[1:]]
    pgflow.set_state(made=made)
    return [*made, await charge("tip")]


def keys_of(items: str) -> list[str]:
    return [key for item, key in acted if item in items.split()]


@pytest.mark.full
def test_a_kept_effect_stays_and_a_dropped_one_is_repeated_under_keys_of_its_own(flow, conn):
    run = launch(flow, spending.options(key="k"), ["milk", "tea"])
    made = ["milk paid", "tea paid", "tip paid"]
    assert run.result(SOON) == made
    with pytest.raises(
        HasActed, match="effect charge .unit 5, effect confirmed.*effect charge .unit 8"
    ):
        flow.app.rewind("k", 3)
    flow.app.rewind("k", 3, effects="repeat")
    assert run.result(SOON) == made
    fork = flow.app.get(flow.app.fork("k", "f", at=3, effects="repeat"), spending)
    assert fork.result(SOON) == made
    flow.app.restart("k", effects="repeat")
    assert run.result(SOON) == made
    assert [len(keys_of(item)) for item in ("milk", "tea", "tip")] == [2, 4, 4]
    every = keys_of("milk tea tip")
    assert len(set(every)) == len(every), "each act has a key of its own"
    assert rows(
        conn,
        "select count(*) from pgflow.effects where decision in (select decision from "
        "pgflow.decisions)",
    ) == [8]
    orphans = "select d.key from pgflow.decisions d where not exists (select from pgflow.provenance p where p.run_id = d.run_id and p.decision = d.decision and p.act = 'effect')"
    assert rows(conn, orphans) == []
    sound(conn)


@pytest.mark.full
@pytest.mark.parametrize("verdict", ["confirmed", "absent"])
def test_an_open_effect_is_handed_on_with_its_key(flow, conn, verdict):
    broken.add("tea")
    run = launch(flow, spending.options(key="k"), ["milk", "tea"])
    with pytest.raises(RunStuck):
        run.result(SOON)
    with pytest.raises(
        InvalidArgument,
        match="effect charge, intended at unit 4, is still open at unit 4 and belongs to the origin",
    ):
        flow.app.fork("k", at=4, effects="repeat")
    flow.app.rewind("k", 4, effects="repeat")
    with pytest.raises(RunStuck):
        run.result(SOON)
    assert len(keys_of("tea")) == 1
    broken.clear()
    flow.app.settle_effect(
        keys_of("tea")[0], verdict, "tea paid" if verdict == "confirmed" else None
    )
    assert run.result(SOON) == ["milk paid", "tea paid", "tip paid"]
    assert len(keys_of("tea")) == {"confirmed": 1, "absent": 2}[verdict]
    assert len(set(keys_of("tea"))) == 1
    assert rows(conn, "select count(*) from pgflow.obligations") == [0]
    sound(conn)


@pytest.mark.full
@pytest.mark.parametrize("cut", [3, 4])
def test_a_word_that_was_not_taken_yet_reaches_whoever_owes_the_effect(flow, conn, cut):
    broken.add("tea")
    run = launch(flow, spending.options(key="k"), ["milk", "tea"])
    with pytest.raises(RunStuck):
        run.result(SOON)
    broken.clear()
    with conn.transaction():
        conn.execute(
            "select pgflow.settle_effect(%s, 'confirmed', '\"tea seen\"')", (keys_of("tea")[0],)
        )
        conn.execute("select pgflow.rewind_run('k', %s, effects => 'repeat')", (cut,))
        sound(conn)
    conn.execute("select pgflow.wake()")
    assert run.result(SOON) == ["milk paid", {3: "tea paid", 4: "tea seen"}[cut], "tip paid"]
    assert rows(conn, "select count(*) from pgflow.obligations") == [0]
    assert rows(conn, "select count(*) from pgflow.effects where result #>> '{}' = 'tea seen'") == [
        1
    ]
    sound(conn)


def test_a_step_that_rests_on_a_decision_is_handed_on(flow, conn):
    @workflow
    async def buying(items: list[str]) -> list[str]:
        chosen = await choose(items)
        with pgflow.because(chosen):
            return [await buy(item) for item in items]

    run = launch(flow, buying.options(key="k"), ["milk", "tea"])
    assert run.result(SOON) == ["milk bought", "tea bought"]
    flow.app.rewind("k", 2, effects="reuse")
    assert run.result(SOON) == ["milk bought", "tea bought"]
    assert len(acted) == 2
    flow.app.rewind("k", 1, effects="repeat")
    assert run.result(SOON) == ["milk bought", "tea bought"]
    assert len({key for _, key in acted}) == 4


@pytest.mark.full
def test_an_imported_run_is_forked_and_not_rewound(flow, conn, other_dsn):
    assert result_of(flow, spending.options(key="k"), ["milk"]) == ["milk paid", "tip paid"]
    flow.app.rewind("k", 3, effects="repeat")
    assert flow.app.get("k", spending).result(SOON) == ["milk paid", "tip paid"]
    out = io.StringIO()
    export_chain(conn, one(conn, "select distinct chain_id from pgflow.runs where key = 'k'"), out)
    lines = out.getvalue().splitlines()
    for recorded in map(read_history, lines):
        assert find_divergence(recorded, spending) is None
    with psycopg.connect(other_dsn, autocommit=True) as there:
        assert import_lines(there, [("a line", line) for line in lines]) == 2
        found = refusal(there, "select pgflow.rewind_run('k', 1, effects => 'repeat')")
        assert "run 'k' was imported: it is history" in found
        there.execute("select pgflow.fork_run('k', 'f', effects => 'repeat')")
        sound(there)


def test_a_fork_of_a_running_run_leaves_it_alone(db):
    run = begin(db, key="k")
    licence = '[[2,"s","charge",1,77]]'
    commit(db, flush(run, unit(starts=licence), unit("v", 3, None, "{}")))
    assert "step charge (unit 1, started)" in refusal(db, "select pgflow.fork_run('k')")
    key, new_id, is_new, _, seq = one(
        db,
        "select run_key, run_id, is_new, lane_id, seq from pgflow.fork_run('k', effects => "
        "'repeat')",
    )
    assert (is_new, seq) == (True, 2)
    commit(db, flush(run, unit("c", 2, "charge")))
    forked = claim_one(db)
    assert (forked.run_id, forked.key, forked.last_seq) == (new_id, key, 3)
    assert [u[5] for u in json.loads(forked.units)] == [None, None, None], (
        "a body that was running is licensed anew"
    )
    assert forked.root != run.root
    finish(db, run)
    finish(db, forked)


def test_an_open_licence_is_asked_for_again_under_its_key_after_a_rewind(db):
    run = begin(db, key="k")
    commit(db, flush(run, unit(starts='[[2,"s","charge",1,77]]')))
    commit(db, hold(run))
    db.execute("select pgflow.rewind_run('k', 1)")
    again = claim_one(db)
    found = again.extra["heritage"]["carried"]
    assert found == [["charge", 77, False, f"{run.root}/charge/1", None]]
    finish(db, again)


def test_the_same_fork_twice_is_one_and_another_is_a_conflict(flow):
    result_of(flow, shopping.options(key="k"), ["milk"])
    for _ in range(2):
        assert flow.app.fork("k", "f", at=0, effects="repeat", labels={"a": "b"}) == "f"
    assert flow.app.get("f", shopping).result(SOON) == ["milk bought"]
    assert len(acted) == 2
    for taken in ("f", "k"):
        with pytest.raises(KeyConflict, match=f"key '{taken}' already names another run"):
            flow.app.fork("k", taken, at=0, effects="repeat")
    with pytest.raises(RunNotFound, match="no run has the key 'nobody'"):
        flow.app.fork("nobody")


@pytest.mark.parametrize("asked", ["to_seq => 9", "to_seq => -1", "to_seq => null"])
def test_a_unit_that_is_not_there_is_refused(db, asked):
    finish(db, begin(db, key="k"))
    assert "there is no unit" in refusal(db, f"select pgflow.rewind_run('k', {asked})")


def test_unit_and_step_are_not_said_together(db):
    finish(db, begin(db, key="k"))
    for verb in (
        "rewind_run('k', to_seq => 0, from_step => 'a')",
        "fork_run('k', at_seq => 0, from_step => 'a')",
    ):
        assert "say a unit or a step, not both" in refusal(db, f"select pgflow.{verb}")


@pytest.mark.full
def test_in_the_callers_transaction_a_rewind_is_done_if_that_commits(flow, conn, dsn):
    run = launch(flow, shopping.options(key="k"), ["milk"])
    run.result(SOON)
    with psycopg.connect(dsn) as mine:
        flow.app.using(mine).rewind("k", 1, effects="repeat")
        flow.app.using(mine).restart("k", effects="repeat")
        flow.app.using(mine).fork("k", "f", at=0)
        mine.rollback()
    assert run_row(conn, "k", "generation") == (1,)
    with psycopg.connect(dsn) as mine:
        flow.app.using(mine).restart("k", effects="repeat")
        mine.commit()
    flow.app.nudge()
    assert run.result(SOON) == ["milk bought"]
    assert len(acted) == 2


@pytest.mark.full
async def test_both_colours_do_it(aflow, conn):
    run = await launch(aflow, shopping.options(key="k"), ["milk"])
    await run.result(SOON)
    await aflow.app.restart("k", effects="repeat")
    await run.result(SOON)
    await aflow.app.rewind("k", 0, effects="reuse")
    await run.result(SOON)
    await aflow.app.retry("k", from_step="buy", effects="repeat")
    assert await run.result(SOON) == ["milk bought"]
    found = await aflow.app.get(await aflow.app.fork("k", "f"), shopping).result(SOON)
    assert found == ["milk bought"]
    assert run_row(conn, "k", "generation") == (4,)
    assert len(acted) == 3


@pytest.mark.full
def test_a_stream_tells_nothing_twice(flow):
    @workflow
    async def talks() -> None:
        for n in range(3):
            pgflow.emit("log", n)
            await look("a")

    run = launch(flow, talks.options(key="k"))
    run.result(SOON)
    flow.app.rewind("k", 4)
    run.result(SOON)
    assert list(run.stream("log")) == [0, 1, 2]
    key = flow.app.fork("k", at=4)
    assert list(flow.app.get(key, talks).stream("log")) == [0, 1, 2]


def test_history_that_is_removed_takes_generations_and_leaves_forks(db):
    set_clock(db, sqlkit.T0)
    run = begin(db, key="k")
    commit(db, flush(run, unit(starts='[[2,"s","charge",1,77]]'), unit("c", 2, "charge")))
    finish(db, run)
    db.execute("select pgflow.rewind_run('k', 1, effects => 'reuse')")
    finish(db, claim_one(db))
    set_clock(db, sqlkit.T0 + timedelta(days=2))
    db.execute("select pgflow.fork_run('k', 'f', effects => 'repeat')")
    forked = claim_one(db)
    before = sqlkit.T0 + timedelta(days=1)
    assert one(db, "select runs from pgflow.drop_history(%s)", before) == 2
    assert count(db, "pgflow.carried") == 0
    assert one(db, "select origin_key is null and origin_seq = 2 from pgflow.runs where key = 'f'")
    finish(db, forked)


@pytest.mark.full
def test_a_rewind_and_a_claim_at_the_same_moment_are_one_or_the_other(conn, dsn):
    for n in range(10):
        key = f"k{n}"
        started = start(conn, key=key)

        def act(its: Conn, who: int, key: str = key, lane: int = started.lane_id) -> Any:
            if who == 0:
                return claim(its, 1, lanes=[lane])
            try:
                return one(its, "select run_id from pgflow.rewind_run(%s, 0)", key)
            except psycopg.Error as error:
                if error.sqlstate != "PF006":
                    raise
                return None

        taken, *rewound = sqlkit.race(dsn, 4, act)
        newest = one(conn, "select run_id from pgflow.runs where key = %s", key)
        assert newest == max(filter(None, [started.run_id, *rewound]))
        taken = taken or claim(conn)
        assert [run.run_id for run in taken] == [newest]
        finish(conn, taken[0])
        sound(conn)


@pytest.mark.parametrize("has_ended", [False, True], ids=["parked", "ended"])
def test_a_rewind_waits_for_a_wake_and_finds_the_run_and_its_mail_where_they_are_then(
    conn, dsn, has_ended
):
    run = begin(conn, key="k")
    if has_ended:
        finish(conn, run)
    else:
        commit(conn, wait_for(run, "go"))
    send(conn, "k", "go")
    with Actor(dsn) as waker, Actor(dsn) as operator:
        waker.conn.execute("begin")
        wake(waker.conn, run.chain_id)
        rewound = operator.do(
            lambda its: one(its, "select generation from pgflow.rewind_run('k', 0)")
        )
        operator.until_waiting(conn)
        waker.conn.execute("commit")
        assert rewound.result() == 2
    assert mailbox(conn, run.chain_id) == [("s", "go")]
    with Actor(dsn) as operator:
        finish(conn, claim_one(conn))
        send(conn, "k", "again")
        operator.conn.execute("begin")
        operator.conn.execute("select pgflow.rewind_run('k', 0)")
        wake(conn, run.chain_id)
        operator.conn.execute("commit")
    assert mailbox(conn, run.chain_id) == [("s", "go"), ("s", "again")]


@pytest.mark.full
def test_two_who_rewind_or_fork_at_once_do_it_one_after_the_other(conn, dsn):
    run = begin(conn, key="k")
    commit(conn, flush(run, unit()))
    finish(conn, run)

    def act(its: Conn, who: int) -> Any:
        if who % 2:
            return one(
                its, "select run_id from pgflow.fork_run('k', 'f', at_seq => 0, generation => 1)"
            )
        return one(its, "select generation from pgflow.rewind_run('k', 0)")

    answers = sqlkit.race(dsn, 8, act, PATIENT)
    assert sorted(answers[::2]) == [2, 3, 4, 5]
    assert len(set(answers[1::2])) == 1
    sound(conn)
    for run in claim(conn, 10):
        finish(conn, run)


def test_a_worker_that_was_not_answered_learns_that_the_run_had_ended(db):
    run = begin(db, key="k")
    last = flush(run, unit(), outcome=("completed", None, "1", None))
    commit(db, last)
    db.execute("select pgflow.restart_run('k')")
    assert commit(db, last, careful=True).bad == {run.run_id: "already"}
    finish(db, claim_one(db))
