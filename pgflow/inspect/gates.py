"""Gates: the inbox of approvers, and the answers so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from pgflow._db.calls import gates
from pgflow._db.query import Query, Row
from pgflow.inspect.listing import COUNTED, EXAMPLES, After, Listing, Order, page
from pgflow.inspect.question import (
    Question,
    Steps,
    all_rows,
    first_row,
    once,
    question,
    select,
    statement,
)


@dataclass(frozen=True)
class GateRow:
    """A gate that waits for an answer. A row of the view ``pgflow.gates``.

    Attributes:
        gate: Key of the gate, for ``answer``.
        key: Key of the run.
        workflow: Name of its workflow.
        name: Name of the gate.
        asked_at: Time of asking.
        expires_at: Time from which no answer counts; None if it never expires.
        approvers: Names or roles that may answer now; empty if anybody may.
        quorum: Number of people who must approve.
        answers: Answers so far, in their order: ``by``, ``verdict``, ``at``, ``reason``, ``to``,
            ``value``, and ``refusal`` if the code could not use the answer.
        request: The exact request, or the last edit of it, as it is stored.
        payload_hash: Its hash, by which an answer is bound to it.
        edited: True if an answer has edited it.
        needs_value: True if an approval must bring a value.
        on_timeout: Verdict when the gate expires.
        escalate: Names or roles to ask next, one after the other.
        decision: Key of the decision that it rests on; None for none.
        why: The reason of that decision.
        evidence: The evidence of that decision.
        path: Keys of the runs above the run and its own, the root first.
        run_id: The number of the generation.
        call: Number of the call.
    """

    gate: str
    key: str
    workflow: str
    name: str
    asked_at: datetime
    expires_at: datetime | None
    approvers: list[str]
    quorum: int
    answers: list[dict[str, Any]]
    request: Any
    payload_hash: str
    edited: bool
    needs_value: bool
    on_timeout: str
    escalate: list[str]
    decision: str | None
    why: str | None
    evidence: Any
    path: list[str]
    run_id: int
    call: int


_GATES: LiteralString = select(GateRow, "from pgflow.gates where")
_OF_TENANT: LiteralString = "case when tenant = %s then true end"
"""Condition on a tenant of which the planner knows nothing: of a tenant with few runs it would look
for these first, among all runs that there are.
"""


@dataclass(frozen=True)
class GateGroup:
    """The open gates of one name in one workflow.

    Attributes:
        workflow: Name of the workflow.
        name: Name of the gates.
        gates: Number of them.
        asked_at: Time at which the oldest was asked.
        expires_at: Time from which the first of them takes no answer; None if none expires.
        oldest: The oldest five.
    """

    workflow: str
    name: str
    gates: int
    asked_at: datetime
    expires_at: datetime | None
    oldest: list[GateRow]


_COUNTS: LiteralString = statement(
    "select workflow, name, count(*) as gates, min(asked_at) as asked_at,"
    " min(expires_at) as expires_at, (array_agg(gate order by asked_at, gate))[:%s] as oldest"
    " from (select workflow, name, gate, asked_at, expires_at from pgflow.gates where",
    _OF_TENANT,
    "order by asked_at, gate limit %s) g group by workflow, name order by asked_at",
)

_FAMILY: LiteralString = (
    "with recursive family as (select run_id from pgflow.runs where key = %s and tenant = %s"
    " union select r.run_id from family f join pgflow.runs r on r.parent_run_id = f.run_id)"
)


def list_gates(
    key: str | None = None,
    *,
    asks: str | None = None,
    workflow: str | None = None,
    name: str | None = None,
    gates: Sequence[str] | None = None,
    tenant: str = "",
    after: After = None,
    limit: int | None = 50,
) -> Question[Listing[GateRow]]:
    """Ask for a page of the open gates, the oldest first.

    Args:
        key: Key of a run; None for all.
        asks: Only gates that this name or role may answer now; None for all.
        workflow: Only gates of this workflow; None for all.
        name: Only gates of this name; None for all.
        gates: Only gates with these keys; None for all.
        tenant: Tenant of the runs.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum gates of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    of: LiteralString = "and key = %s" if key is not None else ""
    by: LiteralString = "and workflow = %s" if workflow is not None else ""
    named: LiteralString = "and name = %s" if name is not None else ""
    these: LiteralString = "and gate = any(%s)" if gates is not None else ""
    may: LiteralString = "and (approvers = '{}' or %s = any(approvers))" if asks is not None else ""
    sql = statement(_GATES, _OF_TENANT, of, by, named, these, may)
    keys = None if gates is None else list(gates)
    given = [value for value in (key, workflow, name, keys, asks) if value is not None]
    order: Order = {"asked_at": datetime.fromisoformat, "gate": str}
    return page(GateRow, sql, (tenant, *given), order, after, limit)


@question
def count_gates(*, tenant: str = "", most: int = COUNTED) -> Steps[list[GateGroup]]:
    """Ask for the number of open gates by workflow and name, the group that waits longest first.

    Args:
        tenant: Tenant of the runs.
        most: Number of the oldest gates that are counted: one more than that says that there are
            further ones.
    """
    groups: list[Row] = yield Query(_COUNTS, (EXAMPLES, tenant, most + 1), list)
    shown = [gate for group in groups for gate in group[5]]
    rows: dict[str, GateRow] = yield Query(
        statement(_GATES, "gate = any(%s)"),
        (shown,),
        lambda found: {row[0]: GateRow(*row) for row in found},
    )
    return [
        GateGroup(workflow, name, gates, asked, expires, [rows[g] for g in oldest if g in rows])
        for workflow, name, gates, asked, expires, oldest in groups
    ]


def list_gates_below(key: str, *, tenant: str = "") -> Question[list[GateRow]]:
    """Ask for the open gates at which a run waits, itself or by runs that it has started; the one
    that waits for longest first.

    Args:
        key: Key of the run.
        tenant: Tenant of it.
    """
    sql = statement(
        _FAMILY, _GATES, "run_id in (select run_id from family) order by asked_at, gate"
    )
    return all_rows(GateRow, sql, key, tenant)


def list_gate_names(key: str, *, tenant: str = "") -> Question[list[str]]:
    """Ask for the names of all gates that a run has asked, itself or by runs that it has started,
    also of those that were answered.

    Args:
        key: Key of the run.
        tenant: Tenant of it.
    """
    sql = statement(
        _FAMILY,
        "select distinct name from pgflow.timeline where event = 'gate_asked'"
        " and run_id = any(array(select run_id from family)) order by name",
    )
    return all_rows(str, sql, key, tenant)


def find_gate(gate: str, *, tenant: str | None = None) -> Question[GateRow | None]:
    """Ask for an open gate by its key; None if none has it.

    Args:
        gate: The key.
        tenant: Only of a run of this tenant; None for any.
    """
    of: LiteralString = "and tenant = %s" if tenant is not None else ""
    sql = statement(_GATES, "gate = %s", of)
    return first_row(GateRow, sql, gate, *([] if tenant is None else [tenant]))


def read_shape(gate: str) -> Question[Any]:
    """Ask for the shape of a value that an approval of an open gate may bring. It is a shape, as
    ``sql/core/shape.sql`` describes it; True if anything fits, or if no open gate has the key.

    Args:
        gate: Key of the gate.
    """
    sql = statement("select shape from pgflow.gates where gate = %s")
    return once(Query(sql, (gate,), lambda rows: rows[0][0] if rows and rows[0][0] else True))


def speaks_for_others() -> Question[bool]:
    """Ask whether the role of the connection may answer gates in the names of people."""
    return once(gates.speaks_for_others())
