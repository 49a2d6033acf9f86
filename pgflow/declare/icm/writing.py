"""``pgflow icm init``: writes down what a workspace leaves to be derived,
as ``workflow.yaml`` and frontmatter.

Prose stays as it is, byte for byte: frontmatter goes before it (after a byte order mark, in the
file's own line ends). What is there already is never touched, so that a second call writes nothing.
Before anything is written the workspace is compiled as it would be, and nothing is written unless
the graph is the same but for the places in files.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, JsonValue
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, SingleQuotedScalarString

from pgflow.declare.graph import Artifact, Graph, Node
from pgflow.declare.graph.problems import Problem, Verdict
from pgflow.declare.icm.compiling import Stage, Workspace, load, read_workspace
from pgflow.declare.icm.findings import Findings
from pgflow.declare.icm.folders import BOM, WORKFLOWS, Folder
from pgflow.declare.icm.stagefields import StageFields
from pgflow.declare.icm.workflow import END

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
_WIDTH = 10_000  # a long list stays in its line


@dataclass(frozen=True, slots=True)
class Planned:
    """A file to write: all of its bytes, and whether a file of that name exists."""

    path: str
    content: bytes
    exists: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Files to write in a workspace, and the verdict on it. With an error, nothing is written."""

    directory: str
    files: tuple[Planned, ...]
    verdict: Verdict


def plan_missing(directory: str | os.PathLike[str]) -> Plan:
    """Say what `write_missing` would write, and write nothing.

    Args:
        directory: A workspace.
    """
    verdict = read_workspace(directory)
    folder = Folder(Path(directory))
    workspace = load(folder, Findings()) if verdict.graph is not None else None
    if workspace is None or verdict.graph is None:
        return Plan(str(directory), (), verdict)
    files = tuple(_missing(folder, workspace, verdict.graph))
    after = read_workspace(directory, {file.path: file.content for file in files})
    if after.graph is None or without_places(after.graph) != without_places(verdict.graph):
        return Plan(str(directory), (), _refusal(verdict, after))
    return Plan(str(directory), files, verdict)


def write_missing(directory: str | os.PathLike[str]) -> Plan:
    """Write the workflow.yaml and the frontmatter that a workspace does not have, each file whole
    or not at all.

    Args:
        directory: A workspace.

    Returns:
        What was written; nothing, if there was nothing to write or the workspace has errors.

    Raises:
        OSError: If a file cannot be written.
    """
    plan = plan_missing(directory)
    for file in plan.files:
        _replace((Path(directory) / file.path).resolve(), file.content)
    return plan


def without_places(graph: Graph) -> Graph:
    """Return a graph without positions and files: its content, wherever its source is.

    Args:
        graph: The graph.
    """
    return graph.model_validate({**_unplaced(graph), "files": ()})


