"""Entities: their state, and the history of their updates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from pgflow.inspect.listing import After, Listing, Order, page
from pgflow.inspect.question import Question, all_rows, first_row, select, statement


@dataclass(frozen=True)
class EntityRow:
    """An entity. A row of the view ``pgflow.entities``.

    Attributes:
        name: Name of the kind of entity.
        key: Key of this one.
        version: Number of changes so far.
        state: Its state, as it is stored; None for its first one, which only the code knows.
        updated_at: Time of the last change.
    """

    name: str
    key: str
    version: int
    state: Any
    updated_at: datetime


@dataclass(frozen=True)
class EntityUpdateRow:
    """An update of an entity. A row of the view ``pgflow.entity_updates``.

    Attributes:
        number: Numbers the updates of an entity in the order in which they were made.
        version: Version of the entity after it.
        at: Time of the update.
        update: Name of the update.
        said_by: Author of the update: key of a run, or a name, with the role of the session in
            brackets.
        args: Its arguments by their names, as they are stored.
        verdict: Value that it returned, as it is stored; None if it was refused.
        error: Reason for which it was refused; None if it was not.
        state: The state after it, as it is stored; None if it changed nothing.
        run_id: Number of the run that made the update; None if no run did.
        call: Number of the call of that run.
    """

    number: int
    version: int
    at: datetime
    update: str
    said_by: str
    args: Any
    verdict: Any
    error: Any
    state: Any
    run_id: int | None
    call: int | None


_ENTITIES: LiteralString = select(EntityRow, "from pgflow.entities where name = %s")
_NAMES: LiteralString = """
with recursive kinds as (
  (select name from pgflow.entities order by name limit 1)
  union all
  select (select e.name from pgflow.entities e where e.name > k.name order by e.name limit 1)
  from kinds k where k.name is not null
)
select name from kinds where name is not null
"""
_UPDATES: LiteralString = """
select history_id, version, at, update, said_by, args, verdict, error, state, run_id, call
from pgflow.entity_updates where name = %s and key = %s
"""


def list_entity_names() -> Question[list[str]]:
    """Ask for the names of the kinds of entity that the database has."""
    return all_rows(str, _NAMES)


def list_entities(
    name: str, *, after: After = None, limit: int | None = 50
) -> Question[Listing[EntityRow]]:
    """Ask for a page of the entities of a kind, by their keys.

    Args:
        name: Name of the kind of entity.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: The limit leaves no row.
    """
    return page(EntityRow, _ENTITIES, (name,), {"key": str}, after, limit)


def find_entity(name: str, key: str) -> Question[EntityRow | None]:
    """Ask for an entity; None if there is none.

    Args:
        name: Name of the kind of entity.
        key: Key of the entity.
    """
    sql = statement(_ENTITIES, "and key = %s")
    return first_row(EntityRow, sql, name, key)


def list_entity_updates(
    name: str, key: str, *, after: After = None, limit: int | None = 50
) -> Question[Listing[EntityUpdateRow]]:
    """Ask for a page of the updates of an entity, in their order.

    Args:
        name: Name of the kind of entity.
        key: Key of the entity.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    order: Order = {"history_id": int}
    place = lambda row: (row.number,)  # noqa: E731
    return page(EntityUpdateRow, _UPDATES, (name, key), order, after, limit, place=place)
