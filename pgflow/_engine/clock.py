"""Time as a run has it: the database's clock as far as it is known,
and the time of the last outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pgflow._engine.host import Host
from pgflow._model.claims import Claim


class Clock:
    """Owns what is known of the database's clock, which never goes back,
    and the time at which the code stands.
    """

    def __init__(self, claim: Claim, host: Host[Any]) -> None:
        self._monotonic_ns: Callable[[], int] = host.monotonic_ns
        self._created_us = claim.created_us
        self._ahead_us = claim.now_us - host.monotonic_ns() // 1000
        self.stands_us: int | None = None
        """Time of the last outcome, at which the code stands; None before the first."""

    def estimate_us(self) -> int:
        """Return the database's clock as far as it is known here: its time at the claim and what
        has passed since.
        """
        return max(self._ahead_us + self._monotonic_ns() // 1000, self.stands_us or 0)

    def sync(self, database_us: int) -> None:
        """Learns the time that the database has given."""
        self._ahead_us = max(self._ahead_us, database_us - self._monotonic_ns() // 1000)

    def stand_at(self, us: int) -> None:
        """The code is given an outcome of this time."""
        self.stands_us = us

    def stand_from(self, us: int) -> None:
        """The code is given an outcome that is in the journal:
        a clock may have gone back between its workers.
        """
        self.stands_us = max(us, self.stands_us or 0)

    def seconds(self) -> float:
        """Return the seconds since the run was created, as of the last outcome."""
        return (
            0.0 if self.stands_us is None else max(0.0, (self.stands_us - self._created_us) / 1e6)
        )
