"""Starting runs and learning what became of them: keys, options, results, statuses, deadlines."""

from __future__ import annotations

import asyncio
import gc
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from records import (
    HOUR,
    SOON,
    count,
    eventually,
    launch,
    recover,
    result_of,
    run_row,
    settle,
    steps,
    wait_until,
)

import pgflow
from pgflow import (
    App,
    AsyncApp,
    InvalidArgument,
    KeyConflict,
    RunCancelled,
    RunFailed,
    RunNotFound,
    Signal,
    StepFailed,
    read,
    step,
    workflow,
)
from pgflow._client.starts import RUNS_A_STATEMENT
from pgflow._db.calls.wake import Polled
from pgflow._engine.execution import Execution
from pgflow._worker.poller import Poller
from pgflow.errors import DefinitionError, NotStorable, WrongColourError

go = Signal("go", int)


@step
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def total(a: int, b: int = 1) -> int:
    return await add(a, b)


@workflow
async def wait_for_go(first: int = 0) -> int:
    return first + await go.wait()


async def test_a_run_returns_what_its_workflow_returns(aflow):
    aflow.include(total)
    by_position, by_name, by_default = (
        await aflow.start(total, 1, 2),
        await aflow.start(total, b=5, a=4),
        await aflow.start(total, 7),
    )
    assert [await run.result(SOON) for run in (by_position, by_name, by_default)] == [3, 9, 8]
    assert await by_name.status() == "completed"


@pytest.fixture
def left_over() -> Iterator[Callable[[], list[Execution]]]:
    """Executions that are over and were not freed; the garbage collector does not run meanwhile."""
    gc.collect()
    others = {id(o) for o in gc.get_objects() if isinstance(o, Execution)}
    gc.disable()
    yield lambda: [
        o for o in gc.get_objects() if isinstance(o, Execution) and o.over and id(o) not in others
    ]
    gc.enable()


@pytest.mark.full
async def test_runs_that_are_over_leave_nothing_to_the_garbage_collector(aflow, left_over):
    for n in range(4):
        assert await result_of(aflow, total, n) == n + 1
    await eventually(
        lambda: left_over() == [], "the last one is taken apart too, without the collector"
    )


@pytest.mark.full
async def test_a_loop_that_has_looked_at_a_run_does_not_hold_it_while_it_rests(
    aflow, left_over, monkeypatch
):
    polls = 0
    poll = Poller.poll

    async def counting(poller: Poller) -> Polled:
        nonlocal polls
        polls += 1
        return await poll(poller)

    @step
    async def looked_at() -> bool:
        so_far = polls
        await eventually(lambda: polls >= so_far + 3, "the worker polls while the run is open")
        return True

    @workflow
    async def seen_by_polls() -> bool:
        return await looked_at()

    monkeypatch.setattr(Poller, "poll", counting)
    assert await result_of(aflow, seen_by_polls)
    await eventually(lambda: left_over() == [], "the loops hold nothing")


@pytest.mark.full
def test_a_generated_key_is_a_uuid_of_version_7(flow):
    flow.include(total)
    one, *many = [flow.start(total, 1), *flow.app.start_many(total, [(n,) for n in range(10)])]
    stems = {uuid.UUID(run.key) for run in (one, *many)}
    assert len(stems) == 11
    assert {(stem.version, stem.variant) for stem in stems} == {(7, uuid.RFC_4122)}


@pytest.mark.full
def test_a_result_can_be_fetched_by_key_from_another_process(flow, dsn):
    launch(flow, total.options(key="sum"), 1)
    with App(dsn) as elsewhere:
        assert elsewhere.get("sum", total).result(SOON) == 2


async def test_a_result_that_does_not_come_in_time_is_a_timeout_error_and_the_run_goes_on(aflow):
    run = await launch(aflow, wait_for_go.options(key="patient"))
    with pytest.raises(TimeoutError, match="'patient'"):
        await run.result(timedelta(milliseconds=20))
    await aflow.until_idle()
    with pytest.raises(TimeoutError, match=r"after 0:00:01: it is waiting \(signal go\), since 2"):
        await run.result(1)
    await run.send(go, 3)
    assert await run.result(SOON) == 3


