"""``sql/runs/wake.sql``: waking runs that no worker holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pgflow._db.query import Query, Row


class Woken(NamedTuple):
    """Result of a wake."""

    lanes: list[int]
    mail: list[int]
    ended: list[int]
    busy: int


class Polled(NamedTuple):
    """Result of a poll, with the seconds until the next timer and the newest lane."""

    lanes: list[int]
    mail: list[int]
    ended: list[int]
    busy: int
    next_due_seconds: float | None
    newest_lane: int | None


def wake(chains: Sequence[int], *, tell: bool) -> Query[Woken]:
    """Look at the runs of these chains; with ``tell``, notify the workers of the work found."""
    sql = "select lanes, mail, ended, busy from pgflow.wake(%s::bigint[], tell => %s::boolean)"
    return Query(sql, (list(chains), tell), lambda rows: Woken(*rows[0]))


def poll(count: int = 1000) -> Query[Polled]:
    """The sweep: expired runs, nudges, due timers."""

    def read(rows: list[Row]) -> Polled:
        return Polled(*rows[0])

    return Query(
        "select lanes, mail, ended, busy, next_due_seconds, newest_lane from pgflow.poll(%s::int)",
        (count,),
        read,
    )
