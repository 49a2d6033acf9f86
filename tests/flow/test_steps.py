"""Steps: what is tried again and what is not, what is recorded, under which key, and who may call
what.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import sys
import threading
import typing
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pydantic
import pytest
from records import (
    HOUR,
    SOON,
    calling,
    calling_sync,
    count,
    events,
    eventually,
    launch,
    recover,
    result_of,
    settle,
    steps,
    wait_until,
)
from servers import HANG_SECONDS

import pgflow
from pgflow import (
    App,
    InvalidArgument,
    Retries,
    RunFailed,
    Signal,
    StepFailed,
    read,
    step,
    transaction,
    workflow,
)
from pgflow.errors import (
    DefinitionError,
    NotInRunError,
    NotInWorkflowError,
    NotStorable,
    WrongColourError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgflow.testing import AsyncHarness

AT_ONCE = timedelta(milliseconds=1)
go = Signal("go", int)


def test_less_than_one_try_is_refused_by_the_name_of_its_parameter():
    with pytest.raises(InvalidArgument, match="^retries of step never must be at least 1, not 0"):

        @step(retries=0)
        def never() -> None: ...

    with pytest.raises(InvalidArgument, match="^max_attempts of Retries must be at least 1, not 0"):
        Retries(max_attempts=0)
    with pytest.raises(InvalidArgument, match="^backoff of Retries must be at least 1, not 0.5"):
        Retries(backoff=0.5)


@pytest.mark.parametrize("of", ["step", "read", "transaction", "call"])
@pytest.mark.parametrize(
    ("is_async", "returned"), [(True, object()), (False, "x" * 1_100_000)], ids=["async", "sync"]
)
async def test_a_body_whose_result_cannot_be_stored_has_done_its_work_and_runs_once(
    aflow, conn, of, is_async, returned
):
    bodies = []

    async def act() -> Any:
        bodies.append(1)
        return returned

    def act_sync() -> Any:
        bodies.append(1)
        return returned

    async def act_there(conn: psycopg.AsyncConnection[Any]) -> Any:
        return await act()

    def act_sync_there(conn: psycopg.Connection[Any]) -> Any:
        return act_sync()

    declare = {"step": step, "read": read, "transaction": transaction, "call": lambda fn: fn}[of]
    if of == "transaction":
        declared = declare(act_there if is_async else act_sync_there)
    else:
        declared = declare(act if is_async else act_sync)

    @workflow
    async def work() -> str:
        try:
            if of == "call":
                await pgflow.call("act", declared, retries=3)
            else:
                await (declared() if is_async else declared.aio())
        except NotStorable as error:
            return str(error)
        return "stored"

    assert "the result of step act" in await result_of(aflow, work)
    assert bodies == [1]
    assert conn.execute("select count(*) from pgflow.unit where kind = 'a'").fetchone() == (0,)


async def test_what_a_body_itself_cannot_store_is_an_error_like_any_other(aflow):
    bodies = []

    @step(retries=Retries(max_attempts=2, first_delay=AT_ONCE))
    async def act() -> int:
        bodies.append(1)
        raise NotStorable("of something else")

    with pytest.raises(RunFailed, match="of something else"):
        await result_of(aflow, calling(act))
    assert len(bodies) == 2


async def test_a_step_is_tried_again_until_it_succeeds_and_every_attempt_is_on_record(aflow, conn):
    tries = []

    @step(retries=Retries(max_attempts=5, first_delay=AT_ONCE))
    async def shaky() -> int:
        tries.append(pgflow.run_info().step_attempt)
        if len(tries) < 3:
            raise ConnectionError(f"try {len(tries)}")
        return len(tries)

    run = await launch(aflow, calling(shaky))
    assert await run.result(SOON) == 3
    assert tries == [1, 2, 3]
    assert steps(conn, run.key) == [("shaky", "completed", 3)]
    failed = "select payload->>'message' from pgflow.timeline where event = 'attempt_failed' order by seq"
    assert conn.execute(failed).fetchall() == [("try 1",), ("try 2",)]


async def test_after_the_last_attempt_the_last_error_itself_is_raised_and_no_wait_follows_it(
    aflow, conn
):
    tries = []

    @step(retries=Retries(max_attempts=3, first_delay=AT_ONCE))
    async def hopeless() -> None:
        tries.append(1)
        raise LookupError(f"try {len(tries)}")

    @workflow
    async def copes() -> list[str]:
        try:
            await hopeless()
        except LookupError as error:
            return [type(error).__name__, str(error)]
        return []

    run = await launch(aflow, copes)
    assert await run.result(SOON) == ["LookupError", "try 3"]
    assert steps(conn, run.key) == [("hopeless", "failed", 3)]
    assert [event for event, _ in events(conn, run.key)].count("attempt_failed") == 2
    (last_due,) = conn.execute(
        "select due_at from pgflow.timeline order by seq desc limit 1"
    ).fetchone()
    assert last_due is None


@pytest.mark.full
async def test_the_waits_between_attempts_grow_by_the_backoff_up_to_the_longest(aflow, conn):
    @step(retries=Retries(max_attempts=5, first_delay=HOUR, backoff=3, max_delay=9 * HOUR))
    async def hopeless() -> None:
        raise OSError

    run = await launch(aflow, calling(hopeless))
    for most in (1, 3, 9, 9):
        due = await aflow.until_idle()
        (failed_at, now) = conn.execute(
            "select max(at), pgflow.now_() from pgflow.timeline where event = 'attempt_failed'"
        ).fetchone()
        assert due is not None
        assert failed_at + 0.8 * most * HOUR <= due <= now + most * HOUR
        await aflow.skip(most * HOUR)
    assert await run.status() == "failed"


@pytest.mark.full
async def test_a_long_wait_between_attempts_holds_no_worker_and_survives_a_crash(aflow):
    tries = []

    @step(retries=Retries(max_attempts=2, first_delay=HOUR))
    async def shaky() -> str:
        tries.append(pgflow.run_info().step_attempt)
        if len(tries) == 1:
            raise OSError
        return "done"

    run = await launch(aflow, calling(shaky))
    assert await aflow.until_idle() is not None
    assert await run.status() == "waiting"
    await recover(aflow)
    assert tries == [1]
    await aflow.skip(HOUR)
    assert await run.result(SOON) == "done"
    assert tries == [1, 2]


class OutOfStockError(Exception):
    def __init__(self, sku: str, left: int) -> None:
        super().__init__(f"{sku}: {left} left")
        self.sku = sku
        self.left = left


@pytest.mark.full
async def test_an_error_named_in_raises_is_final_and_comes_back_as_itself_on_replay_too(
    aflow, conn
):
    seen = []

    @step(retries=5, raises=[OutOfStockError])
    async def reserve(sku: str) -> None:
        raise OutOfStockError(sku, 0)

    @workflow
    async def order() -> str:
        try:
            await reserve("sku-7")
        except OutOfStockError as error:
            seen.append((error.sku, error.left, str(error)))
        await go.wait()
        return "sold out"

    run = await settle(aflow, order)
    assert steps(conn, run.key) == [("reserve", "failed", 1)]
    await recover(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == "sold out"
    assert seen == [("sku-7", 0, "sku-7: 0 left")] * 2


async def test_an_error_of_an_unknown_class_comes_back_as_step_failed_with_its_attempts(aflow):
    @step(retries=Retries(max_attempts=2, first_delay=AT_ONCE))
    async def reserve() -> None:
        raise OutOfStockError("sku-7", 1)

    @workflow
    async def order() -> list[Any]:
        try:
            await reserve()
        except StepFailed as error:
            return [error.error_type, error.message, error.attempts]
        return []

    assert await result_of(aflow, order) == [f"{__name__}.OutOfStockError", "sku-7: 1 left", 2]


async def test_a_subclass_of_a_known_error_comes_back_as_the_nearest_known_class(aflow):
    class TooManyRequestsError(ConnectionError):
        pass

    @step(retries=1)
    async def call() -> None:
        raise TooManyRequestsError("429")

    @workflow
    async def caller() -> str:
        try:
            await call()
        except OSError as error:
            return type(error).__name__
        return ""

    assert await result_of(aflow, caller) == "ConnectionError"


async def test_options_change_one_call_and_not_the_step(aflow, conn):
    @step(retries=1)
    async def shaky() -> None:
        raise OSError

    @workflow
    async def order() -> None:
        for called in (
            shaky.options(retries=Retries(max_attempts=3, first_delay=AT_ONCE)),
            shaky,
            shaky.options(retries=1),
        ):
            with pytest.raises(OSError):
                await called()

    run = await launch(aflow, order)
    await run.result(SOON)
    found = steps(conn, run.key)
    assert found == [("shaky", "failed", 3), ("shaky", "failed", 1), ("shaky", "failed", 1)]


BAD_RETRIES = [
    {"max_attempts": 0},
    {"backoff": 0.5},
    {"first_delay": timedelta(seconds=-1)},
    {"max_delay": timedelta(seconds=-1)},
]


@pytest.mark.parametrize("fields", BAD_RETRIES)
def test_retries_that_make_no_sense_are_refused(fields):
    with pytest.raises(ValueError, match="at least 1|between 0 seconds"):
        Retries(**fields)


async def test_an_error_of_a_database_is_an_outcome(aflow, dsn):
    @step(retries=1)
    async def divide() -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute("select 1/0")

    @workflow
    async def order() -> str:
        try:
            await divide()
        except StepFailed as error:
            return error.error_type
        return ""

    assert await result_of(aflow, order) == "psycopg.errors.DivisionByZero"


async def test_an_attempt_that_takes_too_long_is_stopped_and_counts_as_failed(aflow, conn):
    stopped = []

    @step(retries=Retries(max_attempts=2, first_delay=AT_ONCE), timeout=timedelta(milliseconds=20))
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(pgflow.run_info().step_attempt)
            raise

    @workflow
    async def impatient() -> str:
        try:
            await endless()
        except TimeoutError:
            return "too long"
        return ""

    run = await launch(aflow, impatient)
    assert await run.result(SOON) == "too long"
    assert stopped == [1, 2]
    assert steps(conn, run.key) == [("endless", "failed", 2)]


def test_an_attempt_in_a_thread_that_takes_too_long_is_given_up(flow, conn):
    release = threading.Event()

    @step(retries=1)
    def endless() -> None:
        release.wait(HANG_SECONDS)

    @workflow
    def impatient() -> str:
        try:
            endless.options(timeout=timedelta(milliseconds=20))()
        except TimeoutError:
            return "too long"
        return ""

    run = launch(flow, impatient)
    try:
        assert run.result(SOON) == "too long"
    finally:
        release.set()
    assert steps(conn, run.key) == [("endless", "failed", 1)]


async def test_after_a_crash_recorded_steps_are_not_run_again_and_the_open_one_is_under_the_same_key(
    aflow,
):
    bodies: list[tuple[str, str]] = []
    hanging = asyncio.Event()

    @step
    async def act(name: str) -> str:
        bodies.append((name, pgflow.idempotency_key()))
        if name == "second" and len(bodies) == 2:
            hanging.set()
            await asyncio.Event().wait()
        return name

    @workflow
    async def order() -> list[str]:
        return [await act(name) for name in ("first", "second", "third")]

    run = await launch(aflow, order)
    await hanging.wait()
    await recover(aflow)
    assert await run.result(SOON) == ["first", "second", "third"]
    assert [name for name, _ in bodies] == ["first", "second", "second", "third"]
    keys = [key for _, key in bodies]
    assert keys[1] == keys[2]
    assert len(set(keys)) == 3


async def test_the_key_of_a_call_is_equal_on_every_attempt_and_different_for_every_call(
    aflow, conn
):
    keys: dict[int, list[str]] = {}

    @step(retries=Retries(max_attempts=3, first_delay=AT_ONCE))
    async def act(n: int) -> str:
        attempts = keys.setdefault(n, [])
        attempts += [pgflow.idempotency_key(), pgflow.idempotency_key(form="uuid")]
        if len(attempts) < 6:
            raise OSError
        return attempts[0]

    @workflow
    async def order() -> list[str]:
        return [
            *await asyncio.gather(act(1), act(2)),
            pgflow.idempotency_key(),
            pgflow.idempotency_key(),
        ]

    (one, two, *own) = await result_of(aflow, order)
    assert keys[1][::2] == [one] * 3
    assert keys[2][::2] == [two] * 3
    assert len({one, two, *own}) == 4
    assert len({*keys[1][1::2], *keys[2][1::2]}) == 2
    assert uuid.UUID(keys[1][1]) != uuid.UUID(keys[2][1])
    recorded = conn.execute("select idempotency_key from pgflow.steps order by call").fetchall()
    assert recorded == [(one,), (two,)]
    root, name, n = one.split("/")
    assert (uuid.UUID(root).version, name, n) == (7, "act", "1")


async def test_keys_of_a_continued_run_carry_its_generation(aflow):
    keys = []

    @step
    async def act() -> None:
        keys.append(pgflow.idempotency_key())

    @workflow
    async def loop(left: int) -> None:
        await act()
        if left:
            pgflow.continue_as_new(left - 1)

    await result_of(aflow, loop, 2)
    root = keys[0].partition("/")[0]
    assert keys == [f"{root}/act/1", f"{root}~2/act/1", f"{root}~3/act/1"]


async def test_a_step_that_nobody_waits_for_any_more_is_stopped_and_its_late_result_ignored(
    aflow, conn
):
    stopped = []
    started = asyncio.Event()

    @step
    async def slow() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(True)
            return "late"
        return "never"

    @step
    async def after() -> str:
        return "after"

    @workflow
    async def order() -> str:
        task = asyncio.create_task(slow())
        await go.wait()
        task.cancel()
        return await after()

    run = await launch(aflow, order)
    await started.wait()
    await run.send(go, 1)
    assert await run.result(SOON) == "after"
    await eventually(lambda: stopped, "the body is cancelled")
    assert steps(conn, run.key) == [("slow", "abandoned", 1), ("after", "completed", 1)]


async def test_the_next_attempt_learns_what_the_last_one_said_of_its_progress(aflow):
    learned = []

    @step(retries=Retries(max_attempts=3, first_delay=AT_ONCE))
    async def copy() -> int:
        done = pgflow.heartbeat_details()
        learned.append(done)
        start = done["row"] if done else 0
        if start == 20:
            return start
        pgflow.heartbeat({"row": start + 10})
        raise OSError

    assert await result_of(aflow, calling(copy)) == 20
    assert learned == [None, {"row": 10}, {"row": 20}]


async def crash_in_the_middle_of_a_body(
    aflow: AsyncHarness, conn: psycopg.Connection, decorator: Any
) -> tuple[list[Any], Any]:
    """Return the progress that two attempts learn of each other; the run then waits for `go`."""
    learned = []

    @decorator
    async def copy() -> None:
        learned.append(pgflow.heartbeat_details())
        if len(learned) == 1:
            pgflow.heartbeat("halfway")
            await asyncio.Event().wait()

    @workflow
    async def job() -> int:
        await copy()
        return await go.wait()

    run = await launch(aflow, job)
    await eventually(lambda: count(conn, "pgflow.step_beat"), "the heartbeat is recorded")
    await recover(aflow)
    return learned, run


@pytest.mark.parametrize("decorator", [read, step], ids=["read", "step"])
async def test_a_body_knows_its_progress_after_a_crash(aflow, conn, decorator):
    learned, _ = await crash_in_the_middle_of_a_body(aflow, conn, decorator)
    assert learned == [None, "halfway"]


async def test_the_last_heartbeat_before_a_worker_ends_is_not_lost(aflow):
    learned, told = [], asyncio.Event()

    @read
    async def copy() -> None:
        learned.append(pgflow.heartbeat_details())
        if len(learned) == 1:
            pgflow.heartbeat("halfway")
            told.set()
            await asyncio.Event().wait()

    await launch(aflow, calling(copy))
    await told.wait()
    await recover(aflow)
    assert learned == [None, "halfway"]


@pytest.mark.full
async def test_heartbeats_are_forgotten_with_their_run_though_a_worker_crashed(aflow, conn):
    _, run = await crash_in_the_middle_of_a_body(aflow, conn, read)
    await run.send(go, 1)
    assert await run.result(SOON) == 1
    assert count(conn, "pgflow.step_beat") == 0


def test_a_heartbeat_works_from_a_thread(flow, conn):
    @step(retries=1)
    def long() -> bool:
        for row in range(5):
            pgflow.heartbeat(row)
        wait_until(
            lambda: count(conn, "pgflow.step_beat", "details::text = '4'"),
            "the last heartbeat is recorded",
        )
        return True

    assert result_of(flow, calling_sync(long))


async def test_details_of_a_heartbeat_must_be_small_and_storable(aflow):
    @step(retries=1)
    async def chatty() -> list[str]:
        said = []
        for details in ("x" * 70_000, object()):
            try:
                pgflow.heartbeat(details)
            except InvalidArgument as error:
                said.append(str(error))
        return said

    too_long, not_storable = await result_of(aflow, calling(chatty))
    assert "64 KiB" in too_long
    assert "heartbeat" in not_storable


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Line:
    sku: str
    cents: Decimal


class Basket(pydantic.BaseModel):
    lines: list[Line]
    at: datetime
    by: uuid.UUID


Values = tuple[Basket, Colour, dict[int, timedelta], frozenset[str] | None]


@step
async def pack(values: Values) -> Values:
    return values


@workflow
async def send_parcel(values: Values) -> Values:
    packed = await pack(values)
    await go.wait()
    assert packed == values
    return packed


@pytest.mark.full
async def test_annotated_values_come_back_as_what_they_were(aflow):
    aflow.include(send_parcel)
    basket = Basket(
        lines=[Line("a", Decimal("1.10"))], at=datetime(2031, 2, 3, tzinfo=UTC), by=uuid.UUID(int=7)
    )
    values: Values = (basket, Colour.RED, {3: timedelta(seconds=1.5)}, frozenset({"x"}))
    run = await settle(aflow, send_parcel, values)
    await recover(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == values


@dataclass(frozen=True)
class Blob:
    data: bytes


async def test_bytes_come_back_from_a_step_as_fields_too(aflow):
    @step
    async def load() -> list[tuple[bytes, Blob]]:
        return [(b"\x00\xff", Blob(b"\xfe"))]

    @workflow
    async def order() -> list[tuple[bytes, Blob]]:
        return await load()

    assert await result_of(aflow, order) == [(b"\x00\xff", Blob(b"\xfe"))]


async def test_bytes_can_be_the_input_of_a_workflow(aflow):
    @workflow
    async def keep(data: bytes) -> bytes:
        return data

    assert await result_of(aflow, keep, b"\x00\xff") == b"\x00\xff"


@pytest.mark.full
async def test_the_first_run_sees_what_a_replay_will_see(aflow):
    seen = []

    @step
    async def unannotated():
        return {"pair": (1, 2), 3: None}

    @workflow
    async def order() -> None:
        seen.append(await unannotated())
        await go.wait()

    run = await settle(aflow, order)
    await recover(aflow)
    await run.send(go, 1)
    await run.result(SOON)
    assert seen == [{"pair": (1, 2), 3: None}] * 2


@pytest.mark.full
async def test_none_false_and_empty_results_count_as_recorded(aflow):
    bodies = []

    @step
    async def nothing(n: int) -> Any:
        bodies.append(n)
        return [None, False, "", [], 0][n]

    @workflow
    async def order() -> list[Any]:
        got = [await nothing(n) for n in range(5)]
        await go.wait()
        return got

    run = await settle(aflow, order)
    await recover(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == [None, False, "", [], 0]
    assert bodies == [0, 1, 2, 3, 4]


UNSTORABLE: dict[str, Any] = {
    "an object": object(), "a NUL": "a\0b", "half a surrogate pair": "\ud800",
    "not a number": float("nan"), "more than a mebibyte": "x" * (1 << 20),
    "a number of five thousand digits": 10**4999,
}  # fmt: skip


@pytest.mark.parametrize("declare", [
    pgflow.step, pgflow.read, pgflow.decisions.decision, pgflow.transaction, pgflow.effects.effect,
    workflow,
])  # fmt: skip
def test_an_option_that_a_decorator_has_not_is_refused_where_it_is_written(declare):
    with pytest.raises(TypeError, match=rf"{declare.__name__}\(\) .*'retires'"):
        declare(retires=5)


async def caught(aflow: AsyncHarness, error: type[Exception], step: Any, *args: Any) -> str:
    """Return what a workflow reads of this error of a step."""

    @workflow
    async def order() -> str:
        try:
            await step(*args)
        except error as found:
            return str(found)
        return ""

    return await result_of(aflow, order)


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE)
async def test_a_result_that_cannot_be_stored_is_a_typed_error_in_the_workflow(aflow, value):
    @step(retries=1)
    async def produce() -> Any:
        return value

    assert "the result of step produce" in await caught(aflow, NotStorable, produce)


async def test_a_result_that_cannot_be_stored_is_not_tried_for_ever(aflow):
    bodies = []

    @step(retries=Retries(max_attempts=3, first_delay=AT_ONCE))
    async def produce() -> Any:
        bodies.append(1)
        return object()

    with pytest.raises(RunFailed) as failed:
        await result_of(aflow, calling(produce))
    assert isinstance(failed.value.__cause__, NotStorable)
    assert len(bodies) <= 3


async def test_a_result_that_does_not_fit_the_annotation_is_a_typed_error_in_the_workflow(aflow):
    @step
    async def produce() -> int:
        return "seven"  # type: ignore[return-value]

    said = await caught(aflow, NotStorable, produce)
    assert "the result of step produce does not fit its annotation int" in said


class BrokenTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


HOSTILE_ERRORS = {
    "a broken __str__": BrokenTextError("x"),
    "a NUL and half a surrogate pair": ValueError("a\0b\ud800"),
    "an argument that is no JSON": ValueError(object()),
    "a very long text": ValueError("x" * 3_000_000),
    "a group": ExceptionGroup("two", [ValueError(1), KeyError(2)]),
}


@pytest.mark.parametrize("error", HOSTILE_ERRORS.values(), ids=HOSTILE_ERRORS)
async def test_any_error_of_a_step_can_be_recorded(aflow, error):
    @step(retries=Retries(max_attempts=2, first_delay=AT_ONCE))
    async def hostile() -> None:
        raise error

    @workflow
    async def order() -> str:
        try:
            await hostile()
        except Exception as raised:
            return type(raised).__name__
        return ""

    assert await result_of(aflow, order) in ("ValueError", "StepFailed")


@pytest.mark.parametrize("where", ["arguments", "fields"])
async def test_an_error_of_any_size_can_be_recorded(aflow, where):
    @step(retries=1)
    async def verbose() -> None:
        error = ValueError(*["x" * 60_000] * 30) if where == "arguments" else ValueError("x")
        if where == "fields":
            vars(error).update({f"field_{n}": "x" * 60_000 for n in range(30)})
        raise error

    with pytest.raises(RunFailed) as failed:
        await result_of(aflow, calling(verbose))
    assert isinstance(failed.value.__cause__, ValueError)


async def test_an_argument_that_cannot_be_compared_later_is_refused_at_the_call(aflow):
    @step
    async def take(thing: Any) -> None: ...

    assert "an argument of step take" in await caught(aflow, NotStorable, take, object())


@pytest.mark.full
async def test_a_call_that_was_refused_is_not_made_after_a_crash_either(aflow):
    bodies = []

    @step
    async def take(thing: Any) -> None:
        bodies.append(thing)

    @workflow
    async def order() -> int:
        with pytest.raises(NotStorable):
            await take(object())
        await take("a")
        return await go.wait() + await go.wait()

    run = await settle(aflow, order)
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    await run.send(go, 2)
    assert await run.result(SOON) == 3
    assert bodies == ["a"]


class Opaque:
    """Nothing that pydantic could store."""


def test_an_annotation_that_cannot_be_stored_is_refused_and_starts_nothing(flow, conn):
    @workflow
    async def opaque_input(thing: Opaque) -> None: ...

    flow.include(opaque_input)
    with pytest.raises(DefinitionError, match="opaque_input"):
        flow.app.start(opaque_input, Opaque())
    assert count(conn, "pgflow.run") == 0


async def test_a_step_whose_result_cannot_be_stored_fails_with_a_definition_error(aflow):
    @step(retries=1)
    async def opaque() -> Opaque:
        return Opaque()

    assert "opaque" in await caught(aflow, DefinitionError, opaque)


@pytest.mark.full
def test_a_workflow_whose_result_cannot_be_stored_harms_no_other(dsn, conn, monkeypatch):
    @workflow(name="opaque_result")
    async def opaque_result() -> Opaque:
        return Opaque()

    @workflow
    async def sound() -> int:
        return 1

    conn.execute("select pgflow.start_run('opaque_result')")
    with App(dsn, include=[opaque_result, sound]) as app, app.worker(poll_seconds=0.05):
        assert app.start(sound).result(SOON) == 1
        wait_until(
            lambda: count(conn, "pgflow.held", "reason = 'definition' and code_hash is not null"),
            "the run is held, and says why",
        )

    @workflow(name="opaque_result")
    async def corrected() -> int:
        return 2

    monkeypatch.setattr(type(corrected), "code_hash", "of another module")
    with App(dsn, include=[corrected]) as app, app.worker(poll_seconds=0.05):
        wait_until(
            lambda: count(
                conn, "pgflow.runs", "workflow = 'opaque_result' and status = 'completed'"
            ),
            "other code tries it again",
        )


def test_a_start_that_raises_has_started_nothing(dsn, conn):
    @workflow
    async def opaque_result() -> Opaque:
        return Opaque()

    with App(dsn, include=[opaque_result]) as app, pytest.raises(Exception, match="Opaque"):
        app.start(opaque_result)
    assert count(conn, "pgflow.run") == 0


@step
async def add(a: int, b: int) -> int:
    return a + b


@read
def add_sync(a: int, b: int) -> int:
    return a + b


@transaction
async def write(conn: psycopg.AsyncConnection[Any]) -> int:
    return 1


@transaction
def write_sync(conn: psycopg.Connection[Any]) -> int:
    return 1


def test_outside_a_workflow_reads_and_steps_are_plain_functions_in_both_colours():
    async def main() -> list[int]:
        return [await add(1, 2), await add.aio(1, 2), await add_sync.aio(1, 2), add_sync(1, 2)]

    assert asyncio.run(main()) == [3, 3, 3, 3]
    assert [add_sync(1, 2), add_sync.sync(1, 2), add.sync(1, 2), add_sync.fn(1, 2)] == [3, 3, 3, 3]


def test_in_the_body_of_a_step_other_steps_are_plain_functions(flow, conn):
    @step
    async def outer() -> int:
        return await add(1, 2) + await add_sync.aio(3, 4)

    run = launch(flow, calling(outer))
    assert run.result(SOON) == 10
    assert steps(conn, run.key) == [("outer", "completed", 1)]


OUTSIDE: dict[str, Callable[[], Any]] = {
    "write() was called outside a workflow": lambda: write.aio(),
    "write_sync() was called outside a workflow": lambda: write_sync(), "pgflow.now()": pgflow.now,
    "pgflow.random()": pgflow.random, "pgflow.uuid()": pgflow.uuid,
    "pgflow.patched()": lambda: pgflow.patched("x"),
    "pgflow.set_state()": lambda: pgflow.set_state(a=1),
    "pgflow.emit()": lambda: pgflow.emit("s", 1),
    "pgflow.continue_as_new()": lambda: pgflow.continue_as_new(1),
    "pgflow.idempotency_key()": pgflow.idempotency_key, "pgflow.run_info()": pgflow.run_info,
    "pgflow.heartbeat()": pgflow.heartbeat, "pgflow.heartbeat_details()": pgflow.heartbeat_details,
    "pgflow.sync.sleep()": lambda: pgflow.sync.sleep(1),
    "pgflow.sleep()": lambda: asyncio.run(pgflow.sleep(1)),
    "signal 'go'.wait()": lambda: asyncio.run(go.wait()),
    "signal 'go'.sync.wait()": lambda: go.sync.wait(),
}  # fmt: skip


@pytest.mark.parametrize("what", OUTSIDE)
def test_what_only_a_run_can_do_is_refused_outside_by_name(what):
    with pytest.raises(NotInRunError) as refused:
        OUTSIDE[what]()
    assert what in str(refused.value)


async def test_a_transaction_or_a_wait_in_the_body_of_a_step_is_refused_by_name(aflow):
    @step(retries=1)
    async def confused() -> list[str]:
        said = []
        for forbidden in (write.aio, pgflow.now, pgflow.uuid, lambda: pgflow.close_stream("s")):
            try:
                forbidden()
            except NotInRunError as error:
                said.append(str(error))
        return said

    said = await result_of(aflow, calling(confused))
    assert len(said) == 4
    assert all("the body of step 'confused'" in text for text in said)


def collect(*calls: Callable[[], Any]) -> list[str]:
    said = []
    for call in calls:
        try:
            call()
        except WrongColourError as error:
            said.append(str(error))
    return said


@workflow
async def child() -> None: ...


def test_the_wrong_colour_in_an_async_workflow_names_its_twin(flow):
    @workflow
    async def asynchronous() -> list[str]:
        return collect(
            lambda: add.sync(1, 2),
            lambda: add_sync(1, 2),
            lambda: write_sync(),
            lambda: pgflow.sync.sleep(1),
            lambda: go.sync.wait(),
            lambda: pgflow.sync.run_child(child),
            lambda: pgflow.sync.map(add_sync.options(), []),
        )

    said = result_of(flow, asynchronous)
    twins = [
        "add.aio()", "add_sync.aio()", "write_sync.aio()", "pgflow.sleep()", ".wait()",
        "pgflow.run_child()", "pgflow.map()",
    ]  # fmt: skip
    assert [twin in text for twin, text in zip(twins, said, strict=True)] == [True] * 7


def test_the_wrong_colour_in_a_sync_workflow_names_its_twin(flow):
    @workflow
    def synchronous() -> list[str]:
        return collect(lambda: add.aio(1, 2), lambda: add(1, 2), lambda: add_sync.aio(1, 2))

    said = result_of(flow, synchronous)
    assert [
        twin in text
        for twin, text in zip(["add.sync()", "add.sync()", "add_sync.sync()"], said, strict=True)
    ] == [True] * 3


def test_what_waits_in_the_wrong_colour_is_refused_when_it_is_called(flow):
    @workflow
    def synchronous() -> list[str]:
        return collect(
            lambda: pgflow.sleep(1),
            go.wait,
            lambda: pgflow.run_child(child),
            lambda: pgflow.map(add_sync.options(), []),
        )

    said = result_of(flow, synchronous)
    twins = ["pgflow.sync.sleep()", ".sync.wait()", "pgflow.sync.run_child()", "pgflow.sync.map()"]
    assert [twin in text for twin, text in zip(twins, said, strict=True)] == [True] * 4


async def test_workflow_code_cannot_reach_the_world_and_is_told_which_decorator_can(aflow, dsn):
    @workflow
    async def reckless() -> list[str]:
        said = []
        for reach in (
            lambda: asyncio.open_connection("127.0.0.1", 1),
            lambda: asyncio.to_thread(print),
            lambda: asyncio.create_subprocess_exec("true"),
            lambda: aflow.app.start(child),
        ):
            try:
                await reach()  # type: ignore[no-untyped-call]
            except NotInWorkflowError as error:
                said.append(str(error))
        return said

    said = await result_of(aflow, reckless)
    assert len(said) == 4
    assert all("@pgflow.step" in text for text in said)


def test_a_step_whose_name_is_too_long_is_refused():
    for name in ("s" * 256, "ä" * 128, "nul \0"):
        with pytest.raises(DefinitionError, match="255 bytes"):
            step(name=name)(add.fn)


LONG_NAMES = [f"tool:{'x' * 240}{n}" for n in range(2)]
LONGEST_NAME = "ä" * 127


async def call_by_long_names(aflow: AsyncHarness) -> tuple[str, list[str]]:
    """A run that calls steps of long names, two of which begin alike, and an effect; its key, and
    the idempotency keys of the bodies.
    """
    keys: list[str] = []

    async def body() -> None:
        keys.append(pgflow.idempotency_key())
        if len(keys) == 1:
            raise ConnectionError("again")

    once = step(name=LONGEST_NAME, retries=Retries(2, first_delay=AT_ONCE))(body)

    @pgflow.effects.effect(risk="reversible", name=LONG_NAMES[0])
    async def act() -> None:
        keys.append(pgflow.idempotency_key())

    @workflow
    async def flow() -> str:
        await once()
        for name in [*LONG_NAMES, LONG_NAMES[0]]:
            await pgflow.call(name, body)
        await act()
        await go.wait()
        return "done"

    run = await settle(aflow, flow)
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == "done"
    return run.key, keys


@pytest.mark.full
async def test_a_long_name_is_recorded_whole(aflow, conn):
    key, keys = await call_by_long_names(aflow)
    called = conn.execute(
        "select step, idempotency_key from pgflow.steps where key = %s order by call", (key,)
    ).fetchall()
    (owned,) = conn.execute("select effect from pgflow.effects where key = %s", (key,)).fetchone()
    assert [name for name, _ in called] == [LONGEST_NAME, *LONG_NAMES, LONG_NAMES[0]]
    assert keys == [called[0][1], *(key for _, key in called), owned]


async def test_a_long_name_stands_in_keys_by_its_beginning_and_a_hash(aflow):
    """Counterparties that deduplicate by key take some 255 characters. Two long names that begin
    alike have different keys.
    """
    _, keys = await call_by_long_names(aflow)
    assert len({*keys}) == 5
    assert all(len(key) <= 125 for key in keys)
    assert [key.rpartition("/")[2] for key in keys] == ["1", "1", "1", "1", "2", "3"]


def test_annotations_that_name_nothing_are_refused_with_the_place():
    def odd(x: NoSuchThing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match=r"odd \(.*test_steps\.py:\d+\)"):
        _ = step(odd).hints


def test_what_a_decorator_makes_looks_like_its_function_to_other_libraries():
    async def refund(order: str, cents: int = 100) -> Decimal:
        """Pay an amount back."""
        return Decimal(cents)

    async def book(conn: psycopg.AsyncConnection[Any], order: str) -> Decimal:
        return Decimal(1)

    made = [step(refund), pgflow.effects.effect(risk="irreversible")(refund), workflow(refund)]
    for one in (*made, step(refund).options(retries=3)):
        looks: Any = one
        assert (looks.__name__, looks.__module__) == ("refund", __name__)
        assert looks.__doc__ == "Pay an amount back."
        assert looks.__qualname__ == refund.__qualname__
        assert inspect.signature(looks) == inspect.signature(refund)
        assert typing.get_type_hints(looks) == {"order": str, "cents": int, "return": Decimal}
    assert list(inspect.signature(transaction(book)).parameters) == ["order"]
    is_awaited = (
        inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction  # pyright: ignore[reportDeprecated]
    )
    assert is_awaited(step(refund)) and is_awaited(step(refund).__call__)
    assert not is_awaited(step(_plain))


def _plain(x: int) -> int:
    return x
