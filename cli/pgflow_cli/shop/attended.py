"""Runs a module, as ``python -m`` does, for as long as its standard input stays open.

Use it for processes that must not outlive their parent, even one that is killed: the kernel closes
the pipe when the parent has no time to send a signal.
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
    """Run the module that the first argument names, with the other arguments."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
