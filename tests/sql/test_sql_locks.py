"""Waits of functions for each other, and the proof that nobody ever waits in a circle.

Most functions skip what is locked; the few that wait are listed here, pair by pair. A function that
is not in `WAITS` waits for nobody's open transaction.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
import servers
import sqlkit
from psycopg import errors
from servers import HANG_SECONDS
from sqlkit import (
    Actor,
    Claim,
    all_lanes,
    begin,
    child,
    claim,
    commit,
    connect,
    flush,
    one,
    poll,
    register,
    rows,
    start,
    start_many,
    unit,
    wait_for,
    wake,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Conn = psycopg.Connection[Any]


WHO_ENDS_LEASES = {"finish", "park", "hold", "continue"}
WHO_LOCKS_LEASES = {"commit", "step", "release", "strays", "reap"} | WHO_ENDS_LEASES
WHO_WAKES = {"wake", "sweep", "poll", "sweep locks"}
WHO_LOCKS_A_LIMITED_QUEUE = {"claim limited", "limit", "pause queue"}
WHO_HAS_A_LOCK = {"release lock", "renew lock", "break lock"}

# waiter -> those whose open transactions it waits for
WAITS = {
    # The fence, since the application's transaction cannot be tried again; and whoever hands runs
    # back, in the order of run_id. A wake locks the leases of runs with mail.
    "step": WHO_LOCKS_LEASES | WHO_WAKES,
    "release": WHO_LOCKS_LEASES | WHO_WAKES | {"beat step"},
    "strays": WHO_LOCKS_LEASES | WHO_WAKES | {"beat step"},
    # A limit over all workers holds only if claims go one after the other.
    "claim limited": WHO_LOCKS_A_LIMITED_QUEUE,
    "limit": WHO_LOCKS_A_LIMITED_QUEUE,
    "pause queue": WHO_LOCKS_A_LIMITED_QUEUE,
    # Whoever names a key must know whether it is taken.
    "start": {"start", "start many", "child"},
    "start many": {"start", "start many", "child"},
    "child": {"start", "start many"},
    # What frees keys goes one after the other.
    "sweep keys": {"sweep keys", "drop history"},
    "drop history": {"sweep keys", "drop history"},
    # A beat moves a counter, and a reaper compares it.
    "beat": {"beat", "reap"},
    "reap": {"beat", "reap"},
    # One row a step; and a beat keeps the lease of its own run until it is committed, so that the
    # run's end finds it.
    "beat step": {"beat step", "release", "strays", "reap"} | WHO_ENDS_LEASES,
    **dict.fromkeys(WHO_ENDS_LEASES, {"beat step"}),
    # Who records the same seq of a run, here so that it can be seen: a holder records one thing of
    # a run at a time, and only a batch that is sent again, because its answer was lost, meets
    # itself.
    "commit": {"commit", "step", "continue"},
    "continue": {"beat step", "commit"},
    # The answers to a gate have one order.
    "answer": {"answer", "delegate"},
    "delegate": {"answer", "delegate"},
    # New lanes and partitions are made once.
    "lanes": {"lanes", "limit", "pause queue"},
    "partitions": {"partitions"},
    # Who changes a lock of plain code, one after the other; and updates of an entity.
    **dict.fromkeys(WHO_HAS_A_LOCK, WHO_HAS_A_LOCK),
    "open entity": {"open entity"},
}


def gate(key: str, **terms: Any) -> dict[str, Any]:
    """A question that asks at a gate."""
    asked = {
        "call": 1, "name": key, "key": key, "request": "1", "hash": "h", "approvers": [],
        "quorum": 1, "timeout": None, "on_timeout": "expire", "escalate": [], "needs_value": False,
        "decision": None, "shape": True,
    }  # fmt: skip
    return {"gates": [[1, key]], "new_gates": [asked | terms]}


def build_world(conn: Conn) -> dict[str, Callable[[Conn], object]]:
    """Two runs in every place; and each function as a call that touches all of them that it can."""
    conn.execute("alter table pgflow.run_key alter column retention_seconds set default 0")
    worker = register(conn)

    def two(name: str, **options: Any) -> list[Claim]:
        return [begin(conn, name, key=f"{name}-{n}", **options) for n in range(2)]

    leased, parked, stuck, done = (
        two("leased", timeout_seconds=3600), two("parked"), two("stuck"), two("done"),
    )  # fmt: skip
    for run in leased:
        conn.execute(
            "update pgflow.lease set worker_id = %s, claimed_at = claimed_at - interval '1 hour'",
            (worker,),
        )
        run.worker = worker
        conn.execute("select pgflow.beat_step(%s, %s, 1, 1, null)", (run.run_id, run.token))
        sqlkit.send(conn, run.key, "paid")
    for run in parked:
        commit(conn, wait_for(run, "paid", timeout_seconds=3600))
        sqlkit.send(conn, run.key, "paid")
    conn.execute("update pgflow.timer set due_at = due_at - interval '2 hours'")
    for run in stuck:
        commit(conn, sqlkit.hold(run, code_hash="old"))
    for run in done:
        sqlkit.finish(conn, run)
    ready, limited = (
        start(conn, "ready", key="ready-0"),
        start(conn, "limited", key="limited-0", queue="few"),
    )
    start(conn, "child", key="known")
    conn.execute("select pgflow.set_queue('few', jsonb_build_object('concurrency', 9))")
    parent, asker = begin(conn, "parent"), begin(conn, "asker")
    asking, late = begin(conn, "asking"), begin(conn, "late")
    commit(conn, flush(asking, expected=0, **gate("g", approvers=["ann"]), park=True, idle=True))
    commit(conn, flush(late, expected=0, **gate("l", timeout=60)))
    conn.execute("update pgflow.gate set expires_at = expires_at - interval '2 hours'")
    fence = one(conn, "select pgflow.take_lock('a', 'one', '1 hour', secret => 'mine')")
    conn.execute("select pgflow.take_lock('a', 'two', '1 hour', false, '1 hour')")
    conn.execute("select pgflow.post_update('e', 'a', 'u')")
    chains = [run.chain_id for run in (*leased, *parked, *stuck, *done)]
    keys = [f"{place}-0" for place in ("ready", "leased", "parked", "stuck", "done")]

    def of_leased(**options: Any) -> Callable[[Conn], object]:
        return lambda c: commit(c, *(flush(run, expected=0, **options) for run in leased))

    def step(c: Conn) -> None:
        ids = (leased[0].run_id, leased[0].token)
        c.execute("select pgflow.begin_step(%s, %s, 1)", ids)
        c.execute(
            "select pgflow.fence_step(%s, %s, 1, %s)",
            (*ids, json.dumps(flush(leased[0], unit(), expected=0).unit_rows())),
        )

    def call(query: str, *params: Any) -> Callable[[Conn], object]:
        return lambda c: c.execute(f"select * from pgflow.{query}", params)

    def for_keys(query: str) -> Callable[[Conn], object]:
        return lambda c: [c.execute(f"select pgflow.{query}", (key,)) for key in keys]

    ids, held = [run.run_id for run in leased], [run.token for run in leased]
    return {
        "claim": lambda c: claim(c, 9, worker=worker, lanes=[ready.lane_id]),
        "claim limited": lambda c: claim(c, 9, worker=worker, lanes=[limited.lane_id]),
        "commit": lambda c: commit(c, *(flush(run, unit(), expected=0) for run in leased)),
        "finish": of_leased(outcome=("completed", None, "1", None), has_kin=True),
        "park": of_leased(signals=[[1, "x"]], park=True, idle=True),
        "hold": of_leased(hold=["stuck", "x", None, None, None]),
        "continue": of_leased(**{"continue": "{}"}),
        "child": lambda c: commit(c, flush(parent, expected=0, children=[child(1, key="new")])),
        "ask lock": lambda c: commit(
            c,
            flush(asker, expected=0, locks=[[1, "a", False, None, None, []]], park=True, idle=True),
        ),
        "take lock": call("take_lock('a', gen_random_uuid()::text, '1 hour', false, '1 hour')"),
        "release lock": call("release_lock('a', %s, 'mine')", fence),
        "renew lock": call("renew_lock('a', %s, '1 hour', 'mine')", fence),
        "break lock": call("break_lock('a', 'it hangs')"),
        "sweep locks": call("sweep_locks()"),
        "open entity": call("open_entity('e', 'a')"),
        "post update": call("post_update('e', 'a', 'u')"),
        "take update": call("take_update('{e}')"),
        "step": step,
        "beat step": call("beat_step(%s, %s, 1, 1, null)", ids[0], held[0]),
        "send": for_keys("send_signal(%s, 'paid')"),
        "deliver": for_keys("deliver_signal(%s, 'paid')"),
        "cancel": for_keys("cancel_run(%s)"),
        "pause": for_keys("pause_run(%s)"),
        "resume": for_keys("resume_run(%s)"),
        "start": lambda c: start(c, "child", key="new"),
        "start known": lambda c: start(c, "child", key="known"),
        "start many": lambda c: start_many(c, [("new", "{}"), ("other", "{}")], "child"),
        "start swept": lambda c: start(c, "done", key="done-0"),
        "answer": call("answer_gate('g', 'approve', by => 'ann')"),
        "delegate": call("delegate_gate('g', 'ann', 'bob')"),
        "expire": lambda c: commit(c, flush(late, expected=1, gates=[[1, "l"]])),
        "sweep keys": call("sweep_keys()"),
        "drop history": call("drop_history(now())"),
        "shrink journal": call("shrink_journal(min_bytes => 0)"),
        "wake": lambda c: wake(c, *chains),
        "sweep": wake,
        "poll": poll,
        "release": call("release_runs(%s, %s)", ids, held),
        "strays": call("release_strays(%s, '{}', now())", worker),
        "reap": call("reap_worker(%s, 0)", worker),
        "beat": call("beat(%s)", worker),
        "leave": call("leave_worker(%s)", worker),
        "observe": call("observe_workers()"),
        "release stuck": call("release_stuck('{stuck}', '{new}')"),
        "limit": call("set_queue('few', jsonb_build_object('concurrency', 8))"),
        "pause queue": call("pause_queue('few')"),
        "lanes": call("serve_lanes('{default,few}', '{ready,limited}')"),
        "partitions": call("add_unit_partitions()"),
        "check": call("check()"),
    }


@pytest.mark.full
def test_only_these_wait_for_only_those(dsn, conn):
    actions = build_world(conn)
    waits: dict[str, set[str]] = {}
    with connect(dsn) as holder, Actor(dsn) as waiter:
        for held, hold_open in actions.items():
            with holder.transaction(force_rollback=True):
                hold_open(holder)
                for name, act in actions.items():
                    if waits_for_holder(conn, holder, waiter, act):
                        waits.setdefault(name, set()).add(held)
    assert waits == WAITS


def waits_for_holder(
    observer: Conn, holder: Conn, waiter: Actor, act: Callable[[Conn], object]
) -> bool:
    """Return True if an action waits for the holder's open transaction; it is cancelled then."""

    def in_vain(conn: Conn) -> None:
        with conn.transaction(force_rollback=True):
            act(conn)

    pids, done = (holder.info.backend_pid, waiter.pid), waiter.do(in_vain)
    while not done.done():
        if one(observer, "select %s = any(pg_blocking_pids(%s))", *pids):
            waiter.conn.cancel()
            with contextlib.suppress(errors.QueryCanceled):
                done.result()
            return True
    done.result()
    return False


