"""``pgflow versions`` and ``pgflow patches``: which code open runs may depend on, who serves it,
and what may go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.output import AsCsv, AsJson, Column, age, choose_form, plain, print_rows
from pgflow_cli.look.selection import WorkflowNames

if TYPE_CHECKING:
    from datetime import datetime

    from rich.text import Text

VERSION_NAMES = (
    "workflow",
    "version",
    "pinned",
    "pinned_runs",
    "begun_runs",
    "workers",
    "first_at",
    "last_at",
    "safe_to_remove",
)
PATCH_NAMES = (
    "workflow",
    "patch",
    "new_side",
    "old_side",
    "marked",
    "workers",
    "deprecated",
    "safe_to_deprecate",
    "safe_to_remove",
)


def versions(
    workflow: WorkflowNames = None,
    *,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Shows which versions open runs need, and who serves them.

    PINNED counts open runs that only workers of this version claim, BEGUN others that its code may
    have worked on. You can retire a version once both are 0.
    """
    with opened(dsn) as connection:
        from pgflow.inspect import list_versions

        rows = [as_row(version) for version in fetch(connection, list_versions(workflow or ()))]
        columns = _version_columns(database_now(connection))
    form = choose_form(as_json=as_json, as_csv=as_csv)
    print_rows(
        form, columns, rows, names=VERSION_NAMES, empty="No worker has reported its code yet."
    )


def _version_columns(now: datetime) -> list[Column]:
    return [
        Column("WORKFLOW", lambda row: plain(row["workflow"])),
        Column("VERSION", lambda row: plain(row["version"])),
        _number("pinned_runs", "PINNED"),
        _number("begun_runs", "BEGUN"),
        _number("workers", "WORKERS"),
        Column("SERVED", lambda row: plain(_served(row, now))),
        Column("MAY GO", lambda row: plain(_verdict(row))),
    ]


def _served(row: Any, now: datetime) -> str:
    if row["workers"]:
        return f"for {age(row['first_at'], now)}"
    return "never" if row["last_at"] is None else f"until {age(row['last_at'], now)} ago"


def _verdict(row: Any) -> str:
    if row["pinned_runs"] and not row["workers"]:
        return "no: runs wait for a worker that has it"
    if row["pinned_runs"]:
        return "no: pinned runs need its workers"
    return "yes" if row["safe_to_remove"] else "no: the code must fit these runs"


def patches(
    workflow: WorkflowNames = None,
    *,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Shows patches, and whether their old code can be removed.

    NEW counts open runs that took the new side, OLD those that may have passed before the change.
    """
    with opened(dsn) as connection:
        from pgflow.inspect import list_patches

        rows = [as_row(patch) for patch in fetch(connection, list_patches(workflow or ()))]
    columns = [
        Column("WORKFLOW", lambda row: plain(row["workflow"])),
        Column("PATCH", lambda row: plain(row["patch"])),
        _number("new_side", "NEW"),
        _number("old_side", "OLD"),
        _number("workers", "WORKERS"),
        Column("NEXT", lambda row: plain(_next(row))),
    ]
    form = choose_form(as_json=as_json, as_csv=as_csv)
    print_rows(
        form,
        columns,
        rows,
        names=PATCH_NAMES,
        empty="Neither a worker nor an open run knows a patch.",
    )


def _next(row: Any) -> str:
    if not row["safe_to_deprecate"]:
        return "keep: open runs may take the old side"
    if row["safe_to_remove"]:
        return "may be removed"
    return (
        "keep deprecate_patch: open runs hold the marker"
        if row["deprecated"]
        else "may become deprecate_patch"
    )


def _number(name: str, title: str) -> Column:
    def cell(row: Any) -> Text:
        return plain(f"{row[name]:,}")

    return Column(title, cell, right=True)
