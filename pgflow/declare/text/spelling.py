"""Suggestions of known names for a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_SUGGESTIONS = 3
_LONGEST = 100
_MOST = 500
"""Longest names, and most of them, that are compared. Beyond that a suggestion would not help, and
hostile files have many.
"""


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that are few changes away, the nearest first.

    Args:
        name: Name as it was written.
        known: Names that could have been written; among equally near ones, the earlier comes first.

    Returns:
        The names; none if nothing is near, or if only the case differs.
    """
    limit = max(2, len(name) * 3 // 10)
    near = (
        (_distance(name.lower(), other.lower(), limit), other) for other in islice(known, _MOST)
    )
    return [
        other
        for _, other in sorted(
            (pair for pair in near if 0 < pair[0] <= limit), key=lambda pair: pair[0]
        )
    ][:_SUGGESTIONS]


def _distance(left: str, right: str, limit: int) -> int:
    """Return the number of characters to change, add or leave out: exactly up to the limit, and
    more than it beyond.
    """
    if abs(len(left) - len(right)) > limit or max(len(left), len(right)) > _LONGEST:
        return limit + 1
    before = list(range(len(right) + 1))
    for row, a in enumerate(left, 1):
        now = [row]
        for column, b in enumerate(right, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (a != b)))
        before = now
    return before[-1]
