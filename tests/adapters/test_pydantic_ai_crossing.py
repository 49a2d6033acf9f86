"""Values cross into the step of a tool and back, in the first run and in a replay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from looks import Looks, refusal
from scripted import call, durable, echo

from pydantic_ai import (  # isort: skip
    Agent, BinaryImage, DocumentUrl, FunctionToolset, ImageUrl, RunContext, TextContent, Tool, ToolReturn,
)  # fmt: skip
from pydantic_ai.capabilities import Toolset  # isort: skip
from pydantic_ai.messages import ToolReturnPart, UserPromptPart  # isort: skip
from pydantic_ai.models.test import TestModel  # isort: skip
from pydantic_ai.toolsets import DynamicToolset  # isort: skip

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness

pytestmark = pytest.mark.timeout(90)

looks = Looks()


@dataclass
class Place:
    name: str
    tags: frozenset[str]


PIXEL = BinaryImage(data=b"\x89PNG\xff", media_type="image/png")
DOCUMENT = DocumentUrl(url="https://example.com/1", media_type="application/pdf")


def returned(result: Any, tool: str) -> Any:
    """Return what a tool has returned, as the messages have it."""
    return next(
        part
        for message in result.all_messages()
        for part in message.parts
        if isinstance(part, ToolReturnPart) and part.tool_name == tool
    )


def picture() -> Any:
    return ["text", PIXEL, DOCUMENT, ImageUrl(url="https://example.com/2.png")]


def kind() -> dict[str, Any]:
    return {"kind": "tool-return", "return_value": "mine"}


def report() -> ToolReturn:
    return ToolReturn("short", content=["long", PIXEL], metadata={"key": [1, 2]})


def place() -> Place:
    return Place("Rome", frozenset({"old"}))


values = durable([call("picture"), call("kind"), call("report"), call("place")], "done", name="values",
                 tools=[picture, kind, report, place])  # fmt: skip


@looks(
    [
        ["text", True, "application/pdf", "image/png"],
        {"kind": "tool-return", "return_value": "mine"},
        ["short", {"key": [1, 2]}],
        {"name": "Rome", "tags": ["old"]},
        [["long", True]],
        True,
    ]
)
async def values_of_tools() -> list[Any]:
    result = await values.run(["look", PIXEL, DOCUMENT, TextContent("more")])
    text, image, document, url = returned(result, "picture").content
    told = returned(result, "report")
    prompts = [part.content for message in result.all_messages() for part in message.parts
               if isinstance(part, UserPromptPart)]  # fmt: skip
    return [
        [text, image == PIXEL, document.media_type, url.media_type],
        returned(result, "kind").content,
        [told.content, told.metadata],
        returned(result, "place").content,
        [[text, image == PIXEL] for text, image in prompts[1:]],
        prompts[0] == ["look", PIXEL, DOCUMENT, TextContent("more")],
    ]


def inside(ctx: RunContext[Any]) -> dict[str, Any]:
    return {
        "agent": ctx.agent.name, "prompt": ctx.prompt, "metadata": ctx.metadata, "run": ctx.run_id,
        "conversation": ctx.conversation_id, "messages": len(ctx.messages), "requests": ctx.usage.requests,
        "deps": ctx.deps, "tools": sorted(ctx.available_tool_names), "step": ctx.run_step,
    }  # fmt: skip


contexts = durable(call("inside"), "done", name="contexts", tools=[inside], deps_type=object)


@looks(
    {"agent": "contexts", "prompt": "hi", "metadata": {"env": "test"}, "run": "mine", "same": True, "messages": 2,
     "requests": 1, "deps": "['d']", "tools": ["inside"], "step": 1, "ids": ["mine"]}
)  # fmt: skip
async def the_context_of_a_tool() -> dict[str, Any]:
    result = await contexts.run("hi", deps=["d"], metadata={"env": "test"}, run_id="mine")
    seen = returned(result, "inside").content
    return {
        **{k: v for k, v in seen.items() if k != "conversation"},
        "deps": str(seen["deps"]),
        "same": seen["conversation"] == result.conversation_id,
        "ids": sorted({message.run_id for message in result.all_messages()}),
    }


async def delegate(ctx: RunContext[Any]) -> str:
    return (await helper.run("hi", usage=ctx.usage)).output


helper = Agent(TestModel(custom_output_text="helped"), name="helper")
delegating = durable(call("delegate"), echo, name="delegating", tools=[delegate])
delegating_in_code = durable(call("delegate"), echo, name="delegating_in_code",
                             tools=[Tool(delegate, metadata={"pgflow": False})])  # fmt: skip


@looks(["helped", 3, "helped", 3])
async def the_usage_of_an_agent_that_a_tool_calls() -> list[Any]:
    in_step = await delegating.run("hi")
    in_code = await delegating_in_code.run("hi")
    return [in_step.output, in_step.usage.requests, in_code.output, in_code.usage.requests]


async def rename(ctx: RunContext[Any], definition: Any) -> Any:
    return replace(definition, name="shown", description=f"step {ctx.run_step}")


async def sleepy() -> str:
    await asyncio.sleep(60)
    return "slept"


def offered(messages: Any, info: Any) -> Any:
    seen = [(tool.name, tool.description) for tool in info.function_tools]
    return f"{seen} {echo(messages, info)}"


renaming = durable(call("shown"), offered, name="renaming", toolsets=[FunctionToolset(
    [Tool(lambda: "hidden", name="registered", prepare=rename)], id="r")])  # fmt: skip
timing = durable(call("sleepy"), echo, name="timing", tools=[Tool(sleepy, timeout=0.01)])


@looks("[('shown', 'step 2')] hidden")
async def a_tool_under_another_name() -> str:
    return (await renaming.run("hi")).output


@looks("Timed out after 0.01 seconds.")
async def a_tool_that_takes_too_long() -> str:
    return (await timing.run("hi")).output


late = durable(call("far"), echo, name="late")


async def far() -> str:
    return "far"


@looks(["cannot be added", "cannot be added", "cannot be added", "cannot be added", "far"])
async def toolsets_of_a_run() -> list[str]:
    kinds: list[Any] = [
        {"toolsets": [FunctionToolset([far], id="f")]},
        {"capabilities": [Toolset(DynamicToolset(lambda ctx: FunctionToolset([far]), id="d"))]},
    ]
    refused = [await refusal(late.run("hi", **kind)) for kind in kinds]
    with late.override(toolsets=[FunctionToolset([far], id="f")]):
        refused.append(await refusal(late.run("hi")))
    with late.override(tools=[far]):
        refused.append(await refusal(late.run("hi")))
    in_code = FunctionToolset([Tool(far, metadata={"pgflow": False})], id="f")
    refused.append((await late.run("hi", toolsets=[in_code])).output)
    return ["cannot be added" if "cannot be added" in each else each for each in refused]


@looks("['other']")
async def dependencies_of_a_context() -> str:
    with contexts.override(deps=["other"]):
        return str(returned(await contexts.run("hi", deps=["d"]), "inside").content["deps"])


async def test_values_cross_into_steps_and_back(aflow: AsyncHarness) -> None:
    assert "\n".join(await looks.hold(aflow)) == ""
