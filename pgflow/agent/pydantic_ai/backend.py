"""Backend of an agent: the unit of work that pydantic-ai hands over becomes a step of the run.

A request to a model is a decision. A tool call is a step, or a read. In a sync workflow the agent
runs on a loop of the workflow's own thread, which pauses during a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

# pyright: reportMissingImports=false
from pydantic_ai import _utils  # noqa: PLC2701 - nothing public keeps its functions off threads in workflow code, and on them in a step
from pydantic_ai.durable_exec import (
    JournalCallableOperationBackend,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
)

import pgflow
from pgflow._flow.step import Step
from pgflow._model.kinds import StepKind
from pgflow.agent.colour import perform
from pgflow.agent.pydantic_ai.errors import FINAL, naming, refusals_are_final
from pgflow.agent.pydantic_ai.options import StepOptions
from pgflow.agent.pydantic_ai.reasons import Price, choice_of
from pgflow.agent.pydantic_ai.spending import take_usage, with_usage

Body = Callable[[], Awaitable[Any]]

decided: ContextVar[list[pgflow.decisions.Decision[Any]] | None] = ContextVar(
    "pgflow_pydantic_ai_decided", default=None
)
"""The last decision of the agent's run at hand, in a list that its tasks share."""


without_threads = _utils.disable_threads
"""Runs functions that are a ``def`` at once, as code of the workflow."""


@contextlib.contextmanager
def with_threads() -> Iterator[None]:
    """Let functions that are a ``def`` run in threads again: in the body of a step."""
    token = _utils._disable_threads.set(False)
    try:
        yield
    finally:
        _utils._disable_threads.reset(token)


class Backend(JournalCallableOperationBackend[StepOptions]):
    """Makes steps of units of work."""

    def __init__(self, *, price: Price, **options: Any) -> None:
        super().__init__(**options)
        self._price = price

    async def execute(
        self,
        *,
        operation_id: Any,
        name: str,
        body: Body,
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> Any:
        """Run a unit of work as a step; see the base class."""
        if not pgflow.in_workflow():
            return await body()
        if isinstance(operation_id, (ModelRequestId, ModelCompactMessagesId)):
            return await self._decide(name, body, cache_key[1:-1], config, operation_id.model_name)

        is_tool = isinstance(operation_id, ToolsetCallToolId)

        async def work() -> Any:
            with with_threads(), naming(name):
                return await (with_usage(body) if is_tool else body())

        kind = StepKind.READ if config.get("kind") == "read" else StepKind.STEP
        return take_usage(await perform(_step(work, kind, name, config)), cache_key)

    async def _decide(
        self, name: str, body: Body, asked: tuple[object, ...], config: StepOptions, model: str
    ) -> Any:
        async def choose() -> pgflow.decisions.Choice[Any]:
            with (
                with_threads(),
                naming(name),
                refusals_are_final(),
                pgflow.extensions.operation("chat", model) as request,
            ):
                return choice_of(await body(), asked, self._price, request)

        decision = await perform(_step(choose, StepKind.DECISION, name, config))
        if (box := decided.get()) is not None:
            box[:] = [decision]
        return decision.value


def _step(
    fn: Callable[[], Awaitable[Any]], kind: str, name: str, config: StepOptions
) -> Step[[], Any]:
    step: Step[[], Any] = Step(
        fn, kind, name, config.get("retries", 3), config.get("timeout"), FINAL
    )
    admit = config.get("admit")
    return step if admit is None else step.options(admit=admit)
