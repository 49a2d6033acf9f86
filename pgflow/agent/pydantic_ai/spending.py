"""Usage of an agent that a tool calls: recorded with the result of the tool, counted by the run.

pydantic-ai lets such an agent add to ``ctx.usage``, the count of the run that asked. A replay does
not run the body again, so what a body adds would be missing there, and limits would be met later.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

# pyright: reportMissingImports=false
from pydantic import TypeAdapter
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RunUsage

KIND = "pgflow_spent"
"""Kind of a result that has usage beside it; no other of pydantic-ai's results has it."""

_USAGE: TypeAdapter[Any] = TypeAdapter(RunUsage)
_counts: ContextVar[list[tuple[Any, Any]] | None] = ContextVar("pgflow_spent", default=None)
"""Counts that the body at hand may add to, each with its state before."""


def counted_apart(ctx: Any) -> Any:
    """Return the context with a count of its own, for the body of a step."""
    own = copy.deepcopy(ctx.usage)
    if (counts := _counts.get()) is not None:
        counts.append((own, copy.deepcopy(own)))
    return replace(ctx, usage=own)


async def with_usage(body: Callable[[], Awaitable[Any]]) -> Any:
    """Run the body of a tool call, and return its result with the usage that it added."""
    counts: list[tuple[Any, Any]] = []
    token = _counts.set(counts)
    try:
        payload = await body()
    finally:
        _counts.reset(token)
    spent = RunUsage()
    for now, before in counts:
        spent.incr(now - before)
    if not spent.has_values():
        return payload
    return {"kind": KIND, "usage": _USAGE.dump_python(spent, mode="json"), "result": payload}


def take_usage(recorded: Any, asked: tuple[object, ...]) -> Any:
    """Return the result of a tool call, and add its usage to the run's."""
    if not isinstance(recorded, dict) or recorded.get("kind") != KIND:
        return recorded
    for ctx in asked:
        if isinstance(ctx, RunContext):
            ctx.usage.incr(_USAGE.validate_python(recorded["usage"]))
    return recorded["result"]
