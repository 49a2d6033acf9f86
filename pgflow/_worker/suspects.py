"""Suspects: runs that a second worker died over, with no unit since its claim. A worker has one
group of them at a time, which the database bounds (`sql/ops/worker.sql`), so that a run that kills
is soon alone.

It takes the next group once each of this one has got on: a body of it has returned, or it has lived
on here. For how long doubles with each death, so that one that kills late is found as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pgflow._engine.execution import Execution
from pgflow._model.claims import Claim

MOST_DOUBLINGS = 16


class Suspects:
    """See the module. It keeps, by run, the alarm at which a suspect has lived on.

    Args:
        want_claims: Called when there is room for the next group.
        dead_after_seconds: Without a sign of life so long, a worker is dead.
    """

    def __init__(self, want_claims: Callable[[], None], dead_after_seconds: float) -> None:
        self._want_claims = want_claims
        self._dead_after_seconds = dead_after_seconds
        self._alarms: dict[int, asyncio.TimerHandle] = {}

    @property
    def has_room(self) -> bool:
        """True if a claim may bring some."""
        return not self._alarms

    def claimed(self, claim: Claim) -> None:
        """This one was claimed."""
        run_id = claim.run_id
        lives_on = self._dead_after_seconds * 2 ** min(claim.suspect - 2, MOST_DOUBLINGS)
        alarm = asyncio.get_running_loop().call_later(lives_on, self._cleared, run_id)
        self._alarms[run_id] = alarm

    def got_on(self, execution: Execution) -> None:
        """A suspect that has got on makes room. A licence is not enough: its body may be what
        kills.
        """
        if self._alarms:
            self._cleared(execution.run_id)

    def _cleared(self, run_id: int) -> None:
        alarm = self._alarms.pop(run_id, None)
        if alarm is not None:
            alarm.cancel()
            if not self._alarms:
                self._want_claims()
