"""Suspects: runs whose worker died without a new unit since the claim, twice. A worker takes one
group of them at a time, whose size the database bounds (`sql/ops/worker.sql`), so a run that kills
its workers is soon alone in its group.

The worker takes the next group once it has cleared each run of this one: a body has returned, or
the run has survived here for long enough. That time doubles with each death, to catch a run that
kills late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pgflow._engine.execution import Execution
from pgflow._model.claims import Claim

# Bounds the time at about a week with the default time-out.
MOST_DOUBLINGS = 16


class Suspects:
    """Tracks suspects. It keeps, by run, the timer that clears a surviving one.

    Args:
        want_claims: Called when there is room for the next group.
        dead_after_seconds: A worker without a heartbeat for this long is dead.
    """

    def __init__(self, want_claims: Callable[[], None], dead_after_seconds: float) -> None:
        self._want_claims = want_claims
        self._dead_after_seconds = dead_after_seconds
        self._alarms: dict[int, asyncio.TimerHandle] = {}

    @property
    def has_room(self) -> bool:
        """True if a claim may bring suspects."""
        return not self._alarms

    def claimed(self, claim: Claim) -> None:
        """Track a claimed suspect."""
        run_id = claim.run_id
        lives_on = self._dead_after_seconds * 2 ** min(claim.suspect - 2, MOST_DOUBLINGS)
        alarm = asyncio.get_running_loop().call_later(lives_on, self._cleared, run_id)
        self._alarms[run_id] = alarm

    def got_on(self, execution: Execution) -> None:
        """Clear a suspect that has made progress. A licence is not enough, because the licensed
        body may be what kills.
        """
        if self._alarms:
            self._cleared(execution.run_id)

    def _cleared(self, run_id: int) -> None:
        alarm = self._alarms.pop(run_id, None)
        if alarm is not None:
            alarm.cancel()
            if not self._alarms:
                self._want_claims()
