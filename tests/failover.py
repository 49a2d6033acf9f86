"""Fail-overs: `python -m tests.failover [--postgres VERSION] [--rounds N] [--seed S]`.

A primary and a standby, made for each round, two worker processes and a client, all with both hosts
in their DSN. The primary is killed or frozen, the standby promoted; a frozen one thaws later and
finds itself alone. What was acknowledged - starts, results, bookings that a later step rested on -
is compared with what the new primary has. Where replication is synchronous nothing may be lost;
where it is not, something must be, and the engine must have said of which runs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent / "apps"))

from collections.abc import Callable

import failover_jobs
import psycopg
import servers
from evidence import Evidence, Findings
from pairs import Pair

from pgflow import App

HANG_SECONDS = 1800.0
"""Seconds after which nothing comes any more."""

WORK = 30
"""Runs that end before the fault, and again when the old primary has thawed."""
UNACKNOWLEDGED_STEPS = 5
"""Steps whose bookings an asynchronous standby has missed."""

ROUNDS = ((True, "freeze"), (False, "kill"), (True, "kill"), (False, "freeze"))
"""Modes of a round: True if commits wait for the standby, and the fate of the primary."""


@dataclass
class Round:
    """Result of one fail-over."""

    synchronous: bool
    fault: str
    acknowledged: int = 0
    lost: int = 0
    lost_keys: set[str] = field(default_factory=set)
    """Keys of runs that had a booking which is lost."""
    doubled: int = 0
    reported: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For the table."""
        kind = "synchronous" if self.synchronous else "asynchronous"
        return f"{'kill -9' if self.fault == 'kill' else 'SIGSTOP'} of the primary, {kind} standby promoted"


class Clients:
    """Somebody who starts runs, and somebody who waits for their results."""

    def __init__(self, dsn: str, prefix: str) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self._dsn = dsn
        self._prefix = prefix
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._start_runs, self._wait_for_results)
        ]
        for thread in self._threads:
            thread.start()

    def _start_runs(self) -> None:
        with App(self._dsn, include=[failover_jobs.tale]) as app:
            for n in itertools.count():
                key = f"{self._prefix}-{n}"
                while not self._stop.is_set():
                    with contextlib.suppress(
                        psycopg.OperationalError
                    ):  # not acknowledged: sent again
                        app.start(failover_jobs.tale.options(key=key), key)
                        self.started.append(key)
                        break
                if self._stop.wait(0.03):
                    return

    def _wait_for_results(self) -> None:
        with App(self._dsn, include=[failover_jobs.tale]) as app:
            for n in itertools.count():
                while len(self.started) <= n:
                    if self._stop.wait(0.02):
                        return
                key = self.started[n]
                while not self._stop.is_set():
                    try:
                        app.get(
                            key, failover_jobs.tale
                        ).result()  # no time-out: nobody but the engine leaves the old primary
                    except psycopg.OperationalError:
                        continue
                    except Exception:  # noqa: BLE001 - a run whose start was lost is not there; the judge counts it
                        break
                    self.ended.append(key)
                    break

    def stop(self) -> None:
        """They have had enough."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def play(synchronous: bool, fault: str, wanted: str | None = None) -> Round:
    """One fail-over."""
    done = Round(synchronous, fault)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["FAILOVER_NOTES"] = str(folder / "notes")
        (folder / "notes").touch()
        pair = stack.enter_context(Pair(wanted, synchronous=synchronous))
        servers.install_schema(pair.primary.dsn)
        with psycopg.connect(pair.primary.dsn, autocommit=True) as conn:
            conn.execute("create schema app; create table app.booked (key text, n int)")
        dsn = pair.dsn(standby_first=True)
        workers = [work(dsn, folder / f"log{number}") for number in range(2)]
        for worker in workers:
            stack.callback(worker.kill)
        with psycopg.connect(pair.primary.dsn, autocommit=True) as conn:
            wait_until(
                lambda: conn.execute("select count(*) from pgflow.workers").fetchone() == (2,),
                "both workers register",
            )
        clients = Clients(dsn, "run")
        wait_until(lambda: len(clients.ended) > WORK, "runs end before anything happens")
        fail_over(pair, fault, folder)
        before = {
            "starts": len(clients.started),
            "results": len(clients.ended),
            "steps": len(notes_of(folder)),
        }

        def going_on() -> bool:
            now = {"starts": clients.started, "results": clients.ended, "steps": notes_of(folder)}
            return all(len(now[what]) > count for what, count in before.items())

        wait_until(going_on, "starts, results and steps go on after the promotion")
        with psycopg.connect(
            pair.standby.dsn, autocommit=True
        ) as conn:  # else one of them might go on with the old, as nothing forbids
            fresh = "select count(*) from pgflow.workers where beat_at > clock_timestamp() - interval '3 s'"
            wait_until(
                lambda: conn.execute(fresh).fetchone() == (2,), "both workers have come over"
            )
        pair.thaw()
        ended = len(clients.ended)
        wait_until(lambda: len(clients.ended) > ended + WORK, "work goes on beside the old primary")
        clients.stop()
        judge(done, pair.standby.dsn, clients, notes_of(folder))
        for number, worker in enumerate(workers):
            worker.terminate()
            code = worker.wait(HANG_SECONDS)
            if code != 0:
                done.wrong.append(
                    f"a worker ended with {code}: {(folder / f'log{number}').read_text()[-500:]}"
                )
    return done


def work(dsn: str, log: Path) -> subprocess.Popen[bytes]:
    """A worker process; it says more than a pipe would hold."""
    here = Path(__file__).parent / "apps"
    environment = {
        **os.environ,
        "PGFLOW_DSN": dsn,
        "PYTHONPATH": f"{here}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, "-m", "pgflow_cli", "workers", "failover_jobs", "--poll", "0.2s"]
    with log.open("wb") as out:
        return subprocess.Popen(command, env=environment, cwd=here, stderr=out)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return as soon as the condition holds, however long that takes on this machine."""
    servers.wait_until(condition, what, HANG_SECONDS)


