"""Parts that belong to later versions say so by their names instead of doing something else."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from records import SOON, count

import pgflow
from pgflow import (
    App,
    AsyncApp,
    Choice,
    NotBuiltError,
    NotInRunError,
    decision,
    effect,
    step,
    workflow,
)
from pgflow._flow.unbuilt import declared_only

pytestmark = pytest.mark.timeout(90)


@step
async def act() -> int:
    return 1


@effect(risk="reversible")
async def charge() -> str:
    return "charged"


@effect(risk="irreversible")
def charge_sync() -> str:
    return "charged"


@decision(retries=2)
async def decide() -> Choice[int]:
    return Choice(1, why="because")


def test_effects_and_decisions_are_refused_outside_a_workflow_as_nothing_would_record_them() -> (
    None
):
    for call in (charge, charge_sync, decide):
        with pytest.raises(NotInRunError, match="outside a workflow"):
            call()


# ---------------------------------------------------------------- refused before there is a run


@declared_only("journeys")
def travel() -> None:
    raise NotBuiltError("journeys are not built yet: travel()")


async def goes() -> None:
    travel()


@workflow
async def going() -> str:
    await act()
    return str(await goes())


@workflow
def going_sync() -> None:
    travel()


@workflow
async def of_going() -> str:
    return await pgflow.run_child(going)


@workflow
async def built() -> int:
    gate = [await act()]  # only a name
    return gate[0]


UNBUILT = [going, going_sync, of_going]


@pytest.mark.parametrize("unbuilt", UNBUILT, ids=lambda w: w.name)
def test_a_workflow_that_uses_what_is_not_built_is_refused_at_its_start(
    unbuilt: Any, dsn: str, conn: psycopg.Connection
) -> None:
    with App(dsn, include=[*UNBUILT, built]) as app:
        for start in (
            lambda: app.start(unbuilt),
            lambda: app.start(unbuilt.options(key="k")),
            lambda: app.start_many(unbuilt, [()]),
        ):
            with pytest.raises(
                NotBuiltError, match=rf"workflow {unbuilt.name} cannot be started: .* not built yet"
            ):
                start()

    async def main() -> None:
        async with AsyncApp(dsn, include=[unbuilt]) as app:
            with pytest.raises(NotBuiltError, match="cannot be started"):
                await app.start(unbuilt)

    asyncio.run(main())
    assert count(conn, "pgflow.run") == 0


def test_a_workflow_that_uses_what_is_built_is_started(dsn: str) -> None:
    with App(dsn, include=[built]) as app, app.worker(poll_seconds=0.1):
        assert app.start(built).result(SOON) == 1
