"""Children: start them, wait for them, ask them to end."""

from __future__ import annotations

import json
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import Call, ChildCall, ChildRequest, Waiter
from pgflow._engine.flush import Flush
from pgflow._engine.history import NEVER
from pgflow._engine.kind import KindOfCall
from pgflow._engine.parts import Parts
from pgflow._engine.values import Values
from pgflow._model.codecs import Codec
from pgflow._model.exceptions import ErrorClasses
from pgflow._model.kinds import ClosePolicy, Kind
from pgflow._model.units import Unit


@mypyc_attr(allow_interpreted_subclasses=True)
class Children(KindOfCall[ChildCall]):
    """Owns the children from a dropped part of the journal that are not taken over yet, and whether
    the run has had any child.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._claim = claim = parts.claim
        self._values = parts[Values]
        self._dropped = [] if claim.heritage is None else list(claim.heritage.children)
        self._were_any = False
        parts.in_flushes.append(self)

    def issue(
        self,
        request: ChildRequest,
        result: Codec[Any],
        errors: ErrorClasses,
        waits_for_start: bool = False,
    ) -> ChildCall:
        """Start a child run and wait for its result, optionally for its start first."""
        history = self._history
        call = ChildCall(
            history.next_call(),
            request.workflow,
            self._code.driver.waiter(),
            request=request,
            result=result,
            errors=errors,
            aliases=request.aliases,
        )
        if call.number == NEVER:
            return call
        if self._dropped:
            self._take_over(call)
        if self._values.are_sealed and not (call.chain_id or call.number in history.journal.called):
            self._values.seal_child(request)
        self._agenda.enter_child(call)
        self._were_any = True
        if waits_for_start:
            call.start = Call(call.number, call.name, self._code.driver.waiter())
            if call.chain_id:
                call.tell_start()
        if call.chain_id or not history.replaying:
            self.bring_on(call)
        return call

    def bring_on(self, call: ChildCall) -> None:
        """Start the child, or look for its result."""
        if not call.chain_id:
            self._agenda.start_child(call)
            return
        self._agenda.look()
        if call.is_unwanted:
            self._agenda.unwant(call)

    def take_mark(self, call: ChildCall, unit: Unit) -> None:
        """Record that it has started."""
        call.note_start(unit)

    def give_up(self, call: ChildCall) -> None:
        """Have the next flush ask the child to end, too, if it is bound to its parent."""
        super().give_up(call)
        if call.chain_id and call.request.close_policy == ClosePolicy.CANCEL:
            self._agenda.unwant(call)

    def add_to(self, flush: Flush) -> None:
        """Have the end of the run reported to its children."""
        flush.has_kin = flush.has_kin or self._were_any

    def _take_over(self, call: ChildCall) -> None:
        """Take over the same child that a dropped part of the journal started. Its result arrives
        under its old number.
        """
        if call.number in self._history.journal.called:
            return
        for known in self._dropped:
            is_same = call.answers_to(known.workflow) and call.request.key == known.key
            if is_same and json.loads(call.request.input) == json.loads(known.input):
                self._dropped.remove(known)
                call.number, call.chain_id = known.call, known.chain_id
                started = [
                    u
                    for u in self._claim.units
                    if u.call == known.call and u.kind == Kind.CHILD_STARTED
                ]
                call.key = (
                    json.loads(started[-1].payload or "{}").get("key", "")
                    if started
                    else known.key or ""
                )
                return

    def ask_to_end(self, call: ChildCall) -> None:
        """Cancel a started child and keep waiting for its end."""
        if self._code.closing or not self._agenda.is_open(call):
            return
        self._end(call)

    def unwant(self, call: ChildCall) -> Waiter | None:
        """Ask a child to end; return a waiter for its outcome, or None if there is nothing to wait
        for.
        """
        if (
            self._code.closing
            or not self._agenda.is_open(call)
            or call.request.close_policy != ClosePolicy.CANCEL
        ):
            return None
        if self._history.replaying and call.state != "decided":
            self._history.skip_marks(only_of_known=True)  # one of them records its start
        if not (call.chain_id or call.state == "decided"):
            return None
        call.waiter = self._code.driver.waiter()
        self._end(call)
        return call.waiter

    def _end(self, call: ChildCall) -> None:
        if not (self._history.replaying or call.is_unwanted or call.state == "decided"):
            self._agenda.unwant(call)
        call.is_unwanted = True
