"""Rules of queues on four processes that are killed: `python -m tests.lines DSN [--seconds N]`.

Triggers in a database of its own write down every lease that begins and ends, on the clock of the
server. What is written stands between the two commits, so no moment has more leases in the log than
in the table. Judged of it: the most runs that were held at any moment, for each limit; the most
runs that began in any window, and how much of the rate was used; the order in which the runs of a
key ended; how many runs of others began between the start of a run and its turn; how many runs a
second are drained.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent / "apps"))

import servers
from line_jobs import QUEUE
from processes import WorkerProcess

PROCESSES = 4
MOST_A_CLAIM = 128

LOG = """
create schema log;
create table log.lease (
  n bigint generated always as identity, at timestamptz, began boolean, run_id bigint, worker_id int, attempt int
);
create function log.note() returns trigger language plpgsql security definer as $$
begin
  if tg_op = 'INSERT' then
    insert into log.lease (at, began, run_id, worker_id, attempt)
    values (clock_timestamp(), true, new.run_id, new.worker_id, new.attempt);
  else
    insert into log.lease (at, began, run_id, worker_id, attempt)
    values (clock_timestamp(), false, old.run_id, old.worker_id, old.attempt);
  end if;
  return null;
end $$;
create trigger note after insert or delete on pgflow.lease for each row execute function log.note();
"""


@dataclass
class Scene:
    """Figures of a scene.

    Attributes:
        name: Its name.
        found: Figures by name.
        broken: Promises that did not hold.
    """

    name: str
    found: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def judge(self, what: str, found: float, bound: float) -> None:
        """Notes a figure that must not be above a bound."""
        self.found[what] = f"{found:g} of {bound:g}"
        if found > bound:
            self.broken.append(f"{what}: {found:g} is above {bound:g}")

    def judge_least(self, what: str, found: float, bound: float) -> None:
        """Notes a figure that must reach a bound."""
        self.found[what] = f"{found:.3g} (at least {bound:g})"
        if found < bound:
            self.broken.append(f"{what}: {found:.3g} is below {bound:g}")

    def __str__(self) -> str:
        """One line for a person."""
        told = ", ".join(f"{name} {figure}" for name, figure in self.found.items())
        return f"{self.name}: {told}" + "".join(f"\n  BROKEN: {b}" for b in self.broken)


class Fleet:
    """Four processes of workers, of which one is killed again and again.

    Args:
        dsn: The database.
        concurrency: Of each.
    """

    def __init__(self, dsn: str, concurrency: int) -> None:
        self._dsn = dsn
        self._concurrency = concurrency
        self.workers = [self._start() for _ in range(PROCESSES)]
        self.kills = 0
        for worker in self.workers:
            worker.registered()

    def _start(self) -> WorkerProcess:
        return WorkerProcess(self._dsn, "--concurrency", str(self._concurrency), module="line_jobs")

    def kill_one(self, rng: random.Random) -> None:
        """Kills one, and starts another."""
        n = rng.randrange(PROCESSES)
        self.workers[n].process.kill()
        self.workers[n].process.communicate()
        self.workers[n] = self._start()
        self.kills += 1

    def stop(self) -> None:
        """Kills all."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.communicate()


