"""``pgflow queues``: how much stands, runs and waits in each queue; pausing, resuming and limiting them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.database import Dsn, fetch_dicts, opened
from pgflow_cli.failures import Mistake
from pgflow_cli.help import Command, make_group
from pgflow_cli.listing import database_now
from pgflow_cli.output import AsCsv, AsJson, Column, age, choose_form, plain, print_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import psycopg
    from rich.text import Text

queues = make_group("queues", "Shows queues, or pauses, resumes and limits one.", invoke_without_command=True)

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

_QUEUES = """
select q.*, (select count(*) from pgflow.workers w where q.queue = any(w.queues) and not w.stopping) as workers
from pgflow.queues q where %(queue)s::text is null or q.queue = %(queue)s order by q.queue
"""


@queues.callback()
def list_queues(context: typer.Context, *, as_json: AsJson = None, as_csv: AsCsv = False, dsn: Dsn = None) -> None:
    """Shows queues, or pauses, resumes and limits one."""
    if context.invoked_subcommand is None:
        with opened(dsn) as connection:
            _print(connection, None, as_json=as_json, as_csv=as_csv)


@queues.command("pause", cls=Command)
def pause_queue(queue: Name, *, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Stops claims from a queue; what is running goes on."""
    _change(dsn, queue, "select pgflow.pause_queue(%(queue)s)", {}, as_json=as_json)


@queues.command("resume", cls=Command)
def resume_queue(queue: Name, *, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Lets claims from a paused queue go on."""
    _change(dsn, queue, "select pgflow.resume_queue(%(queue)s)", {}, as_json=as_json)


@queues.command("limit", cls=Command)
def limit_queue(
    queue: Name,
    *,
    max_running: Annotated[
        int | None, typer.Option(min=1, help="How many of its runs may run at once, over all workers.", show_default=False)
    ] = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="As many as workers take.")] = False,
    max_deaths: Annotated[
        int | None, typer.Option(min=1, max=1000, help="After so many dead workers a run is stuck.", show_default=False)
    ] = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Limits runs at once, and dead workers, of a queue.

    That is how many of its runs may run at once, over all workers, and how many workers may die over one of them
    before it is stuck.
    """
    if unlimited and max_running is not None:
        raise Mistake("--unlimited and --max-running exclude each other")
    if not unlimited and max_running is None and max_deaths is None:
        raise Mistake("no limit given: pass --max-running, --unlimited or --max-deaths")
    params = {"max_running": max_running, "max_deaths": max_deaths, "keep": max_running is None and not unlimited}
    call = """
    select pgflow.limit_queue(%(queue)s,
      case when %(keep)s then (select q.max_running from pgflow.queues q where q.queue = %(queue)s) else %(max_running)s::int end,
      %(max_deaths)s::int)
    """
    _change(dsn, queue, call, params, as_json=as_json)


@queues.command("require-known", cls=Command)
def require_known(
    queue: Name,
    *,
    off: Annotated[bool, typer.Option("--off", help="Take starts of unknown workflows again.")] = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Refuses starts of workflows that no worker has ever had.

    A name that is mistyped is then an error where the run is started, instead of a run that waits for ever. A workflow
    is known once a worker that has it has come, and a version of it likewise. Children are not refused.
    """
    _change(dsn, queue, "select pgflow.require_known(%(queue)s, not %(off)s)", {"off": off}, as_json=as_json)


def _change(dsn: str | None, queue: str, call: str, params: dict[str, Any], *, as_json: bool | None) -> None:
    with opened(dsn) as connection:
        if not fetch_dicts(connection, "select 1 from pgflow.queues where queue = %s", (queue,)):
            names = [row["queue"] for row in fetch_dicts(connection, "select queue from pgflow.queues order by queue")]
            raise Mistake(f"there is no queue {queue!r}: there are {', '.join(names) or 'none yet'}")
        connection.execute(call.encode(), {"queue": queue, **params})
        _print(connection, queue, as_json=as_json, as_csv=False)


def _print(connection: psycopg.Connection[Any], queue: str | None, *, as_json: bool | None, as_csv: bool) -> None:
    rows = fetch_dicts(connection, _QUEUES, {"queue": queue})
    columns = queue_columns(database_now(connection))
    print_rows(choose_form(as_json=as_json, as_csv=as_csv), columns, rows, names=_COLUMNS, empty="There are no queues yet.")


def _state(row: Mapping[str, Any], now: datetime) -> str:
    is_paused, knows = row["paused_at"] is not None, row["refuses_unknown"]
    return ", ".join([f"paused for {age(row['paused_at'], now)}"] * is_paused + ["known workflows only"] * knows)


def queue_columns(now: datetime) -> list[Column]:
    """Columns of a table of queues."""

    def number(name: str, style: str = "") -> Column:
        def cell(row: Any) -> Text:
            from rich.text import Text

            return Text(f"{row[name]:,}", style=style if row[name] else "bright_black")

        return Column(name.upper(), cell, right=True)

    return [
        Column("QUEUE", lambda row: plain(row["queue"])),
        number("queued", "cyan"), number("running", "yellow"), number("waiting", "blue"), number("paused", "magenta"),
        number("stuck", "bold red"),
        Column("OLDEST", lambda row: plain(age(row["oldest_queued_at"], now)), right=True),
        number("workers"),
        Column("LIMIT", lambda row: plain(row["max_running"] or ""), right=True),
        Column("STATE", lambda row: plain(_state(row, now))),
    ]  # fmt: skip
