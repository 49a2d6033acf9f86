"""``sql/replay.sql``: recorded runs, and whether there is anything to do."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pgflow._calls.claim import COLUMNS, read_claims
from pgflow._io import Query, Row
from pgflow.units import Claim


class RecordedRun(NamedTuple):
    """A run as it was recorded."""

    claim: Claim
    status: str
    output: str | None


class Idleness(NamedTuple):
    """Whether there is nothing to do, and when the next timer is due."""

    idle: bool
    next_due_at: datetime | None


def recorded_runs(after_run: int = 0, count: int = 100) -> Query[list[RecordedRun]]:
    """The next runs with their journals."""
    sql = f"select {COLUMNS}, workflow, status, output from pgflow.recorded_runs(%s::bigint, %s::int)"  # noqa: S608 - names of columns
    return Query(sql, (after_run, count), _read)


def _read(rows: list[Row]) -> list[RecordedRun]:
    recorded = []
    for row in rows:
        claim = read_claims([row[:-3]])[0]
        claim.workflow, status, output = row[-3:]
        recorded.append(RecordedRun(claim, status, output))
    return recorded


def idle_state() -> Query[Idleness]:
    """Whether there is anything to do."""
    return Query("select idle, next_due_at from pgflow.idle_state()", (), lambda rows: Idleness(*rows[0]))
