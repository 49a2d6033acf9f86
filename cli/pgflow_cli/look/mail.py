"""Messages to runs: who sends them, and waking whoever they are for once they are committed."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg


def operator() -> str:
    """Return the name of the person at the terminal, for the history of runs."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


def wake(
    connection: psycopg.Connection[Any], chains: Sequence[int], lanes: Sequence[int] = ()
) -> None:
    """Wakes runs that have mail, and tells workers, after the commit that gave a reason to.

    If that fails, what was sent is committed all the same, and must not be sent again.
    """
    import psycopg

    from pgflow._db.calls.worker import notify
    from pgflow._db.query import run
    from pgflow._worker.listener import DONE_CHANNEL, chunks
    from pgflow.app import wake_and_tell
    from pgflow.logs import redacted
    from pgflow_cli.look.output import note

    try:
        for text in chunks(set(wake_and_tell(connection, chains, lanes))):
            run(connection, notify(DONE_CHANNEL, text))
    except psycopg.Error as error:
        note(f"nobody could be woken, the next poll of a worker will: {redacted(error)}")
