"""Plans of stages: the files that each reads and writes, as paths in the workspace.

A contract names its files from the stage's own folder, and the state names them by words. Both are
resolved once, when a run is frozen. So the writer and every reader of a file mean the same path,
and nothing that an agent says can change it.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from pgflow.declare.durable.frozen import Stage, StageFile, Workspace
from pgflow.declare.graph import Artifact, Effect, Graph, Node, Use
from pgflow.declare.icm.cells import is_path
from pgflow.declare.icm.folders import Folder, leads_out, resolve
from pgflow.declare.icm.state import entry_of, key_paths, key_value
from pgflow.errors import InvalidWorkflow

FILESYSTEM = "filesystem"
"""System of effects that a run does itself: the delivery of files into a folder."""


def plan_stages(graph: Graph, folder: str | os.PathLike[str]) -> Workspace:
    """Resolve the files of every stage.

    Args:
        graph: The compiled workspace.
        folder: Its folder.

    Raises:
        InvalidWorkflow: A stage needs a file that is nowhere.
    """
    planning = _Planning(graph, Folder(Path(folder)))
    stages = {node.id: planning.stage(node) for node in graph.nodes}
    return Workspace(stages=stages, left_out=tuple(sorted(planning.left_out)))


class _Planning:
    """Resolves the files of one workspace."""

    def __init__(self, graph: Graph, folder: Folder) -> None:
        self.state = {artifact.name: artifact for artifact in graph.artifacts}
        self.folder = folder
        self.left_out: set[str] = set()

    def stage(self, node: Node) -> Stage:
        """Resolve the files of one stage."""
        file = node.position.file if node.position is not None else ""
        base = posixpath.dirname(file) if file.startswith("stages/") else f"stages/{node.id}"
        return Stage(
            base=base,
            reads=tuple(self._files(node, base, node.reads, is_owed=False)),
            writes=tuple(self._files(node, base, node.writes, is_owed=True)),
        )

    def _files(
        self, node: Node, base: str, uses: tuple[Use, ...], *, is_owed: bool
    ) -> Iterator[StageFile]:
        seen: set[str] = set()
        owes_all = is_owed and any(gate.kind == "request" for gate in node.gates)
        for use in uses:
            entry = self.state.get(use.artifact or "")
            if entry is not None and entry.kind != "file":
                continue
            location = self._location(node, base, use, entry)
            if location is None or location in seen:
                continue
            seen.add(location)
            yield StageFile(
                name=use.artifact or use.label or location,
                location=location,
                writer=entry.written_by if entry is not None else None,
                is_required=owes_all or (not use.optional and (is_owed or entry is not None)),
            )

    def _location(self, node: Node, base: str, use: Use, entry: Artifact | None) -> str | None:
        """Return the path of something that a stage uses; None if it is not a file of the
        workspace.

        Raises:
            InvalidWorkflow: The stage needs it, and it has no location.
        """
        if entry is not None:
            if entry.location is None and not (use.optional or entry.optional):
                raise InvalidWorkflow(
                    f"stage '{node.id}' uses {entry.name!r}, which has neither a location nor a "
                    "stage that writes it: add a location in workflow.yaml"
                )
            found, is_folder = entry.location, bool(entry.location and entry.location[-1] == "/")
            base = ""
        else:
            found = use.location if use.location and is_path(use.location) else None
            is_folder = bool(found and found.endswith("/"))
        if found is None:
            return None
        where = resolve(self.folder, base, found)
        if leads_out(self.folder, where):
            self.left_out.add(found)
            return None
        return f"{where}/" if is_folder else where


def deliveries(node: Node) -> tuple[Effect, ...]:
    """Effects that a run does itself: files for a folder that a path into the state names."""
    return tuple(one for one in node.effects if is_delivery(one))


def acts(node: Node) -> tuple[Effect, ...]:
    """Effects that the agent of a stage does in its turn."""
    return tuple(one for one in node.effects if not is_delivery(one))


def is_delivery(effect: Effect) -> bool:
    """Return True for an effect that a run does itself."""
    return effect.system == FILESYSTEM and effect.idempotency_key is not None


def value_at(expression: str, values: dict[str, JsonValue]) -> JsonValue:
    """Return the value that a path into the state leads to; None if there is nothing.

    Args:
        expression: The path, as in ``delivery_target.folder_path``.
        values: Values of entries by their names.
    """
    name = entry_of(expression)
    value: JsonValue = values.get(name)
    rest = expression.strip()[len(name) :].replace("[", ".").replace("]", "")
    for step in filter(None, rest.split(".")):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def value_of(key: str, values: dict[str, JsonValue]) -> JsonValue:
    """Return the value of an idempotency key; None if a path in it leads to nothing."""
    return key_value(key, lambda path: value_at(path, values))


def targets_of(graph: Graph, signal: str) -> tuple[str, ...]:
    """Return the keys that name a folder for a delivery by a signal's message alone."""
    keys = [effect.idempotency_key or "" for node in graph.nodes for effect in deliveries(node)]
    return tuple(key for key in keys if {entry_of(path) for path in key_paths(key)} == {signal})
