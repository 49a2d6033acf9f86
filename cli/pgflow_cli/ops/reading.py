"""``pgflow sql``: questions to the database that cannot change it.

Two things stand between a typed statement and the data. sqlglot says what the statement is, so that
what is not a question is refused with a reason. And the transaction is read only, which holds
whatever sqlglot thinks. The statement is sent by itself, in the protocol that takes one only, so
nothing can follow a COMMIT.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, connect, find_dsn
from pgflow_cli.look.failures import TIME_LIMIT, Ended, Mistake
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    Limit,
    choose_form,
    note,
    plain,
    print_rows,
    short_json,
)
from pgflow_cli.look.parsing import parse_duration, read_standard_input

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg
    from rich.text import Text

_SETTINGS = """
select set_config('search_path', current_setting('search_path') || ', pgflow', true),
  set_config('statement_timeout', %s, true)
"""


def sql(
    statement: Annotated[
        str,
        typer.Argument(
            metavar="SELECT",
            help="A question in SQL, @FILE, or - for standard input.",
            show_default=False,
        ),
    ],
    *,
    limit: Limit = 1000,
    timeout: Annotated[str, typer.Option(help="Give up after 90s, 10m...")] = "60s",
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Asks the database a question; it can change nothing.

    Views to ask are runs, steps, timeline, queues and workers.
    """
    form = choose_form(as_json=as_json, as_csv=as_csv)
    text = _read(statement)
    check_reads(text)
    patience = int(parse_duration(timeout, "--timeout").total_seconds() * 1000)
    with connect(find_dsn(dsn)) as connection:
        names, rows = _ask(connection, text, limit + 1 if limit else None, patience)
    shown = rows[: limit or None]
    print_rows(
        form,
        [_column(name, number) for number, name in enumerate(names)],
        _as_rows(names, shown, tuples=form == "table"),
        names=names,
        empty="no rows",
    )
    if len(shown) < len(rows):
        note(f"The first {limit} rows; there are more: --limit 0 gives all.")


def _read(statement: str) -> str:
    if statement == "-":
        return read_standard_input("the statement")
    if not statement.startswith("@"):
        return statement
    try:
        return Path(statement[1:]).read_text()
    except (OSError, ValueError) as error:  # no such file, no name of one, or no text in it
        raise Mistake(f"the statement cannot be read: {error}") from error


# ---------------------------------------------------------------- what it is


def check_reads(text: str) -> None:
    """Makes sure that a text is one question.

    Raises:
        Mistake: It is something else; says what.
    """
    import logging

    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        statements = [found for found in sqlglot.parse(text, read="postgres") if found is not None]
    except SqlglotError:
        # Newer syntax than sqlglot knows is Postgres' to judge, in its read-only transaction.
        if re.match(r"[\s(]*(select|with|values|table|show|explain)\b", text, re.IGNORECASE):
            return
        raise Mistake(
            'this cannot be read as SQL: pass one SELECT, such as "select key, status from runs"'
        ) from None
    statements = [found for found in statements if not isinstance(found, exp.Semicolon)]
    if len(statements) != 1:
        raise Mistake(
            "pass one statement, not several"
            if statements
            else 'pass a statement, such as "select key, status from runs"'
        )
    if reason := why_not(statements[0]):
        raise Mistake(f"{reason}: `pgflow sql` only reads; psql does the rest")


def why_not(statement: Any) -> str | None:
    """Return the reason why a parsed statement is more than a question; None if it is not."""
    from sqlglot import exp

    for kind, words in (
        (exp.Insert, "inserts"),
        (exp.Update, "updates"),
        (exp.Delete, "deletes"),
        (exp.Merge, "merges"),
        (exp.Into, "makes a table"),
    ):
        if statement.find(kind) is not None:
            return f"this {words}" if isinstance(statement, kind) else f"a part of this {words}"
    if statement.find(exp.Lock) is not None:
        return "this locks rows"
    if isinstance(statement, (exp.Query, exp.Values, exp.Show, exp.Describe)):
        return None
    words = str(statement.this if isinstance(statement, exp.Command) else statement.key).upper()
    return (
        None
        if words in ("SHOW", "EXPLAIN", "TABLE")
        else f"this is {'an' if words[:1] in 'AEIO' else 'a'} {words}"
    )


# ---------------------------------------------------------------- asking


def _ask(
    connection: psycopg.Connection[Any], text: str, limit: int | None, patience_ms: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    import psycopg

    connection.read_only = True
    connection.autocommit = False
    try:
        with connection.transaction(force_rollback=True), connection.cursor() as cursor:
            cursor.execute(_SETTINGS, (f"{patience_ms}ms",))
            rows = list(_take(cursor.stream(text.encode()), limit))
            return [column.name for column in cursor.description or ()], rows
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise Mistake(
            f"this would write ({error.diag.message_primary}): `pgflow sql` only reads"
        ) from error
    except psycopg.errors.QueryCanceled as error:
        note(f"pgflow: no answer within {patience_ms / 1000:g} s: pass --timeout, or ask for less")
        raise Ended(TIME_LIMIT) from error
    except psycopg.Error as error:
        if error.sqlstate is None or not error.sqlstate.startswith(
            ("0A", "21", "22", "25", "2B", "3F", "42")
        ):
            raise
        raise Mistake(_refusal(error, text)) from error


def _take(rows: Iterator[Any], limit: int | None) -> Iterator[Any]:
    for number, row in enumerate(rows, 1):
        yield row
        if number == limit:
            return


def _refusal(error: psycopg.Error, text: str) -> str:
    hint = f". {error.diag.message_hint}" if error.diag.message_hint else ""
    position = int(error.diag.statement_position or 0)
    near = f" (at: {' '.join(text[max(position - 1, 0) :].split())[:30]})" if position else ""
    return f"{error.diag.message_primary}{near}{hint}"


def _as_rows(
    names: list[str], rows: list[tuple[Any, ...]], *, tuples: bool
) -> list[dict[Any, Any]]:
    """Rows by name; for a table by position, since two columns may have one name."""
    return [dict(enumerate(row)) if tuples else dict(zip(names, row, strict=True)) for row in rows]


def _column(name: str, number: int) -> Column:
    def cell(row: Any) -> Text:
        value = row[number]
        return short_json(value) if isinstance(value, (dict, list)) else plain(value)

    return Column(name, cell, most=100)
