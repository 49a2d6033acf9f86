"""Features of Temporal that no other room has a test of."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import pytest
from pydantic import PlainSerializer, PlainValidator

import pgflow
from pgflow import step, workflow
from pgflow.errors import UpdateRejected
from tests.others.doing import crashed, done, ended, waiting

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness


class Point:
    """Stands for a message of protobuf: a class that writes and reads itself as bytes."""

    __hash__ = object.__hash__

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def SerializeToString(self) -> bytes:  # noqa: N802  the name that protobuf has
        return bytes([self.x])

    @classmethod
    def FromString(cls, data: bytes) -> Point:  # noqa: N802  the name that protobuf has
        return cls(data[0])


def read(value: str | Point) -> Point:
    return value if isinstance(value, Point) else Point.FromString(base64.b64decode(value))


def write(point: Point) -> str:
    return base64.b64encode(point.SerializeToString()).decode()


Stored = Annotated[Point, PlainValidator(read), PlainSerializer(write)]


@step
async def double(x: int) -> Stored:
    return Point(x * 2)


@workflow
async def doubled(point: Stored) -> Stored:
    return await double(point.x)


async def test_protobuf_messages_go_in_and_out(aflow: AsyncHarness) -> None:
    assert (await ended(aflow, doubled, Point(4))).x == 8


@dataclass
class Counter:
    count: int = 0
    checks: list[int] = field(default_factory=list)


@workflow
async def counting(until: int) -> int:
    counter = Counter()
    await pgflow.updates.serve(counter, until=lambda: counter.count >= until)
    return counter.count


@counting.update
async def add(counter: Counter, n: int) -> int:
    await pgflow.sleep(5)
    counter.count += n
    pgflow.set_state(count=counter.count)
    return counter.count


@add.validator
def check_add(counter: Counter, n: int) -> None:
    done.append(f"check {n}")
    if n < 0:
        raise ValueError("less than nothing")


@counting.query
def count_in(state: dict[str, int], unit: int) -> int:
    return state.get("count", 0) // unit


async def test_a_query_with_other_arguments_is_refused(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, counting, 9)
    assert await run.query(count_in, 2) == 0
    with pytest.raises(TypeError):
        await run.query(count_in)
    with pytest.raises(TypeError):
        await run.query(count_in, 1, 2)


async def test_an_update_is_sent_now_and_answered_later(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, counting, 1)
    sent = await run.start_update(add, 1)
    await aflow.until_idle()
    with pytest.raises(TimeoutError):
        await sent.result(timeout=0)
    await aflow.skip(6)
    assert await sent.result() == 1


async def test_a_validator_is_not_asked_again_by_a_replay(aflow: AsyncHarness) -> None:
    run = await waiting(aflow, counting, 1)
    with pytest.raises(UpdateRejected):
        await run.execute_update(add, -1)
    await run.start_update(add, 1)
    await aflow.until_idle()
    await crashed(aflow)
    await aflow.skip(6)
    assert await run.result(timeout=60) == 1
    assert done == ["check -1", "check 1"]
