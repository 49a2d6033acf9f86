"""Agents of every framework have the same spans: of the agent, its models and its tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from records import result_of
from spankit import Spans, said

import pgflow
from pgflow.otel import Tracing
from pgflow.testing import AsyncHarness

SECRET = "hunter2"


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


async def traced(aflow: AsyncHarness, spans: Spans, workflow: Any) -> None:
    aflow(interceptors=[Tracing(spans.provider)]).include(workflow)
    assert await result_of(aflow, workflow, SECRET) == "done"
    assert SECRET not in json.dumps([span.to_json() for span in spans.all])


def one(spans: Spans, name: str, above: str) -> dict[str, Any]:
    """Return the words of the only span of this name, which hangs below that one."""
    span = spans.one(name)
    assert spans.parent_of(span) == above
    return said(span)


@pytest.mark.full
async def test_pydantic_ai(aflow, spans):
    pytest.importorskip("pydantic_ai", reason="needs pip install -e '.[adapters]'")
    from scripted import call, durable

    async def look_up(sku: str) -> str:
        return f"{SECRET} {sku}"

    agent = durable(call("look_up", sku="boots"), "done", name="clerk", tools=[look_up])

    @pgflow.workflow(name="serve")
    async def serve(question: str) -> str:
        return (await agent.run(question)).output

    await traced(aflow, spans, serve)
    assert one(spans, "invoke_agent clerk", "run serve")["provider.name"] == "function"
    first, second = spans.named("chat small-1")
    assert spans.parent_of(first) == "decision clerk__model.request"
    words = said(first)
    assert words.pop("usage.input_tokens") > 0
    assert words.pop("usage.output_tokens") > 0
    assert words == {
        "operation.name": "chat",
        "provider.name": "_OTHER",
        "request.model": "small-1",
        "response.model": "small-1",
        "pgflow.usage.usd": 0.0,
    }
    assert said(second)["response.model"] == "small-1"
    assert said(spans.one("invoke_agent clerk"))["conversation.id"]
    words = one(spans, "execute_tool look_up", "invoke_agent clerk")
    assert words.pop("tool.call.id")
    assert words == {
        "operation.name": "execute_tool",
        "tool.name": "look_up",
        "tool.type": "function",
    }


async def test_openai_agents(aflow, spans):
    pytest.importorskip("agents", reason="needs pip install -e '.[adapters]'")
    from agents import Agent, Model, ModelResponse, Usage, function_tool
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    from pgflow.agent import openai_agents

    class Scripted(Model):
        model = "small-1"

        async def get_response(self, *_: Any, **given: Any) -> Any:
            if given["input"][-1].get("type") == "function_call_output":
                text = ResponseOutputText(annotations=[], text="done", type="output_text")
                turn: Any = ResponseOutputMessage(
                    id="m", role="assistant", status="completed", type="message", content=[text]
                )
            else:
                turn = ResponseFunctionToolCall(
                    arguments="{}", call_id="c1", name="look_up", type="function_call"
                )
            usage = Usage(requests=1, input_tokens=7, output_tokens=2, total_tokens=9)
            return ModelResponse(output=[turn], usage=usage, response_id="r1")

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    @function_tool
    async def look_up() -> str:
        return SECRET

    clerk = Agent(name="clerk", model=Scripted(), tools=[look_up])

    @pgflow.workflow(name="serve")
    async def serve(question: str) -> str:
        session = openai_agents.PgflowSession("ada")
        return str((await openai_agents.run(clerk, question, session=session)).final_output)

    await traced(aflow, spans, serve)
    assert one(spans, "invoke_agent clerk", "run serve")["conversation.id"] == "ada"
    first, _ = spans.named("chat small-1")
    assert spans.parent_of(first) == "step model:clerk"
    assert said(first) == {
        "operation.name": "chat",
        "provider.name": "_OTHER",
        "request.model": "small-1",
        "response.model": "small-1",
        "response.id": "r1",
        "usage.input_tokens": 7,
        "usage.output_tokens": 2,
    }
    assert one(spans, "execute_tool look_up", "invoke_agent clerk")["tool.call.id"] == "c1"
    assert spans.parent_of(spans.one("step tool:look_up")) == "execute_tool look_up"


async def test_langgraph(aflow, spans):
    pytest.importorskip("langgraph", reason="needs pip install -e '.[adapters]'")
    from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph

    from pgflow.agent.langgraph import durable

    usage: Any = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    replies: Any = [AIMessage("done", usage_metadata=usage, id="r1")]
    model = FakeMessagesListChatModel(responses=replies)

    @tool
    def look_up(sku: str) -> str:
        """Look a thing up."""
        return f"{SECRET} {sku}"

    @tool
    def fails(sku: str) -> str:
        """Fail."""
        raise OSError(SECRET)

    def ask(state: Any) -> Any:
        look_up.invoke({"sku": "boots"})
        with pytest.raises(OSError, match=SECRET):
            fails.invoke({"sku": "boots"})
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = durable(builder.compile(name="clerk"))

    @pgflow.workflow(name="serve")
    async def serve(question: str) -> str:
        thread: Any = {"configurable": {"thread_id": "t1"}}
        return str((await graph.ainvoke({"messages": [question]}, thread))["messages"][-1].content)

    await traced(aflow, spans, serve)
    assert one(spans, "invoke_agent clerk", "run serve")["conversation.id"] == "t1"
    assert spans.parent_of(spans.one("step node:ask")) == "invoke_agent clerk"
    (request,) = [span for span in spans.all if span.name.startswith("chat")]
    assert spans.parent_of(request) == "step node:ask"
    words = said(request)
    assert (words["provider.name"], words["response.id"]) == ("fakemessageslistchatmodel", "r1")
    assert (words["usage.input_tokens"], words["usage.output_tokens"]) == (7, 2)
    assert one(spans, "execute_tool look_up", "step node:ask")["tool.name"] == "look_up"
    failed = spans.one("execute_tool fails").attributes
    assert failed is not None
    assert failed["error.type"] == "OSError"
