"""The engine's other half, in memory: the database's part and a worker that a test drives move by move.

A :class:`Store` keeps runs, units, mail and a clock, and answers what ``sql/commit.sql`` and
``sql/settle.sql`` answer. A :class:`Worker` is the host of executions, cut into *moves*: a flush is
taken, committed, acknowledged; a body returns; a timer is looked at. Each is offered under a label
("commit 1", "body add 2") and nothing happens until somebody plays it, so that a test, or a seeded
random order, decides what comes before what - and where the process dies. What was committed is in the
store, everything else dies with the worker.

No clock runs: time is a number in the store that moves when a test says so.
"""

from __future__ import annotations

import contextvars
import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from pgflow._calls.replay import RecordedRun
from pgflow._engine.calls import Call, ChildCall, SignalCall, StepCall, TimerCall
from pgflow._engine.drivers import CoroutineDriver, Driver, ThreadDriver
from pgflow._engine.execution import Execution, StepResult
from pgflow._engine.flush import Flush, batch_document
from pgflow._scope import StepScope, WorkflowScope, current
from pgflow.bodies import _judge as judge_error
from pgflow.errors import NonDeterminismError
from pgflow.failures import ErrorClasses, rebuild_error
from pgflow.model import Kind
from pgflow.replay import _judge as judge_replay
from pgflow.replay import make_main
from pgflow.units import Claim, Unit
from pgflow.workflow import Workflow

SECOND = 1_000_000
MAX_MOVES = 3_000
STANDSTILL_SECONDS = 20.0  # only a deadlock in the code under test takes so long

# ================================================================ the database's part


class Mail(NamedTuple):
    """A row of a mailbox: s = signal, c = result of a child, x = cancel, p = pause."""

    mail_id: int
    chain_id: int
    kind: str
    name: str
    sent_us: int
    payload: str | None
    run_id: int | None = None
    call: int | None = None
    sent_by: str | None = None


@dataclass
class StoredRun:
    """A run with its journal and its place: ready, leased, parked, held or ended."""

    run_id: int
    chain_id: int
    generation: int
    workflow: Workflow[..., Any]
    key: str
    root: str
    input: str
    created_us: int
    parent: tuple[int, int] | None = None
    close_policy: str = "c"
    place: str = "ready"
    token: int = 0
    attempt: int = 0
    units: list[Unit] = field(default_factory=list)
    waits: dict[str, Any] = field(default_factory=dict)
    due_us: list[int] = field(default_factory=list)
    held: list[Any] | None = None
    status: str | None = None
    reason: str | None = None
    output: str | None = None
    error: str | None = None

    @property
    def last_seq(self) -> int:
        """The newest seq."""
        return len(self.units)

    def kinds(self) -> str:
        """Kinds of its units in their order, one letter each."""
        return "".join(unit.kind for unit in self.units)

    def shape(self) -> list[tuple[int, str, str | None]]:
        """Call, kind and name of each unit."""
        return [(unit.call, unit.kind, unit.name) for unit in self.units]

    def licensed(self) -> dict[int, list[Any]]:
        """What ``starts`` of its units allow, by call."""
        return {start[0]: start for unit in self.units for start in unit.starts or ()}

    def result(self) -> Any:
        """What the workflow returned; raises what it raised."""
        if self.status == "completed":
            assert self.output is not None
            return self.workflow.result_codec.decode(self.output, "the result")
        if self.status == "failed":
            assert self.error is not None
            raise rebuild_error(json.loads(self.error), ErrorClasses(self.workflow.raises))
        raise AssertionError(f"run {self.run_id} is {self.place}, {self.status}, {self.held}: {self.units}")

    def recorded(self) -> RecordedRun:
        """The run as ``recorded_runs`` answers it."""
        status = self.status or ("stuck" if self.place == "held" else "waiting")
        return RecordedRun(self.claim(token=0), status, self.output)

    def claim(self, token: int, now_us: int = 0, *, has_mail: bool = False) -> Claim:
        """The run as a worker claims it."""
        return Claim(
            run_id=self.run_id, token=token, chain_id=self.chain_id, lane_id=1, generation=self.generation, attempt=self.attempt,
            suspect=0, last_seq=self.last_seq, key=self.key, root=self.root, input=self.input, units=list(self.units),
            has_mail=has_mail, created_us=self.created_us, now_us=max(now_us, self.created_us), workflow=self.workflow.name,
            parent_run_id=self.parent[0] if self.parent else None,
        )


