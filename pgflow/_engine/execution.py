"""One activation of a run: replay, release of outcomes, the write-ahead buffer, and what may start.

The life of an execution is a loop of two moves. *Release*: while the code stands still, exactly one
outcome is handed to it - from the journal on replay, else from what the database decided or a body
brought back - and the code runs until it stands still again. *Settle*: when there is nothing left to
release, bodies that may start are started, and what must become durable is asked to be flushed.

Sequence numbers are given at release, by this class alone. While a transactional step is between its
fence and its acknowledgement, or a question is with the database, the next numbers are not known, so
nothing is released (`locked`).

One answer of the database may decide several calls: their units stand side by side in the journal before
any of them is released, and what the code notes in between comes after them all. A replay therefore
takes such neighbours as one group too.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, Protocol

from pgflow._engine.calls import Call, ChildCall, ChildRequest, SignalCall, StepCall, StepSpec, TimerCall
from pgflow._engine.drivers import Driver
from pgflow._engine.flush import MAX_FLUSH_BYTES, MAX_FLUSH_STARTS, MAX_FLUSH_UNITS, Ending, Flush, Row
from pgflow._engine.journal import Journal
from pgflow._engine.loop import MAX_SWALLOWED_UNWINDS, Unwind
from pgflow.errors import KeyConflict, NonDeterminismError, NotStorable, RunCancelled, RunFailed
from pgflow.failures import ErrorClasses, ErrorData, clean, encode_error, rebuild_error
from pgflow.model import Kind
from pgflow.units import KIND_NAMES, MARKS, Claim, Start, Unit
from pgflow.values import ANYTHING, Codec, hash_arguments

LINGER_TIMER_US = 1_000_000
"""A timer or a retry due within this is waited for in memory: parking would cost more than it saves."""

NEVER = 0
"""Number of a call that never comes back: code that swallows every Unwind and asks again would not give control back else."""

LINGER_CHILDREN_US = 50_000
"""So long a parent waits in memory for children that have just started, or for more results after one."""


class ContinueAsNew(BaseException):
    """Raised by ``continue_as_new``; carries the input of the next generation."""

    def __init__(self, input_text: str) -> None:
        super().__init__(input_text)
        self.input_text = input_text


class StepResult:
    """What a body brought back: the text of its value, or its error."""

    __slots__ = ("call", "delay_seconds", "error", "text")

    def __init__(self, call: StepCall, text: str | None, error: ErrorData | None, delay_seconds: float | None = None) -> None:
        self.call = call
        self.text = text
        self.error = error
        self.delay_seconds = delay_seconds


class Host(Protocol):
    """What an execution needs of the worker that runs it."""

    def start_body(self, execution: Execution, call: StepCall) -> None:
        """Runs the body of a step; its result comes back through ``step_returned``."""

    def stop_body(self, execution: Execution, call: StepCall) -> None:
        """Nobody waits for this body any more."""

    def retry_body_later(self, execution: Execution, call: StepCall, delay_seconds: float) -> None:
        """Calls ``retry_due`` after a delay."""

    def want_flush(self, execution: Execution) -> None:
        """Calls ``take_flush`` soon."""

    def look_later(self, execution: Execution, delay_seconds: float) -> None:
        """Calls ``poke`` after a delay."""

    def monotonic_us(self) -> int:
        """Microseconds on a clock that only measures durations."""


class Execution:
    """See the module."""

    def __init__(
        self,
        claim: Claim,
        host: Host,
        make_driver: Callable[[Execution], Driver],
        result: Codec[Any] = ANYTHING,
        code_hash: str = "",
    ) -> None:
        self.claim = claim
        self.run_id = claim.run_id
        self.journal = Journal(claim.units)
        self.replaying = len(self.journal) > 0
        self.over = False
        self.closing = False
        self.pausing = False
        self.draining = False
        self._refused = False
        self.cancel_request: dict[str, Any] | None = None
        self.divergence: NonDeterminismError | None = None
        self.has_children = False
        self.beat = False  # whether a step has reported progress: rows that the end of the run removes
        self.locked = False
        self.inflight: Flush | None = None

        self._host = host
        self._result = result
        self._code_hash = code_hash
        self._calls: dict[int, Call] = {}
        self._last_call = 0
        self._key_counts: dict[str, int] = {}
        self._seq = 0
        self._durable_seq = claim.last_seq
        self._buffer: list[Row] = []
        self._buffer_bytes = 0
        self._unlicensed: list[StepCall] = []
        self._startable: list[StepCall] = []
        self._running: set[int] = set()
        self._backoff: set[int] = set()
        self._new_children: list[ChildCall] = []
        self._unwanted_children: list[int] = []
        self._inbox: deque[StepResult] = deque()
        self._decided: deque[Unit] = deque()
        self._ask_wanted = claim.has_mail
        self._linger_until_us = 0
        self._ending: Ending | None = None
        self._continue_input: str | None = None
        self._hold: list[Any] | None = None
        self._now_us: int | None = None
        self._clock_us = claim.now_us - host.monotonic_us()
        self._random: random.Random | None = None
        self._refusals = 0
        self._driver = make_driver(self)

    # ================================================================ time

    def estimate_us(self) -> int:
        """The database's clock as far as it is known here: its time at the claim and what has passed since."""
        return max(self._clock_us + self._host.monotonic_us(), self._now_us or 0)

    def _sync_clock(self, database_us: int) -> None:
        self._clock_us = max(self._clock_us, database_us - self._host.monotonic_us())

    def time_seconds(self) -> float:
        """Time for the event loop: seconds since the run was created, as of the last outcome."""
        return 0.0 if self._now_us is None else max(0.0, (self._now_us - self.claim.created_us) / 1e6)

    def now_us(self) -> int:
        """What ``now()`` shows: the time of the last outcome; if there is none yet, the time now, recorded."""
        if self._now_us is None:
            unit = self._note(self._next_call(), Kind.CLOCK_READ, None, None)
            self._now_us = unit.at_us if unit is not None else self._buffer[-1].at_us
        return self._now_us

    @property
    def random(self) -> random.Random:
        """Random numbers that a replay draws again."""
        if self._random is None:
            self._random = random.Random(self.claim.stem)  # noqa: S311 - repeatable is what it is for
        return self._random

    def uuid(self) -> uuid.UUID:
        """A random UUID that a replay makes again."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    # ================================================================ what the code asks for

    def _check_open(self) -> None:
        if self.closing or self.divergence is not None:
            self._refusals += 1
            raise Unwind

    def _next_call(self) -> int:
        if self._refusals >= MAX_SWALLOWED_UNWINDS:
            return NEVER
        self._check_open()
        self._last_call += 1
        return self._last_call

    def next_ordinal(self, name: str) -> int:
        """The how-manieth use of a name this is, in program order: the last part of an idempotency key."""
        count = self._key_counts.get(name, 0) + 1
        self._key_counts[name] = count
        return count

    def issue_step(self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepCall:
        """Asks for a step's body to run, or to have run."""
        number = self._next_call()
        call = StepCall(number, spec.name, self._driver.waiter(), spec=spec, args=args, kwargs=kwargs)
        if number == NEVER:
            return call
        call.ordinal = self.next_ordinal(spec.name)
        if spec.effect == "s" and number not in self.journal.ended:
            call.args_hash = hash_arguments(args, kwargs, f"step {spec.name}")
        self._calls[number] = call
        started = self.journal.starts.get(number)
        if started is not None:
            self._check_start(call, started)
        if not self.replaying:
            self._dispatch_step(call)
        return call

    def _check_start(self, call: StepCall, started: Start) -> None:
        """A body that may have run already must be asked for again exactly as it was."""
        if (started.name, started.effect) != (call.name, call.spec.effect):
            self.diverge(f"the journal has licensed call {call.number} as step {started.name!r}, the code asks for {call}")
        if call.number not in self.journal.ended and call.args_hash != started.args_hash:
            self.diverge(
                f"{call} has been started with other arguments than the code passes now: "
                "running it again under the same idempotency key could do something else"
            )

    def _dispatch_step(self, call: StepCall) -> None:
        if call.spec.effect == "s" and call.number not in self.journal.starts:
            call.state = "unlicensed"
            self._unlicensed.append(call)
        elif call.retry_due_us is not None and call.retry_due_us > self.estimate_us():
            self._back_off(call, (call.retry_due_us - self.estimate_us()) / 1e6)
        else:
            call.state = "startable"
            self._startable.append(call)

    def start_timer(self, delay_seconds: float, fire: Callable[[], None]) -> Callable[[], None]:
        """Starts a durable timer; returns what gives it up."""
        call = TimerCall(self._next_call(), "timer", None, fire=fire)
        if call.number == NEVER:
            return lambda: None
        self._calls[call.number] = call
        call.started_seq, call.due_us = self._note_timer(call.number, None, delay_seconds)
        return lambda: self.cancel_call(call)

    def issue_sleep(self, delay_seconds: float) -> TimerCall:
        """A timer that a thread waits for."""
        waiter = self._driver.waiter()
        call = TimerCall(self._next_call(), "timer", waiter, fire=lambda: waiter.set_result(None))
        if call.number == NEVER:
            return call
        self._calls[call.number] = call
        call.started_seq, call.due_us = self._note_timer(call.number, None, delay_seconds)
        return call

    def _note_timer(self, number: int, name: str | None, delay_seconds: float) -> tuple[int, int]:
        unit = self._note(number, Kind.TIMER_STARTED, name, json.dumps(delay_seconds), delay_seconds)
        if unit is not None:
            return unit.seq, unit.due_us or 0
        row = self._buffer[-1]
        return row.seq, row.at_us + int(delay_seconds * 1e6)

    def issue_signal(self, name: str, codec: Codec[Any], timeout: timedelta | None) -> SignalCall:
        """Waits for a signal."""
        call = SignalCall(self._next_call(), name, self._driver.waiter(), codec=codec)
        if call.number == NEVER:
            return call
        self._calls[call.number] = call
        if timeout is not None:
            call.started_seq, call.due_us = self._note_timer(call.number, name, max(0.0, timeout.total_seconds()))
        self._ask_wanted = True
        return call

    def issue_child(self, request: ChildRequest, result: Codec[Any], errors: ErrorClasses) -> ChildCall:
        """Starts a child run and waits for its result."""
        call = ChildCall(self._next_call(), request.workflow, self._driver.waiter(), request=request, result=result, errors=errors)
        if call.number == NEVER:
            return call
        self._calls[call.number] = call
        self.has_children = True
        if not self.replaying:
            self._new_children.append(call)
        return call

    def patched(self, patch_id: str) -> bool:
        """Whether the code may take the new side of a change: yes unless this run passed here before the change."""
        if self.replaying:
            self._skip_marks()
            unit = self.journal.peek()
            if unit is None:
                self._go_live()
            elif unit.kind != Kind.PATCHED or unit.name != patch_id:
                return False
        self._note(self._next_call(), Kind.PATCHED, patch_id, None)
        return True

    def set_state(self, text: str) -> None:
        """Records what the run says of itself."""
        self._note(self._next_call(), Kind.STATE_SET, None, text)

    def emit(self, stream: str, text: str) -> None:
        """Records a value of an output stream and has it flushed at once."""
        if self._note(self._next_call(), Kind.EMITTED, stream, text) is None:
            self._host.want_flush(self)

    def cancel_call(self, call: Call) -> None:
        """The code has given up a call: that is recorded, its late result is not."""
        if self.closing or call.state in ("over", "decided") or self._calls.get(call.number) is not call:
            return
        kind = Kind.STEP_ABANDONED if isinstance(call, StepCall) and call.spec.effect == "s" else Kind.CALL_CANCELLED
        self._note(call.number, kind, call.name, None)
        self._drop(call)
        if isinstance(call, StepCall):
            self._running.discard(call.number)
            self._backoff.discard(call.number)
            self._host.stop_body(self, call)
        elif isinstance(call, ChildCall) and call.chain_id and call.request.close_policy == "c":
            self._unwanted_children.append(call.chain_id)

    def _drop(self, call: Call) -> None:
        call.state = "over"
        self._calls.pop(call.number, None)
        for group in (self._unlicensed, self._startable, self._new_children):
            if call in group:
                group.remove(call)  # type: ignore[arg-type]

    # ================================================================ recording

    def _note(self, number: int, kind: str, name: str | None, payload: str | None, delay_seconds: float | None = None) -> Unit | None:
        """Repeats a note of the journal and returns it, or records a new one and returns None."""
        self._check_open()
        if self.replaying:
            self._skip_marks()
            unit = self.journal.peek()
            if unit is None:
                self._go_live()
            elif (unit.call, unit.kind, unit.name) == (number, kind, name):
                self._seq = unit.seq
                return self.journal.take()
            else:
                self.diverge(f"the journal has {unit} here, the code asks for {KIND_NAMES[kind]} {name or ''} as call {number}")
        self._record(number, kind, name, payload, delay_seconds)
        return None

    def _record(self, number: int, kind: str, name: str | None, payload: str | None, delay_seconds: float | None = None) -> Row:
        self._seq += 1
        row = Row(self._seq, number, kind, name, payload, self.estimate_us(), delay_seconds)
        self._buffer.append(row)
        self._buffer_bytes += _size_of(row)
        if len(self._buffer) >= MAX_FLUSH_UNITS or self._buffer_bytes >= MAX_FLUSH_BYTES:
            self._host.want_flush(self)
        return row

    @property
    def oldest_unflushed_us(self) -> int | None:
        """When the oldest unit that is not on its way was recorded."""
        return self._buffer[0].at_us if self._buffer else None

    # ================================================================ divergence

    def diverge(self, message: str) -> NoReturn:
        """The code does not repeat the journal: nothing more is recorded, and the run is held for a person."""
        if self.divergence is None:
            self.divergence = NonDeterminismError(f"run {self.claim.key!r} ({self.claim.workflow}): {message}")
            self._divergence_where = self._driver.where()
        raise Unwind

    def _skip_marks(self, *, only_of_known: bool = False) -> None:
        journal = self.journal
        while (unit := journal.peek()) is not None and unit.kind in MARKS and not (only_of_known and unit.call not in self._calls):
            self._seq = unit.seq
            journal.take()
            call = self._calls.get(unit.call)
            if unit.kind == Kind.ATTEMPT_FAILED:
                if not isinstance(call, StepCall) or call.name != unit.name:
                    self.diverge(f"the journal has {unit}, the code has {call or 'no such call'}")
                call.failed_attempts += 1
                call.retry_seq, call.retry_due_us = unit.seq, unit.due_us
            elif unit.kind == Kind.CHILD_STARTED:
                if not isinstance(call, ChildCall) or call.name != unit.name:
                    self.diverge(f"the journal has {unit}, the code has {call or 'no such call'}")
                call.chain_id = json.loads(unit.payload or "{}")["run_id"]

    def _go_live(self) -> None:
        """Everything recorded has been repeated: from here on the run makes history."""
        self._check_starts()
        self.replaying = False
        for call in list(self._calls.values()):
            if call.state != "pending":
                continue
            if isinstance(call, StepCall):
                self._dispatch_step(call)
            elif isinstance(call, ChildCall) and not call.chain_id:
                self._new_children.append(call)
            else:
                self._ask_wanted = True

    def _check_starts(self) -> None:
        """Every body that may have run must have been asked for again by now: it was, when its licence was written."""
        for start in self.journal.open_starts():
            call = self._calls.get(start.call)
            if not isinstance(call, StepCall):
                self.diverge(f"the journal has licensed call {start.call} as step {start.name!r}, the code has {call or 'no such call'}")

    # ================================================================ release

    def start(self) -> None:
        """Runs the code for the first time in this activation, and then as far as it goes."""
        self._guarded(self._driver.start)
        self.advance()

    def advance(self) -> None:
        """Releases outcomes while there are any, then settles."""
        while not (self._driver.busy or self.locked or self.over or self.divergence or self._driver.done):
            if not self._guarded(self._release_one):
                break
        if self._driver.busy or self.locked or self.over:
            return
        if self.divergence is not None or self._driver.done:
            self._conclude()
        else:
            self._settle()

    def _guarded(self, move: Callable[[], Any]) -> Any:
        """A move that may find the code diverged, in which case it goes no further."""
        try:
            return move()
        except Unwind:
            if self.divergence is None:
                raise
            return None

    def _release_one(self) -> bool:
        if self.replaying and not self._decided:
            self._read_group()
        if self._decided:
            self._release(self._decided.popleft())
            return True
        while self._inbox:
            if self._record_result(self._inbox.popleft()):
                return True
        return False

    def _read_group(self) -> None:
        """Takes the next outcome of the journal, with those that the same answer may have decided; or goes live."""
        self._skip_marks()
        unit = self.journal.peek()
        if unit is None:
            self._go_live()
            return
        if not unit.is_outcome:
            self.diverge(f"the journal has {unit} here, which the code no longer does; {self._standing()}")
        while True:
            self._seq = unit.seq
            self._decided.append(self.journal.take())
            call = self._calls.get(unit.call)
            if call is not None:
                call.state = "decided"
            if not unit.is_answer:
                return
            self._skip_marks(only_of_known=True)
            unit = self.journal.peek()
            if unit is None or not unit.is_answer or (unit.call not in self._calls and unit.call != 0):
                return

    def _standing(self) -> str:
        pending = ", ".join(str(call) for call in self._calls.values()) or "nothing"
        return f"it waits for {pending}"

    def _record_result(self, result: StepResult) -> bool:
        """Gives a body's result its place in the journal and releases it; False if nobody waits for it."""
        call = result.call
        if self._calls.get(call.number) is not call:
            return False
        self._running.discard(call.number)
        if result.delay_seconds is not None:
            self._record_attempt(call, result)
            return False
        value, error, text = self._decode_result(call, result)
        row = self._record(call.number, Kind.STEP_COMPLETED if error is None else Kind.STEP_FAILED, call.name, text)
        self._now_us = row.at_us
        self._deliver(call, value, error)
        return True

    def _record_attempt(self, call: StepCall, result: StepResult) -> None:
        assert result.delay_seconds is not None
        row = self._record(call.number, Kind.ATTEMPT_FAILED, call.name, json.dumps(result.error), result.delay_seconds)
        call.failed_attempts += 1
        call.retry_seq, call.retry_due_us = row.seq, row.at_us + int(result.delay_seconds * 1e6)
        self._back_off(call, result.delay_seconds)

    def _back_off(self, call: StepCall, delay_seconds: float) -> None:
        call.state = "backoff"
        self._backoff.add(call.number)
        self._host.retry_body_later(self, call, delay_seconds)

    def _decode_result(self, call: StepCall, result: StepResult) -> tuple[Any, Exception | None, str]:
        """What the code will see, which is what a replay will: the decoded text."""
        data = result.error
        if result.text is not None:
            try:
                return call.spec.result.decode(result.text, f"the result of step {call.name}"), None, result.text
            except NotStorable as refused:
                data = encode_error(refused, with_traceback=False)
        assert data is not None
        return None, rebuild_error(data, call.spec.errors, call.failed_attempts + 1), json.dumps(data)

    def _release(self, unit: Unit) -> None:
        """Hands an outcome that is in the journal to whoever asked for it."""
        self._now_us = max(unit.at_us, self._now_us or 0)
        if unit.call == 0:
            self._cancel_run(unit)
            return
        call = self._calls.get(unit.call)
        if call is None:
            self.diverge(f"the journal has {unit}, which the code never asked for; {self._standing()}")
        elif unit.kind not in _FITTING[type(call)] or (unit.name is not None and unit.name != call.name):
            self.diverge(f"the journal has {unit}, the code asks for {call}")
        elif isinstance(call, TimerCall):
            self._drop(call)
            call.fire()
            self._driver.resume()
        else:
            value, error = self._decode_unit(call, unit)
            self._deliver(call, value, error)

    def _decode_unit(self, call: Call, unit: Unit) -> tuple[Any, Exception | None]:
        payload = unit.payload if unit.payload is not None else "null"
        if isinstance(call, StepCall):
            if unit.kind == Kind.STEP_FAILED:
                return None, rebuild_error(json.loads(payload), call.spec.errors, call.failed_attempts + 1)
            try:
                return call.spec.result.decode(payload, f"the recorded result of step {call.name}"), None
            except NotStorable as error:
                self.diverge(str(error))
        if isinstance(call, SignalCall):
            if unit.kind == Kind.WAIT_TIMED_OUT:
                return None, TimeoutError(f"no signal {call.name!r} in time")
            try:
                return call.codec.decode(payload, f"the payload of signal {call.name!r}"), None
            except NotStorable as error:
                return None, error
        assert isinstance(call, ChildCall)
        return decode_child(json.loads(payload), call)

    def _deliver(self, call: Call, value: Any, error: Exception | None) -> None:
        self._drop(call)
        if call.waiter is not None and not call.waiter.done():
            if error is None:
                call.waiter.set_result(value)
            else:
                call.waiter.set_exception(error)
        self._driver.resume()

    def _cancel_run(self, unit: Unit) -> None:
        self.cancel_request = json.loads(unit.payload or "{}")
        self._driver.cancel()
        self._driver.resume()

    # ================================================================ the end

    def _conclude(self) -> None:
        """The code has ended, or can no longer be trusted: one last flush. What else was decided is released to nobody."""
        self._decided.clear()
        if self._ending is None and self._hold is None and self._continue_input is None:
            if self.divergence is None:
                self._guarded(self._judge_end)
            if self.divergence is not None:
                detail = {"message": clean(str(self.divergence)), "where": self._divergence_where}
                self._hold = ["stuck", "nondeterminism", self._code_hash, detail, "pgflow"]
        self._host.want_flush(self)

    def _judge_end(self) -> None:
        value, error = self._driver.outcome()
        if self.replaying:
            self._skip_marks()
            unit = self.journal.peek()
            if unit is not None and not (unit.kind == Kind.CONTINUED and isinstance(error, ContinueAsNew)):
                self.diverge(f"the code ends where the journal goes on with {unit}")
            self._check_starts()
            self.replaying = False
        self._unlicensed.clear()
        self._startable.clear()
        self._new_children.clear()
        if isinstance(error, ContinueAsNew):
            self._continue_input = error.input_text
        elif isinstance(error, asyncio.CancelledError):
            why = (self.cancel_request or {}).get("why") or "the workflow cancelled itself"
            self._ending = Ending("cancelled", clean(str(why), 4096), None, None)
        elif error is not None:
            self._ending = Ending("failed", None, None, json.dumps(encode_error(error)))
        else:
            self._ending = self._encode_end(value)

    def _encode_end(self, value: Any) -> Ending:
        what = f"the result of workflow {self.claim.workflow}"
        try:
            text = self._result.encode(value, what)
            self._result.decode(text, what)
        except NotStorable as error:
            return Ending("failed", None, None, json.dumps(encode_error(error, with_traceback=False)))
        return Ending("completed", None, text, None)

    def hold_for(self, reason: str, detail: dict[str, Any]) -> None:
        """Holds the run for a person, as soon as what is on its way has arrived."""
        self._hold = ["stuck", reason, None, detail, "pgflow"]
        self._host.want_flush(self)

    # ================================================================ settling

    def _settle(self) -> None:
        """Nothing is left to release: start what may start, flush what must be durable."""
        if not (self.pausing or self.draining):
            for call in self._startable:
                call.state = "running"
                self._running.add(call.number)
                self._host.start_body(self, call)
            self._startable.clear()
        if self._must_flush():
            self._host.want_flush(self)

    def _must_flush(self) -> bool:
        if self._hold is not None or self._ending is not None:
            return True
        if self.draining:
            return bool(self._buffer)
        if self._ask_wanted or self._unwanted_children:
            return True
        if (self._unlicensed or self._new_children) and not self.pausing:
            return True
        return self.is_idle and self._may_leave()

    @property
    def is_idle(self) -> bool:
        """Whether no body runs and none could start: only the database can bring the run on."""
        if self._running or self._inbox or self._decided:
            return False
        return self.pausing or not (self._unlicensed or self._startable or self._new_children)

    def _may_leave(self) -> bool:
        """Whether an idle run should park now; if something is due soon, a look is arranged instead."""
        if self.pausing:
            return True
        now_us = self.estimate_us()
        soon_us = now_us + LINGER_TIMER_US
        looks = [c.due_us for c in self._calls.values() if isinstance(c, (TimerCall, SignalCall)) and c.due_us and c.due_us < soon_us]
        if self._linger_until_us > now_us:
            looks.append(self._linger_until_us)
        if looks:
            self._host.look_later(self, max(0, min(looks) - now_us) / 1e6 + 0.0002)
            return False
        return not any(isinstance(c, StepCall) and (c.retry_due_us or soon_us) < soon_us for c in self._calls.values())

    def poke(self) -> None:
        """There may be mail, or a timer may be due: look, when the code next stands still."""
        if not (self.over or self.locked):
            self._ask_wanted = True
            self.advance()
        else:
            self._ask_wanted = True

    # ================================================================ bodies

    def step_returned(self, result: StepResult) -> None:
        """A body has come back."""
        self._inbox.append(result)
        self.advance()

    @property
    def is_busy(self) -> bool:
        """Whether its code runs in a thread at this moment."""
        return self._driver.busy

    def thread_stands(self) -> None:
        """The thread of its code has said that it waits, or has ended."""
        self._driver.land()
        self.advance()

    @property
    def ending(self) -> Ending | None:
        """How the code ended, once it has."""
        return self._ending

    @property
    def waits_for_database(self) -> bool:
        """Whether something only the database can bring is waited for."""
        return any(not isinstance(c, StepCall) for c in self._calls.values())

    def hold_refused(self, flush: Flush, message: str) -> bool:
        """The server refused what this flush records: what is durable stays, the run is held for a person.

        Returns False if holding was refused too.
        """
        if self._hold is not None:
            return False
        self._refused = True
        self.inflight = None
        self.locked = False
        self._ending = None
        self._continue_input = None
        self.hold_for("refused", {"message": clean(message), "units": [str(row.kind) for row in flush.rows]})
        return True

    @property
    def bodies(self) -> list[StepCall]:
        """Calls whose bodies run now."""
        return [c for c in self._calls.values() if isinstance(c, StepCall) and c.number in self._running]

    @property
    def is_drained(self) -> bool:
        """Whether nothing of it runs or is on its way: it can be handed back without losing work."""
        return not (self._running or self.inflight or self.locked or self._buffer or self._driver.busy)

    def drain(self) -> None:
        """Starts nothing more; what runs may finish, and is flushed."""
        self.draining = True
        if not self._driver.busy and not self.locked:
            self.advance()

    def wants(self, call: StepCall) -> bool:
        """Whether anybody still waits for this call."""
        return self._calls.get(call.number) is call

    def retry_due(self, call: StepCall) -> None:
        """The wait before the next try of a body is over."""
        if self._calls.get(call.number) is not call or call.state != "backoff" or self.over:
            return
        self._backoff.discard(call.number)
        call.state = "startable"
        self._startable.append(call)
        self.advance()

    @property
    def may_fence(self) -> bool:
        """Whether the next seq is known and everything that was decided before is released."""
        return self.inflight is None and not (self.locked or self._decided or self._driver.busy)

    def begin_fence(self, call: StepCall, text: str) -> Flush | None:
        """A transactional body is done: what its transaction must append, or None if nobody wants it any more.

        The caller has made sure that :attr:`may_fence`. Until ``end_fence`` nothing is released.
        """
        if self.over or self.closing or self._calls.get(call.number) is not call:
            return None
        assert self.may_fence
        self.locked = True
        call.fencing = True
        self._record(call.number, Kind.STEP_COMPLETED, call.name, text)
        self.inflight = self._flush_of_buffer()
        return self.inflight

    def end_fence(self, call: StepCall, flush: Flush, *, committed: bool, at_us: int = 0) -> None:
        """The transaction is over: released if it was committed, forgotten if it was rolled back."""
        self.locked = False
        self.inflight = None
        call.fencing = False
        if committed:
            row = flush.rows[-1]
            self._sync_clock(at_us)
            self._durable_seq = row.seq
            self._running.discard(call.number)
            self._licensed(flush)
            self._decided.append(Unit(row.seq, row.call, row.kind, row.name, row.payload, None, row.at_us, None))
        else:
            self._buffer = flush.rows[:-1] + self._buffer
            self._buffer_bytes = sum(map(_size_of, self._buffer))
            self._unlicensed = flush.starts + self._unlicensed
            self._seq -= 1

    # ================================================================ flushing

    def take_flush(self) -> Flush | None:
        """What is to be committed now; None if nothing is, or the last flush is still on its way."""
        if self.inflight is not None or self.locked or self.over or self._driver.busy or self._decided:
            return None
        if self.divergence is not None or self._refused:  # what the code did after that is nobody's history
            self._buffer, self._unlicensed, self._seq = [], [], self._durable_seq
        flush = self._flush_of_buffer()
        flush.question = self._question(flush)
        if flush.question is None and self._ending is not None:
            flush.ending = self._ending
            flush.has_kin = self.has_children or self.beat or self.claim.has_kin
        if not flush.rows and flush.question is None and flush.ending is None:
            return None
        self.inflight = flush
        self.locked = flush.question is not None
        return flush

    def _flush_of_buffer(self) -> Flush:
        starts = [] if self.pausing or self.draining else self._unlicensed[:MAX_FLUSH_STARTS]
        if starts and not self._buffer:
            first = starts[0]
            self._record(first.number, Kind.STEP_STARTED, first.name, None)
        rows, self._buffer, self._buffer_bytes = self._buffer, [], 0
        if starts:
            self._unlicensed = self._unlicensed[len(starts) :]
        claim = self.claim
        return Flush(self.run_id, claim.token, claim.chain_id, self._seq - len(rows), rows, starts)

    def _question(self, flush: Flush) -> dict[str, Any] | None:
        """What the database is asked together with this flush."""
        question: dict[str, Any] = {
            "run": self.run_id,
            "token": self.claim.token,
            "chain": self.claim.chain_id,
            "seq": flush.last_seq,
        }
        if self._hold is not None:
            return {**question, "hold": self._hold}
        if self._continue_input is not None:
            return {**question, "continue": self._continue_input}
        if self._ending is not None or self.draining:
            return None
        idle = self.is_idle and not flush.starts
        leaving = idle and self._may_leave()
        asked, self._ask_wanted = self._ask_wanted, False
        children = [] if self.pausing else self._new_children
        if not (asked or children or self._unwanted_children or leaving):
            return None
        waits = self._waits()
        if self._unwanted_children:
            question["unwanted"], self._unwanted_children = self._unwanted_children, []
        if children:
            question["children"] = [_child_row(call) for call in children]
            self._new_children = []
        elif self.pausing:
            pass  # held if the request still stands; if not, there may be more to do than to wait
        elif waits:
            question["park"] = leaving
        elif not asked and "unwanted" not in question:
            detail = {"message": "the workflow waits for something that nothing can bring", "where": self._driver.where()}
            return {**question, "hold": ["stuck", "deadlock", None, detail, "pgflow"]}
        return {**question, **waits, "idle": idle, "cancelled": self.cancel_request is not None}

    def _waits(self) -> dict[str, Any]:
        """What only the database can bring, as a question names it."""
        signals, timers, retries, children = [], [], [], []
        for call in self._calls.values():
            if call.state == "decided":
                continue
            if isinstance(call, SignalCall):
                signals.append([call.number, call.name])
                if call.started_seq:
                    timers.append([call.number, call.started_seq, Kind.WAIT_TIMED_OUT])
            elif isinstance(call, TimerCall):
                timers.append([call.number, call.started_seq, Kind.TIMER_FIRED])
            elif isinstance(call, ChildCall):
                children.append(call.number)
            elif isinstance(call, StepCall) and call.state == "backoff":
                retries.append([call.number, call.retry_seq])
        waits = {"signals": signals, "timers": timers, "retries": retries, "child_calls": children}
        return {name: calls for name, calls in waits.items() if calls}

    def flush_committed(self, flush: Flush, answer: dict[str, Any] | None) -> None:
        """A flush is durable; the answer to its question, if it had one."""
        assert self.inflight is flush
        self.inflight = None
        self.locked = False
        self._durable_seq = flush.last_seq
        if flush.ending is not None:
            self.over = True
            return
        self._licensed(flush)
        if answer is not None:
            self._take_answer(answer)
        self.advance()

    def _licensed(self, flush: Flush) -> None:
        for call in flush.starts:
            if call.state == "unlicensed":
                call.state = "startable"
                self._startable.append(call)

    def _take_answer(self, answer: dict[str, Any]) -> None:
        at_us = answer["at"]
        self._sync_clock(at_us)
        self.pausing = bool(answer.get("pause"))
        for seq, number, kind, name, payload in answer["units"]:
            unit = Unit(seq, number, kind, name, payload, None, at_us, None)
            self._seq = self._durable_seq = seq
            call = self._calls.get(number)
            if isinstance(call, ChildCall):
                self._linger_until_us = self.estimate_us() + LINGER_CHILDREN_US
            if kind == Kind.CHILD_STARTED:
                assert isinstance(call, ChildCall)
                call.chain_id = json.loads(payload)["run_id"]
                continue
            if call is not None:
                call.state = "decided"
            self._decided.append(unit)
        self.over = answer["place"] != "leased"

    def close(self) -> None:
        """Takes the code apart: the run goes on elsewhere or later, or has ended."""
        self.closing = True
        self.over = True
        self._driver.close()


