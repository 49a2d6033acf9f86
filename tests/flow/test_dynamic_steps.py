"""`pgflow.call`: a step that is named where it is called, whose body is whatever is at hand there;
and what a helper asks to know where it is.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import servers
from records import SOON, calling, events, eventually, launch, result_of, settle, steps

import pgflow
from pgflow import App, InvalidArgument, Retries, RunFailed, Signal, step, workflow
from pgflow.errors import NotStorable, WrongColourError

AT_ONCE = timedelta(milliseconds=1)
go = Signal("go", int)


@dataclass(frozen=True)
class Reply:
    text: str
    tokens: int


class Model:
    """Model as an adapter gets it: an object that knows how to ask."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, prompt: str) -> Reply:
        self.asked.append(prompt)
        return Reply(prompt.upper(), len(prompt))

    def ask_sync(self, prompt: str) -> Reply:
        self.asked.append(prompt)
        return Reply(prompt.upper(), len(prompt))

    async def __call__(self, prompt: str) -> Reply:
        return await self.ask(prompt)


@pytest.mark.full
async def test_a_closure_is_recorded_under_its_name_and_not_run_again_by_a_replay(aflow, conn):
    model = Model()

    @workflow
    async def agent(prompt: str) -> list[Any]:
        async def unit() -> Reply:
            return await model.ask(prompt)

        reply = await pgflow.call("model", unit)
        await go.wait()
        return [reply.text, reply.tokens]

    run = await settle(aflow, agent, "hello")
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == ["HELLO", 5]
    assert model.asked == ["hello"]
    assert steps(conn, run.key) == [("model", "completed", 1)]


@pytest.mark.full
def test_a_sync_workflow_calls_closures_of_either_colour(flow, conn):
    model = Model()

    @workflow
    def agent(prompt: str) -> list[str]:
        first = pgflow.sync.call("model", model.ask, prompt)
        second = pgflow.sync.call("model", model.ask_sync, first.text)
        go.sync.wait()
        return [first.text, second.text]

    run = settle(flow, agent, "hello")
    flow.crash()
    run.send(go, 1)
    flow.until_idle()
    assert run.result(SOON) == ["HELLO", "HELLO"]
    assert model.asked == ["hello", "HELLO"]
    assert steps(conn, run.key) == [("model", "completed", 1), ("model", "completed", 1)]


async def test_whatever_can_be_called_is_a_body(aflow):
    model = Model()

    @workflow
    async def agent() -> list[str]:
        replies = [
            await pgflow.call("method", model.ask, "a"),
            await pgflow.call("def", model.ask_sync, "b"),
            await pgflow.call("partial", partial(model.ask, "c")),
            await pgflow.call("object", model, "d"),
            await pgflow.call("lambda", lambda: model.ask("e"), returns=Reply),
            await pgflow.call("builtin", len, [1, 2, 3]),
        ]
        return [f"{reply.text}" if isinstance(reply, Reply) else repr(reply) for reply in replies]

    assert await result_of(aflow, agent) == ["A", "B", "C", "D", "E", "3"]


async def test_the_result_is_read_back_as_returns_says_or_as_the_closure_is_annotated(aflow):
    @workflow
    async def agent() -> list[str]:
        async def unannotated():  # type: ignore[no-untyped-def]
            return Reply("x", 1)

        async def annotated() -> Reply:
            return Reply("x", 1)

        with pytest.raises(NotStorable, match="it is a Reply and would come back as a dict"):
            await pgflow.call("a", unannotated)
        typed = await pgflow.call("b", unannotated, returns=Reply)
        by_itself = await pgflow.call("c", annotated)
        return [type(value).__name__ for value in (typed, by_itself)]

    assert await result_of(aflow, agent) == ["Reply", "Reply"]


