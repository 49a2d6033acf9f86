"""``sql/signal.sql`` and ``sql/control.sql``: messages to runs. Each answers the chain, for ``wake``."""

from __future__ import annotations

from pgflow._io import Query, Row


def _first(rows: list[Row]) -> int:
    return int(rows[0][0])


def send_signal(key: str, name: str, payload: str, tenant: str = "", sent_by: str | None = None) -> Query[int]:
    """Sends a signal."""
    sql = "select pgflow.send_signal(%s::text, %s::text, %s::json, %s::text, %s::text)"
    return Query(sql, (key, name, payload, tenant, sent_by), _first)


def cancel_run(key: str, why: str, tenant: str = "", sent_by: str | None = None, *, force: bool = False) -> Query[int]:
    """Cancels a run."""
    sql = "select pgflow.cancel_run(%s::text, %s::text, %s::text, %s::text, %s::boolean)"
    return Query(sql, (key, why, tenant, sent_by, force), _first)


def pause_run(key: str, why: str, tenant: str = "", sent_by: str | None = None) -> Query[int]:
    """Holds a run."""
    return Query("select pgflow.pause_run(%s::text, %s::text, %s::text, %s::text)", (key, why, tenant, sent_by), _first)


def resume_run(key: str, why: str, tenant: str = "", sent_by: str | None = None) -> Query[int]:
    """Lets a paused or stuck run go on."""
    return Query("select pgflow.resume_run(%s::text, %s::text, %s::text, %s::text)", (key, why, tenant, sent_by), _first)


def retry_run(
    key: str, why: str, tenant: str = "", sent_by: str | None = None, *,
    from_step: str | None = None, attempts: int | None = None, effects: str | None = None, children: str = "refuse",
) -> Query[int]:  # fmt: skip
    """Gives a stuck run a fresh budget, or goes back to just before a step."""
    sql = "select pgflow.retry_run(%s::text, %s::text, %s::text, %s::text, %s::text, %s::int, %s::text, %s::text)"
    return Query(sql, (key, why, tenant, sent_by, from_step, attempts, effects, children), _first)
