"""The health of the database: what is wrong beneath the work, what has grown, and what is slow."""

from __future__ import annotations

from starlette.requests import Request

from pgflow.console.backend import Backend
from pgflow.console.health import (
    LONG_SECONDS,
    grown,
    judge_journal,
    judge_server,
    judge_snapshots,
    judge_tables,
)
from pgflow.inspect import (
    database_now,
    list_large_partitions,
    list_losses,
    list_slow_statements,
    list_snapshots,
    list_tables,
    read_seal_lag,
    read_server,
)
from pgflow.web.page import Page

SHOWN_TABLES = 20
MOST_STATEMENTS = 15
STATEMENT_SECONDS = 10.0
"""Time for which counts of statements are shown again: to read them costs the server a file."""


async def show_health(backend: Backend, request: Request) -> Page:
    """Show how the database is."""
    del request
    server, tables = await backend.ask(read_server()), await backend.ask(list_tables(None))
    snapshots = await backend.ask(list_snapshots(LONG_SECONDS))
    partitions, losses = (
        await backend.ask(list_large_partitions()),
        await backend.ask(list_losses()),
    )
    statements = list_slow_statements(MOST_STATEMENTS)
    return Page(
        "health",
        "Database",
        {
            "server": server,
            "size": grown(tables),
            "long_seconds": LONG_SECONDS,
            "oldest": snapshots[0] if snapshots else None,
            "tables": tables[:SHOWN_TABLES],
            "more": len(tables) - SHOWN_TABLES,
            "findings": [
                *judge_journal(partitions, losses, await backend.ask(read_seal_lag())),
                *judge_server(server),
                *judge_snapshots(snapshots),
                *judge_tables(tables),
            ],
            "statements": await backend.ask_seldom("statements", statements, STATEMENT_SECONDS),
            "now": await backend.ask(database_now()),
        },
        "pgflow doctor",
    )