def test_a_result_that_does_not_fit_the_annotation_fails_the_run_with_a_typed_error(flow):
    @workflow
    async def liar() -> int:
        return "three"  # type: ignore[return-value]

    with pytest.raises(RunFailed) as failed:
        result_of(flow, liar)
    assert isinstance(failed.value.__cause__, NotStorable)
    assert "liar" in str(failed.value.__cause__)


def test_an_app_connects_for_its_connection_string_and_an_async_one_must_be_open(dsn):
    app = App(dsn)
    try:
        assert app.dsn == dsn
    finally:
        app.close()
    with pytest.raises(pgflow.errors.WrongState, match="async with app"):
        AsyncApp(dsn).dsn  # noqa: B018


@pytest.mark.full
def test_a_run_of_either_colour_works_in_an_app_of_either_colour(dsn):
    @workflow
    def total_sync(a: int) -> int:
        return add.sync(a, 1)

    with App(dsn, include=[total, total_sync]) as app:
        assert (app.run(total, 1), app.run(total_sync, 1)) == (2, 2)

    async def main() -> tuple[int, int]:
        async with AsyncApp(dsn, include=[total, total_sync]) as app:
            return await app.run(total, 2), await app.run(total_sync, 2)

    assert asyncio.run(main()) == (3, 3)


def test_runs_go_on_and_results_arrive_without_listening(dsn):
    with App(dsn, include=[wait_for_go], listen=False) as app, app.worker(poll_seconds=0.05):
        run = app.start(wait_for_go, 1)
        with psycopg.connect(dsn) as other:
            # Else the run may find it when it comes to its wait, and nothing need wake it.
            wait_until(
                lambda: other.execute("select from pgflow.parked").fetchall(), "a run that waits"
            )
            App(dsn).using(other).send(run.key, go, 4)
        assert run.result(SOON) == 5


async def test_a_failed_run_raises_run_failed_with_its_error_as_the_cause(aflow):
    @workflow
    async def fails() -> None:
        raise KeyError("sku-7")

    run = await launch(aflow, fails.options(key="order-1"))
    with pytest.raises(RunFailed, match="run 'order-1' failed: builtins.KeyError") as failed:
        await run.result(SOON)
    assert isinstance(failed.value.__cause__, KeyError)
    assert failed.value.__cause__.args == ("sku-7",)
    assert await run.status() == "failed"


class CardDeclinedError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@workflow
async def declines() -> None:
    raise CardDeclinedError(51)


def test_an_error_of_an_unknown_class_arrives_as_step_failed_naming_the_class(flow):
    with pytest.raises(RunFailed) as failed:
        result_of(flow, declines)
    cause = failed.value.__cause__
    assert isinstance(cause, StepFailed)
    assert cause.error_type == f"{__name__}.CardDeclinedError"
    assert cause.message == "51"


def test_an_error_named_by_the_workflow_or_by_the_app_arrives_as_itself(flow, dsn):
    known = workflow(name="declines_openly", raises=[CardDeclinedError])(declines.fn)
    flow.include(known, declines)
    openly, plainly = flow.start(known), flow.start(declines)
    with pytest.raises(RunFailed) as failed:
        openly.result(SOON)
    assert isinstance(failed.value.__cause__, CardDeclinedError)
    assert failed.value.__cause__.code == 51
    with App(dsn, errors=[CardDeclinedError]) as app, pytest.raises(RunFailed) as failed:
        app.get(plainly.key, declines).result(SOON)
    assert isinstance(failed.value.__cause__, CardDeclinedError)


async def test_the_same_key_with_the_same_input_is_the_same_run_and_no_step_runs_again(aflow):
    bodies = []

    @step
    async def note(n: int) -> int:
        bodies.append(n)
        return n * 2

    @workflow
    async def double(n: int) -> int:
        return await note(n)

    assert await result_of(aflow, double.options(key="k"), 4) == 8
    assert await result_of(aflow, double.options(key="k"), 4) == 8
    assert bodies == [4]


async def test_a_failed_run_raises_its_error_again_and_is_not_run_again(aflow):
    activations = []

    @workflow
    async def fails(n: int) -> None:
        activations.append(n)
        raise ValueError(f"no {n}")

    aflow.include(fails)
    for _ in range(2):
        run = await aflow.start(fails.options(key="k"), 1)
        with pytest.raises(RunFailed) as failed:
            await run.result(SOON)
        assert str(failed.value.__cause__) == "no 1"
    assert activations == [1]


