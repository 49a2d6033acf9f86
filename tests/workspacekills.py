"""Workers of a workspace are killed inside stages, between them and while they deliver: `python -m
tests.workspacekills SERVER_DSN [--kills N] [--seed S]`.

Each run is one of `examples/meeting-summarizer`, asked for its extended notes, and told where to
deliver. Its workers die by SIGKILL, at a moment drawn by the seed or as soon as the delivery has
begun, until it has lost a few of them; the last one is left alone. What was recorded when a worker
died is never done again, and in the end there is one folder with each file once, as its stage has
written it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from tests import filekills
from tests.campaigns.nursery import Child

# filekills makes the kits importable by their names
import servers  # isort: skip

from pgflow import AsyncApp, Signal
from pgflow.declare import parse_workflow
from pgflow.declare.durable import Settings, declared, freeze
from pgflow.errors import PgflowError

EXAMPLE = servers.REPOSITORY / "examples" / "meeting-summarizer"
EXTENDED = "04-extended-notes"
FILES = {
    "meeting-notes.md": "01-meeting-notes",
    "action-items.md": "02-action-items",
    "key-insights.md": "03-key-insights",
    "extended-notes.md": EXTENDED,
    "summary.md": "05-assemble-and-deliver",
}
TARGET: Signal[Any] = Signal("delivery_target", dict)


class Play(filekills.Play):
    """One run of the workspace."""

    key = ""
    has_aims = False
    goal: ClassVar[str | None] = None

    def play_here(self) -> None:
        """Play it with the nursery that is there."""
        shutil.copytree(EXAMPLE, self.folder, dirs_exist_ok=True)
        self.key = asyncio.run(self.begin(self.folder))
        self.work_on(self.key)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            found = conn.execute("select status from pgflow.runs where key = %s", (self.key,))
            status = (found.fetchone() or ("gone",))[0]
        if status != "completed":
            self.wrong.append(f"{self.key} is {status}")
        self.judge()

    def judge(self) -> None:
        """Look at what was delivered."""
        out = self.folder / "out"
        folders = [path.name for path in out.iterdir()] if out.exists() else []
        if folders != ["weekly"]:
            self.wrong.append(f"{self.key} has delivered to {folders}")
            return
        there = {path.name: path.read_bytes() for path in (out / "weekly").iterdir()}
        there.pop(".pgflow-delivery.json", None)
        made = {
            name: (self.folder / "stages" / stage / "output" / name).read_bytes()
            for name, stage in FILES.items()
        }
        if there != made:
            wrong = sorted(name for name in {*there, *made} if there.get(name) != made.get(name))
            self.wrong.append(f"{self.key} has delivered {wrong} otherwise than they were made")

    async def begin(self, path: Path) -> str:
        """Start it; answer its key."""
        async with AsyncApp(self.dsn, include=[declared]) as app:
            settings: Any = Settings(
                cwd=str(path), provider="python:declared_agents:slow_scribe", requested=(EXTENDED,)
            )
            return (await app.start(declared, freeze(parse_workflow(path), path), settings)).key

    async def answer(self) -> None:
        """Be the person who names the folder, again and again."""
        async with AsyncApp(self.dsn, include=[declared]) as app:
            with suppress(PgflowError):  # it has just ended
                await app.send(
                    self.key, TARGET, {"folder_path": "out/weekly"}, idempotency_key="folder"
                )

    def answer_if_asked(self, conn: psycopg.Connection[Any]) -> None:
        """Send the signal whether it is waited for or not."""
        asyncio.run(self.answer())

    def lie_in_wait(self, worker: Child) -> None:
        """Have every second worker die as soon as it delivers."""
        self.trap = None
        if self.chance.random() < 0.5:
            return
        self.trap = self.goal
        out = self.folder / "out" / "weekly"
        files = self.chance.randrange(len(FILES))

        def kill() -> None:
            while worker.code is None:
                with suppress(OSError):
                    if sum(1 for _ in out.iterdir()) > files:
                        worker.send(signal.SIGKILL)
                        return
                time.sleep(0.0005)

        threading.Thread(target=kill, daemon=True).start()


class LongPlay(Play):
    """The same, in which a worker that is to die as it delivers lives until then."""

    goal = "delivering"


if __name__ == "__main__":
    sys.exit(filekills.main(LongPlay, __doc__))
