"""Steps that are methods get their instance as in Python; what cannot work is refused where it is
declared.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from records import SOON, steps

import pgflow
from pgflow import read, step, transaction, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.errors import DefinitionError

if TYPE_CHECKING:
    import psycopg

    from pgflow.testing import AsyncHarness, Harness


class Base:
    prefix = "base"

    @step
    async def inherited(self, to: str) -> str:
        return f"{self.prefix}:{to}"


@step
async def outside(n: int) -> int:
    """A step that a class only knows."""
    return n


@dataclass
class Mailer(Base):
    prefix: str
    known = outside

    @step
    async def send(self, to: str, /, times: int = 1) -> str:
        return f"{self.prefix}:{to}" * times

    @read
    def look(self, n: int) -> list[Any]:
        return [self.prefix, n]

    @decision
    async def pick(self, names: list[str]) -> Choice[str]:
        return Choice(f"{self.prefix}:{names[0]}", why="the first")

    @classmethod
    @step
    async def ping(cls, n: int) -> str:
        return f"{cls.__name__}:{n}"

    @staticmethod
    @step
    async def pong(n: int) -> int:
        return n


ANN, BOB = Mailer("ann"), Mailer("bob")


@workflow
async def mailing() -> list[Any]:
    return [
        await ANN.send("x"),
        await BOB.send("x", times=2),
        await BOB.send.options(retries=1)("y"),
        await ANN.look.aio(3),
        (await BOB.pick(["a"])).value,
        await Mailer.ping(4),
        await ANN.ping(5),
        await Mailer.pong(6),
        await BOB.pong(7),
        await ANN.inherited("z"),
        await ANN.known(8),
    ]


RIGHT = [
    "ann:x", "bob:xbob:x", "bob:y", ["ann", 3], "bob:a", "Mailer:4", "Mailer:5", 6, 7, "ann:z", 8,
]  # fmt: skip


async def test_steps_may_be_methods(aflow: AsyncHarness, conn: psycopg.Connection[Any]) -> None:
    aflow.include(mailing)
    run = await aflow.start(mailing)
    assert await run.result(SOON) == RIGHT
    assert len(steps(conn, run.key)) == len(RIGHT) - 1  # a decision is listed elsewhere


async def test_a_method_is_replaced_for_all_instances_in_a_test(aflow: AsyncHarness) -> None:
    async def fake(to: str, times: int = 1) -> str:
        return f"fake {to}"

    aflow.replace(Mailer.send, fake)
    aflow.include(mailing)
    assert (await (await aflow.start(mailing)).result(SOON))[:3] == ["fake x", "fake x", "fake y"]


class Counter:
    @step
    def count(self, n: int) -> int:
        return n + 1


@workflow
def counting() -> int:
    return Counter().count(1)


def test_so_they_may_in_sync_code_and_outside_of_workflows(flow: Harness) -> None:
    flow.include(counting)
    assert flow.start(counting).result(SOON) == 2
    assert Counter().count(1) == 2
    assert Mailer.known is outside


class Caller:
    def __call__(self, n: int) -> int:
        return n


def add(a: int, b: int) -> int:
    return a + b


async def method(self: Any, n: int) -> int:
    return n


method.__qualname__ = "Till.method"


@pytest.mark.parametrize(
    "kind", [step, read, decision, transaction, workflow, effect(risk="reversible")]
)
@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (functools.partial(add, 1), "takes a function, not functools.partial.*write a def"),
        (Caller(), "takes a function, not <.*Caller object"),
        (Caller, "takes a function, not <class"),
        (classmethod(add), "write @classmethod first"),
        (staticmethod(add), "write @staticmethod first"),
    ],
    ids=["partial", "callable object", "class", "classmethod below", "staticmethod below"],
)
def test_what_is_no_function_is_refused_where_it_is_declared(
    kind: Any, thing: Any, says: str
) -> None:
    with pytest.raises(DefinitionError, match=says):
        kind(thing)


@pytest.mark.parametrize("kind", [transaction, workflow, effect(risk="reversible")])
def test_a_method_is_refused_where_no_instance_may_be_there(kind: Any) -> None:
    with pytest.raises(DefinitionError, match=r"Till\.method is a method, and .* cannot be one"):
        kind(method)


async def test_a_function_made_by_a_partial_is_called_by_name(aflow: AsyncHarness) -> None:
    @workflow
    async def code() -> int:
        return await pgflow.call("add", functools.partial(add, 1), 2)

    aflow.include(code)
    assert await (await aflow.start(code)).result(SOON) == 3
