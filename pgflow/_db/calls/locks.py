"""``sql/coordination/locks.sql``: locks of plain code, and those that an operator breaks."""

from __future__ import annotations

from datetime import timedelta

from pgflow._db.calls.wake import Woken
from pgflow._db.query import Query, Row


def _read_fence(rows: list[Row]) -> int | None:
    fence: int | None = rows[0][0]
    return fence


def _read_flag(rows: list[Row]) -> bool:
    return bool(rows[0][0])


def take_lock(
    key: str, holder: str, ttl: timedelta, patience: timedelta | None, secret: str, *, shared: bool
) -> Query[int | None]:
    """Take a lock and return its fence; None if it is held, or others wait for it."""
    sql = """
        select pgflow.take_lock(
          %s::text, %s::text, %s::interval, %s::boolean, %s::interval, %s::text
        )
    """
    return Query(sql, (key, holder, ttl, shared, patience, secret), _read_fence)


def renew_lock(key: str, fence: int, ttl: timedelta, secret: str) -> Query[bool]:
    """Renew a lock; False if it is lost."""
    sql = "select pgflow.renew_lock(%s::text, %s::bigint, %s::interval, %s::text)"
    return Query(sql, (key, fence, ttl, secret), _read_flag)


def leave_lock(key: str, holder: str, secret: str) -> Query[None]:
    """Release a lock, or stop waiting for it."""
    sql = "select pgflow.leave_lock(%s::text, %s::text, %s::text)"
    return Query(sql, (key, holder, secret), lambda _: None)


def sweep_locks() -> Query[Woken]:
    """Pass released locks on to the waiting runs."""
    sql = "select lanes, mail, ended, busy from pgflow.sweep_locks()"
    return Query(sql, (), lambda rows: Woken(*rows[0]))


def break_lock(key: str, why: str, sent_by: str | None) -> Query[int]:
    """Take a lock away from its holders; return their number."""
    sql = "select pgflow.break_lock(%s::text, %s::text, %s::text)"
    return Query(sql, (key, why, sent_by), lambda rows: int(rows[0][0]))
