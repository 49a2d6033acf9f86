"""One activation of a run: the table of contents of its parts, and the loop that drives them.

The life of an execution is a loop of two moves. *Release*: while the code stands still, exactly one
outcome is handed to it - from the journal on replay, else from what the database decided or a body
brought back - and the code runs until it stands still again. *Settle*: when there is nothing left
to release, bodies that may start are started, and what must become durable is asked to be flushed.

Each part owns its state, and refers to those before it. Those of the kinds of calls are made when
the code first asks for one: most runs need few of them.

==========  ========================================================================================
line        the worker
clock       time
buffer      what is recorded and not on its way, and the sequence number of the last unit
agenda      the open calls, and the lists that they stand in
code        the driver
history     the journal, as far as it is repeated, and how the code has parted from it
values      texts of values, sealed by the app's codec
renewal     lost results, made anew
end         how it ends
keys        idempotency keys
steps, timers, signals, children, notes, ledger
            what the code asks for, by kind; the ledger is of effects
release     what is decided and not released yet
==========  ========================================================================================

Sequence numbers are given at release, by the buffer alone. While a transactional step is between
its fence and its acknowledgement, or a question is with the database, the next numbers are not
known, so nothing is released (`locked`).

One answer of the database may decide several calls: their units stand side by side in the journal
before any of them is released, and what the code notes in between comes after them all. A replay
therefore takes such neighbours as one group too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import Call, ChildCall, SignalCall, StepCall, StepSpec, TimerCall
from pgflow._engine.children import Children
from pgflow._engine.clock import Clock
from pgflow._engine.code import Code
from pgflow._engine.drivers import Driver
from pgflow._engine.effects import EffectCall
from pgflow._engine.end import End
from pgflow._engine.flush import Ending, Flush
from pgflow._engine.history import History
from pgflow._engine.host import Host, Line, StepResult
from pgflow._engine.keys import Keys, Resting
from pgflow._engine.ledger import Ledger
from pgflow._engine.loop import Unwind
from pgflow._engine.notes import Notes
from pgflow._engine.questions import child_row, intent_of, owed_detail, stuck
from pgflow._engine.release import Release
from pgflow._engine.renewal import Renewal
from pgflow._engine.signals import Signals
from pgflow._engine.steps import Steps
from pgflow._engine.timers import Timers
from pgflow._engine.values import Values
from pgflow._model.claims import Claim
from pgflow._model.codecs import ANYTHING, Codec
from pgflow._model.kinds import ClosePolicy, Kind, StepKind
from pgflow._model.units import Unit
from pgflow.errors import NonDeterminismError

LINGER_TIMER_US = 1_000_000
"""A timer or a retry due within this is waited for in memory:
parking would cost more than it saves.
"""

LINGER_CHILDREN_US = 50_000
"""Microseconds that a parent waits in memory for children that have just started, or for more
results after one.
"""

LINGER_CHILDREN_US_A_UNIT = 50
"""Further microseconds for each unit of its journal: about the time of a replay, should it park."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Execution:
    """Owns what is under way between it and the worker: the flush in flight, and whether it pauses,
    drains or is over.
    """

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
        self.history = history = History(claim, buffer, agenda, code, is_undoing=is_undoing)
        self.values = values = Values(claim, history)
        self.renewal = renewal = Renewal(claim, buffer, agenda, code, history, values)
        self.end = end = End(claim, agenda, code, history, values, renewal, result, code_hash)
        self.release = Release(
            claim, clock, buffer, agenda, code, history, values, renewal, end, self._find_ledger
        )
        self._is_undoing = is_undoing
        self._keys: Keys | None = None
        self._steps: Steps | None = None
        self._timers: Timers | None = None
        self._signals: Signals | None = None
        self._children: Children | None = None
        self._notes: Notes | None = None
        self._ledger: Ledger | None = None
        self.over = False
        self.locked = False
        self.pausing = False
        self.draining = False
        self.beat = False
        """True if a step has reported progress: rows that the end of the run removes."""
        self.inflight: Flush | None = None
        self.durable_seq = claim.last_seq
        """The last unit that was acknowledged."""
        self.told_at = 0.0
        """Time of the host's own clock at which it last heard how much is durable."""
        self.told_by: Any = None
        """Server that said so; None if it is not known."""
        self._linger_until_us = 0
        self._fenced_text = ""  # what the transaction that has the turn came to
        # A cancel that waits must not come too late for a body that gets the run stuck again.
        self._has_looked = not claim.has_mail
        history.once_live(self._go_live)
        code.drive_by(make_driver(self))

    # ============================================ parts that are made when they are first asked for

    @property
    def keys(self) -> Keys:
        """Idempotency keys."""
        if self._keys is None:
            self._keys = Keys(self.claim, self.history.journal)
        return self._keys

    @property
    def steps(self) -> Steps:
        """Steps that the code asks for."""
        if self._steps is None:
            parts = self.clock, self.agenda, self.code, self.history, self.values, self.keys
            self._steps = Steps(self.claim, *parts, is_undoing=self._is_undoing)
        return self._steps

    @property
    def timers(self) -> Timers:
        """Timers that the code starts."""
        if self._timers is None:
            self._timers = Timers(self.buffer, self.agenda, self.code, self.history)
        return self._timers

    @property
    def signals(self) -> Signals:
        """Signals that the code waits for."""
        if self._signals is None:
            self._signals = Signals(self.agenda, self.code, self.history, self.timers)
        return self._signals

    @property
    def children(self) -> Children:
        """Children that the code starts."""
        if self._children is None:
            self._children = Children(self.claim, self.agenda, self.code, self.history, self.values)
        return self._children

    @property
    def notes(self) -> Notes:
        """Notes that the code makes."""
        if self._notes is None:
            self._notes = Notes(self.claim, self.clock, self.buffer, self.history, self.values)
        return self._notes

    @property
    def ledger(self) -> Ledger:
        """Effects that the code asks for."""
        if self._ledger is None:
            parts = (
                self.clock,
                self.buffer,
                self.agenda,
                self.code,
                self.history,
                self.values,
                self.keys,
                self.steps,
            )
            self._ledger = Ledger(self.claim, *parts, is_undoing=self._is_undoing)
        return self._ledger

    def _find_ledger(self) -> Ledger:
        return self.ledger

    @property
    def _has_children(self) -> bool:
        """True if the run has had children, of its own or of a dropped part of its journal."""
        heritage = self.claim.heritage
        return (self._children is not None and self._children.were_any) or (
            heritage is not None and bool(heritage.children)
        )

    # ================================================================ releasing

    def start(self) -> None:
        """Runs the code for the first time in this activation, and then as far as it goes."""
        self._guarded(self.code.driver.start)
        self.advance()

    def advance(self) -> None:
        """Releases outcomes while there are any, then goes idle."""
        release, history, agenda, code = self.release, self.history, self.agenda, self.code
        while (
            release.decided
            or agenda.inbox
            or history.replaying
            or self.renewal.renewing is not None
        ):
            if (
                code.driver.busy
                or self.locked
                or self.over
                or history.divergence
                or self._is_finished()
            ):
                break
            if not self._guarded(release.release_one):
                break
        if code.driver.busy or self.locked or self.over:
            return
        if history.divergence is not None or self._is_finished():
            self._conclude()
        else:
            self._go_idle()

    def _guarded(self, move: Callable[[], Any]) -> Any:
        """A move that may find the code diverged, in which case it goes no further."""
        try:
            return move()
        except Unwind:
            if self.history.divergence is None:
                raise
            return None

    def _is_finished(self) -> bool:
        """Return True if the code has ended and no effect of it is open."""
        if not self.code.driver.done:
            return False
        if self.history.replaying and not self.code.has_ended:
            self._guarded(self.history.skip_marks)  # which say what was intended
        if not self.agenda.owes:
            return True
        self.code.end()
        return False

    def _go_live(self) -> None:
        """Everything recorded has been repeated: what the code has asked for is brought on."""
        self.renewal.record()
        for call in list(self.agenda.open.values()):
            if call.state == "pending":
                self._bring_on(call)
        if self.agenda.accepted:
            self.ledger.go_live()

    def _bring_on(self, call: Call) -> None:
        """The table of kinds: each has a part that does what its calls ask for."""
        if isinstance(call, EffectCall):
            self.ledger.bring_on(call)
        elif isinstance(call, StepCall):
            self.steps.bring_on(call)
        elif isinstance(call, ChildCall):
            self.children.bring_on(call)
        elif isinstance(call, SignalCall):
            self.signals.bring_on(call)
        elif isinstance(call, TimerCall):
            self.timers.bring_on(call)

    def _conclude(self) -> None:
        """The code has ended, or can no longer be trusted: one last flush. What else was decided is
        released to nobody.
        """
        self.release.forget()
        if not self.end.is_known:
            if self.history.divergence is None:
                self._guarded(self.end.judge)
            if self.history.divergence is not None:
                self.end.hold_diverged()
        self.line.want_flush()

    # ================================================================ settling

    def _go_idle(self) -> None:
        """Nothing is left to release: start what may start, flush what must be durable."""
        is_held_back = self.pausing or self.draining or not self._has_looked
        if not is_held_back and self.release.take_offer():
            self.advance()
            return
        if self.renewal.renewing is not None:
            # The past must be repeated before anything can be looked at.
            is_held_back = self.draining
        if self.agenda.startable:
            self.agenda.start_bodies(is_held_back=is_held_back)
        if self.release.misfits and self.end.hold is None and self.is_idle and not is_held_back:
            self.release.hold_misfit()
        if self._must_flush():
            self.line.want_flush()

    def _must_flush(self) -> bool:
        if self.renewal.renewing is not None:
            return False
        if self.end.hold is not None or self.end.ending is not None:
            return True
        if self.draining:
            return bool(self.buffer.rows)
        agenda = self.agenda
        if agenda.wants_look or agenda.unwanted:
            return True
        if (agenda.unlicensed or agenda.new_children or agenda.new_effects) and not self.pausing:
            return True
        return self.is_idle and self._may_leave()

    @property
    def is_idle(self) -> bool:
        """True if no body runs and none could start: only the database can bring the run on."""
        agenda = self.agenda
        if agenda.running or agenda.inbox or self.release.decided:
            return False
        return self.pausing or not (
            agenda.unlicensed or agenda.startable or agenda.new_children or agenda.new_effects
        )

    def _may_leave(self) -> bool:
        """Return True if an idle run should park now;
        if something is due soon, arrange a look instead.
        """
        if self.pausing:
            return True
        now_us = self.clock.estimate_us()
        soon_us = now_us + LINGER_TIMER_US
        calls = self.agenda.beside_children()
        looks = [due_us for c in calls if (due_us := c.looked_at_us) and due_us < soon_us]
        if self._linger_until_us > now_us and self.line.has_room():
            looks.append(self._linger_until_us)
        if looks:
            self.line.look_later(max(0, min(looks) - now_us) / 1e6 + 0.0002)
            return False
        return not any(c.is_tried_before(soon_us) for c in calls)

    # ================================================================ what the worker tells

    def poke(self) -> None:
        """There may be mail, or a timer may be due: look, when the code next stands still."""
        self.agenda.look()
        if not (self.over or self.locked):
            self.advance()

    def step_returned(self, result: StepResult) -> None:
        """A body has come back."""
        self.agenda.receive(result)
        self.advance()

    def retry_due(self, call: StepCall) -> None:
        """The wait before the next try of a body is over."""
        if not self.agenda.is_open(call) or call.state != "backoff" or self.over:
            return
        if isinstance(call, EffectCall):
            if (
                call.retry_due_us or 0
            ) > self.clock.estimate_us() + 20_000:  # the timer of a wait before this one
                return
            self.ledger.do(call, call.come_due())
        else:
            self.steps.do(call, call.come_due())
        self.advance()

    def thread_stands(self) -> None:
        """The thread of its code has said that it waits, or has ended."""
        self.code.driver.land()
        self.advance()

    def drain(self) -> None:
        """Starts nothing more; what runs may finish, and is flushed."""
        self.draining = True
        if not self.code.driver.busy and not self.locked:
            self.advance()

    def hold_for(self, reason: str, detail: dict[str, Any], code_hash: str | None = None) -> None:
        """Holds the run for a person, as soon as what is on its way has arrived; or for a worker
        with other code than this.
        """
        self.end.hold_for(reason, detail, code_hash)
        self.line.want_flush()

    def lacks_code(self, message: str) -> NoReturn:
        """The code at hand does not have what the run needs: it is held for a worker that does."""
        self.hold_for("definition", {"message": message}, self.end.code_hash)
        raise Unwind

    def hold_instead_of(self, flush: Flush, detail: dict[str, Any]) -> Flush:
        """Return a flush that holds the run for a person, in place of one that the server refuses;
        durable units stay.

        Nothing is changed by it before :meth:`refused` says that it was committed.
        """
        units = [str(row.kind) for row in flush.rows]
        held = Flush(self.run_id, flush.token, flush.chain_id, flush.expected_seq, [])
        held.question = {
            **self._address(held),
            "hold": stuck("refused", {**detail, "units": units}),
        }
        return held

    def refused(self, held: Flush) -> None:
        """The run was held by this instead of going on:
        what its code did since is nobody's history.
        """
        self.inflight = held
        self.locked = True
        self._discard(held.last_seq)

    def close(self) -> None:
        """Takes the code apart: the run goes on elsewhere or later, or has ended."""
        self.over = True
        self.code.close()
        self.history.close()
        self.release.close()
        self.line.cut()

    # ================================================================ what the worker asks

    @property
    def replaying(self) -> bool:
        """True while the code repeats the journal."""
        return self.history.replaying

    @property
    def closing(self) -> bool:
        """True once its code is being taken apart."""
        return self.code.closing

    @property
    def divergence(self) -> NonDeterminismError | None:
        """Error of code that does not repeat the journal."""
        return self.history.divergence

    @property
    def cancel_request(self) -> dict[str, Any] | None:
        """Request to cancel the run, with who and why; None if nobody cancels it."""
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
        """True if nothing of it runs or is on its way:
        it can be handed back without losing work.
        """
        return not (
            self.agenda.running
            or self.inflight
            or self.locked
            or self.buffer.rows
            or self.code.driver.busy
        )

    @property
    def oldest_unflushed_us(self) -> int | None:
        """Time at which the oldest unit that is not on its way was recorded, in microseconds; None
        if there is none.
        """
        return self.buffer.oldest_us

    def wants(self, call: StepCall) -> bool:
        """Return True if anybody still waits for this call."""
        return self.agenda.is_open(call)

    def estimate_us(self) -> int:
        """Return the database's clock as far as it is known here."""
        return self.clock.estimate_us()

    def time_seconds(self) -> float:
        """Time for the event loop: seconds since the run was created, as of the last outcome."""
        return self.clock.seconds()

    def start_timer(self, delay_seconds: float, fire: Callable[[], None]) -> Callable[[], None]:
        """Starts a durable timer for the event loop; returns what gives it up."""
        call = self.timers.start(delay_seconds, fire)
        return lambda: self.cancel_call(call)

    # ============================================================== what the code asks of the whole

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
    ) -> EffectCall:
        """Asks for an effect; see :meth:`Ledger.issue`."""
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
        )

    def cancel_call(self, call: Call) -> None:
        """The code has given up a call: that is recorded, its late result is not."""
        if self.code.closing or call.state in ("over", "decided") or not self.agenda.is_open(call):
            return
        if isinstance(call, EffectCall):
            self.history.next_noted()  # reads the marks that say whether it was intended
            if call.attempts > 0:
                self.ledger.give_up(call)
                return
        kind = (
            Kind.STEP_ABANDONED
            if isinstance(call, StepCall) and call.spec.effect == StepKind.STEP
            else Kind.CALL_CANCELLED
        )
        self.history.note(call.number, kind, self._name_in_journal(call), None)
        self.agenda.drop(call)
        if isinstance(call, StepCall):
            self.agenda.stop(call)
        elif (
            isinstance(call, ChildCall)
            and call.chain_id
            and call.request.close_policy == ClosePolicy.CANCEL
        ):
            self.agenda.unwant(call)

    def _name_in_journal(self, call: Call) -> str:
        """The name under which the next note of the journal knows a call that has had others."""
        unit = self.history.next_noted() if call.aliases else None
        return (
            unit.name
            if unit is not None and unit.call == call.number and unit.name in call.aliases
            else call.name
        )

    # ================================================================ fences

    @property
    def may_fence(self) -> bool:
        """True if the next seq is known and everything that was decided before is released.

        And nothing is to be booked: a transaction may be older than the row that is to change,
        which its snapshot has not.
        """
        return self.inflight is None and not (
            self.locked
            or self.release.decided
            or self.buffer.has_mail
            or self.buffer.has_ledger
            or self.code.driver.busy
        )

    def begin_fence(self, call: StepCall, text: str) -> Flush | None:
        """A transactional body is done: what its transaction must append,
        or None if nobody wants it any more.

        The caller has made sure that :attr:`may_fence`. Until ``end_fence`` nothing is released.
        """
        if self.over or self.code.closing or not self.agenda.is_open(call):
            return None
        assert self.may_fence
        self.locked = True
        call.fencing = True
        emitted = self.buffer.record_emitted(call)
        self._fenced_text = text
        self.buffer.record(
            call.number,
            Kind.STEP_COMPLETED,
            call.name,
            call.stored or text,
            key=call.key or str(call.ordinal),
        )
        self.inflight = self._flush_of_buffer()
        self.inflight.own_rows = emitted + 1
        return self.inflight

    def end_fence(self, call: StepCall, flush: Flush, *, committed: bool, at_us: int = 0) -> None:
        """The transaction is over: released if it was committed,
        forgotten if it was rolled back.
        """
        self.locked = False
        self.inflight = None
        call.fencing = False
        if committed:
            row = flush.rows[-1]
            self.clock.sync(at_us)
            self.durable_seq = row.seq
            self.agenda.returned(call)
            self.agenda.licensed(flush.starts)
            self.release.decide_fenced(
                Unit(
                    row.seq, row.call, row.kind, row.name, self._fenced_text, None, row.at_us, None
                )
            )
        else:
            self.buffer.put_back(flush)
            self.agenda.put_back(flush.starts)

    # ================================================================ flushing

    def take_flush(self) -> Flush | None:
        """Return the flush to commit now; None if there is nothing to commit, or the last flush is
        still on its way.
        """
        if (
            self.inflight is not None
            or self.locked
            or self.over
            or self.code.driver.busy
            or self.release.decided
        ):
            return None
        divergence = self.history.divergence
        if self.renewal.renewing is not None and divergence is None:
            return None
        # Held before its code has come to the end of the journal.
        is_held_early = self.end.hold is not None and self.history.replaying
        if divergence is not None or is_held_early:
            # What the code did after that is nobody's history.
            self._discard(self.durable_seq)
        flush = self._flush_of_buffer()
        flush.question = self._question(flush)
        if flush.question is None and self.end.ending is not None:
            flush.ending = self.end.ending
            flush.has_kin = self._has_children or self.beat or self.claim.has_kin
        if not flush.rows and flush.question is None and flush.ending is None:
            return None
        self.inflight = flush
        self.locked = flush.question is not None
        return flush

    def _discard(self, seq: int) -> None:
        self.buffer.discard(seq)
        self.agenda.forget_licences()

    def _flush_of_buffer(self) -> Flush:
        return self.buffer.pack(
            [] if self.pausing or self.draining else self.agenda.take_licences()
        )

    def _question(self, flush: Flush) -> dict[str, Any] | None:
        """Return the question that goes to the database with this flush;
        None if there is nothing to ask.
        """
        end, agenda = self.end, self.agenda
        if end.hold is not None:
            misfits = self.release.misfits.values()
            refused = (
                {"refused": [[m.name, m.error, end.code_hash] for m in misfits]} if misfits else {}
            )
            return {**self._address(flush), "hold": end.hold, **refused}
        if end.continue_input is not None:
            return {**self._address(flush), **end.in_question()}
        if end.ending is not None or self.draining:
            return None
        idle = self.is_idle and not flush.starts
        leaving = idle and self._may_leave()
        wants = not self.pausing and (agenda.new_children or agenda.new_effects)
        if not (agenda.wants_look or wants or agenda.unwanted or leaving):
            return None
        asked = agenda.take_look()
        children = [] if self.pausing else agenda.take_children()
        effects = [] if self.pausing else agenda.take_effects()
        question = self._address(flush)
        self.claim.offer = None  # the answer may take it
        waits = agenda.waits()
        if waits.keys() == {"open_effects"} and (
            owed := [c for c in agenda.effects if c.state == "owed"]
        ):
            question["stuck"] = stuck("effect", owed_detail(owed))
        if unwanted := agenda.take_unwanted():
            question["unwanted"] = unwanted
        if effects:
            question["effects"] = [intent_of(call) for call in effects]
        if children:
            question["children"] = [child_row(call) for call in children]
        elif waits and not (self.pausing or effects):
            # A pause holds, if it still stands; if not, there may be more to do than to wait.
            question["park"] = leaving
        elif not (self.pausing or asked or effects or unwanted):
            detail = {
                "message": "the workflow waits for something that nothing can bring",
                "where": self.code.driver.where(),
            }
            return {**question, "hold": stuck("deadlock", detail)}
        return {**question, **waits, "idle": idle, "cancelled": end.cancel_request is not None}

    def _address(self, flush: Flush) -> dict[str, Any]:
        """Return the beginning of every question: run, token, chain and last seq."""
        return {
            "run": self.run_id,
            "token": self.claim.token,
            "chain": self.claim.chain_id,
            "seq": flush.last_seq,
        }

    def flush_committed(self, flush: Flush, answer: dict[str, Any] | None) -> None:
        """A flush is durable; the answer to its question, if it had one."""
        assert self.inflight is flush
        self.inflight = None
        self.locked = False
        self.durable_seq = flush.last_seq
        if self.code.closing:
            # It was taken apart meanwhile: whoever has the run next reads this in the journal.
            return
        if flush.ending is not None:
            self.over = True
            return
        self.agenda.licensed(flush.starts)
        if answer is not None:
            self._take_answer(answer)
        self.advance()

    def _take_answer(self, answer: dict[str, Any]) -> None:
        at_us = answer["at"]
        self._has_looked = True
        self.clock.sync(at_us)
        self.pausing = bool(answer.get("pause"))
        has_children = False
        for seq, number, kind, name, payload, *due_us in answer["units"]:
            self.buffer.go_to(seq)
            self.durable_seq = seq
            if self.release.decide(
                Unit(seq, number, kind, name, payload, None, at_us, due_us[0] if due_us else None)
            ):
                has_children = True
        if has_children:
            self._linger_until_us = (
                self.clock.estimate_us()
                + LINGER_CHILDREN_US
                + self.buffer.seq * LINGER_CHILDREN_US_A_UNIT
            )
        for number, version, stale in answer.get("refused") or ():
            self.ledger.refuse(number, version, stale)
        self.over = answer["place"] != "leased"
