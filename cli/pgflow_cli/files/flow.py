"""``pgflow flow``: lists, shows, draws and checks workflows in SQL."""

from __future__ import annotations

from typing import Annotated

import typer

from pgflow import inspect
from pgflow_cli.files.sqlflows import text_of
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import make_group
from pgflow_cli.look.options import Answer, Db
from pgflow_cli.look.output import Form

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
