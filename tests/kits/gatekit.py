"""The open gates, and a run that waits at one."""

from __future__ import annotations

from typing import Any

import psycopg
from records import settle
from sqlkit import rows

from pgflow.testing import AsyncHarness


def gates(conn: psycopg.Connection[Any], columns: str = "gate") -> list[Any]:
    """Return columns of the open gates, in the order in which they were asked."""
    query = f"select {columns} from pgflow.gates order by asked_at, call, gate"
    return rows(conn, query)


async def asked(
    aflow: AsyncHarness, conn: psycopg.Connection[Any], code: Any, *args: Any
) -> tuple[Any, str]:
    """Start a workflow and return its run, which waits, and the only gate that is open."""
    run = await settle(aflow, code, *args)
    (gate,) = gates(conn)
    return run, gate
