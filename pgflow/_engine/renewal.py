"""Renewal: recreate a recorded result if the data that it refers to is gone.

Before a replay the worker checks the Refs in the journal (`pgflow._worker.hooks`) and reports
the lost ones. The replay pauses at a result with a lost Ref. A read or a step may always run again
under the same key, so its body runs and the code gets the new result. After the replay the new
result is recorded as a unit of its own (``step_renewed``); later replays use the newest. If the
worker is lost earlier, the next one finds the same Refs lost and starts over.

An effect, a decision or a transaction never runs again: the run is held instead.
"""

from __future__ import annotations

from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.calls import StepCall
from pgflow._engine.code import Code
from pgflow._engine.history import History
from pgflow._engine.host import StepResult
from pgflow._engine.parts import Parts
from pgflow._engine.values import Values, hash_of
from pgflow._model.kinds import Kind, StepKind
from pgflow._model.units import Unit

LOST = "ref_lost"
"""Reason of a run that is held because data that a result refers to is gone."""


class Renewal:
    """Owns the call whose result is being recreated, and the new results not recorded yet."""

    def __init__(self, parts: Parts) -> None:
        self._claim = parts.claim
        self._buffer = parts[Buffer]
        self._agenda = parts[Agenda]
        self._code = parts[Code]
        self._history = parts[History]
        self._values = parts[Values]
        self.renewing: StepCall | None = None
        """The call whose body runs again. Nothing else is released meanwhile."""
        self._made: list[tuple[StepCall, str]] = []

    def begin(self, call: StepCall, unit: Unit) -> None:
        """Run the body again, if it may, and release nothing else until it has returned."""
        if (
            call.spec.effect not in (StepKind.READ, StepKind.STEP)
            or unit.kind != Kind.STEP_COMPLETED
        ):
            self._give_up(call, "it does not run again, since that could do something twice")
        started = self._history.journal.starts.get(call.number)
        has_hash = started is not None and started.effect == StepKind.STEP
        hashes = (
            (hash_of(call, self._values.hash_key), *self._values.other_hashes(call))
            if has_hash
            else ()
        )
        if started is not None and hashes and started.args_hash not in hashes:
            self._give_up(
                call,
                "it does not run again, since it would be called with other arguments than before",
            )
        self.renewing = call
        call.failed_attempts = 0
        self._agenda.make_startable(call)

    def _give_up(self, call: StepCall, why: str) -> None:
        lost = ", ".join(f"{ref.kind} {ref.id!r}" for ref in self._claim.lost[call.number])
        self._history.diverge(
            f"{call} returned {lost}, which is gone, and {why}: restore it and retry the run", LOST
        )

    def take(self) -> bool:
        """Release the result of the body that ran again; return False while there is none."""
        call = self.renewing
        assert call is not None
        while self._agenda.inbox:
            result = self._agenda.take_result()
            if result.call is call:
                return self._end(call, result)
        return False

    def _end(self, call: StepCall, result: StepResult) -> bool:
        self._agenda.returned(call)
        if result.delay_seconds is not None:
            call.failed_attempts += 1
            self._agenda.back_off(call, result.delay_seconds)
            return False
        value, error, text = self._values.decode(call, result)
        if error is not None:
            self._give_up(call, f"running it again failed with {type(error).__name__}")
        self.renewing = None
        self._made.append((call, text))
        self._code.deliver(call, value, None)
        return True

    def record(self) -> None:
        """Record the recreated results after the replay."""
        for call, text in self._made:
            if call.charges is not None:
                self._buffer.record_charges(call)
            self._buffer.record(
                call.number, Kind.STEP_RENEWED, call.name, text, key=call.key or None
            )
        self._made.clear()
