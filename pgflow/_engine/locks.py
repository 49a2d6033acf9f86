"""Locks: the two calls of a block.

The first call acquires the lock; its outcome is the fence. The second is open as long as the block
and ends when the lock is released or lost. While a block is open, each flush checks in the database
that its lock still counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pgflow._engine.calls import Call, TimedCall, Waits
from pgflow._model.kinds import Kind
from pgflow._model.protocol import HoldRow, LockRow
from pgflow._model.units import Unit
from pgflow.errors import LockRefused


@dataclass(eq=False)
class LockCall(TimedCall):
    """A wait for a lock, optionally with a time-out."""

    is_shared: bool = field(kw_only=True)
    ttl_seconds: float | None = None
    within: tuple[int, ...] = ()
    """Fences that the code already holds."""
    give_back: Callable[[int], None] = lambda _number: None
    """Called if the lock was acquired but the code does not wait any more."""

    def fits(self, unit: Unit) -> bool:
        """Return True for a lock that was acquired or refused, or a time-out."""
        return unit.kind in (Kind.LOCK_WON, Kind.WAIT_TIMED_OUT, Kind.LOCK_RELEASED) and (
            unit.name is None or self.answers_to(unit.name)
        )

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the fence; as an error, the time-out or the refusal."""
        if unit.kind == Kind.LOCK_WON:
            return json.loads(unit.payload or "{}")["fence"], None
        if unit.kind == Kind.WAIT_TIMED_OUT:
            return None, TimeoutError(f"no lock {self.name!r} in time")
        return None, LockRefused(
            f"lock {self.name!r} would never be had: who holds it waits for what this run holds",
            "deadlock",
        )

    def wait(self, waits: Waits) -> None:
        """Add the lock and its time-out."""
        row = LockRow(
            self.number,
            self.name,
            self.is_shared,
            self.ttl_seconds,
            self.started_seq or None,
            list(self.within),
        )
        waits["locks"].append(row)
        if self.started_seq:
            waits["retries"].append([self.number, self.started_seq])

    def read(self, unit: Unit) -> bool:
        """Return True for the mark that it is queued."""
        return unit.kind == Kind.LOCK_ASKED and self.answers_to(unit.name)

    def deliver(self, value: Any, error: Exception | None) -> None:
        """Pass the fence to the code, or release the lock if the code does not wait any more."""
        if error is None and (self.waiter is None or self.waiter.done()):
            self.give_back(self.number)
        super().deliver(value, error)


@dataclass(eq=False)
class HoldCall(Call):
    """A block that holds a lock."""

    fence: int = field(kw_only=True)
    on_lost: Callable[[], None] = lambda: None
    """Called if the lock is lost inside the block."""
    is_given_back: bool = False
    """True once the code has reached the end of the block."""
    lost: str | None = None
    """Reason why the lock was lost, a code; None while it is not known to be."""

    def fits(self, unit: Unit) -> bool:
        """Return True for a lock that was released or lost."""
        return unit.kind == Kind.LOCK_RELEASED and (unit.name is None or self.answers_to(unit.name))

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the reason why it was lost; None if it was released."""
        return json.loads(unit.payload or "{}").get("lost"), None

    def deliver(self, value: Any, error: Exception | None) -> None:
        """End the hold, and notify a block that is still running of the loss."""
        self.lost = value
        super().deliver(value, error)
        if value is not None and not self.is_given_back:
            self.on_lost()

    def row(self) -> HoldRow:
        """Return the hold as a question lists it."""
        return HoldRow(self.number, self.name, self.fence, self.is_given_back)

    @property
    def waits_for_database(self) -> bool:
        """True once it is released: until then the code ends it."""
        return self.is_given_back
