"""``pgflow retention``, ``prune``, ``forget`` and ``rotate``: which runs are kept for how long, or
removed, and the keys of what is stored.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pgflow import inspect
from pgflow.console.output import duration, many, progress, when
from pgflow_cli.look.declaring import arg, make_group, opt
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.options import Answer, DryRun, Rows, Yes, confirm, operator
from pgflow_cli.look.parsing import parse_duration, parse_pairs

retention = make_group("retention", invoke_without_command=True)
Rule = Annotated[str, arg("Name of the rule.")]
Key = Annotated[str, arg("Key of a run.")]


@retention.callback()
def list_rules(*, db: Rows) -> None:
    """Shows how long runs are kept, or changes that.

    Of the rules that match a run, the one with the most conditions decides, and of several such the
    one that keeps longer. Runs that no rule matches stay.
    """
    rows, empty = db.ask(inspect.list_retention_rules()), "No rule: runs stay until you prune them."
    shows = {"KEEPS": lambda row: duration(row.keep_seconds), "RUNS": _conditions}
    columns = "rule KEEPS RUNS*120 SET=set_at BY=set_by"
    db.print(rows, columns, empty, inspect.RetentionRule, **shows)


def _conditions(row: inspect.RetentionRule) -> str:
    parts = {"workflow": row.workflow, "status": row.status, "tenant": row.of_tenant}
    conditions = [f"{name} {value}" for name, value in parts.items() if value is not None]
    conditions += [f"{name}={value}" for name, value in (row.labels or {}).items()]
    return ", ".join(conditions) or "all"


@retention.command("set")
def set_rule(
    rule: Rule,
    *,
    keep: Annotated[str, opt(metavar="DURATION")],
    workflow: str | None = None,
    status: str | None = None,
    label: Annotated[list[str] | None, opt(metavar="NAME=VALUE")] = None,
    of_tenant: str | None = None,
    db: Answer,
) -> None:
    """Sets a rule, or replaces the one of this name. Workers remove runs by it.

    Args:
        keep: For how long, like 30d.
        workflow: Only runs of this workflow.
        status: Only runs that are completed, failed or cancelled.
        label: Only runs with this label.
        of_tenant: Only runs of this tenant.
    """
    labels = parse_pairs(label, "a label") or None
    kept: Any = parse_duration(keep, "--keep")
    wanted: Any = status
    db.client.set_retention(
        rule, kept, workflow=workflow, status=wanted, labels=labels, tenant=of_tenant, by=operator()
    )
    answer = {"rule": rule, "keep_seconds": kept.total_seconds()}
    db.answer(answer, f"Rule {rule} keeps runs for {keep}.")


@retention.command("drop")
def drop_rule(rule: Rule, *, db: Answer) -> None:
    """Takes back a rule."""
    if not db.client.drop_retention(rule):
        raise Mistake(f"no rule is called {rule!r}: `pgflow retention` lists them")
    db.answer({"rule": rule}, f"Rule {rule} is dropped.")


@retention.command("hold")
def hold(key: Key, *, why: str, db: Answer) -> None:
    """Puts a legal hold on a run: nothing removes it or redacts its values.

    Args:
        why: The reason, kept with your name.
    """
    db.client.hold_history(key, why=why, by=operator())
    db.answer({"key": key, "why": why}, f"Run {key} is under a legal hold.")


@retention.command("release")
def release(key: Key, *, db: Answer) -> None:
    """Releases the legal hold of a run."""
    if not db.client.release_history(key):
        raise Mistake(f"run {key!r} is under no legal hold: `pgflow retention holds` lists them")
    db.answer({"key": key}, f"The legal hold of run {key} is released.")


@retention.command("holds")
def list_holds(*, db: Rows) -> None:
    """Lists runs under a legal hold."""
    rows, empty = db.ask(inspect.list_legal_holds()), "No run is under a legal hold."
    db.print(rows, "key why*120 SINCE=held_at BY=held_by", empty, inspect.LegalHold)


def forget(
    subject: str,
    *,
    why: str,
    label: str = "subject",
    of_tenant: str | None = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    db: Answer,
) -> None:
    """Removes all runs of a subject, permanently.

    Their keys, labels and children go with them. Runs that are open, under a legal hold or owe
    something stay, and are counted. pgflow.dropped_history records the reason and how many runs
    went. What was removed stays in the files until a vacuum, and in backups.

    Args:
        subject: The subject, as the label has it.
        why: The reason. It is kept, so leave out names.
        label: Label by which runs name their subject.
        of_tenant: Only runs of this tenant.
    """
    found = db.client.forget_subject(subject, why=why, label=label, tenant=of_tenant, dry_run=True)
    if not dry_run and found.removed:
        if not yes:
            confirm(f"Remove {many(found.removed, 'run')} for good?")
        found = db.client.forget_subject(subject, why=why, label=label, tenant=of_tenant)
    left = {"open": found.open, "under a legal hold": found.held, "owing something": found.owing}
    text = f"{many(found.removed, 'run')} {'would be ' if dry_run else ''}removed"
    text += "".join(f"; left as {reason}: {number}" for reason, number in left.items() if number)
    db.answer({**found._asdict(), "is_removed": not dry_run}, f"{text}.")


def prune(
    *,
    older_than: Annotated[
        str, opt("How long ago they must have ended, like 90d.", metavar="DURATION")
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
    batch: Annotated[int, opt(min=1, max=100_000)] = 1000,
    move_at_most: Annotated[int, opt(min=1)] = 10_000,
    db: Answer,
) -> None:
    """Removes runs that ended long ago.

    A run goes with all its data, and together with the runs that it started and continued as, once
    all of these have ended. pgflow.dropped_history records what was removed. A partition of the
    journal that only a few rows keep is shrunk to them, after the next vacuum.

    Args:
        batch: So many runs in one transaction.
        move_at_most: Shrink partitions of the journal that so many rows keep, or fewer.
    """
    ended_before = db.now - parse_duration(older_than, "--older-than")
    runs = db.ask(inspect.count_ended(ended_before)) if dry_run or not yes else 0
    partitions = shrunk = 0
    if not dry_run:
        if runs:
            confirm(f"Remove {many(runs, 'run')} that ended before {when(ended_before)}?")
        gone = db.client.drop_history(
            ended_before, batch=batch, progress=progress("run", "removed so far")
        )
        runs, partitions = gone.runs, gone.partitions
        shrunk = len(db.client.shrink_journal(move_at_most))
    pruned = {"runs": runs, "partitions": partitions, "shrunk": shrunk}
    text = _in_words(runs, partitions, shrunk, ended_before if dry_run else None)
    db.answer({**pruned, "ended_before": ended_before, "removed": not dry_run}, text)


def _in_words(runs: int, partitions: int, shrunk: int, only_counted_before: datetime | None) -> str:
    if only_counted_before is not None:
        return f"{many(runs, 'run')} ended before {when(only_counted_before)}; nothing was removed"
    text = f"{many(runs, 'run')} removed"
    for number, verb in ((partitions, "dropped"), (shrunk, "shrunk")):
        text += f", and {many(number, 'partition')} of the journal {verb}" if number else ""
    return text


def rotate(
    target: Annotated[str, arg(metavar="MODULE[:APP]")],
    *,
    pages: Annotated[int, opt(min=1)] = 128,
    db: Answer,
) -> None:
    """Wraps the keys of stored values with an app's present key.

    Values, seals and replays stay as they are, and workers go on. Once it has ended, no stored
    value needs an earlier key. The exit code is 1 if one still does, because the codec does not
    have that key.

    Args:
        target: The app, whose codec has the keys.
        pages: So many pages of a table in one transaction.
    """
    from pgflow_cli.look.targets import load_app

    app = load_app(target, db.given)
    done = db.client.rotate_keys(
        app.definitions.envelopes, pages=pages, progress=progress("row", "so far")
    )
    answer = {"rows": done.rows, "unknown": list(done.unknown), "busy": done.busy}
    text = f"{many(done.rows, 'row')} now wrapped with the present key"
    if done.busy:
        text += "; others were locked: run it again"
    if done.unknown:
        text += f"; some need keys that the codec does not have: {', '.join(done.unknown)}"
    db.answer(answer, text)
    if done.unknown or done.busy:
        raise Ended(FAILED)
