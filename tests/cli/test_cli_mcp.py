"""``pgflow mcp``: what it refuses before an assistant can talk to it, and the talk by pipes."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from typing import TYPE_CHECKING, Any

import pytest
from clikit import APPS, as_role
from clikit import pgflow as cli
from processes import worker
from records import run_row
from sqlkit import start

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg


def test_roles_are_given_only_to_who_may_answer_gates(dsn: str) -> None:
    refused = cli(dsn, "mcp", "--as", "ops")
    assert refused.code == 2
    assert "--as requires --answer" in refused.err


def test_a_workflow_that_cannot_be_offered_is_refused_before_anybody_talks(
    dsn: str, tmp_path: Path
) -> None:
    pytest.importorskip("mcp", reason="needs the extra mcp")
    file = tmp_path / "mcp_clashing_jobs.py"
    file.write_text("import pgflow\n\n@pgflow.workflow\nasync def runs() -> None: ...\n")
    for given, said in [
        (("--workflow", "runs"), "pgflow mcp MODULE --workflow runs"),
        ((str(file), "-w", "rums"), "the app has no workflow 'rums': did you mean runs?"),
        ((str(file), "-w", "runs"), "workflow runs has the name of a tool of pgflow"),
    ]:
        refused = cli(dsn, "mcp", *given)
        assert (refused.code, said in " ".join(refused.err.split())) == (2, True), refused.err


@pytest.mark.full
def test_an_assistant_starts_workflows_that_are_offered_and_no_others(dsn: str) -> None:
    async def talk() -> tuple[list[str], Any]:
        async with mcp_client(dsn, "cli_jobs", "--workflow", "greet", "-w", "greet") as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            given = {"name": "é" * 100_000, "run_key": "greet-1"}
            asked = asyncio.create_task(client.call_tool("greet", given))
            with worker(dsn, module="cli_jobs"):
                return tools, json.loads((await asked).content[0].text)

    tools, answer = asyncio.run(talk())
    assert {"greet", "wait_for_run", "triage"} < set(tools)
    assert {"checkout", "pause"}.isdisjoint(tools)
    assert (answer["run_key"], answer["status"]) == ("greet-1", "completed")
    assert len(answer["result"]) == len("Hello ") + 100_000


def mcp_client(dsn: str, *options: str) -> Any:
    """Start the command as an assistant does."""
    mcp = pytest.importorskip("mcp", reason="needs the extra mcp")
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "pgflow_cli", "mcp", *options],
        env={"PGFLOW_DSN": dsn, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        cwd=APPS,
    )
    return mcp.Client(server)


async def talk(dsn: str, *options: str) -> tuple[list[str], Any, Any]:
    """Start the command as an assistant does, and return its tools, a run, and what became of an
    order to pause it.
    """
    async with mcp_client(dsn, *options) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        found = await client.call_tool("run", {"key": "order-1"})
        order = await client.call_tool("pause", {"key": "order-1", "why": "odd"})
        return tools, json.loads(found.content[0].text), order


def talking(dsn: str, *options: str) -> tuple[list[str], Any, Any]:
    return asyncio.run(talk(dsn, *options))


@pytest.mark.full
def test_an_assistant_reads_and_orders_by_pipes_what_it_may(
    conn: psycopg.Connection[Any], dsn: str
) -> None:
    start(conn, key="order-1", input=json.dumps({"text": "é" * 100_000}))
    tools, found, order = talking(dsn)
    assert (found["run"]["status"], order.is_error) == ("queued", True)
    assert {"pause", "approve"}.isdisjoint(tools)
    role = f"mcp_auditor_{secrets.token_hex(3)}"
    conn.execute(f"create role {role} login password 'a@b'; grant pgflow_auditor to {role}")
    try:  # the role of the connection is the last word
        tools, found, order = talking(as_role(dsn, role).replace(":secret@", ":a%40b@"), "--write")
        assert (found["run"]["status"], order.is_error) == ("queued", True)
        assert "pause" in tools
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}")
    assert run_row(conn, "order-1", "status") == ("queued",)
    tools, _, order = talking(dsn, "--write")
    assert (order.is_error, "approve" in tools) == (False, False)
    assert run_row(conn, "order-1", "status") == ("paused",)
