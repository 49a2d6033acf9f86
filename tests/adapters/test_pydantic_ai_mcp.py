"""Tools of MCP servers are steps of the run, and so is the list of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from records import SOON, eventually, launch, settle
from scripted import call, durable, echo, steps_of

import pgflow
from pgflow.agent.pydantic_ai import Approvals, PgflowDurability
from pgflow.authority import Approve

pytest.importorskip("fastmcp.server", reason="pip install -e '.[adapters]'")

from fastmcp import FastMCP  # noqa: E402
from fastmcp.exceptions import ToolError  # noqa: E402
from pydantic_ai.capabilities import (  # noqa: E402
    MCP,
    Capability,
    DynamicCapability,
    SetToolMetadata,
    Toolset,
)
from pydantic_ai.exceptions import UserError  # noqa: E402
from pydantic_ai.mcp import MCPToolset  # noqa: E402
from pydantic_ai.toolsets import DynamicToolset  # noqa: E402

from pgflow.testing import AsyncHarness

server = FastMCP("weather", instructions="Be brief.")
called: list[str] = []
stop_at: list[str] = []
ROME = "{'city': 'Rome', 'degrees': 21}"


@server.tool
async def forecast(city: str) -> dict[str, Any]:
    called.append(city)
    if city in stop_at:
        await asyncio.Event().wait()
    return {"city": city, "degrees": 21}


@server.tool
async def fail() -> str:
    called.append("fail")
    raise ToolError("out of order")


def told(messages: Any, info: Any) -> str:
    return f"{info.instructions} {echo(messages, info)}"


async def enqueue(ctx: Any, call_tool: Any, name: str, args: dict[str, Any]) -> Any:
    """Say what a replay would not hear, from the hook of a toolset."""
    try:
        ctx.enqueue("more")
    except UserError as refused:
        return str(refused)
    return await call_tool(name, args)


def choose(_: Any) -> MCPToolset[Any]:
    return MCPToolset(server, id="chosen")


class Tasked(MCPToolset[Any]):
    """Tools that are tasks of the server, as it says in their list."""

    async def get_tools(self, ctx: Any) -> Any:
        return {
            name: replace(
                tool, tool_def=replace(tool.tool_def, metadata={"task": name == "forecast"})
            )
            for name, tool in (await super().get_tools(ctx)).items()
        }

    async def direct_call_tool(
        self, name: str, args: Any, *, metadata: Any = None, use_task: bool = False
    ) -> Any:
        called.append(f"{name} as a task: {use_task}")
        return await super().direct_call_tool(name, args, metadata=metadata)


forecasts = [call("forecast", city="Rome"), call("forecast", city="Oslo")]
agents = {
    "plain": durable(forecasts, call("forecast", city="Bonn"), told, name="plain",
                     toolsets=[MCPToolset(server, id="w", include_instructions=True)]),
    "listing": durable(forecasts, echo, name="listing",
                       toolsets=[MCPToolset(server, id="w", cache_tools=False)]),
    "read": durable(call("forecast", city="Rome"), echo, name="read",
                    more=[SetToolMetadata(pgflow={"kind": "read", "retries": 1})],
                    toolsets=[MCPToolset(server, id="w")]),
    "in_code": durable(call("forecast", city="Rome"), echo, name="in_code",
                       more=[SetToolMetadata(pgflow=False)], toolsets=[MCPToolset(server, id="w")]),
    "hook": durable(call("forecast", city="Rome"), echo, name="hook",
                    toolsets=[MCPToolset(server, id="w", process_tool_call=enqueue)]),
    "capable": durable(call("forecast", city="Rome"), echo, name="capable",
                       more=[Toolset(MCPToolset(server, id="w"))]),
    "tasks": durable([call("forecast", city="Rome"), call("fail")], "done", name="tasks",
                     toolsets=[Tasked(server, id="w", tool_error_behavior="failed")]),
    "dynamic": durable(call("forecast", city="Rome"), echo, name="dynamic",
                       toolsets=[DynamicToolset(choose, id="d")]),
    "dynamic_capability": durable(call("forecast", city="Rome"), echo, name="dynamic_capability", more=[
        DynamicCapability(lambda ctx: Capability(toolsets=[choose(ctx)]), id="d")]),
    "late": durable("?", name="late"),
    "failing": durable(*[call("fail")] * 5, name="failing", retries=3,
                       toolsets=[MCPToolset(server, id="w")]),
    "told": durable(call("fail"), echo, name="told",
                    toolsets=[MCPToolset(server, id="w", tool_error_behavior="failed")]),
    "asking": durable(call("forecast", city="Rome"), echo, name="asking", approvals=Approvals(["ops"]),
                      toolsets=[MCPToolset(server, id="w").approval_required()]),
}  # fmt: skip


@pgflow.workflow
async def use(name: str) -> str:
    return str((await agents[name].run("hi")).output)


@pgflow.workflow
def use_in_thread(name: str) -> str:
    return str(agents[name].run_sync("hi").output)


@pgflow.workflow
async def use_late(kind: str) -> str:
    late: Any = {
        "mcp": MCPToolset(server, id="late"),
        "dynamic": DynamicToolset(choose, id="late"),
    }[kind]
    try:
        async with agents["late"].iter("hi", toolsets=[late]):
            return "?"
    except UserError as refused:
        return str(refused)


def names(steps: list[tuple[str, str]]) -> list[str]:
    return [name.partition("__")[2] for name, _ in steps]


async def used(aflow: AsyncHarness, name: str, workflow: Any = use) -> tuple[str, list[str]]:
    called.clear()
    run = await aflow.start(workflow, name)
    return await run.result(), names(await steps_of(aflow, run))


async def test_a_tool_of_a_server_is_a_step_and_so_is_the_list_of_tools(aflow):
    aflow.include(use, use_in_thread)
    for workflow in (use, use_in_thread):
        result, steps = await used(aflow, "plain", workflow)
        assert "Be brief." in result
        assert "{'city': 'Bonn', 'degrees': 21}" in result
        assert called == ["Rome", "Oslo", "Bonn"]
        assert steps == [
            "mcp_server__w.get_tools", "mcp_server__w.get_instructions", "model.request",
            "mcp_server__w.call_tool", "mcp_server__w.call_tool", "mcp_server__w.get_instructions",
            "model.request", "mcp_server__w.call_tool", "mcp_server__w.get_instructions",
            "model.request",
        ]  # fmt: skip
    _, steps = await used(aflow, "listing")
    assert steps.count("mcp_server__w.get_tools") == 2
    for name in ("read", "capable"):
        assert await used(aflow, name) == (
            ROME,
            [
                "mcp_server__w.get_tools",
                "model.request",
                "mcp_server__w.call_tool",
                "model.request",
            ],
        )
    for name in ("dynamic", "dynamic_capability"):
        result, steps = await used(aflow, name)
        assert result == ROME
        assert steps.count("dynamic_toolset__d.call_tool:forecast") == 1
        assert called == ["Rome"]


async def test_a_tool_that_is_a_task_of_the_server_is_called_as_one(aflow):
    aflow.include(use)
    assert (await used(aflow, "tasks"))[0] == "done"
    assert sorted(called) == ["Rome", "fail", "fail as a task: False", "forecast as a task: True"]


async def test_errors_of_a_server_are_told_to_the_model_and_not_tried_again(aflow):
    aflow.include(use, use_late)
    assert (await used(aflow, "told"))[0] == "out of order"
    assert called == ["fail"]
    with pytest.raises(pgflow.RunFailed, match="exceeded max retries count of 3"):
        await used(aflow, "failing")
    assert called == ["fail"] * 4
    assert "enqueued messages would be dropped" in (await used(aflow, "hook"))[0]
    with pytest.raises(pgflow.RunFailed, match="cannot run outside a durable step"):
        await used(aflow, "in_code")
    for kind in ("mcp", "dynamic"):
        assert "cannot be added at runtime" in (await used(aflow, kind, use_late))[0]
    run = await settle(aflow, use, "asking")
    await aflow.answer("asking:forecast", Approve(edit={"city": "Lima"}), by="ops")
    assert await run.result() == "{'city': 'Lima', 'degrees': 21}"


async def test_a_killed_worker_lists_and_calls_nothing_again(aflow):
    called.clear()
    stop_at[:] = ["Bonn"]
    run = await launch(aflow, use, "plain")
    await eventually(lambda: called == ["Rome", "Oslo", "Bonn"], "the last tool has begun")
    await aflow.crash()
    stop_at.clear()
    await aflow.until_idle()
    assert "'Bonn'" in await run.result(SOON)
    assert called == ["Rome", "Oslo", "Bonn", "Bonn"]
    assert names(await steps_of(aflow, run)).count("mcp_server__w.get_tools") == 1


def test_a_toolset_has_a_name_of_its_own():
    with pytest.raises(UserError, match="unique `id`"):
        durable("x", name="n", toolsets=[MCPToolset(server)])
    with pytest.raises(UserError, match="same `id` 'w'"):
        durable("x", name="n", toolsets=[MCPToolset(server, id="w"), MCPToolset(server, id="w")])
    with pytest.raises(UserError, match=r"DynamicCapability\(\.\.\., id='user-tools'\)"):
        durable("x", name="n", more=[DynamicCapability(lambda ctx: Capability())])
    with pytest.raises(UserError, match="used by multiple capabilities"):
        durable("x", name="n", more=[MCP(url="https://a.com/1"), MCP(url="https://a.com/2")])
    shared = MCPToolset(server, id="w")
    durable("x", name="n", toolsets=[shared, shared])
    agent = durable("x", name="n", more=[MCP(url="https://mcp.example.com/api")])
    backend = PgflowDurability.from_agent(agent)
    assert list(backend._toolsets_by_id) == ["<agent>", "mcp.example.com"]


def test_outside_of_workflows_a_server_is_called_as_without_pgflow():
    called.clear()
    for name in ("plain", "dynamic_capability"):
        assert "21" in asyncio.run(agents[name].run("hi")).output
    assert called == ["Rome", "Oslo", "Bonn", "Rome"]
