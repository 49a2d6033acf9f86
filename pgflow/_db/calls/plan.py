"""``sql/ledgers/plan.sql``: the policy's verdict on a plan, and the tables that its statements
write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pgflow._db.query import Query


def judge_plan(acts: Sequence[tuple[str, str, Any]]) -> Query[list[dict[str, Any] | None]]:
    """Return the policy's judgement of planned acts (name, risk, request): for each the ``version``
    that wants a gate and its ``terms``, or None.
    """
    return Query(
        "select pgflow.judge_plan(%s::jsonb)", (json.dumps(acts),), lambda rows: list(rows[0][0])
    )


def confine(statement: timedelta, lock: timedelta) -> Query[None]:
    """Resolve names without a schema to the system's own for the rest of the transaction, and read
    backslashes in strings literally.

    Args:
        statement: Longest time for each statement from now on, and
        lock: longest wait for a lock; a lower limit that is already set stays.
    """
    sql = (
        "select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), "
        "pg_catalog.set_config('standard_conforming_strings', 'on', true), "
        "(select pg_catalog.count(pg_catalog.set_config("
        "s.name, least(nullif(s.setting::int8, 0), l.ms)::text, true)) "
        "from (values ('statement_timeout', %s::int8), ('lock_timeout', %s::int8)) l (name, ms) "
        "join pg_catalog.pg_settings s using (name))"
    )
    return Query(
        sql,
        tuple(limit // timedelta(milliseconds=1) for limit in (statement, lock)),
        lambda _: None,
    )


def written_tables() -> Query[set[tuple[str, str]]]:
    """Schemas and names of the tables that the transaction has written so far."""
    return Query(
        "select schema_name, table_name from pgflow.written_tables()",
        (),
        lambda rows: {(str(r[0]), str(r[1])) for r in rows},
    )
