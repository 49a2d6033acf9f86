"""``pgflow apply`` and ``pgflow flow``: files become workflows in SQL, which are shown."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.output import (
    AsJson,
    Column,
    Form,
    age,
    choose_form,
    plain,
    print_one,
    print_rows,
)

if TYPE_CHECKING:
    from pgflow.inspect import SqlFlowRow

_COLUMNS = (
    "workflow", "version", "is_current", "open_runs", "definer", "signature", "body", "created_at",
)  # fmt: skip


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
                _text(was),
                _text(flow),
                f"{name}@{was.version}",
                f"{name}@{flow.version}",
                lineterm="",
            )
    return lines


def _text(flow: SqlFlowRow) -> list[str]:
    return [flow.signature, *(flow.body or "").strip("\n").splitlines()]


def flow(
    name: Annotated[str | None, typer.Argument(help="Name of a workflow in SQL.")] = None,
    *,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Lists workflows in SQL, or shows one with its text."""
    with opened(dsn) as connection:
        from pgflow import inspect

        found = fetch(connection, inspect.list_sql_flows(name))
        now = database_now(connection)
    if name is not None and not found:
        raise Mistake(f"no workflow in SQL is named {name!r}: `pgflow flow` lists them")
    form = choose_form(as_json=as_json)
    columns = [
        Column("WORKFLOW", lambda row: plain(row["workflow"]), takes_rest=True),
        Column("VERSION", lambda row: plain(row["version"]), right=True),
        Column("CURRENT", lambda row: plain("yes" if row["is_current"] else "")),
        Column("OPEN RUNS", lambda row: plain(row["open_runs"]), right=True),
        Column("DEFINER", lambda row: plain(row["definer"])),
        Column("MADE", lambda row: plain(age(row["created_at"], now)), right=True),
    ]
    rows: list[dict[str, Any]] = [as_row(one) for one in found]
    print_rows(form, columns, rows, names=_COLUMNS, empty="There are no workflows in SQL.")
    if name is not None and form is Form.TABLE:
        current = next((one for one in found if one.is_current), found[-1])
        typer.echo("\n" + "\n".join(_text(current)))
