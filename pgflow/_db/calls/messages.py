"""``sql/runs/messages.sql``: messages that a run has not taken, and what people do about them."""

from __future__ import annotations

from pgflow._db.calls.mail import Sent, read_sent
from pgflow._db.query import Query
from pgflow._model.messages import Message


def find_messages(key: str | None) -> Query[list[Message]]:
    """The messages in the mailbox of a run, or of all, and those that were put aside."""
    sql = """
        select key, message, signal, payload, 'waiting', sent_at, sent_by, refused
        from pgflow.messages
        where tenant = '' and (%s::text is null or key = %s::text)
        union all
        select key, message, signal, payload, reason, sent_at, sent_by, why
        from pgflow.undelivered_messages
        where tenant = '' and (%s::text is null or key = %s::text)
        order by 6, 2
    """
    return Query(sql, (key, key, key, key), lambda rows: [Message(*row) for row in rows])


def drop_message(key: str, message: int, why: str, sent_by: str | None = None) -> Query[Sent]:
    """Remove a message from a mailbox."""
    sql = (
        "select chain_id, lane_id, message_id "
        "from pgflow.drop_message(%s::text, %s::bigint, %s::text, sent_by => %s::text)"
    )
    return Query(sql, (key, message, why, sent_by), read_sent)


def replace_message(
    key: str, message: int, payload: str, why: str, sent_by: str | None = None
) -> Query[Sent]:
    """Replace the payload of a message."""
    sql = """
        select chain_id, lane_id, message_id
        from pgflow.replace_message(%s::text, %s::bigint, %s::json, %s::text, sent_by => %s::text)
    """
    return Query(sql, (key, message, payload, why, sent_by), read_sent)


def requeue_message(
    key: str,
    message: int,
    to_key: str | None,
    why: str,
    sent_by: str | None = None,
) -> Query[Sent]:
    """Send a message again."""
    sql = """
        select chain_id, lane_id, message_id
        from pgflow.requeue_message(%s::text, %s::bigint, %s::text, %s::text, sent_by => %s::text)
    """
    return Query(sql, (key, message, to_key, why, sent_by), read_sent)
