"""Metrics for Prometheus over HTTP: the counters of a worker, and the state of the database.

The worker's own figures come from its :class:`~pgflow.meter.Meter`. The figures of the database are
read on each scrape, at most every few seconds, on a connection that is closed again. They are the
same on every worker, so aggregate them with ``max by (queue)``, not with a sum. If the database
cannot be reached, ``pgflow_database_up`` is 0 and they are missing; the worker's own are always
there.

Needs ``pip install "pgflow-engine[metrics]"``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import accumulate
from typing import Any

import psycopg

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError(
        'pgflow.prometheus needs prometheus-client: pip install "pgflow-engine[metrics]"'
    ) from error

from pgflow import __version__, inspect
from pgflow._transactions.join import connect_within
from pgflow.logs import redacted
from pgflow.meter import Histogram, Meter, Metered

log = logging.getLogger("pgflow")

CACHE_SECONDS = 5.0
CONNECT_SECONDS = 3
STATES = ("queued", "running", "waiting", "paused", "stuck")

_LIMITS = "set local statement_timeout = '5s'; set local transaction_read_only = on"


class WorkerCollector(Collector):
    """Counts of one worker; for a registry of your own."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        """The figures at this moment."""
        yield from _of_runs(self._meter)
        yield from _of_commits(self._meter)
        if self._meter.worker is not None:
            yield from _of_worker(self._meter.worker)


def _of_runs(meter: Meter) -> Iterator[Metric]:
    yield _counts(
        "pgflow_runs_claimed",
        "Runs that this worker has taken up, replays included",
        ("workflow",),
        meter.claimed,
    )
    yield _counts(
        "pgflow_runs_finished",
        "Runs that ended on this worker",
        ("workflow", "status"),
        meter.finished,
    )
    yield _counts(
        "pgflow_runs_left",
        "Runs that left this worker without an end of their own",
        ("workflow", "place"),
        meter.left,
    )
    yield _counts(
        "pgflow_step_attempts",
        "Attempts of step bodies, by outcome",
        ("effect", "outcome"),
        meter.attempts,
    )
    yield _counts(
        "pgflow_step_retries",
        "Attempts of step bodies after the first",
        ("effect", "reason"),
        meter.retries,
    )
    yield _count(
        "pgflow_threads_lost",
        "Bodies that went on in their threads after a time-out or cancel",
        meter.threads_lost,
    )


def _of_commits(meter: Meter) -> Iterator[Metric]:
    yield _count(
        "pgflow_units_committed",
        "Units of journals that this worker has sent with group commits",
        meter.units,
    )
    yield _count("pgflow_commits", "Group commits", meter.commits)
    yield _count("pgflow_losses", "Fail-overs that lost what was acknowledged", meter.losses)
    yield _count(
        "pgflow_lost_runs", "Runs of which something acknowledged was lost", meter.lost_runs
    )
    yield _count(
        "pgflow_commit_failures", "Group commits that had to be sent again", meter.commit_failures
    )
    yield _histogram("pgflow_commit_batch_runs", "Runs in one group commit", meter.batch_runs)
    yield _histogram("pgflow_commit_seconds", "Time that a group commit took", meter.commit_seconds)
    yield _histogram(
        "pgflow_claim_seconds",
        "Time that a claim took that did not ride with a commit",
        meter.claim_seconds,
    )


def _of_worker(worker: Metered) -> Iterator[Metric]:
    yield _gauge("pgflow_active_runs", "Runs that this worker works on", worker.active)
    yield _gauge(
        "pgflow_lost_threads",
        "Threads of this worker whose step bodies outlive their steps",
        worker.lost_threads,
    )
    yield _gauge(
        "pgflow_concurrency", "Runs that this worker may work on at once", worker.concurrency
    )
    yield _gauge(
        "pgflow_heartbeat_age_seconds",
        "Time since the database last heard that this worker lives",
        worker.beat_age_seconds,
    )
    info = GaugeMetricFamily(
        "pgflow_worker_info",
        "Always 1: which worker this is",
        labels=("worker_id", "version"),
    )
    info.add_metric((str(worker.worker_id), __version__), 1)
    yield info


class DatabaseCollector(Collector):
    """Numbers of runs and the like in a database, asked for at most every few seconds.

    Args:
        dsn: The database.
        cache_seconds: For how long an answer is good enough.
    """

    def __init__(self, dsn: str, *, cache_seconds: float = CACHE_SECONDS) -> None:
        self._dsn = dsn
        self._cache_seconds = cache_seconds
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._answer: list[Metric] = []
        self._was_up = True

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not ask the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The figures, at most a few seconds old."""
        with self._lock:
            if self._asked_at is None or time.monotonic() - self._asked_at >= self._cache_seconds:
                self._answer = self._ask()
                self._asked_at = time.monotonic()
            answer = self._answer
        yield from answer

    def _ask(self) -> list[Metric]:
        began = time.monotonic()
        try:
            found = [*self._figures()]
        except psycopg.Error as error:
            log.log(
                logging.WARNING if self._was_up else logging.DEBUG,
                "cannot ask the database for figures: %s",
                redacted(error),
            )
            found = []
        self._was_up = bool(found)
        up = _gauge(
            "pgflow_database_up",
            "Whether the database answered the last time it was asked",
            float(self._was_up),
        )
        took = _gauge(
            "pgflow_database_scrape_seconds",
            "Time that asking the database took",
            time.monotonic() - began,
        )
        return [up, took, *found]

    def _figures(self) -> Iterator[Metric]:
        with (
            connect_within(self._dsn, "pgflow metrics", CONNECT_SECONDS) as connection,
            connection.transaction(),
            connection.cursor() as cursor,
        ):
            cursor.execute(_LIMITS)
            queues = inspect.ask(connection, inspect.list_queues())
            workers = inspect.ask(connection, inspect.count_workers())
            work = inspect.ask(connection, inspect.read_idleness())
            schedules = inspect.ask(connection, inspect.count_schedules())
        yield from _of_queues(queues, work.now)
        yield _gauge("pgflow_workers", "Workers that count as alive", workers.workers)
        yield _gauge(
            "pgflow_workers_silence_seconds",
            "Time since the last sign of life of the most silent of them",
            workers.silence_seconds or 0.0,
        )
        yield from _of_timers(work)
        yield from _of_schedules(schedules)


