"""``sql/ledgers/seals.sql``, ``verify.sql`` and ``redact.sql``: sealing the journal, verifying it,
and taking a value out of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pgflow._db.query import Query

RedactedPart = Literal["unit", "input", "result"]
"""Part of a run that is redacted: the payload of a unit, what it was started with, or what it
returned or raised.
"""


class SealedRound(NamedTuple):
    """Result of a round of the sealer.

    Attributes:
        sealed: Number of runs that have a new seal.
        has_more: True if there is more to do at once.
        wait_seconds: Time until the next round is due; None if nothing is to be sealed.
    """

    sealed: int
    has_more: bool
    wait_seconds: float | None


def seal_units(max_runs: int, *, at_once: bool = False) -> Query[SealedRound]:
    """Seal new records: of a limited number of new runs, and of runs that were open."""
    sql = "select sealed, has_more, wait_seconds from pgflow.seal_units(%s::int, %s::boolean)"
    return Query(sql, (max_runs, at_once), lambda rows: SealedRound(*rows[0]))


def set_sealing(*, is_on: bool, by: str | None) -> Query[None]:
    """Switch sealing by workers on or off."""
    return Query("select pgflow.set_sealing(%s::boolean, %s::text)", (is_on, by), lambda _: None)


def redact(
    key: str,
    seq: int | None,
    why: str,
    by: str | None,
    what: RedactedPart,
    generation: int | None,
) -> Query[str]:
    """Replace a value by its hash; return the hash."""
    sql = (
        "select pgflow.redact(%s::text, %s::int, %s::text, %s::text, %s::text, "
        "generation => %s::int)"
    )
    return Query(sql, (key, seq, why, by, what, generation), lambda rows: str(rows[0][0]))


def redact_update(key: str, update_id: str, why: str, by: str | None) -> Query[int]:
    """Replace all values of an update by their hashes; return their number."""
    sql = "select pgflow.redact_update(%s::text, %s::text, %s::text, %s::text)"
    return Query(sql, (key, update_id, why, by), lambda rows: int(rows[0][0]))


def verify_runs(after: int, most: int, key: str | None, tenant: str) -> Query[dict[str, Any]]:
    """Compare a page of runs, or the run with a key, with their seals."""
    sql = "select pgflow.verify_runs(%s::bigint, %s::int, %s::text, %s::text)"
    return Query(sql, (after, most, key, tenant), lambda rows: dict(rows[0][0]))


def verify_rounds(after: int, most: int) -> Query[dict[str, Any]]:
    """Compare a page of rounds with their seals."""
    sql = "select pgflow.verify_rounds(%s::bigint, %s::int)"
    return Query(sql, (after, most), lambda rows: dict(rows[0][0]))


def verify_evidence(after: int, most: int) -> Query[dict[str, Any]]:
    """Compare a page of acts of operators with their noted hashes."""
    sql = "select pgflow.verify_evidence(%s::bigint, %s::int)"
    return Query(sql, (after, most), lambda rows: dict(rows[0][0]))


def verify_days() -> Query[dict[str, Any]]:
    """Compare days with their rounds."""
    return Query("select pgflow.verify_days()", (), lambda rows: dict(rows[0][0]))


def verify_anchor(anchor: Mapping[str, Any]) -> Query[dict[str, Any]]:
    """Compare an anchor with this database."""
    sql = "select pgflow.verify_anchor(%s::jsonb)"
    return Query(sql, (json.dumps(anchor),), lambda rows: dict(rows[0][0]))


def anchor() -> Query[dict[str, Any]]:
    """The roots and heads of all days, and of what is sealed since."""
    return Query("select pgflow.anchor()", (), lambda rows: dict(rows[0][0]))


def proof(key: str, tenant: str, anchor: Mapping[str, Any] | None) -> Query[dict[str, Any]]:
    """All that is needed to check a run against an anchor; None for one that is taken now."""
    sql = "select pgflow.proof(%s::text, %s::text, %s::jsonb)"
    kept = None if anchor is None else json.dumps(anchor)
    return Query(sql, (key, tenant, kept), lambda rows: dict(rows[0][0]))
