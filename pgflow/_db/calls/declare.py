"""``sql/ops/declare.sql``: what an app declares in its code."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pgflow._db.query import Query
from pgflow._model.queues import Queue


def undeclared(declared: str) -> Query[list[str]]:
    """Return the names that this JSON declares and that are not set yet."""
    return Query("select pgflow.undeclared(%s::jsonb)", (declared,), lambda rows: list(rows[0][0]))


def declare_app(declared: str) -> Query[list[str]]:
    """Set the declarations of this JSON that are not set yet; return their names."""
    return Query("select pgflow.declare_app(%s::jsonb)", (declared,), lambda rows: list(rows[0][0]))


def declare_queues(queues: Sequence[Queue]) -> Query[list[str]]:
    """Set the rules of these queues, if a declaration has changed; return their names."""
    declarations = json.dumps([queue.declaration() for queue in queues])
    sql = "select pgflow.declare_queues(%s::jsonb)"
    return Query(sql, (declarations,), lambda rows: list(rows[0][0]))
