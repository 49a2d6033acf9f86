"""A run's time: an estimate of the database's clock, and the time of the last outcome."""

from __future__ import annotations

from pgflow._engine.host import Line
from pgflow._engine.parts import Parts


class Clock:
    """Owns the time of the code and the estimate of the database's clock, which never goes back."""

    def __init__(self, parts: Parts) -> None:
        claim = parts.claim
        self._monotonic_ns = parts[Line].monotonic_ns
        self._created_us = claim.created_us
        self._ahead_us = claim.now_us - self._monotonic_ns() // 1000
        self.stands_us: int | None = None
        """Time of the last outcome, which is the code's present; None before the first."""

    def estimate_us(self) -> int:
        """Return the estimated database clock in microseconds: its time at the claim plus the time
        since.
        """
        return max(self._ahead_us + self._monotonic_ns() // 1000, self.stands_us or 0)

    def sync(self, database_us: int) -> None:
        """Correct the estimate by a time from the database."""
        self._ahead_us = max(self._ahead_us, database_us - self._monotonic_ns() // 1000)

    def stand_at(self, us: int) -> None:
        """Set the code's time to that of a new outcome."""
        self.stands_us = us

    def stand_from(self, us: int) -> None:
        """Set the code's time to that of a recorded outcome. It never goes back, although the
        clocks of two workers may disagree.
        """
        self.stands_us = max(us, self.stands_us or 0)

    def seconds(self) -> float:
        """Return the seconds from the run's creation to the last outcome."""
        return (
            0.0 if self.stands_us is None else max(0.0, (self.stands_us - self._created_us) / 1e6)
        )
