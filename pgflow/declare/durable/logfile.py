"""Log of a run: ``logs/KEY.jsonl`` in the run's own folder, an event a line.

The journal is the truth. This file is for people and programs that watch a folder, and has what the
journal has not: what programs complained, how long each try took, and the tries that a dead worker
did not end. Workers on several machines write each to the folder that they see.

An event is an object with ``type``, ``workflow_id`` (the key of the run), ``ts`` and, if it is of a
node, ``step`` (the key of its step). The words are those of Archon's transcripts (``logger.ts``):
``workflow_start``, ``workflow_resume``, ``workflow_complete``, ``workflow_error``, ``node_start``,
``node_complete``, ``node_skipped``, ``node_error``, ``node_suspended``, ``gate_decision``,
``exec_output``, ``assistant`` and ``tool``.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

import pgflow
from pgflow.declare.durable.folders import Folders

Kind: TypeAlias = Literal[
    "workflow_start",
    "workflow_resume",
    "workflow_complete",
    "workflow_error",
    "node_start",
    "node_complete",
    "node_skipped",
    "node_error",
    "node_suspended",
    "gate_decision",
    "exec_output",
    "assistant",
    "tool",
]
"""Type of an event."""

TAIL: Final = 4000
"""Characters that an event says of a text, the last of what a program printed."""

log = logging.getLogger("pgflow")


class LogFile:
    """The log of a run in one folder.

    Args:
        folders: Folders of the run.
    """

    def __init__(self, folders: Folders) -> None:
        self.path = folders.of_run / "logs" / f"{folders.of_run.name}.jsonl"
        self._folders = folders
        self._goes_on = pgflow.extensions.replaying()
        self._has_warned = False

    def tell(self, kind: Kind, step: str | None = None, **said: Any) -> None:
        """Add an event, unless the run only repeats it. If the log cannot be written, the run goes
        on and warns once.

        Args:
            kind: Its type.
            step: Key of the step that it is about.
            said: Further fields. None leaves a field out.
        """
        if pgflow.extensions.replaying():
            return
        if self._goes_on:
            self._goes_on = False
            self.tell("workflow_resume")
        event = {"type": kind, "workflow_id": self._folders.key, "step": step, **said}
        event = {name: value for name, value in event.items() if value is not None}
        event["ts"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
        line = f"{json.dumps(event, ensure_ascii=False)}\n".encode("utf-8", "backslashreplace")
        try:
            try:
                self._add(line)
            except FileNotFoundError:
                self._folders.hide()  # there is nothing to be made where the run has no folder
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._add(line)
        except OSError as error:
            if not self._has_warned:
                log.warning("the log %s cannot be written: %s", self.path, error.strerror)
            self._has_warned = True

    def _add(self, line: bytes) -> None:
        """One write of a file that is open for adding: lines of two workers never mix."""
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def tail(text: str | bytes | bytearray) -> str | None:
    """Return the last of a text, as an event says it; None for an empty one."""
    if not isinstance(text, str):
        text = text[-4 * TAIL :].decode("utf-8", "replace")
    return text[-TAIL:] or None
