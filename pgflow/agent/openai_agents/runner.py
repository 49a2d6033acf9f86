"""Runs of agents in a workflow: the Runner of the SDK over durable parts, and the gates of tools.

A tool that needs approval interrupts the Runner, as usual. Here a gate asks then, with the tool and
its arguments, and the Runner goes on with the answer. If the approver edits the arguments, the tool
is called with the edited ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from agents import (
    Agent,
    Handoff,
    RunConfig,
    Runner,
    RunResult,
    RunState,
    ToolApprovalItem,
)

import pgflow
from pgflow import Retries
from pgflow.agent.openai_agents.parts import StepModel, StepProvider, step_guardrail, step_tool
from pgflow.authority import Approved, Rejected
from pgflow.errors import InvalidArgument


def durable(
    agent: Agent[Any],
    *,
    retries: Retries | int = 3,
    edits: dict[str, str] | None = None,
) -> Agent[Any]:
    """Returns an agent whose models, function tools and guardrails are steps, and those to which it
    hands off, too. :func:`run` does this by itself.

    Args:
        agent: The agent.
        retries: Tries of each step. Let the client of the model try once.
        edits: Arguments that a person has approved instead of the model's, by the ids of calls.

    Raises:
        InvalidArgument: It has tools of servers, or some that the SDK runs itself.
    """
    return _durable(agent, retries, {} if edits is None else edits, {})


def _durable(
    agent: Agent[Any], retries: Retries | int, edits: dict[str, str], made: dict[int, Agent[Any]]
) -> Agent[Any]:
    if id(agent) in made:  # agents may hand off in a circle
        return made[id(agent)]
    if agent.mcp_servers:
        raise InvalidArgument(
            f"agent {agent.name!r} has MCP servers, which are asked in the workflow: make function "
            "tools of what they offer"
        )
    model = agent.model
    clone = made[id(agent)] = agent.clone(
        model=model
        if model is None or isinstance(model, str)
        else StepModel(model, agent.name, retries),
        tools=[step_tool(tool, edits, retries) for tool in agent.tools],
        input_guardrails=[step_guardrail(each, retries) for each in agent.input_guardrails],
        output_guardrails=[step_guardrail(each, retries) for each in agent.output_guardrails],
    )
    clone.handoffs = [
        _durable(other, retries, edits, made)
        if isinstance(other, Agent)
        else _durable_handoff(other, retries, edits, made)
        for other in agent.handoffs
    ]
    return clone


def _durable_handoff(
    handoff: Handoff[Any, Any],
    retries: Retries | int,
    edits: dict[str, str],
    made: dict[int, Agent[Any]],
) -> Handoff[Any, Any]:
    inner = handoff.on_invoke_handoff

    async def invoke(context: Any, arguments: str) -> Agent[Any]:
        return _durable(await inner(context, arguments), retries, edits, made)

    return dataclasses.replace(handoff, on_invoke_handoff=invoke)


async def run(
    agent: Agent[Any],
    given: Any,
    *,
    approvers: Sequence[str] = (),
    timeout: timedelta | float | None = None,
    retries: Retries | int = 3,
    run_config: RunConfig | None = None,
    **options: Any,
) -> RunResult:
    """Run an agent in an async workflow, as ``Runner.run`` does outside. The answers of models,
    tools and guardrails are recorded, and a tool that needs approval is a gate.

    Args:
        agent: The agent.
        given: Input of the Runner.
        approvers: Names or roles of the people who may approve a tool; none for anyone.
        timeout: Time to answer. After it the model gets a refusal.
        retries: Tries of each step. Let the client of the model try once.
        run_config: Configuration of the Runner.
        **options: Options of the Runner: ``context``, ``session``, ``max_turns``.

    Returns:
        The result, as the Runner returns it.

    Raises:
        InvalidArgument: The agent has a part that cannot be durable.

    Example::

        @workflow
        async def answer(question: str) -> str:
            return (await openai_agents.run(agent, question)).final_output
    """
    config = run_config or RunConfig()
    if not pgflow.in_workflow():
        return await Runner.run(agent, given, run_config=config, **options)
    edits: dict[str, str] = {}
    config = dataclasses.replace(
        config,
        model_provider=StepProvider(config.model_provider, retries),
        tracing_disabled=True,  # whose threads would be code of the workflow
    )
    made = durable(agent, retries=retries, edits=edits)
    with pgflow.extensions.operation(
        "invoke_agent", agent.name, conversation=_conversation(options)
    ):
        while True:
            with pgflow.inline():
                result = await Runner.run(made, given, run_config=config, **options)
            if not result.interruptions:
                return result
            given = result.to_state()
            asking = [_ask(asked, approvers, timeout) for asked in result.interruptions]
            verdicts = await asyncio.gather(*asking)
            for asked, verdict in zip(result.interruptions, verdicts, strict=True):
                _tell(given, asked, verdict, edits)


def _conversation(options: dict[str, Any]) -> str | None:
    """Return the id of the conversation, if there is one."""
    session = options.get("session")
    found = options.get("conversation_id") or getattr(session, "session_id", None)
    return None if found is None else str(found)


def _request_of(asked: ToolApprovalItem) -> dict[str, Any]:
    """Return what a person is asked: the tool, and its arguments as the model gave them."""
    text = asked.arguments or "{}"
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = text
    return {"tool": asked.tool_name, "arguments": arguments}


async def _ask(
    asked: ToolApprovalItem, approvers: Sequence[str], timeout: timedelta | float | None
) -> Any:
    return await pgflow.authority.gate(
        f"tool:{asked.tool_name}", _request_of(asked), approvers=approvers, timeout=timeout
    )


def _tell(
    state: RunState[Any], asked: ToolApprovalItem, verdict: Any, edits: dict[str, str]
) -> None:
    """Apply a person's answer to the Runner's state."""
    if not isinstance(verdict, Approved):
        reason = verdict.reason if isinstance(verdict, Rejected) else ""
        state.reject(asked, rejection_message=reason or "This call was not approved.")
        return
    arguments = verdict.value.get("arguments")
    if verdict.value != _request_of(asked) and asked.call_id is not None:
        edits[asked.call_id] = json.dumps(arguments)
    state.approve(asked)
