"""The position from which a worker's claims read: the head of its lanes, or behind the last run
claimed.

The head of a lane fills with the dead rows of claimed runs until vacuum removes them, which a
long-running transaction prevents. Reading past the rows of 100,000 runs takes longer than the rest
of a claim. So after a slow look from the head, claims resume behind the last run claimed for ten
times as long as that look took.

A run that becomes ready before that position (handed back, woken, started with a higher priority)
waits for the next look from the head. That look follows at once when a claim finds less than it
asked for, so runs wait only behind a backlog, and it follows after a second at the latest. Where
vacuum keeps up, a look takes a fraction of a millisecond and hardly any claim resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pgflow._db.calls.claim import ClaimRequest, Position
from pgflow._model.claims import Claim

TIMES_AS_LONG = 10
"""Pause between slow looks from the head, as a multiple of what the last one took: such looks take
at most about a tenth of the time.
"""

MOST_SECONDS = 1.0
"""Longest such pause: the interval of polls, which bounds how long an unnotified run waits."""


class ClaimCursor:
    """Decides where the next claim reads from.

    Args:
        clock: Seconds, on a clock that only measures durations.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Position | None = None
        self._head_due = 0.0

    def position(self) -> Position | None:
        """Return the run behind which the next claim reads; None to read from the head."""
        return self._last if self._clock() < self._head_due else None

    def answered(self, request: ClaimRequest, claims: list[Claim]) -> None:
        """Learn from the result of a claim. Claims may overtake each other."""
        if len(claims) < request.max_runs:
            self._last = None
            return
        # Suspects are picked from any position.
        last = max(
            ((claim.priority, claim.run_id) for claim in claims if not claim.is_suspect),
            default=None,
        )
        if request.after is None:
            self._last = last
            self._head_due = self._clock() + min(
                claims[0].took_us / 1e6 * TIMES_AS_LONG, MOST_SECONDS
            )
        elif self._last is not None and last is not None:
            self._last = max(self._last, last)
