"""``pgflow validate``: finds all errors in files of declared workflows.

Each verdict is printed as soon as it is known. With JSON that is one object a line, not an array.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pgflow_cli.files.declared import SearchPath, Watch, check_search, problem_lines, say_json
from pgflow_cli.files.watching import again_and_again
from pgflow_cli.look.declaring import arg
from pgflow_cli.look.failures import FAILED, Ended
from pgflow_cli.look.options import AnswerForm
from pgflow_cli.look.output import Form, as_object, many, note, say, shown

if TYPE_CHECKING:
    from pgflow.declare import Verdict

Paths = Annotated[
    list[str],
    arg(
        "Workflows (.yaml, .sop.md), ICM workspaces, or folders of them.", metavar="FILE_OR_DIR..."
    ),
]


def validate(
    paths: Paths, *, search: SearchPath = None, watch: Watch = False, form: AnswerForm
) -> None:
    """Lists all errors in workflow files."""
    folders = check_search(search)
    once = partial(_validate, paths, folders, form)
    if watch:
        again_and_again([*map(Path, paths), *folders], once)
    once()


def _validate(paths: list[str], search: tuple[Path, ...], form: Form) -> None:
    from pgflow.declare import validate as verdicts_on

    files = bad = errors = warnings = 0
    for verdict in verdicts_on(*paths, search=search):
        files, bad = files + 1, bad + (not verdict.ok)
        errors, warnings = errors + len(verdict.errors), warnings + len(verdict.warnings)
        _say_object(verdict) if form is Form.JSON else _say(verdict)
        sys.stdout.flush()
    if form is not Form.JSON:
        numbers = {"error": errors, "warning": warnings}
        found = ", ".join(many(number, noun) for noun, number in numbers.items() if number)
        of_files = many(files, "file")
        state = f"{bad} of {of_files} cannot be used" if bad else f"{of_files} ok"
        note(f"{state}: {found}" if found else state)
    if bad:
        raise Ended(FAILED)


def _say(verdict: Verdict) -> None:
    """Print a verdict for a person."""
    for line in problem_lines(verdict):
        say(line)
    if verdict.ok:
        graph = verdict.graph
        has = (
            "but this command has no graph of it"
            if graph is None
            else many(len(graph.nodes), "node")
        )
        say((shown(verdict.file), "bold"), ": ", ("ok", "green"), f", {has}")


def _say_object(verdict: Verdict) -> None:
    from pgflow.declare.reading import family_of

    found = {
        name: [as_object(problem, ("message", "line", "column")) for problem in problems]
        for name, problems in (("errors", verdict.errors), ("warnings", verdict.warnings))
    }
    graph = verdict.graph
    kind = family_of(verdict.file) if graph is None else graph.family
    nodes = None if graph is None else len(graph.nodes)
    say_json({"file": verdict.file, "kind": kind, "nodes": nodes, "ok": verdict.ok, **found})
