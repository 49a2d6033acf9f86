"""``pgflow queues``: how much stands, runs and waits in each queue;
pausing, resuming and limiting them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import Command, make_group
from pgflow_cli.look.output import AsCsv, AsJson, Column, age, choose_form, plain, print_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import psycopg
    from rich.text import Text

    from pgflow._db.query import Query

queues = make_group(
    "queues", "Shows queues, or pauses, resumes and limits one.", invoke_without_command=True
)

Name = Annotated[str, typer.Argument(help="Name of the queue.", show_default=False)]

_COLUMNS = (
    "queue",
    "queued",
    "running",
    "waiting",
    "paused",
    "stuck",
    "oldest_queued_at",
    "max_running",
    "max_deaths",
    "paused_at",
    "workers",
    "refuses_unknown",
)


@queues.callback()
def list_queues(
    context: typer.Context, *, as_json: AsJson = None, as_csv: AsCsv = False, dsn: Dsn = None
) -> None:
    """Shows queues, or pauses, resumes and limits one."""
    if context.invoked_subcommand is None:
        with opened(dsn) as connection:
            _print(connection, None, as_json=as_json, as_csv=as_csv)


@queues.command("pause", cls=Command)
def pause_queue(queue: Name, *, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Stops claims from a queue; what is running goes on."""
    from pgflow._db.calls import lane

    _change(dsn, queue, lane.pause_queue(queue), as_json=as_json)


@queues.command("resume", cls=Command)
def resume_queue(queue: Name, *, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Lets claims from a paused queue go on."""
    from pgflow._db.calls import lane

    _change(dsn, queue, lane.resume_queue(queue), as_json=as_json)


@queues.command("limit", cls=Command)
def limit_queue(
    queue: Name,
    *,
    max_running: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many of its runs may run at once, over all workers.",
            show_default=False,
        ),
    ] = None,
    unlimited: Annotated[
        bool, typer.Option("--unlimited", help="As many as workers take.")
    ] = False,
    max_deaths: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="After so many dead workers a run is stuck.", show_default=False
        ),
    ] = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Limits runs at once, and dead workers, of a queue.

    That is how many of its runs may run at once, over all workers, and how many workers may die
    over one of them before it is stuck.
    """
    if unlimited and max_running is not None:
        raise Mistake("--unlimited and --max-running exclude each other")
    if not unlimited and max_running is None and max_deaths is None:
        raise Mistake("no limit given: pass --max-running, --unlimited or --max-deaths")
    from pgflow._db.calls import lane

    _change(
        dsn,
        queue,
        lane.limit_queue(
            queue, max_running, max_deaths, keep=max_running is None and not unlimited
        ),
        as_json=as_json,
    )


@queues.command("require-known", cls=Command)
def require_known(
    queue: Name,
    *,
    off: Annotated[
        bool, typer.Option("--off", help="Take starts of unknown workflows again.")
    ] = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Refuses starts of workflows that no worker has ever had.

    A name that is mistyped is then an error where the run is started, instead of a run that waits
    for ever. A workflow is known once a worker that has it has come, and a version of it likewise.
    Children are not refused.
    """
    from pgflow._db.calls import lane

    _change(dsn, queue, lane.require_known(queue, required=not off), as_json=as_json)


def _change(dsn: str | None, queue: str, call: Query[None], *, as_json: bool | None) -> None:
    from pgflow._db.query import run
    from pgflow.inspect import list_queue_names

    with opened(dsn) as connection:
        names = fetch(connection, list_queue_names())
        if queue not in names:
            raise Mistake(
                f"there is no queue {queue!r}: there are {', '.join(names) or 'none yet'}"
            )
        run(connection, call)
        _print(connection, queue, as_json=as_json, as_csv=False)


def _print(
    connection: psycopg.Connection[Any], queue: str | None, *, as_json: bool | None, as_csv: bool
) -> None:
    from pgflow.inspect import list_queues as queues_of

    rows = [as_row(found) for found in fetch(connection, queues_of(queue))]
    columns = queue_columns(database_now(connection))
    print_rows(
        choose_form(as_json=as_json, as_csv=as_csv),
        columns,
        rows,
        names=_COLUMNS,
        empty="There are no queues yet.",
    )


def _state(row: Mapping[str, Any], now: datetime) -> str:
    is_paused, knows = row["paused_at"] is not None, row["refuses_unknown"]
    return ", ".join(
        [f"paused for {age(row['paused_at'], now)}"] * is_paused + ["known workflows only"] * knows
    )


def queue_columns(now: datetime) -> list[Column]:
    """Columns of a table of queues."""

    def number(name: str, style: str = "") -> Column:
        def cell(row: Any) -> Text:
            from rich.text import Text

            return Text(f"{row[name]:,}", style=style if row[name] else "bright_black")

        return Column(name.upper(), cell, right=True)

    return [
        Column("QUEUE", lambda row: plain(row["queue"])),
        number("queued", "cyan"), number("running", "yellow"), number("waiting", "blue"),
        number("paused", "magenta"), number("stuck", "bold red"),
        Column("OLDEST", lambda row: plain(age(row["oldest_queued_at"], now)), right=True),
        number("workers"),
        Column("LIMIT", lambda row: plain(row["max_running"] or ""), right=True),
        Column("STATE", lambda row: plain(_state(row, now))),
    ]  # fmt: skip
