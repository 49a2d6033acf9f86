"""Agents for runs of Agent SOPs in tests: they ask, and have other SOPs carried out, where a file
beside the run says so.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from declared_agents import witness

from pgflow.declare.durable.providers import Turn


def answer(turn: Turn) -> str:
    """Says what the file of replies says of this turn, else which step it has done."""
    witness(turn, "begins")
    return reply(turn)


def reply(turn: Turn) -> str:
    """That answer, without a witness."""
    Path(turn.cwd, f"prompt-{turn.key.replace('/', '_')}").write_text(turn.prompt)
    replies = Path(turn.cwd, "replies.json")
    said = json.loads(replies.read_text()) if replies.exists() else {}
    return str(said.get(turn.key, f"did {turn.node}"))


def slow(turn: Turn) -> str:
    """The same, in a fifth of a second: there is time to die in it."""
    witness(turn, "begins")
    time.sleep(0.2)
    said = reply(turn)
    witness(turn, "ends")
    return said


def echo(turn: Turn) -> str:
    """Says what it was told."""
    return turn.prompt
