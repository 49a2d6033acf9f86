"""One activation of a run: the list of its parts, and the loop that drives them.

An execution alternates between two moves. *Release*: while the code waits, pass it exactly one
outcome - from the journal on replay, else from an answer of the database or a body - and run the
code until it waits again. *Settle*: when nothing is left to release, start the bodies that may
start and request a flush of what must become durable.

Each part owns its state (:mod:`pgflow._engine.parts`). Every run has these:

========  ==========================================================================================
line      the worker
clock     time
buffer    recorded units that are not sent yet, and the sequence number of the last unit
agenda    the open calls, and the lists they are in
code      the driver
history   the journal, the position of the replay, and a divergence
values    recorded values, encoded by the app's codec
end       how it ends
release   outcomes that are decided but not released
flushing  traffic with the database: flushes, questions and fences
========  ==========================================================================================

The others are made on first use: one for each kind of call (:mod:`pgflow._engine.kinds`), `notes`,
`budgets` and `obligations` for what the code records, `keys` for idempotency keys, and `renewal`,
which recreates lost results.

Only the buffer assigns sequence numbers, at release. While the next one is not known, nothing is
released (`Flushing.locked`).

One answer of the database may decide several calls. Their units are adjacent in the journal before
any of them is released, and later notes of the code follow all of them. A replay therefore takes
adjacent units as one group too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, NoReturn

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import Call, ChildCall, SignalCall, StepCall, TimerCall
from pgflow._engine.clock import Clock
from pgflow._engine.code import Code
from pgflow._engine.drivers import Driver
from pgflow._engine.end import End
from pgflow._engine.flush import Flush
from pgflow._engine.flushing import Flushing
from pgflow._engine.history import History
from pgflow._engine.host import Host, Line, StepResult
from pgflow._engine.kind import KindOfCall
from pgflow._engine.kinds import KINDS
from pgflow._engine.ledger import Ledger
from pgflow._engine.loop import Unwind
from pgflow._engine.parts import Parts
from pgflow._engine.release import Release
from pgflow._engine.renewal import Renewal
from pgflow._engine.timers import Timers
from pgflow._engine.updates import Updates
from pgflow._engine.values import Values
from pgflow._model.claims import Claim, Offer
from pgflow._model.codecs import ANYTHING, Codec
from pgflow._model.protocol import Answer

RESTFUL: Final = frozenset({TimerCall, SignalCall, ChildCall})
"""Kinds of calls with which a parked run may wait in memory."""


@dataclass(eq=False)
class Program:
    """Code that an execution runs.

    Attributes:
        make_driver: Makes the driver of the code for an execution.
        result: Type of its result.
        code_hash: Hash of the code; empty if it does not matter.
        may_rest: True if its code may stay in memory while the run is parked: no thread and no
            interceptor waits with it, and no Ref has to be checked before it goes on.
    """

    make_driver: Callable[[Execution], Driver]
    result: Codec[Any] = ANYTHING
    code_hash: str = ""
    may_rest: bool = False


@mypyc_attr(allow_interpreted_subclasses=True)
class Execution:
    """Owns its parts, and whether it is over."""

    is_undoing: ClassVar[bool] = False
    """True if the code takes effects of a dropped part back, instead of the workflow."""

    def __init__(self, claim: Claim, host: Host[Any], program: Program) -> None:
        self.claim = claim
        self.run_id = claim.run_id
        self.parts = parts = Parts(
            claim, program.result, program.code_hash, is_undoing=self.is_undoing
        )
        # Made here, in the order of their needs, since each run has them.
        self.line = parts[Line] = Line(host, self)
        self.clock = parts[Clock] = Clock(parts)
        self.buffer = parts[Buffer] = Buffer(parts)
        self.agenda = parts[Agenda] = Agenda(parts)
        self.code = parts[Code] = Code(parts)
        self.history = parts[History] = History(parts)
        self.values = parts[Values] = Values(parts)
        self.end = parts[End] = End(parts)
        self.release = parts[Release] = Release(parts)
        self.flushing = parts[Flushing] = Flushing(parts)
        self.time_seconds = self.clock.seconds
        """Returns the event loop's time: seconds from the run's creation to the last outcome."""
        self.over = False
        self._may_rest = program.may_rest and not self.is_undoing
        self.code.drive_by(program.make_driver(self))

    def kind_of(self, call: Call) -> KindOfCall[Any]:
        """Return the part for a call's kind."""
        return self.parts[KINDS[type(call)]]

    # ================================================================ releasing

    def start(self) -> None:
        """Run the code for the first time in this activation, then as far as it gets."""
        try:
            self.code.driver.start()
        except Unwind:
            if self.history.divergence is None:
                raise
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

    def _is_finished(self) -> bool:
        """Return True if the ended code left nothing open: no effect, and no obligation that must
        be closed before the run completes.
        """
        agenda = self.agenda
        if self.history.replaying and not self.code.has_ended:
            try:
                self.history.skip_marks()  # they record what was intended
            except Unwind:
                if self.history.divergence is None:
                    raise
        if not ((agenda.accepted or agenda.effects) and agenda.owes) and (
            self.is_undoing or not (agenda.owed and self.end.awaits_discharge)
        ):
            return True
        self.code.end()
        return False

    def go_live(self) -> None:
        """Continue the open calls after the replay."""
        if Renewal in self.parts:
            self.parts[Renewal].record()
        self.agenda.leave_past()
        for call in list(self.agenda.open.values()):
            if call.state == "pending":
                self.kind_of(call).bring_on(call)
        if self.agenda.accepted:
            self.parts[Ledger].go_live()

    def _conclude(self) -> None:
        """Request the last flush, after the code has ended or diverged. Other decided outcomes are
        dropped.
        """
        if self.release.decided:
            self.release.forget()
        end = self.end
        if end.hold is None and end.ending is None and end.continue_input is None:
            try:
                # In the try: behind it, the compiler takes the divergence to be None for good.
                if self.history.divergence is None:
                    self.end.judge()
            except Unwind:
                if self.history.divergence is None:
                    raise
            if self.history.divergence is not None:
                self.end.hold_diverged()
            elif Renewal in self.parts:
                self.parts[Renewal].record()
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
        if Updates in self.parts and not (is_held_back or self.history.replaying):
            taken = self.parts[Updates].take()
            if taken is not None:
                self.release.decide(taken)
                return True
        if self.agenda.timers and not is_held_back and self.release.take_timer():
            return True
        if self.history.replaying and self.release.is_renewing:
            # The replay must finish before the run can ask the database.
            is_held_back = flushing.draining
        if self.agenda.startable:
            self.agenda.start_bodies(is_held_back=is_held_back)
        if self.release.misfits and self.end.hold is None and flushing.is_idle and not is_held_back:
            self.release.hold_misfit()
        # A licence is all that most steps need, and nothing can keep it from being written.
        if (
            self.agenda.unlicensed and not (is_held_back or self.history.replaying)
        ) or flushing.must_flush():
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

    def offer(self, offer: Offer) -> None:
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
        if self.kind_of(call).retry(call):
            self.advance()

    def thread_waits(self) -> None:
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

    def hold_for_missing_code(self, message: str) -> NoReturn:
        """Hold the run for a worker that has the code this one lacks, and raise Unwind."""
        self.hold_for("definition", {"message": message}, self.end.code_hash)
        raise Unwind

    @property
    def may_rest(self) -> bool:
        """True if a parked run can go on from here when it is claimed again: it waits for timers,
        signals and children alone, and the ledgers, locks and pools know nothing of it.
        """
        claim, agenda = self.claim, self.agenda
        return (
            self._may_rest
            and claim.heritage is None
            and claim.pool is None
            and not (claim.suspect or claim.saga or claim.lost)
            and not (agenda.accepted or agenda.has_locks or agenda.owed or agenda.has_drawn)
            and not (
                self.release.misfits
                or self.release.decided
                or self.history.replaying
                or Updates in self.parts
            )
            and self.end.cancel_request is None
            and {*map(type, agenda.open.values())} <= RESTFUL
        )

    def fits(self, claim: Claim) -> bool:
        """Return True if nothing was added to the journal while the run was parked."""
        return (
            claim.last_seq == self.flushing.durable_seq == self.buffer.seq
            and claim.generation == self.claim.generation
            and not (claim.suspect or claim.heritage or claim.pool or claim.saga)
        )

    def go_on(self, claim: Claim) -> None:
        """Go on under a new claim: what a replay of the journal would come to is in memory."""
        self.claim.renew(claim)
        self.over = False
        self.clock.sync(claim.now_us)
        self.flushing.go_on()
        if claim.has_mail:
            self.agenda.look()
        self.go_live()
        self.advance()

    def close(self) -> None:
        """Unwind the code: the run continues elsewhere or later, or has ended."""
        self.over = True
        self.code.close()
        if self.agenda.open:
            self.agenda.close()
        self.line.cut()

    # ================================================================ flushes

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
            for part in self.parts.in_flushes:
                part.read_answer(answer)
            self.over = answer["place"] != "leased"
        self.advance()

    def begin_fence(self, call: StepCall, text: str) -> Flush | None:
        """Begin the fence of a finished transactional body; see :meth:`Flushing.begin_fence`."""
        return None if self.over else self.flushing.begin_fence(call, text)

    # ================================================================ state, for the worker

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

    def start_timer(self, delay_seconds: float, fire: Callable[[], None]) -> Callable[[], None]:
        """Start a durable timer for the event loop; return the function that cancels it."""
        return partial(self.cancel_call, self.parts[Timers].start(delay_seconds, fire))

    # ============================================================== calls by the code

    def cancel_call(self, call: Call) -> None:
        """Give up a call. That is recorded; its late result is not."""
        if self.code.closing or call.state in ("over", "decided") or not self.agenda.is_open(call):
            return
        self.kind_of(call).give_up(call)
