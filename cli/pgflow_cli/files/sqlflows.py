"""``pgflow apply``: files become workflows in SQL."""

from __future__ import annotations

import difflib
from pathlib import Path

import typer

from pgflow import inspect
from pgflow_cli.look.database import Database
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer
from pgflow_cli.look.output import Form


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
