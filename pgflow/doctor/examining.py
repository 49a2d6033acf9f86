"""The examination of a database: all checks, in their order."""

from __future__ import annotations

from typing import Any

import psycopg

from pgflow.doctor import cluster, schema, server, work
from pgflow.doctor.finding import Check, Finding, Patient, fail, findings_of, warn
from pgflow.inspect.connecting import connect_to_any

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


def examine(dsn: str, *, deep: bool = False) -> list[dict[str, Any]]:
    """Run every check that can be run; those of what the schema holds need one that fits.

    Args:
        dsn: The database.
        deep: True to prove every invariant too, which reads all runs.
    """
    with connect_to_any(dsn, name="pgflow cli") as connection:
        patient = Patient(dsn, connection)
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
    connection ends the examination.
    """
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
