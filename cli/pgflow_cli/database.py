"""``pgflow migrate``: the schema."""

from __future__ import annotations

from typing import Annotated

import psycopg
import typer

from pgflow.dsn import redact_dsn, resolve_dsn
from pgflow.schema import migrate as migrate_schema
from pgflow.schema import migration_sql

Dsn = Annotated[str | None, typer.Option(help="Connection string; else PGFLOW_DSN, else DATABASE_URL, else the embedded server.")]


def find_dsn(dsn: str | None) -> str:
    """The database that a command works on; starts the embedded server where none is named."""
    found = resolve_dsn(dsn)
    if found is None:
        from pgflow.embedded import acquire

        return acquire().dsn
    return found


def migrate(
    dsn: Dsn = None,
    *,
    sql: Annotated[bool, typer.Option("--sql", help="Print what would run, for psql, and change nothing.")] = False,
    lock_timeout: Annotated[float, typer.Option(help="Seconds to wait for another installer.")] = 60.0,
) -> None:
    """Installs the schema, or brings it up to date."""
    with psycopg.connect(find_dsn(dsn), autocommit=True) as connection:
        if sql:
            typer.echo(migration_sql(connection))
            return
        report = migrate_schema(connection, lock_timeout_seconds=lock_timeout)
        if report.already_current:
            typer.echo(f"pgflow is up to date in {redact_dsn(connection.info.dsn)}")
        else:
            typer.echo(f"applied {len(report.migrations)} migrations and {len(report.sources)} files of functions and views")
        if report.advice:
            typer.echo("A database administrator should run:", err=True)
            for statement in report.advice:
                typer.echo(f"  {statement}", err=True)
