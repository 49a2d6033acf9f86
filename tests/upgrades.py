"""Upgrades with runs in flight: `python -m tests.upgrades SERVER_DSN [--runs N] [--seed S]`, and
`--record` for the record of a release.

Two kinds. The version at hand is upgraded to an imagined next one while workers of both work on
orders: transactions, steps with a witness outside, a sleep, an effect, a signal, a child. Its
workers go on, one is killed while it holds runs, clients of both start and signal runs, every
function is replaced again and again under the calls, then workers of the next version take over. At
the end every run has completed, every row of the application is there once, every outside act has
one key, no run was ever held. And each recorded release (`tests/releases.py`) is upgraded with the
runs that it left in flight, which then end; so is a record of the version at hand.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path
from typing import IO, Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent / "apps"))
sys.path.insert(0, str(Path(__file__).parent))

from collections.abc import Callable, Iterator

import releases
import servers
from catalog import dump_catalog, touched
from evidence import Evidence, Findings
from sqlkit import claim
from upgrade_jobs import EXPECTED, STEPS, key_of

from pgflow import schema
from pgflow._version import __version__
from pgflow.errors import SetupError

APPS = Path(__file__).parent / "apps"
REPOSITORY = Path(__file__).parents[1]
RUNS = 40
UPGRADES = 8
REPLACED = 3
"""Times that every function is replaced under the calls of old workers, and again under those of
new ones.
"""
PATIENCE_SECONDS = 900.0
"""A guard against hangs, and no measure: a busy machine takes its time."""


@dataclass(frozen=True)
class Version:
    """A library and its SQL, in a folder."""

    folder: Path

    @property
    def assets(self) -> schema.Assets:
        """Its SQL."""
        return schema.read_assets(self.folder, __version__)

    def start(self, log: IO[bytes], dsn: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a Python program under this library, as a role that may do what a worker may."""
        worker_dsn = make_conninfo(dsn, options="-c role=pgflow_worker")
        path = os.pathsep.join(map(str, (self.folder, self.folder / "cli", APPS)))
        return subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "PGFLOW_DSN": worker_dsn, "PYTHONPATH": path},
            cwd=APPS,
            stdout=log,
            stderr=log,
        )


AT_HAND = Version(REPOSITORY)

NEXT = """
alter table pgflow.run add column next_note text;
alter table pgflow.signal add column next_note text;
alter table pgflow.worker add column next_count int not null default 0;
create table pgflow.next_fact (run_id bigint primary key, at timestamptz not null);
comment on table pgflow.next_fact is 'A table of the next version';
create index next_fact_idx on pgflow.next_fact (at);
"""
OF_OTHER_SHAPE = {
    "(key text, tenant text default '')\nreturns bigint": (
        "(key text, tenant text default '', next_option int default null)\nreturns bigint"
    ),
    "find_chain(text, text)": "find_chain(text, text, int)",
}
"""A function that gets a parameter, so that the one before makes way."""


