"""``sql/ledgers/effects.sql``: verdicts on effects, each answering whom to wake;
``sql/ledgers/beats.sql``: beats of accepted ones.
"""

from __future__ import annotations

from typing import Literal

from pgflow._db.calls.mail import Sent, read_sent
from pgflow._db.query import Query

Verdict = Literal["confirmed", "failed", "absent", "taken_back", "stands"]
"""Outcome that a person may state for an effect."""


def settle_effect(
    effect_key: str, verdict: str, value: str, why: str, sent_by: str | None
) -> Query[Sent]:
    """Settle an effect, by its key."""
    sql = "select pgflow.settle_effect(%s::text, %s::text, %s::json, %s::text, %s::text)"
    return Query(sql, (effect_key, verdict, value, why, sent_by), read_sent)


def confirm_effect(
    ref: str, verdict: str, value: str, why: str, sent_by: str | None
) -> Query[Sent]:
    """Settle an effect, by the counterparty's reference."""
    sql = "select pgflow.confirm_effect(%s::text, %s::text, %s::json, %s::text, %s::text)"
    return Query(sql, (ref, verdict, value, why, sent_by), read_sent)


def beat_effect(ref: str, details: str | None) -> Query[None]:
    """Record a heartbeat of an accepted effect, by the counterparty's reference. Wakes no run."""
    return Query(
        "select pgflow.beat_effect(%s::text, %s::json)", (ref, details), lambda _rows: None
    )