async def test_a_key_of_another_input_or_workflow_is_a_conflict_and_the_first_run_is_unharmed(
    aflow, conn
):
    first = await launch(aflow, wait_for_go.options(key="k"), 1, beside=[total])
    with pytest.raises(KeyConflict, match="'k'.*wait_for_go"):
        await aflow.start(wait_for_go.options(key="k"), 2)
    with pytest.raises(KeyConflict):
        await aflow.start(total.options(key="k"), 1)
    with pytest.raises(psycopg.Error) as refused:
        conn.execute("select pgflow.start_run('total', '{\"a\": 1}', 'k')")
    assert refused.value.sqlstate == "PF002"
    await first.send(go, 5)
    assert await first.result(SOON) == 6


def test_many_starts_take_a_tuple_of_arguments_for_each_run(flow, conn):
    flow.include(total)
    with pytest.raises(InvalidArgument, match=r"input 1 is int: put it into a tuple"):
        flow.app.start_many(total, [(1,), 2])  # type: ignore[list-item]
    assert count(conn, "pgflow.run") == 0


def test_two_starts_with_one_key_at_the_same_time_are_one_run(dsn, conn):
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as two, App(dsn) as app:
        app.using(one).start(total.options(key="k"), 1)
        pid = two.info.backend_pid
        with asyncio.Runner() as runner:

            async def start_second() -> str:
                starting = asyncio.to_thread(
                    lambda: app.using(two).start(total.options(key="k"), 1)
                )
                task = asyncio.create_task(starting)
                waits = "pg_stat_activity"
                await eventually(
                    lambda: count(conn, waits, f"pid = {pid} and wait_event_type = 'Lock'"),
                    "the second waits",
                )
                one.commit()
                return (await task).key

            assert runner.run(start_second()) == "k"
        two.commit()
    assert count(conn, "pgflow.runs") == 1


def test_a_start_that_was_rolled_back_is_not_found(flow, dsn):
    flow.include(wait_for_go)
    with psycopg.connect(dsn) as caller:
        run = flow.app.using(caller).start(wait_for_go.options(key="gone"))
        caller.rollback()
    uses = [
        lambda: run.result(SOON),
        run.status,
        run.state,
        run.cancel,
        lambda: run.send(go, 1),
        lambda: list(run.stream("s")),
        lambda: flow.app.pause("gone"),
        lambda: flow.app.resume("gone"),
        lambda: flow.app.retry("gone"),
    ]
    for use in uses:
        with pytest.raises(RunNotFound, match="no run has the key 'gone'"):
            use()


async def test_whoever_waits_for_a_run_that_is_pruned_meanwhile_is_told_that_it_is_gone(
    aflow, conn
):
    run = await launch(aflow, total, 1)
    await run.result(SOON)
    conn.execute("select pgflow.drop_history(clock_timestamp())")
    with pytest.raises(RunNotFound, match=f"run '{run.key}' is gone: its history was removed"):
        await run.result(SOON)


async def test_whoever_waits_for_a_run_that_a_failover_has_lost_gets_no_other_runs_result(
    aflow, conn
):
    lost = await launch(aflow, total, 1)
    await lost.result(SOON)
    conn.execute("select pgflow.drop_history(clock_timestamp())")
    # the standby that takes over had come so far
    conn.execute("select setval('pgflow.run_id_seq', %s, false)", (lost._chain_id,))
    other = await aflow.start(total, 2)
    assert other._chain_id == lost._chain_id
    await other.result(SOON)
    with pytest.raises(
        RunNotFound, match=f"run '{lost.key}' is gone: .* a fail-over lost its start"
    ):
        await lost.result(SOON)


def test_a_sync_handle_of_a_pruned_run_is_told_too(flow, conn):
    run = launch(flow, total, 1)
    run.result(SOON)
    conn.execute("select pgflow.drop_history(clock_timestamp())")
    with pytest.raises(RunNotFound, match="is gone"):
        run.result(SOON)


