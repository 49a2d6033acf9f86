"""``pgflow cancel``, ``pause``, ``resume``, ``retry``: orders of people to runs.

Name runs by key, or choose them by filters. Filters are evaluated once. The runs found are counted,
shown and confirmed, and exactly these get the order, even if more match by then.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.mail import operator, wake
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    Form,
    choose_form,
    console,
    make_table,
    many,
    note,
    plain,
    print_rows,
    styled_status,
)
from pgflow_cli.look.selection import (
    ENDED,
    OPEN,
    ErrorText,
    Filters,
    KeyPattern,
    Labels,
    Queues,
    Since,
    Statuses,
    Until,
    WorkflowNames,
    complete_key,
    find_run,
)
from pgflow_cli.runs.listing import run_columns
from pgflow_cli.runs.rewinding import Attempts, Effects, FromStep, check_effects

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from pgflow._db.calls.mail import Sent
    from pgflow._db.query import Query

SAMPLE = 10
BATCH = 500

Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY", help="Keys of runs; or choose them by options.", autocompletion=complete_key
    ),
]
Why = Annotated[str | None, typer.Option(help="The reason, kept in the run's history.")]
Everything = Annotated[bool, typer.Option("--all", help="Every run that this can be done to.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and do nothing.")]


def confirm_removal(what: str, question: str) -> None:
    """Ask before something is removed for good.

    Raises:
        Mistake: Standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise Mistake(
            f"{what} would be removed, and there is no terminal to ask at: pass --yes, or "
            "look with --dry-run"
        )
    typer.confirm(question, abort=True, err=True)


@dataclass(frozen=True)
class Order:
    """Order to a run, and the statuses that it fits; to a run of those in `asked` only if it is
    named, or chosen by that status.
    """

    verb: str
    past: str
    fits: tuple[str, ...]
    why: str
    asked: tuple[str, ...] = ()


CANCEL = Order("cancel", "cancelled", OPEN, "cancelled")
PAUSE = Order("pause", "paused", ("queued", "running", "waiting"), "paused")
RESUME = Order("resume", "resumed", ("paused", "stuck"), "resumed")
RETRY = Order("retry", "retried", ("stuck",), "retried", ("failed",))


