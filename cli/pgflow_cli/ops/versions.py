"""``pgflow versions``, ``patches`` and ``triggers``: which code open runs may depend on, who serves
it, what may go, and the triggers that the code declares and the database has.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

from pgflow import inspect
from pgflow.console.output import age
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.options import Rows
from pgflow_cli.look.selection import WorkflowNames
from pgflow_cli.look.targets import load_app


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