async def test_the_status_follows_the_life_of_a_run(aflow, conn):
    entered, proceed = asyncio.Event(), asyncio.Event()

    @read
    async def pause() -> None:
        entered.set()
        await proceed.wait()

    @workflow
    async def life() -> int:
        await pause()
        return await go.wait()

    aflow.include(life)
    run = await aflow.app.start(life)
    assert await run.status() == "queued"
    working = asyncio.create_task(aflow.until_idle())
    await entered.wait()
    assert await run.status() == "running"
    proceed.set()
    await working
    assert await run.status() == "waiting"
    assert run_row(conn, run.key, "status, reason") == ("waiting", "signal go")
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.status() == "completed"
    assert run_row(conn, run.key, "status, output") == ("completed", 1)


def test_labels_are_there_to_find_runs_by(flow, conn):
    launch(flow, total.options(key="a", labels={"customer": "ada", "tier": "gold"}), 1)
    flow.start(total.options(key="b", labels={"customer": "bob"}), 1)
    found = conn.execute(
        """select key, labels from pgflow.runs where labels @> '{"customer": "ada"}'"""
    ).fetchall()
    assert found == [("a", {"customer": "ada", "tier": "gold"})]


@step
async def step_metadata() -> dict[str, str]:
    return pgflow.run_info().metadata


@workflow
async def inner() -> list[dict[str, str]]:
    return [pgflow.run_info().metadata, await step_metadata()]


@workflow
async def outer() -> list[dict[str, str]]:
    own = [pgflow.run_info().metadata, await step_metadata()]
    return (
        own
        + await pgflow.run_child(inner)
        + await pgflow.run_child(inner.options(metadata={"hop": "2"}))
    )


def test_metadata_travels_from_the_start_to_every_step_and_child(flow):
    found = result_of(flow, outer.options(metadata={"trace": "t1"}), beside=[inner])
    assert found == [{"trace": "t1"}] * 4 + [{"trace": "t1", "hop": "2"}] * 2


async def test_metadata_travels_into_runs_started_by_a_step(aflow, conn):
    @step
    async def start_other() -> str:
        return (await aflow.app.start(total.options(key="other"), 1)).key

    @workflow
    async def starter() -> str:
        return await start_other()

    aflow.include(starter, total)
    await (await aflow.start(starter.options(metadata={"trace": "t2"}))).result(SOON)
    (metadata,) = conn.execute("select metadata from pgflow.run where key = 'other'").fetchone()
    assert metadata == {"trace": "t2"}


def test_a_run_knows_itself(flow):
    seen: dict[str, pgflow.RunInfo] = {}

    @step
    def look() -> None:
        seen["step"] = pgflow.run_info()

    @workflow
    async def knows() -> None:
        seen["workflow"] = pgflow.run_info()
        await look.aio()

    @workflow
    async def parent() -> None:
        await pgflow.run_child(knows.options(key="child"))

    flow.include(parent, knows)
    before = datetime.now(UTC)
    flow.start(knows.options(key="k", labels={"a": "b"}, timeout=HOUR)).result(SOON)
    info = seen["workflow"]
    assert (info.key, info.workflow, info.generation, info.attempt, info.labels) == (
        "k",
        knows.name,
        1,
        1,
        {"a": "b"},
    )
    assert (info.is_child, info.tenant, info.step, info.step_attempt) == (False, "", None, None)
    assert info.deadline is not None
    assert before + HOUR <= info.deadline <= datetime.now(UTC) + HOUR
    assert (seen["step"].key, seen["step"].step, seen["step"].step_attempt) == ("k", "look", 1)
    flow.start(parent).result(SOON)
    assert (seen["workflow"].key, seen["workflow"].is_child, seen["workflow"].deadline) == (
        "child",
        True,
        None,
    )


def test_lower_priorities_go_first_and_equals_in_the_order_of_their_start(dsn):
    order = []

    @workflow
    async def note(name: str) -> None:
        order.append(name)

    with App(dsn, include=[note]) as app:
        urgent, lazy = note.options(priority=-5), note.options(priority=5)
        runs = [
            app.start(wf, name)
            for wf, name in (
                (lazy, "e"),
                (note, "b"),
                (urgent, "a"),
                (note, "c"),
                (note, "d"),
                (lazy, "f"),
            )
        ]
        with app.worker(concurrency=1):
            for run in runs:
                run.result(SOON)
    assert order == ["a", "b", "c", "d", "e", "f"]