def cancel(
    keys: Keys = None,
    *,
    status: Statuses = None,
    workflow: WorkflowNames = None,
    queue: Queues = None,
    label: Labels = None,
    key: KeyPattern = None,
    since: Since = None,
    until: Until = None,
    error: ErrorText = None,
    everything: Everything = False,
    why: Why = None,
    force: Annotated[
        bool, typer.Option("--force", help="End it without running any more of its code.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Cancels runs: their code may clean up first.

    Cancelled is final. Runs chosen by options are counted, shown and confirmed, and exactly these
    are cancelled. --force is for operators: effects that the runs have done and not compensated
    stay owed, and `pgflow owed` lists them.
    """
    filters = Filters(status, workflow, queue, label, key, since, until, keys or [], error=error)
    _give(
        CANCEL,
        filters,
        Manner(everything, yes, dry_run, choose_form(as_json=as_json, as_csv=as_csv), why, force),
        dsn,
    )


def _command(order: Order, explained: str) -> Callable[..., None]:
    """Return the command of an order that has no options of its own."""

    def give(
        keys: Keys = None,
        *,
        status: Statuses = None,
        workflow: WorkflowNames = None,
        queue: Queues = None,
        label: Labels = None,
        key: KeyPattern = None,
        since: Since = None,
        until: Until = None,
        error: ErrorText = None,
        everything: Everything = False,
        why: Why = None,
        yes: Yes = False,
        dry_run: DryRun = False,
        as_json: AsJson = None,
        as_csv: AsCsv = False,
        dsn: Dsn = None,
    ) -> None:
        filters = Filters(
            status, workflow, queue, label, key, since, until, keys or [], error=error
        )
        _give(
            order,
            filters,
            Manner(everything, yes, dry_run, choose_form(as_json=as_json, as_csv=as_csv), why),
            dsn,
        )

    give.__doc__ = explained
    return give


pause = _command(
    PAUSE,
    "Holds runs until they are resumed.\n\nSteps that are running finish; nothing new starts.",
)
resume = _command(RESUME, "Resumes paused or stuck runs.")


def retry(
    keys: Keys = None,
    *,
    status: Statuses = None,
    workflow: WorkflowNames = None,
    queue: Queues = None,
    label: Labels = None,
    key: KeyPattern = None,
    since: Since = None,
    until: Until = None,
    error: ErrorText = None,
    everything: Everything = False,
    from_step: FromStep = None,
    attempts: Attempts = None,
    effects: Effects = None,
    why: Why = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Retries stuck or failed runs.

    Stuck runs go on with a fresh budget. Failed ones, named or chosen by --status failed, go back
    to the step that failed; it runs again under the same idempotency key. Of a run of a workflow
    file, all nodes that failed are done again. --from-step names another step, of any run that does
    not run now.
    """
    check_effects(effects)
    if from_step is None and (attempts is not None or effects is not None) and not keys:
        raise Mistake("--attempts and --effects require run keys or --from-step")
    filters = Filters(status, workflow, queue, label, key, since, until, keys or [], error=error)
    order = RETRY if from_step is None else replace(RETRY, fits=(*OPEN, *ENDED), asked=())
    manner = Manner(
        everything,
        yes,
        dry_run,
        choose_form(as_json=as_json, as_csv=as_csv),
        why,
        False,
        from_step,
        attempts,
        effects,
    )
    _give(order, filters, manner, dsn)


# ---------------------------------------------------------------- choosing, asking, telling


@dataclass(frozen=True)
class Manner:
    """Manner in which an order is given."""

    everything: bool
    yes: bool
    dry_run: bool
    form: Form
    why: str | None
    force: bool = False
    from_step: str | None = None
    attempts: int | None = None
    effects: str | None = None


def _give(order: Order, filters: Filters, manner: Manner, dsn: str | None) -> None:
    _check_choice(order, filters, everything=manner.everything)
    with opened(dsn) as connection:
        chosen = _choose(connection, order, filters)
        if not chosen:
            print_rows(
                manner.form,
                [],
                [],
                names=("key", "before", "status"),
                empty=f"No run to {order.verb}: nothing was done.",
            )
            return
        if manner.dry_run:
            _show(connection, manner.form, chosen)
            note(f"{many(len(chosen), 'run')} would be {order.past}; nothing was done.")
            return
        if not filters.keys and not manner.yes:
            _ask(connection, order, chosen)
        refused = _tell(connection, order, chosen, manner)
        _report(connection, order, manner.form, chosen)
    if refused:
        raise Mistake(
            f"{len(refused)} of {len(chosen)} runs could not be {order.past}: {refused[0]}"
        )


def _check_choice(order: Order, filters: Filters, *, everything: bool) -> None:
    if filters.keys and (everything or filters != Filters(keys=filters.keys)):
        raise Mistake("name runs by key or choose them by options, not both")
    if not filters and not everything:
        raise Mistake(
            f"which runs? Name them, as in `pgflow {order.verb} KEY`, choose by --status, "
            "--workflow, --label and others, or say --all"
        )


_CHOSEN = ("key", "status", "workflow", "queue", "labels", "attempt", "since", "why")


def _choose(
    connection: psycopg.Connection[Any], order: Order, filters: Filters
) -> list[dict[str, Any]]:
    """Return the chosen runs, as they are now. Each one named by key must exist and have a fitting
    status.
    """
    from pgflow.inspect import list_runs

    if not filters.keys:
        runs = fetch(
            connection, list_runs(filters.chosen(tenant=""), limit=None, oldest_first=True)
        )
        fits = (
            *order.fits,
            *(
                status
                for status in order.asked
                if status in ",".join(filters.status or ()).split(",")
            ),
        )
        return [as_row(run, _CHOSEN) for run in runs if run.status in fits]
    rows = [as_row(find_run(connection, key), _CHOSEN) for key in dict.fromkeys(filters.keys)]
    for row in rows:
        if row["status"] not in (*order.fits, *order.asked):
            raise Mistake(
                f"run {row['key']!r} is {row['status']}: {_why_not(order, row['status'])}; "
                "nothing was done"
            )
    return rows


def _why_not(order: Order, status: str) -> str:
    if status in RETRY.asked and order is RESUME:
        return "`pgflow retry` lets it try again"
    if status in ENDED and not order.asked:
        return "it has ended, so there is nothing to " + order.verb
    return f"only runs that are {' or '.join((*order.fits, *order.asked))} can be {order.past}"


def _show(connection: psycopg.Connection[Any], form: Form, chosen: list[dict[str, Any]]) -> None:
    print_rows(form, run_columns(chosen, database_now(connection)), chosen)


def _ask(connection: psycopg.Connection[Any], order: Order, chosen: list[dict[str, Any]]) -> None:
    """Show how many runs and which, and ask. Exactly these get the order, even if others match by
    then.
    """
    if not sys.stdin.isatty():
        raise Mistake(
            f"{many(len(chosen), 'run')} would be {order.past}, and there is no terminal to ask "
            "at: pass --yes, or look with --dry-run"
        )
    out = console(error=True)
    out.print(make_table(run_columns(chosen, database_now(connection)), chosen[:SAMPLE], out.width))
    if len(chosen) > SAMPLE:
        note(f"… and {len(chosen) - SAMPLE} more: --dry-run shows all")
    these = "this run" if len(chosen) == 1 else f"these {len(chosen)} runs"
    typer.confirm(f"{order.verb.capitalize()} {these}?", abort=True, err=True)


def _tell(
    connection: psycopg.Connection[Any], order: Order, chosen: list[dict[str, Any]], manner: Manner
) -> list[str]:
    """Posts the order to each run, in batches; answers why some refused it."""
    refused = []
    why = manner.why or order.why
    for begin in range(0, len(chosen), BATCH):
        chains = []
        with connection.transaction():
            for row in chosen[begin : begin + BATCH]:
                try:
                    chains.append(_post(connection, order, row["key"], why, manner))
                except _refusals() as error:
                    refused.append(str(error))
        wake(connection, chains)
    return refused


def _refusals() -> tuple[type[Exception], ...]:
    from pgflow.errors import HasActed, InvalidArgument, RunNotFound, WrongState

    return RunNotFound, WrongState, HasActed, InvalidArgument


def _post(
    connection: psycopg.Connection[Any], order: Order, key: str, why: str, manner: Manner
) -> int:
    from pgflow._db.calls import mail
    from pgflow._db.query import run

    by = operator()
    calls: dict[str, Callable[[], Query[Sent]]] = {
        "cancel": lambda: mail.cancel_run(key, why, sent_by=by, force=manner.force),
        "pause": lambda: mail.pause_run(key, why, sent_by=by),
        "resume": lambda: mail.resume_run(key, why, sent_by=by),
        "retry": lambda: mail.retry_run(
            key,
            why,
            sent_by=by,
            from_step=manner.from_step,
            attempts=manner.attempts,
            effects=manner.effects,
        ),
    }
    with connection.transaction():
        return run(connection, calls[order.verb]()).chain_id


_REPORT_COLUMNS = [
    Column("KEY", lambda row: plain(row["key"])),
    Column("BEFORE", lambda row: styled_status(row["before"])),
    Column("NOW", lambda row: styled_status(row["status"])),
]


def _report(
    connection: psycopg.Connection[Any], order: Order, form: Form, chosen: list[dict[str, Any]]
) -> None:
    """Print the statuses of the runs so far. A run that a worker holds gets the order from it
    within moments.
    """
    from pgflow.inspect import read_statuses

    now = fetch(connection, read_statuses([row["key"] for row in chosen]))
    rows = [
        {"key": row["key"], "before": row["status"], "status": now[row["key"]]} for row in chosen
    ]
    print_rows(form, _REPORT_COLUMNS, rows)
    if form is Form.TABLE:
        _say_what_follows(order, rows)
        _say_what_is_owed(connection, rows)


def _say_what_follows(order: Order, rows: list[dict[str, Any]]) -> None:
    """Print what is still to come: workers to notify, or code to clean up."""
    held = sum(row["before"] == row["status"] == "running" for row in rows)
    cleaning = sum(order is CANCEL and row["status"] in OPEN for row in rows)
    if cleaning:
        note(
            f"{cleaning} to be cancelled as soon as {'its' if cleaning == 1 else 'their'} code has "
            "cleaned up, on a worker."
        )
    elif held:
        note(f"{held} {'is' if held == 1 else 'are'} being worked on: the worker was notified.")


def _say_what_is_owed(connection: psycopg.Connection[Any], rows: list[dict[str, Any]]) -> None:
    """Effects that runs ended by force leave to people."""
    from pgflow.inspect import count_left

    ended = [row["key"] for row in rows if row["status"] == "cancelled"]
    debts = fetch(connection, count_left(ended))
    if debts:
        these = "it" if len(ended) == 1 else "them"
        note(
            f"{many(debts, 'effect')} of {these} stay{'s' if debts == 1 else ''} owed: `pgflow "
            "owed` lists them."
        )
