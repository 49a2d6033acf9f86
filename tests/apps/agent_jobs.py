"""The agents of the examples, in a worker that dies once: as soon as an act is done."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pgflow
from examples.agents import browser, coding, research, sales, sre
from examples.agents.counterparty import Counterparty
from pgflow.workspace.git import Git

RECORD = Path(os.environ["AGENT_RECORD"])


def die() -> None:
    """Dies by SIGKILL, once of all processes."""
    if not RECORD.exists():
        RECORD.write_text("died")
        os.kill(os.getpid(), signal.SIGKILL)


write, run = Counterparty._write, Git.run


def write_and_die(self: Counterparty, line: dict[str, Any]) -> None:
    write(self, line)
    die()


def run_and_die(self: Git, *arguments: str, **options: Any) -> Any:
    done = run(self, *arguments, **options)
    if arguments[0] == "update-ref" and "change" in arguments:
        die()
    return done


Counterparty._write = write_and_die  # type: ignore[method-assign]
Git.run = run_and_die  # type: ignore[method-assign]

app = pgflow.AsyncApp(
    include=[browser.buy, coding.code, research.research, sales.reach_out, sre.respond]
)
