"""``sql/ops/transfer.sql``: runs as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pgflow._db.query import Query


class Exported(NamedTuple):
    """One generation of a run, without its journal."""

    chain_id: int
    run_id: int
    last_seq: int
    history: str


def export_runs(chains: Sequence[int]) -> Query[list[Exported]]:
    """Each generation of these chains."""
    sql = "select chain_id, run_id, last_seq, history from pgflow.export_runs(%s::bigint[])"
    return Query(sql, (list(chains),), lambda rows: [Exported(*row) for row in rows])


def export_units(run_id: int, after_seq: int) -> Query[str | None]:
    """A page of a journal, as a JSON array; None at its end."""
    return Query(
        "select pgflow.export_units(%s::bigint, %s::int)",
        (run_id, after_seq),
        lambda rows: rows[0][0],
    )


class NamedBlob(NamedTuple):
    """A large value that runs name."""

    tenant: str
    digest: str
    size_bytes: int


def export_blobs(chains: Sequence[int]) -> Query[list[NamedBlob]]:
    """Large values that runs of these chains name."""
    sql = "select tenant, digest, size_bytes from pgflow.export_blobs(%s::bigint[])"
    return Query(sql, (list(chains),), lambda rows: [NamedBlob(*row) for row in rows])


class Ended(NamedTuple):
    """Chains that have ended since a place, and the place to go on from."""

    chains: list[int]
    next: dict[str, Any]
    has_more: bool


def list_ended(place: Mapping[str, Any] | None, max_runs: int) -> Query[Ended]:
    """Chains that have ended since a place."""
    sql = "select chains, next, has_more from pgflow.list_ended(%s::jsonb, %s::int)"
    given = None if place is None else json.dumps(place)
    return Query(sql, (given, max_runs), lambda rows: Ended(*rows[0]))


def import_run(history: str) -> Query[int]:
    """Insert a run that another database exported; return its number here."""
    return Query("select pgflow.import_run(%s::json)", (history,), lambda rows: int(rows[0][0]))
