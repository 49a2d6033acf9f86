"""The agenda: the open calls of a run, and what is to be done about them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from pgflow._engine.calls import Call, ChildCall, StepCall, Waits
from pgflow._engine.effects import EffectCall, still_accepted
from pgflow._engine.flush import MAX_FLUSH_CHILDREN, MAX_FLUSH_STARTS
from pgflow._engine.host import Line, StepResult
from pgflow._engine.locks import HoldCall, LockCall
from pgflow._engine.owed import Owed, read_obligation
from pgflow._model.claims import Claim
from pgflow._model.units import Unit


class Agenda:
    """Owns the table of open calls and the lists that they stand in; a call that is not open any
    more stands in none.

    A step is *unlicensed* until the next flush may write its licence ahead, then *startable*, then
    it *runs*, and its result comes into the *inbox*. An effect is among the *new* ones while it
    wants leave to act, a child until it is started. What a pool must let through is among the new
    admissions until the next flush asks. *Accepted* effects are not open for the code, and owed by
    the run. *Obligations* are no calls: the run owes them from one note to the next.
    """

    def __init__(self, claim: Claim, line: Line) -> None:
        self._line = line
        self.open: dict[int, Call] = {}
        self.children: dict[int, ChildCall] = {}
        """Those of the open calls that are children: a family may have ten thousand, which are not
        gone through for each of them.
        """
        self.accepted: dict[int, EffectCall] = (
            {} if claim.heritage is None else still_accepted(claim)
        )
        self._obligations: dict[str, Owed] | None = None
        self.left_behind: frozenset[int] = frozenset()
        """Calls that were open when the code ended, while an effect goes on."""
        # By their numbers: of many thousands at once each may be given up on its own.
        self.unlicensed: dict[int, StepCall] = {}
        self.startable: dict[int, StepCall] = {}
        self.running: set[int] = set()
        self.inbox: deque[StepResult] = deque()
        # Most runs have none of these, and each empty list is one more for the garbage collector.
        self.new_children: list[ChildCall] | None = None
        self.new_effects: list[EffectCall] | None = None
        self.new_admissions: list[StepCall] | None = None
        self.over: list[StepCall] | None = None
        """Admitted calls that are over: the next flush returns what they have left."""
        self._closed: list[int] | None = None
        """Admitted calls that were over in the journal, effects and those that the end of the code
        left behind. The worker may have been lost before it could return what one had left, which
        the database closed, or which has no unit.
        """
        self.has_drawn = False
        """True if a call has been admitted: the end of the run returns whatever is left."""
        self.unwanted: list[int] | None = None
        """Chains of children that the next flush asks to end."""
        self._has_ended = False
        self.has_locks = False
        """True once the code has asked for a lock."""
        self.holds: dict[int, HoldCall] | None = None
        """Those of the open calls that hold a lock."""
        self.given_up_locks: list[int] | None = None
        """Waits for locks that the code has given up; the next flush says so."""
        self.wants_look = claim.has_mail
        """True if the next flush asks the database for whatever there may be."""

    # ================================================================ open calls

    def enter(self, call: Call) -> None:
        """The code has asked for it."""
        self.open[call.number] = call

    def enter_child(self, call: ChildCall) -> None:
        """The code has asked for a child."""
        self.open[call.number] = self.children[call.number] = call

    def enter_lock(self, call: LockCall) -> None:
        """The code has asked for a lock."""
        self.has_locks = True
        self.open[call.number] = call

    def enter_hold(self, call: HoldCall) -> None:
        """The code holds a lock."""
        if self.holds is None:
            self.holds = {}
        self.open[call.number] = self.holds[call.number] = call

    def is_open(self, call: Call) -> bool:
        """Return True if anybody still waits for it."""
        return self.open.get(call.number) is call

    def close(self) -> None:
        """The code is taken apart: an open call that led to it would keep the whole run until the
        garbage collector passes.
        """
        for call in self.open.values():
            call.let_go()
        self.open.clear()
        self.children.clear()

    def find(self, number: int) -> Call | None:
        """Return the open call of a number, or the effect that was accepted under it."""
        return self.open.get(number) or self.accepted.get(number)

    def drop(self, call: Call) -> None:
        """Nobody waits for it any more."""
        call.state = "over"
        self.open.pop(call.number, None)
        if isinstance(call, ChildCall):
            self.children.pop(call.number, None)
            if not call.chain_id and self.new_children and call in self.new_children:
                self.new_children.remove(call)
        elif isinstance(call, HoldCall):
            if self.holds:
                self.holds.pop(call.number, None)
        elif isinstance(call, StepCall):
            self.unlicensed.pop(call.number, None)
            self.startable.pop(call.number, None)
            if self.new_admissions and call in self.new_admissions:
                self.new_admissions.remove(call)
            if call.admitted is not None:
                if self.over is None:
                    self.over = []
                self.over.append(call)
            if isinstance(call, EffectCall):
                self.ask_no_more(call)

    def beside_children(self) -> Collection[Call]:
        """Return the open calls, without children if there is nothing else."""
        return self.open.values() if len(self.open) > len(self.children) else ()

    @property
    def effects(self) -> list[EffectCall]:
        """The open effects."""
        return [call for call in self.open.values() if isinstance(call, EffectCall)]

    @property
    def bodies(self) -> list[StepCall]:
        """Calls whose bodies run now."""
        return [
            call
            for call in self.open.values()
            if isinstance(call, StepCall) and call.number in self.running
        ]

    @property
    def owes(self) -> bool:
        """True while an effect is open: intended and not closed.
        Until none is, the run does not end.
        """
        if not self.open:
            return bool(self.accepted)
        return bool(self.accepted) or any(
            isinstance(call, EffectCall) and call.attempts > 0 for call in self.open.values()
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
        """The code has ended: of what it asked for, only the effects that were intended go on."""
        self._has_ended = True
        dropped = [
            call
            for call in self.open.values()
            if not (isinstance(call, EffectCall) and call.attempts > 0)
        ]
        self.left_behind |= {call.number for call in dropped}
        for call in dropped:
            self.drop(call)
            if call.number in self.running:
                assert isinstance(call, StepCall)
                self.stop(call)

    def forget_plans(self) -> None:
        """The code has ended: nothing more begins."""
        self.unlicensed.clear()
        self.startable.clear()
        self.new_children = self.new_effects = self.new_admissions = None

    # ================================================================ obligations

    @property
    def obligations(self) -> dict[str, Owed]:
        """By its key, what the run has promised."""
        if self._obligations is None:
            self._obligations = {}
        return self._obligations

    @property
    def is_held_open(self) -> bool:
        """True if the run owes something that must be closed before it may complete."""
        return self._obligations is not None and any(o.holds for o in self._obligations.values())

    @property
    def leaves_obligations(self) -> bool:
        """True if something is owed, whether or not the run waits for it."""
        return self._obligations is not None and any(o.is_open for o in self._obligations.values())

    def promise(self, owed: Owed) -> None:
        """The code has opened an obligation."""
        self.obligations[owed.key] = owed

    def read_obligation(self, unit: Unit) -> None:
        """Learns what others have said of an obligation."""
        read_obligation(self.obligations, unit)

    # ================================================================ bodies

    def enter_step(self, call: StepCall) -> None:
        """The code has asked for a step whose licence the next flush writes ahead."""
        self.open[call.number] = self.unlicensed[call.number] = call
        call.state = "unlicensed"

    def license(self, call: StepCall) -> None:
        """The next flush writes its licence ahead."""
        call.state = "unlicensed"
        self.unlicensed[call.number] = call

    def take_licences(self) -> list[StepCall]:
        """Return the calls that a flush licenses."""
        if len(self.unlicensed) <= MAX_FLUSH_STARTS:
            starts = list(self.unlicensed.values())
            self.unlicensed.clear()
            return starts
        starts = list(islice(self.unlicensed.values(), MAX_FLUSH_STARTS))
        for call in starts:
            del self.unlicensed[call.number]
        return starts

    def forget_licences(self) -> None:
        """The calls that were to be licensed are nobody's history."""
        self.unlicensed.clear()

    def put_back(self, starts: list[StepCall]) -> None:
        """Their licences were rolled back."""
        self.unlicensed = {call.number: call for call in starts} | self.unlicensed

    def licensed(self, starts: list[StepCall]) -> None:
        """Their licences are durable."""
        for call in starts:
            if call.state == "unlicensed":
                call.state = "startable"
                self.startable[call.number] = call

    def make_startable(self, call: StepCall) -> None:
        """Its body may start."""
        call.state = "startable"
        self.startable[call.number] = call

    def start_bodies(self, *, is_held_back: bool) -> None:
        """Starts bodies; while the run pauses or is handed back, only licensed effects: one that
        never began would look unknown.
        """
        startable, self.startable = self.startable, {}
        line = self._line
        for call in startable.values():
            if is_held_back and not (isinstance(call, EffectCall) and call.is_acting):
                self.startable[call.number] = call
            else:
                call.state = "running"
                self.running.add(call.number)
                if call.admitted is not None and (
                    not isinstance(call, EffectCall) or call.is_acting
                ):
                    call.began_us = line.monotonic_ns() // 1000
                    call.charges = call.charges or []
                line.host.start_body(line.execution, call)

    def back_off(self, call: StepCall, delay_seconds: float) -> None:
        """It is tried again after a delay."""
        call.state = "backoff"
        self._line.retry_later(call, delay_seconds)

    def receive(self, result: StepResult) -> None:
        """A result is to be given its place in the journal."""
        self.inbox.append(result)

    def take_result(self) -> StepResult | None:
        """Return the result that has come first; None if there is none."""
        return self.inbox.popleft() if self.inbox else None

    def returned(self, call: StepCall) -> None:
        """Its body has come back."""
        self.running.discard(call.number)

    def stop(self, call: StepCall) -> None:
        """Nobody waits for its body any more."""
        self.running.discard(call.number)
        self._line.stop_body(call)

    # ================================================================ pools

    def ask_pool(self, call: StepCall) -> None:
        """The next flush asks a pool to let it through."""
        call.state = "unlicensed"
        if self.new_admissions is None:
            self.new_admissions = []
        self.new_admissions.append(call)

    def take_admissions(self) -> list[StepCall]:
        """Return the calls that a flush asks pools for."""
        calls, self.new_admissions = self.new_admissions or [], None
        for call in calls:
            call.state = "pending"
            self.has_drawn = True
        return calls

    def note_drawn(self) -> None:
        """A call of the run has been admitted."""
        self.has_drawn = True

    def take_over(self) -> list[int]:
        """Return the admitted calls that are over since the last flush."""
        over = [*(self._closed or ()), *(call.number for call in self.over or ())]
        self._closed = self.over = None
        return over

    def leave_past(self) -> None:
        """The journal has been repeated: the commits that wrote it have settled what was over."""
        if self.over:
            self._closed = [
                call.number
                for call in self.over
                if isinstance(call, EffectCall) or call.number in self.left_behind
            ]
            self.over = None

    def forget_over(self) -> None:
        """Forgets the calls that are over: that is nobody's history."""
        self.over = None

    # ================================================================ effects

    def ask_leave(self, call: EffectCall) -> None:
        """The next flush asks whether it may act, for the first time or again."""
        call.state = "unlicensed"
        if self.new_effects is None:
            self.new_effects = []
        self.new_effects.append(call)

    def ask_no_more(self, call: EffectCall) -> None:
        """It is decided, whatever it wanted leave for."""
        if self.new_effects and call in self.new_effects:
            self.new_effects.remove(call)

    def stop_asking(self, call: EffectCall) -> None:
        """Neither its body nor a question to the counterparty is wanted any more."""
        self.startable.pop(call.number, None)
        self.ask_no_more(call)
        if call.number in self.running:
            call.turn += 1
            self.stop(call)

    def close_effect(self, call: EffectCall, value: Any, error: Exception | None) -> None:
        """It has an outcome: nobody need ask any more, but for what was accepted."""
        self.stop_asking(call)
        call.close(value, error)
        if call.is_owed:
            self.accepted[call.number] = call

    def rest(self, call: EffectCall) -> None:
        """It was silent, and its counterparty still has it: it is open for nobody."""
        self.drop(call)
        self.accepted[call.number] = call

    def reopen(self, call: EffectCall) -> None:
        """An accepted effect is silent: it is open again, for the ledger alone, until it is known
        what has become of it.
        """
        del self.accepted[call.number]
        self.open[call.number] = call

    def read_mark(self, call: EffectCall, unit: Unit) -> None:
        """Learns what a mark says of an effect; if that is what became of it, an accepted one is
        not owed any more.
        """
        call.read(unit)
        if call.is_known:
            self.accepted.pop(call.number, None)
            if call.was_accepted and self.is_open(call):
                self.stop_asking(call)
                self.drop(call)

    def grant_fresh_budgets(self) -> None:
        """Somebody has let a stuck run try again: what could be asked may be asked again."""
        for call in (*self.effects, *self.accepted.values()):
            call.grant_fresh_budget()

    def followers(self, call: EffectCall) -> Iterator[EffectCall]:
        """Return the calls that wait to take an accepted effect back."""
        return iter(
            [
                other
                for other in self.effects
                if other.state == "following" and other.takes_back is call
            ]
        )

    # ================================================================ questions

    def look(self) -> None:
        """The next flush asks the database."""
        self.wants_look = True

    def start_child(self, call: ChildCall) -> None:
        """The next flush starts it."""
        if self.new_children is None:
            self.new_children = []
        self.new_children.append(call)

    def unwant(self, call: ChildCall) -> None:
        """The next flush asks it to end."""
        if self.unwanted is None:
            self.unwanted = []
        self.unwanted.append(call.chain_id)

    def take_look(self) -> bool:
        """Return True if a look was wanted; it is taken now."""
        wants, self.wants_look = self.wants_look, False
        return wants

    def take_unwanted(self) -> list[int]:
        """Return the chains of children that a flush asks to end."""
        unwanted, self.unwanted = self.unwanted, None
        return unwanted or []

    def take_children(self) -> list[ChildCall]:
        """Return the children that a flush starts."""
        waiting = self.new_children or []
        children = waiting[:MAX_FLUSH_CHILDREN]
        if children:
            self.new_children = waiting[len(children) :]
        return children

    def take_effects(self) -> list[EffectCall]:
        """Return the effects that a flush asks leave for."""
        effects, self.new_effects = self.new_effects or [], None
        for call in effects:
            call.state = "pending"
        return effects

    def give_up_lock(self, number: int) -> None:
        """The code waits no longer for a lock: the next flush says so."""
        if self.given_up_locks is None:
            self.given_up_locks = []
        self.given_up_locks.append(number)
        self.wants_look = True

    def take_locks(self) -> dict[str, Any]:
        """Return what a question says of locks beside the waits for them."""
        said: dict[str, Any] = {"locks": []}
        if self.holds:
            holds = [call.row() for call in self.holds.values() if call.state != "decided"]
            if holds:
                said["holds"] = holds
        if self.given_up_locks:
            said["unlocks"], self.given_up_locks = self.given_up_locks, None
        return said

    def ask_again(
        self,
        children: list[ChildCall],
        effects: list[EffectCall],
        admissions: list[StepCall],
        unwanted: list[int],
    ) -> None:
        """A question was not looked at: what it asked for is wanted still."""
        self.new_children = children + (self.new_children or [])
        self.unwanted = unwanted + (self.unwanted or [])
        for call in effects:
            call.state = "unlicensed"
        self.new_effects = effects + (self.new_effects or [])
        for drawing in admissions:
            if self.is_open(drawing):
                self.ask_pool(drawing)
        self.wants_look = True

    def waits(self) -> dict[str, Any]:
        """Return the open waits that only the database can end."""
        owed = (
            [o.call for o in self._obligations.values() if o.holds]
            if self._has_ended and self._obligations
            else ()
        )
        waits = Waits([*self.accepted, *owed] if owed else self.accepted)
        for call in self.beside_children():
            if call.state not in ("decided", "misfit"):
                call.wait(waits)
        return waits.in_question(
            [child.number for child in self.children.values() if child.state != "decided"]
        )
