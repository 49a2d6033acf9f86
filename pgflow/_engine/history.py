"""The history of a run: its journal, and how the code repeats it.

While the code repeats the journal, its notes are compared with the recorded ones. After that, new
notes go to the buffer, which leaves with the next flush.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import StepCall
from pgflow._engine.code import Code
from pgflow._engine.effects import ImpossibleMove
from pgflow._engine.host import Line
from pgflow._engine.journal import Journal
from pgflow._engine.loop import MAX_SWALLOWED_UNWINDS, Unwind
from pgflow._engine.parts import Parts
from pgflow._model.claims import Claim
from pgflow._model.kinds import CALL_MARKS, EFFECT_MARKS, KIND_NAMES, OBLIGATION_MARKS, Kind
from pgflow._model.units import Unit, beside_code, without_returned
from pgflow.errors import NonDeterminismError

NEVER = 0
"""Number of a call that never returns. Code that swallows every Unwind and calls again would
otherwise keep control.
"""


NO_UNITS = Journal([])
"""Journal of a run that begins."""


class Parting(NamedTuple):
    """The point where the code diverges from the journal: both sides, for a diff."""

    journal: str
    code: str
    seq: int | None
    """Number of the unit that the code does not repeat; None if there is none."""
    where: list[str]
    """Source lines where the code was."""


class History:
    """Owns the position of the replay, the call numbers, and the divergence if there is one.

    Once the code has diverged, or is being unwound, it gets no outcomes and nothing more of it is
    recorded.
    """

    def __init__(self, parts: Parts) -> None:
        self._claim = claim = parts.claim
        self._line = parts[Line]
        self._buffer = parts[Buffer]
        self._agenda = parts[Agenda]
        self._code = parts[Code]
        self._is_undoing = parts.is_undoing
        units = without_returned(self._units_of(claim)) if claim.units else []
        self.journal = Journal(units) if units else NO_UNITS
        self.replaying = bool(units)
        self.divergence: NonDeterminismError | None = None
        self.held_as = "nondeterminism"
        """Reason for which a divergence holds the run."""
        self.parting: Parting | None = None
        self.last_call = 0
        """Number of the code's newest call."""
        self._refusals = 0
        self._adopting = NEVER

    def _units_of(self, claim: Claim) -> list[Unit]:
        """Return the units to replay."""
        if claim.heritage is None:
            return claim.units
        if self._is_undoing:
            return [u for u in claim.units if u.seq > claim.heritage.cut]
        return beside_code(claim.units)

    # ================================================================ calls

    def check_open(self) -> None:
        """Raise Unwind if the code may not continue."""
        if self._code.closing or self.divergence is not None:
            self._refusals += 1
            raise Unwind

    def next_call(self) -> int:
        """Return the number for the code's next call."""
        if self._code.closing or self.divergence is not None:
            if self._adopting == NEVER and self._refusals >= MAX_SWALLOWED_UNWINDS:
                return NEVER
            self.check_open()
        if self._adopting != NEVER:
            return self._adopting
        self.last_call += 1
        return self.last_call

    def number_from(self, last: int) -> None:
        """Number the next calls from after this one."""
        self.last_call = last

    def adopt(self, number: int) -> int:
        """Give calls this number, from the dropped part, until the next change; return the previous
        one.
        """
        before, self._adopting = self._adopting, number
        return before

    # ================================================================ notes

    def note(
        self,
        number: int,
        kind: str,
        name: str | None,
        payload: str | None,
        delay_seconds: float | None = None,
    ) -> Unit | None:
        """Repeat a note of the journal and return it, or record a new one and return None."""
        if self._code.closing or self.divergence is not None:
            self.check_open()
        unit = self.next_noted() if self.replaying else None
        if unit is None:
            self._buffer.record(number, kind, name, payload, delay_seconds)
            return None
        if (unit.call, unit.kind, unit.name) != (number, kind, name):
            asked = f"the code asks for {KIND_NAMES[kind]} {name or ''} as call {number}"
            self.diverge(f"the journal has {unit} here", code=asked, unit=unit)
        return self.take()

    def next_noted(self) -> Unit | None:
        """Return the next unit of the journal; None if the replay is complete."""
        if not self.replaying:
            return None
        self.skip_marks()
        unit = self.journal.peek()
        if unit is None:
            self.go_live()
        return unit

    def take(self) -> Unit:
        """Take and return the next unit of the journal."""
        unit = self.journal.take()
        self._buffer.go_to(unit.seq)
        return unit

    def go_live(self) -> None:
        """End the replay: from here on the run records."""
        self.check_starts()
        self.replaying = False
        self._line.go_live()

    def end_replay(self) -> None:
        """End the replay where the code has ended."""
        self.replaying = False

    # ================================================================ marks

    def skip_marks(self, *, only_of_known: bool = False, upto_patch: str | None = None) -> None:
        """Take and apply the marks that come next."""
        journal = self.journal
        while (
            (unit := journal.peek()) is not None
            and unit.is_mark
            and not (
                only_of_known and unit.kind not in OBLIGATION_MARKS and not self._knows(unit.call)
            )
        ):
            if self.is_start(unit):
                return
            if unit.kind == Kind.PATCHED and unit.name == upto_patch:
                return
            self.take()
            if unit.kind in CALL_MARKS:
                self._read_mark(unit)
            elif unit.kind in OBLIGATION_MARKS:
                self._agenda.read_obligation(unit)
            elif (unit.kind, unit.name) == (Kind.OPERATOR, "retry"):
                self._agenda.grant_fresh_budgets()

    def is_start(self, unit: Unit) -> bool:
        """Return True if the unit is the start of a child and the code waits for that start."""
        if unit.kind != Kind.CHILD_STARTED:
            return False
        call = self._agenda.children.get(unit.call)
        return call is not None and call.start is not None and not call.has_started

    def _knows(self, number: int) -> bool:
        """Return True if the code has made this call and more marks may follow."""
        if number in self._agenda.open:
            return True
        # While undoing, the code may still request an effect that is only represented here.
        accepted = self._agenda.accepted.get(number)
        return accepted is not None and not (self._is_undoing and accepted.spec.terms is None)

    def _read_mark(self, unit: Unit) -> None:
        """Apply a mark to its call. Skip inherited admissions, which reserve for the origin."""
        is_admission = unit.kind == Kind.BUDGET_ADMITTED
        heritage = self._claim.heritage
        if is_admission and heritage is not None and unit.seq <= heritage.cut:
            return
        agenda, number = self._agenda, unit.call
        effect = agenda.effects.get(number) or agenda.accepted.get(number)
        call = agenda.open.get(number)
        if unit.kind in EFFECT_MARKS and effect is not None and effect.answers_to(unit.name):
            if effect.spec.terms is None:  # its marks were applied with the claim
                return
            try:
                agenda.read_mark(effect, unit)
            except ImpossibleMove:
                self.diverge(
                    f"the journal has {unit}",
                    code=f"the code has {effect}, which is {effect.stage}",
                    unit=unit,
                )
            return
        if call is None or not call.read(unit):
            found = call or effect or "no such call"
            self.diverge(f"the journal has {unit}", code=f"the code has {found}", unit=unit)
        if is_admission:
            agenda.admit(call)

    # ================================================================ divergence

    def diverge(
        self,
        journal: str,
        reason: str = "nondeterminism",
        *,
        code: str = "",
        unit: Unit | None = None,
    ) -> NoReturn:
        """Report that the journal cannot be repeated. Nothing more is recorded, and the run is held
        for a person with this reason.

        Args:
            journal: The journal's side, or the whole message if there are not two sides.
            reason: Reason of the hold, a code.
            code: The code's side.
            unit: Unit that the code does not repeat.
        """
        if self.divergence is None:
            self.held_as = reason
            message = f"{journal}, {code}" if code else journal
            self.divergence = NonDeterminismError(
                f"run {self._claim.key!r} ({self._claim.workflow}): {message}"
            )
            self.parting = Parting(
                journal, code, None if unit is None else unit.seq, self._code.driver.where()
            )
        raise Unwind

    def check_starts(self) -> None:
        """Check that the code has requested every body that may have run: it had when the licence
        was written.
        """
        for start in self.journal.open_starts():
            call = self._agenda.open.get(start.call)
            if not isinstance(call, StepCall) and start.call not in self._agenda.left_behind:
                started = f"the journal has call {start.call} as step {start.name!r}"
                self.diverge(started, code=f"the code has {call or 'no such call'}")

    def standing(self) -> str:
        """Return the open calls in words."""
        pending = ", ".join(str(call) for call in self._agenda.open.values()) or "nothing"
        return f"it waits for {pending}"
