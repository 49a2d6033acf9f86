"""Six writers publish, some of them slowly and some in vain, while relays are killed and frozen.

``python -m tests.outboxes DSN --seconds 60`` plays it in a database that it makes beside this one. A writer
raises a counter of a key and publishes its new value in the same transaction. Some begin with a
write elsewhere, so that the order of transactions is not that of the events. Some stay open for a
second, and some roll back. Workers in processes of their own have three relays: to a receiver
outside, which is a file; to a handler that writes into a table; to a workflow. A run for each key
waits for its events, one behind the other. The workers are killed, and frozen for longer than a
lease, which is short here.

What must hold in the end: the receiver has every event that was committed and no other, each key's
in its order by first receipt, and duplicates only under the same number; the table and the runs
have each once; the runs that wait have seen each once, in its order; and ``pgflow.check()`` is empty.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

import pgflow
from pgflow import App, AsyncApp, Retries, transaction, workflow
from pgflow._worker import couriers
from pgflow._worker.options import Rhythm, WorkerOptions
from pgflow.events import Event, Relay
from tests.kits import servers

KEYS = "abcdefgh"
LEASE_SECONDS = 1.5
RHYTHM = Rhythm(beat=0.2, look=0.1, dead_after=1.5)
TABLES = """
create table if not exists outbox_counter (key text primary key, n int not null);
create table if not exists outbox_other (x int);
create table if not exists outbox_seen (event_id bigint, key text, n int);
create table if not exists outbox_watched (place serial, event_id bigint, key text, n int);
truncate outbox_counter, outbox_other, outbox_seen, outbox_watched;
"""


@dataclass
class Report:
    """Outcome of a play."""

    committed: int = 0
    rolled_back: int = 0
    slow: int = 0
    received: int = 0
    repeated: int = 0
    kills: int = 0
    freezes: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """One line for a person."""
        return (
            f"{self.committed} events committed and {self.rolled_back} rolled back by 6 writers in "
            f"{self.seconds:.1f} s, {self.slow} in slow transactions; {self.kills} kills, "
            f"{self.freezes} freezes; {self.received} received, {self.repeated} of them again under "
            f"the same number; {len(self.wrong)} wrong"
        )


@workflow
async def taken(order: dict[str, Any]) -> int:
    return int(order["n"])


@transaction
async def watched(connection: psycopg.AsyncConnection[Any], event: int, key: str, n: int) -> None:
    await connection.execute(
        "insert into outbox_watched (event_id, key, n) values (%s, %s, %s)", (event, key, n)
    )


@workflow
async def watch(key: str, after: int = 0) -> None:
    for _ in range(20):
        event = await pgflow.events.wait_for_event("counted", key=key, after=after)
        await watched(event.id, key, event.payload["n"])
        after = event.id
    pgflow.continue_as_new(key, after)


class Receiver:
    """A file that each delivery appends one line to."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def deliver(self, event: Event, relay: str) -> None:
        await asyncio.sleep(random.uniform(0, 0.002))
        if random.random() < 0.02:
            raise OSError("the receiver is out of order")
        line = f"{event.id} {event.key} {event.payload['n']}\n"
        os.write(self._file, line.encode())

    async def close(self) -> None: ...


async def note(connection: psycopg.AsyncConnection[Any], event: Event) -> None:
    await connection.execute(
        "insert into outbox_seen values (%s, %s, %s)", (event.id, event.key, event.payload["n"])
    )


def relays(path: str) -> list[Relay]:
    at_once = Retries(max_attempts=1000, first_delay=0.05, backoff=1)
    return [
        Relay("receiver", ["counted"], to=Receiver(path), retries=at_once, circuit=50),
        Relay("table", ["counted"], to=note, retries=at_once),
        # No worker serves the queue: only the starts count.
        Relay("runs", ["counted"], to=taken.options(queue="nobody"), retries=at_once),
    ]


