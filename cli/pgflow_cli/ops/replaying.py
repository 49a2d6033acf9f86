"""``pgflow replay``: recorded runs against the code at hand. Nothing runs but workflow code, and
nothing is written.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, fetch, find_dsn, opened
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.output import AsJson, Form, choose_form, console, dump, many, note
from pgflow_cli.look.selection import (
    Filters,
    KeyPattern,
    Labels,
    Since,
    Statuses,
    Until,
    WorkflowNames,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from pgflow._db.calls.replay import RecordedRun
    from pgflow._worker.options import Definitions
    from pgflow.replay.histories import Replayed, Verdict

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE[:APP]", help="The code: a module or a file.", show_default=False
    ),
]
FromFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--from-files",
        "-f",
        metavar="FILE_OR_DIR",
        help="Exported runs instead of a database; may be given again.",
    ),
]
Sample = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="So many runs of each workflow, the open ones first, then the newest.",
        show_default=False,
    ),
]

MAX_ANNOTATIONS = 10
"""GitHub shows no more of a kind for one step."""


def replay(
    target: Target,
    *,
    from_files: FromFiles = None,
    sample: Sample = None,
    status: Statuses = None,
    workflow: WorkflowNames = None,
    label: Labels = None,
    key: KeyPattern = None,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Replays recorded runs against the current code.

    A run that the code does not repeat would be stuck after a deploy of it: it is shown with both
    sides and the source lines, and the exit code is 1. No step runs, and nothing is written. With
    --json a line for each run.
    """
    from pgflow_cli.look.targets import load_app

    filters = Filters(status, workflow, None, label, key, since, until)
    if from_files and (sample or filters or dsn):
        raise Mistake(
            "--from-files replays all runs in the files: "
            "leave out options that choose runs of a database"
        )
    definitions = load_app(target, dsn if not from_files else None).definitions
    form = choose_form(as_json=as_json)
    if from_files:
        replayed = _replay(_from_files(from_files), definitions, form)
        if not replayed.repeated + replayed.diverged + replayed.redacted:
            held = f"runs of {', '.join(replayed.unknown)}" if replayed.unknown else "no runs"
            raise Mistake(
                f"nothing was replayed: the files hold {held}, none of a workflow of {target}"
            )
    else:
        with opened(find_dsn(dsn)) as connection:
            replayed = _replay(
                _from_database(connection, definitions, filters, sample), definitions, form
            )
    if form is not Form.JSON:
        _sum_up(replayed)
    if replayed.diverged:
        raise Ended(FAILED)


def _from_files(paths: list[Path]) -> Iterator[RecordedRun]:
    from pgflow.replay.histories import read_files

    try:
        yield from read_files(paths)
    except OSError as error:
        raise Mistake(f"{error.filename} cannot be read: {error.strerror}") from error


def _from_database(
    connection: psycopg.Connection[Any],
    definitions: Definitions,
    filters: Filters,
    sample: int | None,
) -> Iterator[RecordedRun]:
    from pgflow.inspect import sample_chains
    from pgflow.replay.histories import read_database
    from pgflow_cli.ops.transfer import choose_chains

    names = [
        name for name in definitions.workflows if not filters.workflow or name in filters.workflow
    ]
    connection.read_only = True
    if sample is not None:
        of_each = Filters(
            filters.status, None, None, filters.label, filters.key, filters.since, filters.until
        ).chosen()
        yield from read_database(
            connection, fetch(connection, sample_chains(names, of_each, sample))
        )
        return
    with connection.transaction():
        chosen = Filters(
            filters.status,
            names or [""],
            None,
            filters.label,
            filters.key,
            filters.since,
            filters.until,
        )
        yield from read_database(connection, choose_chains(connection, chosen))


def _replay(histories: Iterator[RecordedRun], definitions: Definitions, form: Form) -> Replayed:
    from pgflow.replay.histories import Replayed, replay_histories

    replayed = Replayed()
    for verdict in replay_histories(histories, definitions):
        replayed.count(verdict)
        if form is Form.JSON:
            typer.echo(dump(_as_row(verdict)))
        elif verdict.divergence is not None:
            _show(verdict)
        if (
            verdict.divergence is not None
            and os.environ.get("GITHUB_ACTIONS") == "true"
            and replayed.diverged <= MAX_ANNOTATIONS
        ):
            print(annotation(verdict), file=sys.stderr, flush=True)
    return replayed


def _as_row(verdict: Verdict) -> dict[str, Any]:
    found = verdict.divergence
    return {
        "key": verdict.key,
        "workflow": verdict.workflow,
        "generation": verdict.generation,
        "units": verdict.units,
        "verdict": "unknown workflow"
        if not verdict.is_known
        else "redacted"
        if verdict.is_redacted
        else "repeats"
        if found is None
        else "diverges",
        "message": None if found is None else found.message,
        "diff": [] if found is None else found.diff,
        "where": [] if found is None else found.where,
    }


def _show(verdict: Verdict) -> None:
    from rich.text import Text

    assert verdict.divergence is not None
    out = console()
    out.print(Text.assemble(("diverges ", "bold red"), verdict.divergence.message), soft_wrap=True)
    for line in verdict.divergence.diff:
        style = {"-": "red", "+": "green"}.get(line[0], "bright_black")
        out.print(Text(f"    {line}", style=style), soft_wrap=True)
    for line in verdict.divergence.where:
        out.print(Text(f"    at {line}"), soft_wrap=True)


def _sum_up(replayed: Replayed) -> None:
    parts = [f"{many(replayed.repeated, 'run')} repeated"]
    if replayed.diverged:
        parts.append(f"{replayed.diverged:,} diverged")
    if replayed.redacted:
        parts.append(f"{replayed.redacted:,} left out, since a value of theirs was redacted")
    if replayed.unknown:
        parts.append(
            f"{many(sum(replayed.unknown.values()), 'run')} of other workflows left out "
            f"({', '.join(sorted(replayed.unknown))})"
        )
    note("; ".join(parts))


_LINE = re.compile(r"(.+):(\d+) in \S+")


def annotation(verdict: Verdict) -> str:
    """Return the annotation that GitHub Actions shows at the source
    line where the code left the record.
    """
    from pgflow_cli.look.github import command

    found = verdict.divergence
    assert found is not None
    at = _LINE.fullmatch(found.where[-1]) if found.where else None
    place = {}
    if at is not None:
        path = Path(at[1])
        place = {
            "file": path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path,
            "line": at[2],
        }
    title = f"run {verdict.key} of {verdict.workflow} diverges"
    return command("error", "\n".join([found.message, *found.diff]), **place, title=title)
