"""Messages to runs: who sends them, and waking whoever they are for once they are committed."""

from __future__ import annotations

import getpass
import socket
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
    from pgflow._calls.worker import notify
    from pgflow._io import run
    from pgflow.app import wake_and_tell
    from pgflow.listener import DONE_CHANNEL, chunks

    for text in chunks(set(wake_and_tell(connection, chains, lanes))):
        run(connection, notify(DONE_CHANNEL, text))
