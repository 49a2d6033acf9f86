"""Loops that must go on: what one of them raises ends neither it nor, unseen, its worker.

A loop that fails begins again after a while, each time a longer one. Where that is in vain, whoever rests on the
loop is told and ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger("pgflow")

MAX_FAILURES = 8
"""So many failures in a row are the end: about ten seconds of beginning again."""
HEALTHY_SECONDS = 60.0
"""After so long without a failure, the next is the first again."""


def back_off_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return float(min(5.0, 0.05 * 2 ** min(failures, 10))) * random.uniform(0.5, 1)  # noqa: S311 - spreads the load


class Failures:
    """Counts the failures of a loop that come close upon each other."""

    def __init__(self) -> None:
        self.count = 0
        self._last = time.monotonic()

    def add(self) -> bool:
        """One more; answers whether it is worth to begin again."""
        now = time.monotonic()
        self.count = 1 if now - self._last > HEALTHY_SECONDS else self.count + 1
        self._last = now
        return self.count < MAX_FAILURES


async def keep_going(name: str, loop: Callable[[], Awaitable[Any]], give_up: Callable[[str, BaseException], None]) -> None:
    """Runs a loop until its task is cancelled.

    Args:
        name: What the log calls it.
        loop: Makes a coroutine that never returns.
        give_up: Called with the name and the last error once beginning again is in vain.
    """
    failures = Failures()
    while True:
        error: BaseException
        try:
            await loop()
            error = RuntimeError("it has ended by itself")
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            error = cancelled  # something in it was cancelled, and not the loop
        except Exception as failed:  # noqa: BLE001 - whatever it is, it must go on
            error = failed
        if not failures.add():
            give_up(name, error)
            return
        delay = back_off_seconds(failures.count)
        log.error("%s failed, and begins again in %.2f s", name, delay, exc_info=error)
        await asyncio.sleep(delay)
