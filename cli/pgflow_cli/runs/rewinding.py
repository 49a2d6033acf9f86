"""``pgflow fork``, ``rewind``, ``restart``: doing a part of a run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pgflow import inspect
from pgflow.console.output import as_object
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import Made, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import (
    EFFECTS,
    Answer,
    Attempts,
    Effects,
    FromStep,
    OwnLabels,
    Why,
    check_word,
    operator,
)
from pgflow_cli.look.parsing import parse_json, parse_pairs, parse_span
from pgflow_cli.look.selection import Key, exists, find_detail, find_run

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
