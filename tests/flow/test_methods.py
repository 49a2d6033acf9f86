"""Steps that are methods get their instance as in Python; what cannot work is refused where it is
declared.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import pytest
from records import SOON, launch, result_of, steps

import pgflow
from pgflow import read, step, transaction, workflow
from pgflow._flow.relays import Relay
from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.errors import DefinitionError, InvalidArgument, StepFailed


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


async def test_steps_may_be_methods(aflow, conn):
    run = await launch(aflow, mailing)
    assert await run.result(SOON) == RIGHT
    assert len(steps(conn, run.key)) == len(RIGHT) - 1  # a decision is listed elsewhere


async def test_a_method_is_replaced_for_all_instances_in_a_test(aflow):
    async def fake(to: str, times: int = 1) -> str:
        return f"fake {to}"

    aflow.replace(Mailer.send, fake)
    assert (await result_of(aflow, mailing))[:3] == ["fake x", "fake x", "fake y"]


class Counter:
    @step
    def count(self, n: int) -> int:
        return n + 1


@workflow
def counting() -> int:
    return Counter().count(1)


def test_so_they_may_in_sync_code_and_outside_of_workflows(flow):
    assert result_of(flow, counting) == 2
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


def counting_up() -> Iterator[int]:
    yield 1


async def counting_down() -> AsyncIterator[int]:
    yield 1


async def nothing() -> int:
    return 1


@effect(risk="irreversible")
async def paying() -> None:
    """Pay for something."""


NOTHING = nothing()
NOTHING.close()


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
        (counting_up, "counting_up is a generator: return a list"),
        (counting_down, "counting_down is a generator: return a list"),
        (outside, "declared above <AsyncStep outside>: declare a function once"),
        (paying, "declared above <AsyncEffect paying>: declare a function once"),
        (mailing, "declared above <Workflow mailing>: declare a function once"),
        (NOTHING, "takes a function, not <coroutine"),
        (functools, "takes a function, not <module"),
        (mock.AsyncMock(), "takes a function, not <AsyncMock"),
    ],
    ids=[
        *("partial", "callable object", "class", "classmethod below", "staticmethod below"),
        *("generator", "async generator", "step", "effect", "workflow", "coroutine", "module"),
        "mock",
    ],
)
def test_what_is_no_function_is_refused_where_it_is_declared(kind, thing, says):
    with pytest.raises(DefinitionError, match=says):
        kind(thing)


@pytest.mark.parametrize(
    "raises", [ValueError, ["ValueError"], [BaseException], [1], [ValueError()]]
)
@pytest.mark.parametrize("kind", [step, workflow, partial(effect, risk="reversible")])
def test_what_is_no_class_of_errors_is_refused_where_it_is_declared(kind, raises):
    with pytest.raises(DefinitionError, match=r"raises of .* must be a sequence of classes of Exc"):
        kind(raises=raises)(nothing)


def test_the_errors_of_an_app_are_classes_of_errors():
    with pytest.raises(DefinitionError, match="errors of an app must be a sequence of classes"):
        pgflow.App("host=nowhere", errors=ValueError)  # type: ignore[arg-type]


@pytest.mark.parametrize("retries", ["3", True, 2.5, 0, None])
def test_retries_are_a_number_or_retries(retries):
    for declare in (
        lambda: step(retries=retries)(nothing),
        lambda: effect(risk="reversible", settle_retries=retries)(nothing),
        lambda: Relay("r", ["t"], to=mailing, retries=retries),
    ):
        with pytest.raises(InvalidArgument, match=r"etries of .* must be at least 1"):
            declare()


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(DefinitionError, match="name of step 5 must be a text"):
        step(name=5)(nothing)  # type: ignore[call-overload]


class Odd(Exception):
    """Its code for unknown attributes fails, as that of a wrapper without its content does."""

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["data"][name]


class Quoting(Exception):
    """Its `orig` is a text, and not what a library has wrapped."""

    orig = "what it was before"


@workflow
async def catching(name: str) -> str:
    try:
        await failing(name)
    except StepFailed as error:
        return error.error_type
    return "nothing"


@step(retries=1)
async def failing(name: str) -> None:
    raise {"Odd": Odd, "Quoting": Quoting}[name]("x")


@pytest.mark.parametrize("name", ["Odd", "Quoting"])
async def test_an_error_with_odd_attributes_is_an_outcome_all_the_same(aflow, name):
    assert await result_of(aflow, catching, name) == f"test_methods.{name}"


@pytest.mark.parametrize("kind", [transaction, workflow, effect(risk="reversible")])
def test_a_method_is_refused_where_no_instance_may_be_there(kind):
    with pytest.raises(DefinitionError, match=r"Till\.method is a method, and .* cannot be one"):
        kind(method)


async def test_a_function_made_by_a_partial_is_called_by_name(aflow):
    @workflow
    async def code() -> int:
        return await pgflow.call("add", functools.partial(add, 1), 2)

    assert await result_of(aflow, code) == 3
