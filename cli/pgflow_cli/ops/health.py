"""``pgflow health``: one line and an exit code, for probes.

A probe runs every few seconds, on a machine that has other work: the command imports the driver and
the judge of the schema, and asks one query of catalogs.
"""

from __future__ import annotations

import typer

from pgflow_cli.look.database import Dsn, connect, find_dsn
from pgflow_cli.look.output import AsJson, Form, choose_form, dump


def health(*, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Checks that the database answers and its schema fits.

    Exit code 0 if so, 69 if the database cannot be reached, 2 if its schema does not fit. It needs
    no more rights than a login has.
    """
    from pgflow._assets import own_assets
    from pgflow.schema import require_schema

    with connect(find_dsn(dsn, migrate=False)) as connection:
        require_schema(connection)
    stamp = own_assets().stamp
    if choose_form(as_json=as_json) is Form.JSON:
        typer.echo(dump({"healthy": True, "version": stamp.version, "schema": stamp.schema}))
    else:
        typer.echo(f"healthy: schema {stamp.schema} fits pgflow {stamp.version}")
