"""``pgflow icm``: what belongs to ICM workspaces alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pgflow_cli.files.declared import say_json, say_problems
from pgflow_cli.look.declaring import arg
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.help import make_group
from pgflow_cli.look.options import AnswerForm
from pgflow_cli.look.output import Form, as_object, many, note, say, shown

if TYPE_CHECKING:
    from pgflow.declare.icm import Plan

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
        _say(plan, is_written=not dry_run)
    if not plan.verdict.ok:
        raise Ended(FAILED)


def _object(plan: Plan, *, is_written: bool) -> dict[str, Any]:
    verdict = plan.verdict
    problems = {
        name: [as_object(problem, ("message", "line", "column")) for problem in found]
        for name, found in (("errors", verdict.errors), ("warnings", verdict.warnings))
    }
    files = [as_object(file, ("path", "exists")) for file in plan.files]
    return {
        "directory": plan.directory,
        "ok": verdict.ok,
        "written": is_written and bool(files),
        "files": files,
        **problems,
    }


def _say(plan: Plan, *, is_written: bool) -> None:
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
