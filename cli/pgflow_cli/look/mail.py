"""The person at the terminal, for the history of runs."""

from __future__ import annotations

import getpass
import socket


def operator() -> str:
    """Return the name of the person at the terminal."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
