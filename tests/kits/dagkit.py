"""The shared parts of tests of workflow files in YAML: the corpus, and files made of a few
lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent, indent

from pgflow.declare.dag import read_text

CORPUS = Path(__file__).parents[1] / "corpus" / "dag"
HEAD = "name: w\ndescription: d\n"


def rows(name):
    """The rows of a file of the corpus, one JSON object a line."""
    return [json.loads(line) for line in (CORPUS / name).read_text(encoding="utf-8").splitlines()]


def workflow(nodes, more=""):
    """A workflow of these nodes, written as the items of a YAML list."""
    return f"{HEAD}{dedent(more).strip()}\nnodes:\n{indent(dedent(nodes).strip(), '  ')}\n"


def errors(text):
    """The messages of what is wrong with a text."""
    return [problem.message for problem in read_text(text, "w.yaml").errors]


def warnings(text):
    """The messages of what is ignored in a text that is right."""
    verdict = read_text(text, "w.yaml")
    assert verdict.ok, verdict.errors
    return [problem.message for problem in verdict.warnings]


def graph(text):
    """The graph of a text that is right."""
    verdict = read_text(text, "w.yaml")
    assert verdict.graph is not None, verdict
    return verdict.graph


def node(text):
    """The only node of a workflow that has one, written as a YAML list item."""
    (only,) = graph(workflow(text)).nodes
    return only
