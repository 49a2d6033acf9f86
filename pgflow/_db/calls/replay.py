"""``sql/ops/replay.sql``: whether there is anything to do; and what a recorded run is."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pgflow._db.query import Query
from pgflow._model.claims import Claim


class RecordedRun(NamedTuple):
    """A run as it was recorded."""

    claim: Claim
    status: str
    output: str | None


class IdleState(NamedTuple):
    """True if there is nothing to do, and the time of the next timer."""

    idle: bool
    next_due_at: datetime | None


def idle_state() -> Query[IdleState]:
    """Return whether the database is idle, and the time of the next timer."""
    return Query("select idle, next_due_at from pgflow.idle_state()", (), lambda rows: IdleState(*rows[0]))
