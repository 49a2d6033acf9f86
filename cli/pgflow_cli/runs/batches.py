"""``pgflow batches``: many runs, and the one that begins once all of them have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    Limit,
    age,
    choose_form,
    many,
    plain,
    print_one,
    print_rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_COLUMNS = (
    "key", "workflow", "opened_at", "begun_at", "is_whole", "runs", "passed",
    "on_failure", "failed_at", "first_failed", "failure_key", "failure_trouble",
)  # fmt: skip


def batches(
    key: Annotated[
        str | None,
        typer.Argument(help="Key of a batch, to count its runs by their ends.", show_default=False),
    ] = None,
    *,
    limit: Limit = 50,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Lists batches, or counts the runs of one.

    PASSED are those before the first that is open, in the order in which they were started.
    """
    if key is not None:
        _count(dsn, key, as_json=as_json)
        return
    from pgflow.inspect import list_batches

    with opened(dsn) as connection:
        rows = [as_row(found) for found in fetch(connection, list_batches(limit=limit or None))]
        now = database_now(connection)
    columns = [
        Column("BATCH", lambda row: plain(row["key"]), takes_rest=True, most=128),
        Column("WORKFLOW", lambda row: plain(row["workflow"])),
        Column("AGE", lambda row: plain(age(row["opened_at"], now)), right=True),
        Column("RUNS", lambda row: plain(f"{row['runs']:,}"), right=True),
        Column("PASSED", lambda row: plain(f"{row['passed']:,}"), right=True),
        Column("STATE", lambda row: plain(_state(row))),
        Column("FIRST FAILED", lambda row: plain(row["first_failed"] or ""), most=60),
    ]
    print_rows(
        choose_form(as_json=as_json, as_csv=as_csv),
        columns,
        rows,
        names=_COLUMNS,
        empty="There are no batches.",
    )


def _state(row: Mapping[str, Any]) -> str:
    if row["begun_at"] is not None:
        return "over"
    return "open" if row["is_whole"] else "more to come"


def _count(dsn: str | None, key: str, *, as_json: bool | None) -> None:
    from pgflow._db.calls.batches import count_batch
    from pgflow._db.query import run

    with opened(dsn) as connection:
        found = run(connection, count_batch(key))
    answer = {"key": key, **as_row(found), "open": found.open}
    said = (
        f"{key} has {many(found.runs, 'run')}: {found.open:,} open, {found.completed:,} completed, "
        f"{found.failed:,} failed, {found.cancelled:,} cancelled"
        f"{'' if found.is_whole else '; more are to come'}."
    )
    print_one(choose_form(as_json=as_json), answer, lambda: plain(said))
