"""``pgflow triggers``: the triggers by which changes of tables start runs, as the code declares
them and as they are installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, fetch, opened
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.output import AsCsv, AsJson, Column, choose_form, plain, print_rows
from pgflow_cli.look.targets import load_app

if TYPE_CHECKING:
    from pgflow._flow.triggers import Trigger
    from pgflow.inspect import TriggerRow


def triggers(
    target: Annotated[
        str | None,
        typer.Argument(help="MODULE[:APP] with the workflows that @on decorates."),
    ] = None,
    *,
    sql: Annotated[
        bool,
        typer.Option("--sql", help="Print the statements that install those of the code."),
    ] = False,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Lists triggers that start runs, or prints their statements.

    With MODULE they are compared with the code: exit code 1 if one is missing, of another
    declaration, altered, disabled or removed, or not in the code any more. The statements may be
    run again, and belong among the migrations of the application.
    """
    declared: list[Trigger] = []
    if target is not None:
        app = load_app(target, dsn)
        workflows = {id(w): w for w in app.definitions.workflows.values()}
        declared = [trigger for workflow in workflows.values() for trigger in workflow.triggers]
    if sql:
        if target is None:
            raise Mistake("--sql prints the triggers of the code: pass MODULE")
        sys.stdout.write("\n".join(trigger.ddl() for trigger in declared))
        return
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        from pgflow import inspect

        installed = fetch(connection, inspect.list_triggers())
    rows = compare(declared, installed, has_code=target is not None)
    columns = [
        Column("TRIGGER", lambda row: plain(row["name"])),
        Column("TABLE", lambda row: plain(row["table"] or "")),
        Column("WORKFLOW", lambda row: plain(row["workflow"] or "")),
        Column("STATE", lambda row: plain(row["state"])),
    ]
    names = ("name", "table", "workflow", "state")
    print_rows(form, columns, rows, names=names, empty="There are no triggers.")
    if any(row["state"] != "installed" for row in rows):
        raise Ended(FAILED)


def compare(
    declared: list[Trigger], installed: list[TriggerRow], *, has_code: bool
) -> list[dict[str, Any]]:
    """Return a row for each trigger of the code or the database.

    Args:
        declared: Those of the code.
        installed: Those of the database.
        has_code: True if the code is known: triggers that it does not declare are left over.
    """
    found = {trigger.name: trigger for trigger in installed}
    rows: list[dict[str, Any]] = []
    for trigger in sorted(declared, key=lambda trigger: trigger.name):
        there = found.pop(trigger.name, None)
        if there is None:
            state = "missing"
        elif there.state == "installed" and there.definition != trigger.definition_hash:
            state = "outdated"
        else:
            state = there.state
        rows.append(
            {
                "name": trigger.name,
                "table": ".".join(trigger.table),
                "workflow": trigger.workflow.name,
                "state": state,
            }
        )
    rows += [
        {
            "name": left.name,
            "table": left.target,
            "workflow": None,
            "state": "not in the code" if has_code else left.state,
        }
        for left in found.values()
    ]
    return rows
