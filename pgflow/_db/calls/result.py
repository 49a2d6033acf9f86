"""``sql/runs/result.sql``: results of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pgflow._db.query import Query, Row


class Ended(NamedTuple):
    """A chain that has ended, is stuck, or is gone with its history."""

    chain_id: int
    status: str
    reason: str | None
    output: str | None
    error: str | None
    key: str | None
    """Key of the run that has this number: where a fail-over lost the start of a run,
    another may have it now.
    """


def find_chain(key: str, tenant: str = "") -> Query[int]:
    """The chain that a key names."""
    return Query(
        "select pgflow.find_chain(%s::text, %s::text)", (key, tenant), lambda rows: int(rows[0][0])
    )


def results(chains: Sequence[int]) -> Query[dict[int, Ended]]:
    """Those of these chains that have ended or are stuck."""
    sql = "select chain_id, status, reason, output, error, key from pgflow.results(%s::bigint[])"
    return Query(sql, (list(chains),), lambda rows: {row[0]: Ended(*row) for row in rows})


def run_status(key: str) -> Query[Any]:
    """Status of a run."""
    return Query("select pgflow.run_status(%s::text)", (key,), lambda rows: rows[0][0])


def run_state(key: str, tenant: str = "") -> Query[dict[str, Any]]:
    """Return the values that a run last set with ``set_state()``."""
    return Query(
        "select pgflow.run_state(%s::text, %s::text)", (key, tenant), lambda rows: dict(rows[0][0])
    )


class Emitted(NamedTuple):
    """A value of a stream, with the cursor after it; no value where the stream was closed."""

    run_id: int
    seq: int
    value: str | None
    draft: str | None = None
    """Name it had while its step ran."""


def read_stream(
    key: str, stream: str, after: tuple[int, int], skip: int, count: int
) -> Query[list[Emitted]]:
    """The next values of a stream."""

    def read(rows: list[Row]) -> list[Emitted]:
        return [Emitted(*row) for row in rows]

    sql = (
        "select run_id, seq, value, draft from pgflow.read_stream("
        "%s::text, %s::text, %s::bigint, %s::int, %s::int, %s::int)"
    )
    return Query(sql, (key, stream, *after, skip, count), read)


def read_drafts(key: str, stream: str) -> Query[list[tuple[str, str]]]:
    """Return (name, value) of all that running steps have emitted to a stream."""
    sql = "select draft, value from pgflow.read_drafts(%s::text, %s::text)"
    return Query(sql, (key, stream), lambda rows: [(str(row[0]), str(row[1])) for row in rows])
