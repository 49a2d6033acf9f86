"""Values cross into the step of a tool and back, in the first run and in a replay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from looks import Looks, refusal
from scripted import call, durable, echo

import pgflow
from pgflow.agent.pydantic_ai import PgflowDurability

from pydantic_ai import (  # isort: skip
    Agent,
    BinaryImage,
    DocumentUrl,
    FunctionToolset,
    ImageUrl,
    RunContext,
    TextContent,
    Tool,
    ToolReturn,
    UploadedFile,
)
from pydantic_ai.capabilities import Capability, ProcessHistory, Toolset  # isort: skip
from pydantic_ai.messages import (  # isort: skip
    FilePart,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolAvailabilityDeltaPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel  # isort: skip
from pydantic_ai.models.test import TestModel  # isort: skip
from pydantic_ai.profiles import ModelProfile  # isort: skip
from pydantic_ai.toolsets import DynamicToolset  # isort: skip
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append  # isort: skip

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


def nested() -> dict[str, Any]:
    return {"caption": "see", "image": PIXEL, "source": DOCUMENT}


def report() -> ToolReturn:
    return ToolReturn("short", content=["long", PIXEL], metadata={"key": [1, 2]})


def place() -> Place:
    return Place("Rome", frozenset({"old"}))


values = durable([call("picture"), call("kind"), call("report"), call("place"), call("nested")], "done", name="values",
                 tools=[picture, kind, report, place, nested])  # fmt: skip


@looks(
    [
        ["text", True, "application/pdf", "image/png"],
        {"kind": "tool-return", "return_value": "mine"},
        ["short", {"key": [1, 2]}],
        {"name": "Rome", "tags": ["old"]},
        [["long", True]],
        True,
        ["see", True, "application/pdf"],
    ]
)
async def values_of_tools() -> list[Any]:
    result = await values.run(["look", PIXEL, DOCUMENT, TextContent("more")])
    text, image, document, url = returned(result, "picture").content
    told, inside = returned(result, "report"), returned(result, "nested").content
    prompts = [
        part.content
        for message in result.all_messages()
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
    return [
        [text, image == PIXEL, document.media_type, url.media_type],
        returned(result, "kind").content,
        [told.content, told.metadata],
        returned(result, "place").content,
        [[text, image == PIXEL] for text, image in prompts[1:]],
        prompts[0] == ["look", PIXEL, DOCUMENT, TextContent("more")],
        [inside["caption"], inside["image"] == PIXEL, inside["source"].media_type],
    ]


def inside(ctx: RunContext[Any]) -> dict[str, Any]:
    return {
        "agent": ctx.agent.name,
        "prompt": ctx.prompt,
        "metadata": ctx.metadata,
        "run": ctx.run_id,
        "conversation": ctx.conversation_id,
        "messages": len(ctx.messages),
        "requests": ctx.usage.requests,
        "deps": ctx.deps,
        "tools": sorted(ctx.available_tool_names),
        "step": ctx.run_step,
    }


contexts = durable(call("inside"), "done", name="contexts", tools=[inside], deps_type=object)


@looks(
    {
        "agent": "contexts",
        "prompt": "hi",
        "metadata": {"env": "test"},
        "run": "mine",
        "same": True,
        "messages": 2,
        "requests": 1,
        "deps": "['d']",
        "tools": ["inside"],
        "step": 1,
        "ids": ["mine"],
    }
)
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


@looks("done")
async def dependencies_that_no_journal_takes() -> str:
    return (await odd.run("hi", deps=object())).output


def type_of(ctx: RunContext[Any]) -> str:
    return type(ctx.deps).__name__


odd = durable(call("type_of"), "done", name="odd", tools=[type_of], deps_type=object)


async def first() -> str:
    order.append("first")
    await asyncio.sleep(0)
    order.append("first ends")
    return "1"


async def second() -> str:
    order.append("second")
    return "2"


order: list[str] = []
both = durable([call("first"), call("second")], echo, name="both", tools=[first, second])


@looks("1 2")
async def tools_one_after_the_other() -> str:
    with Agent.parallel_tool_call_execution_mode("sequential"):
        return (await both.run("hi")).output


attempts: list[str] = []


def busy() -> str:
    attempts.append("busy")
    raise OSError("busy")


def listed(ctx: RunContext[Any]) -> FunctionToolset[Any]:
    options = {"timeout": timedelta(minutes=5), "retries": pgflow.Retries(2, first_delay=0)}
    return FunctionToolset(
        [Tool(busy, metadata={"pgflow": options}), Tool(far, metadata={"pgflow": False})],
        instructions=f"step {ctx.run_step}",
    )


dynamic = DynamicToolset(listed, id="listed")
instructed = durable(call("far"), lambda messages, info: info.instructions, name="instructed",
                     toolsets=[dynamic])  # fmt: skip
failing = durable(call("busy"), name="failing", toolsets=[dynamic])


@looks("step 2")
async def a_dynamic_toolset_whose_tool_is_code_and_whose_instructions_change() -> str:
    return (await instructed.run("hi")).output


@looks("busy")
async def options_of_a_dynamic_tool() -> str:
    try:
        return (await failing.run("hi")).output
    except OSError as error:
        return str(error)
    except pgflow.StepFailed as error:
        return str(error)


def shorten(messages: list[Any]) -> list[Any]:
    return messages[-1:]


helped = durable(lambda messages, info: f"{len(messages)} {info.instructions}", name="helped",
                 more=[ProcessHistory(shorten)])  # fmt: skip


@helped.instructions
def advise() -> str:
    return "be brief"


@looks("1 be brief")
async def helpers_that_are_a_def() -> str:
    before = (await both.run("hi")).all_messages()
    result = await helped.run("hi", message_history=before)
    return result.output


billing = Capability(id="billing", description="Bills.", defer_loading=True)


@billing.tool
def bill(ctx: RunContext[Any]) -> str:
    return f"billed {ctx.is_tool_available('bill')}"


def opener() -> ToolReturn:
    return ToolReturn("opened", tools=["hidden"])


def loading(messages: Any, info: Any) -> Any:
    offered = {tool.name for tool in info.function_tools}
    turn = sum(message.kind == "response" for message in messages)
    turns: list[Any] = [
        call("load_capability", id="billing"),
        call("bill") if "bill" in offered else "not offered",
        call("opener"),
        call("hidden") if "hidden" in offered else "not shown",
    ]
    return turns[turn] if turn < 4 else echo(messages, info)


revealing = durable(*[loading] * 5, name="revealing", more=[billing],
                    tools=[opener, Tool(lambda: "secret", name="hidden", defer_loading=True)])  # fmt: skip


@looks(["billed True", "secret"])
async def tools_that_are_shown_later() -> list[str]:
    result = await revealing.run("hi")
    return [returned(result, "bill").content, result.output]


def load(messages: Any, info: Any) -> ModelResponse:
    """Say, as a model that is told of a tool by its name, what it has loaded."""
    told = [part.tools_added for part in parts_of(messages, ToolAvailabilityDeltaPart)]
    return ModelResponse(
        parts=[TextPart(str(told)) if told else call("load_capability", id="billing")]
    )


def pay(messages: Any, info: Any) -> ModelResponse:
    """Use the tool, as a model that is told of it in words."""
    words = [str(part.content) for part in parts_of(messages, UserPromptPart)]
    if parts_of(messages, ToolAvailabilityDeltaPart) or not any("`bill`" in each for each in words):
        return ModelResponse(parts=[TextPart(f"told {words}")])
    is_done = any(part.tool_name == "bill" for part in parts_of(messages, ToolReturnPart))
    return ModelResponse(parts=[TextPart("paid") if is_done else call("bill")])


def parts_of(messages: Any, kind: type[Any]) -> list[Any]:
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


by_name = ModelProfile(tool_addition_mode="by_reference", tool_deferral_mode="standalone")
remodelled = durable(
    FunctionModel(load, model_name="by-name", profile=by_name), name="remodelled", more=[billing],
    models={"in-words": FunctionModel(pay, model_name="in-words", profile=ModelProfile())},
)  # fmt: skip


@looks(["[['bill']]", "billed True", "paid"])
async def tools_that_another_model_was_shown() -> list[str]:
    first = await remodelled.run("hi")
    history = ModelMessagesTypeAdapter.validate_json(first.all_messages_json())
    second = await remodelled.run("pay", model="in-words", message_history=history)
    return [first.output, returned(second, "bill").content, second.output]


files = {
    each: Agent(
        TestModel(custom_output_args=arguments),
        name=each.__name__,
        output_type=each,
        capabilities=[PgflowDurability()],
    )
    for each, arguments in (
        (DocumentUrl, {"url": "https://example.com/1", "media_type": "application/pdf"}),
        (UploadedFile, {"file_id": "f", "provider_name": "openai", "media_type": "image/png"}),
    )
}
drawing = Agent(
    FunctionModel(lambda *_: ModelResponse(parts=[FilePart(content=PIXEL)]),
                  profile=ModelProfile(supports_image_output=True)),
    name="drawing", output_type=BinaryImage, capabilities=[PgflowDurability()],
)  # fmt: skip


@looks(["application/pdf", "image/png", True])
async def outputs_that_are_files() -> list[Any]:
    media = [(await agent.run("hi")).output.media_type for agent in files.values()]
    return [*media, (await drawing.run("hi")).output == PIXEL]


def graph_of_numbers() -> Any:
    builder = GraphBuilder(input_type=int, output_type=list[int])

    @builder.step
    async def source(ctx: StepContext[Any, Any, int]) -> int:
        return ctx.inputs

    @builder.step
    async def double(ctx: StepContext[Any, Any, int]) -> int:
        return ctx.inputs * 2

    @builder.step
    async def triple(ctx: StepContext[Any, Any, int]) -> int:
        return ctx.inputs * 3

    joined = builder.join(reduce_list_append, initial_factory=list)
    builder.add(
        builder.edge_from(builder.start_node).to(source),
        builder.edge_from(source).to(double, triple),
        builder.edge_from(double, triple).to(joined),
        builder.edge_from(joined).to(builder.end_node),
    )
    return builder.build()


numbers = graph_of_numbers()


@looks([10, 15])
async def a_graph_of_the_framework() -> list[int]:
    return sorted(await numbers.run(inputs=5))


async def test_values_cross_into_steps_and_back(aflow):
    order.clear()
    attempts.clear()
    assert "\n".join(await looks.hold(aflow)) == ""
    assert "first ends second" in " ".join(order)
    assert attempts == ["busy"] * 2


def test_outside_of_workflows_a_toolset_may_come_with_a_run():
    toolset = FunctionToolset([far], id="f")
    assert asyncio.run(late.run("hi", toolsets=[toolset])).output == "far"
