"""``pgflow entities``: kinds of entities, their state, and what was done to one."""

from __future__ import annotations

from typing import Any

from pgflow import inspect
from pgflow_cli.look.database import Database
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Db, Rows
from pgflow_cli.look.output import Column, Form, print_rows, short_json, table


def entities(name: str | None = None, key: str | None = None, *, form: Rows, db: Db) -> None:
    """Lists entities, or the updates of one.

    Without a name: the kinds. With a kind: its entities. Of an entity: every update in its order,
    with who made it, its arguments and its verdict. An empty STATE says that it changed nothing.

    Args:
        name: Name of the kind of entity.
        key: Key of an entity.
    """
    if name is None:
        rows = [{"name": found} for found in db.ask(inspect.list_entity_names())]
        columns = [Column("NAME", "name")]
        print_rows(form, columns, rows, names=("name",), empty="There are no entities yet.")
    elif key is None:
        _print_kind(db, form, name)
    else:
        _print_updates(db, form, name, key)


def _print_kind(db: Database, form: Form, name: str) -> None:
    columns = table("key version UPDATED=updated_at state~*120", now=db.now())
    rows, names = db.ask(inspect.list_entities(name, limit=None)).items, inspect.EntityRow
    empty = f"There are no entities of kind {name!r} yet."
    print_rows(form, columns, rows, names=names, empty=empty)


def _print_updates(db: Database, form: Form, name: str, key: str) -> None:
    if db.ask(inspect.find_entity(name, key)) is None:
        raise Mistake(
            f"entity {name!r} {key!r} does not exist: `pgflow entities {name}` lists them"
        )
    columns = table(
        "version at update BY=said_by/40 ARGUMENTS=args~/40 VERDICT state~*120",
        now=db.now(),
        VERDICT=_verdict,
    )
    rows, names = (
        db.ask(inspect.list_entity_updates(name, key, limit=None)).items,
        inspect.EntityUpdateRow,
    )
    print_rows(form, columns, rows, names=names, empty="Nothing was done to it.")


def _verdict(row: inspect.EntityUpdateRow) -> Any:
    refused = f"refused: {short_json(row.error).plain}" if row.error else ""
    return refused or short_json(row.verdict)