class Store:
    """See the module."""

    def __init__(self, *workflows: Workflow[..., Any], now_us: int = 1_700_000_000 * SECOND) -> None:
        self.workflows = {workflow.name: workflow for workflow in workflows}
        self.now_us = now_us
        self.runs: dict[int, StoredRun] = {}
        self.keys: dict[str, int] = {}
        self.mail: list[Mail] = []
        self.nudged: list[int] = []
        self.commits = 0
        self._ids = 0
        self._mail_ids = 0
        self._tokens = 0
        self._writers: dict[tuple[int, int], int] = {}

    def fork(self) -> Store:
        """A copy that goes its own way."""
        other = Store(now_us=self.now_us)
        vars(other).update(vars(self))
        other.keys, other.mail, other.nudged = dict(self.keys), list(self.mail), list(self.nudged)
        other._writers = dict(self._writers)
        other.runs = {
            run_id: replace(run, units=list(run.units), waits=dict(run.waits), due_us=list(run.due_us))
            for run_id, run in self.runs.items()
        }
        return other

    # ------------------------------------------------------------ what clients do

    def start(self, workflow: Workflow[..., Any], *args: Any, **kwargs: Any) -> StoredRun:
        """Starts a run."""
        self.workflows.setdefault(workflow.name, workflow)
        options = workflow.start_options
        return self._insert(workflow, workflow.encode_input(args, kwargs), options.key, None, "c")

    def _insert(self, workflow: Workflow[..., Any], text: str, key: str | None, parent: tuple[int, int] | None, policy: str) -> StoredRun:
        self._ids += 1
        run = StoredRun(
            run_id=self._ids, chain_id=self._ids, generation=1, workflow=workflow, key=key or f"key-{self._ids}",
            root=f"root-{self._ids}", input=text, created_us=self.now_us, parent=parent, close_policy=policy,
        )
        self.runs[run.run_id] = run
        self.keys[run.key] = run.run_id
        return run

    def send(self, run: StoredRun, name: str, payload: Any = None) -> None:
        """Sends a signal."""
        self._post(run.chain_id, "s", name, json.dumps(payload))

    def cancel(self, run: StoredRun, why: str = "cancelled") -> None:
        """Asks a run to end."""
        self._post(run.chain_id, "x", "cancel", json.dumps({"why": why}), sent_by="a person")

    def pause(self, run: StoredRun, why: str = "paused") -> None:
        """Asks a run to stand still."""
        self._post(run.chain_id, "p", "pause", json.dumps({"why": why}), sent_by="a person")

    def resume(self, run: StoredRun) -> None:
        """Lets a held run go on."""
        assert run.place == "held"
        self._note_operator(run, "resume")
        run.place, run.held, run.attempt = "ready", None, 0

    def newest(self, run: StoredRun) -> StoredRun:
        """The newest generation of its chain."""
        return max((r for r in self.runs.values() if r.chain_id == run.chain_id), key=lambda r: r.generation)

    def _post(
        self, chain_id: int, kind: str, name: str, payload: str | None, run_id: int | None = None, call: int | None = None, sent_by: str | None = None
    ) -> None:
        self._mail_ids += 1
        self.mail.append(Mail(self._mail_ids, chain_id, kind, name, self.now_us, payload, run_id, call, sent_by))
        self.nudged.append(chain_id)

    def _note_operator(self, run: StoredRun, name: str, why: str | None = None) -> None:
        run.units.append(Unit(run.last_seq + 1, 0, Kind.OPERATOR, name, json.dumps({"why": why}), None, self.now_us, None))

    # ------------------------------------------------------------ places

    def claim(self, run: StoredRun) -> Claim:
        """ready -> leased."""
        assert run.place == "ready"
        self._tokens += 1
        run.place, run.token, run.attempt = "leased", self._tokens, run.attempt + 1
        return run.claim(run.token, self.now_us, has_mail=any(m.chain_id == run.chain_id for m in self.mail))

    def release_all(self) -> None:
        """Whoever held runs is dead."""
        for run in self.runs.values():
            if run.place == "leased":
                run.place = "ready"

    def wake(self, chain_id: int) -> StoredRun | None:
        """Looks at a nudged chain; answers the run that its worker must be told of."""
        self.nudged.remove(chain_id)
        run = self.newest(self.runs[chain_id])
        if run.place == "parked" and self._has_reason(run):
            self._unpark(run)
        elif run.place == "ended":
            self.mail = [m for m in self.mail if m.chain_id != chain_id]
        return run if run.place == "leased" else None

    def _has_reason(self, run: StoredRun) -> bool:
        names = {name for _, name in run.waits.get("signals", ())}
        mine = [m for m in self.mail if m.chain_id == run.chain_id]
        if any(m.kind in "xp" for m in mine):
            return True
        return any(m.kind == "s" and m.name in names or m.kind == "c" and m.run_id == run.run_id and run.waits.get("child_calls") for m in mine)

    def _unpark(self, run: StoredRun) -> None:
        run.place, run.waits, run.due_us, run.attempt = "ready", {}, [], 0

    def wake_due(self) -> None:
        """parked -> ready for runs with a timer that is due."""
        for run in self.runs.values():
            if run.place == "parked" and any(due <= self.now_us for due in run.due_us):
                self._unpark(run)

    def next_due_us(self) -> int | None:
        """When the next timer of a parked run is due."""
        return min((due for run in self.runs.values() if run.place == "parked" for due in run.due_us), default=None)

    # ------------------------------------------------------------ commit

    def commit(self, document: str) -> tuple[str | None, dict[str, Any] | None]:
        """``commit_units`` for one run: the verdict, if it is not well, and the answer to the question, if there was one."""
        batch = json.loads(document)
        ((run_id, token, expected),) = batch["r"]
        run = self.runs[run_id]
        if self._writers.get((run_id, expected + 1)) == token:
            return "already", None
        if run.place != "leased" or run.token != token or run.last_seq != expected:
            return "lost", None
        self.now_us += 1
        self.append(run, batch["u"])
        self.commits += 1
        answer = self._settle(run, batch["x"][0]) if "x" in batch else None
        for _, status, reason, output, error, *_ in batch.get("o", ()):
            self._end(run, status, reason, output, error)
        return None, json.loads(json.dumps(answer))

    def append(self, run: StoredRun, rows: list[list[Any]]) -> None:
        """Inserts units as they travel; their primary key is (run, seq)."""
        for run_id, seq, call, kind, name, payload, starts, at_us, delay, token in rows:
            assert run_id == run.run_id
            assert seq == run.last_seq + 1, f"seq {seq} after {run.last_seq}"
            due_us = None if delay is None else self.now_us + int(delay * SECOND)
            run.units.append(Unit(seq, call, kind, name, payload, None if starts is None else json.loads(starts), at_us, due_us))
            self._writers[run_id, seq] = token

    def fence(self, run: StoredRun, token: int, rows: str) -> int | None:
        """``fence_step`` and COMMIT of a transactional step; None if the lease is lost."""
        if run.place != "leased" or run.token != token:
            return None
        self.now_us += 1
        self.append(run, json.loads(f"[{rows}]"))
        self.commits += 1
        return self.now_us

    # ------------------------------------------------------------ settle_

    def _settle(self, run: StoredRun, q: dict[str, Any]) -> dict[str, Any]:
        assert q["seq"] == run.last_seq
        units: list[list[Any]] = [self._start_child(run, child) for child in q.get("children", ())]
        place, pause = "leased", False
        if "hold" in q:
            run.place, run.held, place = "held", q["hold"], "held"
        elif "continue" in q:
            self._continue(run, q["continue"])
            place = "ended"
        else:
            more, pause = self._look(run, q)
            units += more
            if not more and pause and q["idle"]:
                self._pause(run)
                place = "held"
            elif not more and not pause and q.get("park"):
                self._park(run, q)
                place = "parked"
        return {"run": run.run_id, "units": units, "place": place, "at": self.now_us, "pause": pause}

    def _decide(self, run: StoredRun, call: int, kind: str, name: str | None, payload: str | None) -> list[Any]:
        unit = Unit(run.last_seq + 1, call, kind, name, payload, None, self.now_us, None)
        run.units.append(unit)
        self._writers[run.run_id, unit.seq] = run.token
        return list(unit[:5])

    def _start_child(self, run: StoredRun, child: list[Any]) -> list[Any]:
        call, workflow, _queue, text, key, *_rest, policy = child
        known = self.runs.get(self.keys.get(key or "", 0))
        if known is None:
            made = self._insert(self.workflows[workflow], text, key, (run.run_id, call), policy)
            return self._decide(run, call, Kind.CHILD_STARTED, workflow, json.dumps({"run_id": made.run_id, "key": made.key}))
        if (known.workflow.name, json.loads(known.input), known.parent) == (workflow, json.loads(text), (run.run_id, call)):
            return self._decide(run, call, Kind.CHILD_STARTED, workflow, json.dumps({"run_id": known.run_id, "key": known.key}))
        clash = f"key {key!r} already names a run of {known.workflow.name} with another workflow, input or parent"
        error = {"type": "pgflow.errors.KeyConflict", "mro": ["pgflow.errors.KeyConflict"], "args": [clash], "message": clash}
        return self._decide(run, call, Kind.CHILD_FINISHED, workflow, json.dumps({"status": "refused", "error": error}))

    def _look(self, run: StoredRun, q: dict[str, Any]) -> tuple[list[list[Any]], bool]:
        """What has happened, first things first; a signal or a cancel only as the first of its look."""
        units: list[list[Any]] = []
        pause = False
        for _at, call, _id, kind, name, mail in sorted(self._happenings(run, q), key=lambda h: h[:3]):
            if kind == "p":
                pause = True
                continue
            if kind in ("x", Kind.SIGNAL_RECEIVED):
                if units:
                    break
                self.mail.remove(mail)
                if kind == "x" and q["cancelled"]:
                    continue
            elif kind == Kind.CHILD_FINISHED:
                self.mail.remove(mail)
            payload = mail.payload if mail is not None else None
            if kind == "x":
                payload = json.dumps({"why": json.loads(payload)["why"], "by": mail.sent_by})
            if kind == Kind.CHILD_FINISHED:
                name = self.runs[json.loads(payload)["run_id"]].workflow.name
            units.append(self._decide(run, call, kind, name, payload))
            if kind in ("x", Kind.SIGNAL_RECEIVED):
                break
        return units, pause

    def _happenings(self, run: StoredRun, q: dict[str, Any]) -> Iterator[tuple[int, int, float, str, str | None, Any]]:
        mine = [m for m in self.mail if m.chain_id == run.chain_id]
        for m in mine:
            if m.kind in "xp":
                yield m.sent_us, 0, m.mail_id, m.kind, m.name, m
            elif m.kind == "c" and m.run_id == run.run_id and m.call in q.get("child_calls", ()):
                yield m.sent_us, m.call, m.mail_id, Kind.CHILD_FINISHED, m.name, m
        for call, name in q.get("signals", ()):
            first = next((m for m in mine if m.kind == "s" and m.name == name), None)
            if first is not None:
                yield first.sent_us, call, first.mail_id, Kind.SIGNAL_RECEIVED, name, first
        for call, seq, kind in q.get("timers", ()):
            unit = run.units[seq - 1]
            assert unit.due_us is not None
            if unit.due_us <= self.now_us:
                yield unit.due_us, call, float("inf"), kind, unit.name, None

    def _park(self, run: StoredRun, q: dict[str, Any]) -> None:
        run.place = "parked"
        run.waits = {name: q[name] for name in ("signals", "child_calls") if q.get(name)}
        run.due_us = [run.units[w[1] - 1].due_us for w in [*q.get("timers", ()), *q.get("retries", ())]]
        if run.waits:
            self.nudged.append(run.chain_id)

    def _pause(self, run: StoredRun) -> None:
        for m in [m for m in self.mail if m.chain_id == run.chain_id and m.kind == "p"]:
            self.mail.remove(m)
            self._note_operator(run, "pause", json.loads(m.payload)["why"])
        run.place, run.held = "held", ["paused", "paused", None, None, "a person"]

    def _continue(self, run: StoredRun, text: str) -> None:
        self._ids += 1
        self._decide(run, 0, Kind.CONTINUED, None, json.dumps({"run_id": self._ids}))
        self.runs[self._ids] = replace(
            run, run_id=self._ids, generation=run.generation + 1, input=text, created_us=self.now_us, units=[], place="ready", token=0,
            attempt=0, waits={}, due_us=[],
        )
        run.place, run.status = "ended", "continued"

    def _end(self, run: StoredRun, status: str, reason: str | None, output: str | None, error: str | None) -> None:
        run.place, run.status, run.reason, run.output, run.error = "ended", status, reason, output, error
        if run.parent is not None and self.runs[run.parent[0]].place != "ended":
            head = {"status": status, "reason": reason, "run_id": run.run_id}
            payload = f'{json.dumps(head)[:-1]}, "output" : {output or "null"}, "error" : {error or "null"}}}'
            parent = self.runs[run.parent[0]]
            self._post(parent.chain_id, "c", str(run.parent[1]), payload, parent.run_id, run.parent[1])
        for child in list(self.runs.values()):
            if child.parent is not None and child.parent[0] == run.run_id and child.place != "ended" and child.close_policy == "c":
                self._post(child.chain_id, "x", "cancel", json.dumps({"why": "the parent run ended"}), sent_by="pgflow")


