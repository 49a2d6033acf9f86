"""Examples from the guides of other engines, written for this one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import pgflow
from pgflow import RunFailed, Signal, workflow
from pgflow.effects import Absent, Confirmed, StillUnknown, effect
from tests.others.doing import OddError, crashed, do, done, ended, failing, go, waiting

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness

clicked = Signal("clicked", str)
DAY = timedelta(days=1)


@workflow
async def signup(email: str) -> str:
    """Send a link, wait three days for a click, remind once, and give up after a week."""
    await do(f"welcome {email}")
    for _ in range(2):
        try:
            return f"verified by {await clicked.wait(timeout=3 * DAY)}"
        except TimeoutError:
            await do("remind")
    return "abandoned"


async def test_a_signup_waits_days_for_a_click_and_reminds(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, signup, "ann", key="ann")
    await aflow.skip(3 * DAY + timedelta(hours=1))
    await crashed(aflow)
    await run.send(clicked, "ann")
    assert await run.result(timeout=60) == "verified by ann"
    late = await waiting(aflow, signup, "bob", key="bob")
    for _ in range(2):
        await aflow.skip(4 * DAY)
    assert await late.result(timeout=60) == "abandoned"
    assert done == ["welcome ann", "remind", "welcome bob", "remind", "remind"]


def trip_part(part: str) -> Any:
    """Make the effect that books a part of a trip and can cancel it."""

    @effect(name=f"book_{part}", risk="compensable", raises=[OddError])
    async def book(traveller: str) -> str:
        return await _act(f"book {part}")

    @book.settle
    async def _(traveller: str) -> Confirmed[str] | Absent | StillUnknown:
        return Absent()

    @book.compensate
    async def _(booking: str, traveller: str) -> None:
        await _act(f"cancel {part}")

    return book


async def _act(what: str) -> str:
    done.append(what)
    if failing[what]:
        raise OddError(what)
    return what


flight, car, hotel = map(trip_part, ("flight", "car", "hotel"))


@workflow(raises=[OddError])
async def trip(traveller: str) -> None:
    async with pgflow.effects.saga():
        for book in (flight, car, hotel):
            await book(traveller)


async def test_a_trip_that_cannot_be_booked_is_taken_back_in_reverse(aflow: AsyncHarness) -> None:
    failing["book hotel"] = 1
    with pytest.raises(RunFailed):
        await ended(aflow, trip, "ann")
    assert done == ["book flight", "book car", "book hotel", "cancel car", "cancel flight"]


@workflow
async def chunks(size: int) -> int:
    parts = await do("split")
    mapped = await pgflow.map(do, [f"{parts}{n}" for n in range(size)], max_parallel=2)
    return len(mapped.values)


async def test_work_is_split_into_parts_that_run_at_once_and_gathered(aflow: AsyncHarness) -> None:
    assert await ended(aflow, chunks, 5) == 5
    assert len(done) == 6


@workflow
async def monitor(job: str, most: int) -> str:
    """Look again after a while, less and less often, until the job is done or time is up."""
    for attempt in range(most):
        try:
            return await do(job)
        except OddError:
            await pgflow.sleep(timedelta(minutes=2**attempt))
    return "gave up"


@pytest.mark.parametrize(("fails", "result"), [(2, "job"), (9, "gave up")])
async def test_a_job_is_watched_until_it_is_done_or_time_is_up(
    aflow: AsyncHarness, fails: int, result: str
) -> None:
    failing["job"] = fails
    run = await waiting(aflow, monitor, "job", 3)
    for attempt in range(3):
        await aflow.skip(timedelta(minutes=2**attempt))
        await crashed(aflow)
    assert await run.result(timeout=60) == result


@workflow
async def phone_code(number: str) -> bool:
    """Send a code by text, and take three answers within 90 seconds."""
    code = 1000 + int(pgflow.random() * 9000)
    pgflow.set_state(code=code)
    await do(f"text {number}")
    try:
        async with asyncio.timeout(90):
            for _ in range(3):
                if await go.wait() == code:
                    return True
    except TimeoutError:
        pass
    return False


async def test_a_person_confirms_a_code_in_time_or_not(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, phone_code, "1", key="1")
    await run.send(go, 1)
    await run.send(go, (await run.state())["code"])
    assert await run.result(timeout=60) is True
    late = await waiting(aflow, phone_code, "2", key="2")
    await aflow.skip(91)
    assert await late.result(timeout=60) is False


@workflow
async def payment_routes(order: dict[str, Any]) -> str:
    """A choice with a default, a retry and a catch."""
    match order:
        case {"total": int(total)} if total > 1000:
            return await do("review")
        case {"total": int()}:
            try:
                return await do("charge")
            except OddError:
                return await do("tell")
        case _:
            return await do("reject")


@pytest.mark.parametrize(
    ("order", "path"), [({"total": 2000}, "review"), ({"total": 5}, "tell"), ({}, "reject")]
)
async def test_a_state_is_chosen_by_data_and_an_error_is_caught(
    aflow: AsyncHarness, order: dict[str, Any], path: str
) -> None:
    failing["charge"] = 1
    assert await ended(aflow, payment_routes, order) == path