async def serve(dsn: str, path: str) -> None:
    """Works until it is killed."""
    couriers.LEASE_SECONDS, couriers.RENEW_SECONDS, couriers.SURE_SECONDS = LEASE_SECONDS, 0.4, 1.0
    couriers.BATCH = 20
    app = AsyncApp(dsn, include=[watch, *relays(path)])
    options = WorkerOptions(queues=["default"], poll_seconds=0.05, rhythm=RHYTHM)
    async with app, app._run_worker(options):
        await asyncio.Event().wait()


class Play:
    """A play, with what it has seen."""

    def __init__(self, dsn: str, seconds: float, seed: int, path: str) -> None:
        self.dsn, self.path = dsn, path
        self.report = Report()
        self.ends_at = time.monotonic() + seconds
        self.seed = seed
        self.committed: set[tuple[str, int]] = set()
        self.events: dict[int, tuple[str, int]] = {}
        self.lock = threading.Lock()

    def write(self, number: int) -> None:
        """A writer: raises counters, and publishes what they are then."""
        rng = random.Random(self.seed * 100 + number)
        with psycopg.connect(self.dsn) as conn:
            while time.monotonic() < self.ends_at:
                self._write_once(conn, rng)

    def _write_once(self, conn: psycopg.Connection[Any], rng: random.Random) -> None:
        is_slow = rng.random() < 0.03
        if rng.random() < 0.3:
            conn.execute("insert into outbox_other values (1)")
            time.sleep(rng.uniform(0, 0.01))
        made: dict[int, tuple[str, int]] = {}
        for key in sorted(rng.sample(KEYS, rng.choice((1, 1, 1, 2)))):
            (n,) = conn.execute(
                "insert into outbox_counter values (%s, 1) on conflict (key) do update"
                " set n = outbox_counter.n + 1 returning n",
                (key,),
            ).fetchone()  # type: ignore[misc]
            (event,) = conn.execute(
                "select pgflow.publish('counted', json_build_object('n', %s::int), %s)", (n, key)
            ).fetchone()  # type: ignore[misc]
            made[event] = (key, n)
        time.sleep(rng.uniform(0.3, 1.0) if is_slow else rng.uniform(0, 0.005))
        if rng.random() < 0.1:
            conn.rollback()
            with self.lock:
                self.report.rolled_back += len(made)
            return
        conn.commit()
        with self.lock:
            self.report.slow += is_slow
            self.events.update(made)

    def disturb(self, processes: int) -> None:
        """Starts workers, and kills or freezes one after the other."""
        rng = random.Random(self.seed)
        with App(self.dsn, include=[watch]) as app:
            for key in KEYS:
                app.start(watch.options(key=f"watch/{key}"), key)
        workers = [self._begin() for _ in range(processes)]
        frozen: dict[int, float] = {}
        while time.monotonic() < self.ends_at:
            time.sleep(rng.uniform(0.3, 1.2))
            for place, at in list(frozen.items()):
                if time.monotonic() > at:
                    os.kill(workers[place].pid, signal.SIGCONT)
                    del frozen[place]
            place = rng.randrange(processes)
            if place in frozen:
                continue
            if rng.random() < 0.4:
                os.kill(workers[place].pid, signal.SIGSTOP)
                frozen[place] = time.monotonic() + LEASE_SECONDS * 1.5
                self.report.freezes += 1
            else:
                workers[place].kill()
                workers[place].wait()
                workers[place] = self._begin()
                self.report.kills += 1
        for place in frozen:
            os.kill(workers[place].pid, signal.SIGCONT)
        try:
            self._await_rest()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.outboxes", self.dsn, "--serve", self.path],
            cwd=Path(__file__).parents[1],
            stderr=subprocess.DEVNULL,
        )

    def _await_rest(self) -> None:
        """Waits until the relays have taken all."""
        rest = "select sum(lag + retrying) from pgflow.relays"
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            deadline = time.monotonic() + 120
            while conn.execute(rest).fetchone() != (0,):
                assert time.monotonic() < deadline, conn.execute(
                    "select name, state, lag, retrying, dead, error from pgflow.relays"
                ).fetchall()
                time.sleep(0.1)
            # The runs of workers that were killed last are taken up by others.
            while conn.execute("select count(*) from outbox_watched").fetchone()[0] < len(
                self.events
            ):  # type: ignore[index]
                assert time.monotonic() < deadline, conn.execute(
                    "select key, status from pgflow.runs where key like 'watch/%'"
                ).fetchall()
                time.sleep(0.1)
        with App(self.dsn, include=[watch]) as app:
            for key in KEYS:
                app.cancel(f"watch/{key}")

    def compare(self) -> None:
        """Compares what was got with what was committed."""
        found = self.report
        wanted = self.events
        found.committed = len(wanted)
        lines = [line.split() for line in Path(self.path).read_text().splitlines()]
        got = [(int(event), (key, int(n))) for event, key, n in lines]
        found.received = len(got)
        found.repeated = len(got) - len({event for event, _ in got})
        say = found.wrong.append
        for event in wanted.keys() - {event for event, _ in got}:
            say(f"event {event} was lost")
        by_key: dict[str, list[int]] = defaultdict(list)
        numbers: dict[tuple[str, int], int] = {}
        for event, made in got:
            if wanted.get(event) != made:
                say(f"event {event} was never committed as {made}")
            if numbers.setdefault(made, event) != event:
                say(f"{made} came under two numbers")
            elif made[1] not in by_key[made[0]]:
                by_key[made[0]].append(made[1])
        for key, seen in by_key.items():
            if seen != list(range(1, len(seen) + 1)):
                first = next(i for i, n in enumerate(seen) if n != i + 1)
                say(f"key {key} came out of order: {seen[max(0, first - 2) : first + 3]}")
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            rows = conn.execute("select event_id from outbox_seen").fetchall()
            self._once("the table", [event for (event,) in rows])
            rows = conn.execute(
                "select event_id, key, n from outbox_watched order by place"
            ).fetchall()
            self._once("the waiting runs", [event for event, _, _ in rows])
            for key in KEYS:
                ns = [n for _, other, n in rows if other == key]
                if ns != list(range(1, len(ns) + 1)):
                    say(f"the run that waits for key {key} has seen another order")
            keys = conn.execute("select key from pgflow.runs where key like 'runs/%'").fetchall()
            self._once("the runs", [int(key.removeprefix("runs/")) for (key,) in keys])
            for row in conn.execute("select invariant, detail from pgflow.check()").fetchall():
                say(f"{row[0]}: {row[1]}")

    def _once(self, where: str, got: list[int]) -> None:
        counts = Counter(got)
        for event in self.events.keys() - counts.keys():
            self.report.wrong.append(f"{where} lacks event {event}")
        for event, count in counts.items():
            if count > 1 or event not in self.events:
                self.report.wrong.append(f"{where} has event {event} {count} times")


def play(dsn: str, seconds: float = 30, seed: int = 1, processes: int = 3) -> Report:
    """Plays it, and says what was wrong."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(TABLES)
    with tempfile.TemporaryDirectory() as folder:
        stage = Play(dsn, seconds, seed, str(Path(folder) / "received"))
        began = time.monotonic()
        writers = [threading.Thread(target=stage.write, args=(n,)) for n in range(6)]
        for writer in writers:
            writer.start()
        disturbing = threading.Thread(target=stage.disturb, args=(processes,))
        disturbing.start()
        for thread in (*writers, disturbing):
            thread.join()
        stage.report.seconds = time.monotonic() - began
        stage.compare()
        return stage.report


def main() -> int:
    """Plays it once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dsn", help="a superuser's")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(options.dsn, options.serve))
        return 0
    name = servers.create_database(options.dsn)
    try:
        dsn = servers.dsn_of(options.dsn, name)
        servers.install_schema(dsn)
        report = play(dsn, options.seconds, options.seed, options.processes)
    finally:
        servers.drop_database(options.dsn, name)
    print(report)
    for line in report.wrong[:50]:
        print(" ", line)
    return 1 if report.wrong or report.kills < 3 else 0


if __name__ == "__main__":
    sys.exit(main())
