"""Shares of long plays: a run of the tests makes a part of them, and all with PGFLOW_TEST_LONG=1."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

IS_LONG = os.environ.get("PGFLOW_TEST_LONG", "") not in ("", "0")


def share_of(items: Sequence[T], one_of: int) -> list[T]:
    """Return every so-manieth item and the last one, or all of them in a long run.

    Args:
        items: Seeds, cuts, or whatever is played one by one.
        one_of: Number of items of which one is played.
    """
    if IS_LONG or not items:
        return list(items)
    chosen = range(0, len(items), one_of)
    return [items[n] for n in sorted({*chosen, len(items) - 1})]