def test_a_wake_does_not_wait_for_another_that_puts_the_same_mail_aside(dsn, conn):
    run = begin(conn, key="k")
    sqlkit.finish(conn, run)
    sqlkit.send(conn, "k", "late")
    with connect(dsn) as second, conn.transaction():
        wake(conn, run.chain_id)
        wake(second, run.chain_id)


def name_in_order(verb: str, runs: list[Claim]) -> Callable[[Conn], object]:
    """Commits or hands back these runs in one call that names them in this order; or locks them so,
    as a rewind does.
    """
    ids, held = [run.run_id for run in runs], [run.token for run in runs]
    if verb == "hold still":
        return lambda c: c.execute("select pgflow.hold_still_(i) from unnest(%s) i", (ids,))
    if verb == "release":
        return lambda c: c.execute("select pgflow.release_runs(%s, %s)", (ids, held))
    batch = json.loads(sqlkit.document(*(flush(run, unit()) for run in runs)))
    batch["runs"].sort(key=lambda row: ids.index(row[0]))
    return lambda c: c.execute("select pgflow.commit_units(%s)", (json.dumps(batch),))


@pytest.mark.parametrize("verb", ["commit", "release"])
def test_batches_that_name_their_runs_in_opposite_orders_never_deadlock(dsn, conn, verb):
    first, middle, last = begin(conn), begin(conn), begin(conn)
    with connect(dsn) as holder, Actor(dsn) as up, Actor(dsn) as down:
        with holder.transaction():
            holder.execute(
                "select from pgflow.lease where run_id = %s for update", (middle.run_id,)
            )
            upwards = up.do(
                name_in_order("hold still" if verb == "release" else verb, [first, middle, last])
            )
            up.until_waiting(conn, upwards)
            downwards = down.do(name_in_order(verb, [last, middle, first]))
            down.until_waiting(conn, downwards)
        upwards.result(HANG_SECONDS)
        downwards.result(HANG_SECONDS)


