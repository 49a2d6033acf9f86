"""Flushes, the questions they carry, the answers, and fences.

One flush is under way at a time. Between the fence of a transactional step and its acknowledgement,
or while the database answers a question, the next sequence numbers are not known, so nothing is
released (`locked`). A transactional step fences only after everything decided before it is released
and the code waits, so its unit never separates the units of one answer.

A question lists the run's open waits and its requests: children, leave for effects, a hold, the
next generation, or to park. The units of the answer go to :mod:`pgflow._engine.release`.
"""

from __future__ import annotations

from typing import Any

from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import ChildCall, StepCall
from pgflow._engine.clock import Clock
from pgflow._engine.code import Code
from pgflow._engine.effects import EffectCall
from pgflow._engine.end import End
from pgflow._engine.flush import Flush
from pgflow._engine.history import History
from pgflow._engine.host import Line
from pgflow._engine.ledger import Ledger
from pgflow._engine.parts import Parts
from pgflow._engine.questions import (
    address_of,
    admission_of,
    child_row,
    deadlock,
    intent_of,
    owed_detail,
    refusals,
    stuck,
)
from pgflow._engine.release import Release
from pgflow._model.budgets import Spent
from pgflow._model.protocol import Answer, Question, QuestionPart
from pgflow._model.units import Unit, new_unit

LINGER_TIMER_US = 1_000_000
"""The run waits in memory for a timer or a retry due within this time, because parking would cost
more.
"""

LINGER_CHILDREN_US_A_UNIT = 50
"""Microseconds per unit of its journal that a parent waits in memory for its children, beyond the
host's patience: about the time that a replay would take after parking.
"""


