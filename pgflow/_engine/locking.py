"""Locking: acquire locks, hold them and release them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.calls import Call
from pgflow._engine.code import Code
from pgflow._engine.history import NEVER, History
from pgflow._engine.locks import HoldCall, LockCall
from pgflow._engine.timers import Timers


@mypyc_attr(allow_interpreted_subclasses=True)
class Locks:
    """Owns nothing: waits for locks, and the blocks that hold them, are open calls."""

    def __init__(self, agenda: Agenda, code: Code, history: History, timers: Timers) -> None:
        self._agenda = agenda
        self._code = code
        self._history = history
        self._timers = timers

    def issue(
        self,
        key: str,
        ttl: timedelta | None,
        timeout: timedelta | None,
        within: tuple[int, ...],
        *,
        is_shared: bool,
    ) -> LockCall:
        """Request a lock."""
        call = LockCall(
            self._history.next_call(),
            key,
            self._code.waiter(),
            is_shared=is_shared,
            ttl_seconds=None if ttl is None else ttl.total_seconds(),
            within=within,
            give_back=self._agenda.give_up_lock,
        )
        if call.number == NEVER:
            return call
        self._agenda.enter_lock(call)
        if timeout is not None:
            call.started_seq, call.due_us = self._timers.note(
                call.number, key, max(0.0, timeout.total_seconds())
            )
        self._agenda.look()
        return call

    def hold(self, asked: LockCall, fence: int, on_lost: Callable[[], None]) -> HoldCall:
        """Begin the block of an acquired lock."""
        call = HoldCall(
            self._history.next_call(), asked.name, self._code.waiter(), fence=fence, on_lost=on_lost
        )
        if call.number != NEVER:
            self._agenda.enter_hold(call)
        return call

    def release(self, call: HoldCall) -> None:
        """End the block: the next flush releases the lock."""
        call.is_given_back = True
        self._agenda.look()

    def give_up(self, number: int) -> None:
        """Have the next flush report that the code gave up waiting for a lock."""
        self._agenda.give_up_lock(number)

    def bring_on(self, call: Call) -> None:  # noqa: ARG002 - the question lists them all
        """Ask the database whether the lock was acquired or lost."""
        self._agenda.look()
