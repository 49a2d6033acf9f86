"""Mail: signals and commands that no run has taken."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, LiteralString

from pgflow.inspect.listing import After, Listing, Order, page
from pgflow.inspect.question import Question, all_rows


@dataclass(frozen=True)
class MessageRow:
    """A signal that no run has taken. A row of the view ``pgflow.messages`` or
    ``pgflow.undelivered_messages``.

    Attributes:
        key: Key of the run that it is for.
        message: Number of the message, for ``drop_message``, ``replace_message`` and
            ``requeue_message``.
        signal: Name of the signal.
        state: In the mailbox: ``waiting``, or ``refused`` because the code could not take it. Set
            aside: ``ended`` because the run had ended, ``dropped`` or ``replaced``.
        payload: Its payload, as it is stored.
        sent_at: Time of sending.
        sent_by: Name of the sender, with the role of the session in brackets; None if not given.
        why: Reason why the code could not take it, or why it was set aside; None for none.
    """

    key: str
    message: int
    signal: str
    state: Literal["waiting", "refused", "ended", "dropped", "replaced"]
    payload: Any
    sent_at: datetime
    sent_by: str | None
    why: str | None


@dataclass(frozen=True)
class OrderRow:
    """A command to a run that no worker has taken yet. A row of the view ``pgflow.orders``.

    Attributes:
        key: Key of the run.
        verb: The command.
        why: The reason that was given.
        sent_at: Time at which it was asked for.
        sent_by: Name of the sender, with the role of the session in brackets; ``pgflow`` for the
            engine, None if not given.
    """

    key: str
    verb: Literal["cancel", "pause", "resume", "retry"]
    why: str | None
    sent_at: datetime
    sent_by: str | None


_MESSAGES: LiteralString = """
select key, message, signal, state, payload, sent_at, sent_by, why from (
  select key, message, signal,
    case when refused is null then 'waiting' else 'refused' end as state,
    payload, sent_at, sent_by, refused as why, tenant
  from pgflow.messages
  union all
  select key, message, signal, reason, payload, sent_at, sent_by, why, tenant
  from pgflow.undelivered_messages
) m
where tenant = %s
  and case when %s::text is null then state in ('refused', 'ended') else key = %s::text end
"""


def list_messages(
    key: str | None = None, *, tenant: str = "", after: After = None, limit: int | None = 50
) -> Question[Listing[MessageRow]]:
    """Ask for a page of the signals that no run has taken, in the order sent.

    Args:
        key: Key of a run, for all of its messages; None for the messages of all runs that need
            attention: those that were refused or came too late.
        tenant: Tenant of the runs.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum messages of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    order: Order = {"sent_at": datetime.fromisoformat, "message": int}
    return page(MessageRow, _MESSAGES, (tenant, key, key), order, after, limit)


def list_orders(key: str, *, tenant: str = "") -> Question[list[OrderRow]]:
    """Ask for the orders to a run that no worker has taken yet, in the order of their sending."""
    sql: LiteralString = (
        "select key, verb, why, sent_at, sent_by from pgflow.orders "
        "where tenant = %s and key = %s order by sent_at"
    )
    return all_rows(OrderRow, sql, tenant, key)
