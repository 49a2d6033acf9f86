"""Kills workers with SIGKILL, and only while they hold runs.

A victim is first stopped: what it has on its way to the server arrives, nothing more is sent, and the
database then says which runs it holds. Only if it holds any is it killed - in the middle of whatever it was
doing with them - and replaced by a new process. Its runs stay leased to it until the others find it dead.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from pgflow_cli.treasury.processes import Workers
from pgflow_cli.treasury.proof import Proof

ARRIVAL_SECONDS = 0.02
"""What a stopped process has sent has arrived after this time."""


@dataclass(frozen=True)
class Kill:
    """A worker that was killed.

    Attributes:
        worker_id: Its number in the database.
        pid: Its process.
        at: When, on the database's clock.
        held: Keys of the runs it held.
    """

    worker_id: int
    pid: int
    at: datetime
    held: list[str]


class Chaos:
    """Kills so many workers, spread over the work."""

    def __init__(self, conn: psycopg.Connection[Any], workers: Workers, say: Callable[[str], None], *, kills: int, days: int) -> None:
        self._conn = conn
        self._workers = workers
        self._say = say
        self._due = [days * number // (kills + 1) for number in range(1, kills + 1)]
        self.kills: list[Kill] = []

    def strike(self, posted_days: int) -> None:
        """Kills a worker if the work has come far enough for the next kill and one holds runs."""
        if len(self.kills) == len(self._due) or posted_days < self._due[len(self.kills)]:
            return
        busiest = self._find_busiest()
        if busiest is None:
            return
        worker_id, pid = busiest
        self._workers.send(pid, signal.SIGSTOP)
        time.sleep(ARRIVAL_SECONDS)
        if not self._held_by(worker_id)[1]:
            self._workers.send(pid, signal.SIGCONT)
            return
        self._workers.kill(pid)
        self._record(worker_id, pid)

    def _find_busiest(self) -> tuple[int, int] | None:
        rows = self._conn.execute("select worker_id, pid from pgflow.workers where running > 0 order by running desc, worker_id")
        return next((row for row in rows if row[1] in self._workers), None)

    def _held_by(self, worker_id: int) -> tuple[datetime, list[str]]:
        row = self._conn.execute(
            "select clock_timestamp(), array(select key from pgflow.runs where status = 'running' and worker_id = %s order by key)",
            (worker_id,),
        ).fetchone()
        assert row is not None
        return row

    def _record(self, worker_id: int, pid: int) -> None:
        at, held = self._held_by(worker_id)
        self.kills.append(Kill(worker_id, pid, at, held))
        self._say(f"kill {len(self.kills)}: worker {worker_id} (pid {pid}) died holding {len(held)} runs: {', '.join(held)}")
        self._say(f"worker   pid {self._workers.start_one()} takes its place")

    # ------------------------------------------------------------ what came of it

    def count_resumed(self) -> tuple[int, int]:
        """Runs held at a kill, and those of them that went on under another lease and completed."""
        held = {(key, kill.at) for kill in self.kills for key in kill.held}
        return len(held), sum(self._went_on(key, at) for key, at in held)

    def _went_on(self, key: str, killed_at: datetime) -> bool:
        """Completed after the kill, and no lease that wrote before it has written after it."""
        row = self._conn.execute(
            "select exists (select from pgflow.runs where key = %(key)s and status = 'completed' and finished_at > %(at)s) and not exists ("
            "  select token from pgflow.timeline where key = %(key)s and recorded_at <= %(at)s"
            "  intersect select token from pgflow.timeline where key = %(key)s and recorded_at > %(at)s)",
            {"key": key, "at": killed_at},
        ).fetchone()
        assert row is not None
        return bool(row[0])

    def proofs(self) -> list[Proof]:
        """That workers were killed as they should be, and that it cost nothing."""
        counts = ", ".join(str(len(kill.held)) for kill in self.kills)
        idle = [f"worker {kill.worker_id} held nothing" for kill in self.kills if not kill.held]
        missing = [f"only {len(self.kills)} of {len(self._due)} workers were killed"] if len(self.kills) < len(self._due) else []
        held, resumed = self.count_resumed()
        lost = [f"{held - resumed} runs did not complete under another lease"] if resumed < held else []
        return [
            Proof("workers were killed while they held runs", f"kills {len(self.kills)}, runs held {counts or 'none'}", missing + idle),
            Proof("every run held at a kill was resumed and completed", f"resumed {resumed} of {held}", lost),
        ]
