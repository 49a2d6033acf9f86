"""The reaper: declares workers dead whose heartbeat counter has not moved over the whole time-out.

It adds up the gaps between its own successful looks. An overlong gap (this process was asleep) does
not count. The database compares the counter once more under a lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pgflow._db.calls import worker as calls
from pgflow._db.query import Query

log = logging.getLogger("pgflow")


class Reaper:
    """Watches the other workers. It keeps the last beat seen of each, and for how long it has not
    moved. It runs on the heart's thread.

    Args:
        look_seconds: Between looks.
        dead_after_seconds: A worker without a heartbeat for this long is dead.
        reaped: Called with the lanes of runs that are ready again.
    """

    def __init__(
        self, look_seconds: float, dead_after_seconds: float, reaped: Callable[[list[int]], object]
    ) -> None:
        self._look_seconds = look_seconds
        self._dead_after_seconds = dead_after_seconds
        self._reaped = reaped
        self._seen: dict[int, tuple[int, float]] = {}
        self._last_look: float | None = None

    def look(self, beats: dict[int, int], looked: float, ask: Callable[[Query[Any]], Any]) -> None:
        """Compare the beats of the others with those seen before, and reap workers that were silent
        for too long.

        Args:
            beats: The beats just read, by worker.
            looked: Time of reading them (``time.monotonic``).
            ask: Runs a query on the database.
        """
        gap = 0.0 if self._last_look is None else looked - self._last_look
        # An overlong gap: this process was asleep, and the others may have beaten unseen.
        if gap > max(4 * self._look_seconds, 2.0):
            gap = 0.0
        self._last_look = looked
        self._seen = {
            worker_id: (beat, self._silence(worker_id, beat, gap))
            for worker_id, beat in beats.items()
        }
        for worker_id, (beat, silence) in list(self._seen.items()):
            if silence >= self._dead_after_seconds or beat < 0:
                self._reap(worker_id, beat, ask)

    def forget(self) -> None:
        """Start over after a failed look: nothing seen before counts."""
        self._seen.clear()
        self._last_look = None

    def _silence(self, worker_id: int, beat: int, gap: float) -> float:
        last, silence = self._seen.get(worker_id, (None, 0.0))
        return silence + gap if last == beat else 0.0

    def _reap(self, worker_id: int, beat: int, ask: Callable[[Query[Any]], Any]) -> None:
        reaped: calls.Reaped = ask(calls.reap_worker(worker_id, beat))
        self._seen.pop(worker_id, None)
        if reaped.reclaimed or reaped.stuck:
            log.warning(
                "worker %s is dead: %d runs continue elsewhere, %d are stuck",
                worker_id,
                reaped.reclaimed,
                len(reaped.stuck),
            )
            self._reaped(reaped.lanes)
