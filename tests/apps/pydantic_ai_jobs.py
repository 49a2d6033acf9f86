"""An agent of pydantic-ai whose every part leaves a witness outside, and may die there: for
`tests.agentkills`.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import pgflow
from pgflow import Admit
from pgflow.agent.pydantic_ai import Approvals, PgflowDurability, as_tool

PRICE = Decimal("0.25")
TURNS = 5
POINTS = (
    "asked", "answered", "tool begins", "tool ends", "effect begins", "effect ends", "transaction",
    "between", "approved tool",
)  # fmt: skip


@dataclass
class Fate:
    """The arrival, and the point, at which this process dies; never, if there is none."""

    point: str = ""
    arrivals: int = 1
    dsn: str = ""
    seen: int = field(default=0)

    def arrive(self, point: str) -> None:
        """Die, if it is time."""
        if point == self.point:
            self.seen += 1
            if self.seen == self.arrivals:
                os.kill(os.getpid(), signal.SIGKILL)


fate = Fate()


def witness(kind: str) -> None:
    """Leave a witness under the key of the step, outside of any transaction of the run."""
    with psycopg.connect(fate.dsn, autocommit=True) as conn:
        conn.execute(
            "insert into witness (run, kind, key) values (%s, %s, %s)",
            (pgflow.run_info().key, kind, pgflow.idempotency_key()),
        )


def respond(messages: Any, info: Any) -> ModelResponse:
    """Answer as the model."""
    fate.arrive("asked")
    witness("model")
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    fate.arrive("answered")
    turns: list[list[Any]] = [
        [ToolCallPart("look", {"n": 1}), ToolCallPart("look", {"n": 2})],
        [ToolCallPart("send", {"n": 3})],
        [ToolCallPart("write", {"n": 4}), ToolCallPart("think", {})],
        [ToolCallPart("publish", {"n": 5})],
        [TextPart("done")],
    ]
    return ModelResponse(parts=turns[turn])


def look(n: int) -> int:
    fate.arrive("tool begins")
    witness("tool")
    fate.arrive("tool ends")
    return n


@pgflow.effect(risk="irreversible", dedup_window=timedelta(days=1))
async def send(n: int) -> int:
    fate.arrive("effect begins")
    witness("effect")
    fate.arrive("effect ends")
    return n


@pgflow.transaction
async def write(conn: psycopg.AsyncConnection, n: int) -> int:
    await conn.execute("insert into written (run) values (%s)", (pgflow.run_info().key,))
    fate.arrive("transaction")
    return n


async def think() -> str:
    fate.arrive("between")
    return "thought"


def publish(n: int) -> int:
    fate.arrive("approved tool")
    witness("publish")
    return n


agent = Agent(
    FunctionModel(respond, model_name="small-1"),
    name="killed",
    tools=[
        look, as_tool(send), as_tool(write), Tool(think, metadata={"pgflow": False}),
        Tool(publish, requires_approval=True),
    ],
    capabilities=[
        PgflowDurability(
            price=lambda _: PRICE, model={"admit": Admit(usd=PRICE)}, approvals=Approvals(["ops"])
        )
    ],
)  # fmt: skip


@pgflow.workflow
async def work(question: str) -> str:
    return str((await agent.run(question)).output)


@pgflow.workflow
def work_in_thread(question: str) -> str:
    return str(agent.run_sync(question).output)
