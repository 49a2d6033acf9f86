"""Upgrades with runs in flight: `python -m tests.upgrades SERVER_DSN [--state NAME]... [--runs N]
[--seed S]`.

For each landed state of `tests/landed/`: its own library installs its schema, workers of it run
orders - transactions, steps with a witness outside, a sleep, an effect, a signal, a child - and
while they do, the schema is upgraded to the one at hand. The old workers go on, one is killed while
it holds runs, old and new clients start and signal runs, every function is replaced again and again
under the calls, then workers of the version at hand take over. At the end every run has completed,
every row of the application is there once, every outside act has one key, no run was ever held.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent / "apps"))
sys.path.insert(0, str(Path(__file__).parent))

import servers
import states
from catalog import dump_catalog, touched
from evidence import Evidence, Findings
from landed_jobs import EXPECTED, STEPS, key_of
from sqlkit import claim

from pgflow import App, Signal, schema, transaction, workflow
from pgflow._worker.heartbeat import Rhythm
from pgflow.errors import PgflowError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

APPS = Path(__file__).parent / "apps"
RUNS = 40
QUICK_SECONDS = 60.0
HISTORY_QUICK, HISTORY_FULL = 3, 200
"""Numbers of states of the history that are upgraded in a quick run, and in any other."""
REPLACED = 5
"""Times that every function is replaced under the calls of old workers, and again under those of
new ones.
"""
PATIENCE_SECONDS = 180.0

APPLICATION = """
create schema app;
create table app.booked (key text, n int);
create table app.told (key text, n int, idempotency_key text);
create table app.was_held (run_id bigint, reason text);
grant usage on schema app to public;
grant all on all tables in schema app to public;
"""

WATCH = """
create or replace function app.note_held() returns trigger language plpgsql as
  'begin insert into app.was_held values (new.run_id, new.reason); return null; end';
create trigger note_held after insert on pgflow.held for each row execute function app.note_held();
"""


class Fleet:
    """Worker processes of the old and of the new library, as a role that may do what a worker
    may.
    """

    def __init__(self, dsn: str, state: states.State) -> None:
        self.dsn = make_conninfo(dsn, options="-c role=pgflow_worker")
        self.state = state
        self.old: list[subprocess.Popen[bytes]] = []
        self.new: list[subprocess.Popen[bytes]] = []
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the fleet

    def _environment(self, *, is_old: bool) -> dict[str, str]:
        base = (
            self.state.environment
            if is_old
            else {
                **self.state.environment,
                "PYTHONPATH": f"{states.REPOSITORY}:{states.REPOSITORY / 'cli'}",
            }
        )
        return {**base, "PGFLOW_DSN": self.dsn, "PYTHONPATH": f"{base['PYTHONPATH']}:{APPS}"}

    def add(self, *, is_old: bool) -> None:
        """Starts a worker."""
        command = [
            sys.executable,
            "-m",
            "pgflow_cli",
            "workers",
            "landed_jobs",
            "--dead-after",
            "2",
            "--poll",
            "0.2",
            "--concurrency",
            "8",
        ]
        process = subprocess.Popen(
            command,
            env=self._environment(is_old=is_old),
            cwd=APPS,
            stdout=self.log,
            stderr=self.log,
        )
        (self.old if is_old else self.new).append(process)

    def client(self, act: str, numbers: range, *, is_old: bool) -> subprocess.Popen[bytes]:
        """A client that starts or signals these runs."""
        command = [
            sys.executable,
            str(APPS / "landed_jobs.py"),
            self.dsn,
            act,
            str(numbers.start),
            str(numbers.stop),
        ]
        return subprocess.Popen(
            command,
            env=self._environment(is_old=is_old),
            cwd=APPS,
            stdout=self.log,
            stderr=self.log,
        )

    def stop(self, processes: list[subprocess.Popen[bytes]], number: signal.Signals) -> list[int]:
        """Ends processes; their exit codes."""
        for process in processes:
            process.send_signal(number)
        codes = [process.wait(30) for process in processes]
        processes.clear()
        return codes

    def said(self) -> str:
        """Return the log of the workers."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def close(self) -> None:
        """Ends what is left."""
        for processes in (self.old, self.new):
            self.stop(processes, signal.SIGKILL)
        self.log.close()


