"""Relays: what workers do with the events of the outbox."""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import eventually
from sqlkit import one, rows

import pgflow
from pgflow import App, AsyncApp, InvalidArgument, Retries, step, transaction, workflow
from pgflow.errors import DefinitionError, NotInRunError, NotStorable, WrongColourError
from pgflow.events import Event, Relay, TryLater, Undeliverable


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a coroutine test that needs no harness."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


AT_ONCE = Retries(max_attempts=3, first_delay=timedelta(0))
QUICK: dict[str, Any] = {"poll_seconds": 0.02}


@dataclass
class Order:
    id: int
    total: int = 0


class Box:
    """A sink that takes what it is told to."""

    def __init__(self, *refuses: Exception) -> None:
        self.refuses = list(refuses)
        self.taken: list[int] = []
        self.payloads: list[Any] = []
        self.by_key: dict[str | None, list[int]] = defaultdict(list)
        self.is_closed = False
        self.most = self.now = 0

    def __str__(self) -> str:
        return "a box"

    async def deliver(self, event: Event, relay: str) -> None:
        assert relay == "boxed"
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            if self.refuses:
                raise self.refuses.pop(0)
            self.taken.append(event.id)
            self.payloads.append(event.payload)
            self.by_key[event.key].append(event.id)
        finally:
            self.now -= 1

    async def close(self) -> None:
        self.is_closed = True


def boxed(box: Box, **options: Any) -> Relay:
    return Relay("boxed", ["orders"], to=box, **{"retries": AT_ONCE, **options})


def publish(conn: psycopg.Connection[Any], keys: Sequence[str | None]) -> list[int]:
    return [
        one(conn, "select pgflow.publish('orders', %s, %s)", str(number), key)
        for number, key in enumerate(keys)
    ]


@awaited
async def test_an_event_commits_together_with_what_its_writer_writes(dsn, conn):
    conn.execute("create table orders (id int)")
    async with AsyncApp(dsn) as app, await psycopg.AsyncConnection.connect(dsn) as mine:
        for number in (1, 2):
            await mine.execute("insert into orders values (%s)", (number,))
            await app.using(mine).publish("orders", Order(number), key=f"o{number}")
            await (mine.rollback() if number == 1 else mine.commit())
        await app.publish("bills", None)
    with App(dsn) as plain, psycopg.connect(dsn) as other:
        other.execute("insert into orders values (3)")
        plain.using(other).publish("orders", {"id": 3})
        other.commit()
        plain.publish("bills", [1])
    assert rows(conn, "select id from orders order by id") == [2, 3]
    assert rows(conn, "select topic, key, payload from pgflow.events order by event_id") == [
        ("orders", "o2", {"id": 2, "total": 0}),
        ("bills", None, None),
        ("orders", None, {"id": 3}),
        ("bills", None, [1]),
    ]


def test_what_no_event_can_be_is_refused(dsn):
    with App(dsn) as app:
        for topic, key in (("", None), ("x" * 256, None), ("t", ""), ("t", "\0")):
            with pytest.raises(InvalidArgument, match="of an event must be a text"):
                app.publish(topic, 1, key=key)
        with pytest.raises(NotStorable):
            app.publish("t", object())
    for publishing in (
        lambda: asyncio.run(pgflow.events.publish("t", 1)),
        lambda: pgflow.sync.publish("t", 1),
    ):
        with pytest.raises(NotInRunError, match=r"app\.using\(connection\)\.publish"):
            publishing()


@transaction
async def pay(connection: psycopg.AsyncConnection[Any], order: int) -> int:
    await connection.execute("insert into paid values (%s)", (order,))
    number = await pgflow.events.publish("paid", order, key="k")
    with pytest.raises(WrongColourError):
        pgflow.sync.publish("paid", order)
    if order < 0:
        raise ValueError("no")
    return number


@transaction
def pay_sync(connection: psycopg.Connection[Any], order: int) -> int:
    connection.execute("insert into paid values (%s)", (order,))
    return pgflow.sync.publish("paid", order)


@step
async def publish_in_a_step() -> None:
    await pgflow.events.publish("paid", 0)


@workflow
async def buy(order: int) -> list[Any]:
    first = await pgflow.events.publish("bought", {"order": order}, key="b")
    second = await pay(order)
    with pytest.raises(ValueError, match="no"):
        await pay(-order)
    with pytest.raises(NotInRunError, match="has no transaction"):
        await publish_in_a_step()
    return [first, second]


