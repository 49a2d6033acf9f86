"""``pgflow entities``: kinds of entities, their state, and what was done to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.output import AsCsv, AsJson, Column, age, choose_form, dump, plain, print_rows

if TYPE_CHECKING:
    import psycopg


def entities(
    name: Annotated[
        str | None, typer.Argument(help="Name of the kind of entity.", show_default=False)
    ] = None,
    key: Annotated[str | None, typer.Argument(help="Key of an entity.", show_default=False)] = None,
    *,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Lists entities, or the updates of one.

    Without a name: the kinds. With a kind: its entities. Of an entity: every update in its order,
    with who made it, its arguments and its verdict. An empty STATE says that it changed nothing.
    """
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        if name is None:
            from pgflow.inspect import list_entity_names

            rows: list[Any] = [{"name": found} for found in fetch(connection, list_entity_names())]
            columns = [Column("NAME", lambda row: plain(row["name"]))]
            names: tuple[str, ...] = ("name",)
            empty = "There are no entities yet."
        elif key is None:
            rows, columns, names = _of_a_kind(connection, name)
            empty = f"There are no entities of kind {name!r} yet."
        else:
            rows, columns, names = _of_one(connection, name, key)
            empty = "Nothing was done to it."
    print_rows(form, columns, rows, names=names, empty=empty)


def _of_a_kind(
    connection: psycopg.Connection[Any], name: str
) -> tuple[list[Any], list[Column], tuple[str, ...]]:
    from pgflow.inspect import list_entities, readable

    rows = [as_row(found) for found in fetch(connection, list_entities(name, limit=None))]
    now = database_now(connection)
    columns = [
        Column("KEY", lambda row: plain(row["key"])),
        Column("VERSION", lambda row: plain(row["version"]), right=True),
        Column("UPDATED", lambda row: plain(age(row["updated_at"], now)), right=True),
        Column("STATE", lambda row: plain(dump(readable(row["state"]))), takes_rest=True, most=120),
    ]
    return rows, columns, ("name", "key", "version", "state", "updated_at")


def _of_one(
    connection: psycopg.Connection[Any], name: str, key: str
) -> tuple[list[Any], list[Column], tuple[str, ...]]:
    from pgflow.inspect import find_entity, list_entity_updates, readable

    if fetch(connection, find_entity(name, key)) is None:
        raise Mistake(
            f"entity {name!r} {key!r} does not exist: `pgflow entities {name}` lists them"
        )
    rows = [
        as_row(found) for found in fetch(connection, list_entity_updates(name, key, limit=None))
    ]
    now = database_now(connection)

    def told(value: Any) -> str:
        return "" if value is None else dump(readable(value))

    columns = [
        Column("VERSION", lambda row: plain(row["version"]), right=True),
        Column("AT", lambda row: plain(age(row["at"], now)), right=True),
        Column("UPDATE", lambda row: plain(row["update"])),
        Column("BY", lambda row: plain(row["said_by"]), most=40),
        Column("ARGUMENTS", lambda row: plain(told(row["args"])), most=40),
        Column(
            "VERDICT",
            lambda row: plain(
                f"refused: {told(row['error'])}" if row["error"] else told(row["verdict"])
            ),
            most=60,
        ),
        Column("STATE", lambda row: plain(told(row["state"])), takes_rest=True, most=120),
    ]
    names = (
        "number",
        "version",
        "at",
        "update",
        "said_by",
        "args",
        "verdict",
        "error",
        "state",
        "run_id",
        "call",
    )
    return rows, columns, names
