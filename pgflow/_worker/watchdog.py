"""The watchdog: logs once which code blocks the worker's loop, whenever it is blocked for long. It
looks from the heart's thread.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

from pgflow._engine.execution import Execution
from pgflow._engine.loop import WorkflowLoop

log = logging.getLogger("pgflow")


class Watchdog:
    """Detects a blocked loop.

    Args:
        ticks: Returns a number that the loop moves while it runs.
        loop_thread_id: Id of the loop's thread.
        blocked_after_seconds: A loop that is blocked for this long is worth a warning.
    """

    def __init__(
        self, ticks: Callable[[], int], loop_thread_id: int, blocked_after_seconds: float
    ) -> None:
        self._ticks = ticks
        self._loop_thread_id = loop_thread_id
        self._blocked_after_seconds = blocked_after_seconds
        self._last = (0, time.monotonic())
        self._warned = False

    def begin(self) -> None:
        """Start watching now."""
        self._last = (self._ticks(), time.monotonic())

    def look(self) -> None:
        """Check whether the loop has moved since the last look, and warn if it is blocked."""
        ticks, now = self._ticks(), time.monotonic()
        if ticks != self._last[0]:
            self._last = (ticks, now)
            self._warned = False
        elif now - self._last[1] > self._blocked_after_seconds and not self._warned:
            self._warned = True
            who, where = _culprit(sys._current_frames().get(self._loop_thread_id))
            log.warning(
                "the worker's loop has been blocked for %.1f s by %s: %s",
                now - self._last[1],
                who,
                where,
            )


def _culprit(frame: FrameType | None) -> tuple[str, str]:
    """Return (name, source line) of the code that blocks the loop: a run's if it is on the stack,
    else a body or the application.
    """
    where = traceback.format_stack(frame)[-1].strip() if frame is not None else "?"
    while frame is not None:
        owner = frame.f_locals.get("self")
        # A compiled execution has no frame of its own.
        execution = owner.host if isinstance(owner, WorkflowLoop) else owner
        if isinstance(execution, Execution):
            return f"the code of run {execution.claim.key!r} ({execution.claim.workflow})", where
        frame = frame.f_back
    return "the body of a step, or the application", where
