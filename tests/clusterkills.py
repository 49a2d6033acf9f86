"""Kills under a cluster: workers and backends of its nodes, while rings of signals and children on
other nodes go on.

    python -m tests.clusterkills DSN --kills 300 --nodes 3

Where PGFLOW_CITUS_DSN names a Citus cluster, the nodes are those, and the books are distributed.
Each start is asked for by two clients at once, on two nodes, which may want different homes. Books
without a unique key say what was done, and how often. At the end every start that was acknowledged
has ended, each row is there once, no letter is left or dead, no key is on two nodes, and check() is
empty on each node.
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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "kits"), str(ROOT / "tests" / "apps")]

import clusterapp  # noqa: E402
import psycopg  # noqa: E402
import servers  # noqa: E402
from clusterkit import ask, booked, cluster_of, make_ledger, value  # noqa: E402

from pgflow import AsyncApp  # noqa: E402
from pgflow.errors import PgflowError  # noqa: E402

WORKERS_A_NODE = 2
VICTIMS = """
select pid from pg_stat_activity where pid <> pg_backend_pid() and datname = any(%s)
  and backend_type = 'client backend'
  and (application_name ~ '^(pgflow|citus_internal)' or application_name = 'postgres_fdw')
"""
OPEN = "select count(*) from pgflow.run r where not exists (select from pgflow.outcome o where o.run_id = r.run_id)"
TROUBLE = (psycopg.Error, OSError, PgflowError, TimeoutError)


@dataclass
class Books:
    """What was asked for and acknowledged: rows that must be there, and keys of the starts."""

    rows: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    kills: Counter[str] = field(default_factory=Counter)


class Campaign:
    """A cluster, its workers and its clients.

    Args:
        dsns: The nodes.
        kills: Number of kills.
        seed: Of the choices.
        crashes: Part of the kills that are a kill -9 of a backend, after which a server of this
            machine cuts off all sessions and recovers.
    """

    def __init__(self, dsns: list[str], kills: int, seed: int, crashes: float = 0) -> None:
        self._dsns, self._kills, self._crashes = dsns, kills, crashes
        self._random = random.Random(seed)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._number = 0
        self.books = Books()

    # ---------------------------------------------------------------- workers and kills

    def _start_worker(self, dsn: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pgflow_cli", "workers", "clusterapp:app", "--dsn", dsn]
        command += ["--dead-after", "2s", "--grace", "1s", "--poll", "0.2s"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def start_workers(self) -> None:
        """Start the workers of all nodes."""
        self._workers = [self._start_worker(dsn) for dsn in self._dsns * WORKERS_A_NODE]

    def stop_workers(self) -> None:
        """Kill the workers."""
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def _kill_worker(self) -> None:
        place = self._random.randrange(len(self._workers))
        self._workers[place].kill()
        self._workers[place].wait()
        self._workers[place] = self._start_worker(self._dsns[place % len(self._dsns)])
        self.books.kills["workers"] += 1

    def _kill_backends(self, count: int) -> None:
        dsn = self._random.choice(self._dsns)
        with contextlib.suppress(psycopg.Error):  # the server recovers
            pids = self._victims(dsn)
            for pid in self._random.sample(pids, min(count, len(pids))):
                if value(dsn, "select pg_terminate_backend(%s::int)", pid):
                    self.books.kills["backends"] += 1

    def _victims(self, dsn: str) -> list[int]:
        """Return backends that serve the cluster on the server of a node."""
        names = [psycopg.conninfo.conninfo_to_dict(dsn)["dbname"] for dsn in self._dsns]
        return [pid for (pid,) in ask(dsn, VICTIMS, names)]

    def _crash(self) -> None:
        with contextlib.suppress(psycopg.Error, ProcessLookupError):
            pids = self._victims(self._random.choice(self._dsns))
            for pid in self._random.sample(pids, min(1, len(pids))):  # none after a recovery
                os.kill(pid, signal.SIGKILL)
                self.books.kills["servers"] += 1

    async def kill(self) -> None:
        """Kill until there were as many kills as asked for, between starts."""
        while self.books.kills.total() < self._kills:
            await asyncio.sleep(self._random.uniform(0.3, 2.0))
            if self._random.random() < self._crashes:
                await asyncio.to_thread(self._crash)
            elif self._random.random() < 0.15:
                await asyncio.to_thread(self._kill_worker)
            else:
                await asyncio.to_thread(self._kill_backends, self._random.randint(1, 4))

    # ---------------------------------------------------------------- clients

    async def _insist(self, what: Any) -> Any:
        """Do something until it is acknowledged."""
        while True:
            with contextlib.suppress(*TROUBLE):
                return await what()
            await asyncio.sleep(0.05)

    async def _start(self, apps: list[AsyncApp], workflow: Any, key: str, *args: Any) -> None:
        """Start a run on two nodes at once, which may want different homes."""
        homes = self._random.choices(range(1, len(apps) + 1), k=2)
        await asyncio.gather(
            *(
                self._insist(
                    lambda app=app, home=home: app.start(
                        workflow.options(key=key, node=home), *args
                    )
                )
                for app, home in zip(
                    self._random.sample(apps, 2) if len(apps) > 1 else apps * 2, homes, strict=True
                )
            )
        )
        self.books.keys.add(key)

    async def _start_in_transaction(self, dsn: str, app: AsyncApp, key: str) -> None:
        """Start a run and write a row in one transaction, by letter if need be."""

        async def once() -> None:
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                done = await connection.execute(
                    "select from public.ledger where what = %s", (f"{key}/start",)
                )
                if await done.fetchone() is None:
                    await clusterapp.book.fn(connection, f"{key}/start")
                    home = self._random.randint(1, len(self._dsns))
                    starting = clusterapp.leaf.options(key=key, node=home)
                    await app.using(connection).start(starting, key)

        await self._insist(once)
        self.books.keys.add(key)
        self.books.rows.update([f"{key}/start", f"{key}/leaf"])

    async def _ring(self, apps: list[AsyncApp]) -> None:
        self._number += 1
        name = f"ring-{self._number}"
        keys = [f"{name}-{place}" for place in range(4)]
        for place, key in reversed(list(enumerate(keys))):
            following = keys[place + 1] if place + 1 < len(keys) else None
            await self._start(apps, clusterapp.hop, key, key, following)
            self.books.rows.update([f"{key}/begin", f"{key}/turn-{place}"])
        app = self._random.choice(apps)
        await self._insist(
            lambda: app.send(keys[0], clusterapp.TURN, 0, idempotency_key=f"{name}-go")
        )

    async def _child(self, apps: list[AsyncApp]) -> None:
        self._number += 1
        key = f"stem-{self._number}"
        await self._start(apps, clusterapp.stem, key, key, self._random.randint(1, len(self._dsns)))
        self.books.rows.update([f"{key}/before", f"{key}/leaf", f"{key}/after"])

    async def _client(self, apps: list[AsyncApp], is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            kind = self._random.random()
            if kind < 0.4:
                await self._ring(apps)
            elif kind < 0.7:
                await self._child(apps)
            else:
                place = self._random.randrange(len(apps))
                self._number += 1
                key = f"leaf-{self._number}"
                await self._start_in_transaction(self._dsns[place], apps[place], key)
            await asyncio.sleep(0.05)

    async def play(self) -> None:
        """Start runs and kill, until there were enough kills."""
        apps = [
            AsyncApp(dsn, include=[clusterapp.hop, clusterapp.leaf, clusterapp.stem], cluster=True)
            for dsn in self._dsns
        ]
        is_over = asyncio.Event()
        clients = [asyncio.create_task(self._client(apps, is_over)) for _ in range(6)]
        await self.kill()
        is_over.set()
        await asyncio.gather(*clients)
        for app in apps:
            await app.close()

    def drain(self) -> None:
        """Wait until every run has ended and every letter has arrived."""

        servers.wait_until(lambda: not any(map(any, self.left())), "the cluster drains")

    def left(self) -> list[Any]:
        """Open runs and letters of each node."""
        return [
            (value(dsn, OPEN), value(dsn, "select count(*) from pgflow_cluster.outbox"))
            for dsn in self._dsns
        ]

    # ---------------------------------------------------------------- verdict

    def judge(self) -> dict[str, int]:
        """Return the counts of what is wrong; all are zero if nothing is."""
        rows = booked(self._dsns)
        homes = Counter(
            row[0]
            for dsn in self._dsns
            for row in ask(
                dsn, "select key from pgflow.run_key where key = any(%s)", list(self.books.keys)
            )
        )
        wanted = self.books.rows
        failed = "select count(*) from pgflow.outcome where status in ('failed', 'cancelled')"
        return {
            "lost rows": sum((wanted - rows).values()),
            "doubled rows": sum((rows - wanted).values()),
            "lost starts": len(self.books.keys - homes.keys()),
            "keys on two nodes": sum(count > 1 for count in homes.values()),
            "failed runs": sum(value(dsn, failed) for dsn in self._dsns),
            "dead letters": sum(
                value(dsn, "select count(*) from pgflow_cluster.dead") for dsn in self._dsns
            ),
            "waits without an answer": sum(
                value(dsn, "select count(*) from pgflow_cluster.asked")
                + value(dsn, "select count(*) from pgflow_cluster.reply")
                for dsn in self._dsns
            ),
            "broken invariants": sum(len(servers.unsound(dsn)) for dsn in self._dsns),
        }


def campaign(
    server_dsn: str,
    kills: int,
    seed: int,
    template: str | None = None,
    crashes: float = 0,
    nodes: int = 3,
) -> dict[str, int]:
    """Play one campaign in databases of its own, print its counts, and return the faults."""
    with cluster_of(server_dsn, template, nodes) as dsns:
        make_ledger(dsns)
        playing = Campaign(dsns, kills, seed, crashes)
        playing.start_workers()
        try:
            asyncio.run(playing.play())
            playing.drain()
        finally:
            playing.stop_workers()
        faults, books = playing.judge(), playing.books
        print(
            f"seed {seed}: {dict(books.kills)} killed, "
            f"{len(books.keys)} starts acknowledged, {books.rows.total()} rows expected; {faults}",
            flush=True,
        )
    return faults


def main() -> int:
    """Play a campaign; exit with 1 if anything was lost, doubled or left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dsn", help="a database of a server, as superuser")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--crashes",
        type=float,
        default=0,
        help="part of the kills that crash a server of this machine",
    )
    given = parser.parse_args()
    faults = campaign(given.dsn, given.kills, given.seed, crashes=given.crashes, nodes=given.nodes)
    return int(any(faults.values()))


if __name__ == "__main__":
    sys.exit(main())
