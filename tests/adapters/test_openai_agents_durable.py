"""Agents of the OpenAI SDK in a run: models, tools and guardrails are steps, approvals are gates,
and a session is in the database.
"""

from __future__ import annotations

from typing import Any

import pytest
from records import SOON, in_a_loop, settle, steps

import pgflow
from pgflow import AsyncApp, InvalidArgument
from pgflow.authority import Approve, Reject

pytest.importorskip("agents", reason="openai-agents is not installed: pip install -e '.[adapters]'")

from agents import (  # noqa: E402
    Agent,
    GuardrailFunctionOutput,
    Model,
    ModelResponse,
    Usage,
    function_tool,
    input_guardrail,
)
from openai.types.responses import (  # noqa: E402
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from pgflow.agent import openai_agents  # noqa: E402
from pgflow.agent.openai_agents import PgflowSession  # noqa: E402

go = pgflow.Signal("go", int)
called: list[str] = []


class Scripted(Model):
    """A model that says one thing after the other, by the number of results that it has seen."""

    def __init__(self, name: str, *turns: Any) -> None:
        self.name, self.turns = name, turns

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        *args: Any,
        **_: Any,
    ) -> ModelResponse:
        called.append(self.name)
        items = input if isinstance(input, list) else []
        seen = sum(item.get("type") == "function_call_output" for item in items)
        turn = self.turns[min(seen, len(self.turns) - 1)]
        return ModelResponse(output=[turn], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def call(name: str, arguments: str = "{}") -> Any:
    return ResponseFunctionToolCall(
        arguments=arguments, call_id=f"call-{name}", name=name, type="function_call"
    )


def say(text: str) -> Any:
    content = ResponseOutputText(annotations=[], text=text, type="output_text")
    return ResponseOutputMessage(
        id="m", role="assistant", status="completed", type="message", content=[content]
    )


@function_tool(needs_approval=True)
async def refund(amount: int) -> str:
    called.append(f"refund {amount}")
    return f"refunded {amount}"


@input_guardrail
async def polite(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    called.append("guardrail")
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)


cashier = Agent(
    name="cashier",
    model=Scripted("cashier", say("?"), call("refund", '{"amount": 100}'), say("done")),
    tools=[refund],
)
desk = Agent(
    name="desk",
    model=Scripted("desk", call("transfer_to_cashier")),
    handoffs=[cashier],
    input_guardrails=[polite],
)


@pgflow.workflow
async def serve(question: str) -> str:
    session = PgflowSession("s")
    result = await openai_agents.run(desk, question, session=session, approvers=["ada"])
    await go.wait()
    return result.final_output


@pytest.mark.parametrize(
    ("answer", "done"),
    [
        (Approve({"tool": "refund", "arguments": {"amount": 5}}), ["refund 5"]),
        (Approve(), ["refund 100"]),
        (Reject("too much"), []),
    ],
)
async def test_an_agent_goes_on_after_an_answer_and_does_nothing_twice(aflow, conn, answer, done):
    called.clear()
    run = await settle(aflow, serve, "my money back")
    await aflow.crash()
    print(
        conn.execute("select * from pgflow.runs").fetchall(),
        conn.execute("select * from pgflow.held").fetchall(),
        conn.execute("select status, error from pgflow.outcome").fetchall(),
        called,
    )
    (gate,) = await aflow.gates()
    assert gate.request == {"tool": "refund", "arguments": {"amount": 100}}
    await aflow.answer(gate, answer, by="ada")
    await aflow.crash()
    await run.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == "done"
    assert called == ["guardrail", "desk", "cashier", *done, "cashier"]
    names = {name for name, _, _ in steps(conn, run.key)}
    assert {"guardrail:polite", "model:desk", "model:cashier"} <= names
    assert ("tool:refund" in names) == bool(done)
    items = await PgflowSession("s", aflow.app).get_items()
    kinds = [item.get("type", "message") for item in items]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 2


@in_a_loop
async def test_a_session_keeps_items_in_their_order(dsn):
    async with AsyncApp(dsn) as app:
        session, other = PgflowSession("a", app), PgflowSession("b", app)
        items: list[Any] = [{"role": "user", "content": str(n)} for n in range(12)]
        await session.add_items(items[:5])
        await session.add_items(items[5:])
        await other.add_items(items[:1])
        assert await session.get_items() == items
        assert await session.get_items(limit=3) == items[-3:]
        assert await session.pop_item() == items[-1]
        await session.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        assert await other.get_items() == items[:1]
        assert await PgflowSession("b", app, settings={"limit": 0}).get_items() == []
    with pytest.raises(TypeError, match="limitt"):
        PgflowSession("a", settings={"limitt": 1})
    with pytest.raises(InvalidArgument, match="AsyncApp"):
        await PgflowSession("a").get_items()
