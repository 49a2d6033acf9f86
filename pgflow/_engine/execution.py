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

from collections.abc import Callable, Collection
from typing import Any, NoReturn

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import Call, ChildCall, StepCall, Waits
from pgflow._engine.drivers import ClosedDriver, Driver
from pgflow._engine.effects import EffectCall
from pgflow._engine.flush import MAX_FLUSH_CHILDREN, MAX_FLUSH_STARTS, Ending, Flush
from pgflow._engine.history import size_of
from pgflow._engine.host import Host, StepResult
from pgflow._engine.loop import Unwind
from pgflow._engine.questions import child_row, intent_of, owed_detail, stuck
from pgflow._engine.release import Releases
from pgflow._model.claims import Claim
from pgflow._model.codecs import ANYTHING, Codec
from pgflow._model.kinds import Kind
from pgflow._model.units import EFFECT_MARKS, Unit

LINGER_TIMER_US = 1_000_000
"""A timer or a retry due within this is waited for in memory: parking would cost more than it saves."""

LINGER_CHILDREN_US = 50_000
"""Microseconds that a parent waits in memory for children that have just started, or for more results after one."""

LINGER_CHILDREN_US_A_UNIT = 50
"""Further microseconds for each unit of its journal: about the time of a replay, should it park."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Execution(Releases):
    """See the module."""

    def __init__(
        self,
        claim: Claim,
        host: Host[Execution],
        make_driver: Callable[[Execution], Driver],
        result: Codec[Any] = ANYTHING,
        code_hash: str = "",
    ) -> None:
        super().__init__(claim, host, result, code_hash)
        self.pausing = False
        self.draining = False
        self.beat = False  # whether a step has reported progress: rows that the end of the run removes
        self.inflight: Flush | None = None
        self._durable_seq = claim.last_seq
        self.told_at = 0.0
        """Time of the host's own clock at which it last heard how much is durable."""
        self.told_by: Any = None
        """Server that said so; None if it is not known."""
        self._linger_until_us = 0
        self._fenced_text = ""  # what the transaction that has the turn came to
        self._has_looked = not claim.has_mail  # a cancel that waits must not come too late for a body that gets the run stuck again
        self._driver = make_driver(self)

    # ================================================================ the host

    def _want_flush(self) -> None:
        self._host.want_flush(self)

    def _stop_body(self, call: StepCall) -> None:
        self._host.stop_body(self, call)

    def _retry_later(self, call: StepCall, delay_seconds: float) -> None:
        self._host.retry_body_later(self, call, delay_seconds)

    # ================================================================ settling

    def hold_for(self, reason: str, detail: dict[str, Any], code_hash: str | None = None) -> None:
        """Holds the run for a person, as soon as what is on its way has arrived; or for a worker with other code than this."""
        self._hold = stuck(reason, detail, code_hash)
        self._want_flush()

    def lacks_code(self, message: str) -> NoReturn:
        """The code at hand does not have what the run needs: it is held for a worker that does."""
        self.hold_for("definition", {"message": message}, self._code_hash)
        raise Unwind

    def _go_idle(self) -> None:
        """Nothing is left to release: start what may start, flush what must be durable."""
        is_held_back = self.pausing or self.draining or not self._has_looked
        if not is_held_back and self._take_offer():
            self.advance()
            return
        if self.renewing is not None:  # the past must be repeated before anything can be looked at
            is_held_back = self.draining
        startable, self._startable = self._startable, []
        for call in startable:
            if is_held_back and not self._may_start(call):
                self._startable.append(call)
            else:
                call.state = "running"
                self._running.add(call.number)
                self._host.start_body(self, call)
        if self._misfits and self._hold is None and self.is_idle and not is_held_back:
            self._hold_misfit()
        if self._must_flush():
            self._want_flush()

    @staticmethod
    def _may_start(call: StepCall) -> bool:
        """Return True for a body that starts even while the run pauses or is handed back: a licensed effect that never began would look
        unknown.
        """
        return isinstance(call, EffectCall) and call.is_acting

    def _must_flush(self) -> bool:
        if self.renewing is not None:
            return False
        if self._hold is not None or self._ending is not None:
            return True
        if self.draining:
            return bool(self._buffer)
        if self._ask_wanted or self._unwanted_children:
            return True
        if (self._unlicensed or self._new_children or self._new_effects) and not self.pausing:
            return True
        return self.is_idle and self._may_leave()

    @property
    def durable_seq(self) -> int:
        """The last unit that was acknowledged."""
        return self._durable_seq

    @property
    def is_idle(self) -> bool:
        """True if no body runs and none could start: only the database can bring the run on."""
        if self._running or self._inbox or self._decided:
            return False
        return self.pausing or not (self._unlicensed or self._startable or self._new_children or self._new_effects)

    def _may_leave(self) -> bool:
        """Return True if an idle run should park now; if something is due soon, arrange a look instead."""
        if self.pausing:
            return True
        now_us = self.estimate_us()
        soon_us = now_us + LINGER_TIMER_US
        looks = [due_us for c in self._beside_children() if (due_us := c.looked_at_us) and due_us < soon_us]
        if self._linger_until_us > now_us and self._host.has_room():
            looks.append(self._linger_until_us)
        if looks:
            self._host.look_later(self, max(0, min(looks) - now_us) / 1e6 + 0.0002)
            return False
        return not any(c.is_tried_before(soon_us) for c in self._beside_children())

    def _beside_children(self) -> Collection[Call]:
        """The open calls, without children if there is nothing else."""
        return self._calls.values() if len(self._calls) > len(self._open_children) else ()

    def poke(self) -> None:
        """There may be mail, or a timer may be due: look, when the code next stands still."""
        self._ask_wanted = True
        if not (self.over or self.locked):
            self.advance()

    # ================================================================ bodies

    def step_returned(self, result: StepResult) -> None:
        """A body has come back."""
        self._inbox.append(result)
        self.advance()

    @property
    def is_busy(self) -> bool:
        """True while its code runs in a thread."""
        return self._driver.busy

    def thread_stands(self) -> None:
        """The thread of its code has said that it waits, or has ended."""
        self._driver.land()
        self.advance()

    @property
    def ending(self) -> Ending | None:
        """End of the code: status, reason, output and error; None while it runs."""
        return self._ending

    @property
    def waits_for_database(self) -> bool:
        """True if it waits for something that only the database can bring."""
        return bool(self._accepted) or any(c.waits_for_database for c in self._calls.values())

    def hold_instead_of(self, flush: Flush, detail: dict[str, Any]) -> Flush:
        """Return a flush that holds the run for a person, in place of one that the server refuses; durable units stay.

        Nothing is changed by it before :meth:`refused` says that it was committed.
        """
        units = [str(row.kind) for row in flush.rows]
        held = Flush(self.run_id, flush.token, flush.chain_id, flush.expected_seq, [])
        held.question = {**self._address(held), "hold": stuck("refused", {**detail, "units": units})}
        return held

    def refused(self, held: Flush) -> None:
        """The run was held by this instead of going on: what its code did since is nobody's history."""
        self.inflight = held
        self.locked = True
        self._buffer, self._unlicensed, self._taken, self._returned, self._seq = [], [], [], [], held.last_seq

    @property
    def bodies(self) -> list[StepCall]:
        """Calls whose bodies run now."""
        return [c for c in self._calls.values() if isinstance(c, StepCall) and c.number in self._running]

    @property
    def is_drained(self) -> bool:
        """True if nothing of it runs or is on its way: it can be handed back without losing work."""
        return not (self._running or self.inflight or self.locked or self._buffer or self._driver.busy)

    def drain(self) -> None:
        """Starts nothing more; what runs may finish, and is flushed."""
        self.draining = True
        if not self._driver.busy and not self.locked:
            self.advance()

    def wants(self, call: StepCall) -> bool:
        """Return True if anybody still waits for this call."""
        return self._calls.get(call.number) is call

    def retry_due(self, call: StepCall) -> None:
        """The wait before the next try of a body is over."""
        if self._calls.get(call.number) is not call or call.state != "backoff" or self.over:
            return
        if isinstance(call, EffectCall) and (call.retry_due_us or 0) > self.estimate_us() + 20_000:  # the timer of a wait before this one
            return
        self._do(call, call.come_due())
        self.advance()

    @property
    def may_fence(self) -> bool:
        """True if the next seq is known and everything that was decided before is released.

        And nothing is to be booked: a transaction may be older than the row that is to change, which its snapshot has not.
        """
        return self.inflight is None and not (
            self.locked or self._decided or self._taken or self._returned or self._has_ledger_rows or self._driver.busy
        )

    def begin_fence(self, call: StepCall, text: str) -> Flush | None:
        """A transactional body is done: what its transaction must append, or None if nobody wants it any more.

        The caller has made sure that :attr:`may_fence`. Until ``end_fence`` nothing is released.
        """
        if self.over or self.closing or self._calls.get(call.number) is not call:
            return None
        assert self.may_fence
        self.locked = True
        call.fencing = True
        emitted = self._record_emitted(call)
        self._fenced_text = text
        self._record(call.number, Kind.STEP_COMPLETED, call.name, call.stored or text, key=call.key or str(call.ordinal))
        self.inflight = self._flush_of_buffer()
        self.inflight.own_rows = emitted + 1
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
            self._decided.append(Unit(row.seq, row.call, row.kind, row.name, self._fenced_text, None, row.at_us, None))
        else:
            self._buffer = flush.rows[: -flush.own_rows] + self._buffer
            self._buffer_bytes = sum(map(size_of, self._buffer))
            self._unlicensed = flush.starts + self._unlicensed
            self._seq -= flush.own_rows

    # ================================================================ flushing

    def take_flush(self) -> Flush | None:
        """Return the flush to commit now; None if there is nothing to commit, or the last flush is still on its way."""
        if self.inflight is not None or self.locked or self.over or self._driver.busy or self._decided:
            return None
        if self.renewing is not None and self.divergence is None:
            return None
        is_held_early = self._hold is not None and self.replaying  # before its code has come to the end of the journal
        if self.divergence is not None or is_held_early:  # what the code did after that is nobody's history
            self._buffer, self._unlicensed, self._taken, self._returned, self._seq = [], [], [], [], self._durable_seq
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
        rows, self._buffer = self._buffer, []
        size_bytes, self._buffer_bytes = self._buffer_bytes, 0
        if starts:
            self._unlicensed = self._unlicensed[len(starts) :]
        claim = self.claim
        has_ledger, self._has_ledger_rows = self._has_ledger_rows, False
        taken, self._taken = self._taken, []
        returned, self._returned = self._returned, []
        return Flush(
            self.run_id, claim.token, claim.chain_id, self._seq - len(rows), rows, starts, has_ledger=has_ledger, taken=taken,
            returned=returned, size_bytes=size_bytes,
        )

    def _question(self, flush: Flush) -> dict[str, Any] | None:
        """Return the question that goes to the database with this flush; None if there is nothing to ask."""
        if self._hold is not None:
            misfits = {"refused": [[m.name, m.error, self._code_hash] for m in self._misfits.values()]} if self._misfits else {}
            return {**self._address(flush), "hold": self._hold, **misfits}
        if self._continue_input is not None:
            handed_on = {"saga": self._handed_on} if self._handed_on else {}
            of_children = {"of_children": self._of_children} if self._of_children else {}
            cancel = {"cancel": self._late_cancel} if self._late_cancel is not None else {}
            return {**self._address(flush), "continue": self._continue_input, **handed_on, **of_children, **cancel}
        if self._ending is not None or self.draining:
            return None
        idle = self.is_idle and not flush.starts
        leaving = idle and self._may_leave()
        asked, self._ask_wanted = self._ask_wanted, False
        children = [] if self.pausing else self._new_children[:MAX_FLUSH_CHILDREN]
        effects = [] if self.pausing else self._new_effects
        if not (asked or children or effects or self._unwanted_children or leaving):
            return None
        question = self._address(flush)
        self.claim.offer = None  # the answer may take it
        waits = self._waits()
        if waits.keys() == {"open_effects"} and (owed := [c for c in self._calls.values() if c.state == "owed"]):
            question["stuck"] = stuck("effect", owed_detail(owed))
        if self._unwanted_children:
            question["unwanted"], self._unwanted_children = self._unwanted_children, []
        if effects:
            question["effects"] = [intent_of(call) for call in effects]
            for call in effects:
                call.state = "pending"
            self._new_effects = []
        if children:
            question["children"] = [child_row(call) for call in children]
            self._new_children = self._new_children[len(children) :]
        elif waits and not (self.pausing or effects):  # a pause holds, if it still stands; if not, there may be more to do than to wait
            question["park"] = leaving
        elif not (self.pausing or asked or effects or "unwanted" in question):
            detail = {"message": "the workflow waits for something that nothing can bring", "where": self._driver.where()}
            return {**question, "hold": stuck("deadlock", detail)}
        return {**question, **waits, "idle": idle, "cancelled": self.cancel_request is not None}

    def _waits(self) -> dict[str, Any]:
        """Return the open waits that only the database can end."""
        waits = Waits(self._accepted)
        for call in self._beside_children():
            if call.state not in ("decided", "misfit"):
                call.wait(waits)
        return waits.in_question([child.number for child in self._open_children.values() if child.state != "decided"])

    def _address(self, flush: Flush) -> dict[str, Any]:
        """Return the beginning of every question: run, token, chain and last seq."""
        return {"run": self.run_id, "token": self.claim.token, "chain": self.claim.chain_id, "seq": flush.last_seq}

    def flush_committed(self, flush: Flush, answer: dict[str, Any] | None) -> None:
        """A flush is durable; the answer to its question, if it had one."""
        assert self.inflight is flush
        self.inflight = None
        self.locked = False
        self._durable_seq = flush.last_seq
        if self.closing:  # it was taken apart meanwhile: whoever has the run next reads this in the journal
            return
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
        self._has_looked = True
        self._sync_clock(at_us)
        self.pausing = bool(answer.get("pause"))
        has_children = False
        for seq, number, kind, name, payload, *due_us in answer["units"]:
            unit = Unit(seq, number, kind, name, payload, None, at_us, due_us[0] if due_us else None)
            self._seq = self._durable_seq = seq
            if kind in EFFECT_MARKS:
                self._take_live_mark(unit)
                continue
            call = self._calls.get(number)
            if isinstance(call, ChildCall):
                has_children = True
            if kind == Kind.CHILD_STARTED:
                assert isinstance(call, ChildCall)
                call.note_start(unit)
                if self._is_start(unit):
                    self._decided.append(unit)
                continue
            if call is not None:
                call.state = "decided"
            self._decided.append(unit)
        if has_children:
            self._linger_until_us = self.estimate_us() + LINGER_CHILDREN_US + self._seq * LINGER_CHILDREN_US_A_UNIT
        for number, version, stale in answer.get("refused") or ():
            self._refuse_effect(number, version, stale)
        self.over = answer["place"] != "leased"

    def close(self) -> None:
        """Takes the code apart: the run goes on elsewhere or later, or has ended."""
        self.closing = True
        self.over = True
        self._driver.close()
        if not self._driver.busy:
            self._driver = ClosedDriver()
