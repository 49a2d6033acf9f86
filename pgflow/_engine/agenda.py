"""The agenda: a run's open calls and the work pending for each."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection
from itertools import islice
from typing import Any

from pgflow._engine.calls import Call, ChildCall, StepCall, TimerCall, ranges_of
from pgflow._engine.effects import EffectCall, still_accepted
from pgflow._engine.flush import MAX_FLUSH_CHILDREN, MAX_FLUSH_STARTS
from pgflow._engine.host import Line, StepResult
from pgflow._engine.locks import HoldCall
from pgflow._engine.owed import Owed, read_obligation
from pgflow._engine.parts import Parts
from pgflow._model.protocol import QuestionPart
from pgflow._model.units import Unit


class Agenda:
    """Owns the table of open calls and the lists they are in, each by number: a closed call is in
    none of them.

    A step is *unlicensed* until a flush writes its licence ahead, then *startable*, then *running*;
    its result goes to the *inbox*. A new effect waits in *new_effects* for leave to act, a child in
    *new_children* until it is started, and a call that draws on a pool in *new_admissions* until a
    flush asks. *Accepted* effects are closed to the code but still owed by the run. *Obligations*
    are not calls: the run owes them from one note to another.
    """

    def __init__(self, parts: Parts) -> None:
        claim = parts.claim
        self._line = parts[Line]
        self.open: dict[int, Call] = {}
        # The open calls of some kinds once more. A family may have ten thousand children, too many
        # to scan for each other call.
        self.children: dict[int, ChildCall] = {}
        self.timers: dict[int, TimerCall] = {}
        self.effects: dict[int, EffectCall] = {}
        self.holds: dict[int, HoldCall] = {}
        """Open blocks that hold a lock."""
        self.accepted: dict[int, EffectCall] = (
            {} if claim.heritage is None else still_accepted(claim)
        )
        self.owed: dict[str, Owed] | None = None
        """Obligations of the run, by key; None if it never had any."""
        self.left_behind: frozenset[int] = frozenset()
        """Calls that were open when the code ended while an effect was still open."""
        self.unlicensed: dict[int, StepCall] = {}
        self.startable: dict[int, StepCall] = {}
        self.running: dict[int, StepCall] = {}
        self.inbox: deque[StepResult] = deque()
        """Results to be recorded in the journal, in order."""
        self.new_children: dict[int, ChildCall] = {}
        self.new_effects: dict[int, EffectCall] = {}
        self.new_admissions: dict[int, StepCall] = {}
        self._admitted: dict[int, Call] = {}
        """Calls that a pool has admitted."""
        # None instead of an empty list: most runs need none of these, and the garbage collector
        # tracks each list.
        self.over: list[Call] | None = None
        """Admitted calls that ended. The next flush returns the unused part of their reservations.
        """
        self._closed: list[int] | None = None
        """Admitted calls that already ended in the journal: effects, and calls left behind when the
        code ended. The worker may have been lost before it returned the reservation of an effect
        that the database closed, or of a call without a unit.
        """
        self.has_drawn = False
        """True if a call has been admitted. The end of the run then returns all that is left."""
        self.unwanted: list[int] | None = None
        """Chains of the children that the next flush asks to end."""
        self._ageing: dict[str, tuple[str, int, float]] = {}
        self._has_ended = False
        self.has_locks = False
        """True once the code has requested a lock."""
        self.given_up_locks: list[int] | None = None
        """Lock waits that the code gave up and the next flush reports."""
        self.wants_look = claim.has_mail
        """True if the next flush asks the database for news."""

    # ================================================================ open calls

    def enter(self, call: Call) -> None:
        """Add an open call."""
        self.open[call.number] = call

    def enter_child(self, call: ChildCall) -> None:
        """Add an open child."""
        self.open[call.number] = self.children[call.number] = call

    def enter_timer(self, call: TimerCall) -> None:
        """Add a timer that runs."""
        self.open[call.number] = self.timers[call.number] = call

    def enter_effect(self, call: EffectCall) -> None:
        """Add an open effect."""
        self.open[call.number] = self.effects[call.number] = call

    def enter_lock(self, call: Call) -> None:
        """Add an open wait for a lock."""
        self.has_locks = True
        self.open[call.number] = call

    def enter_hold(self, call: HoldCall) -> None:
        """Add an open block that holds a lock."""
        self.open[call.number] = self.holds[call.number] = call

    def is_open(self, call: Call) -> bool:
        """Return True if this call is still open."""
        return self.open.get(call.number) is call

    def close(self) -> None:
        """Drop all open calls. Each refers to the code, and so would keep the whole run in memory
        until the garbage collector runs.
        """
        for call in self.open.values():
            call.waiter = None
        for timer in self.timers.values():
            timer.let_go()
        for calls in (self.open, self.children, self.timers, self.effects, self.holds):
            calls.clear()

    def drop(self, call: Call) -> None:
        """Remove a call from the open calls and from every list."""
        call.state = "over"
        number = call.number
        self.open.pop(number, None)
        self.children.pop(number, None)
        self.timers.pop(number, None)
        self.effects.pop(number, None)
        self.holds.pop(number, None)
        self.unlicensed.pop(number, None)
        self.startable.pop(number, None)
        self.running.pop(number, None)
        self.new_children.pop(number, None)
        self.new_effects.pop(number, None)
        self.new_admissions.pop(number, None)
        if self._admitted and (admitted := self._admitted.pop(number, None)) is not None:
            if self.over is None:
                self.over = []
            self.over.append(admitted)

    def beside_children(self) -> Collection[Call]:
        """Return the open calls if any is not a child, else nothing."""
        return self.open.values() if len(self.open) > len(self.children) else ()

    @property
    def owes(self) -> bool:
        """True while an effect is intended and not closed. The run cannot end before."""
        return bool(self.accepted) or (
            bool(self.effects) and any(call.attempts > 0 for call in self.effects.values())
        )

    @property
    def waits_for_database(self) -> bool:
        """True if a call waits for something that only the database can bring."""
        return (
            bool(self.accepted)
            or any(call.waits_for_database for call in self.open.values())
            or (self._has_ended and self.is_held_open)
        )

    def drop_all_but_effects(self) -> None:
        """Drop every open call except intended effects, after the code has ended."""
        self._has_ended = True
        intended = {call.number for call in self.effects.values() if call.attempts > 0}
        dropped = [call for call in self.open.values() if call.number not in intended]
        self.left_behind |= {call.number for call in dropped}
        for call in dropped:
            running = self.running.get(call.number)
            self.drop(call)
            if running is not None:
                self._line.stop_body(running)

    def forget_plans(self) -> None:
        """Drop what has not begun, after the code has ended."""
        self.unlicensed.clear()
        self.startable.clear()
        self.new_children.clear()
        self.new_effects.clear()
        self.new_admissions.clear()

    # ================================================================ obligations

    @property
    def obligations(self) -> dict[str, Owed]:
        """Obligations of the run, by key."""
        if self.owed is None:
            self.owed = {}
        return self.owed

    @property
    def is_held_open(self) -> bool:
        """True if the run has an obligation that must be closed before it may complete."""
        return self.owed is not None and any(o.holds for o in self.owed.values())

    @property
    def leaves_obligations(self) -> bool:
        """True if an obligation is open, whether or not the run waits for it."""
        return self.owed is not None and any(o.is_open for o in self.owed.values())

    def promise(self, owed: Owed) -> None:
        """Add an obligation that the code opened."""
        self.obligations[owed.key] = owed

    def read_obligation(self, unit: Unit) -> None:
        """Apply a mark on an obligation."""
        read_obligation(self.obligations, unit)

    # ================================================================ bodies

    def enter_step(self, call: StepCall) -> None:
        """Add an open step that the next flush licenses."""
        self.open[call.number] = self.unlicensed[call.number] = call
        call.state = "unlicensed"

    def license(self, call: StepCall) -> None:
        """Have the next flush write a step's licence ahead."""
        call.state = "unlicensed"
        self.unlicensed[call.number] = call

    def take_licences(self) -> list[StepCall]:
        """Return the calls that a flush licenses, at most ``MAX_FLUSH_STARTS``."""
        if len(self.unlicensed) <= MAX_FLUSH_STARTS:
            starts = list(self.unlicensed.values())
            self.unlicensed.clear()
            return starts
        starts = list(islice(self.unlicensed.values(), MAX_FLUSH_STARTS))
        for call in starts:
            del self.unlicensed[call.number]
        return starts

    def forget_licences(self) -> None:
        """Drop the calls that were to be licensed: they will not be recorded."""
        self.unlicensed.clear()

    def put_back(self, starts: list[StepCall]) -> None:
        """Queue calls again whose licences were rolled back."""
        self.unlicensed = {call.number: call for call in starts} | self.unlicensed

    def licensed(self, starts: list[StepCall]) -> None:
        """Make calls startable whose licences are durable."""
        for call in starts:
            if call.state == "unlicensed":
                call.state = "startable"
                self.startable[call.number] = call

    def make_startable(self, call: StepCall) -> None:
        """Let the body of a call start."""
        call.state = "startable"
        self.startable[call.number] = call

    def start_bodies(self, *, is_held_back: bool) -> None:
        """Start the startable bodies. While the run pauses or is handed back, start only licensed
        effects: one that never began would look unknown.
        """
        startable, self.startable = self.startable, {}
        line = self._line
        for call in startable.values():
            if is_held_back and not (call.number in self.effects and call.is_acting):
                self.startable[call.number] = call
            else:
                call.state = "running"
                self.running[call.number] = call
                if call.admitted is not None and call.is_acting:
                    call.began_us = line.monotonic_ns() // 1000
                    call.charges = call.charges or []
                line.host.start_body(line.execution, call)

    def back_off(self, call: StepCall, delay_seconds: float) -> None:
        """Schedule the next try of a call."""
        call.state = "backoff"
        self.running.pop(call.number, None)
        self._line.retry_later(call, delay_seconds)

    def receive(self, result: StepResult) -> None:
        """Queue a result to be recorded in the journal."""
        self.inbox.append(result)

    def take_result(self) -> StepResult:
        """Return the oldest queued result. There must be one."""
        return self.inbox.popleft()

    def returned(self, call: StepCall) -> None:
        """Remove a call from those whose bodies are running, although it stays open."""
        self.running.pop(call.number, None)

    def stop(self, call: StepCall) -> None:
        """Stop the body of a call whose result is not needed."""
        self.running.pop(call.number, None)
        self._line.stop_body(call)

    # ================================================================ pools

    def ask_pool(self, call: StepCall) -> None:
        """Have the next flush ask a pool for admission."""
        call.state = "unlicensed"
        self.new_admissions[call.number] = call

    def take_admissions(self) -> list[StepCall]:
        """Return the calls for which a flush requests admission."""
        calls = list(self.new_admissions.values())
        self.new_admissions.clear()
        for call in calls:
            call.state = "pending"
            self.has_drawn = True
        return calls

    def admit(self, call: Call) -> None:
        """Remember that a pool has admitted a call."""
        self.has_drawn = True
        self._admitted[call.number] = call

    def end_admission(self, call: StepCall) -> None:
        """Forget a call whose reservation has ended with its transaction."""
        call.admitted = None
        self._admitted.pop(call.number, None)

    def take_over(self) -> list[int]:
        """Return the admitted calls that ended since the last flush."""
        over = [*(self._closed or ()), *(call.number for call in self.over or ())]
        self._closed = self.over = None
        return over

    def leave_past(self) -> None:
        """Forget ended calls after the replay, except those that may still have reservations."""
        if self.over:
            self._closed = [
                call.number
                for call in self.over
                if call.is_in_ledger or call.number in self.left_behind
            ]
            self.over = None

    def forget_over(self) -> None:
        """Forget the calls that ended: they will not be recorded."""
        self.over = None

    # ================================================================ effects

    def ask_leave(self, call: EffectCall) -> None:
        """Have the next flush ask for leave to act, for the first time or again."""
        call.state = "unlicensed"
        self.new_effects[call.number] = call

    def ask_no_more(self, call: EffectCall) -> None:
        """Withdraw an effect's request for leave."""
        self.new_effects.pop(call.number, None)

    def stop_asking(self, call: EffectCall) -> None:
        """Stop an effect's body or its question to the counterparty, and withdraw its request for
        leave.
        """
        self.startable.pop(call.number, None)
        self.ask_no_more(call)
        if call.number in self.running:
            call.turn += 1
            self.stop(call)

    def close_effect(self, call: EffectCall, value: Any, error: Exception | None) -> None:
        """Close an effect with its outcome. One that was accepted stays owed."""
        self.stop_asking(call)
        self.drop(call)
        call.close(value, error)
        if call.is_owed:
            self.accepted[call.number] = call

    def rest(self, call: EffectCall) -> None:
        """Move a silent effect back to the accepted ones: its counterparty still has it."""
        self.drop(call)
        self.accepted[call.number] = call

    def reopen(self, call: EffectCall) -> None:
        """Open an accepted effect that fell silent, for the ledger alone, until its outcome is
        known.
        """
        del self.accepted[call.number]
        self.enter_effect(call)

    def read_mark(self, call: EffectCall, unit: Unit) -> None:
        """Apply a mark to an effect. Once the outcome of an accepted effect is known, it is not
        owed any more.
        """
        call.read(unit)
        if call.is_known:
            self.accepted.pop(call.number, None)
            if call.was_accepted and self.is_open(call):
                self.stop_asking(call)
                self.drop(call)

    def grant_fresh_budgets(self) -> None:
        """Reset the number of questions for each effect, after an operator retried a stuck run."""
        for call in (*self.effects.values(), *self.accepted.values()):
            call.grant_fresh_budget()

    def followers(self, call: EffectCall) -> list[EffectCall]:
        """Return the calls that wait to take an accepted effect back."""
        return [
            other
            for other in self.effects.values()
            if other.state == "following" and other.takes_back is call
        ]

    def note_age(self, call: StepCall, seq: int) -> None:
        """Make this the newest result of an ageing read, on which later effects rest."""
        if call.spec.max_age_seconds is not None:
            self._ageing[call.name] = (call.name, seq, call.spec.max_age_seconds)

    def ageing(self) -> list[tuple[str, int, float]]:
        """Return the newest results of ageing reads: name, seq and allowed age in seconds."""
        return list(self._ageing.values())

    # ================================================================ questions

    def look(self) -> None:
        """Have the next flush ask the database for news."""
        self.wants_look = True

    def take_look(self) -> bool:
        """Return True if a look was requested, and clear the request."""
        wants, self.wants_look = self.wants_look, False
        return wants

    def start_child(self, call: ChildCall) -> None:
        """Have the next flush start a child."""
        self.new_children[call.number] = call

    def unwant(self, call: ChildCall) -> None:
        """Have the next flush ask a child to end."""
        if self.unwanted is None:
            self.unwanted = []
        self.unwanted.append(call.chain_id)

    def take_unwanted(self) -> list[int]:
        """Return the chains of the children that a flush asks to end."""
        unwanted, self.unwanted = self.unwanted, None
        return unwanted or []

    def take_children(self) -> list[ChildCall]:
        """Return the children that a flush starts, at most ``MAX_FLUSH_CHILDREN``."""
        children = list(islice(self.new_children.values(), MAX_FLUSH_CHILDREN))
        for call in children:
            del self.new_children[call.number]
        return children

    def take_effects(self) -> list[EffectCall]:
        """Return the effects for which a flush asks leave."""
        effects = list(self.new_effects.values())
        self.new_effects.clear()
        for call in effects:
            call.state = "pending"
        return effects

    def give_up_lock(self, number: int) -> None:
        """Have the next flush report that the code gave up waiting for a lock."""
        if self.given_up_locks is None:
            self.given_up_locks = []
        self.given_up_locks.append(number)
        self.wants_look = True

    def take_locks(self) -> QuestionPart:
        """Return the lock fields of a question, except the waits."""
        fields: QuestionPart = {"locks": []}
        holds = [call.row() for call in self.holds.values() if call.state != "decided"]
        if holds:
            fields["holds"] = holds
        if self.given_up_locks:
            fields["unlocks"], self.given_up_locks = self.given_up_locks, None
        return fields

    def ask_again(
        self,
        children: list[ChildCall],
        effects: list[EffectCall],
        admissions: list[StepCall],
        unwanted: list[int],
    ) -> None:
        """Queue again what a question asked for, when the database skipped it."""
        self.new_children = {call.number: call for call in children} | self.new_children
        self.unwanted = unwanted + (self.unwanted or [])
        for call in effects:
            call.state = "unlicensed"
        self.new_effects = {call.number: call for call in effects} | self.new_effects
        for drawing in admissions:
            if self.is_open(drawing):
                self.ask_pool(drawing)
        self.wants_look = True

    def waits(self) -> QuestionPart:
        """Return the open waits that only the database can end."""
        waits: defaultdict[str, Any] = defaultdict(list)
        open_effects = [*self.accepted] if self.accepted else []
        if self._has_ended and self.owed:
            open_effects += [o.call for o in self.owed.values() if o.holds]
        if open_effects:
            waits["open_effects"] = open_effects
        if len(self.open) > len(self.children):
            for call in self.open.values():
                if call.state not in ("decided", "misfit"):
                    call.wait(waits)
        if self.children:
            open_children = [c.number for c in self.children.values() if c.state != "decided"]
            if open_children:
                waits["child_calls"] = ranges_of(open_children)
        return waits  # type: ignore[return-value]
