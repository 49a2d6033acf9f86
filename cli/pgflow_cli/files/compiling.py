"""``pgflow compile``: the graph that a declared workflow is, as JSON or as Mermaid text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pgflow_cli.files.declared import File, SearchPath, check_search, read_graph, write_text
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.output import note

if TYPE_CHECKING:
    from pgflow.declare import Graph


def compile_workflow(
    file: File,
    *,
    mermaid: bool = False,
    output: Annotated[Path | None, opt("--output", "-o")] = None,
    search: SearchPath = None,
) -> None:
    """Prints the graph of a workflow, or draws it.

    Args:
        mermaid: As Mermaid text, which GitHub and many sites draw.
        output: Write it to this file instead of standard output.
    """
    from pgflow.declare import draw_mermaid

    graph = read_graph(file, search=check_search(search))
    text = draw_mermaid(graph) if mermaid else _json(graph)
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_text(output, text)
        note(f"Wrote {output}")


def _json(graph: Graph) -> str:
    value = graph.model_dump(mode="json")
    text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    return f"{text}\n"
