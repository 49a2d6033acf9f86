"""Children that run one after the other beside their parent: the commit that starts one claims it,
and the commit that ends it tells the parent.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
import pytest
from records import SOON, eventually, in_a_loop, result_of
from servers import HANG_SECONDS

import pgflow
from pgflow import AsyncApp, step, workflow
from pgflow._db.query import Query
from pgflow._db.wire import OwnWire
from pgflow._model.claims import Offer
from pgflow._worker.options import WorkerOptions
from pgflow._worker.poller import Poller
from pgflow._worker.runs import Runs
from pgflow.testing import Harness

CHILDREN = 20


@workflow
async def one_up(n: int) -> int:
    return n + 1


@workflow
async def one_by_one() -> int:
    count = 0
    for _ in range(CHILDREN):
        count = await pgflow.run_child(one_up, count)
    return count


@workflow(queue="elsewhere")
async def far(n: int) -> int:
    return n + 1


@step
async def one() -> int:
    return 1


@workflow
async def asking_far() -> int:
    for _ in range(10):  # until the first claims and the first commit of a connection are over
        await one()
    return await pgflow.run_child(far, 1)


async def until(conn: psycopg.Connection[Any], query: str) -> None:
    """Waits for what the database says."""
    await eventually(lambda: conn.execute(query).fetchone() == (True,), query)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Number of calls of each stored function by the workers of this process."""
    asked: Counter[str] = Counter()
    ask = OwnWire.ask

    async def counting(self: OwnWire, query: Query[Any]) -> Any:
        if called := re.search(r"pgflow\.(\w+)\(", str(query.sql)):
            asked[called[1]] += 1
        return await ask(self, query)

    monkeypatch.setattr(OwnWire, "ask", counting)
    return asked


async def test_a_child_costs_two_commits_and_nothing_else(aflow, asked, monkeypatch):
    monkeypatch.setattr("pgflow._worker.host.PATIENCE_US", int(HANG_SECONDS * 1e6))
    aflow.include(one_by_one, one_up)
    (await polls_of(aflow))._poll_seconds = 3600
    run = await aflow.start(one_by_one)  # which has the claims of a worker that starts
    assert await run.result(SOON) == CHILDREN
    asked.clear()
    run = await aflow.start(one_by_one)
    assert await run.result(SOON) == CHILDREN
    # A poll that is under way may have the parent look once, and then it is woken.
    commits = asked["commit_and_claim"] + asked["commit_units"]
    assert 2 * CHILDREN < commits < 3 * CHILDREN, asked
    assert asked["wake"] < CHILDREN / 2


async def polls_of(aflow: Harness) -> Poller:
    """Return the part of the worker that polls."""
    (poller,) = [part for part in (await aflow._work()).parts if isinstance(part, Poller)]
    return poller


@in_a_loop
async def test_a_child_of_a_queue_that_is_served_elsewhere_is_not_claimed_for(dsn, conn, asked):
    async with AsyncApp(dsn, include=[asking_far, far]) as app:
        run = await app.start(asking_far)
        async with app._work(WorkerOptions()):
            await until(
                conn,
                "select count(*) = 1 from pgflow.ready join pgflow.lane using (lane_id) "
                "where queue = 'elsewhere'",
            )
            assert not asked["commit_and_claim"]
            async with app._work(WorkerOptions(queues=("elsewhere",))):
                assert await run.result(SOON) == 2


@pytest.mark.full
async def test_runs_that_wait_look_as_often_as_if_nothing_called_for_a_poll(
    aflow, asked, monkeypatch
):
    pokes: list[None] = []
    monkeypatch.setattr(Runs, "poke_waiting", lambda _: pokes.append(None))
    poller = await polls_of(aflow)
    poller._poll_seconds = 3600  # none of the polls below is one of those
    await eventually(lambda: pokes, "the first poll")
    before = asked["poll"]

    def many() -> bool:
        poller._wanted.polls.set()
        return asked["poll"] >= before + 30

    await eventually(many, "polls that something calls for")
    assert len(pokes) == 1
    poller._poll_seconds = 0
    poller._wanted.polls.set()
    await eventually(lambda: len(pokes) > 1, "a poll that is due")


@workflow
async def waits_for_child() -> int:
    return await pgflow.run_child(one_up, 1)


@pytest.mark.full
async def test_a_parent_that_may_be_leaving_is_woken_in_the_database(aflow, asked, monkeypatch):
    """Its question may have been answered before there was mail, so that it parks with mail."""
    heard: list[list[int]] = []
    deliver = Runs.deliver

    def locked(self: Runs, chains: Iterable[int], offers: Mapping[int, Offer]) -> list[int]:
        """Each of them has a question on its way."""
        held = [self.executions[c] for c in chains if c in self.executions]
        with contextlib.ExitStack() as stack:
            for execution in held:
                stack.enter_context(pytest.MonkeyPatch.context()).setattr(
                    execution.flushing, "locked", True
                )
            heard.append(deliver(self, chains, offers))
        return heard[-1]

    monkeypatch.setattr(Runs, "deliver", locked)
    assert await result_of(aflow, waits_for_child, beside=[one_up]) == 2
    told = [len(chains) for chains in heard if chains]
    assert set(told) == {1}
    assert asked["wake"] == len(told)  # two, if a poll has found it as well
