"""``sql/ops/rates.sql``: what workers end in each minute."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pgflow._db.query import Query

EndedRow = tuple[int, int, int, int]
"""Number of a lane, and the runs of it that completed, that failed and that were cancelled."""


def add_rates(ended: Sequence[EndedRow], took: Sequence[int]) -> Query[None]:
    """Add counts to those of this minute: ends by lane, and ends by duration."""
    sql = "select pgflow.add_rates(%s::json, %s::int[])"
    return Query(sql, (json.dumps(ended), list(took)), lambda _: None)