@pytest.mark.alone
def test_a_key_that_is_freed_while_a_batch_takes_it_makes_no_deadlock(dsn, conn):
    conn.execute("alter table pgflow.run_key alter column retention_seconds set default 0")
    start_many(conn, [("a", "{}")])
    sqlkit.finish(conn, *claim(conn))
    with connect(dsn) as holder, Actor(dsn) as first, Actor(dsn) as second:
        with holder.transaction(force_rollback=True):
            start_many(holder, [("c", "{}")])
            three = first.do(
                start_many, [(key, "{}") for key in "abc"]
            )  # finds a, takes b, waits for c
            first.until_waiting(conn, three)
            assert one(conn, "select pgflow.sweep_keys()") == 1
            two = second.do(start_many, [(key, "{}") for key in "ab"])  # takes a, waits for b
            second.until_waiting(conn, two)
        assert [run.is_new for run in two.result(HANG_SECONDS)] == [True, True]
        assert [run.is_new for run in three.result(HANG_SECONDS)] == [False, False, True]
        assert [run.run_id for run in two.result()] == [run.run_id for run in three.result()[:2]]
    assert one(conn, "select count(*) from pgflow.ready") == 3
    assert deadlocks(conn) == 0


def test_a_key_that_is_freed_while_children_take_theirs_is_not_taken_behind_them(dsn, conn):
    conn.execute("alter table pgflow.run_key alter column retention_seconds set default 0")
    parent = begin(conn, key="parent")
    start_many(conn, [("a", "{}")])
    sqlkit.finish(conn, *claim(conn))
    start_both = flush(parent, children=[child(1, "demo", key="a"), child(2, "demo", key="c")])
    with connect(dsn) as holder, Actor(dsn) as batch:
        with holder.transaction(force_rollback=True):
            start_many(holder, [("c", "{}")])
            sent = batch.do(commit, start_both)  # finds a, waits for c
            batch.until_waiting(conn, sent)
            assert one(conn, "select pgflow.sweep_keys()") == 1
        with pytest.raises(errors.SerializationFailure, match="'a' was freed"):
            sent.result(HANG_SECONDS)
    commit(conn, start_both, careful=True)
    assert rows(
        conn, "select key from pgflow.run where parent_run_id = %s order by key", parent.run_id
    ) == ["a", "c"]