@workflow
def buy_sync(order: int) -> list[Any]:
    first = pgflow.sync.publish("bought", {"order": order})
    return [first, pay_sync(order)]


@pytest.mark.full
async def test_a_run_publishes_once_and_a_transactional_step_with_its_rows(aflow, conn):
    aflow.include(buy, buy_sync)
    conn.execute("create table paid (x int)")
    run = await aflow.start(buy, 7)
    numbers = await run.result()
    found = "select event_id, topic, key, payload, run_id is not null from pgflow.events"
    assert rows(conn, found + " order by event_id") == [
        (numbers[0], "bought", "b", {"order": 7}, True),
        (numbers[1], "paid", "k", 7, True),
    ]
    assert rows(conn, "select x from paid") == [7]


@pytest.mark.full
def test_a_sync_run_publishes_too(flow, conn):
    flow.include(buy_sync)
    conn.execute("create table paid (x int)")
    numbers = flow.start(buy_sync, 7).result()
    found = rows(conn, "select event_id, topic, key from pgflow.events order by event_id")
    assert found == [(numbers[0], "bought", None), (numbers[1], "paid", None)]


@workflow
async def fulfil(order: Order) -> int:
    return order.id


@workflow
async def audit(event: Event) -> list[Any]:
    return [event.id, event.topic, event.key, event.payload]


@pytest.mark.full
@awaited
async def test_a_run_is_started_for_each_event_and_never_a_second_one(dsn, conn):
    relays = [
        Relay("fulfilment", ["orders"], to=fulfil),
        Relay("audit", ["orders", "bills"], to=audit),
    ]
    app = AsyncApp(dsn, include=[fulfil, audit, *relays])
    async with app, app.worker(**QUICK), app.worker(**QUICK):
        for number in range(5):
            await app.publish("orders", {"id": number}, key="k")
        await app.publish("bills", "b")
        count = "select count(*) from pgflow.runs where status = 'completed'"
        await eventually(lambda: one(conn, count) == 11, "all runs have ended")
        assert await app.get("fulfilment/3", fulfil).result() == 2
        assert await app.get("audit/6", audit).result() == [6, "bills", None, "b"]
        one(conn, "select pgflow.replay_relay('audit', 1)")
        delivered = "select delivered from pgflow.relays where name = 'audit'"
        await eventually(lambda: one(conn, delivered) == 12, "all events came again")
        assert one(conn, "select count(*) from pgflow.runs") == 11


@awaited
async def test_an_event_that_no_run_can_take_is_dead_and_the_others_start_theirs(dsn, conn):
    app = AsyncApp(
        dsn, include=[fulfil, Relay("fulfilment", ["orders"], to=fulfil, retries=AT_ONCE)]
    )
    async with app:
        for payload in ({"id": 1}, {"id": "x"}, {"id": 3}):
            await app.publish("orders", payload)
        async with app.worker(**QUICK):
            dead = "select event_id from pgflow.deliveries where state = 'dead'"
            await eventually(lambda: rows(conn, dead) == [2], "the event is dead")
    found = rows(conn, "select key from pgflow.runs order by key")
    assert found == ["fulfilment/1", "fulfilment/3"]
    assert "order" in one(conn, "select error from pgflow.deliveries")


@awaited
async def test_a_handlers_writes_commit_once_together_with_the_relays_progress(dsn, conn):
    conn.execute("create table seen (x int, tries int)")
    tries: dict[int, int] = defaultdict(int)

    async def note(connection: psycopg.AsyncConnection[Any], event: Event) -> None:
        tries[event.id] += 1
        await connection.execute("insert into seen values (%s, %s)", (event.id, tries[event.id]))
        if event.id == 2 and tries[2] == 1:
            raise ValueError("not yet")

    def note_sync(connection: psycopg.Connection[Any], event: Event) -> None:
        connection.execute("insert into seen values (%s, 0)", (-event.id,))

    relays = [
        Relay("notes", ["orders"], to=note, retries=AT_ONCE),
        Relay("sync notes", ["orders"], to=note_sync),
    ]
    app = AsyncApp(dsn, include=relays)
    publish(conn, "aaba")
    async with app, app.worker(**QUICK):
        count = "select count(*) from seen"
        await eventually(lambda: one(conn, count) == 8, "all events were noted")
    found = rows(conn, "select x, tries from seen order by x")
    assert found == [(-4, 0), (-3, 0), (-2, 0), (-1, 0), (1, 1), (2, 2), (3, 1), (4, 1)]
    # The fourth has the key of the second, and was not tried before it.
    assert tries[4] == 1


