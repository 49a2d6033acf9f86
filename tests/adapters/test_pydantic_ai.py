"""An agent of pydantic-ai goes on where it was when its worker is killed, whatever it was doing."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from records import SOON, eventually, launch

import pgflow

pytest.importorskip(
    "pydantic_ai", reason="pydantic-ai is not installed: pip install -e '.[adapters]'"
)
pytest.importorskip(
    "pydantic_ai.durable_exec", reason="this pydantic-ai has no protocol for durable execution"
)

from pydantic_ai import Agent  # noqa: E402
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart  # noqa: E402
from pydantic_ai.models.function import FunctionModel  # noqa: E402

from pgflow.agent.pydantic_ai import PgflowDurability  # noqa: E402

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="unset")
called: list[str] = []
saw: list[str] = []
stop_at: list[int] = []


async def unit(name: str) -> None:
    called.append(name)
    saw.append(tenant.get())
    if stop_at == [len(called)]:
        await asyncio.Event().wait()


async def answer_as_model(messages: Any, info: Any) -> ModelResponse:
    n = sum(isinstance(message, ModelResponse) for message in messages)
    await unit(f"model{n}")
    if n < 2:
        return ModelResponse(
            parts=[ToolCallPart("lookup", {"k": n}), ToolCallPart("lookup", {"k": 10 + n})]
        )
    return ModelResponse(parts=[TextPart(f"done after {n}")])


agent = Agent(FunctionModel(answer_as_model), name="a1", capabilities=[PgflowDurability()])


@agent.tool_plain
async def lookup(k: int) -> str:
    await unit(f"tool{k}")
    return f"v{k}"


@pgflow.workflow
async def answer(question: str) -> str:
    tenant.set("of the workflow")
    return (await agent.run(question)).output


@pytest.mark.parametrize("at", [1, 2, 5, 7])
async def test_a_killed_agent_repeats_only_what_was_under_way(aflow, at):
    called.clear()
    saw.clear()
    stop_at[:] = [at]
    run = await launch(aflow, answer, "hi")
    await eventually(lambda: len(called) >= at, "the unit has begun")
    await aflow.crash()
    stop_at.clear()
    await aflow.until_idle()
    assert await run.result(SOON) == "done after 2"
    assert set(called) == {"model0", "tool0", "tool10", "model1", "tool1", "tool11", "model2"}
    assert 8 <= len(called) <= 10  # of two tools at once, both may not have been committed
    assert set(saw) == {"of the workflow"}


def test_outside_of_runs_the_agent_is_as_it_was():
    called.clear()
    stop_at.clear()
    assert asyncio.run(agent.run("hi")).output == "done after 2"
    assert len(called) == 7
