"""``pgflow entities`` and ``locks``: kinds of entities, their state, and what was done to one; who
holds which lock, and taking one away.
"""

from __future__ import annotations

from typing import Any

from pgflow import inspect
from pgflow.console.output import many, short_json, until
from pgflow_cli.look.declaring import make_group
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, Rows, operator


def entities(name: str | None = None, key: str | None = None, *, db: Rows) -> None:
    """Lists entities, or the updates of one.

    Without a name: the kinds. With a kind: its entities. Of an entity: every update in its order,
    with who made it, its arguments and its verdict. An empty STATE says that it changed nothing.

    Args:
        name: Name of the kind of entity.
        key: Key of an entity.
    """
    if name is None:
        rows: Any = [{"name": found} for found in db.ask(inspect.list_entity_names())]
        db.print(rows, "name", "There are no entities yet.", ["name"])
    elif key is None:
        rows = db.ask(inspect.list_entities(name, limit=None)).items
        empty = f"There are no entities of kind {name!r} yet."
        db.print(rows, "key version UPDATED=updated_at state~*120", empty, inspect.EntityRow)
    elif db.ask(inspect.find_entity(name, key)) is None:
        raise Mistake(
            f"entity {name!r} {key!r} does not exist: `pgflow entities {name}` lists them"
        )
    else:
        rows = db.ask(inspect.list_entity_updates(name, key, limit=None)).items
        spec = "version at update BY=said_by/40 ARGUMENTS=args~/40 VERDICT state~*120"
        names = inspect.EntityUpdateRow
        db.print(rows, spec, "Nothing was done to it.", names, VERDICT=_verdict)


def _verdict(row: inspect.EntityUpdateRow) -> Any:
    refused = f"refused: {short_json(row.error).plain}" if row.error else ""
    return refused or short_json(row.verdict)


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
