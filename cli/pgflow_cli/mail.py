"""Messages to runs: who sends them, and waking whoever they are for once they are committed."""

from __future__ import annotations

import getpass
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg


def operator() -> str:
    """Who is at the terminal, for the history of runs."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


def wake(connection: psycopg.Connection[Any], chains: Sequence[int], lanes: Sequence[int] = ()) -> None:
    """Wakes runs that have mail, and tells workers, after the commit that gave a reason to."""
    from pgflow._calls import wake as wake_calls
    from pgflow._calls.worker import notify
    from pgflow._io import run
    from pgflow.app import WAKE_AGAIN_SECONDS
    from pgflow.listener import DONE_CHANNEL, WORK_CHANNEL, chunks, payloads

    for delay in WAKE_AGAIN_SECONDS if chains else ():
        time.sleep(delay)
        woken = run(connection, wake_calls.wake(chains, tell=True))
        for text in chunks(set(woken.ended)):
            run(connection, notify(DONE_CHANNEL, text))
        if not woken.busy:
            break
    for text in payloads(set(lanes), set()):
        run(connection, notify(WORK_CHANNEL, text))
