"""The place from which a worker's claims read:
the head of its lanes, or behind the last run claimed.

At the head stand the dead rows of all runs that were claimed before, until vacuum removes them. A
transaction that somebody holds open keeps vacuum from that, and reading past the rows of 100,000
runs takes longer than all the rest of a claim. So a look from the head that took long is not soon
repeated: for ten times as long, claims read on from where the last one ended.

A run that becomes ready before that place meanwhile - given back, woken, started with a higher
priority - waits for the next look from the head. That comes at once when a claim finds less than it
asked for, so that only behind a backlog anything waits; and after a second at the latest. Where
nothing holds vacuum back a look takes a fraction of a millisecond, and hardly any claim reads on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pgflow._db.calls.claim import ClaimRequest, Position
from pgflow._model.claims import Claim

TIMES_AS_LONG = 10
"""Factor by which a look from the head is not repeated sooner than it took: such looks take at most
about a tenth of the time.
"""

MOST_SECONDS = 1.0
"""As the interval of polls, after which a run that nobody was told of is found at the latest."""


class ClaimCursor:
    """See the module.

    Args:
        clock: Seconds, on a clock that only measures durations.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Position | None = None
        self._head_due = 0.0

    def position(self) -> Position | None:
        """Behind which run the next claim should look; None = from the head."""
        return self._last if self._clock() < self._head_due else None

    def answered(self, request: ClaimRequest, claims: list[Claim]) -> None:
        """Learns from what a claim found; claims may overtake each other."""
        if len(claims) < request.max_runs:
            self._last = None
            return
        # Suspects are picked wherever they stand.
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