async def test_retries_time_out_and_final_errors_are_those_of_a_step(aflow, conn):
    tries: list[str] = []

    class Refused(Exception): ...

    async def shaky() -> int:
        tries.append("shaky")
        if tries.count("shaky") < 3:
            raise ConnectionError("again")
        return 1

    async def refuses() -> int:
        tries.append("refuses")
        raise Refused("no")

    async def hangs() -> int:
        await asyncio.Event().wait()
        return 1

    @workflow
    async def agent() -> list[str]:
        said = [str(await pgflow.call("shaky", shaky, retries=Retries(5, first_delay=AT_ONCE)))]
        try:
            await pgflow.call("refuses", refuses, retries=5, raises=[Refused])
        except Refused as error:
            said.append(f"refused: {error}")
        try:
            await pgflow.call("hangs", hangs, retries=1, timeout=timedelta(milliseconds=20))
        except TimeoutError:
            said.append("late")
        return said

    run = await launch(aflow, agent)
    assert await run.result(SOON) == ["1", "refused: no", "late"]
    assert tries == ["shaky"] * 3 + ["refuses"]
    found = steps(conn, run.key)
    assert found == [("shaky", "completed", 3), ("refuses", "failed", 1), ("hangs", "failed", 1)]


async def test_a_lambda_that_makes_a_coroutine_keeps_to_its_time_out(aflow):
    async def hangs() -> int:
        await asyncio.Event().wait()
        return 1

    @workflow
    async def agent() -> str:
        try:
            return str(await pgflow.call("hangs", lambda: hangs(), retries=1, timeout=0.02))
        except TimeoutError:
            return "late"

    assert await result_of(aflow, agent) == "late"


async def test_every_try_has_the_same_key_and_every_call_of_a_name_another(aflow):
    keys: list[str] = []

    async def shaky() -> None:
        keys.append(pgflow.idempotency_key())
        if len(keys) == 1:
            raise ConnectionError("again")

    @workflow
    async def agent() -> None:
        await pgflow.call("model", shaky, retries=Retries(2, first_delay=AT_ONCE))
        await pgflow.call("model", shaky)

    await result_of(aflow, agent)
    assert [key.partition("/")[2] for key in keys] == ["model/1", "model/1", "model/2"]


async def test_arguments_that_are_passed_are_compared_when_a_body_may_have_begun(aflow, conn):
    """A closure's values cannot be compared; passed arguments can."""
    began = asyncio.Event()
    given = ["first"]

    async def hangs(prompt: str) -> None:
        began.set()
        await asyncio.Event().wait()

    @workflow
    async def agent() -> None:
        await pgflow.call("model", hangs, given[0])

    run = await launch(aflow, agent)
    await began.wait()
    await aflow.crash()
    given[0] = "second"
    await aflow.until_idle()
    assert await run.status() == "stuck"
    (why,) = conn.execute(
        "select error->>'message' from pgflow.runs where key = %s", (run.key,)
    ).fetchone()
    assert "other arguments" in why


async def test_a_call_that_is_cancelled_is_given_up_as_a_step_is(aflow, conn):
    async def hangs() -> None:
        await asyncio.Event().wait()

    @workflow
    async def agent() -> str:
        try:
            async with asyncio.timeout(0.01):
                await pgflow.call("model", hangs)
        except TimeoutError:
            return "given up"
        return ""

    run = await launch(aflow, agent)
    assert await run.result(SOON) == "given up"
    assert ("step_abandoned", "model") in events(conn, run.key)


def test_outside_a_workflow_the_closure_is_simply_called():
    model = Model()

    async def code() -> str:
        replies = [
            await pgflow.call("model", model.ask, "a"),
            await pgflow.call("model", model.ask_sync, "b"),
            await pgflow.call("model", lambda: model.ask("c")),
            await pgflow.call("model", model, "d"),
        ]
        return "".join(reply.text for reply in replies)

    assert asyncio.run(code()) == "ABCD"


def test_outside_a_workflow_sync_code_calls_closures_of_either_colour():
    model = Model()
    assert pgflow.sync.call("model", model.ask_sync, "a").text == "A"
    assert pgflow.sync.call("model", model.ask, "b").text == "B"
    assert pgflow.sync.call("model", lambda: model.ask("c")).text == "C"


async def test_in_the_body_of_a_step_the_closure_is_part_of_that_step(aflow, conn):
    @step
    async def outer() -> str:
        async def inner() -> str:
            return pgflow.run_info().step or ""

        return await pgflow.call("inner", inner)

    run = await launch(aflow, calling(outer))
    assert await run.result(SOON) == "outer"
    assert steps(conn, run.key) == [("outer", "completed", 1)]


