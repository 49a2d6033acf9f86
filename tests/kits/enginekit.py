"""A worker that a test drives move by move, over a store in memory.

A :class:`Worker` is the host of executions, cut into *moves*: a flush is taken, committed,
acknowledged; a body returns; a timer is looked at. Each is offered under a label ("commit 1", "body
add 2") and nothing happens until somebody plays it, so that a test, or a seeded random order,
decides what comes before what - and where the process dies. What was committed is in the store,
everything else dies with the worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from enginestore import SECOND, Store, StoredRun
from servers import HANG_SECONDS

from pgflow._engine.calls import ChildCall, SignalCall, StepCall, TimerCall
from pgflow._engine.children import Children
from pgflow._engine.drivers import CoroutineDriver, Driver, ThreadDriver
from pgflow._engine.execution import Execution, Program
from pgflow._engine.flush import Flush, batch_document
from pgflow._engine.host import StepResult
from pgflow._engine.locking import Holds, Locks
from pgflow._engine.locks import HoldCall, LockCall
from pgflow._engine.notes import Notes
from pgflow._engine.signals import Signals
from pgflow._engine.steps import Steps
from pgflow._engine.timers import Timers
from pgflow._flow.ledgers.saga import guarded, guarded_sync
from pgflow._flow.main import begin
from pgflow._flow.scope import StepScope, WorkflowScope, current
from pgflow._flow.workflow import Workflow
from pgflow._model.claims import Offer
from pgflow._model.protocol import Answer
from pgflow._transactions.protocol import Unstorable
from pgflow._worker.bodies import _failed_result as judge_error
from pgflow._worker.transaction_bodies import FenceQueue, Turns
from pgflow.errors import NonDeterminismError, NotStorable
from pgflow.replay.check import _judge as judge_replay

MAX_MOVES = 3_000
"""Only a deadlock in the code under test takes so long."""


def document_of(flush: Flush, now_us: Callable[[], int]) -> str:
    """The document of one flush, with what travels beside it put back."""
    apart: list[str] = []
    document = json.loads(batch_document(1, [(flush, now_us)], apart))
    put_back(document["units"], 5, 11, apart)
    put_back(document.get("ends", []), 3, 7, apart)
    return json.dumps(document)


def put_back(rows: list[list[Any]], into: int, place: int, apart: list[str]) -> list[list[Any]]:
    """Rows with their long values in them, as the server has them."""
    for row in rows:
        if len(row) > place and row[place] is not None:
            row[into] = apart[row[place] - 1]
        del row[place:]
    return rows


class WatchedSteps(Steps):
    """Steps that are asked for through the execution, which tests override."""

    watcher: Any = None

    def issue(self, *args: Any) -> StepCall:
        return self.watcher.issue_step(*args)


class WatchedSignals(Signals):
    """Likewise."""

    watcher: Any = None

    def issue(self, *args: Any) -> SignalCall:
        return self.watcher.issue_signal(*args)


class WatchedChildren(Children):
    """Likewise."""

    watcher: Any = None

    def issue(self, *args: Any) -> ChildCall:
        return self.watcher.issue_child(*args)


class WatchedTimers(Timers):
    """Likewise."""

    watcher: Any = None

    def issue(self, *args: Any) -> TimerCall:
        return self.watcher.issue_sleep(*args)


class WatchedLocks(Locks):
    """Likewise."""

    watcher: Any = None

    def issue(self, *args: Any, **kwargs: Any) -> LockCall:
        return self.watcher.issue_lock(*args, **kwargs)


class WatchedHolds(Holds):
    """Likewise."""

    watcher: Any = None

    def issue(self, *args: Any) -> HoldCall:
        return self.watcher.hold_lock(*args)


class WatchedNotes(Notes):
    """Likewise."""

    watcher: Any = None

    def set_state(self, text: str) -> None:
        self.watcher.set_state(text)

    def emit(self, stream: str, text: str) -> None:
        self.watcher.emit(stream, text)


WATCHED: dict[type[Any], type[Any]] = {
    Steps: WatchedSteps,
    Signals: WatchedSignals,
    Children: WatchedChildren,
    Timers: WatchedTimers,
    Locks: WatchedLocks,
    Holds: WatchedHolds,
    Notes: WatchedNotes,
}


class WatchedExecution(Execution):
    """An execution that remembers what its code asked for and saw, each with the seq that it rested
    on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.trace: list[tuple[int, Any]] = []
        super().__init__(*args, **kwargs)

        for kind, watched in WATCHED.items():
            self.parts[kind] = watched(self.parts)
        self._let_watch(self)

    def _let_watch(self, watcher: WatchedExecution | None) -> None:
        for kind in WATCHED:
            self.parts[kind].watcher = watcher

    def _watch(self, call: Any) -> Any:
        effect = call.spec.effect if isinstance(call, StepCall) else None
        self.trace.append((self.buffer.seq, (call.number, call.kind, call.name, effect)))
        return call

    def issue_step(self, *args: Any) -> StepCall:
        return self._watch(Steps.issue(self.parts[Steps], *args))

    def issue_signal(self, *args: Any) -> SignalCall:
        return self._watch(Signals.issue(self.parts[Signals], *args))

    def issue_child(self, *args: Any) -> ChildCall:
        return self._watch(Children.issue(self.parts[Children], *args))

    def issue_sleep(self, *args: Any) -> TimerCall:
        return self._watch(Timers.issue(self.parts[Timers], *args))

    def issue_lock(self, *args: Any, **kwargs: Any) -> LockCall:
        return self._watch(Locks.issue(self.parts[Locks], *args, **kwargs))

    def hold_lock(self, *args: Any) -> HoldCall:
        return self._watch(Holds.issue(self.parts[Holds], *args))

    def set_state(self, text: str) -> None:
        Notes.set_state(self.parts[Notes], text)

    def emit(self, stream: str, text: str) -> None:
        Notes.emit(self.parts[Notes], stream, text)

    def start_timer(self, *args: Any) -> Callable[[], None]:
        withdraw = super().start_timer(*args)
        self.trace.append((self.buffer.seq, (self.history.last_call, "timer", "timer", None)))
        return withdraw

    def close(self) -> None:
        super().close()
        self._let_watch(None)

    def events(self, upto_seq: int | None = None) -> list[Any]:
        """Return the events that were seen, up to a seq."""
        return [event for seq, event in self.trace if upto_seq is None or seq <= upto_seq]


