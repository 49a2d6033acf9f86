"""The ground of a campaign: databases, workers, chance, how much of it is done, and its report."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from tests.campaigns import jobs
from tests.kits import servers
from tests.kits.processes import one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.campaigns.nursery import Nursery
    from tests.campaigns.scratch import Scratch

OPEN = "select count(*) from pgflow.runs where status not in ('completed', 'failed', 'cancelled', 'stuck')"
HANG_SECONDS = 1800.0
"""Seconds after which nothing comes any more."""


@dataclass
class Ground:
    """See the module. ``rounds`` is how much of the campaign is done, ``fired`` how often its
    faults happened.
    """

    server_dsn: str
    template: str
    nursery: Nursery
    scratch: Callable[[], Scratch]
    rng: random.Random
    rounds: int
    fired: dict[str, tuple[int, int]] = field(default_factory=dict)

    def scaled(self, each: int, maximum: int) -> int:
        """Return the number of times to do something, ``each`` in every round."""
        return min(maximum, self.rounds * each)

    def happened(self, fault: str, times: int, minimum: int) -> None:
        """Counts a fault, which must have happened so often for the campaign to count."""
        self.fired[fault] = (times, minimum)

    @contextlib.contextmanager
    def database(self) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
        """A fresh database with the schema and the tables of the jobs: its DSN and a connection."""
        name = servers.create_database(self.server_dsn, self.template)
        dsn = servers.dsn_of(self.server_dsn, name)
        try:
            with psycopg.connect(servers.witness(dsn), autocommit=True) as conn:
                yield dsn, conn
        finally:
            servers.drop_database(self.server_dsn, name)

    @contextlib.contextmanager
    def workers(self, dsn: str, number: int = 1, /, **options: Any) -> Iterator[Fleet]:
        """Worker processes."""
        fleet = Fleet(self.nursery, dsn, options)
        try:
            fleet.start(number)
            yield fleet
        finally:
            fleet.end()


class Fleet:
    """Worker processes on one database, of the same options."""

    def __init__(self, nursery: Nursery, dsn: str, options: dict[str, Any]) -> None:
        self.nursery = nursery
        self.members: list[Any] = []
        self._dsn = dsn
        self._options = options

    def start(self, count: int = 1) -> None:
        """Starts more."""
        self.members += [
            self.nursery.start("worker", self._dsn, **self._options) for _ in range(count)
        ]

    def replace(self, member: Any) -> None:
        """Kills one and starts another."""
        member.kill()
        self.members.remove(member)
        self.start()

    def restart_dead(self) -> int:
        """Starts another for each that has ended by itself; how many."""
        dead = [member for member in self.members if member.code is not None]
        for member in dead:
            self.members.remove(member)
        self.start(len(dead))
        return len(dead)

    def end(self) -> None:
        """Kills them all."""
        for member in self.members:
            member.kill()
        self.members.clear()


def start(
    conn: psycopg.Connection[Any],
    workflow: str,
    run_key: str,
    /,
    queue: str = "default",
    **arguments: Any,
) -> str:
    """Starts a run from SQL."""
    query = "select run_key from pgflow.start_run(%s, %s::json, %s, queue => %s)"
    return str(one(conn, query, workflow, json.dumps(arguments), run_key, queue))


def start_bookings(
    conn: psycopg.Connection[Any],
    count: int,
    steps: int,
    ms: int = 0,
    workflow: str = "booking",
    queue: str = "default",
    *,
    first: int = 0,
) -> list[str]:
    """Starts runs that book."""
    keys = [f"{queue}-{n}" for n in range(first, first + count)]
    runs = json.dumps([[key, json.dumps({"key": key, "steps": steps, "ms": ms})] for key in keys])
    conn.execute("select pgflow.start_runs(%s, %s, queue => %s)", (workflow, runs, queue))
    return keys


CLAIMABLE = """
select count(*) from (select lane_id from pgflow.ready where suspect < 2 union all select lane_id from pgflow.lease where suspect < 2) p
join pgflow.lane using (lane_id) where queue = %s
"""


class Feed:
    """Keeps so many runs open that workers never have nothing to do, however fast they are.
    Suspects go in groups and do not count.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        wanted: int,
        steps: int,
        ms: int,
        workflow: str = "booking",
        queue: str = "default",
    ) -> None:
        self.keys: list[str] = []
        self.steps = steps
        self._conn = conn
        self._wanted = wanted
        self._options = (steps, ms, workflow, queue)

    def fill(self) -> None:
        """Starts as many runs as are wanting."""
        queue = self._options[-1]
        missing = self._wanted - one(self._conn, CLAIMABLE, queue)
        if missing > 0:
            self.keys += start_bookings(self._conn, missing, *self._options, first=len(self.keys))


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the condition's first true value, however long that takes on this machine."""
    return servers.wait_until(condition, what, HANG_SECONDS)


def drain(conn: psycopg.Connection[Any], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Waits until every run has ended or is stuck."""

    def drained() -> bool:
        meanwhile()
        return one(conn, OPEN) == 0

    wait_until(drained, "every run comes to its end")


def at_once(count: int, function: Callable[[int], Any]) -> list[Any]:
    """Calls ``function(n)`` in so many threads, which begin together; the answers in order."""
    barrier = threading.Barrier(count)

    def begin(n: int) -> Any:
        barrier.wait()
        return function(n)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def audit(conn: psycopg.Connection[Any]) -> list[str]:
    """Return the complaints of the engine's own audit on this database."""
    return [
        f"check(): {invariant}: {detail}"
        for invariant, detail in conn.execute(
            "select invariant, detail from pgflow.check() limit 5"
        )
    ]


def booked(conn: psycopg.Connection[Any], keys: Iterable[str], steps: int) -> tuple[int, int]:
    """Return the numbers of missing and of surplus bookings, of bookings 0 to ``steps - 1`` of each
    key.
    """
    names = list(keys)
    query = "select count(distinct (key, n)), count(*) from app.booked where key = any(%s)"
    distinct, rows = conn.execute(query, (names,)).fetchone() or (0, 0)
    return len(names) * steps - distinct, rows - distinct


def not_completed(conn: psycopg.Connection[Any], keys: Iterable[str]) -> list[str]:
    """Runs that did not complete, one line each."""
    query = "select key, status, coalesce(reason, error->>'message') from pgflow.runs where key = any(%s) and status <> 'completed' limit 5"
    return [f"{key} is {status}: {why}" for key, status, why in conn.execute(query, (list(keys),))]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def spread(values: Sequence[float]) -> str:
    """Median, 99th percentile and largest, in seconds."""
    return f"p50 {percentile(values, 0.5):.3f} s, p99 {percentile(values, 0.99):.3f} s, max {max(values, default=0):.3f} s"


def prepare_template(server_dsn: str) -> str:
    """A database with the schema and the tables of the jobs, of which the others are copies."""
    name = servers.create_database(server_dsn)
    dsn = servers.dsn_of(server_dsn, name)
    servers.install_schema(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(jobs.SCHEMA)
        conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1000))")
    return name
