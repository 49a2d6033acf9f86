"""``pgflow entities``: kinds of entities, their state, and what was done to one."""

from __future__ import annotations

from typing import Any

from pgflow import inspect
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Rows
from pgflow_cli.look.output import short_json


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
