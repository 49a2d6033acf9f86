"""The body of a step is refused all that a replay would not hear; code of a workflow is not."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest
from looks import Looks, refusal
from records import SOON, eventually, launch
from scripted import call, durable, echo

import pgflow

from pydantic_ai import (  # isort: skip
    CancellationToken,
    FunctionToolset,
    ModelRetry,
    RunContext,
    Tool,
)
from pydantic_ai._run_context import get_current_run_context  # isort: skip
from pydantic_ai.capabilities import Capability, DynamicCapability  # isort: skip
from pydantic_ai.exceptions import RunCancelled, UnexpectedModelBehavior, UserError  # isort: skip
from pydantic_ai.messages import ModelResponse, TextPart  # isort: skip
from pydantic_ai.models.function import FunctionModel  # isort: skip
from pydantic_ai.models.test import TestModel  # isort: skip
from pydantic_ai.realtime import RealtimeModel, RealtimeModelProfile  # isort: skip
from pydantic_ai.toolsets import DynamicToolset  # isort: skip

looks = Looks()
refusals: list[str] = []
calls: list[str] = []


def enqueue(ctx: Any) -> str:
    """Say more to the agent, as only the code of a workflow may."""
    try:
        ctx.enqueue("more")
    except UserError as refused:
        return str(refused)
    return "enqueued"


def asks(ctx: RunContext[Any]) -> str:
    return enqueue(ctx)


def cancel(ctx: RunContext[Any]) -> str:
    ctx.cancel()
    return "cancelled"


def choose(ctx: RunContext[Any]) -> FunctionToolset[Any]:
    refusals.append(f"chosen {enqueue(ctx)}")
    return FunctionToolset([asks, cancel, again])


async def again() -> str:
    calls.append("again")
    raise ModelRetry("once more")


class Ambient(TestModel):
    """A model that looks at the run around it."""

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        refusals.append(f"asked {enqueue(get_current_run_context())}")
        return await super().request(*args, **kwargs)


async def watch(ctx: Any, events: Any) -> None:
    async for _ in events:
        refusals.append(f"watched {enqueue(ctx)}")
        refusals.append(f"around {enqueue(get_current_run_context())}")


dynamic = DynamicToolset(choose, id="d")
LOST = "enqueued messages would be dropped"
guarded = {
    name: durable(
        call(name),
        echo,
        name=name,
        tools=[asks] if name == "asks" else [],
        toolsets=[] if name == "asks" else [dynamic],
    )
    for name in ("asks", "cancel")
}
guarded["dynamic"] = durable(call("asks"), echo, name="dynamic", toolsets=[dynamic])
guarded["capable"] = durable(call("asks"), echo, name="capable", more=[
    DynamicCapability(lambda ctx: Capability(tools=[asks]), id="c")])  # fmt: skip
ambient = durable(Ambient(), name="ambient")
watched = durable(TestModel(call_tools=["look"]), name="watched", event_stream_handler=watch,
                  tools=[Tool(lambda: "x", name="look")])  # fmt: skip


@looks(LOST)
async def words_of_a_tool() -> str:
    return (await guarded["asks"].run("hi")).output


@looks(LOST)
async def words_of_a_dynamic_tool() -> str:
    return (await guarded["dynamic"].run("hi")).output


@looks(LOST)
async def words_of_a_tool_of_a_dynamic_capability() -> str:
    return (await guarded["capable"].run("hi")).output


@looks("cancellation would silently not happen again")
async def a_cancel_in_a_step() -> str:
    return await refusal(guarded["cancel"].run("hi"))


@looks("done")
async def words_in_a_model_and_a_handler() -> str:
    await ambient.run("hi")
    await watched.run("hi")
    return "done"


cancels = durable(
    call("cancel"), echo, name="cancels", tools=[Tool(cancel, metadata={"pgflow": False})]
)


@looks("RunCancelled")
async def a_cancel_in_code_of_the_workflow() -> str:
    try:
        return (await cancels.run("hi")).output
    except RunCancelled as cancelled:
        return type(cancelled).__name__


@looks("`cancellation_token` cannot be used with pgflow")
async def a_token_of_this_process() -> str:
    return await refusal(guarded["asks"].run("hi", cancellation_token=CancellationToken()))


persistent = durable(*[call("again")] * 4, name="persistent", retries=2, toolsets=[dynamic])


@looks("exceeded max retries count of 2")
async def a_retry_of_a_dynamic_tool() -> str:
    try:
        return (await persistent.run("hi")).output
    except UnexpectedModelBehavior as error:
        return str(error)


async def hang(*_: Any) -> Any:
    calls.append("hangs")
    await asyncio.Event().wait()


async def hang_in_stream(*_: Any) -> Any:
    await hang()
    yield "?"


async def swallow(*_: Any) -> Any:
    try:
        await hang()
    except asyncio.CancelledError:
        calls.append("swallowed")
    return ModelResponse(parts=[TextPart("too late")])


async def ignore(ctx: Any, events: Any) -> None:
    async for _ in events:
        pass


hanging = [
    durable(FunctionModel(hang, model_name="m"), name="hanging"),
    durable(FunctionModel(stream_function=hang_in_stream, model_name="m"), name="hanging_in_stream",
            event_stream_handler=ignore),
]  # fmt: skip
swallowing = durable(FunctionModel(swallow, model_name="m"), name="swallowing")


@looks(["timed out"] * 2)
async def a_time_out_of_asyncio() -> list[str]:
    seen = []
    for agent in hanging:
        try:
            seen.append((await asyncio.wait_for(agent.run("hi"), timeout=0.01)).output)
        except TimeoutError:
            seen.append("timed out")
    return seen


@looks("workflow code cannot use running a loop (run_until_complete)")
async def run_sync_in_an_async_workflow() -> str:
    try:
        return str(guarded["asks"].run_sync("hi").output)
    except pgflow.errors.NotInWorkflowError as error:
        return str(error)


@looks("late")
async def an_agent_that_the_workflow_makes() -> str:
    return (await durable("late", name="made_late").run("hi")).output


class Talking(RealtimeModel):
    """A model of speech, whose connection nobody should ask for."""

    model_name = "talks"
    system = "test"
    profile = RealtimeModelProfile(supports_session_seeding=True)

    @asynccontextmanager
    async def connect(self, **_: Any) -> Any:
        calls.append("connected")
        yield None


async def talk() -> str:
    async with guarded["asks"].realtime(Talking()).session() as session:
        return str([event async for event in session])


@looks("cannot be used in a workflow")
async def a_realtime_session() -> str:
    return await refusal(talk())


async def test_bodies_of_steps_say_nothing_that_a_replay_would_not_hear(aflow):
    refusals.clear()
    calls.clear()
    assert "\n".join(await looks.hold(aflow)) == ""
    assert {refused.split()[0] for refused in refusals} == {"chosen", "asked", "watched", "around"}
    assert all(LOST in refused for refused in refusals)
    assert calls.count("again") == 3


@pgflow.workflow
async def swallow_a_cancel() -> str:
    return str((await swallowing.run("hi")).output)


async def test_a_body_that_swallows_its_cancel_does_not_save_the_run(aflow):
    calls.clear()
    run = await launch(aflow, swallow_a_cancel)
    await eventually(lambda: calls == ["hangs"], "the model is asked")
    await run.cancel()
    with pytest.raises(pgflow.RunCancelled):
        await run.result(SOON)
    assert calls == ["hangs", "swallowed"]