# ================================================================ the worker's part


class WatchedExecution(Execution):
    """An execution that remembers what its code asked for and saw, each with the seq that it rested on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.trace: list[tuple[int, Any]] = []
        super().__init__(*args, **kwargs)

    def _watch(self, call: Any) -> Any:
        effect = call.spec.effect if isinstance(call, StepCall) else None
        self.trace.append((self._seq, (call.number, call.kind, call.name, effect)))
        return call

    def issue_step(self, *args: Any) -> StepCall:
        return self._watch(super().issue_step(*args))

    def issue_signal(self, *args: Any) -> SignalCall:
        return self._watch(super().issue_signal(*args))

    def issue_child(self, *args: Any) -> ChildCall:
        return self._watch(super().issue_child(*args))

    def issue_sleep(self, *args: Any) -> TimerCall:
        return self._watch(super().issue_sleep(*args))

    def start_timer(self, *args: Any) -> Callable[[], None]:
        withdraw = super().start_timer(*args)
        self.trace.append((self._seq, (self._last_call, "timer", "timer", None)))
        return withdraw

    def events(self, upto_seq: int | None = None) -> list[Any]:
        """What was seen, up to a seq."""
        return [event for seq, event in self.trace if upto_seq is None or seq <= upto_seq]


def saw(*what: Any) -> None:
    """In workflow code: notes what the code has come to, for a comparison of attempts."""
    scope = current.get()
    if isinstance(scope, WorkflowScope) and isinstance(scope.execution, WatchedExecution):
        scope.execution.trace.append((scope.execution._seq, tuple(map(_seen, what))))


def _seen(value: Any) -> Any:
    if isinstance(value, BaseException):
        return type(value).__name__, repr(value.args), str(value)
    return type(value).__name__, repr(value)


class LockstepDriver(ThreadDriver):
    """A thread that has come to a standstill whenever control is given back, so that moves keep their order."""

    def __init__(self, main: Callable[[], Any], context: contextvars.Context) -> None:
        self._still = threading.Semaphore(0)
        self._ended = threading.Semaphore(0)
        super().__init__(_spawn_daemon, self._still.release, main, context)

    def start(self) -> None:
        super().start()
        self._stand_still()

    def resume(self) -> None:
        super().resume()
        if self.busy:
            self._stand_still()

    def close(self) -> None:
        was_done = self.done
        self._yield_control = lambda: None
        super().close()
        if not was_done:
            assert self._ended.acquire(timeout=STANDSTILL_SECONDS), "a workflow's thread would not be unwound"

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._ended.release()

    def _stand_still(self) -> None:
        assert self._still.acquire(timeout=STANDSTILL_SECONDS), "a workflow's thread neither waits nor ends"


def _spawn_daemon(job: Callable[[], None]) -> None:
    threading.Thread(target=job, daemon=True).start()


def make_driver(execution: Execution, workflow: Workflow[..., Any], errors: tuple[type[Exception], ...] = ()) -> Driver:
    """What ``pgflow.replay.make_driver`` makes, with threads in lockstep."""
    scope = WorkflowScope(execution, errors, workflow)
    context = contextvars.Context()
    context.run(current.set, scope)
    main = make_main(execution, workflow, ())
    if workflow.is_async:
        return CoroutineDriver(execution, main, context)
    driver = LockstepDriver(main, context)
    scope.thread = driver
    return driver


@dataclass(eq=False)
class Body:
    """A body that has been started."""

    execution: WatchedExecution
    call: StepCall
    attempt: int
    key: str
    wanted: bool = True
    fence: Flush | None = None
    committed_us: int | None = None


Move = tuple[str, Callable[[], Any]]


class Worker:
    """The host of executions, move by move; see the module."""

    def __init__(self, store: Store, *, errors: tuple[type[Exception], ...] = (), seed: Any = 0) -> None:
        self.store = store
        self.errors = errors
        self.executions: dict[int, WatchedExecution] = {}
        self.attempts: list[WatchedExecution] = []
        self.bodies: list[Body] = []
        self.wanting: dict[int, WatchedExecution] = {}
        self.on_the_way: list[tuple[WatchedExecution, Flush, str]] = []
        self.durable: list[tuple[WatchedExecution, Flush, dict[str, Any] | None]] = []
        self.retries: list[tuple[int, WatchedExecution, StepCall]] = []
        self.looks: dict[WatchedExecution, int] = {}
        self.advances: list[WatchedExecution] = []
        self.keys: dict[tuple[int, int], tuple[str, str, str]] = {}
        self.bodies_run: list[tuple[int, str, str]] = []
        self.played: list[str] = []
        self.lost: list[int] = []
        self.random = random.Random(str(seed))
        self._base_us = store.now_us - self.random.randrange(10**12)

    # ------------------------------------------------------------ the host

    def monotonic_us(self) -> int:
        """Another zero in every process."""
        return self.store.now_us - self._base_us

    def want_flush(self, execution: WatchedExecution) -> None:
        """Offers the move "send"."""
        self.wanting[execution.run_id] = execution

    def look_later(self, execution: WatchedExecution, delay_seconds: float) -> None:
        """Offers the move "look", once it is time."""
        due_us = self.store.now_us + int(delay_seconds * SECOND)
        self.looks[execution] = min(due_us, self.looks.get(execution, due_us))

    def retry_body_later(self, execution: WatchedExecution, call: StepCall, delay_seconds: float) -> None:
        """Offers the move "retry", once it is time."""
        self.retries.append((self.store.now_us + int(delay_seconds * SECOND), execution, call))

    def start_body(self, execution: WatchedExecution, call: StepCall) -> None:
        """Offers the move "body", or "fence" for a transactional step; refuses what must not start."""
        run = self.store.runs[execution.run_id]
        key = f"{execution.claim.stem}/{call.name}/{call.ordinal}"
        if call.spec.effect == "s":
            licence = run.licensed().get(call.number)
            assert licence is not None, f"{call} starts before its licence is durable"
            assert licence[1:] == ["s", call.name, call.ordinal, call.args_hash], f"{call} is licensed as {licence}"
            same = (call.name, key, repr((call.args, call.kwargs)))
            assert self.keys.setdefault((execution.run_id, call.number), same) == same, f"{call} is not what it was"
        self.bodies.append(Body(execution, call, call.failed_attempts + 1, key))

    def stop_body(self, execution: WatchedExecution, call: StepCall) -> None:
        """A task would be cancelled, a thread left to finish: chance decides which it is."""
        for body in self.bodies:
            if body.call is call:
                body.wanted = False
        if self.random.random() < 0.5:
            self.bodies = [body for body in self.bodies if body.call is not call]

    # ------------------------------------------------------------ moves

    def moves(self) -> list[Move]:
        """Everything that could happen next, except that time passes."""
        now_us = self.store.now_us
        moves: list[Move] = [
            (f"claim {run.run_id}", lambda run=run: self._claim(run)) for run in self.store.runs.values() if run.place == "ready"
        ]
        moves += [(f"wake {chain}", lambda chain=chain: self._wake(chain)) for chain in dict.fromkeys(self.store.nudged)]
        moves += [(f"send {e.run_id}", lambda e=e: self._send(e)) for e in self.wanting.values() if e.inflight is None and not e.locked]
        moves += [(f"advance {e.run_id}", lambda e=e: self._advance(e)) for e in self.advances]
        moves += [(f"commit {item[0].run_id}", lambda item=item: self._commit(item)) for item in self.on_the_way]
        moves += [(f"ack {item[0].run_id}", lambda item=item: self._acknowledge(item)) for item in self.durable]
        for body in self.bodies:
            moves += self._moves_of(body)
        moves += [
            (f"retry {call.name} {call.number}", lambda item=item: self._retry(item))
            for item in self.retries for due_us, execution, call in [item] if due_us <= now_us and not execution.over
        ]
        moves += [(f"look {e.run_id}", lambda e=e: self._look(e)) for e, due_us in self.looks.items() if due_us <= now_us and not e.over]
        return moves

    def _moves_of(self, body: Body) -> Iterator[Move]:
        name = f"{body.call.name} {body.call.number}"
        if body.call.spec.effect != "t" or not body.wanted:
            yield f"body {name}", lambda: self._return(body)
        elif body.committed_us is not None or body.fence is not None:
            yield f"end {name}", lambda: self._end_fence(body)
            if body.committed_us is None:
                yield f"commit-fence {name}", lambda: self._commit_fence(body)
        elif body.execution.inflight is None and not body.execution.locked:
            yield f"fence {name}", lambda: self._begin_fence(body)

    def _claim(self, run: StoredRun) -> None:
        execution = WatchedExecution(
            self.store.claim(run), self, lambda e: make_driver(e, run.workflow, self.errors), run.workflow.result_codec, "code"
        )
        self.executions[run.run_id] = execution
        self.attempts.append(execution)
        execution.start()

    def _wake(self, chain_id: int) -> None:
        run = self.store.wake(chain_id)
        if run is not None and run.run_id in self.executions:
            self.executions[run.run_id].poke()

    def _send(self, execution: WatchedExecution) -> None:
        del self.wanting[execution.run_id]
        flush = execution.take_flush()
        if flush is not None:
            assert execution.take_flush() is None, "two flushes of a run are on their way"
            self.on_the_way.append((execution, flush, batch_document([(flush, execution.estimate_us())])))

    def _commit(self, item: tuple[WatchedExecution, Flush, str]) -> None:
        self.on_the_way.remove(item)
        execution, flush, document = item
        verdict, answer = self.store.commit(document)
        if verdict == "lost":
            self.lost.append(execution.run_id)
            self._remove(execution)
        else:
            assert verdict is None
            self.durable.append((execution, flush, answer))

    def _acknowledge(self, item: tuple[WatchedExecution, Flush, dict[str, Any] | None]) -> None:
        self.durable.remove(item)
        execution, flush, answer = item
        execution.flush_committed(flush, answer)
        if execution.over:
            self._remove(execution)

    def _remove(self, execution: WatchedExecution) -> None:
        self.executions.pop(execution.run_id, None)
        self.wanting.pop(execution.run_id, None)
        self.looks.pop(execution, None)
        self.bodies = [body for body in self.bodies if body.execution is not execution]
        execution.close()

    def _run(self, body: Body) -> StepResult:
        call = body.call
        scope = StepScope(body.execution.claim, call, body.attempt, body.key, lambda _: None)
        self.bodies_run.append((body.execution.run_id, call.name, body.key))
        try:
            fn = call.spec.definition.fn
            arguments = (SimpleNamespace(), *call.args) if call.spec.effect == "t" else call.args
            value = contextvars.Context().run(_call_in, scope, fn, arguments, call.kwargs)
            return StepResult(call, call.spec.result.encode(value, f"the result of step {call.name}"), None)
        except Exception as error:
            return judge_error(call, error)

    def _return(self, body: Body) -> None:
        self.bodies.remove(body)
        body.execution.step_returned(self._run(body))

    def _advance(self, execution: WatchedExecution) -> None:
        """The event loop's next turn after the end of a transaction: another fence may be quicker."""
        self.advances.remove(execution)
        execution.advance()

    def _retry(self, item: tuple[int, WatchedExecution, StepCall]) -> None:
        self.retries.remove(item)
        item[1].retry_due(item[2])

    def _look(self, execution: WatchedExecution) -> None:
        del self.looks[execution]
        execution.poke()

    # ------------------------------------------------------------ transactional steps

    def _begin_fence(self, body: Body) -> None:
        result = self._run(body)
        if result.text is None:
            self.bodies.remove(body)
            body.execution.step_returned(result)
            return
        body.fence = body.execution.begin_fence(body.call, result.text)
        if body.fence is None:
            self.bodies.remove(body)

    def _commit_fence(self, body: Body) -> None:
        assert body.fence is not None
        run = self.store.runs[body.execution.run_id]
        body.committed_us = self.store.fence(run, body.fence.token, body.fence.unit_rows(body.fence.rows[-1].at_us))

    def _end_fence(self, body: Body) -> None:
        """The answer of COMMIT, or of a ROLLBACK, after which the body runs again."""
        assert body.fence is not None
        flush, committed_us = body.fence, body.committed_us
        body.fence = None
        if committed_us is not None:
            self.bodies.remove(body)
        body.execution.end_fence(body.call, flush, committed=committed_us is not None, at_us=committed_us or 0)
        self.advances.append(body.execution)

    # ------------------------------------------------------------ playing

    def play(self, *prefixes: str) -> None:
        """Plays the first move offered under each label that begins so, in this order."""
        for prefix in prefixes:
            label, move = next(((m for m in self.moves() if f"{m[0]} ".startswith(f"{prefix} "))), (None, None))
            assert move is not None, f"no move {prefix!r}; offered are {self.offered()}, played were {self.played}"
            self._play(label or "", move)

    def _play(self, label: str, move: Callable[[], Any]) -> None:
        self.played.append(label)
        move()

    def offered(self) -> list[str]:
        """Labels of the moves that could be played."""
        return [label for label, _ in self.moves()]

    def settle(self) -> None:
        """Plays everything but what bodies and time do."""
        while (move := next((m for m in self.moves() if m[0].split()[0] in _SETTLING), None)) is not None:
            self._play(*move)

    def finish(self) -> None:
        """Plays whatever is first, and lets time pass when nothing else is left, until nothing is."""
        for _ in range(MAX_MOVES):
            moves = self.moves()
            if moves:
                self._play(*_first_sensible(moves))
            elif not self.pass_time():
                return
        raise AssertionError(f"no end after {MAX_MOVES} moves: {self.played[-40:]}")

    def play_at_random(self, events: list[Callable[[Store], None]] = []) -> Iterator[str]:  # noqa: B006 - only read
        """Plays moves, events of the world outside and the passing of time in an order left to chance; yields after each."""
        coming = list(events)
        for _ in range(MAX_MOVES):
            moves = self.moves()
            if coming and (not moves or self.random.random() < 0.1):
                coming.pop(0)(self.store)
                yield "event"
            elif moves and self.random.random() < 0.97:
                label, move = self.random.choice(moves)
                self._play(label, move)
                yield label
            elif self.pass_time():
                yield "time"
            elif not moves:
                return
        raise AssertionError(f"no end after {MAX_MOVES} moves: {self.played[-40:]}")

    def pass_time(self) -> bool:
        """Moves the clock to the next thing that is due, or sweeps; False if nothing is due at all.

        Not while a commit is on its way: that takes milliseconds, and this may be hours.
        """
        if self.on_the_way:
            return False
        for execution in self.executions.values():
            if execution.oldest_unflushed_us is not None and execution.run_id not in self.wanting and execution.inflight is None and not execution.locked:
                self.store.now_us = max(self.store.now_us, execution.oldest_unflushed_us + 100_000)
                self.want_flush(execution)
                return True
        due = [due_us for due_us, execution, _ in self.retries if not execution.over] + list(self.looks.values())
        due += [d for d in [self.store.next_due_us()] if d is not None]
        if not due:
            return False
        self.store.now_us = max(self.store.now_us, min(due))
        self.store.wake_due()
        return True

    def crash(self) -> Worker:
        """Dies: nothing more is written, and the runs are ready again for the worker that is returned."""
        for execution in list(self.executions.values()):
            self._remove(execution)
        self.on_the_way.clear()
        self.durable.clear()
        self.store.release_all()
        return self._successor(self.store)

    def _successor(self, store: Store) -> Worker:
        other = Worker(store, errors=self.errors, seed=self.random.random())
        other.keys = dict(self.keys)
        return other

    def fork_as_crashed(self) -> Worker:
        """A worker that goes on from a copy of what is durable, as if this one had died here. This one lives on."""
        store = self.store.fork()
        store.release_all()
        return self._successor(store)


