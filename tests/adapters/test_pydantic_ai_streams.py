"""Streams of an agent in a workflow, and answers of a model that come in parts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest
from looks import Looks
from records import launch
from scripted import durable

import pgflow

from pydantic_ai import Agent, UsageLimits  # isort: skip
from pydantic_ai._run_context import get_current_run_context  # isort: skip
from pydantic_ai.capabilities import ProcessEventStream  # isort: skip
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded, UserError  # isort: skip
from pydantic_ai.messages import (  # isort: skip
    FunctionToolCallEvent,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models import CompletedStreamedResponse  # isort: skip
from pydantic_ai.models.function import FunctionModel  # isort: skip
from pydantic_ai.models.test import TestModel  # isort: skip
from pydantic_ai.usage import RequestUsage  # isort: skip

looks = Looks()


def in_step() -> bool:
    try:
        return pgflow.run_info().step is not None
    except pgflow.errors.NotInRunError:
        return False


async def chunks(messages: Any, info: Any) -> Any:
    for chunk in ("Stream", "ed ", "words"):
        yield chunk


def words_of(events: list[Any]) -> list[str]:
    """Return the texts of events: of the recorded response, since the journal has no deltas."""
    return [
        event.part.content if isinstance(event, PartStartEvent) else event.delta.content_delta
        for event in events
        if isinstance(event, (PartStartEvent, PartDeltaEvent))
    ]


WORDS = FunctionModel(stream_function=chunks, model_name="words")
watched: list[tuple[bool, Any]] = []


async def watch(ctx: Any, events: Any) -> None:
    async for event in events:
        watched.append((in_step(), event))


plain = durable(WORDS, name="plain")
processed = durable(WORDS, name="processed", more=[ProcessEventStream(watch)])


@looks([["Streamed words"]] * 3)
async def streams_of_the_caller() -> list[Any]:
    async with plain.run_stream("hi") as response:
        text = [chunk async for chunk in response.stream_text(debounce_by=None)]
        output = await response.get_output()
    async with plain.run_stream_events("hi") as stream:
        events = [event async for event in stream]
    passed: list[Any] = []

    async def keep(ctx: Any, stream: Any) -> None:
        passed.extend([event async for event in stream])

    await plain.run("hi", event_stream_handler=keep)
    assert output == "Streamed words"
    return [words_of(passed), text, words_of(events)]


@looks(["Streamed words", ["Streamed words"]])
async def streams_of_a_node() -> list[Any]:
    seen: list[str] = []
    async with plain.iter("hi") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    seen.extend([chunk async for chunk in stream.stream_text(debounce_by=None)])
    return [run.result.output, seen]


@looks(["Streamed words", ["Streamed words"], False], ["model.request_stream"])
async def a_capability_that_processes_events() -> list[Any]:
    watched.clear()
    output = (await processed.run("hi")).output
    return [output, words_of([event for _, event in watched]), any(inside for inside, _ in watched)]


tries: list[str] = []


async def stumble(ctx: Any, events: Any) -> None:
    async for event in events:
        if isinstance(event, FunctionToolCallEvent):
            tries.append("told")
            if len(tries) == 1:
                raise OSError("once")


stumbling = durable(TestModel(), name="stumbling", event_stream_handler=stumble, tools=[in_step],
                    event={"retries": pgflow.Retries(2, first_delay=0)})  # fmt: skip


@looks('{"in_step":true}')
async def a_handler_that_fails_once() -> str:
    return (await stumbling.run("hi")).output


def part(text: str, n: int, tokens: int = 4, *, last: bool = False) -> ModelResponse:
    return ModelResponse(
        parts=[TextPart(text)],
        state="complete" if last else "suspended",
        provider_response_id=f"part{n}",
        usage=RequestUsage(input_tokens=tokens, output_tokens=2),
    )


class Slow(TestModel):
    """A model whose provider answers in parts, and is asked again for each."""

    def __init__(self, *parts: Any, delay: float | None = None) -> None:
        super().__init__()
        self.parts, self.delay, self.gone, self.asked = parts, delay, [], 0

    async def request(self, *_: Any) -> ModelResponse:
        found = self.parts[self.asked]
        self.asked += 1
        if isinstance(found, Exception):
            raise found
        return found

    @asynccontextmanager
    async def request_stream(self, *args: Any, **_: Any) -> Any:
        response = await self.request()
        yield CompletedStreamedResponse(response, model_request_parameters=args[2])

    def continuation_delay(self, response: ModelResponse) -> float | None:
        return self.delay

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        with pytest.raises(UserError, match="enqueued messages would be dropped"):
            get_current_run_context().enqueue("more")
        self.gone.append(response.provider_response_id)


TWO = (part("The answer ", 1), part("is 42.", 2, last=True))
models = {
    "two": Slow(*TWO),
    "later": Slow(*TWO, delay=3600),
    "dear": Slow(part("a", 1), part("b", 2, 100)),
    "endless": Slow(*[part("a", n) for n in range(1, 13)]),
    "broken": Slow(part("a", 1), UnexpectedModelBehavior("the provider broke")),
    "streamed": Slow(*TWO),
    "resumed": Slow(TWO[1]),
}
slow = {name: durable(each, name=name) for name, each in models.items()}


@looks(["The answer is 42.", 1, 8, 4], ["model.request", "model.request"])
async def an_answer_in_two_parts() -> list[Any]:
    result = await slow["two"].run("go")
    usage = result.usage
    return [result.output, usage.requests, usage.input_tokens, usage.output_tokens]


@looks(["The answer is 42."] * 2)
async def an_answer_in_parts_that_streams_or_goes_on() -> list[str]:
    async with slow["streamed"].run_stream("go") as response:
        streamed = await response.get_output()
    history = [ModelRequest(parts=[UserPromptPart("go")]), TWO[0]]
    return [streamed, (await slow["resumed"].run(message_history=history)).output]


@looks("total_tokens_limit", ["model.request", "model.request", "model.cancel_suspended_response"])
async def an_answer_that_becomes_too_dear() -> str:
    try:
        return (
            await slow["dear"].run("go", usage_limits=UsageLimits(total_tokens_limit=20))
        ).output
    except UsageLimitExceeded as error:
        return str(error)


@looks("suspended more than the maximum of 10 times")
async def an_answer_without_an_end() -> str:
    try:
        return (await slow["endless"].run("go")).output
    except UnexpectedModelBehavior as error:
        return str(error)


@looks("the provider broke")
async def an_answer_that_breaks_off() -> str:
    try:
        return (await slow["broken"].run("go")).output
    except UnexpectedModelBehavior as error:
        return str(error)


@pgflow.workflow
async def wait_for_parts() -> str:
    return (await slow["later"].run("go")).output


@pytest.mark.filterwarnings("ignore:.*run_stream:DeprecationWarning")
async def test_streams_and_parts_are_those_of_the_recorded_responses(aflow):
    tries.clear()
    waits = await launch(aflow, wait_for_parts)
    assert "\n".join(await looks.hold(aflow)) == ""
    assert [models[name].asked for name in ("two", "dear", "endless", "broken")] == [2, 2, 11, 2]
    assert tries == ["told"] * 2
    assert models["dear"].gone == ["part2"]
    assert len(models["endless"].gone) == len(models["broken"].gone) == 1
    await aflow.until_idle()
    assert models["later"].asked == 1
    await aflow.skip(3601)
    assert await waits.result() == "The answer is 42."


async def outside() -> list[Any]:
    async with plain.run_stream("hi") as response:
        text = [chunk async for chunk in response.stream_text(debounce_by=None)]
    async with plain.run_stream_events("hi") as stream:
        events = words_of([event async for event in stream])
    return [text, events]


@pytest.mark.filterwarnings("ignore:.*run_stream:DeprecationWarning")
def test_outside_of_workflows_streams_are_live():
    chunks = ["Stream", "Streamed ", "Streamed words"]
    assert asyncio.run(outside()) == [chunks, ["Stream", "ed ", "words"]]
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        assert durable("ok", name="ok").run_sync("hi").output == "ok"
    asyncio.set_event_loop(None)
