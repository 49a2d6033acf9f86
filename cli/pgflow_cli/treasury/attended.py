"""Runs a module, as ``python -m`` does, for as long as its standard input stays open.

For processes that must not outlive the one that started them, however that one ends: a pipe is
closed by the kernel even where nobody had the time to send a signal.
"""

from __future__ import annotations

import os
import runpy  # noqa: TID251 - a module of ours, as `python -m` starts it
import signal
import sys
import threading
import time

GRACE_SECONDS = 5.0
"""Seconds that it may take to stop when the other end is gone."""


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def main() -> None:
    """Runs the module that the first argument names, with the other arguments."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
