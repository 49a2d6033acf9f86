"""``pgflow list``: runs, by what they do and what they are called."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    Form,
    age,
    choose_form,
    console,
    dump,
    make_table,
    note,
    plain,
    print_rows,
    styled_status,
)
from pgflow_cli.look.parsing import seconds_option
from pgflow_cli.look.selection import (
    ErrorText,
    Filters,
    KeyPattern,
    KeyPatterns,
    Labels,
    Queues,
    Since,
    Statuses,
    Until,
    WorkflowNames,
)

if TYPE_CHECKING:
    from datetime import datetime

    import psycopg
    from rich.console import RenderableType

_COLUMNS = (
    "key", "status", "workflow", "queue", "labels", "priority", "attempt", "worker_id",
    "generation", "created_at", "since", "run_at", "deadline_at", "finished_at",
)  # fmt: skip


def list_runs(
    patterns: KeyPatterns = None,
    *,
    status: Statuses = None,
    workflow: WorkflowNames = None,
    queue: Queues = None,
    label: Labels = None,
    key: KeyPattern = None,
    since: Since = None,
    until: Until = None,
    error: ErrorText = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="At most so many, the newest; 0 for all.")
    ] = 50,
    count: Annotated[
        bool, typer.Option("--count", help="Only how many there are of each status.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float,
        seconds_option("--every", "With --watch: time between looks.", shown="2s", least=0.1),
    ] = 2.0,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Lists runs, the newest first."""
    form = choose_form(as_json=as_json, as_csv=as_csv)
    filters = Filters(
        status, workflow, queue, label, key, since, until, patterns=patterns or [], error=error
    )
    with opened(dsn) as connection:

        def look() -> tuple[list[dict[str, Any]], bool]:
            return (
                (_count(connection, filters), False) if count else _list(connection, filters, limit)
            )

        if watch:
            _watch(connection, lambda: look()[0], form, every, count=count)
            return
        rows, has_more = look()
        columns = COUNT_COLUMNS if count else run_columns(rows, database_now(connection))
        empty = "" if rows else _nothing(connection, filters)
        print_rows(
            form,
            columns,
            rows,
            names=("status", "runs") if count else (*_COLUMNS, "why"),
            empty=empty,
        )
        if has_more:
            note(f"The newest {limit}; there are more: --limit 0 shows all.")


def _nothing(connection: psycopg.Connection[Any], filters: Filters) -> str:
    from pgflow.inspect import unknown_queues

    if not filters:
        return "There are no runs yet: start one with `pgflow start` or `pgflow run`."
    strange = fetch(connection, unknown_queues(filters.queue or []))
    return f"No runs match: queue {strange[0]!r} does not exist." if strange else "No runs match."


def _list(
    connection: psycopg.Connection[Any], filters: Filters, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Return the newest runs, up to a limit, and True if there are more."""
    from pgflow.inspect import list_runs as newest

    page = fetch(connection, newest(filters.chosen(), limit=limit or None))
    return [as_row(run, (*_COLUMNS, "why")) for run in page], page.next is not None


def _count(connection: psycopg.Connection[Any], filters: Filters) -> list[dict[str, Any]]:
    from pgflow.inspect import count_runs

    return [
        {"status": status, "runs": runs}
        for status, runs in fetch(connection, count_runs(filters.chosen())).items()
    ]


COUNT_COLUMNS = [
    Column("STATUS", lambda row: styled_status(row["status"])),
    Column("RUNS", lambda row: plain(f"{row['runs']:,}"), right=True),
]


def run_columns(rows: list[dict[str, Any]], now: datetime) -> list[Column]:
    """Columns of a table of runs."""
    columns = [
        Column("KEY", lambda row: plain(row["key"]), most=48),
        Column("STATUS", lambda row: styled_status(row["status"])),
        Column("SINCE", lambda row: plain(age(row["since"], now)), right=True),
        Column("WORKFLOW", lambda row: plain(row["workflow"]), most=24),
        Column("QUEUE", lambda row: plain(row["queue"]), from_width=110, most=20),
        Column("TRIES", lambda row: plain(row["attempt"] or ""), from_width=130, right=True),
        Column("LABELS", lambda row: plain(_labels(row)), from_width=110, most=30),
        Column("WHY", lambda row: plain(row["why"]), takes_rest=True, most=200),
    ]
    return [
        column
        for column in columns
        if column.title != "LABELS" or any(row["labels"] for row in rows)
    ]


def _labels(row: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in (row["labels"] or {}).items())


# ---------------------------------------------------------------- watching


def _watch(
    connection: psycopg.Connection[Any], look: Any, form: Form, every: float, *, count: bool
) -> None:
    try:
        if form is Form.TABLE and sys.stdout.isatty():
            _watch_table(connection, look, every, count=count)
        else:
            _watch_changes(connection, look, form, every, count=count)
    except KeyboardInterrupt:
        return


def _watch_table(
    connection: psycopg.Connection[Any], look: Any, every: float, *, count: bool
) -> None:
    from rich.console import Group
    from rich.live import Live

    out = console()

    def draw() -> RenderableType:
        rows, now = look(), database_now(connection)
        fitting = max(1, out.height - 4)
        columns = COUNT_COLUMNS if count else run_columns(rows, now)
        more = f"   … and more: the newest {fitting} are shown" if len(rows) > fitting else ""
        return Group(
            plain(f"{now:%H:%M:%S} by the database's clock, every {every:g} s; Ctrl-C ends{more}"),
            make_table(columns, rows[:fitting], out.width),
        )

    with Live(draw(), console=out, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every)
            live.update(draw(), refresh=True)


def _watch_changes(
    connection: psycopg.Connection[Any], look: Any, form: Form, every: float, *, count: bool
) -> None:
    """For a pipe or a log: the whole answer whenever it has changed, JSON on one line."""
    last = None
    while True:
        rows = look()
        text = dump(rows)
        if text != last and form is Form.TABLE:
            print_rows(
                form, COUNT_COLUMNS if count else run_columns(rows, database_now(connection)), rows
            )
        elif text != last:
            typer.echo(text)
        sys.stdout.flush()
        last = text
        time.sleep(every)
        if not _is_read():
            return


def _is_read() -> bool:
    """Return True if the reader of the pipe is still there. Without this check we would only notice
    at the next write.
    """
    import select

    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return True
    return not poll.poll(0)
