"""ICM (Interpreted Context Methodology, Model Workspace Protocol) workspaces, compiled to the
graph.

A workspace is a folder: ``CLAUDE.md`` or ``AGENTS.md`` describes it (Layer 0), ``CONTEXT.md`` leads
through it (Layer 1), each ``stages/NN-slug/CONTEXT.md`` is the contract of a stage (Layer 2) with
tables of what it reads, writes, shows and checks. Two additions make it executable without touching
the prose: ``workflow.yaml`` at the root (`pgflow.declare.icm.workflow`) and YAML frontmatter on the
contracts (`pgflow.declare.icm.stagefields`). Where they are missing, all of it is derived from the
prose (`pgflow.declare.icm.contracts`), and `write_missing` writes them.
"""

from typing import TYPE_CHECKING

from pgflow._lazy import importer

if TYPE_CHECKING:
    from pgflow.declare.icm.compiling import read_text, read_workspace
    from pgflow.declare.icm.folders import find_workspaces, is_workflow, is_workspace
    from pgflow.declare.icm.reading import read_file
    from pgflow.declare.icm.writing import Plan, plan_missing, write_missing
else:
    __getattr__ = importer(
        globals(),
        {
            "Plan": "pgflow.declare.icm.writing",
            "find_workspaces": "pgflow.declare.icm.folders",
            "is_workflow": "pgflow.declare.icm.folders",
            "is_workspace": "pgflow.declare.icm.folders",
            "plan_missing": "pgflow.declare.icm.writing",
            "read_file": "pgflow.declare.icm.reading",
            "read_text": "pgflow.declare.icm.compiling",
            "read_workspace": "pgflow.declare.icm.compiling",
            "write_missing": "pgflow.declare.icm.writing",
        },
    )

__all__ = [
    "Plan", "find_workspaces", "is_workflow", "is_workspace", "plan_missing", "read_file",
    "read_text", "read_workspace", "write_missing",
]  # fmt: skip
