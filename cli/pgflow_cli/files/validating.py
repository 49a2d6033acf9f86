"""``pgflow validate``, ``compile`` and ``icm``: the errors in files of declared workflows, the
graph that one is, and what belongs to ICM workspaces alone.

Each verdict is printed as soon as it is known. With JSON that is one object a line, not an array.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pgflow.console.output import Form, as_object, many, note, say, shown
from pgflow_cli.files.declared import (
    File,
    SearchPath,
    Watch,
    check_search,
    problem_lines,
    read_graph,
    say_json,
    say_problems,
    write_text,
)
from pgflow_cli.files.watching import again_and_again
from pgflow_cli.look.declaring import arg, make_group, opt
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.options import AnswerForm

if TYPE_CHECKING:
    from pgflow.declare import Graph, Verdict
    from pgflow.declare.icm import Plan


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


def _problems(verdict: Verdict) -> dict[str, Any]:
    """Return the errors and warnings of a verdict for machines."""
    found = {"errors": verdict.errors, "warnings": verdict.warnings}
    names = ("message", "line", "column")
    return {kind: [as_object(one, names) for one in problems] for kind, problems in found.items()}


def _say_object(verdict: Verdict) -> None:
    from pgflow.declare.reading import family_of

    graph = verdict.graph
    kind = family_of(verdict.file) if graph is None else graph.family
    nodes = None if graph is None else len(graph.nodes)
    say_json(
        {"file": verdict.file, "kind": kind, "nodes": nodes, "ok": verdict.ok, **_problems(verdict)}
    )


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


icm = make_group("icm", "Makes the prose of an ICM workspace executable.")


@icm.callback()
def _group() -> None:
    """Makes the prose of an ICM workspace executable."""


@icm.command("init")
def init(
    directory: Annotated[Path, arg(metavar="DIRECTORY")], *, dry_run: bool = False, form: AnswerForm
) -> None:
    """Writes the workflow.yaml and frontmatter that are missing.

    Args:
        directory: The workspace.
        dry_run: Show what would be written, and write nothing.
    """
    from pgflow.declare.icm import plan_missing, write_missing

    if not directory.is_dir():
        raise Mistake(f"{directory} is not a directory: name the folder of an ICM workspace")
    try:
        plan = plan_missing(directory) if dry_run else write_missing(directory)
    except OSError as error:
        what = error.filename or directory
        raise Mistake(f"{what} cannot be written: {error.strerror or error}") from error
    if form is Form.JSON:
        say_json(_object(plan, is_written=not dry_run))
    else:
        _say_plan(plan, is_written=not dry_run)
    if not plan.verdict.ok:
        raise Ended(FAILED)


def _object(plan: Plan, *, is_written: bool) -> dict[str, Any]:
    verdict = plan.verdict
    files = [as_object(file, ("path", "exists")) for file in plan.files]
    return {
        "directory": plan.directory,
        "ok": verdict.ok,
        "written": is_written and bool(files),
        "files": files,
        **_problems(verdict),
    }


def _say_plan(plan: Plan, *, is_written: bool) -> None:
    say_problems(plan.verdict)
    for file in plan.files:
        what = "frontmatter before the prose" if file.exists else "new"
        say((shown(file.path), "bold"), f": {what}")
    if not plan.verdict.ok:
        note("nothing was written: fix the errors first")
    elif not plan.files:
        note("nothing is missing")
    else:
        note(
            f"{many(len(plan.files), 'file')} {'written' if is_written else 'would be written'}; "
            "the prose stays as it is"
        )
