"""``pgflow init`` and ``pgflow migrate``: from nothing to a project with a database."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, connect, find_dsn, name_of
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.output import AsJson, Form, choose_form, many, note, plain, print_one
from pgflow_cli.look.parsing import seconds_option

STARTER = "starter.py.txt"


def migrate(
    dsn: Dsn = None,
    *,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print what would run, for psql, and change nothing.")
    ] = False,
    lock_timeout: Annotated[
        float,
        seconds_option("--lock-timeout", "How long to wait for what others hold.", shown="1m"),
    ] = 60.0,
    as_json: AsJson = None,
) -> None:
    """Installs the schema, or brings it up to date."""
    form = choose_form(as_json=as_json)
    with connect(find_dsn(dsn, migrate=False)) as connection:
        if sql:
            from pgflow.schema import migration_sql

            typer.echo(migration_sql(connection))
            return
        report = _migrate(connection, lock_timeout)
        slow = [] if report["up_to_date"] else _say_of_compiling(connection)
    print_one(form, report, lambda: plain(_say_migrated(report)))
    if report["advice"] and form is Form.TABLE:
        note("A database administrator should run:\n  " + "\n  ".join(report["advice"]))
    for line in slow if form is Form.TABLE else ():
        note(line)


def _say_of_compiling(connection: Any) -> list[str]:
    """Return a warning for users of psql if the server compiles queries (jit)."""
    from pgflow_cli.ops.checks.finding import Patient
    from pgflow_cli.ops.checks.server import check_compiling

    patient = Patient("", connection)
    return [
        f"{finding.found}. Remedy: {finding.do}"
        for finding in check_compiling(patient)
        if finding.level != "ok"
    ]


def _migrate(connection: Any, lock_timeout: float = 60.0) -> dict[str, Any]:
    from pgflow.schema import migrate as migrate_schema

    report = migrate_schema(connection, lock_timeout_seconds=lock_timeout)
    return {
        "database": name_of(connection),
        "up_to_date": report.already_current,
        "migrations": report.migrations,
        "sources": report.sources,
        "owner": report.owner,
        "advice": report.advice,
    }


def _say_migrated(report: dict[str, Any]) -> str:
    if report["up_to_date"]:
        return f"pgflow is up to date in {report['database']}"
    migrations, sources = (
        many(len(report["migrations"]), "migration"),
        many(len(report["sources"]), "file"),
    )
    return f"Applied {migrations} and {sources} of functions and views to {report['database']}"


def init(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the project; made if it is not there.")
    ] = Path(),
    *,
    no_migrate: Annotated[
        bool, typer.Option("--no-migrate", help="Do not touch a database.")
    ] = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Sets up a project: installs the schema, writes flows.py."""
    form = choose_form(as_json=as_json)
    target = folder / "flows.py"
    if target.exists():
        raise Mistake(
            f"{target} is there already: nothing was written. "
            "`pgflow migrate` brings the database up to date"
        )
    report: dict[str, Any] = {"file": str(target), "migrated": None}
    if not no_migrate:
        with connect(find_dsn(dsn, migrate=False)) as connection:
            report["migrated"] = _migrate(connection)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(resources.files(__package__).joinpath(STARTER).read_text())
    except OSError as error:
        raise Mistake(f"{target} cannot be written: {error}") from error
    print_one(form, report, lambda: plain(_say_begun(report)))
    if form is Form.TABLE:
        where = "" if folder == Path() else f"cd {folder}\n  "
        note(f"\nNow:\n  {where}pgflow run flows.py:greet name=Ada     # runs it here")
        note("  pgflow workers flows.py               # works on runs that others start")


def _say_begun(report: dict[str, Any]) -> str:
    migrated = report["migrated"]
    return f"Wrote {report['file']}." + (
        f" {_say_migrated(migrated).capitalize()}." if migrated else ""
    )