class Upgrade:
    """One upgrade, from a state, with so many runs."""

    def __init__(self, dsn: str, state: states.State, runs: int, seed: int) -> None:
        self.dsn, self.state, self.runs = dsn, state, runs
        self.random = random.Random(seed)
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.fleet = Fleet(dsn, state)
        self.deadline = time.monotonic() + PATIENCE_SECONDS
        self.replaced = 0
        self.wrong: list[str] = []

    def run(self) -> dict[str, Any]:
        """The figures of it."""
        try:
            return self._upgrade()
        finally:
            self.fleet.close()
            self.conn.close()

    def _upgrade(self) -> dict[str, Any]:
        third = self.runs // 3
        self.state.run(
            "-c",
            "import sys; from pgflow.schema import migrate_dsn; migrate_dsn(sys.argv[1])",
            self.dsn,
        )
        self.conn.execute(APPLICATION)
        self.conn.execute(WATCH)
        for _ in range(2):
            self.fleet.add(is_old=True)
        self._client("start", range(third), is_old=True)
        self._wait(lambda: self._count("status = 'waiting'") >= third // 2, "the first runs wait")
        starting = self.fleet.client("start", range(third, 2 * third), is_old=True)
        self._wait(
            lambda: self._count("status in ('running', 'queued')") > 0, "runs are on their way"
        )
        in_flight = Counter(
            status for (status,) in self.conn.execute("select status from pgflow.runs")
        )
        self._migrate(schema.own_assets())
        self._wait(lambda: starting.poll() is not None, "the old client has started its runs")
        if starting.returncode != 0:
            raise AssertionError(
                f"a client that started runs during the upgrade ended with {starting.returncode}: "
                f"{self.fleet.said()[-4000:]}"
            )
        # One that a busy machine took for dead is registered anew, and is as outdated as it was.
        self._wait(
            lambda: self._workers("is_outdated") == 2, "both old workers are shown as outdated"
        )
        outdated = self._workers("is_outdated")
        self._replace()
        done = self._count("status = 'completed'")
        self._client("signal", range(third), is_old=True)
        self._wait(
            lambda: self._count("status = 'completed'") >= done + 2 * third,
            "runs and their children complete on old workers alone",
        )
        by_old = self._count("status = 'completed'")
        held_by_killed = self._kill_one_amid(range(2 * third, self.runs))
        for _ in range(2):
            self.fleet.add(is_old=False)
        self._wait(lambda: self._workers("not is_outdated") == 2, "new workers are there")
        self._replace()
        self._client("signal", range(third, self.runs), is_old=False)
        codes = self.fleet.stop(self.fleet.old, signal.SIGTERM)
        self._wait(lambda: self._count("status = 'completed'") >= 2 * self.runs, "all runs end")
        codes += self.fleet.stop(self.fleet.new, signal.SIGTERM)
        return {
            "in_flight": dict(in_flight),
            "outdated_seen": outdated,
            "completed_by_old_workers_alone": by_old - done,
            "held_by_the_killed": held_by_killed,
            "replaced": self.replaced,
            "exit_codes": codes,
            **self._judge(),
        }

    # ------------------------------------------------------------ acts

    def _client(self, act: str, numbers: range, *, is_old: bool) -> None:
        code = self.fleet.client(act, numbers, is_old=is_old).wait(120)
        if code != 0:
            self.wrong.append(f"a client that should {act} ended with {code}")

    def _migrate(self, assets: schema.Assets) -> None:
        """As an operator would: again if a transaction was in the way."""
        while True:
            try:
                schema.install(self.conn, assets)
            except SetupError:
                if time.monotonic() > self.deadline:
                    raise
            else:
                self.replaced += 1
                return

    def _replace(self) -> None:
        """Applies every file again, under another text and under its own."""
        ours = schema.own_assets()
        for n in range(REPLACED):
            self._migrate(touched(ours) if n % 2 == 0 else ours)
        self._migrate(ours)

    def _kill_one_amid(self, numbers: range) -> int:
        """Kills an old worker while it holds runs, none of which is amid an effect, which a person
        would have to settle; how many.

        A new client starts these runs, and their first transactions wait for a lock until then.
        """
        query = "select w.worker_id, w.pid, w.running from pgflow.workers w where w.pid = any(%s) and w.running > 0 order by w.running desc limit 1"
        amid = """
            select 1 from pgflow.effects e join pgflow.runs r on r.run_id = e.run_id
            where r.worker_id = %s and e.status in ('intended', 'unknown') limit 1
        """
        caught: list[tuple[subprocess.Popen[bytes], int]] = []

        def catch() -> bool:
            found = self.conn.execute(
                query, ([process.pid for process in self.fleet.old],)
            ).fetchone()
            if found is None:
                return False
            worker_id, pid, running = found
            os.kill(pid, signal.SIGSTOP)
            if self.conn.execute(amid, (worker_id,)).fetchone() is not None:
                os.kill(pid, signal.SIGCONT)
                return False
            caught.append(
                (next(process for process in self.fleet.old if process.pid == pid), running)
            )
            return True

        with psycopg.connect(self.dsn) as blocker:
            blocker.execute("lock table app.booked in share mode")
            self._client("start", numbers, is_old=False)
            self._wait(catch, "an old worker holds runs")
            victim, running = caught[0]
            self.fleet.old.remove(victim)
            self.fleet.stop([victim], signal.SIGKILL)
        return running

    # ------------------------------------------------------------ looks

    def _count(self, condition: str) -> int:
        return int(
            self.conn.execute(f"select count(*) from pgflow.runs where {condition}").fetchone()[0]
        )  # type: ignore[index]  # noqa: S608

    def _workers(self, condition: str) -> int:
        return int(
            self.conn.execute(f"select count(*) from pgflow.workers where {condition}").fetchone()[
                0
            ]
        )  # type: ignore[index]  # noqa: S608

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        while not holds():
            if time.monotonic() > self.deadline:
                rows = self.conn.execute(
                    "select status, reason, error::text, count(*) from pgflow.runs group by 1, 2, 3"
                ).fetchall()
                raise AssertionError(f"not in time: {what}; {rows}; {self.fleet.said()[-2000:]}")
            time.sleep(0.05)

    def _judge(self) -> dict[str, Any]:
        keys = [key_of(n) for n in range(self.runs)]
        wanted = {(key, n) for key in keys for n in range(2 * STEPS)} | {
            (f"{key}/part", 0) for key in keys
        }
        booked = Counter(self.conn.execute("select key, n from app.booked").fetchall())
        told = self.conn.execute(
            "select key, n, count(distinct idempotency_key) from app.told group by 1, 2"
        ).fetchall()
        outputs = self.conn.execute(
            "select output from pgflow.runs where workflow = 'order' and status = 'completed'"
        ).fetchall()
        acts = {(key, n) for key in keys for n in (-1, *range(2 * STEPS))}
        return {
            "runs": self.runs,
            "transactions": len(wanted),
            "acts": len(acts),
            "lost": len(wanted - set(booked)) + len(acts - {(key, n) for key, n, _ in told}),
            "doubled": sum(booked.values()) - len(booked) + sum(keys - 1 for _, _, keys in told),
            "wrong_results": self.runs - sum(output == EXPECTED for (output,) in outputs),
            "held": self.conn.execute("select run_id, reason from app.was_held").fetchall(),
            "violations": self.conn.execute(
                "select invariant, detail from pgflow.check()"
            ).fetchall(),
            "tracebacks": self.fleet.said().count("Traceback"),
        }


def verdict(figures: dict[str, Any]) -> list[str]:
    """Return complaints; none if nothing is wrong."""
    wrong = [
        f"{name}: {figures[name]}"
        for name in ("lost", "doubled", "wrong_results", "held", "violations")
        if figures[name]
    ]
    if set(figures["exit_codes"]) != {0}:
        wrong.append(f"workers that were stopped ended with {figures['exit_codes']}")
    if figures["outdated_seen"] != 2:
        wrong.append(f"{figures['outdated_seen']} of 2 old workers are shown as outdated")
    return wrong


@transaction
def cross(conn: psycopg.Connection[Any], key: str) -> str:
    conn.execute("insert into app.booked values (%s, 0)", (key,))
    return key


@workflow
def crossing(key: str) -> str:
    """Begun under one schema, done under another."""
    return cross(key) + go.sync.wait()


go = Signal("go", str)
IN_FLIGHT = ("leased", "queued", "signalled", "parked")


def leave_in_flight(conn: psycopg.Connection[Any]) -> None:
    """Runs in every place that SQL alone brings them to, as each state of the history can."""
    for key in IN_FLIGHT:
        later = "clock_timestamp() + interval '1 second'" if key == "parked" else "null"
        conn.execute(
            "select pgflow.start_run(workflow => 'crossing', input => %s, key => %s, run_at => "
            f"{later})",
            (json.dumps({"key": key}), key),  # noqa: S608
        )
        if key == "leased":  # by a worker that is gone
            claim(conn)
    conn.execute("select pgflow.send_signal('signalled', 'go', '\"!\"')")


def end_all(dsn: str) -> list[str]:
    """A worker of the version at hand takes over what an upgrade found in flight: what is wrong."""
    with (
        App(dsn, include=[crossing]) as app,
        app.worker(poll_seconds=0.05, rhythm=Rhythm(beat=0.1, look=0.1, dead_after=1.0)),
    ):
        for key in IN_FLIGHT:
            if key != "signalled":
                app.send(key, go, "!")
        wrong = [key for key in IN_FLIGHT if app.get(key, crossing).result(timeout=60) != f"{key}!"]
    with psycopg.connect(dsn) as conn:
        booked = [key for (key,) in conn.execute("select key from app.booked")]
        violations = conn.execute("select invariant, detail from pgflow.check()").fetchall()
    return [
        *wrong,
        *([f"booked: {booked}"] if sorted(booked) != sorted(IN_FLIGHT) else []),
        *map(str, violations),
    ]


def upgrade_history(server_dsn: str, most: int) -> tuple[int, list[str]]:
    """Upgrades the newest states of the history, each in a database of its own and with runs in
    flight, which then end.

    Returns:
        How many, and which of them do not become a fresh install or lose a run.
    """
    wrong = []
    fresh = ""
    history = states.in_history()[:most]
    for assets in (schema.own_assets(), *history):
        database = servers.create_database(server_dsn)
        try:
            with psycopg.connect(servers.dsn_of(server_dsn, database), autocommit=True) as conn:
                schema.install(conn, assets)
                conn.execute(APPLICATION)
                leave_in_flight(conn)
                schema.migrate(conn)
                dump = dump_catalog(conn, with_server_details=True)
            wrong += [
                f"the state {assets.stamp} of the history, upgraded with runs in flight: {line}"
                for line in end_all(servers.dsn_of(server_dsn, database))
            ]
        except (psycopg.Error, PgflowError, TimeoutError) as error:
            dump = str(error)
            wrong.append(f"the state {assets.stamp} of the history: {error}")
        finally:
            servers.drop_database(server_dsn, database)
        fresh = fresh or dump
        if dump != fresh:
            wrong.append(
                f"the state {assets.stamp} of the history does not become a fresh install: "
                f"{first_difference(fresh, dump)}"
            )
    return len(history), wrong


def first_difference(wanted: str, found: str) -> str:
    """The first line of a dump that differs."""
    pairs = zip_longest(wanted.splitlines(), found.splitlines(), fillvalue="nothing")
    return next((f"{a!r} is {b!r}" for a, b in pairs if a != b), "none")


def play(server_dsn: str, name: str, runs: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Upgrades one state in a database of its own: the figures, and what is wrong."""
    database = servers.create_database(server_dsn)
    try:
        with states.unpacked(name) as state:
            upgrade = Upgrade(servers.dsn_of(server_dsn, database), state, runs, seed)
            try:
                figures = upgrade.run()
            except (AssertionError, SetupError) as error:
                return {}, [f"{name}: {error}"]
            return figures, [f"{name}: {line}" for line in (*upgrade.wrong, *verdict(figures))]
    finally:
        servers.drop_database(server_dsn, database)


def prove(server_dsn: str, seconds: float, seed: int) -> Findings:
    """Upgrades every recorded state once, and again while there is time."""
    began = time.monotonic()
    names = states.names()
    total: Counter[str] = Counter()
    wrong: list[str] = []
    while total["upgrades"] < len(names) or (time.monotonic() - began < seconds and not wrong):
        figures, said = play(
            server_dsn, names[total["upgrades"] % len(names)], RUNS, seed + total["upgrades"]
        )
        wrong += said
        total["upgrades"] += 1
        total.update(
            {
                name: figures[name]
                for name in (
                    "runs",
                    "transactions",
                    "acts",
                    "lost",
                    "doubled",
                    "replaced",
                    "held_by_the_killed",
                )
                if figures
            }
        )
    most = HISTORY_QUICK if seconds <= QUICK_SECONDS else HISTORY_FULL
    upgraded, said = upgrade_history(server_dsn, most)
    fault = f"upgrades from {len(names)} landed states under work, functions replaced under calls"
    evidence = [
        Evidence("G42", fault, total["runs"], total["lost"], total["doubled"], tuple(wrong))
    ]
    if upgraded:
        evidence.append(
            Evidence(
                "G42",
                "upgrades from every state of the history with runs in flight, catalogs compared "
                "with a fresh install",
                upgraded,
                wrong=tuple(said),
            )
        )
    return Findings(
        "upgrades",
        seed,
        evidence,
        {
            "upgrade of a landed state": (total["upgrades"], len(names)),
            "all functions replaced under calls": (total["replaced"], 2 * REPLACED * len(names)),
            "old worker killed with runs": (total["held_by_the_killed"], 1),
        },
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.upgrades",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "server_dsn", help="a superuser's; databases are made, and dropped at the end"
    )
    parser.add_argument(
        "--state",
        action="append",
        choices=states.names(),
        help="only this one; may be given several times",
    )
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wrong: list[str] = []
    for name in options.state or states.names():
        figures, said = play(options.server_dsn, name, options.runs, options.seed)
        print(name, json.dumps(figures, default=str))
        wrong += said
    for line in wrong:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
