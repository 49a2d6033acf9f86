"""``pgflow flow``: lists, shows, draws and checks workflows in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.files.sqlflows import text_of
from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import Command, make_group
from pgflow_cli.look.output import (
    AsJson,
    Column,
    Form,
    age,
    choose_form,
    plain,
    print_rows,
)

if TYPE_CHECKING:
    from datetime import datetime

    from pgflow.inspect import SqlFlowRow

flow = make_group("flow", "Lists workflows in SQL, or shows one.", invoke_without_command=True)

Name = Annotated[str, typer.Argument(help="Name of the workflow.", show_default=False)]
Version = Annotated[
    int | None, typer.Option("--version", help="Number of a version; else the current one.")
]

_COLUMNS = (
    "workflow", "version", "is_current", "open_runs", "definer", "signature", "body", "created_at",
)  # fmt: skip


@flow.callback()
def list_flows(context: typer.Context, *, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Lists workflows in SQL, or shows one."""
    if context.invoked_subcommand is not None:
        return
    found, now = _read(None, dsn)
    _print(choose_form(as_json=as_json), found, now)


@flow.command("show", cls=Command)
def show_flow(name: Name, *, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Shows all versions of a workflow, and its text."""
    found, now = _read(name, dsn)
    if not found:
        raise Mistake(f"no workflow in SQL is named {name!r}: `pgflow flow` lists them")
    form = choose_form(as_json=as_json)
    _print(form, found, now)
    if form is Form.TABLE:
        current = next((one for one in found if one.is_current), found[-1])
        typer.echo("\n" + "\n".join(text_of(current)))


@flow.command("draw", cls=Command)
def draw_flow(name: Name, *, version: Version = None, dsn: Dsn = None) -> None:
    """Prints a picture of a workflow, as text for Mermaid."""
    from pgflow._db.calls import flows
    from pgflow._db.query import run

    with opened(dsn) as connection:
        typer.echo(run(connection, flows.draw_workflow(name, version)))


@flow.command("check", cls=Command)
def check_flow(
    name: Name, *, version: Version = None, as_json: AsJson = None, dsn: Dsn = None
) -> None:
    """Lists the errors that plpgsql_check finds in the steps, and fails if there are any."""
    from pgflow._db.calls import flows
    from pgflow._db.query import run

    with opened(dsn) as connection:
        found = run(connection, flows.check_workflow(name, version))
    form = choose_form(as_json=as_json)
    columns = [
        Column("LINE", lambda row: plain(row["line"]), right=True),
        Column("SQLSTATE", lambda row: plain(row["sqlstate"])),
        Column("ERROR", lambda row: plain(row["message"]), takes_rest=True),
    ]
    rows = [dict(zip(("line", "sqlstate", "message", "hint"), one, strict=True)) for one in found]
    names = ("line", "sqlstate", "message", "hint")
    print_rows(form, columns, rows, names=names, empty=f"No error is in {name}.")
    if rows:
        raise typer.Exit(1)


def _read(name: str | None, dsn: str | None) -> tuple[list[SqlFlowRow], datetime]:
    with opened(dsn) as connection:
        from pgflow import inspect

        return fetch(connection, inspect.list_sql_flows(name)), database_now(connection)


def _print(form: Form, found: list[SqlFlowRow], now: datetime) -> None:
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
