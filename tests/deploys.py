"""A deploy under fire: `python -m tests.deploys SERVER_DSN [--runs N] [--kills N] [--seed S]`.

Runs of version 1 are in flight - a third of them served by any code, a third pinned to their
version, a third with a patch in the code - when workers of version 2 come, each a process of its
own. Messages bring the runs on, clients of both versions begin more, and workers of both are killed
with SIGKILL while they hold runs; each is replaced by one of its version. At the end every run must
have come to what its code says, none may be stuck, and what bodies did, which a table of the
application tells, must be what the journals say, under the same keys.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg

import pgflow
from pgflow import App, AsyncApp, Signal, step, workflow
from pgflow._worker.options import WorkerOptions

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent))

from collections.abc import Callable, Sequence

import servers
from crashes import RHYTHM

from pgflow._flow.workflow import Workflow

CONCURRENCY = 50
EACH_VERSION = 2
"""Workers of each version at once."""

PATIENCE_SECONDS = 600

go = Signal("go", int)


def code(version: int, act: Any) -> list[Workflow[..., Any]]:
    """The three workflows as they are in a version.

    Args:
        version: 1 or 2.
        act: The step that they call.
    """

    @workflow(name="auto")
    async def auto(n: int) -> list[str]:
        said = [await act(f"begin {n}")]
        await go.wait()
        said.append(await act("end" if version == 1 else "en" + "d"))
        return said

    @workflow(name="pinned", version=str(version), pinned=True)
    async def pinned(n: int) -> list[str]:
        said = [await act("one"), await act("two")] if version == 1 else [await act(f"two {n}")]
        await go.wait()
        return [*said, await act(f"by {version}")]

    @workflow(name="patched")
    async def patched(n: int) -> list[str]:
        said = []
        if version == 2 and pgflow.patched("check"):
            said.append(await act("checked"))
        said.append(await act(f"begin {n}"))
        await go.wait()
        return [*said, await act("end")]

    made = [auto, pinned, patched]
    for each in made:
        each.__dict__["code_hash"] = f"code {version}"
    return made


def right(name: str, n: int, output: Sequence[str], begun_by: str) -> bool:
    """Return True if a run came to the result of its code; `begun_by` is the version that it is
    pinned to.
    """
    if name == "auto":
        return output == [f"begin {n}", "end"]
    if name == "pinned":
        return output == (["one", "two", "by 1"] if begun_by == "1" else [f"two {n}", "by 2"])
    return output in ([f"begin {n}", "end"], ["checked", f"begin {n}", "end"])


def start_worker(dsn: str, version: int) -> subprocess.Popen[bytes]:
    """Starts a process that works with the code of a version."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.deploys", dsn, "--worker", str(version)],
        cwd=Path(__file__).parent.parent,
    )  # noqa: S603


async def _work(dsn: str, version: int) -> None:
    witness = await psycopg.AsyncConnection.connect(dsn, autocommit=True)

    @step(name="act", retries=10)
    async def act(what: str) -> str:
        await witness.execute(
            "insert into app.acted values (%s, %s)", (pgflow.idempotency_key(), version)
        )
        return what

    app = AsyncApp(dsn, include=code(version, act))
    async with (
        app,
        app._work(WorkerOptions(concurrency=CONCURRENCY, poll_seconds=0.2, rhythm=RHYTHM)),
    ):
        await asyncio.Event().wait()


