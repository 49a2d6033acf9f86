"""Models that say what a test has written down, in order of the responses before."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip(
    "pydantic_ai.durable_exec", reason="pydantic-ai is not installed: pip install -e '.[adapters]'"
)

from collections.abc import Callable

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from pgflow.agent.pydantic_ai import PgflowDurability
from pgflow.inspect import ask_async, find_run, list_decisions, list_steps

asked: list[str] = []
"""Names of the models that were asked."""


def call(tool: str, **args: Any) -> ToolCallPart:
    return ToolCallPart(tool, args)


def model(*turns: Any, name: str = "small-1") -> FunctionModel:
    """Say the next of the turns: a text, a call, a list of calls, or an error that is raised each
    time that it is asked.
    """

    def say(messages: Any, info: Any) -> ModelResponse:
        asked.append(name)
        turn = turns[sum(isinstance(message, ModelResponse) for message in messages)]
        if callable(turn):
            turn = turn(messages, info)
        if isinstance(turn, str):
            turn = TextPart(turn)
        return ModelResponse(parts=turn if isinstance(turn, list) else [turn])

    return FunctionModel(say, model_name=name)


def echo(messages: Any, info: Any) -> str:
    """Answer with what the tools have returned."""
    return " ".join(str(part.content) for part in messages[-1].parts)


def durable(*turns: Any, name: str, tools: Any = (), **options: Any) -> Agent[Any, Any]:
    own = {
        k: options.pop(k)
        for k in ("deps_type", "output_type", "toolsets", "retries")
        if k in options
    }
    more = options.pop("more", ())
    said = turns[0] if len(turns) == 1 and hasattr(turns[0], "model_name") else model(*turns)
    return Agent(
        said, name=name, tools=tools, capabilities=[*more, PgflowDurability(**options)], **own
    )


def raising(error: Exception) -> Callable[..., Any]:
    def turn(*_: Any) -> Any:
        raise error

    return turn


async def steps_of(flow: Any, run: Any) -> list[tuple[str, str]]:
    """Names of a run's steps and decisions in the order of its code, and what became of them."""
    rows = [(row.call, row.step, row.status) for row in await rows_of(flow, run)]
    decisions = await ask_async(flow.app, list_decisions(await run_id_of(flow, run), limit=None))
    rows += [(row.call, row.name, "decided") for row in decisions]
    return [(name, status) for _, name, status in sorted(rows)]


async def rows_of(flow: Any, run: Any) -> list[Any]:
    return list(await ask_async(flow.app, list_steps(await run_id_of(flow, run), limit=None)))


async def run_id_of(flow: Any, run: Any) -> int:
    return (await ask_async(flow.app, find_run(run.key))).run_id
