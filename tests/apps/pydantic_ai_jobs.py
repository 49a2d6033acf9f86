"""An agent of pydantic-ai whose every part leaves a witness outside, and may die there: for
`tests.agentkills`.

It asks its model five times, and calls two tools at once, an effect, a transaction, a tool that is
code of the workflow, and one that a person approves.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import pgflow
from pgflow.agent.pydantic_ai import Approvals, PgflowDurability, as_tool
from pgflow.authority import Admit, Approve
from tests.kits import fates
from tests.kits.fates import arrive, witness

PRICE = Decimal("0.25")
BODIES = (
    "asked", "answered", "tool begins", "tool ends", "effect begins", "effect ends", "transaction",
    "between", "approved tool",
)  # fmt: skip
MODEL, TOOL = "killed__model.request", "killed__function_toolset__<agent>.call_tool:look"
COMMITS = (MODEL, TOOL, "send", fates.ASKED, fates.ENDED)
ANSWER = Approve()
EXPECTED = {"model": 5, "tool": 2, "effect": 1, "publish": 1}
"""Keys of each kind in a run."""
CHARGES = EXPECTED["model"]
WORDS = [f"turn {n}" for n in range(EXPECTED["model"])]
OUTPUT = "done"
TABLES = ("create table written (run text)", "grant insert on written to public")


def respond(messages: Any, info: Any) -> ModelResponse:
    """Answer as the model."""
    arrive("asked")
    witness("model")
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    pgflow.emit("words", f"turn {turn}")
    arrive("answered")
    turns: list[list[Any]] = [
        [ToolCallPart("look", {"n": 1}), ToolCallPart("look", {"n": 2})],
        [ToolCallPart("send", {"n": 3})],
        [ToolCallPart("write", {"n": 4}), ToolCallPart("think", {})],
        [ToolCallPart("publish", {"n": 5})],
        [TextPart("done")],
    ]
    return ModelResponse(parts=turns[turn])


def look(n: int) -> int:
    arrive("tool begins")
    witness("tool")
    arrive("tool ends")
    return n


@pgflow.effects.effect(risk="irreversible", dedup_window=timedelta(days=1))
async def send(n: int) -> int:
    arrive("effect begins")
    witness("effect")
    arrive("effect ends")
    return n


@pgflow.transaction
async def write(conn: psycopg.AsyncConnection, n: int) -> int:
    await conn.execute("insert into written (run) values (%s)", (pgflow.run_info().key,))
    arrive("transaction")
    return n


async def think() -> str:
    arrive("between")
    return "thought"


def publish(n: int) -> int:
    arrive("approved tool")
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


FLOWS = (work, work_in_thread)


def serve(dsn: str, **options: Any) -> None:
    """Work as a child of the nursery."""
    fates.serve(dsn, FLOWS, **options)


def judge(conn: psycopg.Connection[Any], key: str) -> Iterator[str]:
    """Look at what only this agent leaves: its decisions, and the row of its transaction."""
    rows = conn.execute("select decision from pgflow.decisions where key = %s", (key,)).fetchall()
    if len(rows) != CHARGES or len(set(rows)) != CHARGES:
        yield f"{key} has {len(rows)} requests on record"
    row = conn.execute("select count(*) from written where run = %s", (key,)).fetchone()
    if row != (1,):
        yield f"{key} has written {row}"
