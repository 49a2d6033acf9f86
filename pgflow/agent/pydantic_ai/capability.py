"""Capability that makes an agent of pydantic-ai durable.

pydantic-ai's own base class takes the agent apart into units of work, and knows which of its code
is that of the workflow. This module adds the engine's part: how a unit is run (``backend``), how
the code gets ids and times, and who is asked for approval.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, cast

# pyright: reportMissingImports=false
from pydantic_ai import Agent
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    RoleBasedOperationConfig,
    conversation_id_from_run_id,
    external_event_scope,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model

import pgflow
from pgflow.agent.colour import is_sync, sleep
from pgflow.agent.pydantic_ai.approvals import Terms, settle
from pgflow.agent.pydantic_ai.backend import Backend, decided, without_threads
from pgflow.agent.pydantic_ai.events import Waiter
from pgflow.agent.pydantic_ai.options import (
    KEY,
    ModelOptions,
    StepOptions,
    checked,
    options_of_tool,
)
from pgflow.agent.pydantic_ai.reasons import Price, listed_price
from pgflow.agent.pydantic_ai.spending import counted_apart


@dataclass(init=False, kw_only=True)
class PgflowDurability(BaseDurabilityCapability[Any]):
    """Make an agent durable in the workflows that run it.

    Attributes:
        name: Name of the agent in the names of its steps, which must stay the same.

    Example::

        agent = Agent(model, name="support", capabilities=[PgflowDurability()])
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="pgflow",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=JSON_CODEC,
        # Bodies run on the worker's loop, the code on the workflow's: each body opens its own.
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-never",
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=KEY,
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Any] | None = None,
        event_stream_handler: Callable[..., Any] | None = None,
        name: str | None = None,
        model: ModelOptions | None = None,
        tool: StepOptions | None = None,
        event: StepOptions | None = None,
        approvals: Terms | None = None,
        price: Price = listed_price,
    ) -> None:
        """Create the capability, for one or more agents.

        Args:
            models: More models by name, for runs that ask for another than the agent's own.
            event_stream_handler: Gets the events of each response while it streams, in the body of
                the request's step; the events of tools in steps of their own.
            name: Name of the agent in the names of its steps; the agent's own if not given.
            model: Options of requests to models.
            tool: Options of tool calls, where the tool's metadata says nothing else.
            event: Options of calls of the handler.
            approvals: Terms of the gates at which tool calls are approved, for all or by the names
                of tools. Calls without any are returned by the run, as without pgflow.
            price: Cost of a response in dollars; by pydantic-ai's price list if not given.
        """
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model = cast("StepOptions", dict(model or {}))
        self._tool = checked(tool or StepOptions(), "PgflowDurability(tool=...)")
        self._event = checked(event or StepOptions(), "PgflowDurability(event=...)")
        self._approvals = approvals
        self._price = price

    @property
    def in_durable_context(self) -> bool:
        """True in the code of a workflow."""
        return pgflow.in_workflow()

    def get_default_run_id(self) -> str | None:
        """Return the id of an agent's run, the same at every replay."""
        return str(pgflow.uuid()) if pgflow.in_workflow() else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of its conversation."""
        return conversation_id_from_run_id(run_id) if pgflow.in_workflow() else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:  # noqa: ARG002 - the base's
        """Return the time from which the agent's ``timeout=`` counts."""
        return pgflow.now() if pgflow.in_workflow() else None

    def _durable_run_context(self, ctx: Any) -> Any:
        """Refuse events of a body that a replay could not repeat, and hide open toolsets.

        Those are open for the code of the workflow, which has a loop of its own.
        """
        try:
            pgflow.run_info()
        except pgflow.errors.NotInRunError:
            return ctx
        guarded = super()._durable_run_context(counted_apart(ctx))
        return replace(guarded, _run_held_toolsets=None)

    def get_durable_operation_backend(self) -> Backend:
        """Return what makes steps of units of work."""
        config = RoleBasedOperationConfig(
            model=self._model,
            event=self._event,
            capability=self._tool,
            tool=self._tool,
            resolve_tool=self._options_of,
        )
        return Backend(price=self._price, agent_name=self.name, config=config)

    def _options_of(
        self, _operation: Any, tool: object | None, name: str
    ) -> StepOptions | Literal[False]:
        own = options_of_tool(tool, name)
        return False if own is False else StepOptions(**{**self._tool, **own})

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        """Run the agent as code of the workflow."""
        if not pgflow.in_workflow():
            return await super().wrap_run(ctx, handler=handler)
        if not isinstance(ctx.model, Model):
            raise UserError("a realtime session cannot be used in a workflow: open it in a step")
        with (
            _as_workflow_code(),
            external_event_scope(Waiter()),
            pgflow.extensions.operation(
                "invoke_agent",
                self.name,
                provider=getattr(ctx.model, "system", None),
                conversation=ctx.conversation_id,
            ),
        ):
            return await super().wrap_run(ctx, handler=handler)

    async def wrap_tool_execute(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        """Make what a tool call does rest on the decision that asked for it."""
        with _resting(), _telling(call):
            return await super().wrap_tool_execute(
                ctx, call=call, tool_def=tool_def, args=args, handler=handler
            )

    async def handle_deferred_tool_calls(self, ctx: Any, *, requests: Any) -> Any:  # noqa: ARG002 - the base's
        """Ask for approval at gates."""
        if self._approvals is None or not pgflow.in_workflow():
            return None
        with _resting():
            return await settle(self.name, requests, self._approvals)


@contextlib.contextmanager
def _as_workflow_code() -> Iterator[None]:
    """Keep the framework's own helpers off threads, and its waits durable."""
    token = decided.set([])
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(without_threads())
            if is_sync():
                stack.enter_context(Agent.using_sleep(sleep))
            yield
    finally:
        decided.reset(token)


def _resting() -> contextlib.AbstractContextManager[None]:
    last = decided.get() if pgflow.in_workflow() else None
    return pgflow.because(last[0]) if last else contextlib.nullcontext()


def _telling(call: Any) -> contextlib.AbstractContextManager[Any]:
    """Trace a tool call, in the code of a workflow."""
    if not pgflow.in_workflow():
        return contextlib.nullcontext()
    return pgflow.extensions.operation("execute_tool", call.tool_name, id=call.tool_call_id)
