"""The stored functions called as a client in any language would call them; no part of the Python
engine is used.

Documents are built by hand, as `sql/runs/commit.sql` and `sql/runs/answer.sql` describe them at
their heads. Connections are in autocommit: a test that wants a transaction says so with
``conn.transaction()``, and may hold it open while other connections go on, which makes every
interleaving a matter of writing it down.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

import psycopg
import servers
from psycopg import sql
from psycopg.conninfo import make_conninfo

T0 = datetime(2030, 1, 1, tzinfo=UTC)
"""Time at which tests that move the clock begin."""

PATIENT = f"-c lock_timeout={servers.HANG_SECONDS}s"
"""A call that waits for a lock for ever fails in the end."""


def connect(dsn: str, options: str = PATIENT) -> psycopg.Connection[Any]:
    """A further connection, in autocommit."""
    return psycopg.connect(make_conninfo(dsn, options=options), autocommit=True)


def rows(conn: psycopg.Connection[Any], query: str, *params: Any) -> list[Any]:
    """All rows of a query; of one column, its values."""
    found = conn.execute(query, params or None).fetchall()
    return [row[0] for row in found] if found and len(found[0]) == 1 else found


def one(conn: psycopg.Connection[Any], query: str, *params: Any) -> Any:
    """The first row of a query; of one column, its value."""
    return next(iter(rows(conn, query, *params)), None)


def set_clock(conn: psycopg.Connection[Any], at: datetime) -> None:
    """The database's clock stands still at this time, until it is set again."""
    conn.execute(
        sql.SQL(
            "create or replace function pgflow.now_() returns timestamptz language sql volatile "
            "set search_path = pg_catalog, pg_temp as $$ select {}::timestamptz $$"
        ).format(sql.Literal(at.isoformat()))
    )


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class Started(NamedTuple):
    run_key: str
    run_id: int
    is_new: bool
    lane_id: int


def start(conn: psycopg.Connection[Any], workflow: str | None = "demo", **options: Any) -> Started:
    """`start_run` with arguments by name."""
    arguments = {"workflow": workflow, **options}
    named = ", ".join(f"{name} => %s" for name in arguments)
    query = f"select run_key, run_id, is_new, lane_id from pgflow.start_run({named})"
    return Started(*one(conn, query, *arguments.values()))


def start_many(
    conn: psycopg.Connection[Any],
    runs: Sequence[tuple[str | None, str]],
    workflow: str = "demo",
    **options: Any,
) -> list[Started]:
    """`start_runs`: pairs of key and input."""
    arguments = {"workflow": workflow, "runs": json.dumps(runs), **options}
    named = ", ".join(f"{name} => %s" for name in arguments)
    query = f"select run_key, run_id, is_new, lane_id from pgflow.start_runs({named})"
    return [Started(*row) for row in rows(conn, query, *arguments.values())]


def send(conn: psycopg.Connection[Any], key: str, name: str, payload: str = "null") -> int:
    return one(conn, "select pgflow.send_signal(%s, %s, %s)", key, name, payload)


@dataclass
class Claim:
    """A run as `claim_runs` answers it; ``seq`` is the last unit that its holder knows of."""

    run_id: int
    token: int
    chain_id: int
    lane_id: int
    generation: int
    attempt: int
    suspect: int
    last_seq: int
    key: str
    root: str
    input: str
    units: str | None
    has_mail: bool
    created_us: int
    now_us: int
    extra: dict[str, Any] | None
    worker: int = 0
    seq: int = field(init=False)

    def __post_init__(self) -> None:
        self.seq = self.last_seq


CLAIM = "run_id, token, chain_id, lane_id, generation, attempt, suspect, last_seq, key, root, input, units, has_mail, created_us, now_us, extra"


def tokens(count: int) -> list[int]:
    return [secrets.randbits(63) for _ in range(count)]


def register(
    conn: psycopg.Connection[Any], host: str = "host", queues: Sequence[str] = ("default",)
) -> int:
    return one(conn, "select pgflow.register_worker(%s, 1, %s, 10, 'test')", host, list(queues))


def all_lanes(conn: psycopg.Connection[Any]) -> list[int]:
    return rows(conn, "select lane_id from pgflow.lane order by lane_id")


