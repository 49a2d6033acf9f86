"""Agents in traces: which model was asked and what it cost, which tool was called, by which agent;
in the words of OpenTelemetry's conventions, and never what was said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import pytest
from records import SOON, result_of
from spankit import Spans, said

import pgflow
from pgflow import Retries, agent, step, workflow
from pgflow.authority import Approve
from pgflow.decisions import Choice, Usage, decision
from pgflow.effects import effect
from pgflow.otel import Tracing

SECRET = "hunter2"


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


@decision()
async def choose(item: str, state: int, seen: str) -> Choice[str | None]:
    if state == 2:
        return Choice(None, why="by a rule, and no model")
    return Choice(SECRET, why=SECRET, model="small-1", usage=Usage(Decimal("0.02"), 30))


@effect(risk="compensable")
async def order(what: str) -> str:
    return what


@order.compensate
async def give_back(result: str, what: str) -> None: ...


async def look(item: str, state: int) -> str:
    return SECRET


def look_sync(item: str, state: int) -> str:
    return SECRET


async def leave_for(what: str) -> pgflow.authority.Verdict[str]:
    return await pgflow.authority.gate("order", what)


def leave_for_sync(what: str) -> pgflow.authority.Verdict[str]:
    return pgflow.sync.gate("order", what)


def add(state: int, action: str, result: str) -> int:
    return state + 1


@workflow
async def restock(item: str, state: int = 0) -> int:
    ended = await agent.loop(
        item, state, observe=look, decide=choose, gate=leave_for, act=order, fold=add
    )
    return ended.state


@workflow
def restock_sync(item: str, state: int = 0) -> int:
    ended = agent.sync.loop(
        item,
        state,
        observe=look_sync,
        decide=choose.sync,
        gate=leave_for_sync,
        act=order.sync,
        fold=add,
    )
    return ended.state


@pytest.mark.full
@pytest.mark.parametrize("made", [restock, restock_sync])
async def test_the_loop_has_spans_of_its_models_and_acts_each_once_over_all_activations(
    aflow, spans, made
):
    aflow(interceptors=[Tracing(spans.provider)]).include(made)
    run = await aflow.start(made.options(key="k"), SECRET)
    for _ in range(2):
        await aflow.until_idle()
        await aflow.answer("order", Approve())
    assert await run.result(SOON) == 2
    agents = spans.named(f"invoke_agent {made.name}")
    assert [span.attributes["pgflow.outcome"] for span in agents] == ["left", "left", "completed"]
    assert {spans.parent_of(span) for span in agents} == {f"run {made.name}"}
    assert said(agents[0]) == {
        "operation.name": "invoke_agent",
        "agent.name": made.name,
        "conversation.id": "k",
        "provider.name": "_OTHER",
    }
    requests = spans.named("chat small-1")
    assert [spans.parent_of(span) for span in requests] == ["decision choose"] * 2
    assert [span.kind.name for span in requests] == ["CLIENT", "CLIENT"]
    assert said(requests[0]) == {
        "operation.name": "chat",
        "request.model": "small-1",
        "response.model": "small-1",
        "provider.name": "_OTHER",
        "pgflow.usage.usd": 0.02,
        "pgflow.usage.tokens": 30,
    }
    acts = spans.named("execute_tool order")
    assert [spans.parent_of(span) for span in acts] == [f"invoke_agent {made.name}"] * 2
    assert said(acts[0]) == {
        "operation.name": "execute_tool",
        "tool.name": "order",
        "tool.type": "function",
    }
    tries = spans.named("effect order")
    assert [spans.parent_of(span) for span in tries] == ["execute_tool order"] * 2
    assert SECRET not in json.dumps([span.to_json() for span in spans.all])


@step(retries=Retries(max_attempts=2))
def ask_twice() -> int:
    with pgflow.extensions.operation("chat", "big-1", provider="google-vertex") as asked:
        asked.model, asked.id, asked.finish_reasons = "big-1-0926", "r1", ["stop"]
        asked.input_tokens, asked.output_tokens, asked.cached_tokens = 20, 3, 8
    with pgflow.extensions.operation("chat") as asked:
        if pgflow.run_info().step_attempt == 1:
            raise ConnectionError(SECRET)
    return 1


@decision()
async def says_itself() -> Choice[int]:
    with pgflow.extensions.operation("chat", "big-1"):
        return Choice(1, why="so", model="big-1")


@workflow
async def asks() -> int:
    return await ask_twice.aio() + (await says_itself()).value


async def test_a_body_tells_of_each_model_that_it_asks(aflow, spans):
    aflow(interceptors=[Tracing(spans.provider)]).include(asks)
    assert await result_of(aflow, asks) == 2
    first, second, third = spans.named("chat big-1")
    assert spans.parent_of(first) == spans.parent_of(second) == "step ask_twice"
    assert spans.parent_of(third) == "decision says_itself", "and no second one for its choice"
    assert said(first) == {
        "operation.name": "chat",
        "provider.name": "gcp.vertex_ai",
        "request.model": "big-1",
        "response.model": "big-1-0926",
        "response.id": "r1",
        "response.finish_reasons": ("stop",),
        "usage.input_tokens": 20,
        "usage.output_tokens": 3,
        "usage.cache_read.input_tokens": 8,
    }
    failed, completed = spans.named("chat")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ConnectionError"
    assert (failed.status.status_code.name, failed.status.description) == (
        "ERROR",
        "ConnectionError",
    )
    assert completed.status.status_code.name == "UNSET"


def test_outside_of_runs_an_operation_is_told_to_nobody():
    with pgflow.extensions.operation("chat", "big-1") as asked:
        asked.input_tokens = 1
    assert asked.kind == "chat"
