"""``pgflow cancel``, ``pause``, ``resume``, ``retry``: commands to one run or many; and ``fork``,
``rewind``, ``restart``: doing a part of a run again.

Name runs by key, or choose them by filters. Filters are evaluated once. The runs found are counted,
shown and confirmed, and exactly these get the command, even if more match by then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pgflow import inspect
from pgflow.console.output import Form, as_object, console, make_table, many, note
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import Made, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import (
    EFFECTS,
    Answer,
    Attempts,
    Chosen,
    DryRun,
    Effects,
    FromStep,
    Keys,
    OwnLabels,
    Rows,
    Why,
    Yes,
    check_word,
    confirm,
    operator,
)
from pgflow_cli.look.parsing import parse_json, parse_pairs, parse_span
from pgflow_cli.look.selection import (
    ENDED,
    OPEN,
    Filters,
    Key,
    exists,
    find_detail,
    find_run,
    split_words,
)
from pgflow_cli.runs.listing import run_columns

SAMPLE = 10
BATCH = 500
_CHOSEN = ("key", "status", "workflow", "queue", "labels", "attempt", "since", "why")


@dataclass(frozen=True)
class Order:
    """A command to runs: the verb of the client, and the statuses that it fits; a run of those in
    `asked` gets it only if it is named, or chosen by that status.
    """

    verb: str
    past: str
    fits: tuple[str, ...]
    asked: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


CANCEL = Order("cancel", "cancelled", OPEN)
PAUSE = Order("pause", "paused", ("queued", "running", "waiting"))
RESUME = Order("resume", "resumed", ("paused", "stuck"))
RETRY = Order("retry", "retried", ("stuck",), ("failed",))


@dataclass(frozen=True)
class Batch:
    """The runs that a command line chooses, and the manner in which they get the command.

    Args:
        everything: Every run that this can be done to.
    """

    options: Chosen
    db: Rows
    keys: Keys = None
    everything: Annotated[bool, opt("--all")] = False
    why: Why = None
    yes: Yes = False
    dry_run: DryRun = False

    @property
    def filters(self) -> Filters:
        """Filters of all options, and the keys."""
        return replace(self.options, keys=self.keys or [])

    def give(self, order: Order) -> None:
        """Give the command to the runs.

        Raises:
            Mistake: The runs are not named, or some refused it.
        """
        self._check(order)
        chosen = self._choose(order)
        if self.dry_run or not chosen:
            columns = run_columns(chosen, self.db.now) if chosen else []
            empty = f"No run to {order.verb}: nothing was done."
            names = _CHOSEN if chosen else ("key", "before", "status")
            self.db.print(chosen, columns, empty, names)
            if chosen:
                note(f"{many(len(chosen), 'run')} would be {order.past}; nothing was done.")
            return
        if not self.filters.keys and not self.yes:
            self._confirm(order, chosen)
        refused = self._send(order, chosen)
        self._report(order, chosen)
        if refused:
            few = f"{len(refused)} of {len(chosen)} runs could not be {order.past}"
            raise Mistake(f"{few}: {refused[0]}")

    def _check(self, order: Order) -> None:
        keys = self.filters.keys
        if keys and (self.everything or self.filters != Filters(keys=keys)):
            raise Mistake("name runs by key or choose them by options, not both")
        if not self.filters and not self.everything:
            raise Mistake(
                f"which runs? Name them, as in `pgflow {order.verb} KEY`, choose by --status, "
                "--workflow, --label and others, or say --all"
            )

    def _choose(self, order: Order) -> list[inspect.RunRow]:
        """Return the chosen runs, as they are now. Each one named by key must exist and have a
        fitting status.
        """
        if not self.filters.keys:
            chosen = self.filters.chosen(tenant="")
            question = inspect.list_runs(chosen, limit=None, oldest_first=True)
            named = split_words(self.filters.status)
            fits = (*order.fits, *(status for status in order.asked if status in named))
            return [run for run in self.db.ask(question) if run.status in fits]
        keys = dict.fromkeys(self.filters.keys)
        runs = [find_run(self.db, key) for key in keys]
        for run in runs:
            if run.status not in (*order.fits, *order.asked):
                why = _why_not(order, run.status)
                raise Mistake(f"run {run.key!r} is {run.status}: {why}; nothing was done")
        return runs

    def _confirm(self, order: Order, chosen: list[inspect.RunRow]) -> None:
        """Show how many runs and which, and ask."""
        these = "this run" if len(chosen) == 1 else f"these {len(chosen)} runs"
        question = f"{order.verb.capitalize()} {these}?"
        if sys.stdin.isatty():
            out = console(error=True)
            columns = run_columns(chosen, self.db.now)
            out.print(make_table(columns, chosen[:SAMPLE], out.width))
            if len(chosen) > SAMPLE:
                note(f"… and {len(chosen) - SAMPLE} more: --dry-run shows all")
        confirm(question)

    def _send(self, order: Order, chosen: list[inspect.RunRow]) -> list[str]:
        """Send the command to each run, in batches; return why some refused it."""
        from pgflow.errors import HasActed, InvalidArgument, RunNotFound, WrongState

        client, refused = self.db.client, []
        send, why, by = getattr(client, order.verb), self.why or order.past, operator()
        for begin in range(0, len(chosen), BATCH):
            with client.transaction():
                for run in chosen[begin : begin + BATCH]:
                    try:
                        with client.transaction():
                            send(run.key, why=why, by=by, **order.options)
                    except (RunNotFound, WrongState, HasActed, InvalidArgument) as error:
                        refused.append(str(error))
        return refused

    def _report(self, order: Order, chosen: list[inspect.RunRow]) -> None:
        """Print the statuses of the runs so far. A run that a worker holds gets the command from
        it within moments.
        """
        now = self.db.ask(inspect.read_statuses([run.key for run in chosen]))
        rows = [{"key": r.key, "before": r.status, "status": now[r.key]} for r in chosen]
        self.db.print(rows, "key before NOW=status", "")
        if self.db.form is not Form.TABLE:
            return
        held = sum(row["before"] == row["status"] == "running" for row in rows)
        cleaning = sum(order.verb == "cancel" and row["status"] in OPEN for row in rows)
        if cleaning:
            their = "its" if cleaning == 1 else "their"
            note(f"{cleaning} to be cancelled as soon as {their} code has cleaned up, on a worker.")
        elif held:
            note(f"{held} {'is' if held == 1 else 'are'} being worked on: the worker was notified.")
        ended = [row["key"] for row in rows if row["status"] == "cancelled"]
        if owed := self.db.ask(inspect.count_left(ended)):
            note(
                f"{many(owed, 'effect')} of {'it' if len(ended) == 1 else 'them'} "
                f"stay{'s' if owed == 1 else ''} owed: `pgflow owed` lists them."
            )


def _why_not(order: Order, status: str) -> str:
    if status in RETRY.asked and order is RESUME:
        return "`pgflow retry` lets it try again"
    if status in ENDED and not order.asked:
        return "it has ended, so there is nothing to " + order.verb
    return f"only runs that are {' or '.join((*order.fits, *order.asked))} can be {order.past}"


Runs = Annotated[Batch, Made(Batch)]


def cancel(runs: Runs, *, force: bool = False) -> None:
    """Cancels runs: their code may clean up first.

    Cancelled is final. Runs chosen by options are counted, shown and confirmed, and exactly these
    are cancelled. --force is for operators: effects that the runs have done and not compensated
    stay owed, and `pgflow owed` lists them.

    Args:
        force: End it without running any more of its code.
    """
    runs.give(replace(CANCEL, options={"force": force}))


def pause(runs: Runs) -> None:
    """Holds runs until they are resumed.

    Steps that are running finish; nothing new starts.
    """
    runs.give(PAUSE)


def resume(runs: Runs) -> None:
    """Resumes paused or stuck runs."""
    runs.give(RESUME)


def retry(
    runs: Runs, *, from_step: FromStep = None, attempts: Attempts = None, effects: Effects = None
) -> None:
    """Retries stuck or failed runs.

    Stuck runs go on with a fresh budget. Failed ones, named or chosen by --status failed, go back
    to the step that failed; it runs again under the same idempotency key. Of a run of a workflow
    file, all nodes that failed are done again. --from-step names another step, of any run that does
    not run now.
    """
    check_word("--effects", effects, EFFECTS)
    is_for_keys = attempts is not None or effects is not None
    if from_step is None and is_for_keys and not runs.filters.keys:
        raise Mistake("--attempts and --effects require run keys or --from-step")
    options = {"from_step": from_step, "attempts": attempts, "effects": effects}
    order = RETRY if from_step is None else replace(RETRY, fits=(*OPEN, *ENDED), asked=())
    runs.give(replace(order, options=options))


# ---------------------------------------------------------------- again

Edit = Annotated[
    str | None,
    opt("Another result for the last unit that is kept: JSON, @FILE, or - for standard input."),
]
Children = Annotated[
    bool, opt("Cancel open children that the dropped part has started.", "--cancel-children")
]
NewInput = Annotated[
    str | None,
    opt("Another input: a JSON object, @FILE, or - for standard input.", "--input", "-i"),
]
_NAMES = ("status", "generation", "origin_key", "origin_generation", "origin_seq")


def _do(
    db: Database, key: str, send: Callable[..., Any], *given: Any, **options: Any
) -> inspect.RunDetail:
    """Call a verb of the client on a run, and return the run that it has made."""
    find_run(db, key)
    made = send(key, *given, **{name: it for name, it in options.items() if it is not None})
    return find_detail(db, made or key)


def _print(db: Database, run: inspect.RunDetail, text: str, *, is_new: bool = True) -> None:
    db.answer({"key": run.key, "is_new": is_new, **as_object(run, _NAMES)}, text)


def _again(
    *,
    effects: Effects = None,
    attempts: Attempts = None,
    deadline: str | None = None,
    why: Why = None,
) -> dict[str, Any]:
    """Return the options.

    Args:
        deadline: A new deadline: cancel it if it is not over after 90s, 10m, 7d...
    """
    return {
        "effects": check_word("--effects", effects, EFFECTS),
        "attempts": attempts,
        "timeout": parse_span(deadline, "--deadline"),
        "why": why,
        "by": operator(),
    }


AgainOptions = Annotated[dict[str, Any], Made(_again)]


def fork(
    key: Key,
    db: Answer,
    again: AgainOptions,
    new_key: str | None = None,
    *,
    at: Annotated[int | None, opt(min=0)] = None,
    from_step: FromStep = None,
    edit: Edit = None,
    text: NewInput = None,
    with_mail: bool = False,
    generation: Annotated[int | None, opt(min=1)] = None,
    label: OwnLabels = None,
) -> None:
    """Starts a run from a copy of another's journal.

    The other goes on as it is. The same new key with the same options is the same fork.

    Args:
        new_key: Key of the fork; made up if it is left out.
        at: Number of units of the journal that it begins with; all if left out.
        with_mail: Copy signals that wait, and those that the part left out had taken.
        generation: Of which generation; the newest if left out.
    """
    options = {
        **_edited(edit),
        "input": None if text is None else parse_json(text, "--input"),
        "labels": parse_pairs(label, "--label") or None,
    }
    is_new = new_key is None or not exists(db, new_key)
    run = _do(
        db,
        key,
        db.client.fork,
        new_key,
        at=at,
        from_step=from_step,
        with_mail=with_mail,
        generation=generation,
        **options,
        **again,
    )
    begun = f"from {run.origin_key} at unit {run.origin_seq}"
    done = f"is forked {begun}." if is_new else f"was forked {begun} before; it is {run.status}."
    _print(db, run, f"{run.key} {done}", is_new=is_new)


def rewind(
    key: Key,
    db: Answer,
    again: AgainOptions,
    *,
    to: Annotated[int | None, opt(min=0)] = None,
    from_step: FromStep = None,
    edit: Edit = None,
    cancel_children: Children = False,
) -> None:
    """Takes a run back to an earlier point.

    It keeps its key and goes on from there as its next generation. Its later work stays in the
    history.

    Args:
        to: The last unit to keep, as `pgflow timeline KEY --units` numbers them.
    """
    if to is None and from_step is None:
        raise Mistake("where to? Pass --to UNIT or --from-step STEP; `pgflow restart` begins anew")
    send, children = db.client.rewind, _children(cancel=cancel_children)
    run = _do(db, key, send, to, from_step=from_step, children=children, **_edited(edit), **again)
    text = f"{key} is rewound to unit {run.origin_seq}, as generation {run.generation}."
    _print(db, run, text)


def restart(
    key: Key,
    db: Answer,
    again: AgainOptions,
    *,
    text: NewInput = None,
    cancel_children: Children = False,
) -> None:
    """Restarts a run from the beginning, with the same key.

    Its input stays the same unless another is given.
    """
    given = None if text is None else parse_json(text, "--input")
    send, children = db.client.restart, _children(cancel=cancel_children)
    run = _do(db, key, send, input=given, children=children, **again)
    _print(db, run, f"{key} is restarted, as generation {run.generation}.")


def _children(*, cancel: bool) -> str:
    return "cancel" if cancel else "refuse"


def _edited(edit: str | None) -> dict[str, Any]:
    """Return the option ``edit`` of a client; without it the result stays as it is."""
    return {} if edit is None else {"edit": parse_json(edit, "--edit")}
