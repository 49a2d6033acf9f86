"""Shell scripts of a workflow: reports each place where bash would evaluate a value.

That needs the lexer of bash from the extra ``run``. Without it nothing is reported here; `pgflow
run` needs the extra too, and refuses the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pgflow.declare.dag.drafts import Draft
from pgflow.declare.dag.loading import Loaded
from pgflow.declare.dag.surfaces import texts
from pgflow.declare.graph.problems import Problem
from pgflow.declare.text.bashscript import Script, reads_values
from pgflow.declare.text.yamlfile import Marked, Steps
from pgflow.errors import SetupError


def shell_problems(loaded: Loaded, nodes: tuple[Draft, ...]) -> Iterator[Problem]:
    """Judge the shell scripts of a workflow.

    Args:
        loaded: Its file.
        nodes: Its nodes, with those of its includes.
    """
    for node in nodes:
        for path, text in texts(node):
            if path[-1] in ("bash", "until_bash") and reads_values(text):
                yield from _of_script(loaded, node, path, text)
        yield from shell_problems(loaded, node.body)


def _of_script(loaded: Loaded, node: Draft, path: Steps, text: str) -> Iterator[Problem]:
    try:
        script = Script(text)
    except SetupError:
        return
    for finding in script.findings:
        place = script.where(finding.start)
        line, column, where = None, None, ""
        if node.file == loaded.file and loaded.document is not None:
            whole = (*node.path, *path)
            line, column = _in_file(loaded.document, whole, place, text, loaded.lines)
        else:
            where = f" of {node.file}, line {place[0]} of its script"
        message = f"Node '{node.id}'{where}: {finding.message}"
        severity: Literal["error", "warning"] = "error" if finding.is_error else "warning"
        yield Problem(message, line, column, severity=severity)


def _in_file(
    document: Marked, path: Steps, place: tuple[int, int], text: str, lines: list[str]
) -> tuple[int, int]:
    """Line and column in the file of a place in a script: exact where the file has the script's
    lines as they are, as a block has; else those of its key.
    """
    row, column = place
    line_text = text.split("\n")[row - 1]
    marked = document
    for step in path:
        inner = marked.part(step)
        if inner is None:
            return document.place(path)
        marked = inner
    for number in (marked.line + row, marked.line + row - 1):
        found = lines[number - 1].find(line_text) if line_text and number <= len(lines) else -1
        if found >= 0:
            return number, found + column
    return document.place(path)