async def test_a_delayed_run_does_not_begin_before_its_time(aflow):
    aflow.include(total)
    at = datetime.now(UTC) + HOUR
    run = await aflow.start(total.options(run_at=at), 1)
    assert await aflow.until_idle() == at
    assert await run.status() == "waiting"
    await aflow.skip(timedelta(minutes=59))
    assert await run.status() == "waiting"
    await aflow.skip(timedelta(minutes=2))
    assert await run.result(SOON) == 2


async def test_a_delayed_run_can_be_cancelled_before_it_begins(aflow):
    run = await launch(aflow, total.options(run_at=datetime.now(UTC) + HOUR), 1)
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(SOON)
    await aflow.skip(2 * HOUR)
    assert await run.status() == "cancelled"


async def test_a_deadline_cancels_a_waiting_run_with_that_reason(aflow, conn):
    cleaned = []

    @workflow(timeout=HOUR)
    async def limited() -> None:
        try:
            await go.wait(timeout=2 * HOUR)
        finally:
            cleaned.append(await add(1, 1))

    run = await launch(aflow, limited)
    due = await aflow.until_idle()
    (deadline,) = run_row(conn, run.key, "deadline_at")
    assert due == deadline
    await aflow.skip(HOUR)
    with pytest.raises(RunCancelled, match="deadline"):
        await run.result(SOON)
    assert cleaned == [2]


@pytest.mark.full
async def test_a_deadline_stops_a_run_in_the_middle_of_a_step(aflow):
    entered = asyncio.Event()

    @step
    async def endless() -> None:
        entered.set()
        await asyncio.Event().wait()

    @workflow
    async def busy() -> None:
        await endless()

    run = await launch(aflow, busy.options(timeout=HOUR))
    await entered.wait()
    await aflow.skip(HOUR)
    assert await run.status() == "cancelled"


@pytest.mark.full
async def test_a_deadline_ends_a_queued_run_without_its_code(aflow, conn):
    aflow.include(total)
    conn.execute("select pgflow.pause_queue('default')")
    run = await aflow.start(total.options(timeout=HOUR), 1)
    await aflow.skip(HOUR)
    assert await run.status() == "cancelled"
    assert steps(conn, run.key) == []


@pytest.mark.full
async def test_a_deadline_is_inherited_by_children_unless_they_have_their_own(aflow, conn):
    @workflow
    async def parent() -> None:
        await asyncio.gather(
            pgflow.run_child(wait_for_go.options(key="heir")),
            pgflow.run_child(
                wait_for_go.options(key="own", timeout=2 * HOUR, when_parent_ends="abandon")
            ),
        )

    aflow.include(parent, wait_for_go)
    run = await settle(aflow, parent.options(timeout=HOUR))
    deadlines = dict(conn.execute("select key, deadline_at from pgflow.runs").fetchall())
    assert deadlines["heir"] == deadlines[run.key]
    assert deadlines["own"] > deadlines[run.key] + timedelta(minutes=59)
    await aflow.skip(HOUR)
    statuses = dict(conn.execute("select key, status from pgflow.runs").fetchall())
    assert statuses == {run.key: "cancelled", "heir": "cancelled", "own": "waiting"}
    await aflow.skip(HOUR)
    found = run_row(conn, "own", "status, reason_code, reason_detail")
    assert found == ("cancelled", "deadline", {"by": "pgflow"})


@pytest.mark.full
async def test_a_deadline_holds_over_a_crash_of_the_worker(aflow):
    run = await settle(aflow, wait_for_go.options(timeout=HOUR))
    await aflow.skip(timedelta(minutes=40))
    await recover(aflow)
    assert await run.status() == "waiting"
    await aflow.skip(timedelta(minutes=21))
    assert await run.status() == "cancelled"


async def test_arguments_that_do_not_fit_are_refused_at_the_start(aflow, conn):
    aflow.include(total)
    with pytest.raises(NotStorable, match=r"input of workflow total.*a: .*integer"):
        await aflow.app.start(total, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"total takes .*'a'"):
        await aflow.app.start(total)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="c"):
        await aflow.app.start(total, 1, c=2)  # type: ignore[call-arg]
    with pytest.raises(NotStorable):
        await aflow.app.start(total, object())  # type: ignore[arg-type]
    assert count(conn, "pgflow.runs") == 0