async def test_the_wrong_colour_is_told_its_twin(aflow):
    @workflow
    def agent() -> str:
        try:
            pgflow.call("x", len, [])
        except WrongColourError as error:
            return str(error)
        return ""

    @workflow
    async def async_agent() -> str:
        try:
            pgflow.sync.call("x", len, [])
        except WrongColourError as error:
            return str(error)
        return ""

    assert "pgflow.sync.call()" in await result_of(aflow, agent, beside=[async_agent])
    assert "await pgflow.call()" in await (await aflow.start(async_agent)).result(SOON)


@pytest.mark.parametrize(("name", "says"), [("", "name"), (7, "name"), ("x", "can be called")])
def test_what_cannot_be_a_step_is_refused_at_the_call(name, says):
    with pytest.raises(InvalidArgument, match=says):
        pgflow.call(name, "not a function" if name == "x" else len, [])


async def test_what_the_result_cannot_be_stored_as_fails_the_step(aflow):
    @workflow
    async def agent() -> None:
        await pgflow.call("lock", threading.Lock, retries=1)

    with pytest.raises(RunFailed, match="the result of step lock cannot be stored as JSON"):
        await result_of(aflow, agent)


async def test_in_workflow_tells_workflow_code_from_everything_else(aflow):
    seen: dict[str, bool] = {}

    @step
    async def body() -> None:
        seen["step"] = pgflow.in_workflow()
        seen["thread of a step"] = await asyncio.to_thread(pgflow.in_workflow)

    async def helper() -> bool:
        return pgflow.in_workflow()

    @workflow
    async def asks() -> list[bool]:
        await body()
        return [pgflow.in_workflow(), await asyncio.create_task(helper())]

    @workflow
    def asks_sync() -> bool:
        return pgflow.in_workflow()

    assert await result_of(aflow, asks, beside=[asks_sync]) == [True, True]
    assert await (await aflow.start(asks_sync)).result(SOON) is True
    assert seen == {"step": False, "thread of a step": False}
    assert not pgflow.in_workflow()


def test_in_workflow_is_false_where_there_is_an_app_and_no_run(dsn):
    with App(dsn):
        assert not pgflow.in_workflow()


@pytest.mark.full
async def test_inside_inline_what_is_handed_to_a_thread_is_code_of_the_workflow(aflow):
    seen: list[bool] = []

    def helper(n: int) -> int:
        seen.append(pgflow.in_workflow())
        if n < 0:
            raise LookupError(str(n))
        return n + 1

    @workflow
    async def agent() -> list[Any]:
        said: list[Any] = []
        with pgflow.inline():
            said.append(await asyncio.to_thread(helper, 1))
            said.append(await asyncio.get_running_loop().run_in_executor(None, helper, 2))
            said.append(await asyncio.create_task(asyncio.to_thread(helper, 3)))
            for fails in (lambda: helper(-1), lambda: next(iter([]))):
                try:
                    await asyncio.to_thread(fails)
                except Exception as error:
                    said.append(type(error).__name__)
        try:
            await asyncio.to_thread(helper, 4)
        except pgflow.errors.NotInWorkflowError:
            said.append("refused")
        await go.wait()
        return said

    run = await settle(aflow, agent)
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == [2, 3, 4, "LookupError", "RuntimeError", "refused"]
    assert seen
    assert all(seen)


def test_outside_of_workflows_inline_changes_nothing():
    async def main() -> bool:
        with pgflow.inline():
            return await asyncio.to_thread(threading.get_ident) != threading.get_ident()

    assert asyncio.run(main())


async def test_bodies_of_steps_have_threads_inside_inline_too(aflow):
    @step
    async def body() -> bool:
        return await asyncio.to_thread(threading.get_ident) != threading.get_ident()

    @workflow
    async def agent() -> bool:
        with pgflow.inline():
            return await body()

    assert await result_of(aflow, agent) is True


async def test_a_coroutine_that_comes_after_the_time_out_is_closed(aflow):
    given_up, made = threading.Event(), []

    async def body() -> int:
        return 1

    def late() -> Any:
        assert given_up.wait(servers.HANG_SECONDS)
        made.append(body())
        return made[0]

    @workflow
    async def agent() -> str:
        try:
            return str(await pgflow.call("late", late, retries=1, timeout=0.02))
        except TimeoutError:
            return "late"

    assert await result_of(aflow, agent) == "late"
    given_up.set()
    await eventually(
        lambda: made and inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED, "it is closed"
    )