def _unplaced(part: BaseModel) -> dict[str, JsonValue]:
    def strip(value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            return {key: strip(inner) for key, inner in value.items() if key != "position"}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    return {key: strip(value) for key, value in part.model_dump(mode="json").items()}


def _refusal(before: Verdict, after: Verdict) -> Verdict:
    """Return the verdict on a workspace whose graph would not stay the same."""
    reason = after.errors[0].message if after.errors else "the graph would not be the same"
    problem = Problem(
        f"Nothing can be written for this workspace: {reason}",
        hint="Write its workflow.yaml by hand.",
    )
    return Verdict(before.file, (*before.problems, problem))


# What is written ----------------------------------------------------------------------------------


def _missing(folder: Folder, workspace: Workspace, graph: Graph) -> list[Planned]:
    files = []
    if workspace.workflow_file is None:
        files.append(
            Planned(WORKFLOWS[0], _yaml(_workflow(workspace, graph)).encode(), exists=False)
        )
    for stage in workspace.stages:
        if stage.contract is not None and not stage.has_frontmatter:
            before = folder.read(stage.source.file)
            text = _yaml(_frontmatter(stage, graph.node(stage.id)))
            files.append(Planned(stage.source.file, _with_frontmatter(before, text), exists=True))
    return files


def _workflow(workspace: Workspace, graph: Graph) -> CommentedMap:
    """Return a workflow.yaml with the derived content."""
    stages = CommentedSeq(
        _listed(node, after)
        for node, after in zip(graph.nodes, (*graph.nodes[1:], None), strict=True)
    )
    state = CommentedMap((name, _entry(entry)) for name, entry in workspace.state.items())
    return CommentedMap({"name": workspace.name, "version": 1, "state": state, "stages": stages})


def _listed(node: Node, after: Node | None) -> CommentedMap:
    """Return a stage in the list, in one line."""
    stage = CommentedMap(
        {"id": node.id, "next": after.id if after is not None else END, **_flow(node)}
    )
    stage.fa.set_flow_style()
    return stage


def _entry(artifact: Artifact) -> CommentedMap:
    """Return an entry of the state, in one line."""
    entry = CommentedMap(
        {"type": artifact.kind, "location": artifact.location, "written_by": artifact.written_by}
    )
    entry.fa.set_flow_style()
    return entry


def _flow(node: Node) -> dict[str, CommentedSeq]:
    """Return the names of the state entries that a stage reads and writes."""
    named = {"reads": node.reads, "writes": node.writes}
    return {
        key: _line(dict.fromkeys(use.artifact for use in uses if use.artifact is not None))
        for key, uses in named.items()
    }


def _frontmatter(stage: Stage, node: Node) -> CommentedMap:
    """Frontmatter that says what is known of a stage."""
    frontmatter = CommentedMap({"stage_id": stage.id, **_flow(node)})
    frontmatter.update(_declared(stage.fields))
    return frontmatter


def _declared(fields: StageFields) -> Mapping[str, object]:
    """Return workflow.yaml's declarations of the stage, in the words of
    `pgflow.declare.icm.stagefields`.
    """
    effects = [
        {key: value for key, value in effect.model_dump(exclude={"position"}).items() if value}
        for effect in fields.effects or ()
    ]
    retry = fields.retry
    declared = {
        "gate": "explicit_request" if fields.on_request else None,
        "interrupt_before": fields.interrupt_before,
        "side_effects": effects or None,
        "compensations": {
            item.name: item.description or None for item in fields.compensations or ()
        }
        or None,
        "retry": retry
        and {
            "max_attempts": retry.max_retries,
            "delay_ms": retry.delay_ms,
            "on_error": retry.on_error,
        },
        "timeout": fields.timeout_ms and f"{fields.timeout_ms:.9f}".rstrip("0").rstrip(".") + "ms",
        "description": fields.description,
    }
    return {key: value for key, value in declared.items() if value is not None}


def _line(items: object) -> CommentedSeq:
    """Return a list in one line."""
    sequence = CommentedSeq(items)
    sequence.fa.set_flow_style()
    return sequence


def _yaml(value: CommentedMap) -> str:
    """Return a value as YAML."""
    yaml = YAML()
    yaml.width = _WIDTH
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    yaml.dump(_escaped(value), stream)
    return stream.getvalue()


def _escaped(value: Any) -> Any:
    """Return a value whose texts are read as they were by every YAML parser: quoted, unless they
    are plain words and paths.
    """
    if isinstance(value, str):
        if _PLAIN.fullmatch(value):
            return value
        return (
            SingleQuotedScalarString(value)
            if value.isprintable()
            else DoubleQuotedScalarString(value)
        )
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        value[key] = _escaped(inner)
    return value


def _with_frontmatter(before: bytes, yaml: str) -> bytes:
    """Return a file with frontmatter before everything that it holds."""
    mark = BOM if before.startswith(BOM) else b""
    rest = before[len(mark) :]
    first, newline, _ = rest.partition(b"\n")
    end = "\r\n" if newline and first.endswith(b"\r") else "\n"
    head = f"---\n{yaml}---\n\n".replace("\n", end)
    return mark + head.encode() + rest


def _replace(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
