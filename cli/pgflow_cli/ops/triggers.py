"""``pgflow triggers``: the triggers by which changes of tables start runs, as the code declares
them and as they are installed.
"""

from __future__ import annotations

import sys
from typing import Any

from pgflow import inspect
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.options import Rows
from pgflow_cli.look.targets import load_app


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