BAD_OPTIONS = {
    "an empty key": {"key": ""},
    "a key of more than 128 characters": {"key": "k" * 129},
    "a priority beyond 16 bits": {"priority": 40_000},
    "a timeout that is over": {"timeout": timedelta(seconds=-1)},
    "an endless timeout": {"timeout": timedelta(days=365 * 200)},
    "a label that is no text": {"labels": {"n": 7}},
    "an empty queue": {"queue": ""},
}


@pytest.mark.parametrize("options", BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_options_that_no_run_can_have_are_refused(flow, options):
    with pytest.raises(InvalidArgument):
        flow.app.start(total.options(**options), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["NUL", "lone surrogate"])
def test_a_name_that_no_postgres_text_can_hold_is_refused_with_an_error_of_ours(flow, text):
    flow.include(total)
    flow.app.start(total.options(key="there"), 1)
    for attempt in (
        lambda: flow.app.start(total.options(key=text), 1),
        lambda: flow.app.start(total.options(queue=text), 1),
        lambda: flow.app.start(total.options(labels={text: text}), 1),
        lambda: flow.app.send("there", Signal(text, str), "hello"),
        lambda: flow.app.get(text, total).status(),
        lambda: flow.app.cancel("there", why=text),
    ):
        with pytest.raises(InvalidArgument, match=r"\A[^\n]+\Z"):
            attempt()


def test_a_start_time_without_a_time_zone_is_refused():
    with pytest.raises(InvalidArgument, match="time zone"):
        total.options(run_at=datetime(2031, 1, 1))  # noqa: DTZ001 - that is the point


@pytest.mark.full
def test_a_run_started_from_sql_is_the_same_as_one_started_from_python(flow, conn):
    flow.include(total)
    at = datetime(2041, 5, 6, tzinfo=UTC)
    flow.app.start(
        total.options(
            key="python", priority=3, run_at=at, timeout=HOUR, labels={"a": "b"}, metadata={"m": 1}
        ),
        1,
        b=2,
    )
    conn.execute(
        "select pgflow.start_run('total', %s, 'sql', priority => 3, run_at => %s, timeout_seconds "
        "=> 3600, labels => %s, metadata => %s)",
        (json.dumps({"a": 1, "b": 2}), at, '{"a": "b"}', '{"m": 1}'),
    )
    columns = "lane_id, priority, input::text::jsonb, run_at, deadline_at, labels, metadata, tenant, generation, parent_run_id"
    rows = conn.execute(f"select {columns} from pgflow.run order by key").fetchall()
    assert rows[0] == rows[1]
    (key,) = conn.execute("select run_key from pgflow.start_run('total', '{\"a\": 20}')").fetchone()
    flow.until_idle()
    assert flow.app.get(key, total).result(SOON) == 21


BAD_SQL = {
    "an input that is no object": "pgflow.start_run('w', '[1]')",
    "an input that is null": "pgflow.start_run('w', null)",
    "an input nested too deep": f"pgflow.start_run('w', '{{\"a\": {'[' * 201}{']' * 201}}}')",
    "an input of more than a mebibyte": "pgflow.start_run('w', json_build_object('a', repeat('x', "
    "1048577)))",
    "an input with a NUL": r"""pgflow.start_run('w', '{"a": "\u0000"}')""",
    "a workflow without a name": "pgflow.start_run('')",
    "a key that is too long": "pgflow.start_run('w', key => repeat('k', 129))",
    "a priority out of range": "pgflow.start_run('w', priority => 99999)",
    "a timeout of nothing": "pgflow.start_run('w', timeout_seconds => 0)",
    "a timeout that is no number": "pgflow.start_run('w', timeout_seconds => 'NaN')",
    "a start at the end of time": "pgflow.start_run('w', run_at => 'infinity')",
    "labels that are no texts": "pgflow.start_run('w', labels => '{\"a\": 1}')",
}


BAD_OBJECTS = {
    "labels that are no object": "pgflow.start_run('w', labels => '[1]')",
    "metadata that is no object": "pgflow.start_run('w', metadata => '[1]')",
    "metadata that is too long": "pgflow.start_run('w', metadata => jsonb_build_object('a', "
    "repeat('x', 20000)))",
    "many runs whose inputs are no objects": "pgflow.start_runs('w', '[[null, \"[1]\"]]')",
    "many runs whose keys are too long": "pgflow.start_runs('w', "
    "jsonb_build_array(jsonb_build_array(repeat('k', 129), "
    "'{}')))",
    "many runs whose inputs are nested too deep": f"pgflow.start_runs('w', '[[null, \"{{\\\"a\\\": "
    f"{'[' * 201}{']' * 201}}}\"]]')",
}


@pytest.mark.parametrize("call", BAD_SQL.values(), ids=BAD_SQL)
def test_sql_refuses_what_no_run_can_be(conn, call):
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(f"select {call}")  # type: ignore[arg-type]
    assert refused.value.sqlstate == "PF003"


@pytest.mark.parametrize("call", BAD_OBJECTS.values(), ids=BAD_OBJECTS)
def test_sql_refuses_with_an_error_of_its_own_what_is_no_object_or_too_long(conn, call):
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(f"select {call}")  # type: ignore[arg-type]
    assert refused.value.sqlstate == "PF003"


def test_metadata_that_are_too_long_are_refused_with_an_error_of_ours(flow):
    with pytest.raises(InvalidArgument, match="metadata"):
        flow.app.start(total.options(metadata={"m": "x" * 20_000}), 1)


def test_an_input_from_sql_that_does_not_fit_fails_the_run_with_a_typed_error(flow, conn):
    flow.include(total)
    conn.execute(
        """select pgflow.start_run('total', '{"a": "one"}', 'bad'), pgflow.start_run('total', '{"c": 1}', 'worse')"""
    )
    flow.until_idle()
    for key in ("bad", "worse"):
        with pytest.raises(RunFailed) as failed:
            flow.app.get(key, total).result(SOON)
        assert isinstance(failed.value.__cause__, NotStorable)


@pytest.mark.full
@pytest.mark.parametrize("many", [50, 2 * RUNS_A_STATEMENT + 1])
def test_many_runs_start_in_one_transaction_and_come_back_in_order(flow, conn, many):
    flow.include(total)
    runs = flow.app.start_many(total.options(labels={"batch": "7"}), [(n, 10) for n in range(many)])
    flow.until_idle()
    assert [run.result(SOON) for run in runs] == [n + 10 for n in range(many)]
    assert count(conn, "pgflow.runs", 'labels = \'{"batch": "7"}\'') == many
    assert conn.execute("select count(distinct xmin::text) from pgflow.run").fetchone() == (1,)
    assert flow.app.start_many(total, []) == []


@pytest.mark.full
def test_a_batch_with_one_bad_input_starts_nothing(flow, conn):
    flow.include(total)
    with pytest.raises(NotStorable):
        flow.app.start_many(total, [(1,), ("two",), (3,)])
    with pytest.raises(NotStorable):
        flow.app.start_many(total, [*((n,) for n in range(2 * RUNS_A_STATEMENT)), ("bad",)])
    with pytest.raises(InvalidArgument, match="NUL"):
        flow.app.start_many(
            total.options(labels={"a": "\0"}), [(n,) for n in range(2 * RUNS_A_STATEMENT)]
        )
    with pytest.raises(InvalidArgument, match="labels"):
        flow.app.start_many(
            total.options(labels={"a": "x" * 20_000}), [(n,) for n in range(2 * RUNS_A_STATEMENT)]
        )
    with pytest.raises(DefinitionError, match="key"):
        flow.app.start_many(total.options(key="k"), [(1,)])
    assert count(conn, "pgflow.runs") == 0


def test_a_workflow_is_started_and_not_called():
    with pytest.raises(
        TypeError,
        match=r"app\.start\(total, \.\.\.\).*pgflow\.run_child\(total, \.\.\.\).*total\.fn",
    ):
        total(1)  # type: ignore[operator]


def test_definitions_that_cannot_work_are_refused_where_they_are_made():
    async def variadic(*numbers: int) -> None: ...

    with pytest.raises(DefinitionError, match=r"\*numbers"):
        workflow(variadic)
    with pytest.raises(DefinitionError, match="name"):
        workflow(name="w" * 256)(total.fn)
    with pytest.raises(DefinitionError, match="two workflows are named 'total'"):
        App("", include=[total, workflow(name="total")(wait_for_go.fn)])
    with pytest.raises(DefinitionError, match=r"@pgflow\.workflow"):
        App("", include=[total.fn])  # type: ignore[list-item]


def test_a_start_takes_a_workflow(flow):
    app = flow.app
    said = r"^start\(\) takes a workflow, not <function total .*decorated with @pgflow\.workflow"
    with pytest.raises(DefinitionError, match=said):
        app.start(total.fn, 1)  # type: ignore[arg-type]
    with pytest.raises(
        DefinitionError, match=r"not its name 'total'.*start_run\(\).*`pgflow start`"
    ):
        app.start("total", 1)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"^start_many\(\) takes a workflow"):
        app.start_many(total.fn, [(1,)])  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"^then= of start_batch\(\) takes a workflow"):
        app.start_batch(total, [(1,)], then=total.fn)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"^set_schedule\(\) takes a workflow"):
        app.set_schedule("daily", pgflow.schedule(every=HOUR), total.fn)  # type: ignore[arg-type]


