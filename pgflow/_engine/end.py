"""The end of an activation: the run ends, continues as a new generation, or is held."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pgflow._engine.agenda import Agenda
from pgflow._engine.code import Code
from pgflow._engine.flush import Ending
from pgflow._engine.history import History
from pgflow._engine.host import ContinueAsNew
from pgflow._engine.parts import Parts
from pgflow._engine.questions import stuck
from pgflow._engine.values import Values
from pgflow._model.exceptions import clean, encode_error
from pgflow._model.kinds import Kind
from pgflow._model.protocol import HandedRow, HoldReason, QuestionPart
from pgflow.errors import NotStorable


class End:
    """Owns the end: at most one of an ending, an input for the next generation, and a hold, which
    may replace the others.
    """

    def __init__(self, parts: Parts) -> None:
        self._claim = parts.claim
        self._agenda = parts[Agenda]
        self._code = parts[Code]
        self._history = parts[History]
        self._values = parts[Values]
        self._result = parts.result
        self.code_hash = parts.code_hash
        self.ending: Ending | None = None
        self.hold: HoldReason | None = None
        self.continue_input: str | None = None
        self.cancel_request: dict[str, Any] | None = None
        self._late_cancel: dict[str, Any] | None = None
        self._handed_on: Sequence[tuple[int, str]] = ()
        self._of_children: Sequence[str] = ()

    @property
    def awaits_discharge(self) -> bool:
        """True if the code succeeded and is not being cancelled, but an obligation must be closed
        first.
        """
        return (
            self._late_cancel is None
            and self._agenda.is_held_open
            and self._code.driver.outcome()[1] is None
        )

    def hold_for(self, reason: str, detail: dict[str, Any], code_hash: str | None = None) -> None:
        """Hold the run for a person; with a hash, also for a worker with other code."""
        self.hold = stuck(reason, detail, code_hash)

    def request_cancel(self, request: dict[str, Any], *, is_late: bool) -> None:
        """Cancel the run; ``is_late`` if its code has already ended."""
        self.cancel_request = request
        if is_late:
            self._late_cancel = request

    def hold_diverged(self) -> None:
        """Hold the run because its code does not repeat the journal."""
        history = self._history
        detail = {
            "message": clean(str(history.divergence)),
            "where": [] if history.parting is None else history.parting.where,
        }
        self.hold_for(
            history.held_as, detail, self.code_hash if history.held_as == "nondeterminism" else None
        )

    def in_question(self) -> QuestionPart:
        """Return the fields of a question that starts the next generation."""
        assert self.continue_input is not None
        fields: QuestionPart = {"continue": self.continue_input}
        if self._handed_on:
            fields["saga"] = [HandedRow(*handed) for handed in self._handed_on]
        if self._of_children:
            fields["of_children"] = list(self._of_children)
        if self._late_cancel is not None:
            fields["cancel"] = self._late_cancel
        if self._agenda.leaves_obligations:
            fields["owes"] = True
        return fields

    def judge(self) -> None:
        """Determine the end from the code's value, error, or input for the next generation."""
        value, error = self._code.driver.outcome()
        history = self._history
        if history.replaying:
            history.skip_marks()
            unit = history.journal.peek()
            if unit is not None and not (
                unit.kind == Kind.CONTINUED and isinstance(error, ContinueAsNew)
            ):
                history.diverge(f"the code ends where the journal goes on with {unit}", unit=unit)
            history.check_starts()
            history.end_replay()
        if self._agenda.open:
            self._agenda.forget_plans()
        if isinstance(error, ContinueAsNew):
            self.continue_input = error.input_text
            self._handed_on = [(call.number, code) for call, code in error.saga if call.is_in_place]
            self._of_children = error.of_children
        elif isinstance(error, asyncio.CancelledError):
            asked = (self.cancel_request or {}).get("why")
            why = asked or str(error) or "the workflow cancelled itself"
            self.ending = Ending("cancelled", clean(str(why), 4096), None, None)
        elif error is not None:
            self.ending = Ending("failed", None, None, self._values.error_text(encode_error(error)))
        elif self._late_cancel is not None and self._agenda.is_held_open:
            why = self._late_cancel.get("why") or "cancelled while it owed"
            self.ending = Ending("cancelled", clean(str(why), 4096), None, None)
        else:
            try:
                self.ending = Ending("completed", None, self.check_result(value), None)
            except NotStorable as misfit:
                data = encode_error(misfit, with_traceback=False)
                self.ending = Ending("failed", None, None, self._values.error_text(data))

    def check_result(self, value: Any) -> str:
        """Return a result as recorded. Refuse one that cannot be stored while the code can still
        compensate.

        Raises:
            NotStorable: It cannot be stored, or not read back.
        """
        what = f"the result of workflow {self._claim.workflow}"
        text = self._result.encode(value, what, is_hidden=self._values.are_hidden)
        self._result.decode(text, what)
        return self._values.sealed(text, what) if self._values.are_sealed else text
