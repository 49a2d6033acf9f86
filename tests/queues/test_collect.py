"""Starts that are collected: one run over the lists of many, once it has so many items or the first
has waited for so long. An item is in one run, whatever happens to its start.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlkit
from clikit import pgflow as cli
from records import SOON, count, result_of
from servers import HANG_SECONDS
from sqlkit import T0, Actor, begin, claim, claim_one, connect, finish, one, rows, start, status

import pgflow
from pgflow import InvalidArgument, workflow

Conn = psycopg.Connection[Any]

MINE = "00000000-0000-4000-8000-000000000001"


@workflow
async def adds(numbers: list[int]) -> int:
    return sum(numbers)


def clock(conn: Conn, seconds: float) -> None:
    sqlkit.set_clock(conn, T0 + timedelta(seconds=seconds))


def give(conn: Conn, *items: object, most: int = 3, wait: float = 10, **options: Any) -> int:
    said = {"key": "k", "input": json.dumps({"items": items}), **options}
    return start(conn, collect=most, max_wait_seconds=wait, **said).run_id


def items_of(conn: Conn, run_id: int) -> Any:
    return one(conn, "select input->'items' from pgflow.run where run_id = %s", run_id)


def test_a_run_begins_at_once_when_it_has_all_items_and_the_next_start_begins_another(db):
    clock(db, 0)
    first = give(db, 1)
    clock(db, 4)
    assert give(db, 2) == first
    sqlkit.poll(db)
    assert claim(db, 9) == []
    assert status(db, first) == "waiting"
    assert give(db, 3) == first
    assert status(db, first) == "queued"
    second = give(db, 4)
    assert second != first
    held = claim_one(db)
    assert (held.run_id, json.loads(held.input)) == (first, {"items": [1, 2, 3]})
    found = rows(db, "select run_at from pgflow.runs where key = 'k' order by run_id")
    assert found == [T0 + timedelta(seconds=4), T0 + timedelta(seconds=14)]
    assert one(db, "select pgflow.find_chain('k')") == second


def test_a_run_begins_when_its_first_item_has_waited_for_so_long(db):
    clock(db, 0)
    run = give(db, 1)
    clock(db, 9)
    assert give(db, 2, wait=60) == run
    sqlkit.poll(db)
    assert claim(db, 9) == []
    clock(db, 10)
    assert sqlkit.poll(db).lanes != []
    assert json.loads(claim_one(db).input) == {"items": [1, 2]}
    assert give(db, 3) != run


def test_a_run_that_waits_for_a_worker_still_collects_up_to_its_bound(db):
    clock(db, 0)
    run = give(db, 1)
    clock(db, 10)
    sqlkit.poll(db)
    assert status(db, run) == "queued"
    assert [give(db, 2), give(db, 3)] == [run, run]
    assert give(db, 4) != run
    assert json.loads(claim_one(db).input) == {"items": [1, 2, 3]}


def test_items_of_a_start_stay_together_and_one_that_has_no_room_for_them_begins(db):
    clock(db, 0)
    first = give(db, 1, 2, most=4)
    second = give(db, 3, 4, 5, most=4)
    assert second != first
    assert [c.run_id for c in claim(db, 9)] == [first]
    assert give(db, 6, most=4) == second
    assert items_of(db, second) == [3, 4, 5, 6]


def test_a_start_that_fills_a_run_by_itself_begins_at_once(db):
    run = give(db, 1, 2, 3)
    assert claim_one(db).run_id == run


def test_a_run_does_not_grow_longer_than_it_may(db):
    first = give(db, "x" * 200_000, most=1000)
    second = give(db, "y" * 100_000, most=1000)
    assert second != first
    assert give(db, "z", most=1000) == second
    assert claim_one(db).run_id == first


def test_items_stay_as_their_encoder_wrote_them(db):
    for text in ('{"it ems": [1.50, "a\\u00e9,]"]}', ' { "it ems" : [ {"b": [1e400] } ] } '):
        run = give(db, input=text, most=9)
    assert one(db, "select input::text from pgflow.run where run_id = %s", run) == (
        '{"it ems": [1.50, "a\\u00e9,]",  {"b": [1e400] } ]}'
    )


def test_keys_collect_apart_and_so_do_queues_and_versions(db):
    runs = [
        give(db, 1, key="a"),
        give(db, 2, key="b"),
        give(db, 3, key="b", queue="other"),
        give(db, 4, key="b", queue="other", version="2"),
    ]
    assert len(set(runs)) == 4
    assert [items_of(db, run) for run in runs] == [[1], [2], [3], [4]]
    with pytest.raises(psycopg.Error, match="another workflow") as error, db.transaction():
        give(db, 5, key="a", workflow="other")
    assert error.value.sqlstate == "PF002"


def test_a_run_collects_what_it_collects_wherever_it_stands(db):
    clock(db, 0)
    paused = give(db, 1)
    db.execute("select pgflow.pause_run('k')")
    db.execute("select pgflow.wake()")
    cancelled = give(db, 2)
    assert cancelled != paused
    db.execute("select pgflow.cancel_run('k')")
    last = give(db, 3)  # the cancel is on its way
    assert last != cancelled
    db.execute("select pgflow.wake()")
    restarted = one(db, "select run_id from pgflow.restart_run('k')")
    found = [items_of(db, run) for run in (paused, cancelled, last, restarted)]
    assert found == [[1], [2], [3], [3]]
    assert [status(db, run) for run in (paused, cancelled)] == ["paused", "cancelled"]


def test_a_run_that_replaces_another_collects_and_waits_for_its_end(db):
    begin(db, key="k")
    new = start(db, key="k", if_taken="replace", input='{"items": [1]}').run_id
    assert give(db, 2, most=2) == new
    assert status(db, new) == "waiting"
    assert claim(db, 9) == []
    assert items_of(db, new) == [1, 2]


def test_a_run_that_is_full_stands_in_the_line_of_its_queue(db):
    db.execute("""select pgflow.set_queue('default', '{"key": "workflow", "per_key": 1}')""")
    first = give(db, 1, most=2)
    give(db, 2, most=2)
    second = give(db, 3, 4, most=2)
    assert [c.run_id for c in claim(db, 9)] == [first]
    assert rows(db, "select run_id from pgflow.line_run") == [second]


def test_a_run_under_the_key_that_collects_nothing_is_left_alone(db):
    clock(db, 0)
    texts = ('{"items": []}', '{"items": 1}', '{"items": [1], "n": 2}', '{"others": [1]}', "{}")
    for n, text in enumerate(texts):
        run = start(db, key=str(n), input=text, run_at=T0 + timedelta(hours=1)).run_id
        assert give(db, 2, key=str(n), most=2) != run
        assert status(db, run) == "waiting"
        assert one(db, "select input::text from pgflow.run where run_id = %s", run) == text


def test_a_start_that_is_sent_again_adds_nothing_wherever_its_run_is(db):
    clock(db, 0)
    first = give(db, 1)
    assert give(db, 2, start_id=MINE) == first
    assert give(db, 3) == first
    assert give(db, 2, start_id=MINE) == first
    second = give(db, 4)
    finish(db, claim_one(db))
    assert give(db, 2, start_id=MINE) == first
    assert [items_of(db, run) for run in (first, second)] == [[1, 2, 3], [4]]
    clock(db, 90_000)
    db.execute("select pgflow.sweep_keys()")
    assert count(db, "pgflow.run_key") == 1
    db.execute("select pgflow.drop_history(%s)", (T0 + timedelta(hours=2),))
    assert count(db, "pgflow.run_key") == 1


def test_history_that_is_dropped_takes_the_numbers_of_its_starts_along(db):
    clock(db, 0)
    give(db, 1, start_id=MINE, most=1)
    finish(db, claim_one(db))
    clock(db, 1)
    assert one(db, "select runs from pgflow.drop_history(pgflow.now_())") == 1
    assert count(db, "pgflow.run_key") == 0


def test_starts_at_once_come_one_after_the_other_and_a_claim_waits_for_none(dsn, conn):
    clock(conn, 0)
    run = give(conn, 1)
    with connect(dsn) as mine, Actor(dsn) as other:
        with mine.transaction():
            give(mine, 2)
            waiting = other.do(give, 3)
            other.until_waiting(conn)
            clock(conn, 10)
            sqlkit.poll(conn)
            assert claim(conn, 9) == []
        assert waiting.result(HANG_SECONDS) == run
        assert json.loads(claim_one(conn).input) == {"items": [1, 2, 3]}
        with mine.transaction(force_rollback=True):
            lost = give(mine, 4)
            waiting = other.do(give, 5)
            other.until_waiting(conn)
        assert items_of(conn, waiting.result(HANG_SECONDS)) == [5]
        assert waiting.result() != lost
        with mine.transaction():
            sent = give(mine, 6, start_id=MINE)
            waiting = other.do(give, 6, start_id=MINE)
            other.until_waiting(conn)
        assert waiting.result(HANG_SECONDS) == sent
        assert items_of(conn, sent) == [5, 6]


@pytest.mark.full
def test_of_many_that_start_at_once_fail_and_send_again_each_item_is_in_one_run(dsn, conn):
    def work(n: int) -> list[tuple[int, int]]:
        rng = random.Random(n)
        kept = []
        with connect(dsn) as mine:
            for k in range(40):
                item, said = n * 1000 + k, {"start_id": str(uuid4()), "key": rng.choice("ab")}
                fate = rng.random()
                with mine.transaction(force_rollback=fate < 0.2):
                    run = give(mine, item, most=7, wait=0.01, **said)
                if fate > 0.8:  # the answer is lost
                    assert give(mine, item, most=7, wait=0.01, **said) == run
                if fate >= 0.2:
                    kept.append((item, run))
                if fate < 0.3:
                    sqlkit.poll(mine)
                    for held in claim(mine, 1):
                        finish(mine, held)
        return kept

    with ThreadPoolExecutor(6) as threads:
        kept = dict(sum(threads.map(work, range(6)), []))
    found = rows(conn, "select run_id, input->'items' from pgflow.run")
    runs = Counter(item for _, items in found for item in items)
    assert set(runs.values()) == {1}
    assert {item: run for run, items in found for item in items} == kept
    assert max(len(items) for _, items in found) <= 7


async def test_starts_are_collected_in_python(aflow, conn):
    aflow.include(adds)
    few = adds.options(key="k", collect=4, max_wait=timedelta(minutes=5))
    runs = [await aflow.start(few, [n]) for n in range(4)]
    assert [await run.result(SOON) for run in runs] == [6] * 4  # none waits for a poll
    late = await aflow.app.start(few, [7, 8])
    await aflow.skip(300)
    assert await late.result(SOON) == 15
    assert count(conn, "pgflow.run") == 2


async def test_what_cannot_be_collected_is_refused(aflow, conn):
    app = aflow.app

    @workflow
    async def other(n: int, numbers: list[int]) -> int:
        return n

    @workflow
    async def single(n: int) -> int:
        return n

    good = {"key": "k", "collect": 5, "max_wait": 5}
    for options, why in (
        ({"key": None}, r"require options\(key="),
        ({"max_wait": None}, "collect needs max_wait_seconds"),
        ({"max_wait": 0}, "collect needs max_wait_seconds"),
        ({"collect": 0}, "between 1 and 1000"),
        ({"collect": 1001}, "between 1 and 1000"),
        ({"collect": 1}, "collects 1 items, and this start brings 2"),
        ({"if_taken": "attach"}, "says itself"),
        ({"debounce": 5}, "says itself"),
        ({"key_for": 5}, "says itself"),
        ({"budget": {"usd": 1}}, "says itself"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            await app.start(adds.options(**{**good, **options}), [1, 2])
    for made in (other.options(**good), single.options(**good)):
        with pytest.raises(InvalidArgument, match="one parameter, a list"):
            await app.start(made, *([1] if made.fn is single.fn else [1, [2]]))
    with pytest.raises(InvalidArgument, match="brings 0"):
        await app.start(adds.options(**good), [])
    with pytest.raises(InvalidArgument, match="cannot collect"):
        await app.start_many(adds.options(collect=5, max_wait=5), [([1],)], keys=["k"])
    assert count(conn, "pgflow.run") == 0

    @workflow
    async def parent() -> str:
        try:
            await pgflow.run_child(adds.options(**good), [1])
        except InvalidArgument as error:
            return str(error)
        return "started"

    assert "a child is this run's own" in await result_of(aflow, parent)


def test_starts_are_collected_on_the_command_line(dsn, conn):
    begin(conn)
    said = ("start", "demo", "--key", "k", "--collect", "3", "--max-wait", "1h")
    assert "Started k" in cli(dsn, *said, "items:=[1]", tty=True).out
    assert "k collects items: it has these too" in cli(dsn, *said, "items:=[2]", tty=True).out
    assert rows(conn, "select input->'items' from pgflow.run where key = 'k'") == [[1, 2]]
    missing = cli(dsn, "start", "demo", "--collect", "3")
    assert (missing.code, "--collect require --key" in missing.err) == (2, True)
