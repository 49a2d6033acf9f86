"""Interceptors: an application's own code around starts, workflows and steps."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import SOON, run_row, wait_until

import pgflow
from pgflow import App, Retries, RunFailed, Signal, step, transaction, workflow
from pgflow._flow.interceptor import outcome_of
from pgflow.extensions import Interceptor, replaying
from pgflow.testing import replay_all

if TYPE_CHECKING:
    from collections.abc import Iterator

go = Signal("go", int)


@step(retries=Retries(max_attempts=2, first_delay=timedelta(milliseconds=1)))
async def shaky() -> int:
    if pgflow.run_info().step_attempt == 1:
        raise OSError
    return 1


@step
def steady() -> int:
    return 1


@transaction
async def write(conn: psycopg.AsyncConnection[Any]) -> int:
    return 1


@workflow
async def work() -> int:
    done = await shaky() + await steady.aio() + await write()
    return done + await go.wait()


@workflow
def work_sync() -> int:
    return shaky.sync() + steady() + write.sync() + go.sync.wait()


class Recorder(Interceptor):
    """Notes what is entered and left, in order."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def start(self, workflow: str, options: pgflow.StartOptions) -> pgflow.StartOptions:
        self.log.append(f"{self.name}: start {workflow}")
        return replace(
            options,
            labels={**options.labels, self.name: workflow},
            metadata={**options.metadata, "trace": self.name},
        )

    @contextmanager
    def around_workflow(self, info: pgflow.RunInfo) -> Iterator[None]:
        with self.noting(f"{info.workflow} of {info.metadata['trace']}"):
            yield

    @contextmanager
    def around_step(self, info: pgflow.RunInfo) -> Iterator[None]:
        with self.noting(f"{info.step} {info.step_attempt}"):
            yield

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        self.log.append(f"{self.name}: enter {what}")
        try:
            yield
        except BaseException as error:
            self.log.append(f"{self.name}: {type(error).__name__} leaves {what}")
            raise
        else:
            self.log.append(f"{self.name}: leave {what}")


@pytest.mark.full
@pytest.mark.parametrize("made", [work, work_sync])
def test_they_are_entered_around_every_activation_and_every_try_of_a_body(dsn, conn, made):
    log: list[str] = []
    with (
        App(dsn, include=[made], interceptors=[Recorder("a", log)]) as app,
        app.worker(poll_seconds=0.05),
    ):
        run = app.start(made.options(key="k", labels={"own": "label"}))
        wait_until(lambda: run.status() == "waiting", "the run waits")
        first = [line for line in log if "leaves work" not in line]
        run.send(go, 4)
        assert run.result(SOON) == 7
    assert run_row(conn, "k", "labels") == ({"own": "label", "a": made.name},)
    assert first == [
        f"a: start {made.name}", f"a: enter {made.name} of a", "a: enter shaky 1",
        "a: OSError leaves shaky 1", "a: enter shaky 2", "a: leave shaky 2", "a: enter steady 1",
        "a: leave steady 1", "a: enter write 1", "a: leave write 1",
    ]  # fmt: skip
    assert log[-2:] == [f"a: enter {made.name} of a", f"a: leave {made.name} of a"]


def test_the_first_is_the_outermost(dsn):
    log: list[str] = []

    @workflow
    async def one_step() -> int:
        return await steady.aio()

    with App(
        dsn, include=[one_step], interceptors=[Recorder("out", log), Recorder("in", log)]
    ) as app:
        app.run(one_step)
    assert [line for line in log if "steady" in line] == [
        "out: enter steady 1", "in: enter steady 1", "in: leave steady 1", "out: leave steady 1",
    ]  # fmt: skip
    found = [line for line in log if "start" in line]
    assert found == [f"out: start {one_step.name}", f"in: start {one_step.name}"]


def test_starts_in_joined_transactions_and_in_batches_pass_through_them_too(dsn, conn):
    log: list[str] = []
    with App(dsn, include=[work], interceptors=[Recorder("a", log)]) as app:
        with psycopg.connect(dsn) as caller:
            app.using(caller).start(work.options(key="joined"))
        app.start_many(work, [(), ()])
    found = conn.execute("select labels, count(*) from pgflow.runs group by 1").fetchall()
    assert found == [({"a": "work"}, 3)]


