"""``pgflow versions`` and ``pgflow patches``: which code open runs may depend on, who serves it,
and what may go.
"""

from __future__ import annotations

from datetime import datetime

from pgflow import inspect
from pgflow_cli.look.options import Rows
from pgflow_cli.look.output import age
from pgflow_cli.look.selection import WorkflowNames


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
