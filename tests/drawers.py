"""Many draw on one pool at once, and on nested pools, while their sessions are killed.

``python -m tests.drawers DSN --drawers 200 --limit 200`` plays it against a database with the
schema and prints the rate. Each drawer is a run with a lease. Sessions hold some of them each, and
commit what these ask and have spent in one batch, as workers do. A killer terminates backends in
the middle of it; the session resends the batch and learns what became of it. Beside them a watcher
adds up charges and reservations, in one snapshot, again and again.

What must hold: no sum is ever above the limit of its pool; nearly all of the limit can be spent;
``pgflow.check()`` is empty, with every reservation returned once the drawers have ended.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "kits"))

import sqlkit
from sqlkit import Claim, Flush, document, flush, one, read_answer, rows, unit

CENT = Decimal("0.01")
USABLE = Decimal("0.95")
"""At least so much of a limit can be spent before all drawers are refused."""

WATCH = """
select p.name, (p.limits->>'usd')::numeric as allowed,
  coalesce((select sum((c.amounts->>'usd')::numeric) from pgflow.charge c where p.name = any(c.pools)), 0)
  + coalesce((select sum((v.amounts->>'usd')::numeric) from pgflow.reservation v where p.name = any(v.pools)), 0) as drawn
from pgflow.pool p where p.limits ? 'usd'
"""


@dataclass
class Report:
    """Outcome of a play."""

    admitted: int = 0
    refused: int = 0
    kills: int = 0
    looks: int = 0
    seconds: float = 0.0
    over: list[str] = field(default_factory=list)
    """Pools of which more was drawn than they allow, as the watcher has seen it."""
    spent: dict[str, tuple[Decimal, Decimal]] = field(default_factory=dict)
    """By pool, what was charged and what is allowed."""

    @property
    def top(self) -> tuple[Decimal, Decimal]:
        """Charges and limit of the pool that all draw on in the end."""
        return self.spent.get("tenant") or self.spent["one"]

    def __str__(self) -> str:
        """One line for a person."""
        charged, allowed = self.top
        rate = self.admitted / self.seconds if self.seconds else 0
        return (
            f"{self.admitted} admitted and {self.refused} refused in {self.seconds:.1f} s, {rate:.0f} "
            f"admissions/s, {self.kills} sessions killed, {self.looks} looks, {len(self.over)} over, "
            f"{charged / allowed:.1%} of the limit spent"
        )


@dataclass
class Drawer:
    """A run that draws until it is refused for good."""

    claim: Claim
    rng: random.Random
    call: int = 0
    asked: int = 0
    """Cents that are reserved for the call under way; 0 for none."""
    is_done: bool = False

    def next_flush(self) -> Flush:
        """Flush with the charge of the last call, and the question for the next one."""
        units, closes = [], []
        if self.asked:
            cents = self.rng.randint(0, self.asked)
            said = {"call": self.call, "amounts": {"usd": str(cents * CENT)}}
            units = [unit("M", 0, "ask", json.dumps(said)), unit("c", self.call, "ask", "1")]
            closes = [self.call]
        self.call += 1
        self.asked = self.rng.randint(1, 10)
        asks = {"call": self.call, "name": "ask", "amounts": {"usd": str(self.asked * CENT)}}
        return flush(self.claim, *units, closes=closes, admits=[asks])


class Session:
    """A connection with the runs that it draws for."""

    def __init__(
        self, dsn: str, drawers: list[Drawer], report: Report, lock: threading.Lock
    ) -> None:
        self._dsn = dsn
        self._drawers = drawers
        self._report = report
        self._lock = lock
        self._conn = sqlkit.connect(dsn)

    def play(self) -> None:
        """Draws until nobody here is admitted any more."""
        while drawing := [d for d in self._drawers if not d.is_done]:
            flushes = {d.claim.run_id: d.next_flush() for d in drawing}
            units = self._commit(list(flushes.values()))
            for drawer in drawing:
                self._take(drawer, units[drawer.claim.run_id])
        ends = [
            flush(d.claim, outcome=("completed", None, "null", None), closes=[None])
            for d in self._drawers
        ]
        self._commit(ends)
        self._conn.close()

    def _take(self, drawer: Drawer, units: list[list[Any]]) -> None:
        ((_, _, kind, _, payload),) = [u[:5] for u in units if u[2] in "mq"]
        with self._lock:
            self._report.admitted += kind == "m"
            self._report.refused += kind == "q"
        if kind == "q":
            left = Decimal(json.loads(payload)["left"])
            # What others have reserved may return; what is left for a cent may be asked for.
            drawer.is_done = left < CENT and not self._may_return()
            drawer.asked = 0

    def _may_return(self) -> bool:
        while True:
            try:
                return bool(one(self._conn, "select exists (select from pgflow.reservation)"))
            except psycopg.OperationalError:
                self._conn = sqlkit.connect(self._dsn)

    def _commit(self, flushes: list[Flush]) -> dict[int, list[list[Any]]]:
        """Commits a batch, however often it takes; answers the units that the database decided."""
        found: dict[int, list[list[Any]]] = {}
        pending, careful = flushes, False
        while pending:
            try:
                query = "select pgflow.commit_units(%s, %s)"
                answer = read_answer(one(self._conn, query, document(*pending), careful))
            except (psycopg.OperationalError, psycopg.errors.UniqueViolation):
                careful = True
                if self._conn.closed:
                    self._conn = sqlkit.connect(self._dsn)
                continue
            again = []
            for f in pending:
                run_id, verdict = f.claim.run_id, answer.bad.get(f.claim.run_id)
                if verdict == "busy":
                    again.append(f)
                    continue
                assert verdict in (None, "already"), f"run {run_id} is {verdict}"
                units = answer.settled.get(run_id, {}).get("units") or []
                if verdict == "already":
                    units = self._recorded(run_id, f.last_seq)
                found[run_id] = units
                f.claim.seq = units[-1][0] if units else f.last_seq
            pending = again
        return found

    def _recorded(self, run_id: int, after: int) -> list[list[Any]]:
        while True:
            try:
                sql = (
                    "select seq, call, kind::text, name, payload::text from pgflow.unit "
                    "where run_id = %s and seq > %s order by seq"
                )
                return [list(row) for row in self._conn.execute(sql, (run_id, after)).fetchall()]
            except psycopg.OperationalError:
                self._conn = sqlkit.connect(self._dsn)


def set_pools(conn: psycopg.Connection[Any], limit: Decimal, *, nested: bool) -> list[str]:
    """One pool; or a tenant with four users, whose limits are more than it has."""
    if not nested:
        conn.execute(
            "select pgflow.set_pool('one', %s, soft => null)", (json.dumps({"usd": float(limit)}),)
        )
        return ["one"]
    conn.execute(
        "select pgflow.set_pool('tenant', %s, soft => null)", (json.dumps({"usd": float(limit)}),)
    )
    users = [f"user-{n}" for n in range(4)]
    for user in users:
        each = json.dumps({"usd": float(limit / 3)})
        conn.execute("select pgflow.set_pool(%s, %s, 'tenant', soft => null)", (user, each))
    return users


def draw(
    dsn: str,
    *,
    drawers: int = 200,
    sessions: int = 20,
    limit: Decimal = Decimal(20),
    nested: bool = False,
    kill_each_seconds: float = 0.05,
    seed: int = 1,
) -> Report:
    """Plays it; see the module."""
    report, lock, over = Report(), threading.Lock(), threading.Event()
    rng = random.Random(seed)  # noqa: S311 - repeatable is what it is for
    with sqlkit.connect(dsn) as conn:
        pools = set_pools(conn, limit, nested=nested)
        worker = sqlkit.register(conn)
        for n in range(drawers):
            sqlkit.start(conn, "draw", pool=pools[n % len(pools)])
        claims = []
        while len(claims) < drawers:
            claims += sqlkit.claim(conn, drawers - len(claims), worker=worker)
    runs = [Drawer(claim, random.Random(rng.random())) for claim in claims]  # noqa: S311
    crews = [Session(dsn, runs[n::sessions], report, lock) for n in range(sessions)]
    aside = [
        threading.Thread(target=_watch, args=(dsn, report, over)),
        threading.Thread(target=_kill, args=(dsn, report, over, kill_each_seconds, rng)),
    ]
    began = time.monotonic()
    for thread in aside:
        thread.start()
    try:
        with ThreadPoolExecutor(sessions) as threads:
            for done in [threads.submit(crew.play) for crew in crews]:
                done.result()
    finally:
        over.set()
        for thread in aside:
            thread.join()
    report.seconds = time.monotonic() - began
    with sqlkit.connect(dsn) as conn:
        for pool, allowed, drawn in conn.execute(WATCH).fetchall():
            report.spent[pool] = (drawn, allowed)
        assert rows(conn, "select invariant || ': ' || detail from pgflow.check()") == []
        assert one(conn, "select count(*) from pgflow.reservation") == 0
    return report


def _watch(dsn: str, report: Report, over: threading.Event) -> None:
    with sqlkit.connect(dsn) as conn:
        while not over.is_set():
            for pool, allowed, drawn in conn.execute(WATCH).fetchall():
                if drawn > allowed:
                    report.over.append(f"{pool}: {drawn} of {allowed}")
            report.looks += 1


def _kill(
    dsn: str, report: Report, over: threading.Event, each_seconds: float, rng: random.Random
) -> None:
    sql = (
        "select pid from pg_stat_activity where datname = current_database() and state = 'active' "
        "and query like '%commit_units%' and pid <> pg_backend_pid()"
    )
    with sqlkit.connect(dsn) as conn:
        while not over.wait(each_seconds):
            if pids := rows(conn, sql):
                report.kills += bool(one(conn, "select pg_terminate_backend(%s)", rng.choice(pids)))


def main() -> None:
    """Plays it on one pool and on nested ones, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("--drawers", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--limit", type=Decimal, default=Decimal(200))
    parser.add_argument("--kill-each", type=float, default=0.05, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    import servers

    for nested in (False, True):
        name = servers.create_database(given.dsn)
        fresh = servers.dsn_of(given.dsn, name)
        servers.install_schema(fresh)
        report = draw(
            fresh,
            drawers=given.drawers,
            sessions=given.sessions,
            limit=given.limit,
            nested=nested,
            kill_each_seconds=given.kill_each,
            seed=given.seed,
        )
        print("nested pools" if nested else "one pool", report, sep=": ")
        judge(report)
        servers.drop_database(given.dsn, name)


def judge(report: Report) -> None:
    """Raises AssertionError if a promise was broken."""
    assert report.over == []
    assert report.looks > 0
    for pool, (charged, allowed) in report.spent.items():
        assert charged <= allowed, pool
    charged, allowed = report.top
    assert charged >= USABLE * allowed, f"only {charged} of {allowed} could be spent"


if __name__ == "__main__":
    main()
