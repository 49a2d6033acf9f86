"""``pgflow health``: one line and an exit code, for probes.

A probe runs every few seconds, on a machine that has other work: the command imports the driver and
the judge of the schema, and asks one query of catalogs.
"""

from __future__ import annotations

from pgflow_cli.look.database import connect, find_dsn
from pgflow_cli.look.options import Answer


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
