"""Pages of long lists.

A page ends at a place in the order of its list, and the next one begins behind that place. So a row
that comes or goes meanwhile shifts no other. ``Listing.next`` is that place as text,
for a link or a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, LiteralString, TypeAlias, TypeVar

from pgflow._db.query import Query
from pgflow.errors import InvalidArgument
from pgflow.inspect.question import Question, once

T = TypeVar("T")

After: TypeAlias = str | int | None
"""Place behind which a page begins: ``next`` of the previous page it. None for the first page."""

Order: TypeAlias = Mapping[LiteralString, Callable[[str], Any]]
"""Columns by which a list is ordered, with the types that read their values."""

SEPARATOR = "~"

COUNTED = 2_000
"""Number of rows that a count by groups reads at most."""
EXAMPLES = 5
"""Number of rows that such a count shows of each group."""


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A part of a long list, in its order. Iterate over it, or take ``items``.

    Attributes:
        items: Rows of this page.
        next: Place at which the next page begins, to be passed as ``after=``;
            None if this is the last.
    """

    items: list[T]
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        """Yield the rows of this page."""
        return iter(self.items)

    def __len__(self) -> int:
        """Return the number of rows of this page."""
        return len(self.items)


def one_more(limit: int | None) -> int | None:
    """Return the number of rows to ask for: one more than the limit, to see if another page
    follows.

    Raises:
        InvalidArgument: The limit is less than 1.
    """
    if limit is not None and limit < 1:
        raise InvalidArgument(f"limit={limit} is too small: pass 1 or more, or None for all")
    return None if limit is None else limit + 1


def cut(rows: list[T], limit: int | None, place: Callable[[T], tuple[Any, ...]]) -> Listing[T]:
    """Return the page that these rows make, of which the last may belong to the next.

    Args:
        rows: As many as `one_more` says, or fewer.
        limit: Most rows of the page; None for all.
        place: Values by which the list is ordered, of a row.
    """
    if limit is None or len(rows) <= limit:
        return Listing(rows)
    items = rows[:limit]
    return Listing(items, SEPARATOR.join(_write(value) for value in place(items[-1])))


def page(
    row: Callable[..., T],
    start: LiteralString,
    values: tuple[Any, ...],
    by: Order,
    after: After,
    limit: int | None,
    *,
    newest_first: bool = False,
    place: Callable[[T], tuple[Any, ...]] | None = None,
) -> Question[Listing[T]]:
    """Return a question for a page of rows.

    Args:
        row: Maker of a row from its columns.
        start: The statement, up to its ``where`` with a first condition.
        values: Parameters of it.
        by: Its order.
        after: Place behind which the page begins; None for the first.
        limit: Most rows of the page; None for all.
        newest_first: True for a descending order.
        place: Values of the columns, of a row; its attributes of their names by default.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    begin = parse_place(after, *by.values())
    names: LiteralString = ", ".join(by)
    marks: LiteralString = ", ".join("%s" for _ in by)
    compare: LiteralString = "<" if newest_first else ">"
    behind: LiteralString = f"and ({names}) {compare} ({marks})" if begin else ""
    order: LiteralString = " desc, ".join(by) + " desc" if newest_first else names
    sql: LiteralString = f"{start} {behind} order by {order} limit %s"
    place_of = place or (lambda found: tuple(getattr(found, name) for name in by))
    return once(
        Query(
            sql,
            (*values, *begin, one_more(limit)),
            lambda rows: cut([row(*found) for found in rows], limit, place_of),
        )
    )


def _write(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def parse_place(after: After, *kinds: Callable[[str], Any]) -> tuple[Any, ...]:
    """Return the values of a place; an empty tuple for the first page.

    Raises:
        InvalidArgument: ``after`` is not a place in such a list.
    """
    if after is None:
        return ()
    words = str(after).split(SEPARATOR, len(kinds) - 1)  # a name may hold one, the last one does
    try:
        return tuple(kind(word) for kind, word in zip(kinds, words, strict=True))
    except ValueError:
        raise InvalidArgument(
            f"after={after!r} is not a place in this list: pass `next` of the previous page"
        ) from None
