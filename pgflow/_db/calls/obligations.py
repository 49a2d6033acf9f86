"""``sql/ledgers/obligations.sql``: word on obligations, each answering whom to wake."""

from __future__ import annotations

from pgflow._db.calls.mail import Sent, read_sent
from pgflow._db.query import Query


def discharge(key: str, evidence: str | None, sent_by: str | None) -> Query[Sent]:
    """Close an obligation as done."""
    sql = "select pgflow.discharge(%s::text, %s::json, %s::text)"
    return Query(sql, (key, evidence, sent_by), read_sent)


def transfer_obligation(key: str, holder: str, why: str | None, sent_by: str | None) -> Query[Sent]:
    """Set the outside holder of an obligation."""
    sql = "select pgflow.transfer_obligation(%s::text, %s::text, %s::text, %s::text)"
    return Query(sql, (key, holder, why, sent_by), read_sent)


def waive_obligation(key: str, why: str, sent_by: str | None) -> Query[Sent]:
    """Close an obligation that need not be done."""
    sql = "select pgflow.waive_obligation(%s::text, %s::text, %s::text)"
    return Query(sql, (key, why, sent_by), read_sent)
