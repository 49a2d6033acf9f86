"""Workflows declared in files: YAML DAGs, Agent SOPs and ICM workspaces, compiled to one graph.

None of this needs a database: files are read, checked, drawn and dry-run as their originals would
take them::

    from pgflow.declare import dry_run, parse_workflow

    graph = parse_workflow("flows/review.yaml")
    print(dry_run(graph, stubs={"plan": "1. look", "review": "fine"}, message="PR 7").outcome)
"""

from typing import TYPE_CHECKING

from pgflow._lazy import importer

if TYPE_CHECKING:
    from pgflow.declare.drawing import draw_mermaid
    from pgflow.declare.drawing.run import GRAPHS
    from pgflow.declare.graph import Graph
    from pgflow.declare.graph.problems import Problem, Verdict
    from pgflow.declare.play.dryrun import DryRun, dry_run
    from pgflow.declare.reading import discover_workflows, parse_workflow, validate
else:
    __getattr__ = importer(
        globals(),
        {
            "GRAPHS": "pgflow.declare.drawing.run",
            "DryRun": "pgflow.declare.play.dryrun",
            "Graph": "pgflow.declare.graph",
            "Problem": "pgflow.declare.graph.problems",
            "Verdict": "pgflow.declare.graph.problems",
            "discover_workflows": "pgflow.declare.reading",
            "draw_mermaid": "pgflow.declare.drawing",
            "dry_run": "pgflow.declare.play.dryrun",
            "parse_workflow": "pgflow.declare.reading",
            "validate": "pgflow.declare.reading",
        },
    )

__all__ = [
    "GRAPHS", "DryRun", "Graph", "Problem", "Verdict", "discover_workflows", "draw_mermaid",
    "dry_run", "parse_workflow", "validate",
]  # fmt: skip
