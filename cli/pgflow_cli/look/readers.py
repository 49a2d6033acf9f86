"""Readers of standard output: a person at a terminal, in a log of GitHub Actions or in cron's mail;
else a program.

A pipe does not show who reads it. But a process started by a runner or by cron writes into its log
or mail, and every process that shares its standard output has the same readers. ``$(pgflow list)``
and ``pgflow list | jq`` have a pipe of their own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CRONS = ("cron", "crond", "fcron", "anacron")
PROC = Path("/proc")
MOST_ANCESTORS = 64


def is_person() -> bool:
    """Return whether people read what this process writes to standard output."""
    if sys.stdout.isatty():
        return True
    try:
        first = _find_unattended(
            os.getppid(), in_actions=os.environ.get("GITHUB_ACTIONS") == "true"
        )
        return first is not None and os.path.samestat(
            os.fstat(sys.stdout.fileno()), (PROC / str(first) / "fd" / "1").stat()
        )
    except (
        OSError,
        ValueError,
    ):  # no /proc, no file behind the stream, or a process that has just ended
        return False


def _find_unattended(process: int, *, in_actions: bool) -> int | None:
    """Return the ancestor that a runner of GitHub Actions, or cron, has started; None without
    one.
    """
    below = found = None
    for _ in range(MOST_ANCESTORS):
        if process <= 1:
            break
        parent, name = _parent_and_name(process)
        if name in CRONS:
            return below
        if in_actions and _is_of_actions(process):
            found = process
        below, process = process, parent
    return found


def _parent_and_name(process: int) -> tuple[int, str]:
    text = (PROC / str(process) / "stat").read_text(
        errors="replace"
    )  # "PID (NAME) STATE PARENT ...": a name may hold anything
    before, _, after = text.rpartition(")")
    return int(after.split()[1]), before.partition("(")[2]


def _is_of_actions(process: int) -> bool:
    try:
        return b"GITHUB_ACTIONS=true" in (PROC / str(process) / "environ").read_bytes().split(b"\0")
    except PermissionError:
        return False