class Guard(Interceptor):
    """Refuses some steps and, at a start, some workflows."""

    def start(self, workflow: str, options: pgflow.StartOptions) -> pgflow.StartOptions:
        if options.priority < 0:
            raise PermissionError(f"{workflow} must not push in")
        return options

    @contextmanager
    def around_step(self, info: pgflow.RunInfo) -> Iterator[None]:
        if info.step == "steady":
            raise PermissionError("not today")
        yield


def test_one_that_raises_refuses_the_start_or_fails_the_step(dsn, conn):
    @workflow
    async def one_step() -> int:
        return await steady.options(retries=1).aio()

    with App(dsn, include=[one_step], interceptors=[Guard()]) as app:
        with pytest.raises(PermissionError, match="must not push in"):
            app.start(one_step.options(priority=-1))
        with pytest.raises(RunFailed) as failed:
            app.run(one_step)
    assert repr(failed.value.__cause__) == "PermissionError('not today')"


class Kin(Interceptor):
    """Labels children with who asked for them, and notes whether anything new happened."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, bool]] = []

    def start_child(
        self, info: pgflow.RunInfo, workflow: str, options: pgflow.StartOptions
    ) -> pgflow.StartOptions:
        return replace(
            options, labels={**options.labels, "parent": info.key}, metadata={"for": workflow}
        )

    @contextmanager
    def around_workflow(self, info: pgflow.RunInfo) -> Iterator[None]:
        outcome = "completed"
        try:
            yield
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            self.noted.append((outcome, replaying()))


@workflow
async def offspring() -> int:
    return 1


@workflow
async def ancestor() -> int:
    await go.wait()
    return await pgflow.run_child(offspring.options(labels={"own": "label"}))


@workflow
def ancestor_sync() -> int:
    go.sync.wait()
    return pgflow.sync.run_child(offspring.options(labels={"own": "label"}))


@pytest.mark.parametrize("made", [ancestor, ancestor_sync])
def test_they_may_change_how_children_start_and_see_how_an_activation_ends(dsn, conn, made):
    kin = Kin()
    with (
        App(dsn, include=[made, offspring], interceptors=[kin]) as app,
        app.worker(poll_seconds=0.05),
    ):
        run = app.start(made.options(key="k", metadata={"of": "k"}))
        wait_until(lambda: kin.noted == [("left", False)], "the run waits")
        run.send(go, 4)
        assert run.result(SOON) == 1
        noted = list(kin.noted)
        replay_all(app)
    sql = "select labels, metadata from pgflow.run where parent_run_id is not null"
    found = conn.execute(sql).fetchall()
    assert found == [({"own": "label", "parent": "k"}, {"of": "k", "for": "offspring"})]
    assert ("completed", False) in noted
    assert [replayed for _, replayed in kin.noted[len(noted) :]] == [True, True], (
        "a replay that only checks does nothing new"
    )


def test_a_step_knows_its_call_its_effect_and_its_key(dsn):
    @step
    async def asks() -> list[Any]:
        info = pgflow.run_info()
        return [
            info.run_id,
            info.root,
            info.call,
            info.effect,
            info.idempotency_key,
            pgflow.idempotency_key(),
        ]

    @workflow
    async def one_step() -> list[Any]:
        info = pgflow.run_info()
        assert (info.call, info.effect, info.idempotency_key) == (None, None, None)
        return [*await asks(), info.run_id, info.root]

    with App(dsn, include=[one_step]) as app:
        run_id, root, call, effect, key, same_key, same_run_id, same_root = app.run(one_step)
    assert (run_id, root, call, effect) == (same_run_id, same_root, 1, "step")
    assert key == same_key == f"{root}/asks/1"


def test_one_that_does_nothing_changes_nothing(dsn):
    @workflow
    async def one_step() -> int:
        return await steady.aio()

    with App(dsn, include=[one_step], interceptors=[Interceptor()]) as app:
        assert app.run(one_step) == 1
