"""Workflows in SQL, made and driven by SQL alone."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from sqlkit import one, rows

TABLES = """
create table if not exists mark (n bigint generated always as identity, what text, tx xid8 default pg_current_xact_id());
grant all on mark to public;
"""
"""Table that steps write to, in the order in which they do."""


def make(conn: psycopg.Connection[Any], signature: str, body: str) -> str:
    """`create_workflow`, and the table ``mark``."""
    conn.execute("set client_min_messages = warning")
    conn.execute(TABLES)
    return one(conn, "select pgflow.create_workflow(%s, %s)", signature, body)


def refusal(conn: psycopg.Connection[Any], body: str, signature: str = "w(a int)") -> str:
    """Return the message with which a text is refused."""
    try:
        one(conn, "select pgflow.create_workflow(%s, %s)", signature, body)
    except psycopg.Error as error:
        return str(error.diag.message_primary)
    return "nothing"


def begin(
    conn: psycopg.Connection[Any], workflow: str = "w", key: str = "k", **arguments: Any
) -> None:
    conn.execute(
        "select pgflow.start_run(%s, %s, key => %s)", (workflow, json.dumps(arguments), key)
    )


def work(conn: psycopg.Connection[Any], **options: Any) -> None:
    """`work` until nothing can go on."""
    options = {"seconds": 20, "until_idle": True, **options}
    named = ", ".join(f"{name} => %({name})s" for name in options)
    conn.execute(f"call pgflow.work({named})", options)


def ended(conn: psycopg.Connection[Any], key: str = "k") -> tuple[Any, ...]:
    """Status, output and message of the error of a run."""
    return one(
        conn, "select status, output, error->>'message' from pgflow.runs where key = %s", key
    )


def run(
    conn: psycopg.Connection[Any], body: str, signature: str = "w()", **arguments: Any
) -> tuple[Any, ...]:
    """Makes a workflow, starts a run of it and works until it has ended."""
    make(conn, signature, body)
    begin(conn, signature.partition("(")[0], **arguments)
    work(conn)
    return ended(conn)


def marks(conn: psycopg.Connection[Any]) -> list[str]:
    """Return the lines that steps have written."""
    return rows(conn, "select what from mark order by n")


def journal(conn: psycopg.Connection[Any], key: str = "k") -> list[tuple[Any, ...]]:
    return rows(conn, "select event, name from pgflow.timeline where key = %s order by seq", key)
