"""``pgflow queues``: shows how much is queued, running and waiting in each queue; pauses, resumes,
purges and configures queues, and lists who did.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import Command, make_group
from pgflow_cli.look.mail import operator, wake
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
from pgflow_cli.look.parsing import parse_duration, parse_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import psycopg
    from rich.text import Text

    from pgflow._db.query import Query

queues = make_group(
    "queues", "Shows queues, or pauses, resumes or configures one.", invoke_without_command=True
)

Name = Annotated[str, typer.Argument(help="Name of the queue.", show_default=False)]
Why = Annotated[str | None, typer.Option(help="The reason, kept with the change.")]

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
    "rules",
)


@queues.callback()
def list_queues(
    context: typer.Context,
    *,
    plot: Annotated[
        bool, typer.Option("--plot", help="Also draw what began and ended in the last hour.")
    ] = False,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Shows queues, or pauses, resumes or configures one."""
    if context.invoked_subcommand is not None:
        return
    if plot and (as_json or as_csv):
        raise Mistake("--plot draws for people: leave out --json and --csv")
    with opened(dsn) as connection:
        _print(connection, None, as_json=False if plot else as_json, as_csv=as_csv)
        if plot:
            _draw(connection)


def _draw(connection: psycopg.Connection[Any]) -> None:
    """Draw the last hour, a column a minute, in the order of time."""
    from pgflow._desk.plots import bars, plot_rates
    from pgflow.inspect import read_rates

    for one in plot_rates(fetch(connection, read_rates())):
        typer.echo(f"\n{one.title}: {one.words}")
        typer.echo(f"{bars([column.height for column in one.columns])}▏{one.top}")
    typer.echo("60 minutes, the newest on the right.")


@queues.command("pause", cls=Command)
def pause_queue(queue: Name, *, why: Why = None, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Stops claims from a queue; what is running goes on."""
    from pgflow._db.calls import lane

    _change(dsn, queue, lane.pause_queue(queue, why, operator()), as_json=as_json)


@queues.command("resume", cls=Command)
def resume_queue(queue: Name, *, why: Why = None, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Lets claims from a paused queue go on."""
    from pgflow._db.calls import lane

    _change(dsn, queue, lane.resume_queue(queue, why, operator()), as_json=as_json)


@queues.command("set", cls=Command)
def set_queue(
    queue: Name,
    *,
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="Most runs at once, over all workers."),
    ] = None,
    per_worker: Annotated[
        str | None, typer.Option(metavar="N|none", help="Most runs at once of one worker.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR|none",
            help="Key of a run: parts of input, labels, tenant, workflow, such as input.customer.",
        ),
    ] = None,
    per_key: Annotated[
        str | None, typer.Option(metavar="N|none", help="Most runs at once of one key.")
    ] = None,
    fifo: Annotated[
        bool | None,
        typer.Option(
            "--fifo/--no-fifo",
            help="A run begins once those before it of its key have ended.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="N/TIME|none", help="Most runs that begin, such as 100/1m."),
    ] = None,
    burst: Annotated[
        str | None, typer.Option(metavar="N|none", help="Size of a bucket that the rate fills.")
    ] = None,
    key_rate: Annotated[
        str | None, typer.Option(metavar="N/TIME|none", help="Most runs of one key that begin.")
    ] = None,
    key_burst: Annotated[
        str | None, typer.Option(metavar="N|none", help="Size of the bucket of each key.")
    ] = None,
    ageing: Annotated[
        str | None,
        typer.Option(metavar="DURATION|none", help="Waiting that is worth one step of priority."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION|none", help="A run that has not begun by then is cancelled."
        ),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=N|none", help="Runs of a key in its turn; may be repeated."),
    ] = None,
    closed: Annotated[
        bool | None,
        typer.Option(
            "--closed/--open",
            help="Refuse new runs, while what is there goes on.",
            show_default=False,
        ),
    ] = None,
    max_deaths: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="After so many dead workers a run is stuck."),
    ] = None,
    why: Why = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask about a queue that nothing has used.")
    ] = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Sets rules of a queue: limits, rates and order.

    They hold from the next claim on, over all workers. Rules that are not given stay as they are.
    Pass none to take one away. A queue that nothing has used yet is asked about, and made.
    """
    from pgflow._db.calls import queues as calls
    from pgflow._db.query import run

    numbers = {
        "concurrency": concurrency,
        "per_worker": per_worker,
        "per_key": per_key,
        "burst": burst,
        "key_burst": key_burst,
        "max_deaths": max_deaths,
    }
    texts = {"key": key, "rate": rate, "key_rate": key_rate}
    rules: dict[str, Any] = {
        name: _number(name, text) for name, text in numbers.items() if text is not None
    }
    rules |= {n: None if t == "none" else t for n, t in texts.items() if t is not None}
    rules |= {n: flag for n, flag in (("fifo", fifo), ("closed", closed)) if flag is not None}
    for name, span in (("ageing_seconds", ageing), ("expires_seconds", expires)):
        if span is not None:
            rules[name] = None if span == "none" else parse_duration(span).total_seconds()
    if weight:
        pairs = {} if weight == ["none"] else parse_pairs(weight, "a weight")
        rules["weights"] = {k: _number("a weight", n) for k, n in pairs.items()} or None
    if not rules:
        raise Mistake("no rule given: pass --concurrency, --rate, --key or another")
    with opened(dsn) as connection:
        names = [] if yes else _names(connection)
        if not yes and queue not in names:
            there = f" There are {', '.join(names)}." if names else ""
            _confirm(f"Nothing has used a queue {queue!r} yet.{there} Make it?", "pass --yes")
        run(connection, calls.set_queue(queue, json.dumps(rules), why, operator()))
        _print(connection, queue, as_json=as_json, as_csv=False)


@queues.command("purge", cls=Command)
def purge_queue(
    queue: Name,
    *,
    why: Annotated[str | None, typer.Option(help="The reason, kept with each run.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the runs, and do nothing.")
    ] = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Cancels the runs of a queue that have not begun.

    They are counted and asked about first. Exactly those are cancelled, save what begins meanwhile;
    what is started meanwhile stays.
    """
    from pgflow._db.calls import queues as calls
    from pgflow._db.query import run

    form = choose_form(as_json=as_json)
    with opened(dsn) as connection:
        _check_name(connection, queue)
        found = run(connection, calls.purge_queue(queue, None, None, None))
        told = 0
        if found.newest is not None and not dry_run:
            if not yes:
                _confirm(f"Cancel {many(found.runs, 'run')} of {queue} that have not begun?")
            while True:
                with connection.transaction():
                    purged = run(
                        connection, calls.purge_queue(queue, found.newest, why, operator())
                    )
                if not purged.runs:
                    break
                told += purged.runs
                wake(connection, purged.chains)
    answer = {"queue": queue, "found": found.runs, "purged": told}
    said = (
        f"{many(found.runs, 'run')} of {queue} would be cancelled; nothing was done."
        if dry_run
        else f"{many(told, 'run')} of {queue} cancelled."
    )
    print_one(form, answer, lambda: plain(said))


