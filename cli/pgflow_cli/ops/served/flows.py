"""Flows: the workflow of each trigger, frozen as its file is now.

A run uses the text that its file had at its start. So the server freezes a file when it starts, and
again at an event after anything in the folder has changed. It detects a change by the times and
sizes of the files, one look at each. If an edit breaks a file, runs keep using the last sound text,
and the log has the error.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pgflow.errors import PgflowError
from pgflow_cli.files.watching import Sign, root_of, signatures
from pgflow_cli.look.failures import Ended, Mistake
from pgflow_cli.look.output import shown
from pgflow_cli.ops.served.triggers import Trigger
from pgflow_cli.runs.declared import FileOptions, prepare

log = logging.getLogger("pgflow")


@dataclass
class Flows:
    """The workflows of triggers.

    Args:
        folder: Folder of the files.
        triggers: The triggers.
        given: Options of the command line, which count for all runs.

    Raises:
        Mistake: One cannot be run.
        Ended: The file of one has errors; they are already printed.
    """

    folder: Path
    triggers: list[Trigger]
    given: FileOptions

    def __post_init__(self) -> None:
        """Freeze the files."""
        self._lock = threading.Lock()
        self._seen = self._look()
        self._arguments = {one.name: self._prepare(one) for one in self.triggers}

    def arguments(self, trigger: Trigger) -> Mapping[str, Any]:
        """Return the arguments of a run of a trigger, with the texts that the files have now."""
        self.refresh()
        return self._arguments[trigger.name]

    def refresh(self) -> bool:
        """Freeze the files again if one has changed; True if a run would be another one now."""
        with self._lock:
            seen = self._look()
            if seen == self._seen:
                return False
            self._seen = seen
            before = dict(self._arguments)
            for trigger in self.triggers:
                self._freeze_again(trigger)
            return self._arguments != before

    def _freeze_again(self, trigger: Trigger) -> None:
        try:
            self._arguments[trigger.name] = self._prepare(trigger)
        except (Mistake, PgflowError, Ended) as error:
            why = "its file has errors" if isinstance(error, Ended) else shown(str(error))
            log.warning("trigger %s goes on with the text of before: %s", trigger.name, why)

    def _prepare(self, trigger: Trigger) -> dict[str, Any]:
        """Return the arguments of a run. Fields of an event are filled in later."""
        given = {**dict.fromkeys(trigger.take, ""), **trigger.inputs}
        options = replace(
            self.given,
            inputs=[json.dumps(given)] if given else [],
            provider=trigger.provider or self.given.provider,
            conversation=trigger.conversation,
        )
        try:
            return prepare(find_flow(self.folder, trigger.run), options)
        except (Mistake, PgflowError) as error:
            raise Mistake(f"[{trigger.name}] {error}") from None

    def _look(self) -> frozenset[Sign]:
        """Signs of each file, by which a change of it is noticed."""
        roots = map(root_of, (self.folder, *self.given.folders))
        return frozenset(sign for root in roots for sign in signatures(root))


def find_flow(folder: Path, run: str) -> Path:
    """Return the workflow of a trigger: a path below the folder, or the name of one there.

    Raises:
        Mistake: It does not exist, or several have the name.
    """
    from pgflow.declare import discover_workflows

    if "\0" not in run and (path := folder / run).exists():
        return path
    found = [
        Path(verdict.file)
        for verdict in discover_workflows(folder)
        if verdict.graph is not None and verdict.graph.name == run
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise Mistake(f"{len(found)} workflows in {folder} are named {run!r}: name the file")
    raise Mistake(f"{folder} has no workflow {run!r}: name a file of it, or a workflow")