def claim(
    conn: psycopg.Connection[Any],
    count: int = 1,
    *,
    worker: int | None = None,
    lanes: Sequence[int] | None = None,
    take_suspect: bool = True,
) -> list[Claim]:
    """`claim_runs`, by a worker of its own and from every lane unless told otherwise."""
    worker = register(conn) if worker is None else worker
    lanes = all_lanes(conn) if lanes is None else lanes
    query = f"select {CLAIM} from pgflow.claim_runs(%s, %s, %s, %s, %s)"
    found = conn.execute(
        query, (worker, list(lanes), count, tokens(max(count, 0)), take_suspect)
    ).fetchall()
    return [Claim(*row, worker=worker) for row in found]


def claim_one(conn: psycopg.Connection[Any], **options: Any) -> Claim:
    """The one run that is there to be claimed."""
    (found,) = claim(conn, 1, **options)
    return found


def begin(conn: psycopg.Connection[Any], workflow: str = "demo", **options: Any) -> Claim:
    """Starts a run and claims it."""
    started = start(conn, workflow, **options)
    return claim_one(conn, lanes=[started.lane_id])


class Unit(NamedTuple):
    kind: str
    call: int
    name: str | None
    payload: str | None
    starts: str | None
    delay_seconds: float | None
    at_us: int


def unit(
    kind: str = "c",
    call: int = 1,
    name: str | None = "step",
    payload: str | None = "null",
    *,
    starts: str | None = None,
    delay_seconds: float | None = None,
    at: datetime = T0,
) -> Unit:
    """A unit whose seq the flush gives it; ``payload`` and ``starts`` are JSON text."""
    return Unit(kind, call, name, payload, starts, delay_seconds, micros(at))


@dataclass
class Flush:
    """One run's part of a batch."""

    claim: Claim
    units: tuple[Unit, ...]
    outcome: tuple[str, str | None, str | None, str | None] | None
    has_kin: bool
    expected: int
    token: int
    question: dict[str, Any]
    closes: Sequence[int | None] | None = None

    @property
    def last_seq(self) -> int:
        return self.expected + len(self.units)

    def unit_rows(self) -> list[list[Any]]:
        """The rows of ``u``."""
        return [
            [
                self.claim.run_id,
                self.expected + n,
                u.call,
                u.kind,
                u.name,
                u.payload,
                u.starts,
                u.at_us,
                u.delay_seconds,
                self.token,
            ]
            for n, u in enumerate(self.units, 1)
        ]


def flush(
    claim: Claim,
    *units: Unit,
    outcome: tuple[str, str | None, str | None, str | None] | None = None,
    has_kin: bool = False,
    expected: int | None = None,
    token: int | None = None,
    closes: Sequence[int | None] | None = None,
    **question: Any,
) -> Flush:
    """Return the flush of a run; ``question`` holds the fields that `sql/runs/answer.sql`
    describes, and ``closes`` the calls whose reservations are returned, where it draws on a pool.
    """
    return Flush(
        claim,
        units,
        outcome,
        has_kin,
        claim.seq if expected is None else expected,
        claim.token if token is None else token,
        question,
        closes,
    )


def document(*flushes: Flush) -> str:
    """The batch as JSON text."""
    ordered = sorted(flushes, key=lambda f: f.claim.run_id)
    batch: dict[str, Any] = {
        "worker": max((f.claim.worker for f in flushes), default=0),
        "runs": [[f.claim.run_id, f.token, f.expected] for f in ordered],
        "units": [row for f in ordered for row in f.unit_rows()],
    }
    if endings := [
        [f.claim.run_id, *f.outcome, f.claim.chain_id, f.token] for f in ordered if f.outcome
    ]:
        batch["ends"] = endings
    if kin := [f.claim.run_id for f in ordered if f.has_kin]:
        batch["kin"] = kin
    if drawing := [
        [f.claim.run_id, call] for f in ordered if f.closes is not None for call in f.closes or (0,)
    ]:
        batch["draws"] = drawing
    if questions := [
        {
            "run": f.claim.run_id,
            "token": f.token,
            "chain": f.claim.chain_id,
            "seq": f.last_seq,
            **f.question,
        }
        for f in ordered
        if f.question
    ]:
        batch["questions"] = questions
    return json.dumps(batch)


@dataclass
class Answer:
    """Answer to a batch; ``raw`` is None where there is nothing to tell."""

    raw: dict[str, Any] | None
    bad: dict[int, str]
    settled: dict[int, dict[str, Any]]
    wake: list[int]
    lanes: list[int]

    def units_of(self, claim: Claim) -> list[list[Any]]:
        """Units that the database decided for a run: [seq, call, kind, name, payload]."""
        return self.settled[claim.run_id]["units"]

    def place_of(self, claim: Claim) -> str:
        return self.settled[claim.run_id]["place"]


