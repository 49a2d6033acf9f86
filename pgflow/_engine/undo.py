"""Undo the effects of a dropped part of the journal, before the run's own code continues.

A run that is rewound with ``effects="compensate"`` first gets an execution of this class. Instead
of the workflow it runs code that settles each open dropped effect and compensates each that was
done, the last one first (:mod:`pgflow._worker.undoing`). Its calls have numbers of their own. Its
units follow the inherited part of the journal and end with the unit ``compensated``; a replay of
the workflow skips them. If an effect cannot be settled or taken back, the run is stuck, the debt
stays in ``owed``, and the workflow waits.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pgflow._engine.calls import StepSpec
from pgflow._engine.effects import EffectCall
from pgflow._engine.execution import Execution, Program
from pgflow._engine.history import NEVER
from pgflow._engine.host import Host
from pgflow._engine.ledger import EffectRequest, Ledger
from pgflow._engine.parts import Parts
from pgflow._model.claims import Claim, Dropped
from pgflow._model.kinds import Kind
from pgflow._model.units import FIRST_ADOPTED


class UndoLedger(Ledger):
    """Owns the compensations that the dropped part began, by key of the effect."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        assert parts.claim.heritage is not None
        self._begun = {
            str(d.note["compensates"]): d.call
            for d in parts.claim.heritage.undo
            if d.call and d.note["compensates"]
        }

    def has_begun(self, key: str) -> bool:
        """Return True if the dropped part began to compensate the effect with this key."""
        return key in self._begun

    def issue(self, asked: EffectRequest) -> EffectCall:
        """Request a compensation, or continue the one that the dropped part began."""
        begun = self._begun.pop(asked.compensates or "", NEVER)
        if begun == NEVER:
            return super().issue(asked)
        before = self._history.adopt(begun)
        try:
            return super().issue(asked)
        finally:
            self._history.adopt(before)


class Undoing(Execution):
    """Owns whether the end of the undoing is recorded."""

    is_undoing: ClassVar[bool] = True

    def __init__(self, claim: Claim, host: Host[Any], program: Program) -> None:
        assert claim.heritage is not None
        self.dropped = claim.heritage.undo
        self._is_noted = False
        super().__init__(claim, host, program)
        self.parts[Ledger] = self._ledger = UndoLedger(self.parts)
        known = [u.call for u in claim.units if u.seq <= claim.heritage.cut]
        self.history.number_from(max(FIRST_ADOPTED - 1, *known, *(d.call for d in self.dropped)))

    # ================================================================ asking

    def adopt(
        self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], dropped: Dropped
    ) -> EffectCall:
        """Continue an open effect of the dropped part.

        Args:
            spec: The effect.
            args: Its recorded arguments, by position.
            kwargs: Its recorded arguments, by name.
            dropped: Its record.
        """
        self.history.adopt(dropped.call)
        try:
            return self._ledger.issue(EffectRequest(spec, args, kwargs, dropped.request))
        finally:
            self.history.adopt(NEVER)

    def has_begun(self, key: str) -> bool:
        """Return True if the dropped part began to compensate the effect with this key."""
        return self._ledger.has_begun(key)

    # ================================================================ the end

    def _is_finished(self) -> bool:
        return True

    def _conclude(self) -> None:
        """Record that everything is taken back, then hand the run back to be claimed with its own
        code.
        """
        if self.history.divergence is None and self.end.hold is None:
            _, error = self.code.driver.outcome()
            if error is not None:
                message = (
                    f"effects of the dropped part could not be taken back: {self._described(error)}"
                )
                self.hold_for("undo", {"message": message}, self.end.code_hash)
        if self.history.divergence is not None or self.end.hold is not None:
            super()._conclude()
        elif not self._is_noted:
            self._is_noted = True
            self.flushing.ask_no_more()
            self.history.end_replay()
            keys = [dropped.key for dropped in self.dropped if not dropped.note["compensates"]]
            self.buffer.record(0, Kind.OPERATOR, "compensated", json.dumps({"effects": keys}))
            self.line.want_flush()
        elif not self.buffer.rows:
            self.over = True
            self.line.hand_back()

    def _described(self, error: BaseException) -> str:
        return self.values.describe(error) if self.values.are_sealed else repr(error)