RUNS = 12
PLAYERS = 4
MOVES = 300
"""Moves of each player in a game; games go on until every pair of actions has met."""
OPTIONS = "-c lock_timeout=30s -c deadlock_timeout=10ms"


class Player:
    """One connection that does whatever it is told to the runs that it or anybody else holds."""

    def __init__(
        self, conn: Conn, seed: int, leases: dict[int, Claim], under_way: dict[int, threading.Lock]
    ) -> None:
        self.conn = conn
        self.random = random.Random(seed)
        self.leases = leases
        self.under_way = under_way
        self.worker = register(self.conn)
        self.lanes = all_lanes(self.conn)

    def some(self, most: int = RUNS) -> list[Claim]:
        """Some claims of anybody's, current or long lost, in any order."""
        known = [self.leases[run_id] for run_id in sorted(self.leases.copy())[-2 * RUNS :]]
        return self.random.sample(known, min(len(known), self.random.randint(1, most)))

    def keys(self) -> list[str]:
        return [f"k{n}" for n in self.random.sample(range(RUNS), self.random.randint(1, RUNS))]

    def chains(self) -> list[int]:
        return [run.chain_id for run in self.some()]

    def keep(self, claims: list[Claim]) -> None:
        for run in claims:
            self.leases[run.run_id] = run

    def claim(self) -> None:
        self.keep(
            claim(self.conn, self.random.randint(1, RUNS), worker=self.worker, lanes=self.lanes)
        )

    @contextlib.contextmanager
    def batch(self) -> Iterator[list[sqlkit.Flush]]:
        """Flushes of claims that have no other batch under way: two at once are told apart by the
        key of their units alone, and an outcome needs none."""
        with contextlib.ExitStack() as ends:
            mine = []
            for claimed in self.some():
                lock = self.under_way.setdefault(claimed.token, threading.Lock())
                if lock.acquire(blocking=False):
                    ends.callback(lock.release)
                    mine.append(claimed)
            yield self.flushes(mine)

    def flushes(self, runs: list[Claim]) -> list[sqlkit.Flush]:
        made = []
        for run in map(copy.copy, runs):  # others write to the same claim
            run.seq = one(
                self.conn,
                "select coalesce(max(seq), 0) from pgflow.unit where run_id = %s",
                run.run_id,
            )
            call = run.seq + 1
            kind = self.random.choice(["unit", "unit", "park", "end", "hold", "continue", "child"])
            made.append(
                {
                    "unit": lambda run=run, call=call: flush(run, unit("a", call)),
                    "park": lambda run=run, call=call: wait_for(
                        run, "paid", call, timeout_seconds=self.random.choice([0, 3600])
                    ),
                    "end": lambda run=run: flush(
                        run, outcome=("completed", None, "1", None), has_kin=True
                    ),
                    "hold": lambda run=run: sqlkit.hold(run, code_hash=str(self.random.random())),
                    "continue": lambda run=run: flush(run, **{"continue": "{}"}),
                    "child": lambda run=run, call=call: flush(run, children=[child(call, "demo")]),
                }[kind]()
            )
        return made

    def commit(self) -> None:
        with self.batch() as flushes:
            wake_up = commit(self.conn, *flushes, careful=self.random.random() < 0.5).wake
        if wake_up:
            wake(self.conn, *wake_up)

    def commit_and_claim(self) -> None:
        query = f"select {sqlkit.CLAIM} from pgflow.commit_and_claim(%s, %s, %s, 3, %s, true)"
        with self.batch() as flushes:
            found = self.conn.execute(
                query, (sqlkit.document(*flushes), self.worker, self.lanes, sqlkit.tokens(3))
            ).fetchall()
        self.keep([Claim(*row) for row in found if row[0] is not None])

    def step(self) -> None:
        """A transactional step that also sends and starts."""
        run = self.some()[0]
        with self.conn.transaction():
            self.conn.execute("select pgflow.begin_step(%s, %s, 1)", (run.run_id, run.token))
            for key in sorted(self.keys()[:3]):
                self.send(key)
            seq = one(
                self.conn,
                "select coalesce(max(seq), 0) from pgflow.unit where run_id = %s",
                run.run_id,
            )
            row = flush(run, unit("a", seq + 1), expected=seq).unit_rows()
            self.conn.execute(
                "select pgflow.fence_step(%s, %s, 1, %s)", (run.run_id, run.token, json.dumps(row))
            )

    def send(self, key: str | None = None) -> None:
        sqlkit.send(self.conn, key or self.random.choice(self.keys()), "paid")

    def start(self) -> None:
        start_many(self.conn, [(key, "{}") for key in self.keys()])

    def wake(self) -> None:
        wake(self.conn, *self.chains())

    def sweep(self) -> None:
        wake(self.conn)

    def poll(self) -> None:
        poll(self.conn, self.random.randint(1, RUNS))

    def control(self) -> None:
        for key in self.keys():
            verb = self.random.choice(
                [
                    "cancel_run(%s, force => true)",
                    "cancel_run(%s)",
                    "pause_run(%s)",
                    "resume_run(%s)",
                ]
            )
            one(self.conn, f"select pgflow.{verb}", key)

    def release(self) -> None:
        some = self.some()
        self.conn.execute(
            "select pgflow.release_runs(%s, %s)",
            ([run.run_id for run in some], [run.token for run in some]),
        )

    def reap(self) -> None:
        worker, beat = self.random.choice(
            rows(self.conn, "select worker_id, beat from pgflow.observe_workers()") or [(0, -1)]
        )
        self.conn.execute("select pgflow.reap_worker(%s, %s)", (worker, beat))
        if worker == self.worker:
            self.worker = register(self.conn)

    def beat(self) -> None:
        if not one(self.conn, "select alive from pgflow.beat(%s)", self.worker):
            self.worker = register(self.conn)

    def stuck(self) -> None:
        self.conn.execute("select pgflow.release_stuck('{demo}', '{none}')")

    def limit(self) -> None:
        self.conn.execute(
            "select pgflow.set_queue('default', jsonb_build_object('concurrency', %s::int))",
            (self.random.choice([None, 3, 8]),),
        )

    def refill(self) -> None:
        refill(self.conn)

    def do(self, name: str) -> None:
        try:
            getattr(self, name)()
        except errors.UniqueViolation:
            pass  # a seq or an outcome that somebody else has written: what a fence is for
        except psycopg.Error as error:
            # A lease that was lost, a worker that was declared dead, a key whose run is gone.
            if (error.sqlstate or "")[:2] != "PF":
                raise


