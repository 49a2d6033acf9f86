"""``sql/runs/claim.sql`` and ``sql/core/lane.sql``: claiming runs and giving them back."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pydantic_core import from_json

from pgflow._db.query import Query, Row
from pgflow._model.claims import (
    CarriedChild,
    CarriedEffect,
    Claim,
    Dropped,
    Heritage,
    Offer,
    ReusedStep,
    place_of,
)
from pgflow._model.protocol import SagaEntry
from pgflow._model.units import Unit, parse_units


class Lane(NamedTuple):
    """A lane that a worker serves."""

    lane_id: int
    queue: str
    workflow: str
    version: str


def serve_lanes(
    queues: Sequence[str], workflows: Sequence[str], versions: Sequence[str] = ()
) -> Query[list[Lane]]:
    """The lanes of these queues and workflows: of runs that any version may work on, and of those
    pinned to these.
    """
    sql = (
        "select lane_id, queue, workflow, version "
        "from pgflow.serve_lanes(%s::text[], %s::text[], %s::text[])"
    )
    return Query(
        sql,
        (list(queues), list(workflows), list(versions)),
        lambda rows: [Lane(*row) for row in rows],
    )


COLUMNS = (
    "run_id, token, chain_id, lane_id, generation, attempt, suspect, last_seq, key, root, input, "
    "units, has_mail, created_us, now_us, priority, took_us, extra::text"
)

ARGUMENTS = "%s::int, %s::int[], %s::int, %s::bigint[], %s::boolean, %s::bigint[]"
"""Arguments of the functions that claim: :meth:`ClaimRequest.params`."""

Position = tuple[int, int]
"""Place of a run in the order of claiming: its priority and its id."""


class ClaimRequest(NamedTuple):
    """Arguments of a claim.

    Attributes:
        worker_id: The worker.
        lanes: Those that it serves.
        max_runs: Most runs to claim.
        take_suspect: True if a group of suspects may be among them.
        after: Only runs behind this one; None = from the head of the lanes.
        replaces: Number of its own runs that end in the same commit,
            whose places the new ones take.
        parks: Number of its own runs that ask to park in the same commit: as many more are claimed
            as do.
    """

    worker_id: int
    lanes: Sequence[int]
    max_runs: int
    take_suspect: bool = True
    after: Position | None = None
    replaces: int = 0
    parks: int = 0

    def params(self) -> tuple[Any, ...]:
        """:data:`ARGUMENTS`, with tokens."""
        after = None if self.after is None else list(self.after)
        return (
            self.worker_id,
            list(self.lanes),
            self.max_runs,
            new_tokens(self.max_runs + self.parks),
            self.take_suspect,
            after,
        )


def new_tokens(count: int) -> list[int]:
    """Random 63-bit tokens, never a sequence: a number issued twice would let a zombie pass. One
    call of the system makes them all.
    """
    return [token >> 1 for token in struct.unpack(f"{count}Q", secrets.token_bytes(8 * count))]


def claim_runs(request: ClaimRequest) -> Query[list[Claim]]:
    """Claim runs."""
    return Query(
        f"select {COLUMNS} from pgflow.claim_runs({ARGUMENTS})",  # noqa: S608
        request.params(),
        read_claims,
    )


def read_claims(rows: list[Row]) -> list[Claim]:
    """Claims from rows of :data:`COLUMNS`."""
    return [_claim(row) for row in rows]


def _claim(row: Row) -> Claim:
    *columns, extra = row
    page, columns[11] = columns[11], []
    claim = Claim(*columns)
    claim.page = page
    return _with_extra(claim, from_json(extra)) if extra is not None else claim


def _with_extra(claim: Claim, extra: dict[str, Any]) -> Claim:
    if (offer := extra.get("offer") or extra.get("result")) is not None:
        claim.offer = Offer(*offer)
    if len(extra) == 1:
        return claim
    claim.labels = extra["labels"] or {}
    claim.metadata = extra["metadata"] or {}
    claim.parent_run_id = extra["parent_run_id"]
    claim.leaves_saga = extra.get("leaves_saga") or False
    claim.deadline_us = extra["deadline_us"]
    claim.tenant = extra["tenant"]
    claim.has_beats = extra.get("beats", False)
    if (pool := extra.get("pool")) is not None:
        claim.pool, claim.is_pool_hard = pool["name"], pool["hard"]
    if saga := extra.get("saga"):
        claim.saga = [SagaEntry(*entry) for entry in saga]
    if (heritage := extra.get("heritage")) is not None:
        claim.heritage = _heritage(heritage)
        claim.created_us = claim.heritage.began_us or claim.created_us
    return claim


def _heritage(data: dict[str, Any]) -> Heritage:
    carried: dict[tuple[str, int], list[ReusedStep]] = {}
    for name, args_hash, is_done, key, payload in data["carried"] or ():
        carried.setdefault((name, args_hash), []).append(
            ReusedStep(key, (payload or "null") if is_done else None)
        )
    return Heritage(
        [(upto, stem) for upto, stem in data["seeds"]],
        data["cut"],
        data["began_us"],
        data["attempts"],
        carried,
        effects={
            (place_of(key), args_hash): CarriedEffect(key, *rest)
            for key, args_hash, *rest in data.get("effects") or ()
        },
        children=[CarriedChild(*row) for row in data.get("children") or ()],
        undo=[Dropped(*row) for row in data.get("undo") or ()],
    )


def load_units(run_id: int, after_seq: int) -> Query[list[Unit]]:
    """The next page of a long journal."""
    return Query(
        "select pgflow.load_units(%s::bigint, %s::int)",
        (run_id, after_seq),
        lambda rows: parse_units(rows[0][0]),
    )


def release_runs(claims: Sequence[Claim]) -> Query[list[int]]:
    """Hand runs back; return the ids of those that were still held."""
    sql = "select pgflow.release_runs(%s::bigint[], %s::bigint[])"
    return Query(
        sql, ([c.run_id for c in claims], [c.token for c in claims]), lambda rows: list(rows[0][0])
    )


def release_strays(
    worker_id: int, known: Sequence[int], claimed_before: datetime | None
) -> Query[tuple[int, datetime]]:
    """Hand back leases from before a time that the worker does not know; return their number, and
    the time of this look.
    """
    return Query(
        "select * from pgflow.release_strays(%s::int, %s::bigint[], %s::timestamptz)",
        (worker_id, list(known), claimed_before),
        lambda rows: (int(rows[0][0]), rows[0][1]),
    )
