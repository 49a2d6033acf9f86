"""One rule for every duration of the public surface: a timedelta or a number of seconds; what is
neither is refused where it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from pgflow_cli.look.parsing import parse_duration
from records import SOON, settle
from servers import HANG_SECONDS

import pgflow
from pgflow import App, AsyncApp, InvalidArgument, Retries, Signal, read, step, workflow
from pgflow._client._async.handles import AsyncRun
from pgflow._client._sync.handles import Run
from pgflow._model.durations import duration, in_short
from pgflow._worker.options import Rhythm, WorkerOptions
from pgflow.app import AppBase
from pgflow.decisions import decision
from pgflow.effects import effect
from pgflow.testing import AsyncHarness, Harness


def body() -> int:
    return 1


async def abody() -> int:
    return 1


@step
def plain() -> int:
    return 1


@workflow
def flow_of() -> int:
    return 1


async def taken(event: pgflow.events.Event) -> None: ...


EFFECT = effect(risk="irreversible")(abody)

GIVEN: dict[str, Callable[[Any], Any]] = {
    "Accepted.heartbeat_timeout": lambda value: pgflow.effects.Accepted("ref", heartbeat_timeout=value),
    "step.timeout": lambda value: step(timeout=value)(body), "read.timeout": lambda value: read(timeout=value)(body),
    "read.max_age": lambda value: read(max_age=value)(body),
    "call.timeout": lambda value: asyncio.run(pgflow.call("named", abody, timeout=value)),
    "sync.call.timeout": lambda value: pgflow.sync.call("named", body, timeout=value),
    "decision.timeout": lambda value: decision(timeout=value)(body), "Step.options.timeout": lambda value: plain.options(timeout=value),
    "effect.timeout": lambda value: effect(risk="irreversible", timeout=value)(abody),
    "effect.dedup_window": lambda value: effect(risk="irreversible", dedup_window=value)(abody),
    "effect.settle_after": lambda value: effect(risk="irreversible", timeout=0.5, settle_after=value)(abody),
    "EffectStep.options.timeout": lambda value: EFFECT.options(timeout=value),
    "workflow.timeout": lambda value: workflow(timeout=value)(body), "Workflow.options.timeout": lambda value: flow_of.options(timeout=value),
    "Workflow.options.key_for": lambda value: flow_of.options(key_for=value),
    "Workflow.options.debounce": lambda value: flow_of.options(debounce=value),
    "Workflow.options.max_wait": lambda value: flow_of.options(max_wait=value),
    "Retries.first_delay": lambda value: Retries(first_delay=value), "Retries.max_delay": lambda value: Retries(max_delay=value),
    "schedule.every": lambda value: pgflow.schedule(every=value),
    "schedule.offset": lambda value: pgflow.schedule(every=60, offset=value),
    "schedule.jitter": lambda value: pgflow.schedule("@daily", jitter=value),
    "Relay.timeout": lambda value: pgflow.events.Relay("r", ["t"], to=taken, timeout=value),
    "Relay.cooldown": lambda value: pgflow.events.Relay("r", ["t"], to=taken, cooldown=value),
    "AppBase.ref_checker.timeout": lambda value: App().ref_checker("s3", timeout=value)(body),
    "AppBase.pager.timeout": lambda value: App().pager(timeout=value)(body),
    "AppBase.pager.again_after": lambda value: App().pager(again_after=value)(body),
}  # fmt: skip
"""Calls that read a duration at once."""

IN_SECONDS: dict[str, Callable[[Any], Any]] = {
    **{f"a worker's {name}": lambda value, name=name: App()._worker_options(1, None, {name: value}) for name in (
        "poll_seconds", "grace_seconds", "transaction_idle_seconds",
    )},
    **{f"a rhythm's {field.name}": lambda value, name=field.name: Rhythm(**{name: value}) for field in fields(Rhythm)},
}  # fmt: skip
"""Calls that count in seconds: the engine reads these at once, too."""

IN_RUNS = {
    "sleep.delay", "sync.sleep.delay", "Signal.wait.timeout", "SyncSignal.wait.timeout", "Run.result.timeout", "AsyncRun.result.timeout",
    "Harness.skip.by", "AsyncHarness.skip.by", "owe.due", "gate.timeout", "sync.gate.timeout",
    "lock.ttl", "lock.timeout", "sync.lock.ttl", "sync.lock.timeout", "serve.timeout", "sync.serve.timeout", "wait_for_event.timeout", "sync.wait_for_event.timeout",
    "App.wait_for.timeout", "AsyncApp.wait_for.timeout",
}  # fmt: skip
"""Durations that need a run; tested below."""

INTERNAL = {
    "App.wait.timeout", "AsyncApp.wait.timeout", "StartOptions.timeout", "StartOptions.key_for", "StartOptions.debounce", "StartOptions.max_wait", "Step.timeout", "SyncStep.timeout", "AsyncStep.timeout",
    "SyncEffect.timeout", "AsyncEffect.timeout", "Workflow.timeout", "Signal.issue.timeout",
}  # fmt: skip
"""Durations that others hand on, or that are made from those above."""

LENIENT = {"TryLater.seconds"}
"""Durations of which one that is over counts as none, as servers say them; tested with the relays."""


def signatures(thing: Any) -> Iterator[inspect.Signature]:
    for one in (*typing.get_overloads(thing), thing):
        try:
            yield inspect.signature(one)
        except (TypeError, ValueError):
            continue


def durations_of(name: str, thing: Any) -> Iterator[str]:
    for signature in signatures(thing):
        for parameter in signature.parameters.values():
            if "timedelta" in str(parameter.annotation) or "Duration" in str(parameter.annotation):
                assert "Duration" in str(parameter.annotation) or name == "StartOptions", (
                    f"{name}({parameter}) takes no numbers"
                )
                yield f"{name}.{parameter.name}"


def public_durations() -> set[str]:
    """Every parameter of the public surface that is annotated as a duration."""
    things = {name: getattr(pgflow, name) for name in pgflow.__all__}
    for module in [module for module in things.values() if inspect.ismodule(module)]:
        things |= {name: vars(module)[name] for name in getattr(module, "__all__", ())}
    things |= {
        f"sync.{name}": value
        for name, value in vars(pgflow.sync).items()
        if not name.startswith("_") and inspect.isfunction(value)
    }
    classes = [
        AppBase, App, AsyncApp, Run, AsyncRun, pgflow.Workflow, pgflow.Step, Signal,
        pgflow.SyncSignal, Harness, AsyncHarness,
    ]  # fmt: skip
    classes += [type(EFFECT).__mro__[1]]
    found = {
        one
        for name, thing in things.items()
        if callable(thing)
        for one in durations_of(name, thing)
    }
    for cls in classes:
        for name, member in vars(cls).items():
            if not name.startswith("_") and inspect.isfunction(member):
                found |= set(durations_of(f"{cls.__name__}.{name}", member))
    return {one.replace("sync.Signal", "Signal") for one in found}


def test_every_public_duration_is_on_a_list_of_this_file():
    known = set(GIVEN) | IN_RUNS | INTERNAL | LENIENT
    found = {
        one
        for one in public_durations()
        if not one.startswith(("sync.duration", "sync.seconds_of"))
    }
    assert found - known == set()
    assert known - found == set()


@pytest.mark.parametrize("where", GIVEN)
def test_a_number_means_seconds_wherever_a_duration_is_declared(where):
    for value in (30, 30.5, timedelta(seconds=30)):
        GIVEN[where](value)


NO_DURATIONS = ("30", True, math.nan, math.inf, -1, timedelta(seconds=-1), timedelta.max, [1], 1e30)


@pytest.mark.parametrize("where", GIVEN)
def test_what_is_no_duration_is_refused_where_it_is_declared(where):
    for value in NO_DURATIONS:
        with pytest.raises(
            (InvalidArgument, pgflow.errors.DefinitionError),
            match=r"timeout|key_for|debounce|max_wait|max_age|dedup_window|settle_after|first_delay|max_delay|again_after|cooldown|every|offset|jitter|time",
        ):
            GIVEN[where](value)
            pytest.fail(f"{where} takes {value!r}")


@pytest.mark.parametrize("where", IN_SECONDS)
def test_options_of_a_worker_are_read_as_durations_where_they_are_given(where):
    name = where.split()[-1]
    for value in (3, 3.0, timedelta(seconds=3)):
        assert getattr(IN_SECONDS[where](value), name) == 3.0
    for wrong in ("30", None, True, math.nan, math.inf, -1, timedelta(seconds=-1)):
        with pytest.raises(InvalidArgument, match=name):
            IN_SECONDS[where](wrong)


def test_every_option_of_a_worker_that_is_a_time_is_on_the_list():
    times = {field.name for field in fields(WorkerOptions) if "seconds" in field.name}
    found = {where.split()[-1] for where in IN_SECONDS}
    assert found == times | {field.name for field in fields(Rhythm)}


@pytest.mark.parametrize("value", [0, timedelta(0)])
def test_a_step_must_be_given_some_time(value):
    with pytest.raises(
        InvalidArgument,
        match="timeout of step body must be between 1e-06 seconds and a hundred years, not",
    ):
        step(timeout=value)(body)


def test_a_number_and_a_timedelta_are_the_same():
    assert step(timeout=30)(body).timeout == step(timeout=timedelta(seconds=30))(body).timeout
    found = flow_of.options(timeout=30).start_options
    assert found == flow_of.options(timeout=timedelta(seconds=30)).start_options
    assert Retries(first_delay=0.5, max_delay=60) == Retries()
    assert duration(-5, "it", least_seconds=-math.inf) == timedelta(0)


go = Signal("go", int)


@step(timeout=20, retries=Retries(2, first_delay=0.01))
async def timed() -> int:
    return 1


@workflow(timeout=600)
async def in_seconds() -> list[Any]:
    await pgflow.sleep(0.01)
    try:
        await go.wait(timeout=0.01)
    except TimeoutError:
        async with pgflow.lock("it", ttl=600, timeout=60.5):
            with contextlib.suppress(TimeoutError):
                await pgflow.updates.serve(None, timeout=0.01)
            return ["late", await timed(), await timed.options(timeout=5)()]
    return []


@workflow
def in_seconds_sync() -> str:
    pgflow.sync.sleep(0.01)
    try:
        go.sync.wait(timeout=-1)
    except TimeoutError:
        with pgflow.sync.lock("that", ttl=600.5, timeout=60), contextlib.suppress(TimeoutError):
            pgflow.sync.serve(None, timeout=0.01)
        return "late"
    return ""


def unasked(state: None) -> None:
    del state


in_seconds.update(unasked)
in_seconds_sync.update(unasked)


def test_numbers_are_seconds_in_runs_and_where_a_result_is_waited_for(dsn):
    app = App(dsn, include=[in_seconds, in_seconds_sync])
    with app, app.worker(grace_seconds=1):
        assert app.start(in_seconds).result(timeout=HANG_SECONDS) == ["late", 1, 1]
        assert app.start(in_seconds_sync.options(timeout=300)).result(HANG_SECONDS) == "late"
        assert app.start(in_seconds).result(SOON) == ["late", 1, 1]
        run = app.start(flow_of.options(key="elsewhere", queue="nobody"))
        with pytest.raises(TimeoutError, match=r"run 'elsewhere' has not ended after 0:00:00"):
            run.result(timeout=0.05)
        for wrong in ("5", True, math.nan):
            with pytest.raises(InvalidArgument, match="timeout of a result must be"):
                run.result(timeout=wrong)  # type: ignore[arg-type]


def test_a_clock_is_moved_by_seconds_too(flow):
    @workflow
    def waiting() -> str:
        pgflow.sync.sleep(3600)
        return "over"

    run = settle(flow, waiting)
    flow.skip(3601)
    assert run.result(timeout=HANG_SECONDS) == "over"


@pytest.mark.parametrize(("given", "said"), [
    (20, "20s"), (90, "1m30s"), (3600, "1h"), (5400, "1h30m"), (1_209_600, "14d"), (0.25, "0.25s"),
    (0, "0s"),
])  # fmt: skip
def test_a_duration_in_short_is_as_the_command_line_takes_it(given, said):
    assert in_short(timedelta(seconds=given)) == said
    assert parse_duration(said) == timedelta(seconds=given)