@pytest.mark.full
@awaited
async def test_a_handler_is_called_with_each_event(dsn, conn):
    seen: list[Any] = []

    async def hear(event: Event) -> None:
        seen.append(event)

    def hear_sync(event: Event) -> None:
        seen.append(-event.id)

    app = AsyncApp(
        dsn, include=[Relay("a", ["orders"], to=hear), Relay("b", ["orders"], to=hear_sync)]
    )
    async with app, app.worker(**QUICK):
        numbers = publish(conn, ["k", None])
        await eventually(lambda: len(seen) == 4, "both were called")
    events = [event for event in seen if isinstance(event, Event)]
    found = [(e.id, e.topic, e.key, e.payload) for e in events]
    assert found == [(numbers[0], "orders", "k", 0), (numbers[1], "orders", None, 1)]
    assert events[0].at == one(conn, "select min(at) from pgflow.events")


def end_the_program() -> None:
    raise SystemExit


async def cancel_itself() -> None:
    raise asyncio.CancelledError


async def ask_another_database() -> None:
    await psycopg.AsyncConnection.connect("host=127.0.0.1 port=1")


class Mute(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Panic(BaseException):
    """As extensions written in Rust raise it."""


def say_nothing() -> None:
    raise Mute


def panic() -> None:
    raise Panic


IN_THREADS = (end_the_program, say_nothing, panic)


def failing(way: Any, *, takes_connection: bool) -> Any:
    """A handler that takes no event of the key `bad`."""

    def call(event: Event) -> None:
        way() if event.key == "bad" else None

    async def call_async(event: Event) -> None:
        await way() if event.key == "bad" else None

    async def call_both(connection: psycopg.AsyncConnection[Any], event: Event) -> None:
        await call_async(event)

    def call_both_sync(connection: psycopg.Connection[Any], event: Event) -> None:
        call(event)

    if way in IN_THREADS:
        return call_both_sync if takes_connection else call
    return call_both if takes_connection else call_async


@pytest.mark.full
@awaited
async def test_what_a_handler_raises_is_its_own_failure_and_other_keys_go_on(dsn, conn):
    relays = [
        Relay(
            f"{way.__name__} {takes}",
            ["orders"],
            to=failing(way, takes_connection=takes),
            retries=AT_ONCE,
        )
        for way in (*IN_THREADS, cancel_itself, ask_another_database)
        for takes in (False, True)
    ]
    publish(conn, ["bad", "good"])
    app = AsyncApp(dsn, include=relays)
    async with app, app.worker(**QUICK):
        over = "select count(*) from pgflow.relays where delivered = 1 and dead = 1"
        await eventually(lambda: one(conn, over) == len(relays), "the others went on")
    said = "select relay, attempts, split_part(error, ':', 1) from pgflow.deliveries order by relay"
    assert rows(conn, said) == [
        (f"{way} {takes}", 3, error)
        for way, error in (
            ("ask_another_database", "OperationalError"),
            ("cancel_itself", "CancelledError"),
            ("end_the_program", "SystemExit"),
            ("panic", "Panic"),
            ("say_nothing", "Mute"),
        )
        for takes in (False, True)
    ]


@pytest.mark.full
@awaited
async def test_keys_go_side_by_side_each_in_its_order(dsn, conn):
    box = Box()
    numbers = publish(conn, ["a", "b", "c", None] * 30)
    app = AsyncApp(dsn, include=[boxed(box, parallel=3)])
    async with app, app.worker(**QUICK):
        await eventually(lambda: len(box.taken) == 120, "all were delivered")
    assert sorted(box.taken) == numbers
    assert all(box.by_key[key] == sorted(box.by_key[key]) for key in "abc")
    assert box.most == 3
    assert box.is_closed
    assert one(conn, "select state from pgflow.relays") == "idle"


@awaited
async def test_an_event_that_fails_is_tried_again_before_the_next_of_its_key(dsn, conn):
    box = Box(ValueError("no"), TryLater("busy", 0.01))
    numbers = publish(conn, "aaa")
    app = AsyncApp(dsn, include=[boxed(box)])
    async with app, app.worker(**QUICK):
        await eventually(lambda: len(box.taken) == 3, "all were delivered")
        await eventually(lambda: not rows(conn, "select 1 from pgflow.deliveries"), "all settled")
    assert box.taken == numbers


@awaited
async def test_what_cannot_be_delivered_is_dead_at_once_and_comes_again_when_somebody_says_so(
    dsn, conn
):
    box = Box(Undeliverable("gone\0"))
    first, second = publish(conn, "aa")
    app = AsyncApp(dsn, include=[boxed(box)])
    async with app, app.worker(**QUICK):
        await eventually(lambda: box.taken == [second], "the key goes on")
        state = "select state, attempts, error from pgflow.deliveries"
        await eventually(lambda: one(conn, state) is not None, "settled")
        assert one(conn, state) == ("dead", 1, "Undeliverable: gone\N{REPLACEMENT CHARACTER}")
        one(conn, "select pgflow.redeliver_events('boxed')")
        await eventually(lambda: box.taken == [second, first], "delivered again")


@awaited
async def test_an_outage_uses_up_few_attempts(dsn, conn):
    box = Box(*[OSError("down")] * 1000)
    publish(conn, [None] * 50)
    app = AsyncApp(dsn, include=[boxed(box, circuit=5, parallel=1)])
    async with app, app.worker(**QUICK):
        state = "select state from pgflow.relays"
        await eventually(lambda: one(conn, state) == "open", "the circuit is open")
        assert one(conn, "select count(*) from pgflow.deliveries") == 5
        box.refuses.clear()
        one(conn, "select pgflow.resume_relay('boxed')")
        await eventually(lambda: len(box.taken) == 50, "all were delivered")


@pytest.mark.full
@awaited
async def test_a_try_that_takes_too_long_has_failed(dsn, conn):
    calls: list[int] = []

    async def hang(event: Event) -> None:
        calls.append(event.id)
        await asyncio.sleep(0 if len(calls) > 1 else 3600)

    (number,) = publish(conn, "a")
    relay = Relay("slow", ["orders"], to=hang, timeout=timedelta(seconds=0.05), retries=AT_ONCE)
    app = AsyncApp(dsn, include=[relay])
    async with app, app.worker(**QUICK):
        await eventually(lambda: calls[:2] == [number, number], "it was tried again")


@pytest.mark.full
@awaited
async def test_an_app_with_a_codec_publishes_and_reads_in_clear(dsn, conn):
    class Reverse:
        key_id = "reverse"
        hash_key = None

        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        def decode(self, key_id: str, data: bytes) -> bytes:
            return data[::-1]

    box = Box()
    app = AsyncApp(
        dsn, include=[boxed(box), fulfil, Relay("f", ["orders"], to=fulfil)], codec=Reverse()
    )
    async with app, app.worker(**QUICK):
        await app.publish("orders", {"id": 12345})
        await eventually(lambda: box.payloads == [{"id": 12345}], "delivered in clear")
        assert "12345" not in str(one(conn, "select payload from pgflow.events"))
        await eventually(lambda: one(conn, "select count(*) from pgflow.runs") == 1, "started")
        assert await app.get("f/1", fulfil).result() == 12345


@workflow
async def takes_two(a: int, b: int) -> None: ...


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("name of a relay", {"name": "x" * 101}),
        ("listen to a list", {"topics": "orders"}),
        ("listen to a list", {"topics": []}),
        ("oldest or newest", {"start": "now"}),
        ("at least 1", {"parallel": 0}),
        ("must have one parameter", {"to": takes_two}),
        ("not a workflow, function or sink", {"to": 5}),
        ("takes 3 parameters", {"to": lambda a, b, c: None}),
    ],
)
def test_what_no_relay_can_be_is_refused(said, options):
    with pytest.raises(DefinitionError, match=said):
        Relay(**{"name": "r", "topics": ["t"], "to": fulfil, **options})


@pytest.mark.parametrize("never", [float("inf"), float("nan"), 1e300, "3"])
def test_an_event_cannot_be_tried_later_than_ever(never):
    assert TryLater("busy", timedelta(minutes=1)).seconds == 60
    assert TryLater("busy", -1).seconds == 0
    with pytest.raises(InvalidArgument):
        TryLater("busy", never)


def test_two_relays_cannot_have_one_place_in_the_outbox():
    relay = boxed(Box())
    app = AsyncApp("", include=[relay, relay])
    with pytest.raises(DefinitionError, match="two relays are named 'boxed'"):
        app.include(boxed(Box()))