class Deploy:
    """Starts runs, deploys, kills, and judges."""

    def __init__(self, dsn: str, runs: int, kills: int, seed: int) -> None:
        self.dsn = dsn
        self.each = max(1, -(-runs // 3))
        self.wanted = kills
        self.random = random.Random(seed)
        self.live: list[tuple[int, subprocess.Popen[bytes]]] = []
        self.killed: Counter[str] = Counter()
        self.orphaned = 0
        self.started = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Answers the figures."""
        with psycopg.connect(self.dsn, autocommit=True) as conn, App(self.dsn) as app:
            try:
                return self._deploy(conn, app)
            finally:
                for _, process in self.live:
                    process.kill()
                    process.wait()

    def _deploy(self, conn: psycopg.Connection[Any], app: App) -> dict[str, Any]:
        conn.execute("create schema app; create table app.acted (key text, version int)")
        conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1000))")
        for _ in range(EACH_VERSION):
            self._add(1)
        self._start(app, 1, range(self.each))
        self._wait(lambda: self._count(conn, "waiting") == 3 * self.each, "the first runs wait")
        in_flight = self._count(conn, "waiting")
        for _ in range(EACH_VERSION):
            self._add(2)
        self._wait(
            lambda: (
                conn.execute("select count(*) from pgflow.workers").fetchone()
                == (2 * EACH_VERSION,)
            ),
            "both versions are at work",
        )
        more = max(1, self.each // 10)
        for version in (1, 2):  # those that both versions begin come first
            self._start(app, version, range(version * self.each, version * self.each + more))
        keys = [key for (key,) in conn.execute("select key from pgflow.runs")]
        self.random.shuffle(keys)
        every = max(1, len(keys) // (self.wanted + 1))
        for at, key in enumerate(keys, 1):
            app.send(key, go, 1)
            if at % every == 0 and self.killed.total() < self.wanted:
                self._kill(conn)
        self._wait(lambda: self._count(conn, "completed") == len(keys), "all runs end")
        return {
            "in_flight": in_flight,
            **self._judge(conn, len(keys)),
            "seconds": round(time.monotonic() - self.started, 1),
        }

    def _add(self, version: int) -> None:
        self.live.append((version, start_worker(self.dsn, version)))

    def _start(self, app: App, version: int, numbers: range) -> None:
        @step(name="act")
        async def act(what: str) -> str:
            return what

        for flow in reversed(code(version, act)):
            app.start_many(flow, [(n,) for n in numbers])

    def _kill(self, conn: psycopg.Connection[Any]) -> None:
        """Kills the worker that holds most, of each version in turn, as soon as one holds
        anything.
        """
        version = 1 + self.killed.total() % 2
        held = "select w.pid, count(*) from pgflow.lease join pgflow.worker w using (worker_id) where w.pid = any(%s) group by 1 order by 2 desc limit 1"
        theirs = {process.pid: process for its, process in self.live if its == version}
        found = None
        deadline = time.monotonic() + 1.0
        while found is None and time.monotonic() < deadline:
            found = conn.execute(held, (list(theirs),)).fetchone()
        pid, runs = found or (self.random.choice(list(theirs)), 0)
        theirs[pid].kill()
        theirs[pid].wait()
        self.live.remove((version, theirs[pid]))
        self.killed[str(version)] += 1
        self.orphaned += runs
        self._add(version)

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        while not holds():
            found = time.monotonic() - self.started
            assert found < PATIENCE_SECONDS, f"not within {PATIENCE_SECONDS} s: {what}"
            time.sleep(0.05)

    def _count(self, conn: psycopg.Connection[Any], status: str) -> int:
        return int(
            conn.execute(
                "select count(*) from pgflow.runs where status = %s", (status,)
            ).fetchone()[0]
        )  # type: ignore[index]

    def _judge(self, conn: psycopg.Connection[Any], started: int) -> dict[str, Any]:
        rows = conn.execute(
            "select workflow, input->>'n', output, version, status from pgflow.runs"
        ).fetchall()
        recorded = {
            key
            for (key,) in conn.execute(
                "select idempotency_key from pgflow.steps where status = 'completed'"
            )
        }
        acted = Counter(
            dict(conn.execute("select key, count(*) from app.acted group by 1").fetchall())
        )
        both = conn.execute("select count(*) from pgflow.steps").fetchone()[0]  # type: ignore[index]
        return {
            "runs": started,
            "by_status": dict(Counter(row[4] for row in rows)),
            "killed_by_version": dict(self.killed),
            "runs_held_by_the_killed": self.orphaned,
            "wrong_results": sum(
                not right(row[0], int(row[1]), row[2] or [], row[3]) for row in rows
            ),
            "patched_on_the_new_side": sum(
                row[0] == "patched" and len(row[2] or []) == 3 for row in rows
            ),
            "steps": both,
            "acted_and_not_recorded": len(set(acted) - recorded),
            "recorded_and_not_acted": len(recorded - set(acted)),
            "acted_again_under_the_same_key": sum(n - 1 for n in acted.values()),
            "versions_still_needed": conn.execute(
                "select count(*) from pgflow.versions where pinned and not safe_to_remove"
            ).fetchone()[0],  # type: ignore[index]
            "violations": conn.execute("select invariant, detail from pgflow.check()").fetchall(),
        }


MUST_BE_NONE = (
    "wrong_results",
    "acted_and_not_recorded",
    "recorded_and_not_acted",
    "versions_still_needed",
)


def verdict(figures: dict[str, Any], kills: int) -> list[str]:
    """Return complaints; none if nothing is wrong."""
    wrong = [f"{name}: {figures[name]}" for name in MUST_BE_NONE if figures[name]]
    if figures["by_status"] != {"completed": figures["runs"]}:
        wrong.append(f"not all runs completed: {figures['by_status']}")
    if sum(figures["killed_by_version"].values()) < kills:
        wrong.append(f"workers killed: {figures['killed_by_version']}: the run is void")
    if not figures["patched_on_the_new_side"]:
        wrong.append("no run was begun by the new code: the run is void")
    if kills and not figures["runs_held_by_the_killed"]:
        wrong.append("no worker was killed that held a run: the run is void")
    return wrong + ([f"check(): {figures['violations'][:3]}"] if figures["violations"] else [])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "server_dsn", help="a superuser's; a database is made, and dropped at the end"
    )
    parser.add_argument("--runs", type=int, default=1000, help="in flight at the deploy")
    parser.add_argument(
        "--kills",
        type=int,
        default=20,
        help="workers killed while the runs are brought to their end",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--worker",
        type=int,
        choices=(1, 2),
        help="be a worker of this version, in the database that is named",
    )
    options = parser.parse_args()
    if options.worker:
        logging.disable(logging.CRITICAL)
        asyncio.run(_work(options.server_dsn, options.worker))
    name = servers.create_database(options.server_dsn)
    try:
        dsn = servers.dsn_of(options.server_dsn, name)
        servers.install_schema(dsn)
        figures = Deploy(dsn, options.runs, options.kills, options.seed).run()
    finally:
        servers.drop_database(options.server_dsn, name)
    print(json.dumps(figures, indent=2, default=str))
    wrong = verdict(figures, options.kills)
    for line in wrong:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
