"""Messages to runs: who sends them, and waking their runs after the commit."""

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
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def wake(
    connection: psycopg.Connection[Any], chains: Sequence[int], lanes: Sequence[int] = ()
) -> None:
    """Wake runs that have mail, and notify workers. Call it after the commit that sent the mail.

    If waking fails, the mail is committed all the same: do not send it again.
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
        note(f"could not notify a worker, so its next poll picks this up: {redacted(error)}")
