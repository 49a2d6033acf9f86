"""The logger of runs: silent while a replay repeats what was logged before, and every record says whose it is."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from records import SOON

import pgflow
from pgflow import Retries, Signal, logger, step, workflow

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness, Harness

pytestmark = pytest.mark.timeout(90)

go = Signal("go", int)


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="pgflow.run")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "pgflow.run"]


@step(retries=Retries(max_attempts=2, first_delay=timedelta(milliseconds=1)))
async def work(n: int) -> int:
    logger.info("in step %s, try %s", n, pgflow.run_info().step_attempt)
    if n == 2 and pgflow.run_info().step_attempt == 1:
        raise OSError
    return n


@step
def work_sync(n: int) -> int:
    logger.info("in sync step %s", n)
    return n


@workflow
async def talks() -> int:
    logger.info("begins")
    await work(1)
    logger.warning("goes on")
    await go.wait()
    logger.info("hears")
    return await work_sync.aio(2)


@workflow
def talks_sync() -> int:
    logger.info("begins")
    work.sync(1)
    logger.warning("goes on")
    go.sync.wait()
    logger.info("hears")
    return work_sync(2)


@pytest.mark.parametrize("made", [talks, talks_sync])
async def test_what_was_logged_is_not_logged_again_by_a_replay(
    aflow: AsyncHarness, caplog: pytest.LogCaptureFixture, made: Any
) -> None:
    aflow.include(made)
    run = await aflow.start(made)
    await aflow.until_idle()
    before = said(caplog)
    await aflow.crash()
    await aflow.until_idle()
    await run.send(go, 1)
    assert await run.result(SOON) == 2
    assert before == ["begins", "in step 1, try 1", "goes on"]
    assert said(caplog)[3:] == ["hears", "in sync step 2"]


async def test_records_say_which_run_workflow_step_and_attempt_they_are_of(
    aflow: AsyncHarness, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def retries() -> None:
        logger.info("begins", extra={"own": 7})
        await work(2)

    aflow.include(retries)
    await (await aflow.start(retries.options(key="k"))).result(SOON)
    records = [record for record in caplog.records if record.name == "pgflow.run"]
    fields = [(r.run, r.workflow, r.generation, getattr(r, "step", None), getattr(r, "attempt", None)) for r in records]  # type: ignore[attr-defined]
    name = retries.name
    assert fields == [("k", name, 1, None, None), ("k", name, 1, "work", 1), ("k", name, 1, "work", 2)]
    assert records[0].own == 7  # type: ignore[attr-defined]


async def test_what_the_unwinding_of_a_parked_run_would_log_is_not_logged(
    aflow: AsyncHarness, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def tidy() -> None:
        try:
            await go.wait()
        finally:
            logger.info("cleans up")

    aflow.include(tidy)
    run = await aflow.start(tidy)
    await aflow.until_idle()
    assert said(caplog) == []
    await run.send(go, 1)
    await run.result(SOON)
    assert said(caplog) == ["cleans up"]


def test_outside_a_run_it_is_an_ordinary_logger(caplog: pytest.LogCaptureFixture) -> None:
    logger.info("hello %s", "world")
    assert said(caplog) == ["hello world"]
    assert not hasattr(caplog.records[-1], "run")


async def test_levels_are_those_of_the_logger_behind_it(aflow: AsyncHarness, caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def quiet() -> None:
        logger.debug("too fine")
        logger.error("heard")
        await asyncio.sleep(0)

    caplog.set_level(logging.ERROR, logger="pgflow.run")
    aflow.include(quiet)
    await (await aflow.start(quiet)).result(SOON)
    assert said(caplog) == ["heard"]


def test_a_record_can_carry_an_exception(flow: Harness, caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    def fails_softly() -> None:
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            logger.exception("divided")

    flow.include(fails_softly)
    flow.start(fails_softly).result(SOON)
    (record,) = [record for record in caplog.records if record.name == "pgflow.run"]
    assert record.exc_info is not None