ACTIONS = (
    "claim", "commit", "commit_and_claim", "step", "send", "start", "wake", "sweep", "poll", "control", "release", "reap", "beat", "stuck", "limit",
    "refill",
)  # fmt: skip


def refill(conn: Conn) -> None:
    """Runs that have ended make room for new ones under the same keys."""
    one(conn, "select pgflow.sweep_keys()")
    start_many(conn, [(f"k{n}", "{}") for n in range(RUNS)])


def deadlocks(conn: Conn) -> int:
    """Return the number of deadlocks that the server ended in this database; its sessions tell when
    they end.
    """
    others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
    servers.wait_until(lambda: one(conn, others) == 0, "sessions that end")
    return one(conn, "select deadlocks from pg_stat_database where datname = current_database()")


class Played(NamedTuple):
    began: float
    ended: float
    action: str


def meetings(played: list[Played]) -> Counter[tuple[str, ...]]:
    """Count how often each pair of actions ran at the same time."""
    met: Counter[tuple[str, ...]] = Counter()
    running: list[Played] = []
    for new in sorted(played):
        running = [old for old in running if old.ended > new.began]
        met.update(tuple(sorted((old.action, new.action))) for old in running)
        running.append(new)
    return met


@pytest.mark.full
@pytest.mark.alone
def test_functions_that_meet_on_the_same_runs_never_deadlock(dsn, conn):
    conn.execute("alter table pgflow.run_key alter column retention_seconds set default 0")
    refill(conn)
    leases: dict[int, Claim] = {}
    under_way: dict[int, threading.Lock] = {}
    seeds = itertools.count()

    def play(c: Conn, _: int) -> list[Played]:
        player = Player(c, next(seeds), leases, under_way)
        player.do("claim")
        played = []
        for _ in range(MOVES):
            action = player.random.choice(ACTIONS)
            began = time.monotonic()
            player.do(action)
            played.append(Played(began, time.monotonic(), action))
        return played

    met: Counter[tuple[str, ...]] = Counter()
    pairs = list(itertools.combinations_with_replacement(sorted(ACTIONS), 2))
    while not all(met[pair] for pair in pairs):
        met += meetings([p for part in sqlkit.race(dsn, PLAYERS, play, OPTIONS) for p in part])
    assert deadlocks(conn) == 0
    wake(conn, *rows(conn, "select distinct chain_id from pgflow.signal"), -1)
