"""Results made anew: a recorded result is valid only while what it claims to exist does.

Before a replay begins, the worker has the Refs in the journal checked (`pgflow._worker.ref_checks`) and says which are lost.
When the replay comes to a result with one of those, it stands still. A read or a step, which may always run
again under the same key, does so; the code gets the new result in place of the old, and once everything
recorded has been repeated, that is added to the journal as a unit of its own: the newest counts in every
replay from then on. If the worker is lost before, nothing is: the next one finds the same Refs lost.

An effect, a decision and a transaction are never made again: the run is held.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import Call, StepCall
from pgflow._engine.host import Host, StepResult
from pgflow._engine.ledger import Ledgers
from pgflow._engine.requests import hash_of
from pgflow._model.claims import Claim
from pgflow._model.kinds import Kind, StepKind
from pgflow._model.units import Unit

LOST = "ref_lost"
"""Reason of a run that is held because something that a result claims is gone."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Renewals(Ledgers):
    """The layer of an :class:`~pgflow._engine.execution.Execution` that has lost results made anew; see the module."""

    def __init__(self, claim: Claim, host: Host[Any]) -> None:
        super().__init__(claim, host)
        self.renewing: StepCall | None = None
        self._renewals: list[tuple[StepCall, str]] = []

    @abstractmethod
    def _deliver(self, call: Call, value: Any, error: Exception | None) -> None:
        """Hands an outcome to whoever asked for it."""

    def _as_renewed(self, unit: Unit) -> Unit:
        """An outcome with the newest result of its call."""
        if unit.kind == Kind.STEP_COMPLETED and unit.call in self.journal.renewed:
            return unit._replace(payload=self.journal.renewed[unit.call])
        return unit

    def _renew(self, call: StepCall, unit: Unit) -> None:
        """Run the body again, if it may, since the thing that its result names is gone; release nothing else until it has come back."""
        if call.spec.effect not in (StepKind.READ, StepKind.STEP) or unit.kind != Kind.STEP_COMPLETED:
            self._give_up_renewal(call, "it is not made again, since that could do something twice")
        started = self.journal.starts.get(call.number)
        has_hash = started is not None and started.effect == StepKind.STEP
        hashes = (hash_of(call, self._hash_key()), *self._other_hashes(call)) if has_hash else ()
        if started is not None and hashes and started.args_hash not in hashes:
            self._give_up_renewal(call, "it is not made again, since it would be called with other arguments than it was")
        self.renewing = call
        call.failed_attempts = 0
        call.state = "startable"
        self._startable.append(call)

    def _give_up_renewal(self, call: StepCall, why: str) -> None:
        lost = ", ".join(f"{ref.kind} {ref.id!r}" for ref in self.claim.lost[call.number])
        self.diverge(f"{call} returned {lost}, which is gone, and {why}: restore it and retry the run", LOST)

    def _take_renewal(self) -> bool:
        """Releases what the body that ran again has brought, once it has; False while it has not."""
        call = self.renewing
        assert call is not None
        while self._inbox:
            result = self._inbox.popleft()
            if result.call is call:
                return self._end_renewal(call, result)
        return False

    def _end_renewal(self, call: StepCall, result: StepResult) -> bool:
        self._running.discard(call.number)
        if result.delay_seconds is not None:
            call.failed_attempts += 1
            self._back_off(call, result.delay_seconds)
            return False
        value, error, text = self._decode(call, result)
        if error is not None:
            self._give_up_renewal(call, f"making it again failed with {type(error).__name__}")
        self.renewing = None
        self._renewals.append((call, text))
        self._deliver(call, value, None)
        return True

    def _record_renewals(self) -> None:
        for call, text in self._renewals:
            self._record(call.number, Kind.STEP_RENEWED, call.name, text, key=call.key or None)
        self._renewals.clear()