def saw(*what: Any) -> None:
    """In workflow code: notes what the code has come to, for a comparison of attempts."""
    scope = current.get()
    if isinstance(scope, WorkflowScope) and isinstance(scope.execution, WatchedExecution):
        scope.execution.trace.append((scope.execution.buffer.seq, tuple(map(_seen, what))))


def _seen(value: Any) -> Any:
    if isinstance(value, BaseException):
        return type(value).__name__, repr(value.args), str(value)
    return type(value).__name__, repr(value)


def seen(worker: Worker) -> list[Any]:
    """Return the values that the newest attempt noted with :func:`saw`."""
    return [
        value[1]
        for event in worker.attempts[-1].events()
        if isinstance(event[0], tuple)
        for value in event
    ]


class LockstepDriver(ThreadDriver):
    """A thread that has come to a standstill whenever control is given back, so that moves keep
    their order.
    """

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
            assert self._ended.acquire(timeout=HANG_SECONDS), (
                "a workflow's thread would not be unwound"
            )

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._ended.release()

    def _stand_still(self) -> None:
        assert self._still.acquire(timeout=HANG_SECONDS), (
            "a workflow's thread neither waits nor ends"
        )
        self.land()


def _spawn_daemon(job: Callable[[], None]) -> None:
    threading.Thread(target=job, daemon=True).start()


