"""``app.on_failure``: functions that are called when a run has failed for good."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from records import SOON, eventually, launch, recover, result_of, settle, wait_until

import pgflow
from pgflow import FailedRun, Retries, RunCancelled, RunFailed, step, workflow
from pgflow.errors import DefinitionError


@step(retries=Retries(max_attempts=2, first_delay=0.001))
async def breaks() -> None:
    raise LookupError("no such parcel")


@workflow
async def ships() -> None:
    await breaks()


@workflow
async def ships_all() -> None:
    await pgflow.run_child(ships)


async def test_each_function_is_told_once_of_a_run_that_has_failed(aflow, conn):
    told: list[FailedRun] = []
    threads: list[str] = []
    outcomes: list[int] = []

    @aflow.app.on_failure
    async def tell(failed: FailedRun) -> None:
        outcomes.append(conn.execute("select count(*) from pgflow.outcome").fetchone()[0])
        told.append(failed)

    @aflow.app.on_failure
    def tell_too(failed: FailedRun) -> None:
        threads.append(threading.current_thread().name)

    run = await settle(aflow, ships.options(key="k", labels={"team": "north"}))
    await eventually(
        lambda: threads, "the function for sync code is called, in a thread of its own"
    )
    await recover(aflow)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    (failed,) = told
    assert (failed.run, failed.workflow, failed.generation) == ("k", ships.name, 1)
    assert failed.labels == {"team": "north"}
    assert isinstance(failed.error, LookupError)
    assert str(failed.error) == "no such parcel"
    assert outcomes == [1]
    assert len(threads) == 1
    assert threads[0].startswith("pgflow-failures")


async def test_a_child_and_its_parent_are_two_failures_and_a_cancel_is_none(aflow):
    @workflow
    async def waits() -> None:
        await pgflow.sleep(3600)

    told: list[str] = []
    aflow.app.on_failure(lambda failed: told.append(failed.workflow))
    aflow.include(ships, ships_all, waits)
    with pytest.raises(RunFailed):
        await (await aflow.start(ships_all)).result(SOON)
    cancelled = await settle(aflow, waits)
    await cancelled.cancel()
    with pytest.raises(RunCancelled):
        await cancelled.result(SOON)
    await aflow._stack.aclose()
    assert sorted(told) == sorted([ships.name, ships_all.name])


def test_a_worker_that_stops_lets_a_function_end(flow):
    told: list[str] = []
    entered = threading.Event()

    @flow.app.on_failure
    async def tell(failed: FailedRun) -> None:
        entered.set()
        await asyncio.sleep(0)
        told.append(failed.run)

    launch(flow, ships.options(key="k"))
    assert entered.wait(300)
    flow._portal.call(flow._harness._stack.aclose())
    assert told == ["k"]


def test_a_function_that_raises_is_logged_and_changes_nothing(flow, caplog):
    caplog.set_level(logging.WARNING, logger="pgflow")

    @flow.app.on_failure
    def tell(failed: FailedRun) -> None:
        raise OSError("slack is down")

    with pytest.raises(RunFailed):
        result_of(flow, ships.options(key="k"))
    message = "a function of on_failure failed for run k with OSError: slack is down"
    wait_until(
        lambda: message in [record.getMessage() for record in caplog.records], "it is logged"
    )


def test_what_is_no_function_is_refused_where_it_is_declared():
    with pytest.raises(DefinitionError, match="on_failure takes a function, not 3"):
        pgflow.App().on_failure(3)
