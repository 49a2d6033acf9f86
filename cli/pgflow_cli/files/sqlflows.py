"""``pgflow apply``: files become workflows in SQL."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgflow_cli.look.database import Dsn, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.output import AsJson, Form, choose_form, plain, print_one

if TYPE_CHECKING:
    from pgflow.inspect import SqlFlowRow


def apply(
    paths: Annotated[
        list[Path], typer.Argument(help="Files of SQL, or folders of them.", show_default=False)
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Runs files that create workflows in SQL: all, or none.

    A text that is there already stays its version; another text becomes the next one. Runs in
    flight keep theirs.
    """
    files = _files(paths)
    with opened(dsn) as connection:
        import psycopg

        from pgflow import inspect

        with connection.transaction(force_rollback=dry_run):
            before = _current(fetch(connection, inspect.list_sql_flows()))
            for file in files:
                try:
                    connection.execute(file.read_bytes())
                except psycopg.Error as error:
                    message = error.diag.message_primary or str(error)
                    raise Mistake(f"{file}: {message}; nothing was applied") from error
            after = _current(fetch(connection, inspect.list_sql_flows()))
    changed = {name: flow for name, flow in after.items() if before.get(name) != flow}
    report = {
        "files": len(files),
        "dry_run": dry_run,
        "changed": {name: flow.version for name, flow in changed.items()},
    }
    form = choose_form(as_json=as_json)
    if form is Form.TABLE:
        typer.echo("\n".join(_said(before, changed, after, dry_run=dry_run)))
    else:
        print_one(form, report, lambda: plain(""))


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


def _current(flows: list[SqlFlowRow]) -> dict[str, SqlFlowRow]:
    return {flow.workflow: flow for flow in flows}


def _said(
    before: dict[str, SqlFlowRow],
    changed: dict[str, SqlFlowRow],
    after: dict[str, SqlFlowRow],
    *,
    dry_run: bool,
) -> list[str]:
    if not changed:
        return [f"All {len(after)} workflows are up to date."]
    lines = []
    for name, flow in changed.items():
        was = before.get(name)
        verb = "would become" if dry_run else "is"
        lines.append(f"{name} {verb} version {flow.version}")
        if dry_run and was is not None:
            lines += difflib.unified_diff(
                text_of(was),
                text_of(flow),
                f"{name}@{was.version}",
                f"{name}@{flow.version}",
                lineterm="",
            )
    return lines


def text_of(flow: SqlFlowRow) -> list[str]:
    """Return the lines of a workflow: its signature, and its text."""
    return [flow.signature, *(flow.body or "").strip("\n").splitlines()]
