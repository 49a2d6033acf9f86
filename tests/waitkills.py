"""Workers of runs that wait are killed before, in and after their waits, again and again: `python
-m tests.waitkills SERVER_DSN [--kills N] [--seed S] [--lanes N]`.

A file has a wait of each kind: for a time, until a moment, for an event that comes and for one that
does not, and for a person. A workspace has a stage that waits for a time and one that waits for a
signal until its deadline. Each loses so many workers. What was recorded when a worker died is never
done again, no wait ends twice or otherwise than it must, and each message, which is sent once, is
taken. The rest is `tests.filekills`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from tests import filekills

# filekills makes the kits importable by their names
from icmkit import workspace  # isort: skip
from runkit import WITNESS, write  # isort: skip

NODES = """
- {id: begin, bash: %(begin)s}
- {id: time, wait: {duration_ms: 1500}, depends_on: [begin]}
- {id: until, wait: {until: $begin.output}, depends_on: [begin]}
- {id: event, wait: {event: go, deadline_ms: 3600000}, depends_on: [begin]}
- {id: late, wait: {event: never, deadline_ms: 2000}, depends_on: [begin]}
- {id: person, wait: {attention: "Look at it."}, depends_on: [begin]}
- {id: a, bash: %(a)s, depends_on: [time, until]}
- {id: b, bash: %(b)s, depends_on: [event, late, person]}
- {id: again, wait: {duration_ms: 700}, depends_on: [a, b]}
- {id: last, bash: %(last)s, depends_on: [again]}
"""
SAYS = {
    "begin": "date -u -d '+2 seconds' +%Y-%m-%dT%H:%M:%SZ",
    "a": "echo $time.output.status $until.output.status",
    "b": "echo $event.output.status $late.output.status $person.output.status",
    "last": "echo $a.output $b.output $again.output.status",
}
FLOW = """
    name: timed
    state:
      notes: { type: file, location: notes.md, written_by: 01-notes }
      told: { type: file, location: told.md, written_by: 03-tell }
      target: { type: signal, schema: { folder: string } }
    stages:
      - { id: 01-notes, writes: [notes], wait: 2s }
      - id: 02-send
        reads: [notes]
        deadline: 3 days
        side_effects: [{ system: filesystem, idempotency_key: target.folder }]
      - { id: 03-tell, reads: [notes], writes: [told], wait: 1s }
"""


class FilePlay(filekills.Play):
    """One run of the file."""

    output = "satisfied satisfied satisfied expired satisfied satisfied"
    message: ClassVar[tuple[str, Any]] = ("go", None)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.was_sent = False

    def file(self) -> Path:
        """Write the file."""
        texts = {name: json.dumps(WITNESS + said) for name, said in SAYS.items()}
        path: Path = write(self.folder, NODES % texts, more="interactive: true")
        return path

    def answer_if_asked(self, conn: psycopg.Connection[Any]) -> None:
        """Send the message once, at some moment; answer the person's question."""
        if not self.was_sent and self.chance.random() < 0.02:
            self.was_sent = True
            name, value = self.message
            (key,) = conn.execute(
                "select key from pgflow.runs order by run_id desc limit 1"
            ).fetchone() or ("",)
            conn.execute("select pgflow.send_signal(%s, %s, %s)", (key, name, json.dumps(value)))
        super().answer_if_asked(conn)

    def play_here(self) -> None:
        """Play it, and look whether the message was taken."""
        super().play_here()
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            left = conn.execute("select count(*) from pgflow.undelivered").fetchone()
        if left != (0,):
            self.wrong.append(f"messages were not taken: {left}")


class StagePlay(FilePlay):
    """One run of the workspace."""

    settings: ClassVar[dict[str, Any]] = {"provider": "python:declared_agents:slow_scribe"}
    message = ("target", {"folder": "out"})
    has_aims = False

    def file(self) -> Path:
        """Write the workspace."""
        path: Path = workspace(self.folder, workflow=FLOW)
        return path

    def play_here(self) -> None:
        """Play it, and look at what was delivered."""
        self.output = "03-tell of ['CLAUDE.md', 'notes.md']"
        super().play_here()
        made, out = self.folder / "notes.md", self.folder / "out" / "notes.md"
        if not out.exists() or out.read_bytes() != made.read_bytes():
            self.wrong.append("the notes were not delivered")
        shutil.rmtree(self.folder / "out", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(filekills.main(FilePlay, __doc__) | filekills.main(StagePlay, __doc__))
