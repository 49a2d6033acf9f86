"""``sql/ledgers/gates.sql``: answers to gates, each answering whom to wake."""

from __future__ import annotations

from datetime import datetime

from pgflow._db.calls.mail import Sent, read_sent
from pgflow._db.query import Query
from pgflow._model.gates import OpenGate


def answer_gate(
    gate: str,
    verdict: str,
    payload_hash: str | None,
    value: str | None,
    reason: str,
    by: str | None,
    acting_as: list[str] | None = None,
    hand_to: str | None = None,
    valid_until: datetime | None = None,
) -> Query[Sent]:
    """Answer a gate."""
    sql = """
        select pgflow.answer_gate(
          %s::text, %s::text, %s::text, %s::json, %s::text, %s::text, %s::text[], %s::text,
          %s::timestamptz
        )
    """
    arguments = (gate, verdict, payload_hash, value, reason or None, by, acting_as, hand_to)
    return Query(sql, (*arguments, valid_until), read_sent)


def delegate_gate(gate: str, from_approver: str, to_approver: str, why: str) -> Query[Sent]:
    """Let another approver answer a gate."""
    sql = "select pgflow.delegate_gate(%s::text, %s::text, %s::text, %s::text)"
    return Query(sql, (gate, from_approver, to_approver, why or None), read_sent)


def speaks_for_others() -> Query[bool]:
    """True if this role may answer in the names of others."""
    return Query("select pgflow.speaks_for_others()", (), lambda rows: bool(rows[0][0]))


def find_gate(gate: str) -> Query[OpenGate | None]:
    """The open gate of a key; None if there is none."""
    sql = """
        select gate, key, workflow, name, approvers, request, payload_hash
        from pgflow.gates where gate = %s::text
    """
    return Query(sql, (gate,), lambda rows: OpenGate(*rows[0]) if rows else None)
