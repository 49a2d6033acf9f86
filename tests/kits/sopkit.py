"""SOPs for tests: the files of the corpus, and a small one whose parts a test exchanges."""

from __future__ import annotations

import csv
from pathlib import Path

from pgflow.declare.graph import Constraint, Graph
from pgflow.declare.graph.problems import Verdict
from pgflow.declare.sop import read_text

CORPUS = Path(__file__).parents[1] / "corpus" / "sop"
COUNTS = list(
    csv.DictReader((CORPUS / "COUNTS.tsv").read_text(encoding="utf-8").splitlines(), delimiter="\t")
)
FILES = [row["file"] for row in COUNTS]

PARAMETERS = """- **topic** (required): What it is about

**Constraints for parameter acquisition:**
- You MUST ask for all parameters at once"""

STEPS = """### 1. Look

Look at it.

**Constraints:**
- You MUST look

### 2. Tell

**Constraints:**
- You MUST tell what you saw"""


def sop(
    *,
    parameters: str = PARAMETERS,
    steps: str = STEPS,
    before: str = "",
    after: str = "",
    steps_heading: str = "## Steps",
) -> str:
    """A SOP with nothing to remark on, unless a part says otherwise."""
    parts = [
        "# Looking",
        "## Overview",
        "Looks at things.",
        "## Parameters",
        parameters,
        before,
        steps_heading,
        steps,
        after,
        "## Examples",
        "None.",
        "## Troubleshooting",
        "None.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def read(text: str, **options: object) -> Verdict:
    """Return the verdict on a text in a file ``looking.sop.md``."""
    return read_text(text, "looking.sop.md", **options)  # type: ignore[arg-type]


def graph(text: str, **options: object) -> Graph:
    """The graph of a text that has no errors."""
    verdict = read(text, **options)
    assert verdict.graph is not None, verdict.errors
    return verdict.graph


def prompts(graph: Graph) -> list[str]:
    """Return the agent's prompts, step by step."""
    return [node.body.text for node in graph.nodes if node.body.mode == "prompt"]


def constraints(graph: Graph) -> list[Constraint]:
    """Every constraint of every step, in the order of the file."""
    found = [
        constraint
        for node in graph.nodes
        if node.body.mode == "prompt"
        for constraint in node.body.constraints
    ]
    return sorted(found, key=lambda constraint: constraint.position.line)


def messages(verdict: Verdict) -> list[str]:
    """Return the messages of all remarks, in order."""
    return [problem.message for problem in verdict.problems]
