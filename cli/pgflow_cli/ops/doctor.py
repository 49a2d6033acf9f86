"""``pgflow doctor``: what is wrong with a database, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, connect_to_any, find_dsn
from pgflow_cli.look.failures import FAILED, Ended
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Form,
    choose_form,
    console,
    note,
    plain,
    print_rows,
)
from pgflow_cli.ops.checks.citus import check_citus
from pgflow_cli.ops.checks.events import check_relays, check_triggers
from pgflow_cli.ops.checks.finding import Finding, Patient
from pgflow_cli.ops.checks.schema import check_drift, check_privileges, check_schema
from pgflow_cli.ops.checks.server import (
    check_autovacuum,
    check_clock,
    check_compiling,
    check_connections,
    check_durability,
    check_listen,
    check_long_transactions,
    check_pooler,
    check_replication,
    check_version,
)
from pgflow_cli.ops.checks.work import (
    check_books,
    check_deadlocks,
    check_journal,
    check_losses,
    check_messages,
    check_queues,
    check_schedules,
    check_seals,
    check_stuck,
    check_workers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType


class FailOn(StrEnum):
    """Levels of findings that a check may fail on."""

    WARN = "warn"
    FAIL = "fail"


SERVER: dict[str, Callable[[Patient], Iterator[Finding]]] = {
    "server version": check_version, "durability": check_durability,
    "replication": check_replication, "clock": check_clock, "pooler": check_pooler,
    "listen": check_listen, "autovacuum": check_autovacuum,
    "long transactions": check_long_transactions, "connections": check_connections,
    "schema": check_schema,
}  # fmt: skip
WITH_SCHEMA: dict[str, Callable[[Patient], Iterator[Finding]]] = {
    "schema drift": check_drift, "privileges": check_privileges, "workers": check_workers,
    "queues": check_queues, "stuck runs": check_stuck, "deadlocks": check_deadlocks,
    "messages": check_messages,
    "losses": check_losses, "journal": check_journal, "seals": check_seals,
    "schedules": check_schedules, "relays": check_relays, "triggers": check_triggers,
    "compiling": check_compiling, "citus": check_citus,
}  # fmt: skip


def doctor(
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also prove every invariant, which reads all runs.")
    ] = False,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Least finding that makes the exit code 1.")
    ] = FailOn.WARN,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Checks a database, and shows how to fix what it finds.

    It checks the server, the connection to it, the schema, the role's privileges, the workers and
    the runs. The exit code is 1 if it finds something. With --fail-on fail it still shows warnings,
    but exits 0 for them, for a health check or a deploy.
    """
    form = choose_form(as_json=as_json, as_csv=as_csv)
    found = find_dsn(dsn)
    with connect_to_any(found) as connection:
        rows = examine(Patient(found, connection), deep=deep)
    if form is Form.TABLE:
        _print(rows)
    else:
        print_rows(form, [], rows)
    worst = ("fail",) if fail_on is FailOn.FAIL else ("fail", "warn")
    if any(row["level"] in worst for row in rows):
        raise Ended(FAILED)


def examine(patient: Patient, *, deep: bool = False) -> list[dict[str, Any]]:
    """Runs every check that can be run; those of what the schema holds need one that fits."""
    rows = _run(patient, SERVER)
    if rows[-1]["level"] != "fail":
        rows += _run(patient, WITH_SCHEMA)
        rows += _run(patient, {"invariants": check_books}) if deep else []
    return rows


def _run(
    patient: Patient, checks: dict[str, Callable[[Patient], Iterator[Finding]]]
) -> list[dict[str, Any]]:
    return [
        {"check": name, "level": f.level, "found": f.found, "do": f.do}
        for name, check in checks.items()
        for f in _findings(check, patient)
    ]


def _findings(check: Callable[[Patient], Iterator[Finding]], patient: Patient) -> list[Finding]:
    """Return the findings of a check. A check that cannot be made is a finding too; a lost
    connection ends the command.
    """
    import psycopg

    try:
        return list(check(patient))
    except psycopg.errors.InsufficientPrivilege as error:
        remedy = "run doctor as the owner of the schema or with pg_monitor"
        return [
            Finding(
                "warn", f"this role may not look: {error.diag.message_primary or error}", remedy
            )
        ]
    except psycopg.errors.ReadOnlySqlTransaction:
        return [
            Finding(
                "fail",
                "a standby cannot be asked this",
                "name the primary in the connection string",
            )
        ]
    except psycopg.errors.AmbiguousFunction as error:
        return [
            Finding(
                "fail",
                f"this cannot be checked: {error.diag.message_primary}: the search path has "
                "another function of that name",
                "drop that function: the check of schema drift names it",
            )
        ]
    except psycopg.errors.ProgrammingError as error:
        return [
            Finding(
                "fail",
                f"this cannot be checked: {error.diag.message_primary}",
                "fix the schema first",
            )
        ]


_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "bold yellow"), "fail": ("✗", "bold red")}


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    last = ""
    for row in rows:
        sign, style = _SIGNS[row["level"]]
        cell: RenderableType = plain(row["found"])
        if row["do"]:
            cell = Text.assemble(row["found"], "\n→ ", (row["do"], "cyan"))
        table.add_row(
            Text(sign, style=style), plain(row["check"] if row["check"] != last else ""), cell
        )
        last = row["check"]
    console().print(table)
    wrong = sum(row["level"] != "ok" for row in rows)
    note(f"\n{wrong} of {len(rows)} findings need attention." if wrong else "\nAll is well.")
