"""``pgflow doctor``: what is wrong with a database, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pgflow.console.output import Form, console, many, note, plain
from pgflow_cli.look.database import connect_to_any
from pgflow_cli.look.failures import FAILED, Ended
from pgflow_cli.look.options import Rows
from pgflow_cli.ops.checks import cluster, schema, server, work
from pgflow_cli.ops.checks.finding import Check, Finding, Patient, fail, findings_of, warn


class FailOn(StrEnum):
    """Levels of findings that a check may fail on."""

    WARN = "warn"
    FAIL = "fail"


SERVER: dict[str, Check] = {
    "server version": server.check_version,
    "durability": server.check_durability,
    "replication": server.check_replication,
    "clock": server.check_clock,
    "pooler": server.check_pooler,
    "listen": server.check_listen,
    "autovacuum": server.check_autovacuum,
    "long transactions": server.check_long_transactions,
    "connections": server.check_connections,
    "schema": schema.check_schema,
}
WITH_SCHEMA: dict[str, Check] = {
    "schema drift": schema.check_drift,
    "privileges": schema.check_privileges,
    "workers": work.check_workers,
    "queues": work.check_queues,
    "stuck runs": work.check_stuck,
    "deadlocks": work.check_deadlocks,
    "messages": work.check_messages,
    "losses": work.check_losses,
    "journal": work.check_journal,
    "seals": work.check_seals,
    "schedules": work.check_schedules,
    "relays": work.check_relays,
    "triggers": work.check_triggers,
    "compiling": server.check_compiling,
    "citus": cluster.check_citus,
    "cluster": cluster.check_cluster,
}


def doctor(*, deep: bool = False, fail_on: FailOn = FailOn.WARN, db: Rows) -> None:
    """Checks a database, and shows how to fix what it finds.

    It checks the server, the connection to it, the schema, the role's privileges, the workers and
    the runs. The exit code is 1 if it finds something. With --fail-on fail it still shows warnings,
    but exits 0 for them, for a health check or a deploy.

    Args:
        deep: Also prove every invariant, which reads all runs.
        fail_on: Least finding that makes the exit code 1.
    """
    with connect_to_any(dsn := db.dsn) as connection:
        rows = examine(Patient(dsn, connection), deep=deep)
    if db.form is Form.TABLE:
        _print(rows)
    else:
        db.print(rows, [], "")
    worst = ("fail",) if fail_on is FailOn.FAIL else ("fail", "warn")
    if any(row["level"] in worst for row in rows):
        raise Ended(FAILED)


def examine(patient: Patient, *, deep: bool = False) -> list[dict[str, Any]]:
    """Runs every check that can be run; those of what the schema holds need one that fits."""
    rows = _run(patient, SERVER)
    if rows[-1]["level"] != "fail":
        rows += _run(patient, WITH_SCHEMA)
        rows += _run(patient, {"invariants": work.check_books}) if deep else []
    return rows


def _run(patient: Patient, checks: dict[str, Check]) -> list[dict[str, Any]]:
    return [
        {"check": name, **f._asdict()}
        for name, check in checks.items()
        for f in _findings(check, patient)
    ]


def _findings(check: Check, patient: Patient) -> list[Finding]:
    """Return the findings of a check. A check that cannot be made is a finding too; a lost
    connection ends the command.
    """
    import psycopg

    try:
        return findings_of(check, patient)
    except psycopg.errors.InsufficientPrivilege as error:
        remedy = "run doctor as the owner of the schema or with pg_monitor"
        return [warn(f"this role may not look: {error.diag.message_primary or error}", remedy)]
    except psycopg.errors.ReadOnlySqlTransaction:
        return [fail("a standby cannot be asked this", "name the primary in the connection string")]
    except psycopg.errors.ProgrammingError as error:
        found = f"this cannot be checked: {error.diag.message_primary}"
        remedy = "fix the schema first"
        if isinstance(error, psycopg.errors.AmbiguousFunction):
            found += ": the search path has another function of that name"
            remedy = "drop that function: the check of schema drift names it"
        return [fail(found, remedy)]


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
        do = ("\n→ ", (row["do"], "cyan")) if row["do"] else ()
        name = plain(row["check"] if row["check"] != last else "")
        table.add_row(Text(*_SIGNS[row["level"]]), name, Text.assemble(row["found"], *do))
        last = row["check"]
    console().print(table)
    wrong = sum(row["level"] != "ok" for row in rows)
    needs = f"{many(wrong, 'finding')} of {len(rows)} need{'s' * (wrong == 1)} attention."
    note(f"\n{needs}" if wrong else "\nAll is well.")