@pytest.mark.parametrize("thing", [total, asyncio, "total"])
def test_an_app_includes_a_list(thing):
    with pytest.raises(DefinitionError, match=r"include= takes a list .* write include=\[\.\.\.\]"):
        App("", include=thing)


def test_a_module_brings_all_its_workflows(dsn):
    import worker_jobs

    app = App(dsn, include=[worker_jobs])
    found = {w.name for w in vars(worker_jobs).values() if isinstance(w, pgflow.Workflow)}
    assert found == set(app.definitions.workflows)


def test_an_app_of_one_colour_refuses_connections_of_the_other(dsn):
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as async_connection:
            with pytest.raises(WrongColourError, match="AsyncApp"):
                App(dsn).using(async_connection)
        with psycopg.connect(dsn) as connection, pytest.raises(WrongColourError, match="App"):
            AsyncApp(dsn).using(connection)

    asyncio.run(main())


@pytest.mark.full
def test_runs_go_on_when_every_connection_is_lost(flow, conn):
    bodies = []

    @read
    async def cut(n: int) -> int:
        bodies.append(n)
        sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        conn.execute(sql)
        return n

    @workflow
    async def unlucky() -> list[int]:
        return [await cut(1), await add(1, 1), await cut(3), await add(2, 2)]

    run = launch(flow, unlucky)
    assert run.result(SOON) == [1, 2, 3, 4]
    assert steps(conn, run.key) == [
        ("cut", "completed", 1),
        ("add", "completed", 1),
        ("cut", "completed", 1),
        ("add", "completed", 1),
    ]


