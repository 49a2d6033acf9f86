"""The way from a path to the verdict on a workspace."""

from __future__ import annotations

import os
from pathlib import Path

from pgflow.declare.graph.problems import Problem, Verdict
from pgflow.declare.icm.compiling import read_text, read_workspace
from pgflow.declare.icm.folders import WORKFLOWS, Folder, Unreadable, decode, is_workspace


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
