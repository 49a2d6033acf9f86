"""``pgflow replay``: recorded runs against the code at hand. Nothing runs but workflow code, and
nothing is written.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow import inspect
from pgflow.console.output import Form, as_object, dump, many, note, say
from pgflow_cli.look import github
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.options import Answer, Chosen
from pgflow_cli.look.selection import Filters
from pgflow_cli.look.targets import load_app
from pgflow_cli.ops.transfer import choose_chains

if TYPE_CHECKING:
    from pgflow.replay.histories import Replayed, Verdict


def replay(
    target: Annotated[str, arg(metavar="MODULE[:APP]")],
    *,
    from_files: Annotated[
        list[Path] | None, opt("--from-files", "-f", metavar="FILE_OR_DIR")
    ] = None,
    sample: Annotated[int | None, opt(min=1)] = None,
    filters: Chosen,
    db: Answer,
) -> None:
    """Replays recorded runs against the current code.

    A run that the code does not repeat would be stuck after a deploy of it: it is shown with both
    sides and the source lines, and the exit code is 1. No step runs, and nothing is written. With
    --json a line for each run.

    Args:
        target: The code: a module or a file.
        from_files: Exported runs instead of a database; may be given again.
        sample: So many runs of each workflow, the open ones first, then the newest.
    """
    if from_files and (sample or filters or db.given):
        raise Mistake(
            "--from-files replays all runs in the files: "
            "leave out options that choose runs of a database"
        )
    definitions = load_app(target, db.given).definitions
    if from_files:
        replayed = _replay(_from_files(from_files), definitions, db.form)
        if not replayed.repeated + replayed.diverged + replayed.redacted:
            held = f"runs of {', '.join(replayed.unknown)}" if replayed.unknown else "no runs"
            raise Mistake(
                f"nothing was replayed: the files hold {held}, none of a workflow of {target}"
            )
    else:
        replayed = _replay(_from_database(db, definitions, filters, sample), definitions, db.form)
    if db.form is not Form.JSON:
        _sum_up(replayed)
    if replayed.diverged:
        raise Ended(FAILED)


def _from_files(paths: list[Path]) -> Iterator[Any]:
    from pgflow.replay.histories import read_files

    try:
        yield from read_files(paths)
    except OSError as error:
        raise Mistake(f"{error.filename} cannot be read: {error.strerror}") from error


def _from_database(
    db: Database, definitions: Any, filters: Filters, sample: int | None
) -> Iterator[Any]:
    from pgflow.replay.histories import read_database

    wanted = filters.workflow or definitions.workflows
    names = [name for name in definitions.workflows if name in wanted]
    db.connection.read_only = True
    if sample is not None:
        of_each = replace(filters, workflow=None).chosen()
        chains = db.ask(inspect.sample_chains(names, of_each, sample))
        yield from read_database(db.connection, chains)
        return
    with db.connection.transaction():
        chosen = choose_chains(db, replace(filters, workflow=names or [""]))
        yield from read_database(db.connection, chosen)


def _replay(histories: Iterator[Any], definitions: Any, form: Form) -> Replayed:
    from pgflow.replay.histories import Replayed, replay_histories

    replayed = Replayed()
    is_on_github = os.environ.get("GITHUB_ACTIONS") == "true"
    for verdict in replay_histories(histories, definitions):
        replayed.count(verdict)
        if form is Form.JSON:
            typer.echo(dump(_as_row(verdict)))
        elif verdict.divergence is not None:
            _show(verdict)
        is_annotated = is_on_github and replayed.diverged <= github.MAX_ANNOTATIONS
        if verdict.divergence is not None and is_annotated:
            print(annotation(verdict), file=sys.stderr, flush=True)
    return replayed


def _as_row(verdict: Verdict) -> dict[str, Any]:
    found = verdict.divergence
    told: dict[str, Any] = {"message": None, "diff": [], "where": []}
    if found is not None:
        told = as_object(found, told)
    row = as_object(verdict, ("key", "workflow", "generation", "units"))
    return {**row, "verdict": _word(verdict), **told}


def _word(verdict: Verdict) -> str:
    if not verdict.is_known:
        return "unknown workflow"
    if verdict.is_redacted:
        return "redacted"
    return "repeats" if verdict.divergence is None else "diverges"


def _show(verdict: Verdict) -> None:
    assert verdict.divergence is not None
    say(("diverges ", "bold red"), verdict.divergence.message)
    for line in verdict.divergence.diff:
        say((f"    {line}", {"-": "red", "+": "green"}.get(line[0], "bright_black")))
    for line in verdict.divergence.where:
        say(f"    at {line}")


def _sum_up(replayed: Replayed) -> None:
    parts = [f"{many(replayed.repeated, 'run')} repeated"]
    if replayed.diverged:
        parts.append(f"{replayed.diverged:,} diverged")
    if replayed.redacted:
        parts.append(f"{replayed.redacted:,} left out, since a value of theirs was redacted")
    if replayed.unknown:
        others = many(sum(replayed.unknown.values()), "run")
        names = ", ".join(sorted(replayed.unknown))
        parts.append(f"{others} of other workflows left out ({names})")
    note("; ".join(parts))


_LINE = re.compile(r"(.+):(\d+) in \S+")


def annotation(verdict: Verdict) -> str:
    """Return the annotation that GitHub Actions shows at the source
    line where the code left the record.
    """
    found = verdict.divergence
    assert found is not None
    at = _LINE.fullmatch(found.where[-1]) if found.where else None
    place: dict[str, Any] = {}
    if at is not None:
        path, here = Path(at[1]), Path.cwd()
        file = path.relative_to(here) if path.is_relative_to(here) else path
        place = {"file": file, "line": at[2]}
    title = f"run {verdict.key} of {verdict.workflow} diverges"
    return github.command("error", "\n".join([found.message, *found.diff]), **place, title=title)