class Flushing:
    """Owns the traffic between the run and the database: the flush in flight, the durable seq and
    the server that acknowledged it, and whether the run is locked, pauses or drains.
    """

    def __init__(self, parts: Parts) -> None:
        self._claim = claim = parts.claim
        self._line = parts[Line]
        self._clock = parts[Clock]
        self._buffer = parts[Buffer]
        self._agenda = parts[Agenda]
        self._code = parts[Code]
        self._history = parts[History]
        self._end = parts[End]
        self._release = parts[Release]
        self._in_flushes = parts.in_flushes
        self.beat = False
        """True if a step reported progress: the end of the run deletes those rows."""
        self.inflight: Flush | None = None
        """The flush or transaction under way."""
        self.locked = False
        """True while the next sequence number is not known, or the code may not begin yet."""
        self.pausing = False
        """True while a pause waits for the run to become idle."""
        self.draining = False
        """True once nothing more is started."""
        # Held back from the start: a pending cancel must come before a body that would get the run
        # stuck again.
        self.is_held_back = claim.has_mail
        """True if nothing new may begin: the run pauses, is handed back, or has mail that the
        database has not been asked for yet.
        """
        self.durable_seq = claim.last_seq
        """The last acknowledged unit."""
        self.last_acknowledged_at = self._line.monotonic_ns() / 1e9
        """Time of the last acknowledgement, on the host's own clock; at first that of the claim."""
        self.last_acknowledged_by: Any = None
        """Server of the last acknowledgement; None if unknown."""
        self._asked: tuple[list[ChildCall], list[EffectCall], list[StepCall], list[int]] | None = (
            None
        )
        """Children, effects, admissions and unwanted chains of the pending question, if the run has
        locks.
        """
        self._asks_no_more = False
        self._lingers_from_us = 0
        self._fenced_text = ""  # result of the fencing transaction
        self._fenced_spending: tuple[list[Spent] | None, int] = (None, 0)  # its spending

    # ================================================================ calls by the host

    def lock(self) -> None:
        """Keep the code from beginning."""
        self.locked = True

    def unlock(self) -> None:
        """Let the code begin."""
        self.locked = False

    def drain(self) -> None:
        """Start and ask nothing more; send what there is, then leave the run."""
        self.draining = self.is_held_back = True

    def note_beat(self) -> None:
        """Note that a step has reported progress."""
        self.beat = True

    def go_on(self) -> None:
        """Go on under a new claim. The last acknowledgement stays the one before the run parked: a
        server that may lack it is asked for that unit.
        """
        self.is_held_back = self._claim.has_mail
        self.pausing = self.locked = False
        self._lingers_from_us = 0

    def acknowledged_at(self, seconds: float) -> None:
        """Set the time of the last acknowledgement, on the host's own clock."""
        self.last_acknowledged_at = seconds

    def acknowledged_from(self, server: Any) -> None:
        """Set the server that acknowledges for the run; None if unknown."""
        self.last_acknowledged_by = server

    def ask_no_more(self) -> None:
        """Ask nothing more, since the database can bring nothing: send only units, or a hold."""
        self._asks_no_more = True

    # ================================================================ when to flush

    def must_flush(self) -> bool:
        """Return True if an idle run has something to record or to ask now."""
        if self._history.replaying and self._release.is_renewing:
            return False
        end, agenda = self._end, self._agenda
        if end.hold is not None or end.ending is not None:
            return True
        if self.draining:
            return bool(self._buffer.rows)
        if agenda.wants_look or agenda.unwanted or agenda.over:
            return True
        wants = (
            agenda.unlicensed or agenda.new_children or agenda.new_effects or agenda.new_admissions
        )
        if wants and not self.pausing:
            return True
        if agenda.running or not self.is_idle:
            return False
        look_us = self._next_look_in_us()
        if look_us is None or self.pausing:
            return self._may_leave()
        self._look_later(look_us)
        return False

    @property
    def is_idle(self) -> bool:
        """True if no body runs or could start: only the database can continue the run."""
        agenda = self._agenda
        if agenda.running or agenda.inbox or self._release.decided:
            return False
        return self.pausing or not (
            agenda.unlicensed
            or agenda.startable
            or agenda.new_children
            or agenda.new_effects
            or agenda.new_admissions
        )

    def _may_leave(self) -> bool:
        """Return True if an idle run without a scheduled look should park now: no retry is due
        soon.
        """
        if self.pausing:
            return True
        soon_us = self._clock.estimate_us() + LINGER_TIMER_US
        if len(self._agenda.open) > len(self._agenda.children):
            for call in self._agenda.open.values():
                if call.retry_due_us is not None and call.retry_due_us < soon_us:
                    return False
        return True

    def _next_look_in_us(self) -> int | None:
        """Return the microseconds until an idle run that waits in memory asks the database;
        negative if that is overdue, None if it does not wait in memory.
        """
        now_us = self._clock.estimate_us()
        first_us = soon_us = now_us + LINGER_TIMER_US
        if len(self._agenda.open) > len(self._agenda.children):
            for call in self._agenda.open.values():
                if call.due_us and call.due_us < first_us:
                    first_us = call.due_us
        has_look = first_us < soon_us
        if self._lingers_from_us and (patience_us := self._line.patience_us()):
            until_us = self._lingers_from_us + patience_us
            if until_us > now_us and (until_us < first_us or not has_look):
                first_us, has_look = until_us, True
        return first_us - now_us if has_look else None

    def put_off(self) -> bool:
        """Schedule a later look if none is due now; return True if it did."""
        look_us = self._next_look_in_us()
        if look_us is None or look_us <= 0:
            return False
        self._look_later(look_us)
        return True

    def linger(self) -> None:
        """Wait in memory for more news of children, since news often comes in groups."""
        self._lingers_from_us = (
            self._clock.estimate_us() + self._buffer.seq * LINGER_CHILDREN_US_A_UNIT
        )

    def _look_later(self, look_us: int | None) -> None:
        """Schedule a look.

        Do not call it when a question is sent: the look would fire before the answer, and calls
        that the code makes upon the answer would ask at once, before they are due.
        """
        if look_us is not None:
            self._line.look_later(max(0, look_us) / 1e6 + 0.0002)

    # ================================================================ flushes

    def take(self) -> Flush | None:
        """Return the flush to commit now; None if there is nothing to commit, or the last flush is
        still under way. Do not call it once the execution is over.
        """
        end, history, release = self._end, self._history, self._release
        if self.inflight or self.locked or self._code.driver.busy or release.decided:
            return None
        divergence = history.divergence
        if history.replaying and divergence is None and release.is_renewing:
            return None
        # The hold came before the code reached the end of the journal.
        is_held_early = end.hold is not None and history.replaying
        if divergence is not None or is_held_early:
            # Later units of the code must not be recorded.
            self._discard(self.durable_seq)
        may_start = not (self.pausing or self.draining)
        flush = self._buffer.pack(
            self._agenda.take_licences() if may_start and self._agenda.unlicensed else []
        )
        if end.ending is not None and end.hold is None:
            claim = self._claim
            flush.ending = end.ending
            flush.has_locks = self.may_have_locks
            flush.has_kin = (
                self.beat
                or claim.has_kin
                or (claim.heritage is not None and bool(claim.heritage.children))
            )
            if end.ending.status != "completed" and self._agenda.leaves_obligations:
                flush.has_obligations = True
        else:
            flush.question = self._question(flush)
            if flush.question is not None:
                self.locked = True
            elif not (flush.rows or self._agenda.over):
                return None
        if self._agenda.has_drawn or flush.has_draws:
            flush.over = self._over(flush)
        for part in self._in_flushes:
            part.add_to(flush)
        self.inflight = flush
        return flush

    def _over(self, flush: Flush) -> list[int | None] | None:
        """Return the calls whose reservations end with this flush; None if it leaves the pools
        alone. A run may end during a replay.
        """
        question = flush.question
        if flush.ending is not None or (question is not None and "continue" in question):
            return [None]
        if self._history.replaying:
            return None
        over: list[int | None] = [*self._agenda.take_over()]
        asks = question is not None and "admits" in question
        return over if over or flush.has_draws or asks else None

    def _discard(self, seq: int) -> None:
        self._agenda.forget_over()
        self._buffer.discard(seq)
        self._agenda.forget_licences()

    def committed(self, flush: Flush, seconds: float, server: Any) -> None:
        """Mark the flush in flight as durable, by this acknowledgement."""
        assert self.inflight is flush
        self.last_acknowledged_at, self.last_acknowledged_by = seconds, server
        self.inflight = None
        self.locked = False
        self.durable_seq = flush.last_seq

    def hold_instead_of(self, flush: Flush, detail: dict[str, Any]) -> Flush:
        """Return a flush that holds the run for a person, in place of one that the server refuses.
        Durable units stay.

        The execution changes only with :meth:`refused`, once the hold is committed.
        """
        units = [str(row.kind) for row in flush.rows]
        seq = flush.expected_seq
        held = Flush(self._claim.run_id, flush.token, flush.chain_id, seq, seq, [])
        hold = stuck("refused", {**detail, "units": units})
        held.question = {**address_of(held), "hold": hold}
        return held

    def refused(self, held: Flush) -> None:
        """Drop what the code did since: the run was held instead."""
        self.inflight = held
        self.locked = True
        self._discard(held.last_seq)

    @property
    def may_have_locks(self) -> bool:
        """True if the run may hold a lock: its own, or one of an earlier generation."""
        return self._agenda.has_locks or self._claim.generation > 1

    # ================================================================ questions and their answers

    def _question(  # noqa: PLR0912 - a branch for each part of the question
        self, flush: Flush
    ) -> Question | None:
        """Return the question to send with this flush; None if there is nothing to ask."""
        end, agenda = self._end, self._agenda
        if end.hold is not None:
            misfits = self._release.misfits.values()
            return {**address_of(flush), "hold": end.hold, **refusals(misfits, end.code_hash)}
        if end.continue_input is not None:
            locks: QuestionPart = {"locks": []} if self.may_have_locks else {}
            return {**address_of(flush), **end.in_question(), **locks}
        if self.draining or self._asks_no_more:
            return None
        idle = not flush.starts and self.is_idle
        look_us = self._next_look_in_us() if idle else None
        leaving = idle and (look_us is None or self.pausing) and self._may_leave()
        wants = not self.pausing and (
            agenda.new_children or agenda.new_effects or agenda.new_admissions
        )
        # In the block of a lock, each flush with units checks that the lock still counts.
        checks = agenda.holds and flush.rows
        if not (agenda.wants_look or wants or agenda.unwanted or leaving or checks):
            if idle and not flush.rows:
                self._look_later(look_us)
            return None
        asked = agenda.take_look()
        children = agenda.take_children() if agenda.new_children and not self.pausing else []
        effects = agenda.take_effects() if agenda.new_effects and not self.pausing else []
        admissions = agenda.take_admissions() if agenda.new_admissions and not self.pausing else []
        question = address_of(flush)
        self._claim.offer = None  # the answer may take it
        waits = agenda.waits()
        if waits.keys() == {"open_effects"} and (
            owed := [c for c in agenda.effects.values() if c.state == "owed"]
        ):
            question["stuck"] = stuck("effect", owed_detail(owed))
        unwanted = agenda.take_unwanted() if agenda.unwanted else []
        if unwanted:
            question["unwanted"] = unwanted
        if agenda.has_locks:
            question = {**question, **agenda.take_locks()}
            self._asked = children, effects, admissions, unwanted
        if effects:
            question["effects"] = [intent_of(call) for call in effects]
        if admissions:
            question["admits"] = [admission_of(call) for call in admissions]
        if children:
            question["children"] = [child_row(call) for call in children]
        elif waits and not (self.pausing or effects or admissions):
            # Do not park during a pause: if it is still in force it holds the run, and if not there
            # may be more to do than to wait.
            question["park"] = leaving
        elif leaving and not (self.pausing or asked or effects or admissions or unwanted):
            return {**question, "hold": deadlock(self._code.driver.where())}
        return {**question, **waits, "idle": idle, "cancelled": end.cancel_request is not None}

    def take_answer(self, answer: Answer) -> None:
        """Apply the database's answer to a question. Its units are released next."""
        at_us = answer["at"]
        self._clock.sync(at_us)
        self.pausing = answer["pause"]
        self.is_held_back = self.pausing or self.draining
        has_children = False
        decide, children = self._release.decide, self._agenda.children
        for seq, number, kind, name, payload, due_us in answer["units"]:
            self.durable_seq = seq
            decide(new_unit((seq, number, kind, name, payload, None, at_us, due_us)))
            has_children = has_children or number in children
        if answer["units"]:
            self._buffer.go_to(self.durable_seq)
        if has_children:
            self.linger()
        if answer.get("postponed"):
            assert self._asked is not None
            self._agenda.ask_again(*self._asked)
        terms = answer.get("terms") or {}
        for number, version, stale in answer.get("refused") or ():
            ledger: Ledger = self._line.execution.parts[Ledger]
            ledger.refuse(number, version, stale, terms.get(str(number)))

    # ================================================================ fences

    @property
    def may_fence(self) -> bool:
        """True if the next seq is known and everything decided before is released.

        The buffer must not change a ledger either, because the transaction's snapshot may be older
        than the row to change.
        """
        return self.inflight is None and not (
            self.locked
            or self._release.decided
            or self._buffer.has_mail
            or self._buffer.has_ledger
            or self._code.driver.busy
            or self._buffer.has_draws
        )

    def begin_fence(self, call: StepCall, text: str) -> Flush | None:
        """Return what the transaction of a finished body must append; None if the call is not open
        any more.

        Check :attr:`may_fence` first. Until ``end_fence`` nothing is released.
        """
        if self._code.closing or not self._agenda.is_open(call):
            return None
        assert self.may_fence
        self.locked = True
        call.fencing = True
        beside = self._buffer.record_emitted(call)
        self._fenced_spending = call.charges, call.began_us
        if call.charges is not None:
            beside += self._buffer.record_charges(call)
        self._fenced_text = text
        self._buffer.record(
            call.number,
            call.spec.completes_as,
            call.name,
            call.stored or text,
            key=call.key or str(call.ordinal),
        )
        may_start = not (self.pausing or self.draining)
        self.inflight = self._buffer.pack(
            self._agenda.take_licences() if may_start and self._agenda.unlicensed else []
        )
        self.inflight.own_rows = beside + 1
        if call.admitted is not None:
            self.inflight.over = [call.number]
        elif self.inflight.has_draws:
            self.inflight.over = []
        return self.inflight

    def end_fence(self, call: StepCall, flush: Flush, *, committed: bool, at_us: int) -> None:
        """End the fence: release the outcome if the transaction committed, else drop it."""
        self.locked = False
        self.inflight = None
        call.fencing = False
        if committed:
            row = flush.rows[-1]
            self._clock.sync(at_us)
            self.durable_seq = row.seq
            self._agenda.end_admission(call)
            self._agenda.returned(call)
            self._agenda.licensed(flush.starts)
            self._release.decide_fenced(
                Unit(
                    row.seq, row.call, row.kind, row.name, self._fenced_text, None, row.at_us, None
                )
            )
        else:
            self._buffer.put_back(flush)
            self._agenda.put_back(flush.starts)
            call.charges, call.began_us = self._fenced_spending  # spent, although rolled back
