"""``sql/ledgers/budgets.sql``: pools, and what people say of them."""

from __future__ import annotations

from collections.abc import Sequence

from pgflow._db.query import Query
from pgflow._model.budgets import Amounts, Pool, numbers


def set_pool(pool: Pool, why: str | None, sent_by: str | None) -> Query[None]:
    """Create a pool, or set its limits."""
    sql = (
        "select pgflow.set_pool(%s::text, %s::jsonb, %s::text, %s::text, %s::text, %s::numeric, "
        "%s::boolean, %s::text, %s::text)"
    )
    soft = None if pool.soft is None else str(pool.soft)
    limits = numbers(pool.limits)
    params = (pool.name, limits, pool.parent, pool.per, pool.tz, soft, pool.hard, why, sent_by)
    return Query(sql, params, lambda _rows: None)


def declare_pools(pools: Sequence[Pool]) -> Query[int]:
    """Set the pools that an app declares, if a declaration has changed; return their number."""
    declarations = f"[{', '.join(pool.declaration() for pool in pools)}]"
    return Query(
        "select pgflow.declare_pools(%s::jsonb)", (declarations,), lambda rows: int(rows[0][0])
    )


def grant_budget(pool: str, amounts: Amounts, why: str | None, sent_by: str | None) -> Query[None]:
    """Raise the limits of a pool for its current period."""
    sql = "select pgflow.grant_budget(%s::text, %s::jsonb, %s::text, %s::text)"
    return Query(sql, (pool, numbers(amounts), why, sent_by), lambda _rows: None)


def revoke_pool(pool: str, why: str | None, sent_by: str | None, *, restore: bool) -> Query[None]:
    """Stop a pool from admitting calls, or let it admit again."""
    sql = "select pgflow.revoke_pool(%s::text, %s::text, %s::text, %s::boolean)"
    return Query(sql, (pool, why, sent_by, restore), lambda _rows: None)
