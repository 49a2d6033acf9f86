"""``pgflow fork``, ``rewind``, ``restart``: doing a part of a run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.mail import operator, wake
from pgflow_cli.look.output import AsJson, choose_form, dump, plain, print_one
from pgflow_cli.look.parsing import parse_duration, parse_json, parse_pairs, refuse_empty
from pgflow_cli.look.selection import Key, find_detail, find_run

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from pgflow._db.calls.fork import PlaceOptions
    from pgflow._db.calls.start import Started
    from pgflow._db.query import Query

EFFECTS = ("reuse", "repeat", "compensate")

Effects = Annotated[
    str | None,
    typer.Option(
        metavar="WORD",
        help="What becomes of what the dropped part has done: reuse, repeat or compensate.",
    ),
]
FromStep = Annotated[
    str | None,
    typer.Option(
        callback=refuse_empty,
        help="Go back to just before this step's last call, the last failed one if any.",
    ),
]
Edit = Annotated[
    str | None,
    typer.Option(
        help="Another result for the last unit that is kept: JSON, @FILE, or - for standard input."
    ),
]
Attempts = Annotated[
    int | None, typer.Option(min=1, help="How often each step may be tried from there on.")
]
Children = Annotated[
    bool,
    typer.Option(
        "--cancel-children", help="Cancel open children that the dropped part has started."
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline", help="A new deadline: cancel it if it is not over after 90s, 10m, 7d..."
    ),
]
Why = Annotated[str | None, typer.Option(help="The reason, kept in the run's history.")]
NewInput = Annotated[
    str | None,
    typer.Option(
        "--input", "-i", help="Another input: a JSON object, @FILE, or - for standard input."
    ),
]


def fork(
    key: Key,
    new_key: Annotated[
        str | None,
        typer.Argument(help="Key of the fork; made up if it is left out.", show_default=False),
    ] = None,
    *,
    at: Annotated[
        int | None,
        typer.Option(min=0, help="How many units of the journal it begins with; all if left out."),
    ] = None,
    from_step: FromStep = None,
    edit: Edit = None,
    text: NewInput = None,
    effects: Effects = None,
    with_mail: Annotated[
        bool,
        typer.Option(
            "--with-mail",
            help="Copy signals that wait, and those that the part left out had taken.",
        ),
    ] = False,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Of which generation; the newest if left out.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", "-l", metavar="NAME=VALUE", help="Its own labels; may be given again."
        ),
    ] = None,
    attempts: Attempts = None,
    deadline: Deadline = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Starts a run from a copy of another's journal.

    The other goes on as it is. The same new key with the same options is the same fork.
    """
    edited, given = _json(edit, "--edit"), _json(text, "--input")
    labels = parse_pairs(label, "--label") or None

    def query(shared: PlaceOptions) -> Query[Started]:
        from pgflow._db.calls.fork import ForkOptions, fork_run

        del shared["children"]
        options = ForkOptions(
            **shared,  # type: ignore[typeddict-item]
            at=at,
            from_step=from_step,
            with_mail=with_mail,
            generation=generation,
            labels=labels,
        )
        return fork_run(key, new_key, edited, given, options)

    _do(
        "fork",
        key,
        query,
        _shared(effects, attempts, deadline, why, "forked"),
        as_json=as_json,
        dsn=dsn,
    )


def rewind(
    key: Key,
    *,
    to: Annotated[
        int | None,
        typer.Option(
            min=0, help="The last unit to keep, as `pgflow timeline KEY --units` numbers them."
        ),
    ] = None,
    from_step: FromStep = None,
    edit: Edit = None,
    effects: Effects = None,
    cancel_children: Children = False,
    attempts: Attempts = None,
    deadline: Deadline = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Takes a run back to an earlier point.

    It keeps its key and goes on from there as its next generation. Its later work stays in the
    history.
    """
    if to is None and from_step is None:
        raise Mistake("where to? Pass --to UNIT or --from-step STEP; `pgflow restart` begins anew")
    edited = _json(edit, "--edit")

    def query(shared: PlaceOptions) -> Query[Started]:
        from pgflow._db.calls.fork import rewind_run

        return rewind_run(key, to, from_step, edited, shared)

    shared = _shared(effects, attempts, deadline, why, "rewound", cancel_children=cancel_children)
    _do("rewind", key, query, shared, as_json=as_json, dsn=dsn)


def restart(
    key: Key,
    *,
    text: NewInput = None,
    effects: Effects = None,
    cancel_children: Children = False,
    attempts: Attempts = None,
    deadline: Deadline = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Restarts a run from the beginning, with the same key.

    Its input stays the same unless another is given.
    """
    given = _json(text, "--input")

    def query(shared: PlaceOptions) -> Query[Started]:
        from pgflow._db.calls.fork import restart_run

        return restart_run(key, given, shared)

    shared = _shared(effects, attempts, deadline, why, "restarted", cancel_children=cancel_children)
    _do("restart", key, query, shared, as_json=as_json, dsn=dsn)


def check_effects(effects: str | None) -> None:
    """Refuse an unknown word for --effects.

    Raises:
        Mistake: It is none of `EFFECTS`.
    """
    if effects is not None and effects not in EFFECTS:
        raise Mistake(f"--effects is {', '.join(EFFECTS[:-1])} or {EFFECTS[-1]}, not {effects!r}")


def _json(text: str | None, what: str) -> str | None:
    return None if text is None else dump(parse_json(text, what))


def _shared(
    effects: str | None,
    attempts: int | None,
    deadline: str | None,
    why: str | None,
    default_why: str,
    *,
    cancel_children: bool = False,
) -> PlaceOptions:
    check_effects(effects)
    return {
        "effects": effects,  # type: ignore[typeddict-item]
        "attempts": attempts,
        "timeout": None if deadline is None else parse_duration(deadline, "--deadline"),
        "why": why or default_why,
        "by": operator(),
        "children": "cancel" if cancel_children else "refuse",
    }


_NOW = ("status", "generation", "origin_key", "origin_generation", "origin_seq")


def _do(
    verb: str,
    key: str,
    query: Callable[[PlaceOptions], Query[Started]],
    shared: PlaceOptions,
    *,
    as_json: bool | None,
    dsn: str | None,
) -> None:
    from pgflow._db.query import run

    with opened(dsn) as connection:
        find_run(connection, key)
        started = run(connection, query(shared))
        now = find_detail(connection, started.key)
        wake(
            connection,
            _told(connection, now.origin_run_id) if shared.get("children") == "cancel" else [],
            [started.lane_id],
        )
    said = {"key": started.key, "is_new": started.is_new, **as_row(now, _NOW)}
    print_one(choose_form(as_json=as_json), said, lambda: plain(_say(verb, said)))


def _told(connection: psycopg.Connection[Any], origin: int | None) -> list[int]:
    """Return the chains of open children of the former generation, which are being cancelled."""
    from pgflow.inspect import list_child_chains

    return [] if origin is None else fetch(connection, list_child_chains([origin], only_open=True))


def _say(verb: str, said: dict[str, Any]) -> str:
    if verb == "fork":
        begun = f"from {said['origin_key']} at unit {said['origin_seq']}"
        if not said["is_new"]:
            return f"{said['key']} was forked {begun} before; it is {said['status']}."
        return f"{said['key']} is forked {begun}."
    what = "restarted" if verb == "restart" else f"rewound to unit {said['origin_seq']}"
    return f"{said['key']} is {what}, as generation {said['generation']}."
