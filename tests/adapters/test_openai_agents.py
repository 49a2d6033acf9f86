"""Agents of the OpenAI SDK: requests to models and function tools are steps, by an adapter of
twenty lines.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from records import SOON, settle, steps

import pgflow

pytest.importorskip("agents", reason="openai-agents is not installed: pip install -e '.[adapters]'")

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)  # noqa: E402
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)  # noqa: E402

set_tracing_disabled(True)

go = pgflow.Signal("go", int)
called: list[str] = []


class StepModel(Model):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        async def unit() -> ModelResponse:
            return await self.inner.get_response(*args, **options)

        return await pgflow.call("model", unit, retries=5)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def durable(agent: Agent) -> Agent:
    return agent.clone(
        model=StepModel(agent.model),
        tools=[as_step(tool) for tool in agent.tools],
        handoffs=[durable(other) for other in agent.handoffs],
    )


def as_step(tool: Any) -> Any:
    if not isinstance(tool, FunctionTool):
        return tool

    async def invoke(context: Any, text: str) -> Any:
        return await pgflow.call(f"tool:{tool.name}", lambda: tool.on_invoke_tool(context, text))

    return dataclasses.replace(tool, on_invoke_tool=invoke)


class Scripted(Model):
    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        *args: Any,
        **options: Any,
    ) -> ModelResponse:
        called.append("model")
        if isinstance(input, str) or not any(
            item.get("type") == "function_call_output" for item in input
        ):
            output: list[Any] = [
                ResponseFunctionToolCall(
                    arguments=f'{{"city":"{city}"}}', call_id=city, name=name, type="function_call"
                )
                for city, name in (("A", "weather"), ("B", "weather"), ("C", "weather_sync"))
            ]
        else:
            text = ResponseOutputText(annotations=[], text="sunny", type="output_text")
            output = [
                ResponseOutputMessage(
                    id="m", role="assistant", status="completed", type="message", content=[text]
                )
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


@function_tool
async def weather(city: str) -> str:
    called.append(f"tool {city}")
    await asyncio.sleep(0)
    return f"sun in {city}"


@function_tool
def weather_sync(city: str) -> str:
    called.append(f"tool {city}")
    return f"sun in {city}"


agent = Agent(name="w", model=Scripted(), tools=[weather, weather_sync])


@pgflow.workflow
async def ask(question: str) -> str:
    result = await Runner.run(durable(agent), question)
    await go.wait()
    return result.final_output


async def test_a_replayed_agent_asks_no_model_and_no_tool_again(aflow, conn):
    called.clear()
    run = await settle(aflow, ask, "hi")
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == "sunny"
    assert sorted(called) == ["model", "model", "tool A", "tool B", "tool C"]
    names = [name for name, _, _ in steps(conn, run.key)]
    assert sorted(names) == ["model", "model", "tool:weather", "tool:weather", "tool:weather_sync"]
