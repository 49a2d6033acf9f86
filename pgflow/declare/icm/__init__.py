"""ICM (Interpreted Context Methodology, Model Workspace Protocol) workspaces, compiled to the
graph.

A workspace is a folder: ``CLAUDE.md`` or ``AGENTS.md`` describes it (Layer 0), ``CONTEXT.md`` leads
through it (Layer 1), each ``stages/NN-slug/CONTEXT.md`` is the contract of a stage (Layer 2) with
tables of what it reads, writes, shows and checks. Two additions make it executable without touching
the prose: ``workflow.yaml`` at the root (`pgflow.declare.icm.workflow`) and YAML frontmatter on the
contracts (`pgflow.declare.icm.stagefields`). Where they are missing, all of it is derived from the
prose (`pgflow.declare.icm.contracts`), and `write_missing` writes them.
"""

from __future__ import annotations

import os
from pathlib import Path

from pgflow.declare.graph.problems import Problem, Verdict
from pgflow.declare.icm.compiling import read_text, read_workspace
from pgflow.declare.icm.folders import (
    WORKFLOWS,
    Folder,
    Unreadable,
    decode,
    find_workspaces,
    is_workspace,
)
from pgflow.declare.icm.workflow import is_workflow
from pgflow.declare.icm.writing import Plan, Planned, plan_missing, write_missing

__all__ = [
    "Plan",
    "Planned",
    "find_workspaces",
    "is_workflow",
    "is_workspace",
    "plan_missing",
    "read_file",
    "read_text",
    "read_workspace",
    "write_missing",
]


def read_file(path: str | os.PathLike[str]) -> Verdict:
    """Compile a workspace, or a workflow file of one.

    Args:
        path: A workspace's folder, its ``workflow.yaml`` (then the whole workspace is read), or a
            workflow file without a workspace.

    Returns:
        Its problems and, if none is an error, its graph.
    """
    path = Path(path)
    if path.is_dir():
        return read_workspace(path)
    if path.name in WORKFLOWS and is_workspace(path.parent):
        return read_workspace(path.parent)
    try:
        return read_text(decode(Folder(path.parent).read(path.name)), str(path))
    except Unreadable as error:
        return Verdict(str(path), (Problem(f"file {error}", kind="read_error"),))