def _confirm(question: str, remedy: str = "pass --yes, or look with --dry-run") -> None:
    if not sys.stdin.isatty():
        raise Mistake(f"{question} Cannot ask without a terminal: {remedy}")
    typer.confirm(question, abort=True, err=True)


def _number(name: str, text: str) -> int | None:
    if text == "none":
        return None
    if not text.isascii() or not text.isdigit():
        raise Mistake(f"{name.replace('_', '-')} must be a whole number or none, not {text!r}")
    return int(text)


@queues.command("history", cls=Command)
def history(
    queue: Annotated[
        str | None, typer.Argument(help="Name of the queue; all without.", show_default=False)
    ] = None,
    *,
    limit: Limit = 50,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Shows who set, paused, resumed or purged queues.

    The latest come first.
    """
    from pgflow.inspect import list_queue_changes

    with opened(dsn) as connection:
        found = fetch(connection, list_queue_changes(queue, limit=limit or None))
        now = database_now(connection)
    print_rows(
        choose_form(as_json=as_json, as_csv=as_csv),
        [
            Column("AGO", lambda row: plain(age(row["changed_at"], now)), right=True),
            Column("QUEUE", lambda row: plain(row["queue"])),
            Column("WHAT", lambda row: plain(row["what"])),
            Column("RULES", lambda row: plain(_said(row["said"])), takes_rest=True, most=200),
            Column("BY", lambda row: plain(row["changed_by"])),
            Column("WHY", lambda row: plain(row["why"] or "")),
        ],
        [as_row(change) for change in found],
        names=("changed_at", "queue", "what", "said", "why", "changed_by"),
        empty="No queue was ever changed.",
    )


def _said(rules: Mapping[str, Any]) -> str:
    def value(told: Any) -> str:
        if isinstance(told, bool):
            return "yes" if told else "no"
        if isinstance(told, dict):
            return ",".join(f"{key}:{number}" for key, number in told.items())
        return "none" if told is None else f"{told:g}" if isinstance(told, float) else str(told)

    return " ".join(f"{name}={value(told)}" for name, told in rules.items())


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

    A mistyped name is then an error at the start, instead of a run that never begins. A workflow
    becomes known when a worker that has it registers, and so does a version of it. Children are not
    refused.
    """
    from pgflow._db.calls import lane

    _change(dsn, queue, lane.require_known(queue, required=not off), as_json=as_json)


def _change(dsn: str | None, queue: str, call: Query[None], *, as_json: bool | None) -> None:
    from pgflow._db.query import run

    with opened(dsn) as connection:
        _check_name(connection, queue)
        run(connection, call)
        _print(connection, queue, as_json=as_json, as_csv=False)


def _names(connection: psycopg.Connection[Any]) -> list[str]:
    from pgflow.inspect import list_queue_names

    return fetch(connection, list_queue_names())


def _check_name(connection: psycopg.Connection[Any], queue: str) -> None:
    names = _names(connection)
    if queue not in names:
        raise Mistake(f"queue {queue!r} does not exist: there are {', '.join(names) or 'none yet'}")


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


def _others(rules: Mapping[str, Any]) -> dict[str, Any]:
    return {name: told for name, told in rules.items() if name != "concurrency"}


def queue_columns(now: datetime) -> list[Column]:
    """Columns of a table of queues."""

    def number(name: str, style: str = "") -> Column:
        def cell(row: Any) -> Text:
            from rich.text import Text

            return Text(f"{row[name]:,}", style=style if row[name] else "bright_black")

        return Column(name.upper(), cell, right=True)

    return [
        Column("QUEUE", lambda row: plain(row["queue"])),
        number("queued", "cyan"),
        number("running", "yellow"),
        number("waiting", "blue"),
        number("paused", "magenta"),
        number("stuck", "bold red"),
        Column("OLDEST", lambda row: plain(age(row["oldest_queued_at"], now)), right=True),
        number("workers"),
        Column("LIMIT", lambda row: plain(row["max_running"] or ""), right=True),
        Column("RULES", lambda row: plain(_said(_others(row["rules"]))), from_width=100),
        Column("STATE", lambda row: plain(_state(row, now))),
    ]
