"""Seals in tests: an app whose runs fill every ledger, and everything sealed at once."""

from __future__ import annotations

from typing import Any

import psycopg
from sqlkit import one, rows

from pgflow import step, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import effect


@step
def add(x: int) -> int:
    return x + 1


@decision()
def choose(x: int) -> Choice[int]:
    return Choice(x, why="it was given", evidence=["meter-3"])


@effect(risk="irreversible")
def pay(amount: int) -> str:
    return f"receipt {amount}"


@workflow
def adding(x: int) -> int:
    for _ in range(3):
        x = add(x)
    return x


@workflow
def paying(payments: int) -> list[str]:
    chosen = choose(7)
    return [pay.because(chosen)(add(n)) for n in range(payments)]


def seal(conn: psycopg.Connection[Any]) -> int:
    """Seal all that there is, round after round; return how many seals that made."""
    sealed = 0
    while True:
        made, has_more, _ = one(conn, "select * from pgflow.seal_units(at_once => true)")
        sealed += made
        if not has_more:
            return sealed


def switch_on(conn: psycopg.Connection[Any]) -> None:
    conn.execute("select pgflow.set_sealing(true)")


def findings(conn: psycopg.Connection[Any], anchor: Any = None) -> list[str]:
    """Return the codes of everything that a verification finds."""
    found = [
        *rows(
            conn,
            "select f->>3 from jsonb_array_elements(pgflow.verify_runs(max => 100000)->'findings') f",
        ),
        *rows(
            conn,
            "select f->>1 from jsonb_array_elements(pgflow.verify_rounds(0, 100000)->'findings') f",
        ),
        *rows(
            conn,
            "select f->>0 from jsonb_array_elements(pgflow.verify_evidence(0, 100000)->'findings') f",
        ),
        *rows(conn, "select f->>1 from jsonb_array_elements(pgflow.verify_days()->'findings') f"),
    ]
    if anchor is not None:
        found += rows(
            conn,
            "select f->>1 from jsonb_array_elements(pgflow.verify_anchor(%s)->'findings') f",
            anchor,
        )
    return sorted(set(found))


def tamper(conn: psycopg.Connection[Any], statement: str, *params: Any) -> None:
    """Change what nobody may change, as the owner of the files can."""
    with conn.transaction():
        conn.execute("set local pgflow.rewrites = 'on'")
        conn.execute(statement, params or None)
