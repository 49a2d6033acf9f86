"""``pgflow locks``: who holds which lock; taking one away."""

from __future__ import annotations

from pgflow import inspect
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import make_group
from pgflow_cli.look.options import Answer, Rows, operator
from pgflow_cli.look.output import many, until

locks = make_group("locks", invoke_without_command=True)


@locks.callback()
def list_locks(*, db: Rows) -> None:
    """Shows locks and their holders, or releases one.

    FENCE grows each time a lock is won. ENDS says when the lock counts no more; empty where its run
    holds it for as long as it likes.
    """
    columns = "LOCK=key fence holder*120 SHARED=is_shared since ENDS waiters"
    rows = db.ask(inspect.list_locks(limit=None)).items
    db.print(
        rows,
        columns,
        "Nothing is locked.",
        inspect.LockRow,
        ENDS=lambda row: until(row.expires_at, db.now, "over"),
    )


@locks.command("release")
def release_lock(key: str, *, why: str | None = None, db: Answer) -> None:
    """Takes a lock from its holder, and lets the next one in.

    A run that held it gets LockLost at its next durable call in the block. The run's history and
    pgflow.broken_locks record who released it, when and why.

    Args:
        key: Name of what is locked.
        why: The reason, kept with who took it away.
    """
    if not why:
        raise Mistake("give the reason for releasing the lock: --why")
    taken = db.client.break_lock(key, why=why, by=operator())
    if not taken:
        raise Mistake(f"lock {key!r} is not held: `pgflow locks` lists those that are")
    text = f"Lock {key} was released from {many(taken, 'holder')}."
    db.answer({"key": key, "holders": taken}, text)