_SETTLING = frozenset({"claim", "wake", "send", "commit", "ack", "end", "advance", "look"})


def _first_sensible(moves: list[Move]) -> Move:
    """The first, but a transaction is committed before it is ended."""
    return next((m for m in moves if m[0].startswith("commit-fence")), moves[0])


def _call_in(scope: StepScope, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    current.set(scope)
    value = fn(*args, **kwargs)
    if not hasattr(value, "send"):
        return value
    try:
        value.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the bodies of these tests wait for nothing")


# ================================================================ replays


class NoHost:
    """A host under which nothing starts and nothing is committed."""

    def start_body(self, execution: Execution, call: StepCall) -> None: ...
    def stop_body(self, execution: Execution, call: StepCall) -> None: ...
    def retry_body_later(self, execution: Execution, call: StepCall, delay_seconds: float) -> None: ...
    def want_flush(self, execution: Execution) -> None: ...
    def look_later(self, execution: Execution, delay_seconds: float) -> None: ...
    def monotonic_us(self) -> int:
        return 0


def replay(run: StoredRun, workflow: Workflow[..., Any] | None = None, errors: tuple[type[Exception], ...] = ()) -> WatchedExecution:
    """Replays a journal against the code, changing nothing; the execution is closed."""
    workflow = workflow or run.workflow
    execution = WatchedExecution(run.claim(0, run.created_us), NoHost(), lambda e: make_driver(e, workflow, errors), workflow.result_codec)
    execution.start()
    execution.close()
    return execution


def divergence(run: StoredRun, workflow: Workflow[..., Any] | None = None) -> NonDeterminismError | None:
    """How the code diverges from a recorded run; None if it comes to the same end."""
    execution = replay(run, workflow)
    return execution.divergence or judge_replay(run.recorded(), execution)


def run_to_end(workflow: Workflow[..., Any], *args: Any, errors: tuple[type[Exception], ...] = (), **kwargs: Any) -> tuple[Store, StoredRun]:
    """Runs a workflow to its end, first things first."""
    store = Store(workflow)
    run = store.start(workflow, *args, **kwargs)
    Worker(store, errors=errors).finish()
    return store, run


def calls_of(execution: Execution) -> dict[int, Call]:
    """The calls that its code waits for."""
    return dict(execution._calls)
