"""Rates: what was started and what ended over the last day, how long it took, and how much was
queued.

Workers count what they end, minute by minute (``sql/ops/rates.sql``), so an answer costs the same
for any number of runs. What ended without a worker is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from pgflow._db.query import Query, Row
from pgflow.inspect.question import Question, once

NEWEST_RUNS = 2_000
"""Number of newest runs that statistics of workflows scan."""
FIRST_SECONDS = 0.001024
"""Lower bound of the first duration that is counted apart; each four bounds double it."""


@dataclass(frozen=True)
class Bin:
    """A part of a time.

    Attributes:
        at: Its beginning.
        started: Runs that were started.
        completed: Runs that completed.
        failed: Runs that failed.
        cancelled: Runs that were cancelled.
        queued: Most runs that were queued at once; None without a look.
        oldest_seconds: Longest time for which one of these had waited; None if none was queued.
        p50_seconds: Median time from start to end, to about a tenth; None if none ended.
        p99_seconds: 99th percentile of the same.
    """

    at: datetime
    started: int
    completed: int
    failed: int
    cancelled: int
    queued: int | None
    oldest_seconds: float | None
    p50_seconds: float | None
    p99_seconds: float | None

    @property
    def ended(self) -> int:
        """Runs that ended, in whichever way."""
        return self.completed + self.failed + self.cancelled


@dataclass(frozen=True)
class Rates:
    """The parts of a time up to now, the oldest first.

    Attributes:
        bins: All parts, also those in which nothing happened. The last one goes on.
        bin_minutes: Length of a part.
        p50_seconds: Median time from start to end of all runs; None if none ended.
        p99_seconds: 99th percentile of the same.
    """

    bins: tuple[Bin, ...]
    bin_minutes: int
    p50_seconds: float | None
    p99_seconds: float | None


_RATES: LiteralString = """
select b.at, r.started, r.completed, r.failed, r.cancelled, r.queued, r.oldest, t.took
from (
  select date_bin(step.long, pgflow.read_clock(), 'epoch') - n * step.long as at, step.long
  from (select %s * interval '1 minute' as long) step, generate_series(%s - 1, 0, -1) n
) b
cross join lateral (
  select coalesce(sum(started), 0)::int as started, coalesce(sum(completed), 0)::int as completed,
    coalesce(sum(failed), 0)::int as failed, coalesce(sum(cancelled), 0)::int as cancelled,
    max(queued) as queued, max(oldest_seconds)::float8 as oldest
  from pgflow.rates
  where minute >= b.at and minute < b.at + b.long and queue is not distinct from %s::text
) r
cross join lateral (
  select array_agg(c.n order by c.place) as took from (
    select o.place, sum(o.n)::int as n
    from pgflow.rates, unnest(took) with ordinality as o (n, place)
    where minute >= b.at and minute < b.at + b.long and queue is null group by o.place
  ) c
) t
order by b.at
"""


def read_rates(
    bins: int = 60, bin_minutes: int = 1, *, queue: str | None = None
) -> Question[Rates]:
    """Ask for the runs started and ended in each part of the time up to now, and their durations.

    Args:
        bins: Number of the parts. Counts are kept for a day.
        bin_minutes: Length of a part, in minutes.
        queue: Counts of this queue only; None for all. Durations are those of all queues.
    """

    def read(rows: list[Row]) -> Rates:
        found = tuple(Bin(*row[:7], *(_quantile(row[7], p) for p in (0.5, 0.99))) for row in rows)
        every = _sum([row[7] or [] for row in rows])
        return Rates(found, bin_minutes, _quantile(every, 0.5), _quantile(every, 0.99))

    return once(Query(_RATES, (bin_minutes, bins, queue), read))


def _sum(histograms: Sequence[Sequence[int]]) -> list[int]:
    places = max([len(one) for one in histograms], default=0)
    return [sum(one[n] for one in histograms if n < len(one)) for n in range(places)]


def _quantile(counts: Sequence[int] | None, share: float) -> float | None:
    """Return a quantile of durations that are counted by size, from within its bounds."""
    wanted = sum(counts or ()) * share
    if not wanted:
        return None
    seen = 0
    for bucket, count in enumerate(counts or ()):
        if seen + count >= wanted:
            return _bound(bucket) + (_bound(bucket + 1) - _bound(bucket)) * (wanted - seen) / count
        seen += count
    return None


def _bound(bucket: int) -> float:
    """Return the lower bound of a bucket, as workers count (``pgflow/_worker/rates.py``)."""
    return FIRST_SECONDS * float(2 ** (bucket // 4)) * (4 + bucket % 4) / 4 if bucket else 0.0
