"""``pgflow versions``, ``patches`` and ``triggers``: which code open runs may depend on, who serves
it, what may go, and the triggers that the code declares and the database has; and ``pgflow
replay``: recorded runs against the code at hand. A replay runs nothing but workflow code, and
writes nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow import inspect
from pgflow.console.output import Form, age, as_object, dump, many, note, say
from pgflow_cli.look import github
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.options import Answer, Chosen, Rows
from pgflow_cli.look.selection import Filters, WorkflowNames
from pgflow_cli.look.targets import load_app
from pgflow_cli.ops.transfer import choose_chains

if TYPE_CHECKING:
    from pgflow.replay.histories import Replayed, Verdict


def versions(workflow: WorkflowNames = None, *, db: Rows) -> None:
    """Shows which versions open runs need, and who serves them.

    PINNED counts open runs that only workers of this version claim, BEGUN others that its code may
    have worked on. You can retire a version once both are 0.
    """
    columns = "workflow version PINNED=pinned_runs# BEGUN=begun_runs# workers# SERVED MAY_GO"
    rows, empty = (
        db.ask(inspect.list_versions(workflow or ())),
        "No worker has reported its code yet.",
    )
    shows = {"SERVED": lambda row: _served(row, db.now), "MAY_GO": _verdict}
    db.print(rows, columns, empty, inspect.VersionRow, **shows)


def _served(row: inspect.VersionRow, now: datetime) -> str:
    if row.workers:
        return f"for {age(row.first_at, now)}"
    return "never" if row.last_at is None else f"until {age(row.last_at, now)} ago"


def _verdict(row: inspect.VersionRow) -> str:
    if row.pinned_runs and not row.workers:
        return "no: runs wait for a worker that has it"
    if row.pinned_runs:
        return "no: pinned runs need its workers"
    return "yes" if row.safe_to_remove else "no: the code must fit these runs"


def patches(workflow: WorkflowNames = None, *, db: Rows) -> None:
    """Shows patches, and whether their old code can be removed.

    NEW counts open runs that took the new side, OLD those that may have passed before the change.
    """
    rows = db.ask(inspect.list_patches(workflow or ()))
    columns = "workflow patch NEW=new_side# OLD=old_side# workers# NEXT"
    empty = "Neither a worker nor an open run knows a patch."
    db.print(rows, columns, empty, inspect.PatchRow, NEXT=_next)


def _next(row: inspect.PatchRow) -> str:
    if not row.safe_to_deprecate:
        return "keep: open runs may take the old side"
    if row.safe_to_remove:
        return "may be removed"
    keep = "keep deprecate_patch: open runs hold the marker"
    return keep if row.deprecated else "may become deprecate_patch"


def triggers(target: str | None = None, *, sql: bool = False, db: Rows) -> None:
    """Lists triggers that start runs, or prints their statements.

    With MODULE they are compared with the code: exit code 1 if one is missing, of another
    declaration, altered, disabled or removed, or not in the code any more. The statements may be
    run again, and belong among the migrations of the application.

    Args:
        target: MODULE[:APP] with the workflows that @on decorates.
        sql: Print the statements that install those of the code.
    """
    declared: list[Any] = []
    if target is not None:
        app = load_app(target, db.given)
        workflows = {id(w): w for w in app.definitions.workflows.values()}
        declared = [trigger for workflow in workflows.values() for trigger in workflow.triggers]
    if sql:
        if target is None:
            raise Mistake("--sql prints the triggers of the code: pass MODULE")
        sys.stdout.write("\n".join(trigger.ddl() for trigger in declared))
        return
    rows = compare(declared, db.ask(inspect.list_triggers()), has_code=target is not None)
    names = ("name", "table", "workflow", "state")
    db.print(rows, "TRIGGER=name table workflow state", "There are no triggers.", names)
    if any(row["state"] != "installed" for row in rows):
        raise Ended(FAILED)


def compare(
    declared: list[Any], installed: list[inspect.TriggerRow], *, has_code: bool
) -> list[dict[str, Any]]:
    """Return a row for each trigger of the code or the database.

    Args:
        declared: Triggers of the workflows in the code.
        installed: Those of the database.
        has_code: True if the code is known: triggers that it does not declare are left over.
    """
    found = {trigger.name: trigger for trigger in installed}
    rows: list[dict[str, Any]] = []
    for trigger in sorted(declared, key=lambda trigger: str(trigger.name)):
        there = found.pop(trigger.name, None)
        state = "missing" if there is None else there.state
        if there is not None and state == "installed":
            state = state if there.definition == trigger.definition_hash else "outdated"
        table = ".".join(trigger.table)
        rows.append(_row(trigger.name, table, trigger.workflow.name, state))
    return rows + [
        _row(left.name, left.target, None, "not in the code" if has_code else left.state)
        for left in found.values()
    ]


def _row(name: str, table: str | None, workflow: str | None, state: str) -> dict[str, Any]:
    return {"name": name, "table": table, "workflow": workflow, "state": state}


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
