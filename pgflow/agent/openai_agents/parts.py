"""The parts of an agent that touch the world, as steps: models, function tools and guardrails.

All else of the SDK is code of the workflow, and runs again at a replay over what these have
recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agents import (
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    Model,
    ModelProvider,
    ModelResponse,
    OutputGuardrail,
    Tool,
)

import pgflow
from pgflow import Retries
from pgflow.errors import InvalidArgument

LOCAL_TOOLS = ("ComputerTool", "ShellTool", "LocalShellTool", "ApplyPatchTool", "CustomTool")
"""Tools that the SDK runs in its own process, and that are not functions."""


class StepModel(Model):
    """A model whose requests are steps.

    Args:
        inner: The model.
        name: Its name, if the agent has one for it.
        retries: Tries of a request.
    """

    def __init__(self, inner: Model, name: str, retries: Retries | int) -> None:
        self._inner, self._name, self._retries = inner, name, retries

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        """Returns the response that is recorded, or asks for one."""

        async def ask() -> ModelResponse:
            model = getattr(self._inner, "model", self._name)
            with pgflow.extensions.operation("chat", str(model)) as request:
                response = await self._inner.get_response(*args, **options)
                describe(request, response)
            return response

        return await pgflow.call(f"model:{self._name}", ask, retries=self._retries)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # noqa: ARG002
        """Refuses: the tokens of a response are not code of a workflow.

        Raises:
            InvalidArgument: Always.
        """
        raise InvalidArgument("a run streams what its steps emit: call run(), not run_streamed()")


class StepProvider(ModelProvider):
    """A provider whose models are those of another, as steps."""

    def __init__(self, inner: ModelProvider, retries: Retries | int) -> None:
        self._inner, self._retries = inner, retries

    def get_model(self, model_name: str | None) -> Model:
        """Returns the model of this name."""
        model = self._inner.get_model(model_name)
        return StepModel(model, model_name or "default", self._retries)


def describe(request: pgflow.extensions.Operation, response: ModelResponse) -> None:
    """Add a response to a trace. The SDK does not name the provider."""
    usage = response.usage
    request.id, request.model = response.response_id, request.name
    request.input_tokens, request.output_tokens = usage.input_tokens, usage.output_tokens
    request.cached_tokens = usage.input_tokens_details.cached_tokens or None


def step_tool(tool: Tool, edits: Mapping[str, str], retries: Retries | int) -> Tool:
    """Return a tool whose calls are steps.

    Args:
        tool: The tool.
        edits: Arguments that a person has approved instead of the model's, by the ids of calls.
        retries: Tries of a call.

    Raises:
        InvalidArgument: It is run by the SDK itself, which no step can take over.
    """
    if not isinstance(tool, FunctionTool):
        if type(tool).__name__ in LOCAL_TOOLS:
            raise InvalidArgument(
                f"{type(tool).__name__} cannot be a step: give the agent a function_tool that does "
                "the same"
            )
        return tool
    inner = tool.on_invoke_tool

    async def invoke(context: Any, arguments: str) -> Any:
        given = edits.get(context.tool_call_id, arguments)

        async def act() -> Any:
            return await inner(context, given)

        with pgflow.extensions.operation("execute_tool", tool.name, id=context.tool_call_id):
            return await pgflow.call(f"tool:{tool.name}", act, retries=retries)

    return dataclasses.replace(tool, on_invoke_tool=invoke)


def step_guardrail(
    guardrail: InputGuardrail[Any] | OutputGuardrail[Any], retries: Retries | int
) -> Any:
    """Return a guardrail that judges in a step."""
    name = guardrail.get_name()

    async def judge(*given: Any) -> GuardrailFunctionOutput:
        async def look() -> dict[str, Any]:
            output = (await guardrail.run(*_in_order(guardrail, given))).output
            return {"info": output.output_info, "tripped": output.tripwire_triggered}

        verdict: dict[str, Any] = await pgflow.call(f"guardrail:{name}", look, retries=retries)
        return GuardrailFunctionOutput(verdict["info"], verdict["tripped"])

    return dataclasses.replace(guardrail, guardrail_function=judge, name=name)


def _in_order(guardrail: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments of a guardrail's function in the order of its method ``run``."""
    context, agent, value = given
    if isinstance(guardrail, InputGuardrail):
        return agent, value, context
    return context, agent, value
