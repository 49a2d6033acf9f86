"""Locks: the two calls of a block.

The first one asks, and its outcome is the fence. The second one
holds: it is open as long as the block, and ends when the lock is given back, or is found lost.
While a block is open, each flush asks the database whether its lock still counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pgflow._engine.calls import Call, Waits
from pgflow._model.kinds import Kind
from pgflow._model.units import Unit
from pgflow.errors import LockRefused


@dataclass(eq=False)
class LockCall(Call):
    """A wait for a lock, perhaps with a time-out."""

    is_shared: bool = field(kw_only=True)
    ttl_seconds: float | None = None
    within: tuple[int, ...] = ()
    """Fences that the code holds around it."""
    give_back: Callable[[int], None] = lambda _number: None
    """Called if it was won, and nobody waits for it any more."""
    started_seq: int = 0
    due_us: int | None = None

    def fits(self, unit: Unit) -> bool:
        """Return True for a lock that was won or refused, and for the end of the wait."""
        return unit.kind in (Kind.LOCK_WON, Kind.WAIT_TIMED_OUT, Kind.LOCK_RELEASED) and (
            unit.name is None or self.answers_to(unit.name)
        )

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the fence; as an error, a time-out or why the lock is refused."""
        if unit.kind == Kind.LOCK_WON:
            return json.loads(unit.payload or "{}")["fence"], None
        if unit.kind == Kind.WAIT_TIMED_OUT:
            return None, TimeoutError(f"no lock {self.name!r} in time")
        return None, LockRefused(
            f"lock {self.name!r} would never be had: who holds it waits for what this run holds",
            "deadlock",
        )

    def wait(self, waits: Waits) -> None:
        """Names the lock, and its time-out."""
        row = [
            self.number,
            self.name,
            self.is_shared,
            self.ttl_seconds,
            self.started_seq or None,
            list(self.within),
        ]
        waits.add("locks", row)
        if self.started_seq:
            waits.add("retries", [self.number, self.started_seq])

    def read(self, unit: Unit) -> bool:
        """Takes down that it stands in the queue."""
        return unit.kind == Kind.LOCK_ASKED and self.answers_to(unit.name)

    def deliver(self, value: Any, error: Exception | None) -> None:
        """Hands the fence to the code; gives the lock back if the code waits no longer."""
        if error is None and (self.waiter is None or self.waiter.done()):
            self.give_back(self.number)
        super().deliver(value, error)

    @property
    def looked_at_us(self) -> int | None:
        """Time at which it times out."""
        return self.due_us


@dataclass(eq=False)
class HoldCall(Call):
    """A block that holds a lock."""

    fence: int = field(kw_only=True)
    on_lost: Callable[[], None] = lambda: None
    """Called if the lock is lost while the block goes on."""
    is_given_back: bool = False
    """True once the code has come to the end of the block."""
    lost: str | None = None
    """Reason for which the lock was lost, a code; None while it is not known to be."""

    def fits(self, unit: Unit) -> bool:
        """Return True for a lock that was given back or lost."""
        return unit.kind == Kind.LOCK_RELEASED and (unit.name is None or self.answers_to(unit.name))

    def decode(self, unit: Unit) -> tuple[Any, Exception | None]:
        """Return the reason for which it was lost; None if it was given back."""
        return json.loads(unit.payload or "{}").get("lost"), None

    def deliver(self, value: Any, error: Exception | None) -> None:
        """Ends the hold; tells the block if that goes on."""
        self.lost = value
        super().deliver(value, error)
        if value is not None and not self.is_given_back:
            self.on_lost()

    def row(self) -> list[Any]:
        """The hold as a question names it."""
        return [self.number, self.name, self.fence, self.is_given_back]

    @property
    def waits_for_database(self) -> bool:
        """False until it is given back: the code ends it."""
        return self.is_given_back
