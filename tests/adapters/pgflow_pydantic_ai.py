"""A small adapter for pydantic-ai: requests to models, tool calls and outside events as steps of a
run.

agent = Agent(model, name="support", capabilities=[PgflowDurability()])

@pgflow.workflow
async def answer(question: str) -> str:
    return (await agent.run(question)).output

"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from pydantic_ai import _utils
from pydantic_ai import exceptions as ai_errors
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    ExternalEventError,
    ExternalEventWaiter,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    conversation_id_from_run_id,
    external_event_scope,
)
from pydantic_ai.durable_exec._toolset import guard_run_context

import pgflow

pgflow.register_errors(
    *(e for e in vars(ai_errors).values() if isinstance(e, type) and issubclass(e, Exception))
)

FINAL = (ai_errors.UserError, ai_errors.UnexpectedModelBehavior, ai_errors.UsageLimitExceeded)


class StepConfig(TypedDict, total=False):
    retries: int | pgflow.Retries
    timeout: timedelta


class Backend(JournalCallableOperationBackend[StepConfig]):
    async def execute(
        self,
        *,
        operation_id: str,
        name: str,
        body: Callable[[], Awaitable[Any]],
        cache_key: Any,
        config: StepConfig,
    ) -> Any:
        if not pgflow.in_workflow():
            return await body()

        async def unit() -> Any:
            return await body()

        return await pgflow.call(name, unit, raises=FINAL, **{"retries": 1, **config})


class Waiter(ExternalEventWaiter):
    """A token is `<run key>/<signal>`: whoever has it sends that signal."""

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[Any]], timeout: timedelta | None
    ) -> Any:
        signal = pgflow.Signal(f"pydantic-ai:{name}:{pgflow.uuid()}", Any)
        answer = await pgflow.call(
            f"ask:{name}", lambda: ask(f"{pgflow.run_info().key}/{signal.name}")
        )
        if answer is not None:
            return answer
        try:
            payload = await signal.wait(timeout=timeout)
        except TimeoutError:
            raise ExternalEventError(f"No resolution arrived within {timeout}.") from None
        if "error" in payload:
            raise ExternalEventError(payload["error"])
        return payload["value"]


def _tool_config(tool: Any) -> StepConfig | Literal[False]:
    config = (getattr(getattr(tool, "tool_def", None), "metadata", None) or {}).get("pgflow", {})
    return config if config is False else StepConfig(**config)


@dataclass(init=False, kw_only=True)
class PgflowDurability(BaseDurabilityCapability[Any]):
    engine_spec = DurabilityEngineSpec(
        engine_name="pgflow",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=JSON_CODEC,
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"mcp", "dynamic"}),
        sequential_tools_in_durable_context=False,
        tool_config_key="pgflow",
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Any] | None = None,
        event_stream_handler: Any = None,
        name: str | None = None,
        model_step: StepConfig | None = None,
        tool_step: StepConfig | None = None,
        event_step: StepConfig | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._steps = (
            model_step or StepConfig(),
            event_step or StepConfig(),
            tool_step or StepConfig(),
        )

    @property
    def in_durable_context(self) -> bool:
        return pgflow.in_workflow()

    def get_default_run_id(self) -> str | None:
        return str(pgflow.uuid()) if pgflow.in_workflow() else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if pgflow.in_workflow() else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        return pgflow.now() if pgflow.in_workflow() else None

    def _durable_run_context(self, ctx: Any) -> Any:
        try:
            pgflow.run_info()
        except pgflow.NotInRunError:
            return ctx
        return guard_run_context(ctx, unit_noun="step", container_noun="workflow")

    def get_durable_operation_backend(self) -> Backend:
        model, event, tool = self._steps

        def resolve(_operation: Any, of: Any, _name: str) -> StepConfig | Literal[False]:
            return {**tool, **own} if (own := _tool_config(of)) is not False else False

        config = RoleBasedOperationConfig(
            model=model, event=event, capability=tool, tool=tool, resolve_tool=resolve
        )
        return Backend(agent_name=self.name, config=config)

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        if not pgflow.in_workflow():
            return await super().wrap_run(ctx, handler=handler)
        with _utils.disable_threads(), external_event_scope(Waiter()):
            return await super().wrap_run(ctx, handler=handler)
