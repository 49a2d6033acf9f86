"""``pgflow queues``: shows how much is queued, running and waiting in each queue; pauses, resumes,
purges and configures queues, and lists who did.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from pgflow import inspect
from pgflow.console.output import Form, age, many
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, made_of, make_group, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, Limit, Rows, Yes, confirm, operator
from pgflow_cli.look.parsing import parse_duration, parse_pairs
from pgflow_cli.ops.options import ChangeWhy

queues = make_group("queues", invoke_without_command=True)

Name = Annotated[str, arg("Name of the queue.")]


@queues.callback()
def list_queues(*, plot: bool = False, db: Rows) -> None:
    """Shows queues, or pauses, resumes or configures one.

    Args:
        plot: Also draw what began and ended in the last hour.
    """
    if plot and db.form is not Form.TABLE:
        raise Mistake("--plot draws for people: leave out --json and --csv")
    _print(db, None)
    if plot:
        _draw(db)


def _draw(db: Database) -> None:
    """Draw the last hour, a column a minute, in the order of time."""
    from pgflow.console.plots import bars, plot_rates

    queued = sum(queue.queued for queue in db.ask(inspect.list_queues()))
    for one in plot_rates(db.ask(inspect.read_rates()), queued):
        typer.echo(f"\n{one.title}: {one.words}")
        typer.echo(f"{bars([column.height for column in one.columns])}▏{one.top}")
    typer.echo("60 minutes, the newest on the right.")


@queues.command("pause")
def pause_queue(queue: Name, *, why: ChangeWhy = None, db: Answer) -> None:
    """Stops claims from a queue; what is running goes on."""
    _check_name(db, queue)
    db.client.pause_queue(queue, why=why, by=operator())
    _print(db, queue)


@queues.command("resume")
def resume_queue(queue: Name, *, why: ChangeWhy = None, db: Answer) -> None:
    """Lets claims from a paused queue go on."""
    _check_name(db, queue)
    db.client.resume_queue(queue, why=why, by=operator())
    _print(db, queue)


# ---------------------------------------------------------------- rules

OPTIONS = {
    "concurrency": ("N", "Most runs at once, over all workers."),
    "per_worker": ("N", "Most runs at once of one worker."),
    "key": ("EXPR", "Key of a run: parts of input, labels, tenant, workflow, like input.customer."),
    "per_key": ("N", "Most runs at once of one key."),
    "fifo": ("no-fifo", "A run begins once those before it of its key have ended."),
    "rate": ("N/TIME", "Most runs that begin, such as 100/1m."),
    "burst": ("N", "Size of a bucket that the rate fills."),
    "key_rate": ("N/TIME", "Most runs of one key that begin."),
    "key_burst": ("N", "Size of the bucket of each key."),
    "ageing": ("DURATION", "Waiting that is worth one step of priority."),
    "expires": ("DURATION", "A run that has not begun by then is cancelled."),
    "weight": ("KEY=N", "Runs of a key in its turn; may be repeated."),
    "closed": ("open", "Refuse new runs, while what is there goes on."),
    "max_deaths": ("N", "After so many dead workers a run is stuck."),
}
"""Options of the rules, as `pgflow.inspect.QUEUE_RULES` has them: help imports no pgflow."""


def _option(name: str, metavar: str, text: str) -> tuple[Any, None]:
    """Return the annotation of the option that sets a rule, and its default."""
    word = f"--{name.replace('_', '-')}"
    if metavar.islower():
        flag = opt(text, f"{word}/--{metavar}")
        return Annotated[bool | None, flag], None
    kind: Any = list[str] if name == "weight" else str
    return Annotated[kind | None, opt(text, word, metavar=f"{metavar}|none")], None


def _read_rules(weight: list[str] | None, **given: Any) -> dict[str, Any]:
    """Return the rules that were given, as `set_queue` takes them.

    Raises:
        Mistake: One cannot be read.
    """
    given["weights"] = weight
    return {name: _read_rule(name, value) for name, value in given.items() if value is not None}


def _read_rule(name: str, given: Any) -> Any:
    kind = inspect.QUEUE_RULES[name].kind
    if given in ("none", ["none"]):
        return None
    if kind == "number":
        return _number(name.replace("_", "-"), given)
    if kind == "duration":
        return parse_duration(given)
    if kind == "weights":
        pairs = parse_pairs(given, "a weight")
        return {key: _number("a weight", number) for key, number in pairs.items()}
    return given


def _number(what: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise Mistake(f"{what} must be a whole number or none, not {text!r}")
    return int(text)


Rules = Annotated[
    dict[str, Any],
    made_of({name: _option(name, *option) for name, option in OPTIONS.items()}, _read_rules),
]


@queues.command("set")
def set_queue(
    queue: Name, *, rules: Rules, why: ChangeWhy = None, yes: Yes = False, db: Answer
) -> None:
    """Sets rules of a queue: limits, rates and order.

    They hold from the next claim on, over all workers. Rules that are not given stay as they are.
    Pass none to take one away. A queue that nothing has used yet is asked about, and made.

    """
    if not rules:
        raise Mistake("no rule given: pass --concurrency, --rate, --key or another")
    names = [queue] if yes else db.ask(inspect.list_queue_names())
    if queue not in names:
        there = f" There are {', '.join(names)}." if names else ""
        confirm(f"Nothing has used a queue {queue!r} yet.{there} Make it?", "pass --yes")
    db.client.set_queue(queue, why=why, by=operator(), **rules)
    _print(db, queue)


@queues.command("purge")
def purge_queue(
    queue: Name, *, why: str | None = None, yes: Yes = False, dry_run: bool = False, db: Answer
) -> None:
    """Cancels the runs of a queue that have not begun.

    They are counted and asked about first. Exactly those are cancelled, save what begins meanwhile;
    what is started meanwhile stays.

    Args:
        why: The reason, kept with each run.
        dry_run: Count the runs, and do nothing.
    """
    _check_name(db, queue)
    found = db.client.count_backlog(queue)
    purged = 0
    if found.runs and not dry_run:
        if not yes:
            confirm(f"Cancel {many(found.runs, 'run')} of {queue} that have not begun?")
        purged = db.client.purge_queue(queue, found, why=why, by=operator())
    text = f"{many(purged, 'run')} of {queue} cancelled."
    if dry_run:
        text = f"{many(found.runs, 'run')} of {queue} would be cancelled; nothing was done."
    db.answer({"queue": queue, "found": found.runs, "purged": purged}, text)


@queues.command("require-known")
def require_known(queue: Name, *, off: bool = False, db: Answer) -> None:
    """Refuses starts of workflows that no worker has ever had.

    A mistyped name is then an error at the start, instead of a run that never begins. A workflow
    becomes known when a worker that has it registers, and so does a version of it. Children are not
    refused.

    Args:
        off: Take starts of unknown workflows again.
    """
    _check_name(db, queue)
    db.client.require_known(queue, required=not off)
    _print(db, queue)


@queues.command("history")
def history(queue: str | None = None, *, limit: Limit = 50, db: Rows) -> None:
    """Shows who set, paused, resumed or purged queues.

    The latest come first.

    Args:
        queue: Name of the queue; all without.
    """
    names = ("changed_at", "queue", "what", "said", "why", "changed_by")
    rows, empty = (
        db.ask(inspect.list_queue_changes(queue, limit=limit or None)),
        "No queue was ever changed.",
    )
    columns = "AGO=changed_at queue what RULES*200 BY=changed_by why"
    db.print(rows, columns, empty, names, RULES=lambda row: _in_words(row.said))


def _in_words(rules: Mapping[str, Any]) -> str:
    def value(rule: Any) -> str:
        if isinstance(rule, bool):
            return "yes" if rule else "no"
        if isinstance(rule, dict):
            return ",".join(f"{key}:{number}" for key, number in rule.items())
        return "none" if rule is None else f"{rule:g}" if isinstance(rule, float) else str(rule)

    return " ".join(f"{name}={value(rule)}" for name, rule in rules.items())


def _check_name(db: Database, queue: str) -> None:
    names = db.ask(inspect.list_queue_names())
    if queue not in names:
        raise Mistake(f"queue {queue!r} does not exist: there are {', '.join(names) or 'none yet'}")


def _print(db: Database, queue: str | None) -> None:
    columns = (
        "queue queued# running# waiting# paused# stuck# OLDEST=oldest_queued_at workers# "
        "LIMIT=max_running RULES@100 STATE"
    )
    shows = {
        "RULES": lambda row: _in_words(
            {n: it for n, it in row.rules.items() if n != "concurrency"}
        ),
        "STATE": lambda row: _state(row, db.now),
    }
    rows, empty = db.ask(inspect.list_queues(queue)), "There are no queues yet."
    db.print(rows, columns, empty, inspect.QueueRow, **shows)


def _state(row: inspect.QueueRow, now: datetime) -> str:
    states = [f"paused for {age(row.paused_at, now)}"] if row.paused_at is not None else []
    if row.queued and not row.workers:
        states.append("no worker")
    return ", ".join([*states, *(["known workflows only"] if row.refuses_unknown else [])])
