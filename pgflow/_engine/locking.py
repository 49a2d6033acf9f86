"""Locking: acquire locks, hold them and release them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from pgflow._engine import mypyc_attr
from pgflow._engine.history import NEVER
from pgflow._engine.kind import KindOfCall
from pgflow._engine.locks import HoldCall, LockCall


@mypyc_attr(allow_interpreted_subclasses=True)
class Locks(KindOfCall[LockCall]):
    """Owns nothing: waits for locks are open calls."""

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
            self._code.driver.waiter(),
            is_shared=is_shared,
            ttl_seconds=None if ttl is None else ttl.total_seconds(),
            within=within,
            give_back=self._agenda.give_up_lock,
        )
        if call.number != NEVER:
            self._agenda.enter_lock(call)
            if timeout is not None:
                self._limit(call, key, timeout)
            self._agenda.look()
        return call

    def give_up(self, call: LockCall) -> None:
        """Have the next flush report, too, that the code gave up waiting for a lock."""
        super().give_up(call)
        self._agenda.give_up_lock(call.number)


@mypyc_attr(allow_interpreted_subclasses=True)
class Holds(KindOfCall[HoldCall]):
    """Owns nothing: blocks that hold a lock are open calls."""

    def issue(self, asked: LockCall, fence: int, on_lost: Callable[[], None]) -> HoldCall:
        """Begin the block of an acquired lock."""
        call = HoldCall(
            self._history.next_call(),
            asked.name,
            self._code.driver.waiter(),
            fence=fence,
            on_lost=on_lost,
        )
        if call.number != NEVER:
            self._agenda.enter_hold(call)
        return call

    def release(self, call: HoldCall) -> None:
        """End the block: the next flush releases the lock."""
        call.is_given_back = True
        self._agenda.look()
