"""``pgflow tick``: what cron runs. It reclaims, drains,
and ends when there is nothing left to do.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look import github
from pgflow_cli.look.database import (
    Dsn,
    as_row,
    connect,
    database_now,
    fetch,
    find_dsn,
)
from pgflow_cli.look.failures import DONE, FAILED, NEEDS_A_PERSON, TIME_LIMIT, Mistake
from pgflow_cli.look.output import (
    AsJson,
    LogFormat,
    LogLevel,
    choose_form,
    duration,
    note,
    plain,
    print_one,
    when,
)
from pgflow_cli.look.parsing import DeadAfter, parse_amounts, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from decimal import Decimal

    from pgflow_cli.ops.drain import Drained, Limits


def tick(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE[:APP]", help="Module or file with the workflows.", show_default=False
        ),
    ],
    *,
    max_runtime: Annotated[
        str,
        typer.Option(
            help="End by then, the grace included: 90s, 10m. Keep it below the job's own limit."
        ),
    ] = "1h",
    max_runs: Annotated[
        int | None, typer.Option(min=1, help="Take no more runs than this.", show_default=False)
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="UNIT=AMOUNT: take no more runs once those taken have spent this much.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        str, typer.Option(help="How long running steps may go on at the end: 8s.")
    ] = "8s",
    linger: Annotated[str, typer.Option(help="Also wait for timers that are due so soon.")] = "0s",
    exclusive: Annotated[
        bool,
        typer.Option(
            "--exclusive", help="Do nothing if another exclusive tick of these queues is at work."
        ),
    ] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs to work on at once.")] = 50,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", "-q", help="Queue to drain; may be given again. Else those of the workflows."
        ),
    ] = None,
    dead_after: DeadAfter = 10.0,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Drains queues once, for cron: ends when nothing is ready.

    It takes up what a runner that died has left, fires schedules, works on what is ready or due,
    and ends with a summary and the time of the next timer or slot. SIGTERM hands back what is not
    done. In GitHub Actions it also annotates the run.
    """
    from pgflow._worker.options import Rhythm, Tally, WorkerOptions
    from pgflow_cli.look.logs import set_up_logging
    from pgflow_cli.look.targets import load_app
    from pgflow_cli.ops.drain import drain_once
    from pgflow_cli.ops.serving import Stop, leave, spare_what_is_loaded

    form = choose_form(as_json=as_json)
    set_up_logging(log_level, log_format)
    amounts = parse_amounts(budget)
    stop = Stop()
    found = find_dsn(dsn)
    limits = _limits(max_runtime, grace, linger, amounts, _now(found))
    app = load_app(target, found, without_session=True)
    spare_what_is_loaded()
    options = WorkerOptions(
        queues=sorted(set(queue)) if queue else app.queues,
        concurrency=concurrency,
        poll_seconds=0.5,
        grace_seconds=limits.grace,
        rhythm=Rhythm.within(dead_after),
        listen=False,
        tally=Tally(max_runs),
    )
    with _alone(found, options.queues) if exclusive else _anyway() as is_alone:
        if not is_alone:
            note("Another exclusive tick of these queues is at work: nothing was done.")
            return
        drained = drain_once(app, options, limits, stop)
    rows = _outcomes(
        found, options.queues, list(app.definitions.workflows), drained.taken, limits.began_at
    )
    summary = _sum_up(drained, rows)
    print_one(form, summary, lambda: plain(_say(summary)))
    github.report(summary, [row for row in rows if row["status"] in ("failed", "stuck")])
    leave(summary["exit_code"])


def _limits(
    max_runtime: str, grace: str, linger: str, budget: Mapping[str, Decimal], began_at: datetime
) -> Limits:
    from pgflow_cli.ops.drain import Limits

    runtime = parse_duration(max_runtime, "--max-runtime").total_seconds()
    if runtime <= 0:
        raise Mistake("--max-runtime must be greater than zero")
    return Limits(
        runtime,
        min(parse_duration(grace, "--grace").total_seconds(), runtime / 2),
        parse_duration(linger, "--linger").total_seconds(),
        budget,
        began_at,
    )


# ---------------------------------------------------------------- being alone


@contextmanager
def _anyway() -> Iterator[bool]:
    yield True


@contextmanager
def _alone(dsn: str, queues: Any) -> Iterator[bool]:
    """Take the lock of ticks; yield False if another tick has it. It is a transaction's, since a
    pooler lends sessions; it keeps no snapshot.
    """
    from pgflow._db.calls.worker import begin_tick
    from pgflow._db.query import run

    with connect(dsn) as connection, connection.transaction(force_rollback=True):
        connection.execute("set local idle_in_transaction_session_timeout = 0")
        yield run(connection, begin_tick(" ".join(queues)))


# ---------------------------------------------------------------- its outcome


_COUNTED = ("completed", "failed", "cancelled", "waiting", "queued", "running", "paused", "stuck")
_OUTCOME = ("key", "status", "workflow", "why")


def _now(dsn: str) -> datetime:
    with connect(dsn) as connection:
        return database_now(connection)


def _outcomes(
    dsn: str, queues: Sequence[str], workflows: list[str], taken: set[int], began_at: datetime
) -> list[dict[str, Any]]:
    """Return the runs that were taken, and those that a dead worker has made stuck meanwhile, with
    their status.
    """
    from pgflow.inspect import list_outcomes

    with connect(dsn) as connection:
        runs = fetch(
            connection,
            list_outcomes(sorted(taken), stuck_since=began_at, queues=queues, workflows=workflows),
        )
        return [as_row(run, _OUTCOME) for run in runs]


def _sum_up(drained: Drained, rows: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "outcome": drained.outcome,
        "seconds": round(drained.seconds, 3),
        "taken": len(drained.taken),
        **{status: sum(row["status"] == status for row in rows) for status in _COUNTED},
        "work_left": drained.work_left,
        "next_wake_at": drained.next_wake_at,
    }
    return {**summary, "exit_code": _exit_code(summary)}


def _exit_code(summary: dict[str, Any]) -> int:
    """Return the exit code of the worst outcome. A tick that was asked to stop may leave work."""
    if summary["stuck"]:
        return NEEDS_A_PERSON
    if summary["failed"] or summary["outcome"] == "broken":
        return FAILED
    return (
        TIME_LIMIT
        if summary["work_left"] and summary["outcome"] in ("out of time", "full")
        else DONE
    )


def _say(summary: dict[str, Any]) -> str:
    counts = ", ".join(f"{summary[status]} {status}" for status in _COUNTED if summary[status])
    taken = f"{summary['taken']} run{'' if summary['taken'] == 1 else 's'} taken" + (
        f" ({counts})" if counts else ""
    )
    left = " There is work left." if summary["work_left"] else ""
    ended = f"{summary['outcome'].capitalize()} after {duration(summary['seconds'])}"
    return f"{ended}: {taken}.{left} Next wake-up: {when(summary['next_wake_at']) or 'none'}."