def _size_of(row: Row) -> int:
    return 100 + len(row.payload or "")


def _child_row(call: ChildCall) -> list[Any]:
    r = call.request
    return [
        call.number, r.workflow, r.queue, r.input, r.key, r.priority, r.run_at_us, r.timeout_seconds, r.labels, r.metadata, r.close_policy,
    ]


def decode_child(data: dict[str, Any], call: ChildCall) -> tuple[Any, Exception | None]:
    """The result of a child run, or the error that awaiting it raises."""
    status = data["status"]
    if status == "completed":
        try:
            return call.result.decode(json.dumps(data["output"]), f"the result of child {call.name}"), None
        except NotStorable as error:
            return None, error
    if status == "refused":
        return None, KeyConflict(data["error"]["message"])
    if status == "cancelled":
        return None, RunCancelled(f"child {call.name} was cancelled: {data.get('reason')}")
    failed = RunFailed(f"child {call.name} failed: {data['error'].get('message')}")
    failed.__cause__ = rebuild_error(data["error"], call.errors)
    return None, failed


_FITTING: dict[type[Call], frozenset[str]] = {
    StepCall: frozenset({Kind.STEP_COMPLETED, Kind.STEP_FAILED}),
    TimerCall: frozenset({Kind.TIMER_FIRED}),
    SignalCall: frozenset({Kind.SIGNAL_RECEIVED, Kind.WAIT_TIMED_OUT}),
    ChildCall: frozenset({Kind.CHILD_FINISHED}),
}