def _of_queues(queues: list[inspect.QueueRow], now: datetime) -> Iterator[Metric]:
    runs = GaugeMetricFamily(
        "pgflow_queue_runs", "Open runs in each queue", labels=("queue", "status")
    )
    age = GaugeMetricFamily(
        "pgflow_queue_oldest_ready_age_seconds",
        "For how long the oldest run has been ready",
        labels=("queue",),
    )
    for queue in queues:
        for state in STATES:
            runs.add_metric((queue.queue, state), getattr(queue, state))
        since = queue.oldest_queued_at
        age.add_metric(
            (queue.queue,), 0.0 if since is None else max(0.0, (now - since).total_seconds())
        )
    yield runs
    yield age


def _of_timers(work: inspect.Idleness) -> Iterator[Metric]:
    """Yield the metrics of timers. A due timer is taken within milliseconds, so a late one shows
    that no worker polls.
    """
    due = work.next_due_at
    late = 0.0 if due is None else max(0.0, (work.now - due).total_seconds())
    yield _gauge(
        "pgflow_timers_due", "Timers and deadlines that are due and not taken yet", work.due_timers
    )
    yield _gauge(
        "pgflow_timer_lateness_seconds",
        "For how long the oldest due timer has been due; 0 if none is",
        late,
    )
    if due is not None:
        yield _gauge(
            "pgflow_timer_next_due_timestamp_seconds", "When the next timer is due", due.timestamp()
        )


def _of_schedules(counts: list[inspect.ScheduleCount]) -> Iterator[Metric]:
    family = GaugeMetricFamily("pgflow_schedules", "Schedules in each state", labels=("state",))
    for count in counts:
        family.add_metric((count.state,), count.schedules)
    yield family
    yield _gauge(
        "pgflow_schedule_lateness_seconds",
        "For how long the oldest due slot has been due; 0 if none is",
        max((count.late_seconds for count in counts), default=0.0),
    )


def _counts(name: str, what: str, labels: tuple[str, ...], numbers: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for key, number in sorted(list(numbers.items())):  # noqa: C414 - a copy in one move: the worker goes on counting
        family.add_metric((key,) if isinstance(key, str) else key, number)
    return family


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _count(name: str, what: str, number: int) -> Metric:
    return CounterMetricFamily(name, what, value=number)


def _histogram(name: str, what: str, histogram: Histogram) -> Metric:
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    buckets = list(zip(bounds, accumulate(list(histogram.counts)), strict=True))
    return HistogramMetricFamily(name, what, buckets=buckets, sum_value=histogram.total)


class Server:
    """An HTTP server in a thread.

    Attributes:
        url: Address of the figures.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, host, registry)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """End the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(meter: Meter, dsn: str, *, port: int, host: str = "127.0.0.1") -> Server:
    """Serve the metrics of a worker, its database and its process in Prometheus' text format.

    Args:
        meter: Meter of the worker.
        dsn: The database.
        port: Port to listen on; 0 for any that is free.
        host: Address to listen on. There is no authentication, so the default is this machine only.

    Returns:
        The server, which you must close.

    Raises:
        OSError: The address cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(WorkerCollector(meter))
    registry.register(DatabaseCollector(dsn))
    ProcessCollector(registry=registry)
    return Server(registry, host, port)
