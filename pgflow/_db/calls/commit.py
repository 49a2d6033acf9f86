"""``sql/runs/commit.sql``: the group commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, LiteralString

from pgflow._db.calls.claim import ARGUMENTS, COLUMNS, ClaimRequest, read_claims
from pgflow._db.query import JsonTexts, Query, Row
from pgflow._model.claims import Claim, Offer
from pgflow._model.protocol import Answer, AnsweredUnit, BatchAnswer


@dataclass
class CommitAnswer:
    """Answer to a batch of flushes."""

    bad: dict[int, str] = field(default_factory=dict)
    settled: dict[int, Answer] = field(default_factory=dict)
    """By run."""
    wake: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    told: dict[int, Offer] = field(default_factory=dict)
    """By chain of a parent that this worker holds: the result of a child, if there is nothing else
    in its mailbox.
    """

    @property
    def parked(self) -> int:
        """Number of runs that have parked."""
        return len([one for one in self.settled.values() if one["place"] == "parked"])


ALL_WELL = CommitAnswer()

_answered_unit: Callable[[Sequence[Any]], AnsweredUnit] = partial(tuple.__new__, AnsweredUnit)
"""Make a unit of the values of a row, without a call of a Python function."""


def read_answer(answer: Answer) -> Answer:
    """Return an answer with its units typed."""
    # The last value is left out if there is none.
    answer["units"] = [_answered_unit((*unit, None)[:6]) for unit in answer["units"]]
    return answer


def _answer(data: BatchAnswer | None) -> CommitAnswer:
    if data is None:
        return ALL_WELL
    return CommitAnswer(
        bad=dict(data.get("bad") or ()),
        settled={
            answer["run"]: read_answer(answer) if answer["units"] else answer
            for answer in data.get("answers") or ()
        },
        wake=data.get("wake") or [],
        lanes=data.get("lanes") or [],
        told={chain: Offer(*message) for chain, message in data.get("told") or ()},
    )


def commit_units(document: str, apart: Sequence[str], *, careful: bool) -> Query[CommitAnswer]:
    """Commit a batch; ``apart``: the long values beside its document."""
    if apart:
        sql: LiteralString = "select pgflow.commit_units(%s::jsonb, %s::boolean, %s::json[])"
        return Query(sql, (document, careful, JsonTexts(apart)), lambda rows: _answer(rows[0][0]))
    return Query(
        "select pgflow.commit_units(%s::jsonb, %s::boolean)",
        (document, careful),
        lambda rows: _answer(rows[0][0]),
    )


def commit_and_claim(
    document: str, request: ClaimRequest, apart: Sequence[str]
) -> Query[tuple[CommitAnswer, list[Claim]]]:
    """Commit a batch and claim runs; ``apart``: the long values beside the document."""
    if apart:
        sql = (
            f"select answer, {COLUMNS} "  # noqa: S608 - names of columns
            f"from pgflow.commit_and_claim(%s::jsonb, {ARGUMENTS}, %s::json[])"
        )
        return Query(sql, (document, *request.params(), JsonTexts(apart)), _read_both)
    sql = f"select answer, {COLUMNS} from pgflow.commit_and_claim(%s::jsonb, {ARGUMENTS})"  # noqa: S608 - names of columns
    return Query(sql, (document, *request.params()), _read_both)


def _read_both(rows: list[Row]) -> tuple[CommitAnswer, list[Claim]]:
    return _answer(rows[0][0]), read_claims([row[1:] for row in rows if row[1] is not None])


def commit_unit(
    worker_id: int,
    run_id: int,
    token: int,
    seq: int,
    call: int,
    kind: str,
    name: str | None,
    payload: str | None,
    starts: str | None,
    at_us: int,
) -> Query[CommitAnswer]:
    """Commit the one unit of one run, without a document."""
    sql = (
        "select pgflow.commit_unit(%s::bigint, %s::bigint, %s::int, %s::int, "
        '%s::"char", %s::text, %s::json, %s::json, %s::bigint, %s::int)'
    )

    def read(rows: list[Row]) -> CommitAnswer:
        verdict = rows[0][0]
        return ALL_WELL if verdict is None else CommitAnswer(bad={run_id: verdict})

    return Query(
        sql, (run_id, token, seq, call, kind, name, payload, starts, at_us, worker_id), read
    )
