"""Suspects: runs whose worker died with no unit since its claim. A worker has one at a time, so
that only the guilty run's count grows, and takes the next once a body of it has returned.
"""

from __future__ import annotations

from collections.abc import Callable

from pgflow._engine.execution import Execution
from pgflow._model.claims import Claim


class Suspects:
    """See the module.

    Args:
        want_claims: Called when there is room for the next.
    """

    def __init__(self, want_claims: Callable[[], None]) -> None:
        self._want_claims = want_claims
        self._running: int | None = None

    @property
    def has_room(self) -> bool:
        """True if a claim may bring one."""
        return self._running is None

    def claimed(self, claim: Claim) -> None:
        """This one was claimed."""
        self._running = claim.run_id

    def got_on(self, execution: Execution) -> None:
        """A suspect that has got on makes room for the next. A licence is not enough: its body may
        be what kills.
        """
        if self._running == execution.run_id:
            self._running = None
            self._want_claims()
