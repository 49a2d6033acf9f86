"""``pgflow locks``: who holds which lock; taking one away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import Command, make_group
from pgflow_cli.look.mail import operator
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    age,
    choose_form,
    duration,
    plain,
    print_one,
    print_rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

locks = make_group(
    "locks", "Shows locks and their holders, or releases one.", invoke_without_command=True
)

_COLUMNS = ("key", "fence", "holder", "is_shared", "since", "expires_at", "waiters", "run_id")


@locks.callback()
def list_locks(
    context: typer.Context, *, as_json: AsJson = None, as_csv: AsCsv = False, dsn: Dsn = None
) -> None:
    """Shows locks and their holders, or releases one.

    FENCE grows each time a lock is won. ENDS says when the lock counts no more; empty where its run
    holds it for as long as it likes.
    """
    if context.invoked_subcommand is not None:
        return
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        from pgflow import inspect

        rows = [as_row(held) for held in fetch(connection, inspect.list_locks(limit=None))]
        now = database_now(connection)

    def ends(row: Mapping[str, Any]) -> str:
        at = row["expires_at"]
        if at is None:
            return ""
        left = (at - now).total_seconds()
        return f"in {duration(left)}" if left > 0 else "over"

    columns = [
        Column("LOCK", lambda row: plain(row["key"])),
        Column("FENCE", lambda row: plain(row["fence"]), right=True),
        Column("HOLDER", lambda row: plain(row["holder"]), takes_rest=True, most=120),
        Column("SHARED", lambda row: plain("yes" if row["is_shared"] else "")),
        Column("SINCE", lambda row: plain(age(row["since"], now)), right=True),
        Column("ENDS", lambda row: plain(ends(row))),
        Column("WAITERS", lambda row: plain(row["waiters"]), right=True),
    ]
    print_rows(form, columns, rows, names=_COLUMNS, empty="Nothing is locked.")


@locks.command("release", cls=Command)
def release_lock(
    key: Annotated[str, typer.Argument(help="Name of what is locked.", show_default=False)],
    *,
    why: Annotated[str | None, typer.Option(help="The reason, kept with who took it away.")] = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Takes a lock from its holder, and lets the next one in.

    A run that held it gets LockLost at its next durable call in the block. The run's history and
    pgflow.broken_locks record who released it, when and why.
    """
    if not why:
        raise Mistake("give the reason for releasing the lock: --why")
    with opened(dsn) as connection:
        from pgflow._db.calls import locks as calls
        from pgflow._db.query import run

        taken = run(connection, calls.break_lock(key, why, operator()))
        run(connection, calls.sweep_locks())
    if not taken:
        raise Mistake(f"lock {key!r} is not held: `pgflow locks` lists those that are")
    print_one(
        choose_form(as_json=as_json),
        {"key": key, "holders": taken},
        lambda: plain(f"Lock {key} was released from {taken} holder{'s' * (taken != 1)}."),
    )
