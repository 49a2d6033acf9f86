"""``sql/runs/lines.sql``: queues whose runs take turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pgflow._db.query import Query


class Turns(NamedTuple):
    """Rules that hold runs of some queues back.

    Attributes:
        seconds: Time until a rate lets a run begin that waits for it; None if none has a rate.
        is_limited: True if any has a limit: the end of a run may let another begin.
    """

    seconds: float | None
    is_limited: bool


def next_turn(queues: Sequence[str]) -> Query[Turns]:
    """Ask for the rules that hold runs of these queues back."""
    return Query(
        "select seconds, is_limited from pgflow.next_turn(%s::text[])",
        (list(queues),),
        lambda rows: Turns(*rows[0]),
    )
