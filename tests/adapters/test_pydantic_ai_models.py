"""Requests of an agent to models are decisions of the run: recorded once, with reasons and cost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from records import settle
from scripted import asked, call, durable, echo, model, raising, rows_of, run_id_of, steps_of

import pgflow
from pgflow.agent.pydantic_ai import PgflowDurability
from pgflow.authority import Admit, Pool
from pgflow.errors import BudgetExceeded
from pgflow.inspect import ask_async, list_budgets, list_charges, list_decisions

from pydantic_ai import Agent, ModelRetry, RunContext, ToolOutput, UsageLimits  # isort: skip
from pydantic_ai.exceptions import (  # isort: skip
    ModelAuthenticationError,
    ModelHTTPError,
    RunTimedOut,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel  # isort: skip
from pydantic_ai.models.test import TestModel  # isort: skip


@dataclass
class Deps:
    user: str


def who(ctx: RunContext[Deps]) -> str:
    return f"for {ctx.deps.user}"


priced = durable(
    call("who"), echo, name="priced", tools=[who], deps_type=Deps,
    price=lambda response: Decimal("0.25"), model={"admit": Admit(usd=Decimal("0.25"))},
)  # fmt: skip


@pgflow.workflow
async def answer_priced(user: str) -> list[str]:
    outputs = []
    try:
        for n in range(2):  # two runs of one agent, and all of another, in one workflow
            outputs.append((await priced.run(f"{n}", deps=Deps(user))).output)
        outputs.append((await priced.run("2", deps=Deps(user))).output)
    except BudgetExceeded as refused:
        outputs.append(refused.reason)
    return outputs


async def test_each_request_is_a_decision_that_its_pool_admits_and_its_tools_rest_on(aflow):
    aflow(pools=[Pool("lab", usd=1)]).include(answer_priced)
    run = await aflow.start(answer_priced.options(pool="lab"), "ann")
    assert await run.result() == ["for ann", "for ann", "used_up"]
    run_id = await run_id_of(aflow, run)
    decisions = list(await ask_async(aflow.app, list_decisions(run_id)))
    assert [d.name for d in decisions] == ["priced__model.request"] * 4
    assert [d.why for d in decisions[:2]] == ["call:who", "answer"]
    assert decisions[0].model == "small-1"
    assert decisions[0].usage["usd"] == "0.25"
    assert decisions[0].usage["tokens"] > 0
    prompts = [d.evidence[0] for d in decisions]
    assert len(set(prompts)) == 4
    assert prompts[0].startswith("prompt:sha256:")
    charges = list(await ask_async(aflow.app, list_charges(run_id)))
    assert [(c.model, c.amounts["usd"]) for c in charges] == [("small-1", Decimal("0.25"))] * 4
    spent = {
        (row.pool, row.unit): row.charged for row in await ask_async(aflow.app, list_budgets())
    }
    assert spent["lab", "usd"] == 1
    tool = next(row for row in await rows_of(aflow, run) if row.step.endswith("call_tool:who"))
    assert tool.idempotency_key.startswith(decisions[0].decision + "/")


overloaded = [ModelHTTPError(503, "small-1", "busy")]


def busy_once(*_: Any) -> str:
    if overloaded:
        raise overloaded.pop()
    return "at last"


agents = {
    "busy": durable(busy_once, name="busy", model={"retries": pgflow.Retries(2, first_delay=0)}),
    "refused": durable(raising(ModelHTTPError(422, "small-1", "no")), name="refused"),
    "keyless": durable(raising(ModelHTTPError.for_category(
        ModelAuthenticationError, status_code=401, model_name="small-1", body="no key")), name="keyless"),
    "unsure": durable(call("nobody"), call("nobody"), call("nobody"), "?", name="unsure"),
    "limited": durable("x", name="limited"),
    "other": durable("default", name="other", models={"big": model("big!", name="big")}),
    "typed": Agent(
        TestModel(custom_output_args={"user": "ann"}), name="typed", output_type=ToolOutput(Deps),
        capabilities=[PgflowDurability()],
    ),
}  # fmt: skip


@pgflow.workflow
async def answer(agent: str, options: dict[str, Any] | None = None) -> str:
    return str((await agents[agent].run("hi", **(options or {}))).output)


@pgflow.workflow
async def answer_foreign() -> str:
    return str((await agents["other"].run("hi", model=model("?", name="foreign"))).output)


@pgflow.workflow
async def answer_limited() -> str:
    try:
        await agents["limited"].run("hi", usage_limits=UsageLimits(request_limit=0))
    except UsageLimitExceeded as error:
        return type(error).__name__
    return "?"


@pgflow.workflow
async def name_error(agent: str) -> list[Any]:
    try:
        await agents[agent].run("hi")
    except ModelHTTPError as error:
        return [error.status_code, error.model_name]
    except UnexpectedModelBehavior as error:
        return [str(error)]
    return []


async def test_one_side_retries_and_errors_come_back_as_themselves(aflow):
    aflow.include(answer, name_error, answer_limited, answer_foreign)
    asked.clear()
    assert await (await aflow.start(answer, "busy")).result() == "at last"
    assert len(asked) == 2
    asked.clear()
    assert await (await aflow.start(name_error, "refused")).result() == [422, "small-1"]
    assert await (await aflow.start(name_error, "keyless")).result() == [401, "small-1"]
    assert len(asked) == 2  # each would be refused again
    (error,) = await (await aflow.start(name_error, "unsure")).result()
    assert "nobody" in error
    assert await (await aflow.start(answer_limited)).result() == "UsageLimitExceeded"
    assert await (await aflow.start(answer, "typed")).result() == "Deps(user='ann')"
    asked.clear()
    run = await aflow.start(answer, "other", {"model": "big"})
    assert await run.result() == "big!"
    assert await steps_of(aflow, run) == [("other__model.request.big", "decided")]
    with pytest.raises(pgflow.RunFailed, match="not registered"):
        await (await aflow.start(answer_foreign)).result()


seen: list[str] = []


def in_step() -> bool:
    try:
        return pgflow.run_info().step is not None
    except pgflow.errors.NotInRunError:
        return False


async def watch(ctx: Any, events: Any) -> None:
    async for event in events:
        seen.append(type(event).__name__)
        if in_step():
            pgflow.emit("events", seen[-1])


async def say(messages: Any, info: Any) -> Any:
    if len(messages) == 1:
        yield {0: DeltaToolCall("anybody", "{}")}
    else:
        yield "all "
        yield "done"


def anybody() -> str:
    return "anybody"


streaming = durable(
    FunctionModel(stream_function=say, model_name="streams"), name="streaming",
    tools=[anybody], event_stream_handler=watch,
)  # fmt: skip
streamed: list[str] = []


@pgflow.workflow
async def answer_streaming() -> list[str]:
    result = await streaming.run("hi")
    streamed.clear()
    async with streaming.run_stream("hi") as response:
        streamed.extend([text async for text in response.stream_text(delta=True)])
    async with streaming.iter("hi") as agent_run:
        async for _ in agent_run:
            pass
    return [result.output, "".join(streamed), agent_run.result.output]


@pytest.mark.filterwarnings("ignore:.*run_stream:DeprecationWarning")
async def test_a_handler_gets_events_once_in_the_step_that_streams(aflow):
    aflow.include(answer_streaming)
    seen.clear()
    run = await aflow.start(answer_streaming)
    assert await run.result() == ["all done"] * 3
    first = list(seen)
    assert first.count("FinalResultEvent") >= 3
    assert "streaming__model.request_stream" in dict(await steps_of(aflow, run))
    emitted = [event async for event in run.stream("events")]
    assert emitted.count("PartStartEvent") == 6
    assert seen == first


slow = durable("never", name="slow", models={"waits": model(call("wait_long"), "late")})


@slow.tool_plain(metadata={"pgflow": False})
async def wait_long() -> str:
    await asyncio.sleep(3600)
    return "?"


@pgflow.workflow
async def answer_in_time() -> str:
    with slow.override(model="waits"):
        try:
            return str((await slow.run("hi", timeout=60)).output)
        except RunTimedOut:
            return "timed out"


async def test_the_time_of_an_agents_run_is_the_databases(aflow):
    run = await settle(aflow, answer_in_time)
    await aflow.skip(61)
    assert await run.result() == "timed out"


tries: list[int] = []


def picky(n: int) -> str:
    tries.append(n)
    if n < 2:
        raise ModelRetry("larger")
    return f"took {n}"


in_thread = durable(call("picky", n=1), call("picky", n=2), echo, name="in_thread", tools=[picky])


@pgflow.workflow
def answer_in_thread() -> list[str]:
    return [in_thread.run_sync("hi").output, in_thread.run_sync("hi").output]


async def test_a_def_workflow_runs_agents_too(aflow):
    aflow.include(answer_in_thread)
    tries.clear()
    run = await aflow.start(answer_in_thread)
    assert await run.result() == ["took 2", "took 2"]
    assert tries == [1, 2, 1, 2]
    assert len(await steps_of(aflow, run)) == 10


def test_an_agent_needs_a_name_and_known_options():
    with pytest.raises(UserError, match="unique `name`"):
        Agent(model("x"), capabilities=[PgflowDurability()])
    with pytest.raises(UserError, match="needs to have a `model`"):
        Agent(name="bare", capabilities=[PgflowDurability()])
    with pytest.raises(UserError, match="unknown option 'retry'"):
        PgflowDurability(tool={"retry": 3})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(UserError, match="as_tool"):
        PgflowDurability(tool={"kind": "effect"})  # type: ignore[typeddict-item]
    with pytest.raises(UserError, match="reserved"):
        durable("x", name="n", models={"default": model("y")})


def test_outside_of_workflows_an_agent_keeps_its_own_ways():
    seen.clear()
    assert asyncio.run(streaming.run("hi")).output == "all done"
    assert "FunctionToolResultEvent" in seen
    foreign = model("live", name="foreign")
    assert asyncio.run(agents["other"].run("hi", model=foreign)).output == "live"
