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
from collections.abc import Callable
from typing import Any

from pgflow._engine.calls import StepSpec
from pgflow._engine.drivers import Driver
from pgflow._engine.effects import EffectCall, Leave
from pgflow._engine.execution import Execution
from pgflow._engine.history import NEVER
from pgflow._engine.host import Host
from pgflow._engine.keys import Resting
from pgflow._model.claims import Claim, Dropped
from pgflow._model.codecs import ANYTHING
from pgflow._model.kinds import Kind
from pgflow._model.units import FIRST_ADOPTED


class Undoing(Execution):
    """Owns the compensations that the dropped part began, and whether the end of the undoing is
    recorded.
    """

    def __init__(
        self,
        claim: Claim,
        host: Host[Any],
        make_driver: Callable[[Execution], Driver],
        code_hash: str = "",
    ) -> None:
        assert claim.heritage is not None
        self.dropped = claim.heritage.undo
        self._is_noted = False
        self._open_compensations = {
            str(d.note["compensates"]): d.call
            for d in self.dropped
            if d.call and d.note["compensates"]
        }
        super().__init__(claim, host, make_driver, ANYTHING, code_hash, is_undoing=True)
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
            return self.ledger.issue(spec, args, kwargs, dropped.request, None)
        finally:
            self.history.adopt(NEVER)

    def has_begun(self, key: str) -> bool:
        """Return True if the dropped part began to compensate the effect with this key."""
        return key in self._open_compensations

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
        leave: Leave | None = None,
    ) -> EffectCall:
        """Request a compensation, or continue the one that the dropped part began."""
        begun = (
            self._open_compensations.pop(compensates, NEVER) if compensates is not None else NEVER
        )
        before = self.history.adopt(begun) if begun != NEVER else NEVER
        try:
            return super().issue_effect(
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
                leave=leave,
            )
        finally:
            if begun != NEVER:
                self.history.adopt(before)

    # ================================================================ the end

    def _is_finished(self) -> bool:
        return True

    def _conclude(self) -> None:
        """Record that everything is taken back, then hand the run back to be claimed with its own
        code.
        """
        if self.divergence is None and self.end.hold is None:
            _, error = self.code.driver.outcome()
            if error is not None:
                message = (
                    f"effects of the dropped part could not be taken back: {self._described(error)}"
                )
                self.hold_for("undo", {"message": message}, self.end.code_hash)
        if self.divergence is not None or self.end.hold is not None:
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
        return self.values.told(error) if self.values.are_sealed else repr(error)