@contextmanager
def next_version() -> Iterator[Version]:
    """Make an imagined next version: a migration more, another text of every file of functions, and
    a function of another shape.
    """
    with tempfile.TemporaryDirectory(prefix="pgflow-next-") as name:
        folder = Path(name)
        for part in ("pgflow", "cli", "sql", "migrations"):
            shutil.copytree(
                REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        number = AT_HAND.assets.migrations[-1].number + 1
        (folder / "migrations" / f"{number:04}_next.sql").write_text(NEXT)
        for file in (folder / "sql").rglob("*.sql"):
            file.write_text(file.read_text() + "\n-- next\n")
        changed = folder / "sql" / "runs" / "result.sql"
        text = changed.read_text()
        for old, new in OF_OTHER_SHAPE.items():
            assert text.count(old) == 1, f"{old!r} is not in {changed.name} once"
            text = text.replace(old, new)
        changed.write_text(text)
        yield Version(folder)


class Fleet:
    """Worker processes and clients of versions on one database, and their log."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.workers: dict[Version, list[subprocess.Popen[bytes]]] = {}
        self.conn = psycopg.connect(dsn, autocommit=True)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the fleet
        self._deadline = time.monotonic() + PATIENCE_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for version in list(self.workers):
            self.stop(version, signal.SIGKILL)
        self.conn.close()
        self._log.close()

    def add(self, version: Version, count: int) -> None:
        """Start workers."""
        options = "upgrade_jobs --dead-after 2s --poll 0.2s --concurrency 8"
        command = ["-m", "pgflow_cli", "workers", *options.split()]
        started = [version.start(self._log, self.dsn, *command) for _ in range(count)]
        self.workers.setdefault(version, []).extend(started)

    def client(self, version: Version, act: str, numbers: range) -> subprocess.Popen[bytes]:
        """Start a client that starts or signals these runs."""
        bounds = map(str, (numbers.start, numbers.stop))
        jobs = str(APPS / "upgrade_jobs.py")
        return version.start(
            self._log,
            self.dsn,
            jobs,
            make_conninfo(self.dsn, options="-c role=pgflow_worker"),
            act,
            *bounds,
        )

    def ask(self, version: Version, act: str, numbers: range) -> None:
        """Have a client start or signal these runs, and wait for it."""
        self.finish(self.client(version, act, numbers))

    def finish(self, client: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a client, which must be a good one."""
        code = client.wait(PATIENCE_SECONDS)
        assert code == 0, f"a client ended with {code}: {self.said()[-4000:]}"

    def stop(self, version: Version, number: signal.Signals = signal.SIGTERM) -> list[int]:
        """End the workers of a version; their exit codes."""
        processes = self.workers.pop(version, [])
        for process in processes:
            process.send_signal(number)
        return [process.wait(PATIENCE_SECONDS) for process in processes]

    def said(self) -> str:
        """Return the log."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def count(self, condition: str, view: str = "runs") -> int:
        """Return the number of runs, or of rows of another view, that are so."""
        query = f"select count(*) from pgflow.{view} where {condition}"  # noqa: S608 - our own
        return int(self.conn.execute(query).fetchone()[0])  # type: ignore[index]

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something."""
        while not holds():
            if time.monotonic() > self._deadline:
                rows = self.conn.execute(
                    "select status, reason, error::text, count(*) from pgflow.runs group by 1, 2, 3"
                ).fetchall()
                raise AssertionError(f"not in time: {what}; {rows}; {self.said()[-2000:]}")
            time.sleep(0.05)

    def judge(self, keys: list[str]) -> dict[str, Any]:
        """Compare what the orders of these keys have done with what they should have done."""
        ask = self.conn.execute
        wanted = {(key, n) for key in keys for n in range(2 * STEPS)} | {
            (f"{key}/part", 0) for key in keys
        }
        acts = {(key, n) for key in keys for n in (-1, *range(2 * STEPS))}
        booked = Counter(ask("select key, n from app.booked").fetchall())
        told = ask(
            "select key, n, count(distinct idempotency_key) from app.told group by 1, 2"
        ).fetchall()
        outputs = ask(
            "select output from pgflow.runs where workflow = 'order' and status = 'completed'"
        ).fetchall()
        return {
            "runs": len(keys),
            "transactions": len(wanted),
            "acts": len(acts),
            "lost": len(wanted - set(booked)) + len(acts - {(key, n) for key, n, _ in told}),
            "doubled": sum(booked.values()) - len(booked) + sum(keys - 1 for _, _, keys in told),
            "wrong_results": len(keys) - sum(output == EXPECTED for (output,) in outputs),
            "held": ask(
                "select run_id, reason from app.was_held where reason <> 'later'"
            ).fetchall(),
            "violations": ask("select invariant, detail from pgflow.check()").fetchall(),
        }


@contextmanager
def fleet_on(server_dsn: str) -> Iterator[Fleet]:
    """Make a database for a fleet, and drop it in the end."""
    database = servers.create_database(server_dsn)
    try:
        with Fleet(servers.dsn_of(server_dsn, database)) as fleet:
            yield fleet
    finally:
        servers.drop_database(server_dsn, database)


def verdict(figures: dict[str, Any]) -> list[str]:
    """Return complaints; none if nothing is wrong."""
    must_be_none = (
        *("lost", "doubled", "wrong_results", "held", "violations"),
        *("application_errors", "deadlocks"),
    )
    wrong = [f"{name}: {figures[name]}" for name in must_be_none if figures.get(name)]
    if set(figures["exit_codes"]) != {0}:
        wrong.append(f"workers that were stopped ended with {figures['exit_codes']}")
    return wrong


class Application:
    """Transactions of an application that go on all the while: each has rows of its own, starts a
    run, signals it and the one before, reads a view, and commits.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._dsn = fleet.dsn
        self._conn = fleet.conn
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(2)]
        self.committed = 0
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def figures(self) -> dict[str, Any]:
        """What became of its transactions, and the deadlocks that anybody had."""
        row = self._conn.execute(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchone()
        return {
            "application_transactions": self.committed,
            "application_errors": self.errors,
            "deadlocks": row and row[0],
        }

    def _work(self, thread: int) -> None:
        statements = [
            "insert into app.booked values (%(key)s, 0)",
            "select pgflow.send_signal(%(before)s, 'go', '1')",
            "select pgflow.start_run('idle', '{}', key => %(key)s)",
            "select status from pgflow.runs where key = %(key)s",
            "select pgflow.send_signal(%(key)s, 'go', '1')",
        ]
        with psycopg.connect(self._dsn) as conn:
            conn.execute("select pgflow.start_run('idle', '{}', key => %s)", (f"idle{thread}/0",))
            conn.commit()
            for n in count(1):
                if self._stop.is_set():
                    return
                keys = {"key": f"idle{thread}/{n}", "before": f"idle{thread}/0"}
                try:
                    for statement in statements:
                        conn.execute(statement, keys)
                    conn.commit()
                    self.committed += 1
                except psycopg.Error as error:
                    self.errors.append(str(error))
                    conn.rollback()


def replace(fleet: Fleet, version: Version) -> None:
    """Apply every file again, under another text and under its own."""
    for n in range(REPLACED):
        schema.install(fleet.conn, touched(version.assets) if n % 2 == 0 else version.assets)
    schema.install(fleet.conn, version.assets)


def kill_one_amid(fleet: Fleet, later: Version, numbers: range) -> int:
    """Kill a worker of the version at hand while it holds runs, none of which is amid an effect,
    which a person would have to settle; how many.

    A new client starts these runs, and their first transactions wait for a lock until then.
    """
    query = "select w.worker_id, w.pid, w.running from pgflow.workers w where w.pid = any(%s) and w.running > 0 order by w.running desc limit 1"
    amid = """
        select 1 from pgflow.effects e join pgflow.runs r on r.run_id = e.run_id
        where r.worker_id = %s and e.status in ('intended', 'unknown') limit 1
    """
    old = fleet.workers[AT_HAND]
    caught: list[tuple[subprocess.Popen[bytes], int]] = []

    def catch() -> bool:
        found = fleet.conn.execute(query, ([process.pid for process in old],)).fetchone()
        if found is None:
            return False
        worker_id, pid, running = found
        os.kill(pid, signal.SIGSTOP)
        if fleet.conn.execute(amid, (worker_id,)).fetchone() is not None:
            os.kill(pid, signal.SIGCONT)
            return False
        caught.append((next(process for process in old if process.pid == pid), running))
        return True

    with psycopg.connect(fleet.dsn) as blocker:
        blocker.execute("lock table app.booked in share mode")
        fleet.ask(later, "start", numbers)
        fleet.wait(catch, "an old worker holds runs")
        victim, running = caught[0]
        old.remove(victim)
        victim.kill()
        victim.wait()
    return running


def upgrade_under_work(fleet: Fleet, later: Version, runs: int, seed: int) -> dict[str, Any]:
    """Upgrade the version at hand while it works on so many runs; the figures."""
    third = runs // 3 + random.Random(seed).randrange(3)
    schema.install(fleet.conn, AT_HAND.assets)
    fleet.conn.execute(releases.APPLICATION)
    fleet.add(AT_HAND, 2)
    fleet.ask(AT_HAND, "start", range(third))
    fleet.wait(lambda: fleet.count("status = 'waiting'") >= third // 2, "the first runs wait")
    starting = fleet.client(AT_HAND, "start", range(third, 2 * third))
    fleet.wait(lambda: fleet.count("status in ('running', 'queued')") > 0, "runs are on their way")
    in_flight = Counter(
        status for (status,) in fleet.conn.execute("select status from pgflow.runs")
    )
    with Application(fleet) as application:
        schema.install(fleet.conn, later.assets)
        fleet.finish(starting)
        # One that a busy machine took for dead is registered anew, and is as outdated as it was.
        fleet.wait(lambda: fleet.count("is_outdated", "workers") == 2, "both workers are outdated")
        replace(fleet, later)
        done = fleet.count("status = 'completed'")
        fleet.ask(AT_HAND, "signal", range(third))
        fleet.wait(
            lambda: fleet.count("status = 'completed'") >= done + 2 * third,
            "runs and their children complete on old workers alone",
        )
        by_old = fleet.count("status = 'completed'") - done
        held_by_killed = kill_one_amid(fleet, later, range(2 * third, runs))
        fleet.add(later, 2)
        fleet.wait(lambda: fleet.count("not is_outdated", "workers") == 2, "new workers are there")
        replace(fleet, later)
        fleet.ask(later, "signal", range(third, runs))
    codes = fleet.stop(AT_HAND)
    fleet.wait(lambda: fleet.count("status = 'completed'") >= 2 * runs, "all runs end")
    codes += fleet.stop(later)
    return {
        "in_flight": dict(in_flight),
        "completed_by_old_workers_alone": by_old,
        "held_by_the_killed": held_by_killed,
        "exit_codes": codes,
        **application.figures(),
        **fleet.judge([key_of(n) for n in range(runs)]),
    }


def play(server_dsn: str, runs: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Upgrade the version at hand under work, in a database of its own: the figures, and what is
    wrong.
    """
    with next_version() as later, fleet_on(server_dsn) as fleet:
        try:
            figures = upgrade_under_work(fleet, later, runs, seed)
        except (AssertionError, SetupError) as error:
            return {}, [str(error)]
        return figures, verdict(figures)


TABLES = ("run", "signal", "ready", "lease", "parked", "wait", "unit", "run_key", "queue", "worker")


def alter_under_work(fleet: Fleet, times: int, seed: int) -> dict[str, Any]:
    """Upgrade so many times in a row while workers work and an application goes on; each time a
    migration alters three tables that both use, in any order, and every file is applied again.
    """
    schema.install(fleet.conn, AT_HAND.assets)
    fleet.conn.execute(releases.APPLICATION)
    fleet.add(AT_HAND, 2)
    random_ = random.Random(seed)
    files = AT_HAND.assets
    keys = range(4 * times)
    with Application(fleet) as application:
        working = fleet.client(AT_HAND, "start", keys)
        for n in range(times):
            before = application.committed
            fleet.wait(lambda before=before: application.committed > before + 20, "transactions")
            text = "".join(
                f"alter table pgflow.{name} add column next_{n} int;\n"
                for name in random_.sample(TABLES, 3)
            )
            number = files.migrations[-1].number + 1
            migration = schema.SqlFile(f"{number:04}_next", text)
            files = files._replace(migrations=(*files.migrations, migration))
            schema.install(fleet.conn, touched(files) if n % 2 else files)
        fleet.finish(working)
        fleet.ask(AT_HAND, "signal", keys)
        fleet.wait(lambda: fleet.count("status = 'completed'") >= 2 * len(keys), "all runs end")
    return {
        "upgrades": times,
        "exit_codes": fleet.stop(AT_HAND),
        **application.figures(),
        **fleet.judge([key_of(n) for n in keys]),
    }


def play_tables(server_dsn: str, times: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Alter tables under work, in a database of its own: the figures, and what is wrong."""
    with fleet_on(server_dsn) as fleet:
        try:
            figures = alter_under_work(fleet, times, seed)
        except (AssertionError, SetupError) as error:
            return {}, [str(error)]
        return figures, verdict(figures)


WAITING = range(3)
PLACES = ("leased", "queued", "signalled", "parked", "paused")


def leave_in_flight(fleet: Fleet) -> None:
    """Leave runs that a worker has brought to their signal, and one in every place that SQL alone
    brings it to.
    """
    fleet.add(AT_HAND, 1)
    fleet.ask(AT_HAND, "start", WAITING)
    fleet.wait(lambda: fleet.count("status = 'waiting'") == len(WAITING), "the runs wait")
    fleet.stop(AT_HAND)
    for key in PLACES:
        run_at = "clock_timestamp() + interval '1 second'" if key == "parked" else "null"
        fleet.conn.execute(
            f"select pgflow.start_run('order', input => %s, key => %s, run_at => {run_at})",  # noqa: S608
            (json.dumps({"key": key}), key),
        )
        if key == "leased":  # by a worker that is gone
            claim(fleet.conn)
    fleet.conn.execute("select pgflow.send_signal('signalled', 'go', '100')")
    fleet.conn.execute("select pgflow.pause_run('paused', 'later')")
    fleet.conn.execute("select pgflow.wake(array[pgflow.find_chain('paused')])")


def record_at_hand(server_dsn: str) -> releases.Record:
    """Record the version at hand."""
    with fleet_on(server_dsn) as fleet:
        schema.install(fleet.conn, AT_HAND.assets)
        fleet.conn.execute(releases.APPLICATION)
        leave_in_flight(fleet)
        return releases.take(fleet.conn, AT_HAND.assets)


def fresh_catalog(server_dsn: str, assets: schema.Assets) -> str:
    """The catalog of a fresh install, with the application beside it."""
    with fleet_on(server_dsn) as fleet:
        schema.install(fleet.conn, assets)
        fleet.conn.execute(releases.APPLICATION)
        return dump_catalog(fleet.conn, with_server_details=True)


def upgrade_record(server_dsn: str, record: releases.Record, to: Version) -> list[str]:
    """Upgrade a recorded release with its runs in flight, which workers of the new version then
    bring to their end: what is wrong.
    """
    with fleet_on(server_dsn) as fleet:
        releases.restore(fleet.conn, record)
        before = callable_names(fleet.conn)
        schema.install(fleet.conn, to.assets)
        gone = missing(before, callable_names(fleet.conn))
        catalog = dump_catalog(fleet.conn, with_server_details=True)
        fleet.add(to, 2)
        fleet.conn.execute("select pgflow.resume_run('paused', 'now')")
        for key in ("leased", "queued", "parked", "paused", *map(key_of, WAITING)):
            fleet.conn.execute("select pgflow.send_signal(%s, 'go', '100')", (key,))
        keys = [*PLACES, *map(key_of, WAITING)]
        fleet.wait(lambda: fleet.count("status = 'completed'") >= 2 * len(keys), "all runs end")
        figures = {"exit_codes": fleet.stop(to), **fleet.judge(keys)}
    fresh = fresh_catalog(server_dsn, to.assets)
    wrong = [*verdict(figures), *(f"gone: {name}" for name in gone)]
    if catalog != fresh:
        wrong.append(f"not the catalog of a fresh install: {first_difference(fresh, catalog)}")
    return [f"release {record.name}: {line}" for line in wrong]


def first_difference(wanted: str, found: str) -> str:
    """The first line of a dump that differs."""
    pairs = zip_longest(wanted.splitlines(), found.splitlines(), fillvalue="nothing")
    return next((f"{a!r} is {b!r}" for a, b in pairs if a != b), "none")


FUNCTIONS = """
select p.proname, string_to_array(p.proargtypes::text, ' ')::oid[]::regtype[]::text[],
  p.pronargs - p.pronargdefaults
from pg_proc p where p.pronamespace = 'pgflow'::regnamespace
"""
COLUMNS = """
select c.relname, a.attname, a.atttypid::regtype::text
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v'
"""


def callable_names(conn: psycopg.Connection[Any]) -> tuple[list[Any], set[Any]]:
    """Return functions, each with its types and how many it needs, and columns of views: what a
    version calls and reads. That is also what a call that an upgrade overtakes asks for, since it
    goes on in the text that it began with.
    """
    return conn.execute(FUNCTIONS).fetchall(), set(conn.execute(COLUMNS).fetchall())


def missing(before: tuple[list[Any], set[Any]], after: tuple[list[Any], set[Any]]) -> list[str]:
    """Return what of a version's functions and columns is not there any more."""
    functions = [
        f"{name}({', '.join(types)})"
        for name, types, _ in before[0]
        if not any(
            n == name and t[: len(types)] == types and needed <= len(types)
            for n, t, needed in after[0]
        )
    ]
    return functions + [".".join(column) for column in sorted(before[1] - after[1])]


def prove(server_dsn: str, seconds: float, seed: int) -> Findings:
    """Upgrade every recorded release once, and the version at hand under work while there is time."""
    began = time.monotonic()
    total: Counter[str] = Counter()
    altered, wrong = play_tables(server_dsn, UPGRADES, seed)
    while total["upgrades"] == 0 or (time.monotonic() - began < seconds and not wrong):
        figures, said = play(server_dsn, RUNS, seed + total["upgrades"])
        wrong += said
        total["upgrades"] += 1
        total.update({name: n for name, n in figures.items() if isinstance(n, int)})
    records = [releases.read(path) for path in releases.recorded()]
    said = [line for record in records for line in upgrade_record(server_dsn, record, AT_HAND)]
    with next_version() as later:
        said += upgrade_record(server_dsn, record_at_hand(server_dsn), later)
    return Findings(
        "upgrades",
        seed,
        [
            Evidence("G42", "upgrades under work, functions replaced under calls", total["runs"],
                total["lost"], total["doubled"], tuple(wrong)),
            Evidence("G42",
                "migrations of tables in use: transactions of an application beside them, and "
                    "those that failed or met a deadlock",
                altered.get("application_transactions", 0),
                len(altered.get("application_errors", ()))),
            Evidence("G42",
                "upgrades of recorded releases and of this version with runs in flight, catalogs "
                    "compared with a fresh install", len(records) + 1, wrong=tuple(said)),
        ],
        {
            "upgrade under work": (total["upgrades"], 1),
            "old worker killed with runs": (total["held_by_the_killed"], 1),
        },
    )  # fmt: skip


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
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="record the version at hand, no more")
    options = parser.parse_args()
    if options.record:
        path = releases.write(record_at_hand(options.server_dsn))
        print(f"recorded {path.relative_to(REPOSITORY)}: add it to the commit of the release")
        return 0
    figures, wrong = play(options.server_dsn, options.runs, options.seed)
    print(json.dumps(figures, default=str))
    altered, said = play_tables(options.server_dsn, UPGRADES, options.seed)
    print(json.dumps(altered, default=str))
    wrong += said
    for path in releases.recorded():
        wrong += upgrade_record(options.server_dsn, releases.read(path), AT_HAND)
    for line in wrong:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
