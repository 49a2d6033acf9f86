"""One activation of a run: the list of its parts, and the loop that drives them.

An execution alternates between two moves. *Release*: while the code waits, pass it exactly one
outcome - from the journal on replay, else from an answer of the database or a body - and run the
code until it waits again. *Settle*: when nothing is left to release, start the bodies that may
start and request a flush of what must become durable.

Each part owns its state and refers to earlier parts only. The parts for kinds of calls are made on
first use, because most runs need few of them.

==========  ========================================================================================
line        the worker
clock       time
buffer      recorded units that are not sent yet, and the sequence number of the last unit
agenda      the open calls, and the lists they are in
code        the driver
history     the journal, the position of the replay, and a divergence
values      recorded values, encoded by the app's codec
end         how it ends
keys        idempotency keys
steps, timers, signals, events, updates, children, gates, locks, notes, budgets, ledger,
obligations calls of the code, by kind; the ledger is of effects
release     outcomes that are decided but not released; its renewal recreates lost results
flushing    traffic with the database: flushes, questions and fences
==========  ========================================================================================

Only the buffer assigns sequence numbers, at release. While the next one is not known, nothing is
released (`Flushing.locked`).

One answer of the database may decide several calls. Their units are adjacent in the journal before
any of them is released, and later notes of the code follow all of them. A replay therefore takes
adjacent units as one group too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.budgets import Budgets
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import Call, ChildCall, SignalCall, StepCall, StepSpec
from pgflow._engine.children import Children
from pgflow._engine.clock import Clock
from pgflow._engine.code import Code
from pgflow._engine.drivers import Driver
from pgflow._engine.effects import EffectCall, Leave
from pgflow._engine.end import End
from pgflow._engine.events import Events
from pgflow._engine.flush import Ending, Flush
from pgflow._engine.flushing import Flushing
from pgflow._engine.gates import GateCall, Gates
from pgflow._engine.history import History
from pgflow._engine.host import Host, Line, StepResult
from pgflow._engine.keys import Keys, Resting
from pgflow._engine.ledger import Ledger
from pgflow._engine.locking import Locks
from pgflow._engine.locks import HoldCall, LockCall
from pgflow._engine.loop import Unwind
from pgflow._engine.notes import Notes
from pgflow._engine.obligations import Obligations
from pgflow._engine.release import Release
from pgflow._engine.signals import Signals
from pgflow._engine.steps import Steps
from pgflow._engine.timers import Timers
from pgflow._engine.updates import UpdateCall, Updates
from pgflow._engine.values import Values
from pgflow._model.claims import Claim, Offer
from pgflow._model.codecs import ANYTHING, Codec
from pgflow._model.kinds import ClosePolicy, Kind, StepKind
from pgflow._model.protocol import Answer
from pgflow.errors import NonDeterminismError


@mypyc_attr(allow_interpreted_subclasses=True)
class Execution:
    """Owns its parts, and whether it is over."""

    def __init__(
        self,
        claim: Claim,
        host: Host[Any],
        make_driver: Callable[[Execution], Driver],
        result: Codec[Any] = ANYTHING,
        code_hash: str = "",
        *,
        is_undoing: bool = False,
    ) -> None:
        self.claim = claim
        self.run_id = claim.run_id
        self.line = line = Line(host, self)
        self.clock = clock = Clock(claim, host)
        self.buffer = buffer = Buffer(claim, clock, line)
        self.agenda = agenda = Agenda(claim, line)
        self.code = code = Code(agenda)
        self.history = history = History(
            claim, buffer, agenda, code, self._go_live, is_undoing=is_undoing
        )
        self.values = values = Values(claim, history)
        self.end = end = End(claim, agenda, code, history, values, result, code_hash)
        self.release = release = Release(
            claim, clock, buffer, agenda, code, history, values, end, self._find_ledger
        )
        self.flushing = Flushing(claim, line, clock, buffer, agenda, code, history, end, release)
        self._is_undoing = is_undoing
        self._keys: Keys | None = None
        self._steps: Steps | None = None
        self._timers: Timers | None = None
        self._signals: Signals | None = None
        self._updates: Updates | None = None
        self._children: Children | None = None
        self._gates: Gates | None = None
        self._events: Events | None = None
        self._locks: Locks | None = None
        self._notes: Notes | None = None
        self._budgets: Budgets | None = None
        self._ledger: Ledger | None = None
        self._obligations: Obligations | None = None
        self.over = False
        self.beat = False
        """True if a step reported progress: the end of the run deletes those rows."""
        code.drive_by(make_driver(self))

    # ============================================ parts that are made on first use

    @property
    def keys(self) -> Keys:
        """Idempotency keys."""
        if self._keys is None:
            self._keys = Keys(self.claim, self.history.journal)
        return self._keys

    @property
    def steps(self) -> Steps:
        """Steps."""
        if self._steps is None:
            parts = self.clock, self.agenda, self.code, self.history, self.values, self.keys
            self._steps = Steps(self.claim, *parts, is_undoing=self._is_undoing)
        return self._steps

    @property
    def timers(self) -> Timers:
        """Timers."""
        if self._timers is None:
            self._timers = Timers(self.buffer, self.agenda, self.code, self.history)
        return self._timers

    @property
    def signals(self) -> Signals:
        """Waits for signals."""
        if self._signals is None:
            self._signals = Signals(self.agenda, self.code, self.history, self.timers)
        return self._signals

    @property
    def updates(self) -> Updates:
        """Updates."""
        if self._updates is None:
            parts = self.buffer, self.agenda, self.code, self.history, self.values
            self._updates = Updates(*parts, self.timers)
        return self._updates

    @property
    def events(self) -> Events:
        """Waits for events."""
        if self._events is None:
            self._events = Events(self.agenda, self.code, self.history, self.timers)
        return self._events

    @property
    def children(self) -> Children:
        """Children."""
        if self._children is None:
            self._children = Children(self.claim, self.agenda, self.code, self.history, self.values)
        return self._children

    @property
    def gates(self) -> Gates:
        """Gates."""
        if self._gates is None:
            parts = self.agenda, self.code, self.history, self.values, self.keys
            self._gates = Gates(self.claim, *parts)
        return self._gates

    @property
    def locks(self) -> Locks:
        """Locks."""
        if self._locks is None:
            self._locks = Locks(self.agenda, self.code, self.history, self.timers)
        return self._locks

    @property
    def notes(self) -> Notes:
        """Notes of the code."""
        if self._notes is None:
            self._notes = Notes(self.claim, self.clock, self.buffer, self.history, self.values)
        return self._notes

    @property
    def budgets(self) -> Budgets:
        """Spending of the code."""
        if self._budgets is None:
            self._budgets = Budgets(self.buffer, self.agenda, self.history)
        return self._budgets

    @property
    def ledger(self) -> Ledger:
        """Effects."""
        if self._ledger is None:
            parts = self.clock, self.buffer, self.agenda, self.code, self.history, self.values
            own = self.keys, self.steps
            self._ledger = Ledger(self.claim, *parts, *own, is_undoing=self._is_undoing)
        return self._ledger

    @property
    def obligations(self) -> Obligations:
        """Obligations."""
        if self._obligations is None:
            parts = self.buffer, self.agenda, self.history, self.values, self.keys
            self._obligations = Obligations(self.claim, *parts)
        return self._obligations

    def _find_ledger(self) -> Ledger:
        return self.ledger

    @property
    def _has_children(self) -> bool:
        """True if the run has had children, its own or from a dropped part of its journal."""
        heritage = self.claim.heritage
        return (self._children is not None and self._children.were_any) or (
            heritage is not None and bool(heritage.children)
        )

    # ================================================================ releasing

    def start(self) -> None:
        """Run the code for the first time in this activation, then as far as it gets."""
        self._guarded(self.code.driver.start)
        self.advance()

    def advance(self) -> None:
        """Alternate between releasing outcomes and settling until neither makes progress."""
        release, history, agenda, code = self.release, self.history, self.agenda, self.code
        flushing = self.flushing
        while True:
            try:
                while release.decided or agenda.inbox or history.replaying:
                    if (
                        code.driver.busy
                        or flushing.locked
                        or self.over
                        or history.divergence
                        or (code.driver.done and self._is_finished())
                        or not release.release_one()
                    ):
                        break
            except Unwind:
                if history.divergence is None:
                    raise
            if code.driver.busy or flushing.locked or self.over:
                return
            if history.divergence is not None or (code.driver.done and self._is_finished()):
                self._conclude()
                return
            if not self._go_idle():
                return

    def _guarded(self, move: Callable[[], Any]) -> Any:
        """Make a move, and return None if it found a divergence."""
        try:
            return move()
        except Unwind:
            if self.history.divergence is None:
                raise
            return None

    def _is_finished(self) -> bool:
        """Return True if the ended code left nothing open: no effect, and no obligation that must
        be closed before the run completes.
        """
        if self.history.replaying and not self.code.has_ended:
            self._guarded(self.history.skip_marks)  # they record what was intended
        if not self.agenda.owes and (self._is_undoing or not self.end.awaits_discharge):
            return True
        self.code.end()
        return False

    def _go_live(self) -> None:
        """Continue the open calls after the replay."""
        self.release.record_renewed()
        self.agenda.leave_past()
        for call in list(self.agenda.open.values()):
            if call.state == "pending":
                self._bring_on(call)
        if self.agenda.accepted:
            self.ledger.go_live()

    def _bring_on(self, call: Call) -> None:
        """Pass a call to the part for its kind."""
        if isinstance(call, EffectCall):
            self.ledger.bring_on(call)
        elif isinstance(call, StepCall):
            self.steps.bring_on(call)
        elif isinstance(call, ChildCall):
            self.children.bring_on(call)
        elif isinstance(call, SignalCall):
            self.signals.bring_on(call)
        elif isinstance(call, UpdateCall):
            self.updates.bring_on(call)
        elif isinstance(call, GateCall):
            self.gates.bring_on(call)
        elif isinstance(call, (LockCall, HoldCall)):
            self.locks.bring_on(call)

    def _conclude(self) -> None:
        """Request the last flush, after the code has ended or diverged. Other decided outcomes are
        dropped.
        """
        self.release.forget()
        if not self.end.is_known:
            if self.history.divergence is None:
                self._guarded(self.end.judge)
            if self.history.divergence is not None:
                self.end.hold_diverged()
            else:
                self.release.record_renewed()
        self.line.host.want_flush(self)

    # ================================================================ settling

    def _go_idle(self) -> bool:
        """Start bodies and request a flush, when nothing is left to release. Return True if there
        is something to release after all: a message, an update or a timer.
        """
        flushing = self.flushing
        is_held_back = flushing.is_held_back
        offer = self.claim.offer
        if offer is not None and not is_held_back and self.release.take_offer():
            if offer.call is not None:
                flushing.linger()
            return True
        if self._updates is not None and not (is_held_back or self.history.replaying):
            taken = self._updates.take()
            if taken is not None:
                self.release.decide(taken)
                return True
        if self._timers is not None and not is_held_back and self.release.take_timer():
            return True
        if self.history.replaying and self.release.is_renewing:
            # The replay must finish before the run can ask the database.
            is_held_back = flushing.draining
        if self.agenda.startable:
            self.agenda.start_bodies(is_held_back=is_held_back)
        if self.release.misfits and self.end.hold is None and flushing.is_idle and not is_held_back:
            self.release.hold_misfit()
        if flushing.must_flush():
            self.line.host.want_flush(self)
        return False

    # ================================================================ calls by the worker

    def poke(self) -> None:
        """Ask the database for mail and due timers when the code next waits."""
        self.agenda.look()
        if not (self.over or self.flushing.locked):
            self.advance()

    def look_due(self) -> None:
        """Handle a scheduled look, unless events since have postponed it. A pending answer replaces
        a look.
        """
        if self.over or self.flushing.locked:
            return
        is_busy = self.code.driver.busy
        if not (is_busy or self.flushing.is_held_back) and self.release.take_timer():
            self.advance()
        elif is_busy or not self.flushing.put_off():
            self.poke()

    def hear(self, offer: Offer) -> None:
        """Set the mail as of a commit that arrived. The code takes it when it next waits, or the
        database is asked.
        """
        self.claim.offer = offer
        if not (self.over or self.flushing.locked):
            self.advance()
        if self._has_offer():
            self.poke()

    def _has_offer(self) -> bool:
        """Return True if there is an offer. In a method, because mypy narrows the attribute after
        the assignment.
        """
        return self.claim.offer is not None

    def step_returned(self, result: StepResult) -> None:
        """Receive the result of a body."""
        self.agenda.receive(result)
        self.advance()

    def retry_due(self, call: StepCall) -> None:
        """Start the next try of a call after its wait."""
        if not self.agenda.is_open(call) or call.state != "backoff" or self.over:
            return
        if isinstance(call, EffectCall):
            due_us = call.retry_due_us or 0
            if due_us > self.clock.estimate_us() + 20_000:  # this timer is of an earlier wait
                return
            self.ledger.do(call, call.come_due())
        else:
            self.steps.do(call, call.come_due())
        self.advance()

    def thread_stands(self) -> None:
        """Continue after the code's thread reported that it waits or has ended."""
        self.code.driver.land()
        self.advance()

    def drain(self) -> None:
        """Start nothing more; let running bodies finish and flush their results."""
        self.flushing.drain()
        if not self.code.driver.busy and not self.flushing.locked:
            self.advance()

    def hold_for(self, reason: str, detail: dict[str, Any], code_hash: str | None = None) -> None:
        """Hold the run for a person, or a worker with other code, once no flush is under way."""
        self.end.hold_for(reason, detail, code_hash)
        self.line.host.want_flush(self)

    def lacks_code(self, message: str) -> NoReturn:
        """Hold the run for a worker that has the code this one lacks, and raise Unwind."""
        self.hold_for("definition", {"message": message}, self.end.code_hash)
        raise Unwind

    def close(self) -> None:
        """Unwind the code: the run continues elsewhere or later, or has ended."""
        self.over = True
        self.code.close()
        self.agenda.close()
        self.history.close()
        self.release.close()
        self.line.cut()

    # ================================================================ flushes

    def take_flush(self) -> Flush | None:
        """Return the flush to commit now; see :meth:`Flushing.take`."""
        flush = None if self.over else self.flushing.take()
        if flush is not None and flush.ending is not None:
            flush.has_kin = self.beat or self.claim.has_kin or self._has_children
            flush.has_gates = self._gates is not None
            flush.has_locks = self.flushing.may_have_locks
        if flush is not None and self._gates is not None and self.end.continue_input is not None:
            self._gates.close_with(flush)
        if flush is not None and self._events is not None:
            self._events.close_with(flush)
        if flush is not None and self._updates is not None:
            if flush.question is not None:
                self._updates.forget()
            if flush.ending is not None or self.end.continue_input is not None:
                self._updates.close_with(flush)
        return flush

    def flush_committed(
        self,
        flush: Flush,
        answer: Answer | None,
        seconds: float = 0.0,
        server: Any = None,
    ) -> None:
        """Handle a committed flush.

        Args:
            flush: The flush.
            answer: The answer to its question, if it had one.
            seconds: Time of the acknowledgement, on the host's own clock.
            server: Server that acknowledged it; None if unknown.
        """
        self.flushing.committed(flush, seconds, server)
        if self.code.closing:
            # Unwound meanwhile: the run's next worker reads these units from the journal.
            return
        if flush.ending is not None:
            self.over = True
            return
        if flush.starts:
            self.agenda.licensed(flush.starts)
        if answer is not None:
            self.flushing.take_answer(answer)
            if self._gates is not None:
                self._gates.put_off(answer["at"])
            if self._updates is not None and "offers" in answer:
                self._updates.show(answer["offers"])
            self.over = answer["place"] != "leased"
        self.advance()

    def begin_fence(self, call: StepCall, text: str) -> Flush | None:
        """Begin the fence of a finished transactional body; see :meth:`Flushing.begin_fence`."""
        return None if self.over else self.flushing.begin_fence(call, text)

    # ================================================================ state, for the worker

    @property
    def replaying(self) -> bool:
        """True while the code repeats the journal."""
        return self.history.replaying

    @property
    def closing(self) -> bool:
        """True once its code is being unwound."""
        return self.code.closing

    @property
    def divergence(self) -> NonDeterminismError | None:
        """Error of code that does not repeat the journal, or None."""
        return self.history.divergence

    @property
    def cancel_request(self) -> dict[str, Any] | None:
        """Request to cancel the run, with author and reason; None if there is none."""
        return self.end.cancel_request

    @property
    def ending(self) -> Ending | None:
        """End of the code: status, reason, output and error; None while it runs."""
        return self.end.ending

    @property
    def is_busy(self) -> bool:
        """True while its code runs in a thread."""
        return self.code.driver.busy

    @property
    def waits_for_database(self) -> bool:
        """True if it waits for something that only the database can bring."""
        return self.agenda.waits_for_database

    @property
    def bodies(self) -> list[StepCall]:
        """Calls whose bodies run now."""
        return self.agenda.bodies

    @property
    def is_drained(self) -> bool:
        """True if nothing runs or is being sent, so that handing the run back loses no work."""
        flushing = self.flushing
        is_flushed = not (flushing.inflight or flushing.locked or self.buffer.rows)
        return is_flushed and not (self.agenda.running or self.code.driver.busy)

    @property
    def oldest_unflushed_us(self) -> int | None:
        """Time when the oldest unsent unit was recorded, in microseconds; None if there is none."""
        rows = self.buffer.rows
        return rows[0].at_us if rows else None

    def wants(self, call: StepCall) -> bool:
        """Return True if this call is still open."""
        return self.agenda.is_open(call)

    def estimate_us(self) -> int:
        """Return the estimated database clock in microseconds."""
        return self.clock.estimate_us()

    def time_seconds(self) -> float:
        """Return the event loop's time: seconds from the run's creation to the last outcome."""
        return self.clock.seconds()

    def start_timer(self, delay_seconds: float, fire: Callable[[], None]) -> Callable[[], None]:
        """Start a durable timer for the event loop; return the function that cancels it."""
        return partial(self.cancel_call, self.timers.start(delay_seconds, fire))

    # ============================================================== calls by the code

    def issue_effect(
        self,
        spec: StepSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        request: str,
        rests_on: Resting | None,
        compensates: str | None = None,
        *,
        takes_back: EffectCall | None = None,
        expected: str | None = None,
        notice: dict[str, Any] | None = None,
        is_undo: bool = False,
        leave: Leave | None = None,
    ) -> EffectCall:
        """Request an effect; see :meth:`Ledger.issue`."""
        return self.ledger.issue(
            spec,
            args,
            kwargs,
            request,
            rests_on,
            compensates,
            takes_back=takes_back,
            expected=expected,
            notice=notice,
            is_undo=is_undo,
            leave=leave,
        )

    def cancel_call(self, call: Call) -> None:
        """Give up a call. That is recorded; its late result is not."""
        if self.code.closing or call.state in ("over", "decided") or not self.agenda.is_open(call):
            return
        if isinstance(call, EffectCall):
            self.history.next_noted()  # reads the marks that record an intent
            if call.attempts > 0:
                self.ledger.give_up(call)
                return
        elif isinstance(call, GateCall):
            self.history.next_noted()  # reads the mark that it was asked
        kind = (
            Kind.STEP_ABANDONED
            if isinstance(call, StepCall) and call.spec.effect == StepKind.STEP
            else Kind.CALL_CANCELLED
        )
        if isinstance(call, StepCall) and call.charges is not None:
            self.buffer.record_charges(call)
        noted = self.history.note(call.number, kind, self._name_in_journal(call), None)
        self.agenda.drop(call)
        if isinstance(call, GateCall) and call.asked_seq and noted is None:
            self.buffer.book()
        if isinstance(call, StepCall):
            self.agenda.stop(call)
        elif (
            isinstance(call, ChildCall)
            and call.chain_id
            and call.request.close_policy == ClosePolicy.CANCEL
        ):
            self.agenda.unwant(call)
        elif isinstance(call, LockCall):
            self.locks.give_up(call.number)

    def _name_in_journal(self, call: Call) -> str:
        """Return the name under which the journal's next note knows a renamed call."""
        unit = self.history.next_noted() if call.aliases else None
        return (
            unit.name
            if unit is not None and unit.call == call.number and unit.name in call.aliases
            else call.name
        )
