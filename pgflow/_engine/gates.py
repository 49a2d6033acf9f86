"""Gates: the code asks people and waits for the verdict."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, cast

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import Call, Waits
from pgflow._engine.flush import Flush
from pgflow._engine.history import NEVER
from pgflow._engine.keys import Keys, name_in_key
from pgflow._engine.kind import KindOfCall
from pgflow._engine.parts import Parts
from pgflow._engine.values import Values
from pgflow._model.codecs import Codec
from pgflow._model.gates import Approved, Escalated, Expired, Rejected, Said, TakenOver
from pgflow._model.kinds import Kind
from pgflow._model.protocol import Answer
from pgflow._model.units import ANSWER_RETURNED, Unit
from pgflow.errors import NotStorable

PUT_OFF_US = 1_000_000
"""Microseconds by which a gate's expiry is postponed while an answer is being recorded."""

MAX_SHAPE_CHARS = 16_384
"""Maximum size of a shape sent to the database. Without one, a misfit is found when the answer is
taken.
"""


@dataclass(eq=False)
class GateTerms:
    """Terms of a gate: approvers and time limit.

    Attributes:
        approvers: Names or roles of those who may answer; empty = everyone.
        quorum: Number of people who must approve.
        timeout_seconds: Seconds for each stage of the escalation; None = no limit.
        on_timeout: Verdict when the time is over, a code.
        escalate: Names or roles to ask next, one after the other.
        needs_value: True if an approval must have a value.
        decision: Key of the decision that it rests on; None = none.
    """

    approvers: tuple[str, ...] = ()
    quorum: int = 1
    timeout_seconds: float | None = None
    on_timeout: str = Said.EXPIRE
    escalate: tuple[str, ...] = ()
    needs_value: bool = False
    decision: str | None = None


@dataclass(eq=False)
class GateCall(Call):
    """A gate and the wait for its verdict."""

    codec: Codec[Any] = field(kw_only=True)
    """Type of an edit."""
    request: str = field(kw_only=True)
    """The request as JSON, not encoded by a codec."""
    value: Any = field(kw_only=True)
    """The request as the code gets it if it is not edited."""
    terms: GateTerms = field(kw_only=True)
    stored: str = ""
    """The request as recorded, if the app has a codec."""
    payload_hash: str = ""
    key: str = ""
    asked_seq: int = 0
    """Seq of the unit that records that it was asked; 0 = not asked yet."""
    edit: str = ""
    """The edited request, as JSON; empty if it was not edited."""
    returned_as = cast("str | None", ANSWER_RETURNED)

    def fits(self, unit: Unit) -> bool:
        """Return True for a verdict."""
        return unit.kind == Kind.GATE_ANSWERED and (unit.name is None or self.answers_to(unit.name))

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the verdict; as an error, the misfit of an edit."""
        answer = json.loads(unit.payload or "{}")
        by = tuple(answer.get("by") or ())
        verdict = answer.get("verdict")
        if verdict == Said.APPROVE:
            if not answer.get("edited"):
                return Approved(self.value, by, edited=False), None
            try:
                text = json.dumps(answer.get("value"), ensure_ascii=False)
                value = self.codec.decode(text, f"the edit at gate {self.name!r}")
            except NotStorable as misfit:
                return None, misfit
            self.edit = text
            return Approved(value, by, edited=True), None
        if verdict == Said.REJECT:
            return Rejected(answer.get("reason") or "", by), None
        if verdict == Said.ESCALATE:
            return Escalated(answer.get("to") or ""), None
        if verdict == Said.TAKE_OVER:
            return TakenOver(answer.get("value"), by), None
        return Expired(), None

    def wait(self, waits: Waits) -> None:
        """Add the gate, and the request to ask it if that is not done yet."""
        waits["gates"].append([self.number, self.name])
        if not self.asked_seq:
            waits["new_gates"].append(self._wanted())

    def _wanted(self) -> dict[str, Any]:
        terms = self.terms
        shape = self.codec.shape
        return {
            "call": self.number,
            "name": self.name,
            "key": self.key,
            "request": self.stored or self.request,
            "hash": self.payload_hash,
            "approvers": list(terms.approvers),
            "quorum": terms.quorum,
            "timeout": terms.timeout_seconds,
            "on_timeout": terms.on_timeout,
            "escalate": list(terms.escalate),
            "needs_value": terms.needs_value,
            "decision": terms.decision,
            "shape": shape if len(json.dumps(shape)) <= MAX_SHAPE_CHARS else True,
        }

    def read(self, unit: Unit) -> bool:
        """Record that it was asked, and its expiry; return False if the request differs."""
        if unit.kind != Kind.GATE_ASKED or not self.answers_to(unit.name):
            return False
        asked = json.loads(unit.payload or "{}").get("request")
        if asked != json.loads(self.request):
            return False
        self.asked_seq, self.due_us = unit.seq, unit.due_us
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class Gates(KindOfCall[GateCall]):
    """Owns the gates that the code has asked. The end of the run closes the open ones."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._claim = parts.claim
        self._values = parts[Values]
        self._keys = parts[Keys]
        self._asked: list[GateCall] = []
        parts.in_flushes.append(self)

    def issue(
        self, name: str, request: str, value: Any, codec: Codec[Any], terms: GateTerms
    ) -> GateCall:
        """Ask at a gate, and wait for the verdict.

        Args:
            name: Name of the gate.
            request: The request as JSON.
            value: The request as the code gets it back.
            codec: Type of an edit.
            terms: Approvers and time limit.
        """
        history, values = self._history, self._values
        call = GateCall(
            history.next_call(),
            name,
            self._code.driver.waiter(),
            codec=codec,
            request=request,
            value=value,
            terms=terms,
        )
        if call.number == NEVER:
            return call
        ordinal = self._keys.next_ordinal(name)
        call.key = f"{self._claim.stem}/{name_in_key(name)}/{ordinal}"
        call.payload_hash = hashlib.sha256(values.hashed(request).encode()).hexdigest()
        if values.are_sealed and call.number not in history.journal.called:
            call.stored = values.sealed(request, f"the request of gate {name!r}")
        self._agenda.enter(call)
        self._asked.append(call)
        if not history.replaying:
            self.bring_on(call)
        return call

    def give_up(self, call: GateCall) -> None:
        """Close the gate too, if it was asked."""
        self._history.next_noted()  # reads the mark that it was asked
        noted = self._withdraw(call, Kind.CALL_CANCELLED)
        if call.asked_seq and noted is None:
            self._buffer.book()

    def add_to(self, flush: Flush) -> None:
        """Close the gates with the end of the run, or the start of its next generation."""
        if flush.ending is not None:
            flush.has_gates = True
        elif flush.question is not None and "continue" in flush.question:
            flush.question["gated"] = True

    def read_answer(self, answer: Answer) -> None:
        """Postpone gates that were open at the time of the answer despite their expiry: an answer
        is being recorded.
        """
        at_us = answer["at"]
        for call in self._asked:
            if call.state == "pending" and call.due_us is not None and call.due_us <= at_us:
                call.due_us = at_us + PUT_OFF_US
