"""An agent of the OpenAI SDK whose every part leaves a witness outside, and may die there: for
`tests.agentkills`.

A guardrail looks, the desk hands off to the cashier, who looks things up, two at once, and refunds
something that a person approves, with another amount. All of it is in a session.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
from agents import (
    Agent,
    GuardrailFunctionOutput,
    Model,
    ModelResponse,
    Usage,
    function_tool,
    handoff,
    input_guardrail,
)
from agents.tracing import get_trace_provider
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

import pgflow
from pgflow._model.codecs import codec_for
from pgflow.agent import openai_agents
from pgflow.agent.openai_agents import PgflowSession
from pgflow.authority import Approve
from tests.kits import fates
from tests.kits.fates import arrive, witness

get_trace_provider()  # which each process would make, and which takes long
codec_for(ModelResponse)
PRICE = Decimal("0.25")
BODIES = (
    "guardrail", "asked", "answered", "handoff", "tool begins", "tool ends", "tool of a def",
    "session", "behind the session", "approved tool",
)  # fmt: skip
COMMITS = ("model:cashier", fates.ENDED)  # outcomes of tools go along with the session's
ANSWER = Approve({"tool": "refund", "arguments": {"amount": 50}})
EXPECTED = {"guardrail": 1, "model": 4, "tool": 3, "refund 50": 1}
"""Keys of each kind in a run."""
CHARGES = EXPECTED["model"]
WORDS = ["desk", "cashier 0", "cashier 3", "cashier 4"]
OUTPUT = "done"
KINDS = [
    "message", "function_call", "function_call_output", *["function_call"] * 3,
    *["function_call_output"] * 3, "function_call", "function_call_output", "message",
]  # fmt: skip
"""Items of the session."""


class Scripted(Model):
    """A model that says what comes next by the number of results of tools that it has seen."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        *args: Any,
        **options: Any,
    ) -> ModelResponse:
        arrive("asked")
        witness("model")
        pgflow.authority.charge(usd=PRICE)
        items = input if isinstance(input, list) else []
        results = sum(item.get("type") == "function_call_output" for item in items)
        turn = max(0, results - 1)  # the handoff has a result too
        pgflow.emit("words", self.name if self.name == "desk" else f"{self.name} {turn}")
        arrive("answered")
        return ModelResponse(output=self.say(turn), usage=Usage(), response_id=None)

    def say(self, turn: int) -> list[Any]:
        if self.name == "desk":
            return [call("transfer_to_cashier", "h")]
        if not turn:
            return [call("look", "a", n=1), call("look", "b", n=2), call("look_up", "c", n=3)]
        return [call("refund", "d", amount=100)] if turn == 3 else [text("done")]

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def call(name: str, number: str, **arguments: int) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        arguments=json.dumps(arguments), call_id=number, name=name, type="function_call"
    )


def text(words: str) -> ResponseOutputMessage:
    content = ResponseOutputText(annotations=[], text=words, type="output_text")
    return ResponseOutputMessage(
        id="m", role="assistant", status="completed", type="message", content=[content]
    )


@function_tool
async def look(n: int) -> str:
    arrive("tool begins")
    witness("tool")
    arrive("tool ends")
    return f"seen {n}"


@function_tool
def look_up(n: int) -> str:
    witness("tool")
    arrive("tool of a def")
    return f"found {n}"


@function_tool(needs_approval=True)
async def refund(amount: int) -> str:
    arrive("approved tool")
    witness(f"refund {amount}")
    return f"refunded {amount}"


@input_guardrail
async def polite(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    arrive("guardrail")
    witness("guardrail")
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)


cashier = Agent(name="cashier", model=Scripted("cashier"), tools=[look, look_up, refund])
desk = Agent(
    name="desk",
    model=Scripted("desk"),
    handoffs=[handoff(cashier, on_handoff=lambda _: arrive("handoff"))],
    input_guardrails=[polite],
)


class Session(PgflowSession):
    """A session that may die between its items and their commit."""

    async def _do(self, work: Any) -> Any:
        async def mortal(documents: Any) -> Any:
            done = await work(documents)
            arrive("session")
            return done

        done = await super()._do(mortal)
        arrive("behind the session")
        return done


@pgflow.workflow
async def serve_customer(question: str) -> str:
    session = Session(pgflow.run_info().key)
    result = await openai_agents.run(desk, question, session=session, approvers=["ops"])
    return str(result.final_output)


FLOWS = (serve_customer,)


def serve(dsn: str, **options: Any) -> None:
    """Work as a child of the nursery."""
    fates.serve(dsn, FLOWS, **options)


def judge(conn: psycopg.Connection[Any], key: str) -> Iterator[str]:
    """Look at what only this agent leaves: the items of its session."""
    rows = conn.execute(
        "select value ->> 'type' from pgflow.documents where collection = %s"
        " and path[1] = %s order by path",
        (openai_agents.session.ITEMS, key),
    ).fetchall()
    kinds = [kind or "message" for (kind,) in rows]
    if kinds != KINDS:
        yield f"{key}: its session has {kinds}"
