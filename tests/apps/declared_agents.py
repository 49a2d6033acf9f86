"""Agents for runs of declared workflows in tests: functions that answer at once, and say so in a
file of witnesses.
"""

from __future__ import annotations

import os
from pathlib import Path

from pgflow.declare.durable.providers import Turn


def witness(turn: Turn, said: str) -> None:
    """A line in the file of witnesses, on the disk before anything else happens."""
    with Path(turn.cwd, "witness").open("a") as file:
        file.write(f"{turn.key} {said}\n")
        file.flush()
        os.fsync(file.fileno())


def answer(turn: Turn) -> str:
    """Says what it was told; DONE in the third turn of a loop."""
    witness(turn, "begins")
    witness(turn, "ends")
    return f"{turn.prompt} DONE" if turn.key.endswith("#3") else turn.prompt


def careful(turn: Turn) -> str:
    """The same, by an agent that keeps to its tools."""
    return answer(turn)


careful.honours = {"allowed_tools"}  # type: ignore[attr-defined]


def clumsy(turn: Turn) -> str:
    """Answers in JSON only when it is asked again."""
    return '```json\n{"ok": true}\n```' if ":reask#" in turn.key else "Yes, of course!"