def fail_over(pair: Pair, fault: str, folder: Path) -> None:
    """Take the primary away and promote the standby. An asynchronous one has missed some steps, so
    that a client may rely on what is lost.
    """
    if not pair.synchronous:
        pair.cut_off()
        before = len(notes_of(folder))
        wait_until(
            lambda: len(notes_of(folder)) > before + UNACKNOWLEDGED_STEPS, "steps are acknowledged"
        )
    if fault == "kill":
        pair.kill()
    else:
        pair.freeze()
    pair.promote()


def notes_of(folder: Path) -> list[list[str]]:
    """Key, number and time of every note."""
    return [line.split() for line in (folder / "notes").read_text().splitlines()]


def judge(done: Round, dsn: str, clients: Clients, notes: list[list[str]]) -> None:
    """Compares what was acknowledged with what is there, once all that is there has ended."""
    noted = {(key, int(n)) for key, n, _ in notes}
    with psycopg.connect(dsn, autocommit=True) as conn:
        open_runs = "select count(*) from pgflow.runs where status not in ('completed', 'failed', 'cancelled')"
        try:
            wait_until(lambda: conn.execute(open_runs).fetchone() == (0,), "every run ends")
        except AssertionError:
            left = "select key, status, reason, worker_id, (select count(*) from pgflow.unit u where u.run_id = r.run_id) from pgflow.runs r"
            done.wrong += [
                f"not ended: {row}"
                for row in conn.execute(
                    f"{left} where status not in ('completed', 'failed', 'cancelled') limit 5"
                )
            ]
        booked = conn.execute("select key, n from app.booked").fetchall()
        runs = dict(conn.execute("select key, status from pgflow.runs").fetchall())
        ended = conn.execute(
            "select key, status, error::text from pgflow.runs where status <> 'completed' limit 3"
        ).fetchall()
        done.wrong += [f"run {key} {status}: {error}" for key, status, error in ended]
        done.reported = {
            run["key"] for (lost,) in conn.execute("select runs from pgflow.losses") for run in lost
        }
        done.wrong += [
            f"check(): {row}"
            for row in conn.execute("select invariant, detail from pgflow.check()").fetchall()
        ]
    there = set(booked)
    holes = [
        key
        for key, status in runs.items()
        if status == "completed"
        and not all((key, n) in there for n in range(failover_jobs.BOOKINGS))
    ]
    done.wrong += [f"run {key} has completed without its bookings" for key in holes[:3]]
    lost_bookings = noted - set(booked)
    done.lost_keys = {key for key, _ in lost_bookings}
    lost_starts = {key for key in clients.started if key not in runs}
    lost_results = {key for key in clients.ended if runs.get(key) != "completed"}
    done.acknowledged = len(noted) + len(clients.started) + len(clients.ended)
    done.lost = len(lost_bookings) + len(lost_starts) + len(lost_results)
    done.doubled = len(booked) - len(set(booked))
    if not done.synchronous and done.lost_keys - done.reported:
        done.wrong.append(f"lost and not reported: {sorted(done.lost_keys - done.reported)[:5]}")
    if done.synchronous and done.reported:
        done.wrong.append(f"reported and not lost: {sorted(done.reported)[:5]}")


