"""Traces: the id under which the spans and logs of a run are found elsewhere."""

from __future__ import annotations

import hashlib

from pgflow._db.query import Query
from pgflow.inspect.question import Question, once


def derive_ids(root: str) -> tuple[int, int]:
    """Return the ids of trace and span that a run has which was started without a trace."""
    digest = hashlib.blake2b(root.encode(), digest_size=24, person=b"pgflow trace").digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1


def read_trace(run_id: int) -> Question[str]:
    """Ask for the trace id of a run, in 32 hexadecimal digits: the one given at its start, else the
    one that :mod:`pgflow.otel` derives. Empty if the run does not exist.

    Args:
        run_id: The number of the run.
    """
    sql = "select trace_id, root from pgflow.traces where run_id = %s"

    def read(rows: list[tuple[object, ...]]) -> str:
        if not rows:
            return ""
        stored, root = rows[0]
        return str(stored) if stored else f"{derive_ids(str(root))[0]:032x}"

    return once(Query(sql, (run_id,), read))
