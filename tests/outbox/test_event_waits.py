"""Waits for events: which ones a run sees, and that it misses none."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from outboxkit import take
from records import SOON, eventually, result_of, settle
from sqlkit import begin, commit, connect, flush, one, rows

import pgflow
from pgflow import AsyncApp, InvalidArgument, Retries, step, transaction, workflow
from pgflow.errors import NotInRunError
from pgflow.events import Event

QUICK: dict[str, Any] = {"poll_seconds": 0.02}


def publish(
    conn: psycopg.Connection[Any], payload: Any, key: str | None = None, topic: str = "orders"
) -> int:
    number = one(conn, "select pgflow.publish(%s, %s, %s)", topic, json.dumps(payload), key)
    assert isinstance(number, int)
    return number


def waiting(conn: psycopg.Connection[Any]) -> int:
    return int(one(conn, "select count(*) from pgflow.event_wait"))


@workflow
async def paid(order: int) -> int:
    event = await pgflow.events.wait_for_event("orders", {"order": order, "state": {"paid": True}})
    return event.id


@workflow
async def any_of(key: str | None = None, after: int | None = None) -> Event:
    return await pgflow.events.wait_for_event("orders", key=key, after=after)


@pytest.mark.full
async def test_a_run_waits_for_the_first_event_that_contains_what_it_says(aflow, conn):
    aflow.include(paid)
    publish(conn, {"order": 7, "state": {"paid": True}})  # before the wait began
    run = await settle(aflow, paid, 7)
    assert waiting(conn) == 1
    for payload in ({"order": 7}, {"order": 8, "state": {"paid": True}}, [7], 7, None):
        publish(conn, payload)
    publish(conn, {"order": 7, "state": {"paid": True}}, topic="bills")
    await aflow.until_idle()
    assert waiting(conn) == 1
    wanted = publish(conn, {"order": 7.0, "state": {"paid": True, "by": "card"}, "more": [1]})
    publish(conn, {"order": 7, "state": {"paid": True}})
    await aflow.until_idle()
    assert await run.result(SOON) == wanted
    assert waiting(conn) == 0


async def test_an_event_is_whole(aflow, conn):
    run = await settle(aflow, any_of)
    number = publish(conn, {"a": [1, {"b": "ü"}]}, key="k")
    await aflow.until_idle()
    event = await run.result(SOON)
    assert event == Event(number, "orders", "k", {"a": [1, {"b": "ü"}]}, event.at)
    assert event.at == one(conn, "select at from pgflow.events where event_id = %s", number)


async def test_an_event_of_a_transaction_that_was_open_when_the_wait_began_is_seen(
    aflow, conn, dsn
):
    aflow.include(any_of)
    with psycopg.connect(dsn) as slow:
        early = publish(slow, "early")
        publish(conn, "before")
        run = await settle(aflow, any_of)
        assert waiting(conn) == 1
        publish(conn, "later")
        for _ in range(3):
            conn.execute("select pgflow.poll()")
        # What comes first is not known while the slow one may still commit.
        assert waiting(conn) == 1
        slow.commit()
    await aflow.until_idle()
    assert (await run.result(SOON)).id == early


@pytest.mark.full
async def test_an_event_of_a_transaction_that_rolls_back_is_passed(aflow, conn, dsn):
    aflow.include(any_of)
    with psycopg.connect(dsn) as slow:
        publish(slow, "vain")
        run = await settle(aflow, any_of)
        later = publish(conn, "later")
        slow.rollback()
    await aflow.until_idle()
    assert (await run.result(SOON)).id == later


def test_an_event_that_comes_between_the_question_and_its_commit_is_seen(conn, dsn):
    run = begin(conn, "demo")
    wanted = {"events": [[1, "event", "orders", None, None, None]], "signals": [[1, "event"]]}
    with connect(dsn) as other:
        publish(other, "before")
        with conn.transaction():
            answer = commit(conn, flush(run, **wanted, park=True, idle=True))
            number = publish(other, "between")
            for _ in range(3):
                other.execute("select pgflow.poll()")
        assert answer.place_of(run) == "parked"
        for _ in range(3):
            other.execute("select pgflow.poll()")
    assert rows(conn, "select (payload->>'id')::int from pgflow.signal") == [number]
    assert rows(conn, "select status from pgflow.runs") == ["queued"]


def test_an_event_whose_wait_is_locked_just_then_comes_later(conn, dsn):
    wanted = {"events": [[1, "event", "orders", None, None, None]], "signals": [[1, "event"]]}
    runs = [begin(conn, "demo") for _ in range(2)]
    publish(conn, "before")
    commit(conn, *(flush(run, **wanted, park=True, idle=True) for run in runs))
    conn.execute("select pgflow.poll()")
    number = publish(conn, "locked")
    conn.execute("update pgflow.event_cursor set horizon = pgflow.newest_event_()")
    messages = "select count(*) from pgflow.signal"
    with connect(dsn) as other:
        with other.transaction():
            other.execute(
                "select from pgflow.event_wait where chain_id = %s for update", (runs[0].chain_id,)
            )
            assert one(conn, "select pgflow.match_events_(1000)")
            assert one(conn, messages) == 1
            # The other one was not passed over.
            assert one(conn, "select event_id from pgflow.event_cursor") == number - 1
        assert not one(conn, "select pgflow.match_events_(1000)")
    assert one(conn, messages) == 2
    assert waiting(conn) == 0


async def test_an_event_may_be_looked_for_by_its_key(aflow, conn):
    run = await settle(aflow, any_of, "b")
    publish(conn, 1, "a")
    publish(conn, 1)
    number = publish(conn, 1, "b")
    await aflow.until_idle()
    assert (await run.result(SOON)).id == number


@pytest.mark.full
async def test_a_run_that_goes_on_behind_an_event_misses_none(aflow, conn):
    @workflow
    async def three() -> list[int]:
        found: list[int] = []
        last: Event | int = 0
        for _ in range(3):
            last = await pgflow.events.wait_for_event("orders", {"n": {}}, after=last)
            found.append(last.id)
        return found

    aflow.include(three)
    numbers = [publish(conn, {"n": {"x": n}}) for n in range(5)]
    assert await result_of(aflow, three) == numbers[:3]


async def test_a_run_that_has_published_finds_the_answer_however_early_it_came(aflow, conn):
    @step
    async def answer(number: int) -> None:
        publish(conn, {"to": number}, topic="answers")

    @workflow
    async def ask() -> int:
        number = await pgflow.events.publish("questions", "how")
        await answer(number)
        event = await pgflow.events.wait_for_event("answers", {"to": number}, after=number)
        return int(event.payload["to"]) - number

    assert await result_of(aflow, ask) == 0


@pytest.mark.full
async def test_a_wait_may_be_given_up_and_its_event_is_nobodys(aflow, conn):
    @workflow
    async def patient() -> list[Any]:
        try:
            await pgflow.events.wait_for_event("orders", timeout=60)
        except TimeoutError as error:
            said = str(error)
        event = await pgflow.events.wait_for_event("orders", {"n": 2})
        return [said, event.id]

    run = await settle(aflow, patient)
    assert waiting(conn) == 1
    await aflow.skip(timedelta(seconds=61))
    await aflow.until_idle()
    assert rows(conn, "select match from pgflow.event_wait") == [{"n": 2}]
    publish(conn, {"n": 1})
    number = publish(conn, {"n": 2})
    await aflow.until_idle()
    assert await run.result(SOON) == ["no event of topic 'orders' in time", number]
    assert one(conn, "select count(*) from pgflow.signal") == 0


async def test_two_waits_of_a_run_each_get_their_event(aflow, conn):
    @workflow
    async def both() -> list[int]:
        one_, other = await asyncio.gather(
            pgflow.events.wait_for_event("orders", {"n": 1}),
            pgflow.events.wait_for_event("orders", {"m": 1}),
        )
        return [one_.id, other.id]

    run = await settle(aflow, both)
    number = publish(conn, {"n": 1, "m": 1})
    await aflow.until_idle()
    assert await run.result(SOON) == [number, number]


@pytest.mark.full
async def test_a_cancelled_run_waits_for_nothing(aflow, conn):
    aflow.include(any_of)
    run, forced = await aflow.start(any_of), await aflow.start(any_of)
    await aflow.until_idle()
    await run.cancel()
    one(conn, "select count(*) from pgflow.force_cancel_run(%s, 'it must go')", forced.key)
    await aflow.until_idle()
    assert waiting(conn) == 0


@pytest.mark.full
async def test_a_rewound_run_gets_the_same_event_again(aflow, conn):
    failing = [True]

    @step(retries=Retries(max_attempts=1))
    async def ship(number: int) -> int:
        if failing.pop():
            raise ValueError("no")
        return number

    @workflow
    async def sell() -> int:
        event = await pgflow.events.wait_for_event("orders", {"n": 1})
        return await ship(event.id)

    run = await settle(aflow, sell)
    number = publish(conn, {"n": 1})
    await aflow.until_idle()
    assert await run.status() == "failed"
    failing.append(False)
    one(conn, "select count(*) from pgflow.restart_run(%s)", run.key)
    await aflow.until_idle()
    assert await run.result(SOON) == number
    assert waiting(conn) == 0


@pytest.mark.full
def test_sync_workflows_wait_too(flow, conn):
    @workflow
    def taken() -> Any:
        return pgflow.sync.wait_for_event("orders", {"n": 1}, timeout=3600).payload

    run = settle(flow, taken)
    publish(conn, {"n": 1})
    flow.until_idle()
    assert run.result(SOON) == {"n": 1}


async def test_what_no_event_can_be_is_refused(aflow):
    @workflow
    async def wrong() -> list[str]:
        found = []
        cases: list[dict[str, Any]] = [
            {"topic": ""},
            {"topic": "a\0"},
            {"topic": "a", "key": "x" * 256},
            {"topic": "a", "match": [1]},
            {"topic": "a", "match": {"x": "y" * 20_000}},
            {"topic": "a", "after": -1},
            {"topic": "a", "after": True},
        ]
        for case in cases:
            try:
                await pgflow.events.wait_for_event(**case)
            except InvalidArgument as error:
                found.append(str(error))
        return found

    assert len(await result_of(aflow, wrong)) == 7
    with pytest.raises(NotInRunError):
        await pgflow.events.wait_for_event("orders")


def test_ten_thousand_waits_are_found_by_a_constant_of_their_match(conn):
    for match, slot in (
        ({"a": {"b": 1}}, (["a", "b"], True)),
        ({"c": [1], "b": None}, (["b"], True)),
        ({"c": [1], "d": {}}, ([], False)),
        ({}, ([], False)),
    ):
        path, value = rows(conn, "select * from pgflow.slot_of_(%s)", json.dumps(match))[0]
        assert (path, value != 0) == slot


async def test_an_event_is_kept_while_a_run_may_wait_for_it(aflow, conn, dsn):
    aflow.include(any_of)
    with psycopg.connect(dsn) as slow:
        publish(slow, "slow")
        run = await settle(aflow, any_of)
        number = publish(conn, "kept")
        drop = "select events from pgflow.drop_events('0')"
        assert one(conn, drop) == 0
        slow.rollback()
    await aflow.until_idle()
    assert (await run.result(SOON)).id == number
    assert one(conn, drop) == 1


@pytest.mark.full
def test_runs_on_workers_are_woken(dsn, conn):
    @transaction
    async def note(connection: psycopg.AsyncConnection[Any], number: int) -> int:
        return await pgflow.events.publish("orders", {"n": number})

    @workflow
    async def pay(number: int) -> int:
        return await note(number)

    @workflow
    async def wait(number: int) -> Any:
        return (await pgflow.events.wait_for_event("orders", {"n": number})).payload

    async def play() -> list[int]:
        app = AsyncApp(dsn, include=[pay, wait])
        async with app, app.worker(**QUICK):
            waits = [await app.start(wait, number) for number in range(5)]
            await eventually(lambda: waiting(conn) == 5, "they wait")
            for number in range(5):
                await app.start(pay, number)
            return [(await run.result(SOON))["n"] for run in waits]

    assert asyncio.run(play()) == list(range(5))


@pytest.mark.full
def test_payloads_in_envelopes_are_opened_and_not_looked_through(dsn, conn):
    class Upside:
        key_id: str | None = "upside"
        hash_key: bytes | None = None

        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        def decode(self, key_id: str, data: bytes) -> bytes:
            return data[::-1]

    @workflow
    async def wait() -> list[Any]:
        try:
            await pgflow.events.wait_for_event("orders", {"n": 1})
        except InvalidArgument as error:
            said = str(error)
        first = await pgflow.events.wait_for_event("orders", key="k")
        second = await pgflow.events.wait_for_event("orders", after=first)
        return [said, first.payload, second.payload]

    async def play() -> list[Any]:
        app = AsyncApp(dsn, include=[wait], codec=Upside())
        async with app:
            run = await app.start(wait)
            for number in range(2):
                async with app.worker(**QUICK):
                    await eventually(lambda: waiting(conn) == 1, "it waits")
                    await app.publish("orders", {"n": number}, key="k")
            async with app.worker(**QUICK):
                return await run.result(SOON)

    said, first, second = asyncio.run(play())
    assert "has a codec" in said
    assert [first, second] == [{"n": 0}, {"n": 1}]


def touched(conn: psycopg.Connection[Any], statement: str) -> int:
    """Pages that a statement touches."""
    (plan,) = one(conn, f"explain (analyze, buffers, format json) {statement}")
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


@pytest.mark.full
def test_a_look_is_bounded_however_many_events_and_waits_there_are(conn):
    entered = one(conn, "select run_id from pgflow.start_run('w')")
    conn.execute("select pgflow.declare_relay('r', '{orders,rare}')")
    conn.execute(
        "insert into pgflow.event (event_id, xid, at, topic, key, payload) select n, '3', now(), "
        "case when n % 100 = 0 then 'rare' else 'orders' end, 'k', json_build_object('n', n) "
        "from generate_series(1, 100000) n"
    )
    conn.execute("select setval('pgflow.event_id_seq', 100000)")
    conn.execute(
        "insert into pgflow.event_wait (chain_id, event_id, value, is_current, name, topic, path, "
        "match) select %s, 0, jsonb_hash_extended(to_jsonb(n), 0), true, 'event ' || n, 'orders', "
        "'{n}', jsonb_build_object('n', n) from generate_series(50, 100000, 5) n",
        (entered,),
    )
    assert take(conn, token=1).numbers == list(range(1, 101))
    conn.execute("update pgflow.event_cursor set horizon = pgflow.newest_event_()")
    pages = [touched(conn, "select pgflow.take_events('r', 1)") for _ in range(3)]
    assert min(pages) < 200
    assert one(conn, "select json_array_length(events) from pgflow.take_events('r', 1)") == 100
    # Twenty of a hundred are posted: what that writes is most of it.
    pages = [touched(conn, "select pgflow.match_events_(100)") for _ in range(4)]
    assert min(pages) < 3000
    assert one(conn, "select event_id from pgflow.event_cursor") == 404  # of which four are rare
    assert one(conn, "select count(*) from pgflow.signal") == 67
    conn.execute("delete from pgflow.event_wait")
    conn.execute("select pgflow.wake()")