def make_driver(
    execution: Execution, workflow: Workflow[..., Any], errors: tuple[type[Exception], ...] = ()
) -> Driver:
    """Make the driver that ``pgflow._flow.main.make_driver`` makes, with threads in lockstep."""
    scope = WorkflowScope(execution, errors, workflow)
    context = contextvars.Context()
    context.run(current.set, scope)
    guard = guarded if workflow.is_async else guarded_sync
    main = partial(guard, scope, begin, scope, workflow, ())
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

    def __init__(
        self,
        store: Store,
        *,
        errors: tuple[type[Exception], ...] = (),
        seed: Any = 0,
        execution: Callable[..., WatchedExecution] = WatchedExecution,
        driver: Callable[
            [Execution, Workflow[..., Any], tuple[type[Exception], ...]], Driver
        ] = make_driver,
    ) -> None:
        self.store = store
        self.errors = errors
        self.make_execution = execution
        self.make_driver = driver
        self.executions: dict[int, WatchedExecution] = {}
        self.attempts: list[WatchedExecution] = []
        self.bodies: list[Body] = []
        self.wanting: dict[int, WatchedExecution] = {}
        self.on_the_way: list[tuple[WatchedExecution, Flush, str]] = []
        self.durable: list[tuple[WatchedExecution, Flush, Answer | None]] = []
        self.retries: list[tuple[int, WatchedExecution, StepCall]] = []
        self.told: dict[Flush, dict[int, Offer]] = {}
        self.looks: dict[WatchedExecution, int] = {}
        self.is_roomy = True
        self.advances: list[Callable[[], None]] = []
        self.keys: dict[tuple[int, int], tuple[str, str, str]] = {}
        self.bodies_run: list[tuple[int, str, str]] = []
        self.played: list[str] = []
        self.lost: list[int] = []
        self.random = random.Random(str(seed))
        self._base_us = store.now_us - self.random.randrange(10**12)

    # ------------------------------------------------------------ the host

    def monotonic_ns(self) -> int:
        """Another zero in every process."""
        return (self.store.now_us - self._base_us) * 1000

    def hand_back(self, execution: WatchedExecution) -> None:
        """No run here has anything to take back first."""
        raise AssertionError(execution)

    def want_flush(self, execution: WatchedExecution) -> None:
        """Offers the move "send"."""
        self.wanting[execution.run_id] = execution

    def look_later(self, execution: WatchedExecution, delay_seconds: float) -> None:
        """Offers the move "look", once it is time."""
        due_us = self.store.now_us + int(delay_seconds * SECOND)
        self.looks[execution] = min(due_us, self.looks.get(execution, due_us))

    def patience_us(self) -> int:
        """Return how long parents may wait for their children in memory."""
        return 50_000 if self.is_roomy else 0

    def retry_body_later(
        self, execution: WatchedExecution, call: StepCall, delay_seconds: float
    ) -> None:
        """Offers the move "retry", once it is time."""
        self.retries.append((self.store.now_us + int(delay_seconds * SECOND), execution, call))

    def start_body(self, execution: WatchedExecution, call: StepCall) -> None:
        """Offers the move "body", or "fence" for a transactional step; refuses what must not
        start.
        """
        run = self.store.runs[execution.run_id]
        key = f"{execution.claim.stem}/{call.name}/{call.ordinal}"
        if call.spec.effect == "s":
            licence = run.licensed().get(call.number)
            assert licence is not None, f"{call} starts before its licence is durable"
            assert licence[1:] == ["s", call.name, call.ordinal, call.args_hash], (
                f"{call} is licensed as {licence}"
            )
            same = (call.name, key, repr((call.args, call.kwargs)))
            found = self.keys.setdefault((execution.run_id, call.number), same)
            assert found == same, f"{call} is not what it was"
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
            (f"claim {run.run_id}", lambda run=run: self._claim(run))
            for run in self.store.runs.values()
            if run.place == "ready"
        ]
        moves += [
            (f"wake {chain}", lambda chain=chain: self._wake(chain))
            for chain in dict.fromkeys(self.store.nudged)
        ]
        moves += [
            (f"send {e.run_id}", lambda e=e: self._send(e))
            for e in self.wanting.values()
            if e.flushing.inflight is None and not e.flushing.locked
        ]
        moves += [
            ("advance", lambda callback=callback: self._advance(callback))
            for callback in self.advances
        ]
        moves += [
            (f"commit {item[0].run_id}", lambda item=item: self._commit(item))
            for item in self.on_the_way
        ]
        moves += [
            (f"ack {item[0].run_id}", lambda item=item: self._acknowledge(item))
            for item in self.durable
        ]
        for body in self.bodies:
            moves += self._moves_of(body)
        moves += [
            (f"retry {call.name} {call.number}", lambda item=item: self._retry(item))
            for item in self.retries
            for due_us, execution, call in [item]
            if due_us <= now_us and not execution.over
        ]
        moves += [
            (f"look {e.run_id}", lambda e=e: self._look(e))
            for e, due_us in self.looks.items()
            if due_us <= now_us and not e.over
        ]
        return moves

    def _moves_of(self, body: Body) -> Iterator[Move]:
        name = f"{body.call.name} {body.call.number}"
        if body.call.spec.effect != "t" or not body.wanted:
            yield f"body {name}", lambda: self._return(body)
        elif body.committed_us is not None or body.fence is not None:
            yield f"end {name}", lambda: self._end_fence(body)
            if body.committed_us is None:
                yield f"commit-fence {name}", lambda: self._commit_fence(body)
        elif self._is_turn_free(body.execution):
            yield f"fence {name}", lambda: self._begin_fence(body)

    def _claim(self, run: StoredRun) -> None:
        execution = self.make_execution(
            self.store.claim(run),
            self,
            Program(
                lambda e: self.make_driver(e, run.workflow, self.errors),
                run.workflow.result_codec,
                "code",
            ),
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
        flush = None if execution.over else execution.flushing.take()
        if flush is not None:
            assert execution.flushing.take() is None, "two flushes of a run are on their way"
            self.on_the_way.append(
                (execution, flush, document_of(flush, execution.clock.estimate_us))
            )

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
            self.told[flush] = self.store.told()

    def _acknowledge(self, item: tuple[WatchedExecution, Flush, Answer | None]) -> None:
        self.durable.remove(item)
        execution, flush, answer = item
        execution.flush_committed(flush, answer)
        if execution.over:
            self._remove(execution)
        for run_id, offer in self.told.pop(flush, {}).items():
            parent = self.executions.get(run_id)
            if not (parent is None or parent.over or parent.flushing.locked):
                parent.offer(offer)

    def _remove(self, execution: WatchedExecution) -> None:
        if self.executions.get(execution.run_id) is execution:
            del self.executions[execution.run_id]
        if self.wanting.get(execution.run_id) is execution:
            del self.wanting[execution.run_id]
        self.looks.pop(execution, None)
        self.bodies = [body for body in self.bodies if body.execution is not execution]
        execution.close()

    def _run(self, body: Body) -> StepResult:
        call = body.call
        scope = StepScope(body.execution, call, body.attempt, Silent())
        assert scope.key == body.key
        self.bodies_run.append((body.execution.run_id, call.name, body.key))
        try:
            fn = call.spec.definition.fn
            arguments = (SimpleNamespace(), *call.args) if call.spec.effect == "t" else call.args
            value = contextvars.Context().run(_call_in, scope, fn, arguments, call.kwargs)
            try:
                text = call.spec.result.encode(value, f"the result of step {call.name}")
            except NotStorable as error:
                raise Unstorable(error) from error
            return StepResult(call, text, None)
        except Exception as error:
            # the wait before the next try is left to chance: to this worker's
            random.seed(self.random.random())
            return judge_error(call, error)

    def _return(self, body: Body) -> None:
        self.bodies.remove(body)
        body.execution.step_returned(self._run(body))

    def _advance(self, callback: Callable[[], None]) -> None:
        self.advances.remove(callback)
        callback()

    def _retry(self, item: tuple[int, WatchedExecution, StepCall]) -> None:
        self.retries.remove(item)
        item[1].retry_due(item[2])

    def _look(self, execution: WatchedExecution) -> None:
        del self.looks[execution]
        execution.look_due()

    # ------------------------------------------------------------ transactional steps

    def _is_turn_free(self, execution: WatchedExecution) -> bool:
        """Return True if the worker would let a transactional step fence now: its own condition is
        asked.
        """
        return Turns.is_free(execution)

    def go_on(self, execution: WatchedExecution) -> None:
        """Go on at once: the turn is asked for again at every move."""
        execution.advance()

    def fenced(self, execution: WatchedExecution, seq: int) -> None:
        """Nobody here claims suspects one at a time, or compares what was acknowledged with a
        server that took over.
        """

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Offers the move "advance": the event loop's next turn, before which another fence may be
        quicker.
        """
        self.advances.append(lambda: callback(*args))

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
        at = body.fence.rows[-1].at_us
        apart: list[str] = []
        rows = json.loads(f"[{body.fence.unit_rows(lambda: at, apart)}]")
        body.committed_us = self.store.fence(
            run, body.fence.token, json.dumps(put_back(rows, 5, 11, apart))[1:-1]
        )

    def _end_fence(self, body: Body) -> None:
        """The answer of COMMIT, or of a ROLLBACK, after which the body runs again."""
        assert body.fence is not None
        flush, committed_us = body.fence, body.committed_us
        body.fence = None
        if committed_us is not None:
            self.bodies.remove(body)
        body.committed_us = None
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            queue = FenceQueue(self, body.execution)  # type: ignore[arg-type]
            assert _ends_at_once(
                queue.end_turn(body.call, flush, committed_us is not None, committed_us or 0)
            )
        finally:
            asyncio._set_running_loop(None)

    # ------------------------------------------------------------ playing

    def play(self, *prefixes: str) -> None:
        """Plays the first move offered under each label that begins so, in this order."""
        for prefix in prefixes:
            label, move = next(
                ((m for m in self.moves() if f"{m[0]} ".startswith(f"{prefix} "))), (None, None)
            )
            assert move is not None, (
                f"no move {prefix!r}; offered are {self.offered()}, played were {self.played}"
            )
            self._play(label or "", move)

    def _play(self, label: str, move: Callable[[], Any]) -> None:
        self.played.append(label)
        move()

    def offered(self) -> list[str]:
        """Labels of the moves that could be played."""
        return [label for label, _ in self.moves()]

    def settle(self) -> None:
        """Plays everything but what bodies and time do."""
        while (
            move := next((m for m in self.moves() if m[0].split()[0] in _SETTLING), None)
        ) is not None:
            self._play(*move)

    def finish(self) -> None:
        """Plays whatever is first, and lets time pass when nothing else is left, until nothing
        is.
        """
        for _ in range(MAX_MOVES):
            moves = self.moves()
            if moves:
                self._play(*_first_sensible(moves))
            elif not self.pass_time():
                return
        raise AssertionError(f"no end after {MAX_MOVES} moves: {self.played[-40:]}")

    def play_at_random(self) -> Iterator[str]:
        """Plays moves, events of the world outside and the passing of time in an order left to
        chance; yields after each.
        """
        coming = self.store.coming
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

    def finish_at_random(self) -> None:
        """Plays to the end in an order left to chance."""
        for _ in self.play_at_random():
            pass

    def finish_dying(self, chance: float, seeded: random.Random | None = None) -> Worker:
        """Plays to the end in an order left to chance, and dies after a move with this chance.
        Returns the last worker.
        """
        worker = self
        while any((seeded or worker.random).random() < chance for _ in worker.play_at_random()):
            worker = worker.crash()
        return worker

    def pass_time(self) -> bool:
        """Moves the clock to the next thing that is due, or sweeps; False if nothing is due at all.

        Not while a commit is on its way: that takes milliseconds, and this may be hours.
        """
        if self.on_the_way:
            return False
        for execution in self.executions.values():
            if (
                execution.oldest_unflushed_us is not None
                and execution.run_id not in self.wanting
                and execution.flushing.inflight is None
                and not execution.flushing.locked
            ):
                self.store.now_us = max(self.store.now_us, execution.oldest_unflushed_us + 100_000)
                self.want_flush(execution)
                return True
        due = [due_us for due_us, execution, _ in self.retries if not execution.over] + list(
            self.looks.values()
        )
        due += [d for d in [self.store.next_due_us()] if d is not None]
        if not due:
            return False
        self.store.now_us = max(self.store.now_us, min(due))
        self.store.wake_due()
        return True

    def crash(self) -> Worker:
        """Dies: nothing more is written, and the runs are ready again for the worker that is
        returned.
        """
        for execution in list(self.executions.values()):
            self._remove(execution)
        self.on_the_way.clear()
        self.durable.clear()
        self.store.release_all()
        return self._successor(self.store)

    def _successor(self, store: Store) -> Worker:
        other = Worker(
            store,
            errors=self.errors,
            seed=self.random.random(),
            execution=self.make_execution,
            driver=self.make_driver,
        )
        other.keys = dict(self.keys)
        return other

    def fork_as_crashed(self) -> Worker:
        """A worker that goes on from a copy of what is durable, as if this one had died here. This
        one lives on.
        """
        store = self.store.fork()
        store.release_all()
        return self._successor(store)


_SETTLING = frozenset({"claim", "wake", "send", "commit", "ack", "end", "advance", "look"})


def _first_sensible(moves: list[Move]) -> Move:
    """The first, but a transaction is committed before it is ended."""
    return next((m for m in moves if m[0].startswith("commit-fence")), moves[0])


def _ends_at_once(coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Return True if a coroutine ends without waiting for anything."""
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    coroutine.close()
    return False


def _call_in(
    scope: StepScope, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
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


class Silent:
    """A reporter that nobody hears."""

    def beat(self, scope: StepScope, details: Any) -> None:
        pass

    def tell(self, scope: StepScope) -> None:
        pass


class NoHost:
    """A host under which nothing starts and nothing is committed."""

    def start_body(self, execution: Execution, call: StepCall) -> None: ...
    def stop_body(self, execution: Execution, call: StepCall) -> None: ...
    def retry_body_later(
        self, execution: Execution, call: StepCall, delay_seconds: float
    ) -> None: ...
    def want_flush(self, execution: Execution) -> None: ...
    def look_later(self, execution: Execution, delay_seconds: float) -> None: ...
    def patience_us(self) -> int:
        return 0

    def hand_back(self, execution: Execution) -> None: ...
    def monotonic_ns(self) -> int:
        return 0


def replay(
    run: StoredRun,
    workflow: Workflow[..., Any] | None = None,
    errors: tuple[type[Exception], ...] = (),
) -> WatchedExecution:
    """Replays a journal against the code, changing nothing; the execution is closed."""
    workflow = workflow or run.workflow
    execution = WatchedExecution(
        run.claim(0, run.created_us),
        NoHost(),
        Program(lambda e: make_driver(e, workflow, errors), workflow.result_codec),
    )
    execution.start()
    execution.close()
    return execution


def divergence(
    run: StoredRun, workflow: Workflow[..., Any] | None = None
) -> NonDeterminismError | None:
    """Return the error of code that diverges from a recorded run; None if it comes to the same
    end.
    """
    execution = replay(run, workflow)
    return execution.history.divergence or judge_replay(run.recorded(), execution)


def run_to_end(
    workflow: Workflow[..., Any],
    *args: Any,
    errors: tuple[type[Exception], ...] = (),
    **kwargs: Any,
) -> tuple[Store, StoredRun]:
    """Runs a workflow to its end, first things first."""
    store = Store(workflow)
    run = store.start(workflow, *args, **kwargs)
    Worker(store, errors=errors).finish()
    return store, run
