"""Workspaces made for a test: a folder with an identity, a routing file, and stages whose contracts
the test gives.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

CORPUS = Path(__file__).parents[1] / "corpus" / "icm"

CONTRACT = """
    # A stage

    What it is for.

    ## Inputs

    | Source | File/Location | Section/Scope | Why |
    |--------|---------------|---------------|-----|
    | Reference | `references/rules.md` | Full file | The rules |

    ## Process

    1. Do it

    ## Outputs

    | Artifact | Location | Format |
    |----------|----------|--------|
    | Result | `output/result.md` | Markdown |
"""


def workspace(
    root: Path, stages: dict[str, str] | None = None, workflow: str | None = None
) -> Path:
    """A workspace with these stages (name of the folder: contract) and this workflow.yaml."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "CLAUDE.md").write_text("# Workspace\n")
    (root / "CONTEXT.md").write_text("# Workspace\n\nMakes things.\n")
    for name, contract in (stages or {}).items():
        stage = root / "stages" / name
        (stage / "references").mkdir(parents=True)
        (stage / "references" / "rules.md").write_text("rules\n")
        (stage / "output").mkdir()
        (stage / "output" / ".gitkeep").touch()
        (stage / "CONTEXT.md").write_text(dedent(contract).lstrip("\n"))
    if workflow is not None:
        (root / "workflow.yaml").write_text(dedent(workflow).lstrip("\n"))
    return root
