"""``sql/runs/signal.sql`` and ``sql/runs/control.sql``:
messages to runs. Each answers whom to wake.
"""

from __future__ import annotations

from typing import NamedTuple

from pgflow._db.query import Query, Row


class Sent(NamedTuple):
    """A message that was sent, to be woken after the commit: its chain, or the lane of the run that
    has taken it and is ready.

    Of a signal also its number, and how the run has ended, if it has.
    """

    chain_id: int
    lane_id: int | None = None
    message_id: int = 0
    ended_as: str | None = None
    is_new: bool = True

    @property
    def chains(self) -> list[int]:
        """Chains to wake."""
        return [self.chain_id] if self.lane_id is None else []

    @property
    def lanes(self) -> list[int]:
        """Lanes whose workers to notify."""
        return [] if self.lane_id is None else [self.lane_id]


def read_sent(rows: list[Row]) -> Sent:
    """The one row of an answer."""
    return Sent(*rows[0])


def send_signal(
    key: str,
    name: str,
    payload: str,
    tenant: str = "",
    sent_by: str | None = None,
    *,
    idempotency_key: str | None = None,
) -> Query[Sent]:
    """Send a signal, in any transaction."""
    sql = (
        "select chain_id, null::int, message_id, ended_as, is_new"
        " from pgflow.post_signal(%s::text, %s::text, %s::json, %s::text, %s::text, %s::text)"
    )
    return Query(sql, (key, name, payload, tenant, sent_by, idempotency_key), read_sent)


def deliver_signal(
    key: str,
    name: str,
    payload: str,
    sent_by: str | None = None,
    *,
    idempotency_key: str | None = None,
) -> Query[Sent]:
    """Send a signal, in a transaction of its own."""
    if idempotency_key is not None:
        return send_signal(key, name, payload, sent_by=sent_by, idempotency_key=idempotency_key)
    sql = (
        "select chain_id, lane_id, message_id, ended_as "
        "from pgflow.deliver_signal("
        "%s::text, %s::text, %s::json, sent_by => %s::text, tell => false)"
    )
    return Query(sql, (key, name, payload, sent_by), read_sent)


def cancel_run(
    key: str, why: str, sent_by: str | None = None, *, force: bool = False
) -> Query[Sent]:
    """Cancel a run."""
    sql = "select pgflow.cancel_run(%s::text, %s::text, sent_by => %s::text, force => %s::boolean)"
    return Query(sql, (key, why, sent_by, force), read_sent)


def pause_run(key: str, why: str, sent_by: str | None = None) -> Query[Sent]:
    """Pause a run."""
    return Query(
        "select pgflow.pause_run(%s::text, %s::text, sent_by => %s::text)",
        (key, why, sent_by),
        read_sent,
    )


def resume_run(key: str, why: str, sent_by: str | None = None) -> Query[Sent]:
    """Resume a paused or stuck run."""
    return Query(
        "select pgflow.resume_run(%s::text, %s::text, sent_by => %s::text)",
        (key, why, sent_by),
        read_sent,
    )


def retry_run(
    key: str,
    why: str,
    sent_by: str | None = None,
    *,
    from_step: str | None = None,
    attempts: int | None = None,
    effects: str | None = None,
) -> Query[Sent]:
    """Give a stuck run a fresh budget, or go back to just before a step."""
    sql = (
        "select pgflow.retry_run(%s::text, %s::text, sent_by => %s::text, "
        "from_step => %s::text, attempts => %s::int, effects => %s::text)"
    )
    return Query(sql, (key, why, sent_by, from_step, attempts, effects), read_sent)
