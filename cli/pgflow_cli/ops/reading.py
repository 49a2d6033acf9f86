"""``pgflow sql``: questions to the database that cannot change it.

They take the way of :mod:`pgflow.inspect.sheet`, as those of the console do: by the login of an
auditor, and only over what is pgflow's. That module documents what is refused and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pgflow.console.output import Column, Form, note, short_json
from pgflow_cli.look.database import find_dsn
from pgflow_cli.look.declaring import arg
from pgflow_cli.look.failures import TIME_LIMIT, Ended
from pgflow_cli.look.options import Limit, Rows
from pgflow_cli.look.parsing import read_given, seconds_option

if TYPE_CHECKING:
    from pgflow.inspect.sheet import Sheet


def sql(
    statement: Annotated[str, arg(metavar="SELECT")],
    *,
    limit: Limit = 1000,
    timeout: Annotated[float, seconds_option("--timeout", shown="60s")] = 60.0,
    db: Rows,
) -> None:
    """Runs a read-only query against the database.

    Query the views runs, steps, timeline, queues and workers. The query runs under a login that is
    only an auditor: that of --dsn, else PGFLOW_AUDITOR_DSN. The embedded server has one.

    Args:
        statement: A question in SQL, @FILE, or - for standard input.
        timeout: Give up after 90s, 10m...
    """
    sheet = _ask(db.given, read_given(statement, "the statement")[0], limit or None, timeout)
    # Two columns may have one name, so the cells of a table are found by their position.
    names: Any = range(len(sheet.columns)) if db.form is Form.TABLE else sheet.columns
    rows = [dict(zip(names, row, strict=True)) for row in sheet.rows]
    columns = [_column(name, number) for number, name in enumerate(sheet.columns)]
    db.print(rows, columns, "no rows", list(sheet.columns))
    if sheet.has_more:
        note(f"The first {limit} rows; there are more: --limit 0 gives all.")


def _ask(dsn: str | None, text: str, limit: int | None, seconds: float) -> Sheet:
    import psycopg

    from pgflow.inspect.sheet import find_auditor_dsn, read_sheet

    try:
        auditor_dsn = None if dsn else find_auditor_dsn()
        return read_sheet(
            auditor_dsn or find_dsn(dsn),
            text,
            auditor_dsn=auditor_dsn,
            most_rows=limit,
            most_chars=None,
            seconds=seconds,
        )
    except psycopg.errors.QueryCanceled as error:
        note(f"pgflow: no answer within {seconds:g} s: pass --timeout, or ask for less")
        raise Ended(TIME_LIMIT) from error


def _column(name: str, number: int) -> Column:
    def cell(row: Any) -> Any:
        value = row[number]
        return short_json(value) if isinstance(value, (dict, list)) else value

    return Column(name, cell, most=100)
