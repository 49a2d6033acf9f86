"""Rates: runs started and ended in each recent minute, and their durations.

No index has the end times of runs, so only the newest runs are scanned. Older runs are not counted;
the answer shows if there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from pgflow._db.query import Query, Row
from pgflow.inspect.question import Question, once

NEWEST_RUNS = 2_000


@dataclass(frozen=True)
class Minute:
    """A minute.

    Attributes:
        ago: Number of whole minutes since its end; 0 for the one that goes on.
        started: Runs that were started.
        ended: Runs that ended, in whichever way.
        failed: Runs of these that failed.
        half_seconds: Time from start to end in which half of them had ended; None if none ended.
        most_seconds: That in which 99 of 100 had.
    """

    ago: int
    started: int
    ended: int
    failed: int
    half_seconds: float | None
    most_seconds: float | None


@dataclass(frozen=True)
class Rates:
    """The minutes of a while.

    Attributes:
        minutes: Minutes in which something began or ended, the newest first.
        half_seconds: Time from start to end in which half of all had ended; None if none ended.
        most_seconds: That in which 99 of 100 had.
        is_whole: False if there are older runs of this while that were not looked at.
    """

    minutes: tuple[Minute, ...]
    half_seconds: float | None
    most_seconds: float | None
    is_whole: bool


_RATES: LiteralString = """
with newest as materialized (
  select created_at, finished_at, status = 'failed' as is_bad,
    floor(extract(epoch from clock.now - created_at) / 60)::int as began,
    floor(extract(epoch from clock.now - finished_at) / 60)::int as ended
  from (select created_at, finished_at, status from pgflow.runs order by run_id desc limit %s) r,
    (select clock_timestamp() as now) clock
), events as (
  select began as ago, 1 as began, 0 as ended, 0 as failed, null::float8 as seconds from newest
  where began between 0 and %s
  union all
  select ended, 0, 1, is_bad::int, extract(epoch from finished_at - created_at)::float8
  from newest where ended between 0 and %s
)
select ago, sum(began)::int as started, sum(ended)::int as ended, sum(failed)::int as failed,
  percentile_cont(0.5) within group (order by seconds) as half,
  percentile_cont(0.99) within group (order by seconds) as most,
  (select count(*) < %s or max(began) > %s from newest) as is_whole
from events group by grouping sets ((ago), ()) order by ago nulls first
"""


def read_rates(minutes: int = 60, *, newest: int = NEWEST_RUNS) -> Question[Rates]:
    """Ask for the runs started and ended in each of the last minutes, and their durations.

    Args:
        minutes: Number of the minutes.
        newest: Number of the newest runs that are looked through.
    """
    last = minutes - 1
    return once(Query(_RATES, (newest, last, last, newest, last), _read))


def _read(rows: list[Row]) -> Rates:
    _, _, _, _, half, most, is_whole = rows[0]
    return Rates(tuple(Minute(*row[:6]) for row in rows[1:]), half, most, bool(is_whole))
