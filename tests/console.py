"""The server time of each page of the console over a large database: ``python -m tests.console
SERVER_DSN [--finished N] [--large]``.

A million runs have ended, ten thousand are open, and one has 10,000 steps; with --large, 300,000
are open. The database is that of ``tests.plans``, with schedules and an outbox beside it, analysed as
autovacuum would have done. A page is asked for as a browser would, in this process, so that its
time is that of its statements and of making its HTML; the first time is that of a cold cache. It
fails if a page takes more processor time than its bound, here and in the server, which must be on
this machine. A busy machine makes the other times longer.

With --live, fifty pages are open instead, first while nothing happens and then while runs start all
the time, and the time of the server's processes that answer them is measured. It fails if they take
more than a part of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TypeVar
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parent / "kits"))

import psycopg
import servers
from webkit import Browser, Watched

from pgflow import AsyncApp
from pgflow._db.query import Query
from pgflow.web import Principal, live
from tests.plans import Ids, Sizes, build

T = TypeVar("T")

BOUND_SECONDS = 0.1
"""Processor time of a page, all but the first time."""
TIMES = 10
OPEN = Sizes(unclaimable=1_000, ready=3_000, parked=4_000, leased=1_000, held=1_000, kin=200)
STEPS = 10_000
LIVE_PAGES = 50
LIVE_SHARE = 0.05
"""Part of a core that all of them may take."""
LIVE_SECONDS = 20.0
SCHEDULES = 1_000
EVENTS = 100_000
DEAD = 1_000

EVENTS_AND_SCHEDULES = f"""
select pgflow.set_schedule('nightly-' || n, 'flow_' || n % 8 + 1, '{{"cron": ["30 2 * * *"]}}') from generate_series(1, {SCHEDULES}) n;
select pgflow.declare_relay('mailer', array['orders'], 'https://mail.example');
select count(pgflow.publish('orders', '{{}}', 'k' || n % 1000)) from generate_series(1, {EVENTS}) n;
insert into pgflow.delivery (relay, event_id, topic, key, at, due_at, is_dead, attempts, error, payload)
select 'mailer', -n, 'orders', 'k' || n, now(), now(), true, 3, 'no', '{{}}' from generate_series(1, {DEAD}) n;
insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
select run_id, run_id * 1000 + 7, now() + n * interval '1 ms', now(), n + 10, n + 10, 'c', 'step', '{{"done": true}}'
from pgflow.run, generate_series(1, {STEPS}) n where run_id = {{finished}} + 1501;
insert into pgflow.rate (minute, queue, upto_run_id, started, completed, queued, oldest_seconds, took)
select date_trunc('minute', now()) - m * interval '1 minute', q, 1, 9, 9, 9, 1, case q when '' then array_fill(1, array[100]) end
from generate_series(1, 1439) m, unnest(array['', 'default', 'limited', 'elsewhere', 'four', 'five']) q;
vacuum analyze
"""


@dataclass(frozen=True)
class Timed:
    """A page, and how long it took.

    Attributes:
        path: Its address.
        status: Status of the answer.
        kib: Its size.
        first: Seconds of the first time.
        usual: Seconds of the median of those after it.
        processor: Seconds of processors for each of these.
    """

    path: str
    status: int
    kib: float
    first: float
    usual: float
    processor: float

    @property
    def is_slow(self) -> bool:
        """True if it takes longer than it may."""
        return self.processor > BOUND_SECONDS or self.status != 200


def addresses(conn: psycopg.Connection[tuple[object, ...]], ids: Ids) -> list[str]:
    """Return the pages, and the searches that find the least."""

    def of(path: str, **said: object) -> str:
        return f"{path}?{urlencode(said)}"

    old, parked = f"key-{ids.finished + 1_500}", f"key-{ids.parked + 1_000 - ids.parked % 5}"
    long = f"key-{ids.finished + 1_501}"
    (gate,) = conn.execute("select gate from pgflow.gate limit 1").fetchone() or ("",)
    owed = [
        row[0]
        for row in conn.execute(
            "select distinct on (kind) detail->>'key' from pgflow.owed where kind <> 'gate'"
        )
    ]
    statuses = ("queued", "running", "waiting", "paused", "stuck", "completed", "failed")
    return [
        "/",
        "/overview",
        of("/overview", range="24h"),
        "/runs",
        of("/runs", sort="longest"),
        of("/runs", sort="oldest"),
        *(of("/runs", status=one) for one in (*statuses, "cancelled")),
        of("/runs", after=ids.finished + 500_000),
        of("/runs", key=old),
        of("/runs", key="key-12*"),
        of("/runs", key="none-*"),
        of("/runs", key="*-none"),
        of("/runs", workflow="flow_1"),
        of("/runs", workflow="rare"),
        of("/runs", workflow="none"),
        of("/runs", queue="limited"),
        of("/runs", queue="elsewhere"),
        of("/runs", label="customer=c77"),
        of("/runs", label="customer=none"),
        of("/runs", since="15m"),
        of("/runs", since="7d"),
        of("/runs", status="failed", workflow="rare"),
        of("/runs", status="cancelled", since="1h"),
        of("/runs", error="declined"),
        of("/runs", error="no such", since="24h"),
        *(
            of("/runs", after=ids.finished + 500_000, wide=1, **said)
            for said in (
                {"key": "none-*"},
                {"workflow": "rare"},
                {"error": "declined"},
                {"status": "completed"},
            )
        ),
        of("/runs/order", verb="cancel", workflow="rare"),
        of("/run", key=old),
        of("/run", key=long),
        of("/run", **{"key": long, "from": 5_000}),
        of("/run", key=parked),
        of("/run/order", key=parked, verb="cancel"),
        of("/run/again", key=old, at=1),
        "/gates",
        of("/gates", mine=1),
        of("/gate", gate=gate),
        "/effects",
        of("/effects", state="accepted"),
        "/obligations",
        *(of("/debt", key=one) for one in owed),
        "/budgets",
        of("/budget", pool="tenant"),
        of("/budget", pool=f"user-{ids.ready}"),
        "/schedules",
        of("/schedules", state="paused"),
        of("/schedule", name="nightly-7"),
        "/outbox",
        of("/relay", name="mailer"),
        "/queues",
        "/workers",
        "/health",
        of("/filters", status="failed"),
        "/workflows",
        of("/workflow", name="flow_1"),
        "/policy",
        "/sql",
        of("/sql/page", page="/"),
    ]


async def look(dsn: str, paths: list[str]) -> list[Timed]:
    """Ask for each page some times."""
    found = []
    async with AsyncApp(dsn, listen=False) as app:
        browser = Browser(app, Principal("ann", ["admin"]))
        for path in paths:
            times = []
            before, here = {}, 0.0
            for number in range(TIMES + 1):
                if number == 1:
                    before, here = _spent(dsn), time.process_time()
                began = time.perf_counter()
                status = await browser.status(path)
                times.append(time.perf_counter() - began)
            here = time.process_time() - here
            spent = here + sum(at - before.get(pid, 0.0) for pid, at in _spent(dsn).items())
            assert browser.last is not None
            size = len(browser.last.content) / 1024
            found.append(Timed(path, status, size, times[0], median(times[1:]), spent / TIMES))
            print(line_of(found[-1]), flush=True)
    return found


class Counted(AsyncApp):
    """An app that counts what it asks."""

    asked = 0

    async def ask(self, query: Query[T]) -> T:
        """Ask, and count it."""
        self.asked += 1
        return await super().ask(query)


async def watch(dsn: str, paths: list[str], seconds: float) -> bool:
    """Open pages live, and say what they cost while nothing happens and while much does. Return
    False if it is too much.
    """
    async with Counted(dsn) as app, contextlib.AsyncExitStack() as stack:
        browser = Browser(app, Principal("ann", ["admin"]))
        watched = [Watched(browser, path) for path in paths[:LIVE_PAGES]]
        for one in watched:
            await stack.enter_async_context(one)
        await asyncio.sleep(5)
        shares = []
        for is_busy in (False, True):
            stop = asyncio.Event()
            load = asyncio.create_task(_load(dsn, stop)) if is_busy else None
            before, asked = _spent(dsn), app.asked
            sent = sum(len(one.events) for one in watched)
            await asyncio.sleep(seconds)
            after = _spent(dsn)
            sent = sum(len(one.events) for one in watched) - sent
            stop.set()
            if load is not None:
                await load
            spent = sum(max(0.0, at - before.get(pid, at)) for pid, at in after.items())
            shares.append(spent / seconds)
            print(
                f"{'busy' if is_busy else 'idle'}: {len(watched)} pages take "
                f"{100 * shares[-1]:.1f} % of a core, ask {(app.asked - asked) / seconds * 5:.1f} "
                f"statements in 5 s, and are sent {sent} times in {seconds:.0f} s",
                flush=True,
            )
        browser.served.close()
    return max(shares) < LIVE_SHARE


async def _load(dsn: str, stop: asyncio.Event) -> None:
    """Start runs all the time."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        while not stop.is_set():
            await conn.execute("select run_id from pgflow.start_run('flow_1', '{}')")
            await conn.execute("select pg_notify('pgflow_work', 'r1')")
            await asyncio.sleep(0.02)