@contextmanager
def stage(dsn: str, *, logs: bool = True) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A database of its own, proven sound at the end."""
    name = servers.create_database(dsn)
    own = servers.dsn_of(dsn, name)
    servers.install_schema(own)
    with psycopg.connect(own, autocommit=True) as conn:
        if logs:
            conn.execute(LOG)
        conn.execute(
            "select pgflow.set_queue(%s, jsonb_build_object('max_deaths', 1000))", (QUEUE,)
        )
        yield own, conn
        assert conn.execute("select * from pgflow.check()").fetchall() == []
    servers.drop_database(dsn, name)


def rule(conn: psycopg.Connection[Any], **rules: Any) -> None:
    """Sets rules of the queue."""
    conn.execute("select pgflow.set_queue(%s, %s)", (QUEUE, json.dumps(rules)))


def start(conn: psycopg.Connection[Any], inputs: list[dict[str, Any]]) -> list[int]:
    """Starts runs; their numbers."""
    runs = json.dumps([[None, json.dumps(one)] for one in inputs])
    found = conn.execute(
        "select run_id from pgflow.start_runs('job', %s, %s)", (runs, QUEUE)
    ).fetchall()
    return [row[0] for row in found]


def play(
    conn: psycopg.Connection[Any],
    fleet: Fleet,
    is_over: Callable[[], bool],
    *,
    seconds: float,
    kill_each: float | None,
    seed: int,
) -> None:
    """Lets the fleet work until it is over or the time is, and kills one now and then."""
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    next_kill = time.monotonic() + (kill_each or 1e9)
    while time.monotonic() < end and not is_over():
        time.sleep(0.05)
        if time.monotonic() > next_kill:
            fleet.kill_one(rng)
            next_kill = time.monotonic() + (kill_each or 1e9)


def most_at_once(conn: psycopg.Connection[Any], by: str) -> tuple[int, int]:
    """Most leases at any moment of one group, and how many groups there were. ``by`` is SQL over
    the run and the lease.
    """
    events = conn.execute(
        f"select {by}, l.began from log.lease l join pgflow.run r on r.run_id = l.run_id "  # type: ignore[arg-type]
        "order by l.at, l.began"
    ).fetchall()
    now: Counter[Any] = Counter()
    most = 0
    for group, began in events:
        now[group] += 1 if began else -1
        most = max(most, now[group])
    return most, len(now)


def starts(conn: psycopg.Connection[Any]) -> dict[str, list[float]]:
    """By key, when runs began for the first time, in seconds."""
    found: dict[str, list[float]] = defaultdict(list)
    for key, at in conn.execute(
        "select r.input->>'key', extract(epoch from min(l.at))::float8 from log.lease l "
        "join pgflow.run r on r.run_id = l.run_id where l.began group by r.run_id, r.input->>'key' order by 2"
    ):
        found[key].append(at)
    return found


def most_in_a_window(times: list[float], seconds: float) -> int:
    """Most moments in any window of this length."""
    return max((bisect_left(times, at + seconds) - n for n, at in enumerate(times)), default=0)


def count_left(conn: psycopg.Connection[Any]) -> int:
    """Number of open runs."""
    row = conn.execute("select count(*) from pgflow.places_()").fetchone()
    assert row is not None
    return int(row[0])


def limits(dsn: str, seconds: float, seed: int) -> Scene:
    """Limits over all workers, for each and for each key, of which two change meanwhile."""
    scene = Scene("limits")
    with stage(dsn) as (own, conn):
        rule(conn, concurrency=20, per_worker=8, key="input.key", per_key=2)
        start(conn, [{"key": f"k{n % 40}", "seconds": 0.02, "fails": 0.1} for n in range(4000)])
        fleet = Fleet(own, 16)
        play(conn, fleet, lambda: not count_left(conn), seconds=seconds, kill_each=3, seed=seed)
        fleet.stop()
        scene.judge("runs at once", most_at_once(conn, "0")[0], 20)
        scene.judge("of one worker", most_at_once(conn, "l.worker_id")[0], 8)
        scene.judge("of one key", most_at_once(conn, "r.input->>'key'")[0], 2)
        scene.judge_least("runs ended", 4000 - count_left(conn), 100)
        scene.found["kills"] = fleet.kills
    return scene


def rates(dsn: str, seconds: float, seed: int, *, by_key: bool) -> Scene:
    """A rate of the queue, or of each key, by windows."""
    scene = Scene("a rate of keys" if by_key else "a rate")
    rate, window = (20, 2.0) if by_key else (300, 2.0)
    with stage(dsn) as (own, conn):
        said = f"{rate}/{window:g}s"
        rule(conn, key="input.key", **({"key_rate": said} if by_key else {"rate": said}))
        start(conn, [{"key": f"k{n % 10}"} for n in range(int(400 * (seconds + 5)))])
        fleet = Fleet(own, 64)
        play(conn, fleet, lambda: False, seconds=seconds, kill_each=4, seed=seed)
        fleet.stop()
        began = starts(conn)
        lines = list(began.values()) if by_key else [sorted(sum(began.values(), []))]
        scene.judge(
            f"starts in {window:g} s", max(most_in_a_window(t, window) for t in lines), rate
        )
        # The last window is not over.
        used = [
            len([at for at in t if at < t[0] + n * window]) / (rate * n)
            for t in lines
            if (n := int((t[-1] - t[0]) // window))
        ]
        scene.judge_least("of it used", min(used), 0.95)
        scene.found["kills"] = fleet.kills
    return scene


def order(dsn: str, seconds: float, seed: int) -> Scene:
    """First in, first out for each key, with retries and kills."""
    scene = Scene("first in, first out")
    with stage(dsn) as (own, conn):
        rule(conn, key="input.key", fifo=True)
        start(conn, [{"key": f"k{n % 30}", "seconds": 0.005, "fails": 0.2} for n in range(3000)])
        fleet = Fleet(own, 32)
        play(conn, fleet, lambda: not count_left(conn), seconds=seconds, kill_each=3, seed=seed)
        fleet.stop()
        wrong = conn.execute(
            "select count(*) from (select o.run_id, lag(o.run_id) over (partition by r.input->>'key' "
            "order by o.finished_at, o.run_id) as before, lag(o.finished_at) over (partition by "
            "r.input->>'key' order by r.run_id) as ended, (select min(l.at) from log.lease l where "
            "l.run_id = o.run_id and l.began) as began from pgflow.outcome o join pgflow.run r using (run_id)) x "
            "where before > run_id or ended > began"
        ).fetchone()
        assert wrong is not None
        scene.judge("runs out of order", wrong[0], 0)
        scene.judge("of one key at once", most_at_once(conn, "r.input->>'key'")[0], 1)
        scene.judge_least("runs ended", 3000 - count_left(conn), 100)
        scene.found["kills"] = fleet.kills
    return scene


def fairness(dsn: str, seconds: float, seed: int, backlog: int) -> Scene:
    """One key has a great backlog, and others come with one run now and then."""
    scene = Scene("fair turns")
    with stage(dsn) as (own, conn):
        rule(conn, key="input.key", concurrency=100)
        for _ in range(0, backlog, 10_000):
            start(conn, [{"key": "greedy", "seconds": 0.01}] * 10_000)
        fleet = Fleet(own, 64)
        rng = random.Random(seed)
        came: dict[int, float] = {}

        def come() -> bool:
            (run_id,) = start(conn, [{"key": f"k{rng.randrange(1000)}"}])
            row = conn.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
            assert row is not None
            came[run_id] = row[0]
            return False

        play(conn, fleet, come, seconds=seconds, kill_each=5, seed=seed)
        time.sleep(2)
        fleet.stop()
        turns = dict(
            conn.execute(
                "select run_id, extract(epoch from min(at))::float8 from log.lease where began "
                "and run_id = any(%s) group by run_id",
                (list(came),),
            ).fetchall()
        )
        greedy = starts(conn)["greedy"]
        before = [
            bisect_left(greedy, turns[run]) - bisect_left(greedy, at)
            for run, at in came.items()
            if run in turns
        ]
        # A claim that is under way when it comes, and one round of the next.
        scene.judge("runs of the greedy before one", max(before), MOST_A_CLAIM + 1)
        scene.judge("runs without a turn", len(came) - len(turns), 2)
        scene.judge_least("of the greedy", len(greedy), 100)
        scene.found |= {"runs that came": len(came), "kills": fleet.kills, "backlog": backlog}
    return scene


def drain(dsn: str, name: str, least: float, runs: int, **rules: Any) -> Scene:
    """Runs a second of empty workflows."""
    scene = Scene(name)
    with stage(dsn, logs=False) as (own, conn):
        rule(conn, **rules)
        conn.execute("select pgflow.pause_queue(%s)", (QUEUE,))
        for first in range(0, runs, 10_000):
            start(conn, [{"key": str(n % 10_000)} for n in range(first, min(first + 10_000, runs))])
        fleet = Fleet(own, 100)
        began = time.monotonic()
        conn.execute("select pgflow.resume_queue(%s)", (QUEUE,))
        conn.execute("select pg_notify('pgflow_work', 'r' || lane_id) from pgflow.lane")
        while (left := count_left(conn)) and time.monotonic() - began < 60:
            time.sleep(0.1)
        scene.judge_least("runs/s", (runs - left) / (time.monotonic() - began), least)
        fleet.stop()
    return scene


def main() -> None:
    """Plays every scene, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=100_000)
    parser.add_argument("--only", action="append", metavar="SCENE")
    given = parser.parse_args()
    dsn, seconds, seed = given.dsn, given.seconds, given.seed
    scenes: dict[str, Callable[[], Scene]] = {
        "limits": lambda: limits(dsn, seconds, seed),
        "rate": lambda: rates(dsn, seconds, seed, by_key=False),
        "key-rate": lambda: rates(dsn, seconds, seed, by_key=True),
        "order": lambda: order(dsn, seconds, seed),
        "turns": lambda: fairness(dsn, seconds, seed, given.backlog),
        "drain-limited": lambda: drain(dsn, "a limit drains", 5000, 30_000, concurrency=200),
        "drain-keyed": lambda: drain(
            dsn, "10,000 keys drain", 3000, 30_000, key="input.key", per_key=1
        ),
    }
    broken = False
    for name in given.only or scenes:
        scene = scenes[name]()
        print(scene, flush=True)
        broken |= bool(scene.broken)
    sys.exit(broken)


if __name__ == "__main__":
    main()
