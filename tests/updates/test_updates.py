"""Updates: what somebody asks a running workflow to do, once, and the one answer to it."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import SOON, calling, count, events, eventually, launch, result_of, settle

import pgflow
from pgflow import InvalidArgument, KeyConflict, RunCancelled, RunNotFound, Signal, step, workflow
from pgflow.errors import (
    DefinitionError,
    NotStorable,
    UpdateFailed,
    UpdateRefused,
    UpdateRejected,
    WrongColourError,
    WrongState,
)

go = Signal("go", str)
reserved: list[str] = []


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)
    is_ordered: bool = False


@step
async def reserve(sku: str) -> str:
    reserved.append(sku)
    return f"{sku}!"


@workflow
async def order(size: int = 3) -> list[str]:
    cart = Cart()
    await pgflow.updates.serve(cart, until=lambda: cart.is_ordered or len(cart.items) == size)
    return cart.items


@order.update
async def add(cart: Cart, sku: str) -> int:
    cart.items.append(await reserve(sku))
    pgflow.set_state(items=cart.items)
    return len(cart.items)


@add.validator
def check_add(cart: Cart, sku: str) -> None:
    if f"{sku}!" in cart.items:
        raise ValueError(f"{sku} is in the cart")


@order.update
def close(cart: Cart, *, really: bool = False) -> str:
    if not really:
        raise PermissionError("say that you mean it")
    cart.is_ordered = True
    return "closed"


@workflow
def shop(size: int = 2) -> list[str]:
    cart = Cart()
    pgflow.sync.serve(cart, until=lambda: len(cart.items) == size)
    return cart.items


@shop.update
def put(cart: Cart, sku: str) -> int:
    pgflow.sync.sleep(timedelta(milliseconds=1))
    cart.items.append(sku)
    pgflow.set_state(items=cart.items)
    return len(cart.items)


@workflow
def shop_state() -> str:
    """Takes no updates."""
    return go.sync.wait()


@put.validator
def check_put(cart: Cart, sku: str) -> None:
    if sku in cart.items:
        raise ValueError(f"{sku} is in the cart")


@pytest.fixture(autouse=True)
def _nothing_is_reserved() -> None:
    reserved.clear()


def send(
    conn: psycopg.Connection[Any],
    key: str,
    name: str,
    update_id: str,
    *,
    wake: bool = True,
    **args: Any,
) -> bool:
    row = conn.execute(
        "select is_new, chain_id from pgflow.send_update(%s, %s, %s, %s)",
        (key, name, json.dumps(args), update_id),
    ).fetchone()
    assert row is not None
    if wake:
        conn.execute("select pgflow.wake(array[%s::bigint])", (row[1],))
    return bool(row[0])


def reply(conn: psycopg.Connection[Any], key: str, id: str) -> tuple[Any, ...]:  # noqa: A002
    row = conn.execute("select status, value, error from pgflow.update_reply(%s, %s)", (key, id))
    found = row.fetchone()
    assert found is not None
    return (*found[:2], found[2] and found[2]["message"])


@pytest.mark.full
async def test_an_update_is_taken_by_its_handler_and_answered(aflow, conn):
    run = await launch(aflow, order.options(key="o"))
    assert await run.execute_update(add, "tea") == 1
    assert await run.execute_update(add, sku="milk") == 2
    assert await run.execute_update(close, really=True) == "closed"
    assert await run.result(SOON) == ["tea!", "milk!"]
    assert reserved == ["tea", "milk"]
    assert events(conn, "o")[:4] == [
        ("update_taken", "add"),
        ("step_completed", "reserve"),
        ("state_set", None),
        ("update_replied", "add"),
    ]
    same = """
        select count(*) from pgflow.unit u join pgflow.run_update r on r.reply_run_id = u.run_id
          and r.reply_seq = u.seq where u.xmin = r.xmin
    """
    assert conn.execute(same).fetchone() == (3,)


def test_a_sync_workflow_takes_updates_as_an_async_one_does(flow, conn):
    run = launch(flow, shop.options(key="s"))
    assert run.execute_update(put, "tea") == 1
    with pytest.raises(UpdateRejected, match="tea is in the cart"):
        run.execute_update(put, "tea")
    assert run.execute_update(put, "milk") == 2
    assert run.result(SOON) == ["tea", "milk"]


async def test_a_rejected_update_is_answered_and_leaves_nothing_in_the_journal(aflow, conn):
    run = await launch(aflow, order.options(key="o"))
    assert await run.execute_update(add, "tea") == 1
    before = events(conn, "o")
    with pytest.raises(UpdateRejected, match="tea is in the cart") as raised:
        await run.execute_update(add, "tea")
    assert isinstance(raised.value.__cause__, ValueError)
    for id_, name, args in (("1", "nonsense", {}), ("2", "add", {"sku": 7}), ("3", "add", {})):
        send(conn, "o", name, id_, **args)
    await eventually(
        lambda: all(reply(conn, "o", n)[0] == "rejected" for n in "123"), "all are rejected"
    )
    assert "has no update 'nonsense'" in reply(conn, "o", "1")[2]
    assert events(conn, "o") == before
    assert count(conn, "pgflow.signal") == 0
    assert await run.status() == "waiting"
    await run.execute_update(close, really=True)
    assert await run.result(SOON) == ["tea!"]


async def test_what_a_handler_raises_is_the_answer_and_the_run_goes_on(aflow):
    run = await launch(aflow, order)
    with pytest.raises(UpdateFailed, match="say that you mean it") as raised:
        await run.execute_update(close)
    assert isinstance(raised.value.__cause__, PermissionError)
    assert not isinstance(raised.value, UpdateRejected)
    assert await run.execute_update(close, really=True) == "closed"
    assert await run.result(SOON) == []


async def test_a_value_that_does_not_fit_its_annotation_is_a_failed_answer(aflow):
    @workflow
    async def lies() -> None:
        await pgflow.updates.serve(None, timeout=60)

    @lies.update
    async def lie(state: None) -> int:
        return "no number"  # type: ignore[return-value]

    run = await launch(aflow, lies)
    with pytest.raises(UpdateFailed):
        await run.execute_update(lie)
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(SOON)


async def test_one_id_is_one_update_with_one_answer(aflow, conn):
    run = await launch(aflow, order.options(key="o"))
    once = add.options(update_id="once")
    assert [await run.execute_update(once, "tea") for _ in range(3)] == [1, 1, 1]
    with pytest.raises(KeyConflict, match="once"):
        await run.execute_update(once, "milk")
    with pytest.raises(KeyConflict, match="once"):
        await run.execute_update(close.options(update_id="once"), really=True)
    await run.execute_update(close, really=True)
    assert await run.result(SOON) == ["tea!"]
    # The history of the run has the answer as long as it is kept.
    assert await run.execute_update(once, "tea") == 1


@pytest.mark.parametrize("isolation", ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
async def test_of_concurrent_senders_of_one_id_one_sends_it(aflow, conn, pgflow_dsn, isolation):
    run = await launch(aflow, order.options(key="o"))
    start = threading.Barrier(8)

    def sender(_: int) -> bool:
        with psycopg.connect(pgflow_dsn, autocommit=True) as own:
            own.isolation_level = psycopg.IsolationLevel[isolation]
            waits = True
            while True:
                try:
                    with own.transaction():
                        own.execute("select 1 from pgflow.messages")
                        if waits:
                            start.wait()
                            waits = False
                        return send(own, "o", "add", "same", wake=False, sku="tea")
                except psycopg.errors.SerializationFailure:
                    continue

    with ThreadPoolExecutor(8) as pool:
        told = await asyncio.to_thread(lambda: list(pool.map(sender, range(8))))
    assert sorted(told) == [False] * 7 + [True]
    conn.execute("select pgflow.wake(null)")
    assert await run.execute_update(add.options(update_id="same"), "tea") == 1
    await run.execute_update(close, really=True)
    assert await run.result(SOON) == ["tea!"]


async def test_updates_and_signals_are_taken_in_the_order_of_the_journal(aflow, conn):
    @workflow
    async def listens() -> list[str]:
        heard: list[str] = []

        async def hear() -> None:
            for _ in range(3):
                heard.append(await go.wait())

        signals = asyncio.create_task(hear())
        await pgflow.updates.serve(heard, until=lambda: sum(h.startswith("u") for h in heard) == 3)
        await signals
        return heard

    @listens.update
    def say(heard: list[str], word: str) -> int:
        heard.append(word)
        return len(heard)

    run = await settle(aflow, listens.options(key="l"))
    async with asyncio.TaskGroup() as group:
        for n in range(3):
            group.create_task(run.start_update(say, f"u{n}"))
            group.create_task(run.send(go, f"s{n}"))
    heard = await run.result(SOON)
    assert sorted(heard) == ["s0", "s1", "s2", "u0", "u1", "u2"]
    told = conn.execute(
        "select coalesce(payload->'args'->>'word', payload#>>'{}') from pgflow.unit"
        " where kind in ('h', 'S') order by seq"
    ).fetchall()
    assert [word for (word,) in told] == heard


@pytest.mark.full
async def test_updates_are_made_one_at_a_time_in_the_order_of_their_sending(aflow, conn):
    aflow.include(order)
    for n in range(70):
        reserved.append(str(n))
    reserved.clear()
    run = await aflow.start(order.options(key="o"), 150)
    with conn.transaction():
        for n in range(150):
            conn.execute(
                "select pgflow.send_update('o', 'add', %s, %s)",
                (json.dumps({"sku": str(n)}), f"{n}"),
            )
    conn.execute("select pgflow.wake(null)")
    assert await run.result(SOON) == [f"{n}!" for n in range(150)]
    assert reserved == [str(n) for n in range(150)]
    assert reply(conn, "o", "149") == ("done", 150, None)


@pytest.mark.full
@pytest.mark.parametrize("point", ["taken", "working"])
async def test_a_worker_that_dies_between_receipt_and_answer_loses_nothing(aflow, conn, point):
    @workflow
    async def slow() -> list[str]:
        done: list[str] = []
        await pgflow.updates.serve(done, until=lambda: bool(done))
        return done

    @slow.update
    async def work(done: list[str], word: str) -> str:
        made = await reserve(word) if point == "working" else word
        done.append(made + await go.wait())
        return done[-1]

    run = await launch(aflow, slow.options(key="s"))
    sent = await run.start_update(work, "w")
    await eventually(lambda: ("update_taken", "work") in events(conn, "s"), "it is taken")
    await aflow.until_idle()
    await aflow.crash()
    assert reply(conn, "s", sent.update_id) == ("waiting", None, None)
    await run.send(go, "?")
    await aflow.until_idle()
    assert await sent.result(SOON) == ("w!?" if point == "working" else "w?")
    assert await run.result(SOON) == [await sent.result()]
    assert reserved == (["w"] if point == "working" else [])
    assert [kind for kind, _ in events(conn, "s")].count("update_taken") == 1


async def test_an_update_that_nobody_took_is_refused_once_the_run_has_ended(aflow, conn):
    run = await launch(aflow, calling(go.wait).options(key="d"))
    sent = await run.start_update(add, "tea")
    await aflow.until_idle()
    assert reply(conn, "d", sent.update_id)[0] == "waiting"
    await run.send(go, "end")
    assert await run.result(SOON) == "end"
    with pytest.raises(UpdateRefused):
        await sent.result(SOON)
    with pytest.raises(UpdateRefused):
        await run.execute_update(add, "milk")
    with pytest.raises(RunNotFound):
        await aflow.app.get("nobody", order).execute_update(add, "tea")


async def test_an_update_whose_run_ends_in_its_handler_is_refused(aflow, conn):
    @workflow
    async def leaves() -> str:
        serving = asyncio.create_task(pgflow.updates.serve([]))
        await go.wait()
        del serving
        return "left"

    @leaves.update
    async def hang(state: list[str]) -> None:
        await Signal("never", str).wait()

    run = await launch(aflow, leaves.options(key="l"))
    sent = await run.start_update(hang)
    await eventually(lambda: ("update_taken", "hang") in events(conn, "l"), "it is taken")
    await run.send(go, "end")
    assert await run.result(SOON) == "left"
    assert reply(conn, "l", sent.update_id)[0] == "refused"
    with pytest.raises(UpdateRefused):
        await sent.result(SOON)


async def test_a_cancelled_run_refuses_the_update_that_it_was_at(aflow, conn):
    @workflow
    async def stops() -> None:
        await pgflow.updates.serve([])

    @stops.update
    async def hang(state: list[str]) -> None:
        await go.wait()

    run = await launch(aflow, stops.options(key="c"))
    sent, late = await run.start_update(hang), await run.start_update(hang)
    await eventually(lambda: ("update_taken", "hang") in events(conn, "c"), "it is taken")
    await run.cancel()
    with pytest.raises(UpdateRefused):
        await sent.result(SOON)
    with pytest.raises(UpdateRefused):
        await late.result(SOON)
    with pytest.raises(RunCancelled):
        await run.result(SOON)


async def test_updates_that_were_not_taken_go_on_to_the_next_generation(aflow, conn):
    @workflow
    async def rounds(n: int, items: list[str]) -> list[str]:
        count = len(items) + 2
        if n == 0:
            await go.wait()
        await pgflow.updates.serve(items, until=lambda: len(items) == count)
        if n == 2:
            return items
        pgflow.continue_as_new(n + 1, items)

    @rounds.update
    def tell(items: list[str], word: str) -> int:
        items.append(word)
        return len(items)

    run = await launch(aflow, rounds.options(key="r"), 0, [])
    sent = [await run.start_update(tell, str(n)) for n in range(6)]
    await run.send(go, "go")
    assert [await one.result(SOON) for one in sent] == [1, 2, 3, 4, 5, 6]
    assert await run.result(SOON) == ["0", "1", "2", "3", "4", "5"]
    assert count(conn, "pgflow.run") == 3


async def test_an_update_whose_handler_continues_as_new_is_refused(aflow, conn):
    @workflow
    async def again(n: int) -> int:
        if n == 0:
            await pgflow.updates.serve([])
        return n

    @again.update
    def restart(state: list[str]) -> None:
        pgflow.continue_as_new(1)

    run = await launch(aflow, again.options(key="a"), 0)
    with pytest.raises(UpdateRefused):
        await run.execute_update(restart)
    assert await run.result(SOON) == 1


@pytest.mark.full
async def test_update_with_start_starts_a_run_or_finds_it(aflow, conn):
    aflow.include(order)
    await aflow.until_idle()
    keyed = order.options(key="o", if_taken="attach")
    first = await aflow.app.update_with_start(add.bind("tea"), keyed, 3)
    second = await aflow.app.update_with_start(add.bind("milk"), keyed, 7)
    assert await first.result(SOON) == 1
    assert await second.result(SOON) == 2
    assert count(conn, "pgflow.run") == 1
    run = aflow.app.get("o", order)
    await run.execute_update(add, "rum")
    assert await run.result(SOON) == ["tea!", "milk!", "rum!"]
    with pytest.raises(UpdateRefused):
        await (await aflow.app.update_with_start(add.bind("oil"), keyed, 3)).result(SOON)


def test_update_with_start_is_one_transaction(flow, conn):
    flow.include(shop)
    with pytest.raises(NotStorable):
        flow.app.update_with_start(put.bind(7), shop.options(key="s"))  # type: ignore[arg-type]
    assert count(conn, "pgflow.run") == 0
    flow.until_idle()
    sent = flow.app.update_with_start(
        put.options(update_id="once").bind("tea"), shop.options(key="s"), 1
    )
    assert sent.result(SOON) == 1
    with pytest.raises(KeyConflict):
        flow.app.update_with_start(
            put.options(update_id="once").bind("milk"), shop.options(key="s"), 1
        )
    assert flow.app.get("s", shop).result(SOON) == ["tea"]


def test_an_update_is_sent_in_the_transaction_of_its_sender(flow, conn, pgflow_dsn):
    settle(flow, shop.options(key="s"), 1)
    with psycopg.connect(pgflow_dsn) as own:
        send(own, "s", "put", "1", wake=False, sku="tea")
        own.rollback()
        with pytest.raises(psycopg.Error, match="has the id"):
            reply(own, "s", "1")
        own.rollback()
        send(own, "s", "put", "2", wake=False, sku="milk")
    flow.app.nudge()
    conn.execute("select pgflow.wake(null)")
    assert flow.app.get("s", shop).result(SOON) == ["milk"]


@pytest.mark.full
async def test_long_arguments_and_answers_arrive_whole(aflow, conn):
    @workflow
    async def echoes() -> int:
        done: list[int] = []
        await pgflow.updates.serve(done, until=lambda: len(done) == 5)
        return sum(done)

    @echoes.update
    async def echo(done: list[int], text: str) -> str:
        done.append(len(text))
        return text[::-1]

    run = await launch(aflow, echoes)
    texts = [f"{n}" + "äbc" * 34_000 for n in range(5)]
    sent = [await run.start_update(echo, text) for text in texts]
    assert [await one.result(SOON) for one in sent] == [text[::-1] for text in texts]
    assert await run.result(SOON) == sum(map(len, texts))


async def test_serving_ends_with_its_time_and_later_updates_stay(aflow, conn):
    @workflow
    async def waits() -> list[str]:
        items: list[str] = []
        try:
            await pgflow.updates.serve(items, timeout=timedelta(hours=1))
        except TimeoutError:
            items.append("late")
        await pgflow.updates.serve(items, until=lambda: len(items) == 3)
        return items

    @waits.update
    def tell(items: list[str], word: str) -> int:
        items.append(word)
        return len(items)

    run = await launch(aflow, waits)
    assert await run.execute_update(tell, "first") == 1
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=2))
    assert await run.execute_update(tell, "second") == 3
    assert await run.result(SOON) == ["first", "late", "second"]


@pytest.mark.full
async def test_a_rewind_has_an_update_made_again_and_keeps_its_answer(aflow, conn):
    @workflow
    async def logs(size: int) -> list[str]:
        words: list[str] = []
        await pgflow.updates.serve(words, until=lambda: len(words) == size)
        return words

    @logs.update
    def tell(words: list[str], word: str) -> str:
        words.append(f"{word} in {pgflow.run_info().generation}")
        return words[-1]

    @tell.validator
    def check(words: list[str], word: str) -> None:
        if pgflow_closed:
            raise ValueError("closed")

    pgflow_closed: list[str] = []
    run = await launch(aflow, logs.options(key="o"), 3)
    for word in ("tea", "milk"):
        one = tell.options(update_id=word)
        assert await run.execute_update(one, word) == f"{word} in 1"
    await aflow.until_idle()
    await aflow.app.rewind("o", 2, why="again")
    await aflow.until_idle()
    pgflow_closed.append("now")
    await aflow.app.rewind("o", 2, why="once more")
    await aflow.until_idle()
    pgflow_closed.clear()
    assert await run.execute_update(tell, "rum") == "rum in 3"
    assert await run.result(SOON) == ["tea in 3", "milk in 3", "rum in 3"]
    assert [reply(conn, "o", word)[1] for word in ("tea", "milk")] == ["tea in 1", "milk in 1"]


async def test_who_was_told_that_the_run_had_ended_is_not_heard_after_a_rewind(aflow, conn):
    @workflow
    async def opens(n: int = 0) -> list[str]:
        await go.wait()
        if pgflow.run_info().generation == 1:
            return []
        items: list[str] = []
        await pgflow.updates.serve(items, until=lambda: "end" in items)
        return items

    @opens.update
    def tell(items: list[str], word: str) -> int:
        items.append(word)
        return len(items)

    run = await launch(aflow, opens.options(key="o"))
    told = await run.start_update(tell, "told")
    untold = await run.start_update(tell, "untold")
    await run.send(go, "on")
    assert await run.result(SOON) == []
    with pytest.raises(UpdateRefused):
        await told.result(SOON)
    await aflow.app.restart("o", why="again")
    assert await untold.result(SOON) == 1
    await run.execute_update(tell, "end")
    assert await run.result(SOON) == ["untold", "end"]
    with pytest.raises(UpdateRefused):
        await told.result(SOON)


@pytest.mark.full
async def test_a_fork_repeats_what_was_taken_and_answers_nobody(aflow, conn):
    run = await launch(aflow, order.options(key="o"))
    assert await run.execute_update(add.options(update_id="1"), "tea") == 1
    await aflow.until_idle()
    upto = conn.execute("select max(seq) from pgflow.unit").fetchone()
    assert upto is not None
    await aflow.app.fork("o", "f", at=upto[0])
    fork = aflow.app.get("f", order)
    assert await fork.execute_update(add.options(update_id="1"), "milk") == 2
    await run.execute_update(close, really=True)
    await fork.execute_update(close, really=True)
    assert await fork.result(SOON) == ["tea!", "milk!"]
    assert await run.result(SOON) == ["tea!"]
    assert reply(conn, "o", "1")[1] == 1


async def test_published_state_is_read_without_waking_the_run(aflow, conn):
    run = await launch(aflow, order.options(key="o"))
    with pytest.raises(InvalidArgument, match="published nothing"):
        await run.query("items")
    await run.execute_update(add, "tea")
    await run.execute_update(add, "milk")
    await aflow.until_idle()
    await aflow.crash()
    before = conn.execute("select * from pgflow.parked").fetchall()
    assert await run.query("items") == ["tea!", "milk!"]
    assert await run.query("items", list[str]) == ["tea!", "milk!"]
    with pytest.raises(NotStorable):
        await run.query("items", dict[str, int])
    assert conn.execute("select pgflow.query('o', 'items')").fetchone() == (["tea!", "milk!"],)
    assert conn.execute("select * from pgflow.parked").fetchall() == before
    assert len(before) == 1


def test_handlers_are_checked_where_they_are_declared():
    @workflow
    def plain() -> None: ...

    with pytest.raises(DefinitionError, match="plain def"):

        @plain.update
        async def wrong(state: None) -> None: ...

    with pytest.raises(DefinitionError, match="takes no state"):

        @plain.update  # type: ignore[arg-type]
        def bare() -> None: ...

    with pytest.raises(DefinitionError, match="each argument must be named"):

        @plain.update
        def many(state: None, *words: str) -> None: ...

    @plain.update
    def one(state: None) -> None: ...

    with pytest.raises(DefinitionError, match="two updates 'one'"):
        plain.update(one.fn)
    with pytest.raises(DefinitionError, match="validator"):

        @one.validator
        async def check(state: None) -> None: ...

    with pytest.raises(InvalidArgument, match="id of an update"):
        one.options(update_id="")


async def test_a_workflow_without_handlers_cannot_serve(aflow):
    @workflow
    async def bare() -> str:
        try:
            await pgflow.updates.serve(None)
        except DefinitionError:
            pass
        try:
            pgflow.sync.serve(None)
        except WrongColourError as error:
            return str(error)
        return ""

    assert "await pgflow.updates.serve()" in await result_of(aflow, bare)


def test_sql_refuses_what_is_no_update(flow, conn):
    launch(flow, shop.options(key="s"))
    for args, code in (
        (("nobody", "put", "{}", "1"), "PF001"),
        (("s", "", "{}", "1"), "PF003"),
        (("s", "put", "[]", "1"), "PF003"),
        (("s", "put", "{}", ""), "PF003"),
    ):
        with pytest.raises(psycopg.Error) as raised:
            conn.execute("select pgflow.send_update(%s, %s, %s, %s)", args)
        assert raised.value.sqlstate == code
    flow.app.cancel("s")


async def test_a_handler_sees_the_state_that_its_workflow_has_made(aflow, conn):
    @workflow
    async def opens() -> list[str]:
        items = [await reserve("first")]
        await pgflow.updates.serve(items, until=lambda: len(items) == 2)
        return items

    @opens.update
    def tell(items: list[str], word: str) -> list[str]:
        items.append(word)
        return items

    aflow.include(opens)
    sent = await aflow.app.update_with_start(tell.bind("second"), opens.options(key="o"))
    await aflow.until_idle()
    assert await sent.result(SOON) == ["first!", "second"]


def test_values_of_updates_are_encoded_by_the_codec_of_the_app(pgflow_dsn, conn):
    async def main() -> None:
        async with (
            pgflow.AsyncApp(pgflow_dsn, include=[order], codec=Reversed()) as app,
            app.worker(),
        ):
            run = await app.start(order.options(key="o"))
            once = add.options(update_id="1")
            assert await run.execute_update(once, "tea") == 1
            assert await run.execute_update(once, "tea") == 1
            with pytest.raises(KeyConflict):
                await run.execute_update(once, "milk")
            with pytest.raises(UpdateRejected, match="tea is in the cart"):
                await run.execute_update(add, "tea")
            with pytest.raises(UpdateFailed, match="say that you mean it"):
                await run.execute_update(close)
            assert await run.query("items") == ["tea!"]
            await run.execute_update(close, really=True)
            assert await run.result(SOON) == ["tea!"]

    asyncio.run(main())
    told = conn.execute("select string_agg(payload::text, ' ') from pgflow.unit").fetchone()
    assert told is not None
    assert "tea" not in told[0]
    asked = conn.execute("select string_agg(error::text, ' ') from pgflow.run_update").fetchone()
    assert asked is not None
    assert "cart" not in (asked[0] or "")


class Reversed:
    """A codec for tests."""

    key_id = "k"
    hash_key = b"sixteen bytes or more"

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, key_id: str, data: bytes) -> bytes:
        return data[::-1]


async def test_a_run_that_continues_as_new_refuses_the_update_that_it_was_at(aflow, conn):
    @workflow
    async def moves(n: int) -> int:
        if n == 0:
            serving = asyncio.create_task(pgflow.updates.serve([]))
            await go.wait()
            del serving
            pgflow.continue_as_new(1)
        return await go.wait() and n

    @moves.update
    async def hang(state: list[str]) -> None:
        await Signal("never", str).wait()

    run = await launch(aflow, moves.options(key="m"), 0)
    sent = await run.start_update(hang)
    await eventually(lambda: ("update_taken", "hang") in events(conn, "m"), "it is taken")
    await run.send(go, "on")
    with pytest.raises(UpdateRefused):
        await sent.result(SOON)
    assert await run.status() in ("waiting", "queued", "running")
    await run.send(go, "on")
    assert await run.result(SOON) == 1


async def test_a_handler_that_begins_with_a_transaction_is_taken_once(aflow, conn):
    conn.execute("create table if not exists public.booked (word text)")

    @pgflow.transaction
    async def book(own: psycopg.AsyncConnection[Any], word: str) -> int:
        await own.execute("insert into public.booked values (%s)", (word,))
        return len(word)

    @workflow
    async def books(size: int) -> int:
        words: list[int] = []
        await pgflow.updates.serve(words, until=lambda: len(words) == size)
        return sum(words)

    @books.update
    async def tell(words: list[int], word: str) -> int:
        words.append(await book(word))
        return words[-1]

    run = await launch(aflow, books.options(key="b"), 4)
    sent = [await run.start_update(tell, "x" * n) for n in range(4)]
    assert [await one.result(SOON) for one in sent] == [0, 1, 2, 3]
    assert await run.result(SOON) == 6
    assert count(conn, "public.booked") == 4


def test_an_update_that_is_not_in_the_mailbox_cannot_be_taken(flow, conn):
    settle(flow, shop_state.options(key="s"))
    send(conn, "s", "put", "1", sku="tea")
    chain, message = conn.execute("select chain_id, signal_id from pgflow.signal").fetchone() or ()
    taken = json.dumps([[chain, chain, "1", message, None, None, None]])
    with pytest.raises(psycopg.Error) as raised, conn.transaction():
        conn.execute("select pgflow.settle_updates_(%s, now())", (taken,))
        conn.execute("select pgflow.settle_updates_(%s, now())", (taken,))
    assert raised.value.sqlstate == "PF006"
    flow.app.cancel("s")


@pytest.mark.full
async def test_who_asks_while_a_run_is_being_rewound_is_not_told_that_it_has_ended(
    aflow, conn, pgflow_dsn
):
    @workflow
    async def again(n: int = 0) -> list[str]:
        if pgflow.run_info().generation == 1:
            return [await go.wait()]
        items: list[str] = []
        await pgflow.updates.serve(items, until=lambda: bool(items))
        return items

    @again.update
    def tell(items: list[str], word: str) -> int:
        items.append(word)
        return len(items)

    run = await launch(aflow, again.options(key="a"))
    sent = await run.start_update(tell, "late")
    await run.send(go, "on")
    assert await run.result(SOON) == ["on"]
    await aflow.until_idle()
    with psycopg.connect(pgflow_dsn) as own:
        own.execute("select pgflow.restart_run('a', why => 'again')")
        assert reply(conn, "a", sent.update_id)[0] == "waiting"
        own.commit()
    conn.execute("select pgflow.wake(null)")
    assert await sent.result(SOON) == 1
    assert await run.result(SOON) == ["late"]


@pytest.mark.full
async def test_what_was_asked_and_answered_can_be_redacted(aflow, conn):
    run = await launch(aflow, order.options(key="o"), 1)
    once = add.options(update_id="1")
    assert await run.execute_update(once, "tea") == 1
    assert await run.result(SOON) == ["tea!"]
    places = conn.execute("select seq from pgflow.unit where kind in ('h', 'b') order by seq")
    for (seq,) in places.fetchall():
        await aflow.app.redact("o", seq, why="asked for")
    with pytest.raises(pgflow.errors.CodecError):
        await (await run.start_update(once, "tea")).result(SOON)
    with pytest.raises(KeyConflict):
        await run.execute_update(once, "milk")


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_who_waits_for_an_answer_is_told_and_need_not_look(aflow, conn, monkeypatch, where):
    monkeypatch.setattr("pgflow._client.results.FIRST_POLL_SECONDS", 3600)
    monkeypatch.setattr("pgflow._client.results.LONGEST_POLL_SECONDS", 3600)
    run = await launch(aflow, order.options(key="o"), 2)
    async with pgflow.AsyncApp(aflow.app.dsn, include=[order]) as other:
        asked = run if where == "here" else other.get("o", order)
        assert await asked.execute_update(add, "tea") == 1
        with pytest.raises(UpdateRejected):
            await asked.execute_update(add, "tea")
        with pytest.raises(UpdateFailed):
            await asked.execute_update(close)
        assert await asked.execute_update(add, "milk") == 2
        with pytest.raises(UpdateRefused):
            await asked.execute_update(add, "late")
    assert await run.status() == "completed"


async def test_who_waits_for_an_answer_is_told_that_the_run_is_stuck_or_has_ended(aflow, conn):
    @pgflow.effects.effect(risk="irreversible")
    async def lose() -> None:
        raise ConnectionResetError("no reply")

    @workflow
    async def deaf() -> None:
        await go.wait()
        await lose()

    run = await launch(aflow, deaf.options(key="d"))
    sent = await run.start_update(add, "tea")
    with pytest.raises(TimeoutError, match="update '.*' of run 'd' has no answer after 0:00:00.1"):
        await sent.result(0.1)
    waiting = asyncio.create_task(sent.result(SOON))
    await run.send(go, "on")
    with pytest.raises(pgflow.RunStuck):
        await waiting
    conn.execute("select pgflow.cancel_run('d', force => true)")
    conn.execute("select pgflow.wake(null)")
    with pytest.raises(UpdateRefused):
        await sent.result(SOON)


@pytest.mark.full
async def test_an_update_can_be_redacted_whatever_became_of_it(aflow, conn):
    run = await launch(aflow, order.options(key="o"), 2)
    secrets = {"done": "rosewood", "rejected": "rosewood", "failed": "", "refused": "ebony"}
    assert await run.execute_update(add.options(update_id="done"), "rosewood") == 1
    with pytest.raises(UpdateRejected, match="rosewood"):
        await run.execute_update(add.options(update_id="rejected"), "rosewood")
    with pytest.raises(UpdateFailed):
        await run.execute_update(close.options(update_id="failed"))
    with pytest.raises(WrongState, match="run 'o' is open"):
        await aflow.app.redact_update("o", "done", why="asked for")
    await run.execute_update(add, "pine")
    assert await run.result(SOON) == ["rosewood!", "pine!"]
    await run.start_update(add.options(update_id="refused"), "ebony")
    await aflow.until_idle()
    with pytest.raises(RunNotFound, match="no update of run 'o' has the id 'nobody'"):
        await aflow.app.redact_update("o", "nobody", why="asked for")
    with pytest.raises(InvalidArgument, match="say why"):
        await aflow.app.redact_update("o", "done", why=" ")
    removed = {
        name: await aflow.app.redact_update("o", name, why="asked for", by="ada")
        for name in secrets
    }
    assert removed == {"done": 2, "rejected": 1, "failed": 2, "refused": 1}
    shown = conn.execute("""
        select string_agg(v, ' ') from (
          select u::text from pgflow.updates u where u.update_id !~ '-'
          union all select m::text from pgflow.undelivered m
          union all select m::text from pgflow.signal m
          union all select u.payload::text from pgflow.unit u where u.kind in ('h', 'b') and u.payload->>'id' !~ '-'
        ) s (v)
    """).fetchone()
    assert shown is not None
    assert "rosewood" not in shown[0]
    assert "ebony" not in shown[0]
    assert "mean it" not in shown[0]
    rows = conn.execute("""
        select update_id, status, value->>'redacted' is not null, error->>'redacted' is not null
        from pgflow.updates where update_id !~ '-' order by 1
    """)
    assert rows.fetchall() == [
        ("done", "done", True, False),
        ("failed", "failed", False, True),
        ("refused", "refused", False, False),
        ("rejected", "rejected", False, True),
    ]
    with pytest.raises(pgflow.errors.CodecError):
        await (await run.start_update(add.options(update_id="rejected"), "rosewood")).result(SOON)
    with pytest.raises(pgflow.errors.CodecError):
        await (await run.start_update(close.options(update_id="failed"))).result(SOON)
    with pytest.raises(WrongState, match="is redacted already, or holds no value"):
        await aflow.app.redact_update("o", "done", why="asked for")
    said = conn.execute("select payload->>'what', payload->>'by' from pgflow.unit where kind = 'Z'")
    found = sorted(said.fetchall())
    assert found == [("unit", "ada (postgres)")] * 4 + [("update", "ada (postgres)")] * 2
    conn.execute("select pgflow.wake(null)")
