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


class Idleness(NamedTuple):
    """Answer to the question whether anything is to be done.

    Attributes:
        idle: True if nothing is ready, leased, nudged or due.
        next_due_at: Time of the next timer; None if there is none.
        due_timers: Number of timers and deadlines that are due and not taken yet.
        now: Time on the database's clock.
    """

    idle: bool
    next_due_at: datetime | None
    due_timers: int
    now: datetime


def idle_state() -> Query[Idleness]:
    """Return whether the database is idle, and the time of the next timer."""
    sql = "select idle, next_due_at, due_timers, clock_timestamp() as now from pgflow.idle_state()"
    return Query(sql, (), lambda rows: Idleness(*rows[0]))