def evidence(rounds: list[Round]) -> list[Evidence]:
    """A line for each kind of round. Where commits do not wait, what counts is that the loss was
    reported.
    """
    found = []
    for name in dict.fromkeys(done.name for done in rounds):
        same = [done for done in rounds if done.name == name]
        figure = "starts, results and steps went on after the promotion"
        if not same[0].synchronous:
            lost, keys = sum(done.lost for done in same), sum(len(done.lost_keys) for done in same)
            figure += f"; {lost} acknowledged were lost as they must, and all {keys} runs of lost steps reported"
        found.append(
            Evidence(
                "G38",
                name,
                sum(done.acknowledged for done in same),
                sum(done.lost for done in same if done.synchronous),
                sum(done.doubled for done in same),
                tuple(line for done in same for line in done.wrong),
                figure,
            )
        )
    return found


def prove(server_dsn: str, amount: int, seed: int) -> Findings:
    """So many fail-overs, on servers of the same version; two at least: one that must lose nothing,
    and one that must say what.
    """
    with psycopg.connect(server_dsn) as conn:
        major = conn.info.server_version // 10000
    rounds = campaign(servers.programs_of(major), max(2, amount), seed)
    lossy = sum(1 for done in rounds if done.lost_keys)
    fired = {
        "primary lost, synchronous standby": (sum(done.synchronous for done in rounds), 1),
        "primary lost, asynchronous standby behind by steps": (lossy, 1),
    }
    return Findings("failover", seed, evidence(rounds), fired)


def campaign(wanted: str, count: int, seed: int) -> list[Round]:
    """Plays so many rounds. The seed says which fault meets which kind of standby first."""
    offset = random.Random(seed).randrange(2) * 2
    kinds = itertools.islice(itertools.cycle(ROUNDS), offset, offset + count)
    return [play(synchronous, fault, wanted) for synchronous, fault in kinds]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--postgres", default="", help="a version or a folder of programs, as PGFLOW_TEST_POSTGRES"
    )
    parser.add_argument("--rounds", type=int, default=len(ROUNDS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rounds = campaign(options.postgres, options.rounds, options.seed)
    wrong: list[Any] = []
    for line in evidence(rounds):
        print(
            f"{line.fault}: {line.runs} acknowledged, {line.lost} lost, {line.doubled} doubled; "
            f"{line.figure}"
        )
        wrong += [
            *line.wrong,
            *([f"{line.lost} lost, {line.doubled} doubled"] if line.lost or line.doubled else []),
        ]
    for said in wrong:
        print(f"FAILED {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
