"""``sql/ops/rewrap.sql``: rotating the keys with which data keys are wrapped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pgflow._db.query import Query


class Wraps(NamedTuple):
    """Wraps with earlier keys in some pages of a table."""

    wraps: list[str]
    name: str
    first_page: int
    next: dict[str, Any]


class Rotated(NamedTuple):
    """Result of a rotation of keys.

    Attributes:
        rows: Number of rows that have the present key now.
        unknown: Names of keys that the codec does not have, and that stored values still need.
        busy: True if rows were locked by others at each try: rotate again.
    """

    rows: int
    unknown: tuple[str, ...]
    busy: bool


def find_wraps(key_id: str, after: Mapping[str, Any] | None, pages: int) -> Query[Wraps | None]:
    """Read wraps with another key than this one; None behind the last table."""
    sql = (
        "select wraps, name, first_page, next from pgflow.find_wraps(%s::text, %s::jsonb, %s::int)"
    )
    place = None if after is None else json.dumps(after)
    return Query(sql, (key_id, place, pages), lambda rows: Wraps(*rows[0]) if rows else None)


def replace_wraps(found: Wraps, changes: Mapping[str, str], pages: int) -> Query[int]:
    """Put new wraps in the places of those that were found; return the number of rows."""
    sql = "select pgflow.replace_wraps(%s::text, %s::bigint, %s::jsonb, %s::int)"
    given = (found.name, found.first_page, json.dumps(changes), pages)
    return Query(sql, given, lambda rows: int(rows[0][0]))