def read_answer(raw: dict[str, Any] | None) -> Answer:
    told = raw or {}
    return Answer(
        raw,
        dict(told.get("bad") or ()),
        {answer["run"]: answer for answer in told.get("answers") or ()},
        told.get("wake") or [],
        told.get("lanes") or [],
    )


def commit(conn: psycopg.Connection[Any], *flushes: Flush, careful: bool = False) -> Answer:
    """`commit_units`; the claims learn their new last seq, as a worker would."""
    answer = read_answer(
        one(conn, "select pgflow.commit_units(%s, %s)", document(*flushes), careful)
    )
    for f in flushes:
        if f.claim.run_id not in answer.bad:
            settled = answer.settled.get(f.claim.run_id, {}).get("units") or [[f.last_seq]]
            f.claim.seq = settled[-1][0]
    return answer


def finish(
    conn: psycopg.Connection[Any],
    claim: Claim,
    status: str = "completed",
    output: str | None = None,
    error: str | None = None,
    reason: str | None = None,
    *,
    has_kin: bool = True,
) -> Answer:
    """Commits an outcome."""
    if status == "completed" and output is None:
        output = "null"
    if status == "failed" and error is None:
        error = '{"message": "no"}'
    return commit(conn, flush(claim, outcome=(status, reason, output, error), has_kin=has_kin))


def wait_for(claim: Claim, name: str, call: int = 1, timeout_seconds: float | None = None) -> Flush:
    """Park until a signal of this name comes, or until the time is out."""
    if timeout_seconds is None:
        return flush(claim, signals=[[call, name]], park=True, idle=True)
    started = unit("t", call, name, None, delay_seconds=timeout_seconds)
    return flush(
        claim,
        started,
        signals=[[call, name]],
        timers=[[call, claim.seq + 1, "W"]],
        park=True,
        idle=True,
    )


def fill_beta(
    conn: psycopg.Connection[Any], secret: str, done: str = "beta-done", **labels: str
) -> tuple[Claim, dict[str, Any]]:
    """Give the tenant beta runs in many states, with a secret in JSON wherever a value or a label can
    be. Return the one that waits, and the options of each start.
    """
    common = {
        "tenant": "beta",
        "input": f'{{"a": {secret}}}',
        "labels": json.dumps({"l": json.loads(secret), **labels}),
    }
    ended = begin(conn, key=done, **common)
    said = [
        unit(name="step", payload=secret),
        unit("v", 0, None, f'{{"state": {secret}}}'),
        unit("e", 0, "stream", secret),
        unit("d", 2, "choose", f'{{"value": {secret}, "why": {secret}}}'),
    ]
    commit(conn, flush(ended, *said))
    finish(conn, ended, output=secret)
    waits = begin(conn, key="beta-waits", **common)
    commit(conn, wait_for(waits, "go"))
    start(conn, key="beta-queued", **common)
    conn.execute("select pgflow.send_signal('beta-queued', 'x', %s, 'beta')", (secret,))
    return waits, common


def still_waits(claim: Claim, name: str, call: int, timer_seq: int | None = None) -> Flush:
    """The same wait again, its time-out recorded already."""
    timers = {} if timer_seq is None else {"timers": [[call, timer_seq, "W"]]}
    return flush(claim, signals=[[call, name]], park=True, idle=True, **timers)


def sleep_for(claim: Claim, duration_seconds: float, call: int = 1) -> Flush:
    """Park until a timer fires."""
    return flush(
        claim,
        unit("t", call, None, None, delay_seconds=duration_seconds),
        timers=[[call, claim.seq + 1, "T"]],
        park=True,
        idle=True,
    )


def child(
    call: int = 1,
    workflow: str = "child",
    *,
    input_text: str = "{}",
    key: str | None = None,
    queue: str = "default",
    run_at: datetime | None = None,
    timeout_seconds: float | None = None,
    metadata: dict[str, Any] | None = None,
    close_policy: str = "c",
) -> list[Any]:
    """A row of ``children``."""
    run_at_us = None if run_at is None else micros(run_at)
    return [
        call,
        workflow,
        queue,
        input_text,
        key,
        0,
        run_at_us,
        timeout_seconds,
        None,
        metadata,
        close_policy,
    ]


