"""The meter: counters of a worker's own work, as plain numbers for exporters.

The worker's event loop counts, with one addition for each event. Any thread may read each number at
any time. Without a meter, a worker spends one comparison on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from pgflow._flow.run_info import EFFECTS

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RUNS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metered(Protocol):
    """Interface of a worker, as its meter reads it."""

    @property
    def worker_id(self) -> int:
        """Number under which the database knows it."""

    @property
    def active(self) -> int:
        """Number of runs worked on."""

    @property
    def concurrency(self) -> int:
        """Most runs at once."""

    @property
    def lost_threads(self) -> int:
        """Number of threads whose bodies outlive their steps."""

    @property
    def beat_age_seconds(self) -> float:
        """Seconds since the last acknowledged sign of life."""


class Histogram:
    """Counts of observations by size.

    Attributes:
        bounds: Upper bounds of the buckets; one without a bound follows.
        counts: Observations in each bucket.
        total: Sum of all observations.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Meter:
    """Counters of one worker. Give each worker its own, and read it with :mod:`pgflow.prometheus`.

    Attributes:
        worker: Its worker; None before it starts.
        claimed: Runs claimed, by workflow.
        finished: Runs ended here, by (workflow, status).
        left: Runs that left for another reason, by (workflow, place): ``waiting``, ``held``,
            ``continued`` as new, ``ended`` from outside, ``elsewhere``.
        attempts: Attempts of bodies with an outcome, by (effect, outcome): ``completed``,
            ``failed`` for good, ``retried``.
        retries: Repeated attempts, by (effect, why): ``failure``, ``infrastructure``,
            ``contention``.
        threads_lost: Bodies in threads that outlived their timeout or cancellation.
        units: Units of journals written by group commits.
        commits: Group commits.
        commit_failures: Group commits that were sent again.
        losses: Failovers that lost commits acknowledged to this worker, or a part of the log that
            it knew to be durable.
        lost_runs: Runs that lost units in a failover.
        batch_runs: Runs in one group commit.
        commit_seconds: Durations of group commits.
        claim_seconds: Durations of claims that did not ride with a commit.

    Example::

        meter = Meter()
        async with app, app.worker(meter=meter):
            server = pgflow.prometheus.serve(meter, app.dsn, port=9464)
    """

    def __init__(self) -> None:
        self.worker: Metered | None = None
        self.claimed: defaultdict[str, int] = defaultdict(int)
        self.finished: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.left: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.attempts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.retries: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.threads_lost = 0
        self.units = 0
        self.commits = 0
        self.commit_failures = 0
        self.losses = 0
        self.lost_runs = 0
        self.batch_runs = Histogram(RUNS)
        self.commit_seconds = Histogram(SECONDS)
        self.claim_seconds = Histogram(SECONDS)

    def run_claimed(self, workflow: str) -> None:
        """A run was claimed."""
        self.claimed[workflow] += 1

    def run_ended(self, workflow: str, status: str) -> None:
        """A run has ended here."""
        self.finished[workflow, status] += 1

    def run_left(self, workflow: str, place: str) -> None:
        """A run has left without an end of its own."""
        self.left[workflow, place] += 1

    def thread_lost(self) -> None:
        """Count a thread whose body outlives its step."""
        self.threads_lost += 1

    def commit_failed(self) -> None:
        """A group commit is to be sent again."""
        self.commit_failures += 1

    def work_lost(self, runs: int) -> None:
        """A fail-over has lost what was acknowledged of so many runs."""
        self.losses += 1
        self.lost_runs += runs

    def attempt_ended(self, effect: str, *, failed: bool = False, again: bool = False) -> None:
        """A body came back: ``effect`` is the letter of its class."""
        self.attempts[
            EFFECTS[effect], "retried" if again else "failed" if failed else "completed"
        ] += 1
        if again:
            self.retries[EFFECTS[effect], "failure"] += 1

    def tried_again(self, effect: str, *, contention: bool) -> None:
        """A body is tried again for a reason that is not recorded."""
        self.retries[EFFECTS[effect], "contention" if contention else "infrastructure"] += 1

    def committed(self, runs: int, units: int, seconds: float) -> None:
        """A group commit is durable."""
        self.commits += 1
        self.units += units
        self.batch_runs.observe(runs)
        self.commit_seconds.observe(seconds)
