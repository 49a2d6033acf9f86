"""The database's clock, the reference for all ages."""

from __future__ import annotations

from datetime import datetime

from pgflow._db.query import Query
from pgflow.inspect.question import Question, once, only_row


def database_now() -> Question[datetime]:
    """Ask for the time on the database's clock, with its zone. Compute ages from it: the clock of
    this machine may differ.
    """
    return once(Query("select clock_timestamp() as now", (), lambda rows: rows[0][0]))


def has_passed(at: datetime) -> Question[bool]:
    """Ask if a time has passed, by the database's clock.

    Args:
        at: The time.
    """
    return only_row(bool, "select pgflow.has_passed(%s)", at)
