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
from records import run_row
from sqlkit import start

if TYPE_CHECKING:
    import psycopg

pytestmark = pytest.mark.timeout(60)


def test_roles_are_given_only_to_who_may_answer_gates(dsn: str) -> None:
    refused = cli(dsn, "mcp", "--as", "ops")
    assert refused.code == 2
    assert "--as is for gates: say --answer too" in refused.err


async def talk(dsn: str, *options: str) -> tuple[list[str], Any, Any]:
    """Start the command as an assistant does, and return its tools, a run, and what became of an
    order to pause it.
    """
    mcp = pytest.importorskip("mcp", reason="needs the extra mcp")
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "pgflow_cli", "mcp", *options],
        env={"PGFLOW_DSN": dsn, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        cwd=APPS,
    )
    async with mcp.Client(server) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        found = await client.call_tool("run", {"key": "order-1"})
        order = await client.call_tool("pause", {"key": "order-1", "why": "odd"})
        return tools, json.loads(found.content[0].text), order


def talking(dsn: str, *options: str) -> tuple[list[str], Any, Any]:
    return asyncio.run(talk(dsn, *options))


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
