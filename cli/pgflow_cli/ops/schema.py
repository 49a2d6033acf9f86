"""``pgflow init``, ``migrate`` and ``health``: from nothing to a project with a database, and one
line with an exit code for probes.

A probe runs every few seconds, on a machine that has other work: it imports the driver and the
judge of the schema, and asks one query of catalogs.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from pgflow.console.output import Form, as_object, many, note
from pgflow_cli.look.database import Database, connect, find_dsn
from pgflow_cli.look.failures import FAILED, Ended, Mistake, explain, opening
from pgflow_cli.look.options import Answer
from pgflow_cli.look.parsing import seconds_option

STARTER = "starter.py.txt"


def migrate(
    db: Answer,
    *,
    sql: bool = False,
    all_nodes: bool = False,
    lock_timeout: Annotated[float, seconds_option("--lock-timeout", shown="1m")] = 60.0,
) -> None:
    """Installs the schema, or brings it up to date.

    Args:
        sql: Print what would run, for psql, and change nothing.
        all_nodes: On each node of the cluster or of Citus in turn, with what makes it a node.
        lock_timeout: Time to wait for what others hold.
    """
    dsn = find_dsn(db.given, migrate=False)
    if all_nodes:
        if sql:
            raise Mistake("--sql prints what would run on one database: leave out --all-nodes")
        _migrate_nodes(db, dsn, lock_timeout)
        return
    with connect(dsn) as connection:
        if sql:
            from pgflow.schema import migration_sql

            typer.echo(migration_sql(connection))
            return
        report = _migrate(connection, lock_timeout)
        notes = [] if report["up_to_date"] else _warn_of_compiling(connection)
    db.answer(report, _in_words(report))
    if db.form is Form.TABLE:
        if report["advice"]:
            note("A database administrator should run:\n  " + "\n  ".join(report["advice"]))
        for line in notes:
            note(line)


def _migrate_nodes(db: Database, dsn: str, lock_timeout: float) -> None:
    """Bring all nodes up to date; a node that fails keeps none of the others from it."""
    import psycopg

    from pgflow.errors import SetupError
    from pgflow.inspect.nodes import dsn_of_node
    from pgflow.schema.clusters import find_nodes, renew_cluster

    with connect(dsn) as connection:
        nodes = find_nodes(connection)
    if not nodes:
        raise Mistake("the database is a node of no cluster: leave out --all-nodes")
    reports, lines, failures = [], [], 0
    for node in nodes:
        report: dict[str, Any] = {"node": node.node}
        try:
            with connect(dsn_of_node(dsn, node)) as connection:
                report |= _migrate(connection, lock_timeout)
                renew_cluster(connection)
            words = _in_words(report)
        except (psycopg.Error, SetupError, OSError) as error:
            report["error"] = words = explain(error)[1] or repr(error)
            failures += 1
        reports.append(report)
        lines.append(f"Node {node.node}: {words}")
    db.answer({"nodes": reports}, "\n".join(lines))
    if failures:
        raise Ended(FAILED)


def _warn_of_compiling(connection: Any) -> list[str]:
    """Return a warning for users of psql if the server compiles queries (jit)."""
    from pgflow.doctor.finding import Patient, findings_of
    from pgflow.doctor.server import check_compiling

    found = findings_of(check_compiling, Patient("", connection))
    return [f"{one.found}. Remedy: {one.do}" for one in found if one.level != "ok"]


def _migrate(connection: Any, lock_timeout: float = 60.0) -> dict[str, Any]:
    from pgflow.schema import migrate as migrate_schema

    report = migrate_schema(connection, lock_timeout_seconds=lock_timeout)
    info = connection.info
    names = ("migrations", "sources", "owner", "advice")
    return {
        "database": f"{info.user}@{info.host}:{info.port}/{info.dbname}",
        "up_to_date": report.already_current,
        **as_object(report, names),
    }


def _in_words(report: dict[str, Any]) -> str:
    if report["up_to_date"]:
        return f"pgflow is up to date in {report['database']}"
    migrations = many(len(report["migrations"]), "migration")
    files = many(len(report["sources"]), "file")
    return f"Applied {migrations} and {files} of functions and views to {report['database']}"


def init(folder: Path = Path(), *, no_migrate: bool = False, db: Answer) -> None:
    """Sets up a project: installs the schema, writes flows.py.

    Args:
        folder: Folder of the project; made if it is not there.
        no_migrate: Do not touch a database.
    """
    target = folder / "flows.py"
    if target.exists():
        raise Mistake(
            f"{target} is there already: nothing was written. "
            "`pgflow migrate` brings the database up to date"
        )
    report: dict[str, Any] = {"file": str(target), "migrated": None}
    words = f"Wrote {target}."
    if not no_migrate:
        with connect(find_dsn(db.given, migrate=False)) as connection:
            report["migrated"] = _migrate(connection)
        words += f" {_in_words(report['migrated']).capitalize()}."
    with opening(target, "written"):
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(resources.files(__package__).joinpath(STARTER).read_text())
    db.answer(report, words)
    if db.form is Form.TABLE:
        where = "" if folder == Path() else f"cd {folder}\n  "
        note(f"\nNow:\n  {where}pgflow run flows.py:greet name=Ada     # runs it here")
        note("  pgflow workers flows.py               # works on runs that others start")


def health(db: Answer) -> None:
    """Checks that the database answers and its schema fits.

    Exit code 0 if so, 69 if the database cannot be reached, 2 if its schema does not fit. It needs
    no more rights than a login has.
    """
    from pgflow.schema import own_assets, require_schema

    with connect(find_dsn(db.given, migrate=False)) as connection:
        require_schema(connection)
    stamp = own_assets().stamp
    row = {"healthy": True, "version": stamp.version, "schema": stamp.schema}
    db.answer(row, f"healthy: schema {stamp.schema} fits pgflow {stamp.version}")