@pytest.mark.full
def test_a_worker_frees_keys_whose_retention_is_over(flow, conn):
    flow.include(total)
    conn.execute("select pgflow.start_run('total', '{\"a\": 1}', 'k', key_retention_seconds => 0)")
    flow.until_idle()
    assert count(conn, "pgflow.outcome") == 1
    flow.crash()  # the next worker sweeps at its start, as it does once a minute
    flow.until_idle()
    wait_until(lambda: count(conn, "pgflow.run_key") == 0, "the key is free again")


CELL = """
@pgflow.workflow
def in_cell(n: int) -> int:
    return n + {more}
app.include(in_cell)
"""


@pytest.mark.parametrize("is_interactive", [True, False])
def test_a_cell_that_is_run_twice_defines_its_workflow_anew(monkeypatch, *, is_interactive):
    app = App()
    names: dict[str, Any] = {"__name__": "__main__", "pgflow": pgflow, "app": app}
    exec(compile(CELL.format(more=1), "<cell 1>", "exec"), names)
    exec(compile(CELL.format(more=1), "<cell 1>", "exec"), names)
    assert app.definitions.workflows == {"in_cell": names["in_cell"]}
    if is_interactive:
        monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
        exec(compile(CELL.format(more=2), "<cell 2>", "exec"), names)
        assert app.definitions.workflows["in_cell"].fn(1) == 3
    else:
        with pytest.raises(DefinitionError, match="two workflows are named 'in_cell'"):
            exec(compile(CELL.format(more=2), "<cell 2>", "exec"), names)