def hold(
    claim: Claim, reason: str = "nondeterminism", code_hash: str | None = None, detail: Any = None
) -> Flush:
    """Give the run up until a person helps."""
    return flush(claim, hold=["stuck", reason, code_hash, detail, "pgflow"])


class Woken(NamedTuple):
    lanes: list[int]
    mail: list[int]
    ended: list[int]
    busy: int


class Polled(NamedTuple):
    lanes: list[int]
    mail: list[int]
    ended: list[int]
    busy: int
    next_due_seconds: float | None
    newest_lane: int | None


def wake(conn: psycopg.Connection[Any], *chains: int) -> Woken:
    """`wake`, for these chains, or for every nudged one."""
    return Woken(
        *one(
            conn,
            "select lanes, mail, ended, busy from pgflow.wake(%s::bigint[])",
            list(chains) or None,
        )
    )


def poll(conn: psycopg.Connection[Any], count: int = 1000) -> Polled:
    return Polled(
        *one(
            conn,
            "select lanes, mail, ended, busy, next_due_seconds, newest_lane from pgflow.poll(%s)",
            count,
        )
    )


def status(conn: psycopg.Connection[Any], run_id: int) -> str:
    """Status of one generation, read from its place."""
    return one(conn, "select pgflow.status_(%s)", run_id)


def journal(
    conn: psycopg.Connection[Any], run_id: int
) -> list[tuple[int, int, str, str | None, str | None]]:
    """(seq, call, kind, name, payload as text) of each unit."""
    return rows(
        conn,
        "select seq, call, kind, name, payload::text from pgflow.unit where run_id = %s order by "
        "seq",
        run_id,
    )


def operators(conn: psycopg.Connection[Any], run_id: int) -> list[tuple[str, str, str]]:
    """Return people's requests to a run: (what, who, why)."""
    return rows(
        conn,
        "select name, payload->>'by', payload->>'why' from pgflow.unit where run_id = %s and kind "
        "= 'o' order by seq",
        run_id,
    )


def mailbox(conn: psycopg.Connection[Any], chain_id: int) -> list[tuple[str, str]]:
    """(kind, name) of every message in a chain's mailbox."""
    return rows(
        conn,
        "select kind, name from pgflow.signal where chain_id = %s order by signal_id",
        chain_id,
    )


def undelivered(conn: psycopg.Connection[Any], chain_id: int) -> list[tuple[str, str]]:
    return rows(
        conn,
        "select kind, name from pgflow.undelivered where chain_id = %s order by signal_id",
        chain_id,
    )


def count(conn: psycopg.Connection[Any], table: str) -> int:
    return one(conn, f"select count(*) from pgflow.{table}")


def unsound(conn: psycopg.Connection[Any]) -> set[str]:
    """Invariants that do not hold."""
    return set(rows(conn, "select invariant from pgflow.check()"))


class Actor:
    """A connection with a thread of its own: what it does may wait while the test goes on."""

    def __init__(self, dsn: str) -> None:
        self.conn = connect(dsn)
        self.pid = self.conn.info.backend_pid
        self._thread = ThreadPoolExecutor(1)
        self._latest: Future[Any] = Future()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self.conn.close()

    def do(self, function: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        """Calls ``function(conn, ...)`` in this actor's thread."""
        self._latest = self._thread.submit(function, self.conn, *args, **options)
        return self._latest

    def until_waiting(
        self, observer: psycopg.Connection[Any], unless_done: Future[Any] | None = None
    ) -> None:
        """Returns once the actor waits for a lock, or, if that is allowed, has its answer."""
        query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"

        def waits() -> bool:
            is_over = self._latest.done()  # before the look: it may have waited, and got on since
            if one(observer, query, self.pid):
                return True
            assert not is_over or unless_done is not None, (
                "what the actor does is done, and waited for no lock"
            )
            return unless_done is not None and unless_done.done()

        servers.wait_until(waits, "a connection that waits for a lock")


def race(
    dsn: str,
    count: int,
    function: Callable[[psycopg.Connection[Any], int], Any],
    options: str = PATIENT,
) -> list[Any]:
    """Calls ``function(conn, n)`` on ``count`` connections at once; the answers, in order."""
    barrier = threading.Barrier(count)

    def run(n: int) -> Any:
        with connect(dsn, options) as conn:
            barrier.wait()
            return function(conn, n)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
