"""``pgflow apply`` and ``flow``: files become workflows in SQL, which are listed, shown, drawn and
checked.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from pgflow import inspect
from pgflow.console.output import Form
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, make_group, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, Db


def apply(paths: list[Path], *, dry_run: bool = False, db: Answer) -> None:
    """Runs files that create workflows in SQL: all, or none.

    A text that is there already stays its version; another text becomes the next one. Runs in
    flight keep theirs.

    Args:
        paths: Files of SQL, or folders of them.
        dry_run: Show what would change, and change nothing.
    """
    import psycopg

    files = _files(paths)
    with db.connection.transaction(force_rollback=dry_run):
        before = _current(db)
        for file in files:
            try:
                db.connection.execute(file.read_bytes())
            except psycopg.Error as error:
                message = error.diag.message_primary or str(error)
                raise Mistake(f"{file}: {message}; nothing was applied") from error
        after = _current(db)
    changed = {name: flow for name, flow in after.items() if before.get(name) != flow}
    report = {
        "files": len(files),
        "dry_run": dry_run,
        "changed": {name: flow.version for name, flow in changed.items()},
    }
    if db.form is Form.TABLE:
        for line in _changes(before, changed, dry_run=dry_run):
            typer.echo(line)
        if not changed:
            typer.echo(f"All {len(after)} workflows are up to date.")
    else:
        db.answer(report, "")


def _files(paths: list[Path]) -> list[Path]:
    found = [
        file
        for path in paths
        for file in (sorted(path.rglob("*.sql")) if path.is_dir() else [path])
    ]
    if not found:
        raise Mistake(f"no file *.sql is in {', '.join(map(str, paths))}")
    if missing := [str(file) for file in found if not file.is_file()]:
        raise Mistake(f"{missing[0]} is not a file")
    return found


def _current(db: Database) -> dict[str, inspect.SqlFlowRow]:
    return {flow.workflow: flow for flow in db.ask(inspect.list_sql_flows())}


def _changes(
    before: dict[str, inspect.SqlFlowRow], changed: dict[str, inspect.SqlFlowRow], *, dry_run: bool
) -> list[str]:
    lines = []
    for name, flow in changed.items():
        was = before.get(name)
        verb = "would become" if dry_run else "is"
        lines.append(f"{name} {verb} version {flow.version}")
        if dry_run and was is not None:
            names = f"{name}@{was.version}", f"{name}@{flow.version}"
            lines += difflib.unified_diff(text_of(was), text_of(flow), *names, lineterm="")
    return lines


def text_of(flow: inspect.SqlFlowRow) -> list[str]:
    """Return the lines of a workflow: its signature, and its text."""
    return [flow.signature, *(flow.body or "").strip("\n").splitlines()]


flow = make_group("flow", invoke_without_command=True)

Name = Annotated[str, arg("Name of the workflow.")]
Version = Annotated[int | None, opt("Number of a version; else the current one.", "--version")]


@flow.callback()
def list_flows(*, db: Answer) -> None:
    """Lists workflows in SQL, or shows one."""
    _print(db, None)


@flow.command("show")
def show_flow(name: Name, *, db: Answer) -> None:
    """Shows all versions of a workflow, and its text."""
    found = _print(db, name)
    if db.form is Form.TABLE:
        current = next((one for one in found if one.is_current), found[-1])
        typer.echo("\n" + "\n".join(text_of(current)))


@flow.command("draw")
def draw_flow(name: Name, *, version: Version = None, db: Db) -> None:
    """Prints a picture of a workflow, as text for Mermaid."""
    typer.echo(db.ask(inspect.draw_sql_flow(name, version)))


@flow.command("check")
def check_flow(name: Name, *, version: Version = None, db: Answer) -> None:
    """Lists the errors that plpgsql_check finds in the steps, and fails if there are any."""
    found = db.ask(inspect.check_sql_flow(name, version))
    db.print(found, "line sqlstate ERROR=message*60", f"No error is in {name}.")
    if found:
        raise typer.Exit(1)


def _print(db: Database, name: str | None) -> list[inspect.SqlFlowRow]:
    found = db.ask(inspect.list_sql_flows(name))
    if name is not None and not found:
        raise Mistake(f"no workflow in SQL is named {name!r}: `pgflow flow` lists them")
    columns = "workflow*60 version CURRENT=is_current OPEN_RUNS=open_runs definer MADE=created_at"
    db.print(found, columns, "There are no workflows in SQL.")
    return found
