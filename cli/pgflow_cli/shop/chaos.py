"""Kills workers with SIGKILL, and only while they hold runs.

A victim is first stopped: its messages on the way to the server arrive, nothing more is sent, and
the database then knows which runs it holds. Only if it holds any is it killed, in the middle of its
work on them, and replaced by a new process. Its runs stay leased to it until the others find it
dead.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pgflow_cli.shop.proof import Proof

if TYPE_CHECKING:
    import psycopg

    from pgflow_cli.shop.processes import Workers

ARRIVAL_SECONDS = 0.05
"""Seconds between two looks at what a stopped process holds: once they agree, what it had sent has
arrived."""

_BUSIEST = """
select worker_id, pid from pgflow.workers where running > 0 and pid = any(%s)
order by running desc, worker_id limit 1
"""

_HELD = """
select clock_timestamp(), array(
  select key from pgflow.runs where status = 'running' and worker_id = %s order by key
)
"""

# Completed after the kill, and no lease that had written before it has written after it.
_RESUMED = """
select count(*)
from pgflow.runs r
where r.key = any(%(held)s) and r.status = 'completed' and r.finished_at > %(at)s and not exists (
  select token from pgflow.timeline t where t.run_id = r.run_id and t.recorded_at <= %(at)s
  intersect
  select token from pgflow.timeline t where t.run_id = r.run_id and t.recorded_at > %(at)s
)
"""


@dataclass(frozen=True)
class Kill:
    """A worker that was killed.

    Attributes:
        worker_id: Its number in the database.
        pid: Its process.
        at: Time, on the database's clock.
        held: Keys of the runs it held.
    """

    worker_id: int
    pid: int
    at: datetime
    held: list[str]


class Chaos:
    """Kills some workers, spread over the work."""

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        workers: Workers,
        *,
        kills: int,
        total: int,
        say: Callable[[str], None],
    ) -> None:
        self.conn, self.workers, self.say = conn, workers, say
        self.due = [total * number // (kills + 1) for number in range(1, kills + 1)]
        self.kills: list[Kill] = []

    @property
    def pids(self) -> list[int]:
        """Workers that are alive."""
        return self.workers.pids

    def strike(self, done: int) -> None:
        """Kill a worker if the work has come far enough for the next kill, and one holds runs."""
        if len(self.kills) == len(self.due) or done < self.due[len(self.kills)]:
            return
        busiest = self.conn.execute(_BUSIEST, (self.workers.pids,)).fetchone()
        if busiest is None:
            return
        worker_id, pid = busiest
        self.workers.send(pid, signal.SIGSTOP)
        if self._settled(worker_id, pid).held:
            self.workers.kill(pid)
            self._record(self._settled(worker_id, pid))
        else:
            self.workers.send(pid, signal.SIGCONT)

    def _settled(self, worker_id: int, pid: int) -> Kill:
        before = self._look_at(worker_id, pid)
        while True:
            time.sleep(ARRIVAL_SECONDS)
            now = self._look_at(worker_id, pid)
            if now.held == before.held:
                return now
            before = now

    def _look_at(self, worker_id: int, pid: int) -> Kill:
        row = self.conn.execute(_HELD, (worker_id,)).fetchone()
        assert row is not None
        return Kill(worker_id, pid, *row)

    def _record(self, kill: Kill) -> None:
        self.kills.append(kill)
        held = f"runs held {len(kill.held)}: {', '.join(kill.held)}"
        self.say(f"kill {len(self.kills):<3} worker {kill.worker_id} (pid {kill.pid}) died, {held}")
        self.say(f"worker   pid {self.workers.start_one()} takes its place")

    # ------------------------------------------------------------ what came of it

    def proofs(self) -> list[Proof]:
        """Return the proof that workers were killed while they held runs, and that each of these
        runs went on elsewhere to its end.
        """
        counts = ", ".join(str(len(kill.held)) for kill in self.kills)
        faults = [f"worker {kill.worker_id} held nothing" for kill in self.kills if not kill.held]
        if len(self.kills) < len(self.due):
            faults.append(f"the work was over after {len(self.kills)} of {len(self.due)} kills")
        held = sum(len(kill.held) for kill in self.kills)
        resumed = sum(map(self._count_resumed, self.kills))
        lost = [f"{held - resumed} did not complete under another lease"] if resumed < held else []
        killed = f"kills {len(self.kills)}, runs held {counts or 'none'}"
        went_on = f"resumed {resumed} of {held}"
        return [
            Proof("workers were killed while they held runs", killed, faults),
            Proof("every run held at a kill was resumed and completed", went_on, lost),
        ]

    def _count_resumed(self, kill: Kill) -> int:
        row = self.conn.execute(_RESUMED, {"held": kill.held, "at": kill.at}).fetchone()
        assert row is not None
        return int(row[0])
