"""File locks that end with their process, however it ends.

`flock` belongs to an open file: the kernel drops it when the last copy of the descriptor is closed.
Python's descriptors do not pass to executed programs, so no program holds a lock by accident;
``postgres.lock`` is meant to be inherited, so its descriptor is passed on by name. A process that
merely forked has a copy, and with it the lock, for as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

POLL_SECONDS = 0.02


class FileLock:
    """One open lock file; closing it gives the lock back."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def try_lock(self, *, shared: bool = False) -> bool:
        """Take the lock if that is possible at once."""
        try:
            fcntl.flock(
                self.descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
            )
        except BlockingIOError:
            return False
        return True

    def lock_until(self, deadline: float, *, shared: bool = False) -> bool:
        """Take the lock, waiting until `deadline` (of the monotonic clock) at most."""
        while not self.try_lock(shared=shared):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def unlock(self) -> None:
        """Give the lock back and keep the file open."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give this process's share of the lock back; a second call does nothing.

        Not by unlocking, which would take the lock from a forked copy of this process as well.
        """
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def is_locked(path: Path) -> bool:
    """Return True if this lock is held exclusively, or by a process of the server."""
    if not path.exists():
        return False
    with FileLock(path) as probe:
        return not probe.try_lock(shared=True)