def _spent(dsn: str) -> dict[int, float]:
    """Return the seconds of each process that answers the console."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        pids = conn.execute(
            "select pid from pg_stat_activity where application_name in "
            "('pgflow app', 'pgflow listener') and datname = current_database()"
        ).fetchall()
    seconds = {}
    for (pid,) in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds[int(pid)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def line_of(one: Timed) -> str:
    """Return a line of the table."""
    mark = "  SLOW" if one.is_slow else ""
    return (
        f"{one.processor * 1000:7.0f} ms of processors {one.usual * 1000:7.0f} ms "
        f"{one.first * 1000:7.0f} first "
        f"{one.kib:6.0f} KiB "
        f"{one.status} {one.path}{mark}"
    )


def main() -> int:
    """Build the database, look at each page, and drop it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dsn", help="of a server; a superuser's")
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--large", action="store_true", help="300,000 open runs")
    parser.add_argument("--keep", action="store_true", help="keep the database, and say its name")
    parser.add_argument("--name", help="look at one that was kept")
    parser.add_argument("--live", action="store_true", help="keep fifty pages open")
    parser.add_argument("--only", help="only pages whose address has this in it")
    options = parser.parse_args()
    sizes = replace(Sizes() if options.large else OPEN, finished=options.finished)
    name = options.name or servers.create_database(options.dsn)
    dsn = servers.dsn_of(options.dsn, name)
    try:
        if not options.name:
            servers.install_schema(dsn)
            ids = build(dsn, sizes)
            with psycopg.connect(dsn, autocommit=True) as conn:
                for text in EVENTS_AND_SCHEDULES.split(";\n"):
                    conn.execute(text.replace("{finished}", str(ids.finished)))
        with psycopg.connect(dsn) as conn:
            if options.name:
                ids = _ids_of(conn, sizes)
            paths = addresses(conn, ids)
        if options.only:
            paths = [path for path in paths if options.only in path]
        if options.live:
            live.STREAM_SECONDS = 1e9
            lists = [path for path in paths if path.partition("?")[0] in live.LIVE_PATHS]
            keys = [f"/run?key=key-{ids.finished + n}" for n in range(1, LIVE_PAGES)]
            return 0 if asyncio.run(watch(dsn, lists[:25] + keys, LIVE_SECONDS)) else 1
        slow = [one for one in asyncio.run(look(dsn, paths)) if one.is_slow]
    finally:
        if options.keep or options.name:
            print(f"kept: --name {name}")
        else:
            servers.drop_database(options.dsn, name)
    return 1 if slow else 0


def _ids_of(conn: psycopg.Connection[tuple[object, ...]], sizes: Sizes) -> Ids:
    """Return where the places of a kept database begin."""
    top: int = conn.execute("select last_value from pgflow.run_id_seq").fetchone()[0]  # type: ignore[index,assignment]
    total = Ids.after(0, sizes).end - 1
    return Ids.after(top - total - 1, sizes)


if __name__ == "__main__":
    sys.exit(main())
