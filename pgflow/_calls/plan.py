"""``sql/plan.sql``: what the policy says of a plan, and what a statement of one has written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pgflow._io import Query


def judge_acts(acts: Sequence[tuple[str, str, Any]]) -> Query[list[int | None]]:
    """What the policy in force says of acts, each name, risk and request: the version that wants a gate, or None."""
    return Query("select pgflow.judge_acts(%s::jsonb)", (json.dumps(acts),), lambda rows: list(rows[0][0]))


def confine() -> Query[None]:
    """Lets names without a schema mean the system's own for the rest of the transaction, and a backslash in a text itself."""
    sql = (
        "select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), "
        "pg_catalog.set_config('standard_conforming_strings', 'on', true)"
    )
    return Query(sql, (), lambda _: None)


def written_tables() -> Query[set[tuple[str, str]]]:
    """Schemas and names of the tables that the transaction has written so far."""
    return Query("select schema_name, table_name from pgflow.written_tables()", (), lambda rows: {(str(r[0]), str(r[1])) for r in rows})
