"""The parts of a question to the database that describe a run's open calls."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from pgflow._engine.calls import ChildCall, StepCall
from pgflow._engine.effects import EffectCall
from pgflow._engine.flush import Flush, Misfit
from pgflow._model.kinds import Ground, StepKind
from pgflow._model.protocol import (
    Admission,
    ChildRow,
    HoldReason,
    Intent,
    Question,
    QuestionPart,
    RefusedRow,
)
from pgflow.texts import without_secrets_in


def address_of(flush: Flush) -> Question:
    """Return the beginning of every question: run, token, chain and last seq."""
    return {
        "run": flush.run_id,
        "token": flush.token,
        "chain": flush.chain_id,
        "seq": flush.last_seq,
    }


def child_row(call: ChildCall) -> ChildRow:
    """Return a child to start."""
    r = call.request
    return ChildRow(
        call.number,
        r.workflow,
        r.queue,
        r.stored or r.input,
        r.key,
        r.priority,
        r.run_at_us,
        r.timeout_seconds,
        r.labels,
        r.stored_metadata or r.metadata,
        r.close_policy,
        r.version or None,
        r.pool,
        r.budget,
    )


def admission_of(call: StepCall) -> Admission:
    """Return a request for admission. For a step it includes the licence."""
    row: Admission = {"call": call.number, "name": call.name}
    if (admit := call.spec.admit) is not None:
        row["amounts"] = admit.amounts
        if admit.pool is not None:
            row["pool"] = admit.pool
    if call.is_under_hard_pool:
        row["hard"] = True
    if call.spec.effect == StepKind.STEP and not call.is_licensed:
        row["licence"] = [call.number, call.spec.effect, call.name, call.ordinal, call.args_hash]
    return row


def intent_of(call: EffectCall) -> Intent:
    """Return a request for leave to act."""
    agreed = call.agreed
    seconds = None
    if call.ground == Ground.REMEMBERED:
        seconds = agreed.dedup_seconds
    elif call.ground == Ground.ABSENT:
        seconds = agreed.settle_after_seconds
    # A dropped effect is not attempted again: without a key, a believed absence closes it.
    is_keyed = agreed.is_keyed and not (call.is_dropped and call.ground == Ground.ABSENT)
    intent = {
        "call": call.number,
        "name": call.name,
        "key": call.key,
        "args_hash": call.args_hash,
        "ordinal": call.ordinal,
        "request": call.stored or call.request,
        "risk": agreed.risk,
        "code": agreed.code,
        "is_keyed": is_keyed,
        "decision": call.decision,
        "compensates": call.compensates,
        "reads": call.reads,
        "ground": call.ground,
        "seconds": seconds,
        "expects": call.expects,
        "notice": call.notice,
        "is_undo": call.is_undo or None,
        "leave": call.leave,
    }
    return cast("Intent", {name: value for name, value in intent.items() if value is not None})


def owed_detail(owed: list[EffectCall]) -> dict[str, Any]:
    """Return the detail of a stuck run: a message for the person, and name and key of each effect
    to settle.
    """
    by_hand = [call for call in owed if call.is_by_hand]
    doubtful = [call for call in owed if not call.is_by_hand]
    parts = [_request_by_hand(call) for call in by_hand]
    if doubtful:
        keys = ", ".join(call.key for call in doubtful)
        reasons = "".join(f"; {call.notice['why']}" for call in doubtful if call.notice)
        parts.insert(0, f"the outcome of {keys} is unknown: settle it{reasons}")
    return {
        "message": "; ".join(parts),
        "effects": [
            {"effect": call.name, "key": call.key}
            | ({"compensates": call.compensates} if call.is_by_hand else {})
            for call in owed
        ],
    }


def _request_by_hand(call: EffectCall) -> str:
    """Return why only a person can take an effect back, and how to settle it."""
    if call.notice is not None:
        why = call.notice["why"]
    else:
        effect = call.name.removesuffix(".compensate")
        why = f"there is no @{effect}.compensate, so nothing was called"
    return f"take {call.compensates} back by hand, then settle {call.key} as confirmed: {why}"


def refusals(misfits: Collection[Misfit], code_hash: str) -> QuestionPart:
    """Return the messages that this code cannot take, to add to a hold; empty if there are none."""
    return {"refused": [RefusedRow(*m, code_hash) for m in misfits]} if misfits else {}


def deadlock(where: list[str]) -> HoldReason:
    """Return the hold of a run that waits for nothing."""
    message = "the workflow waits for something that nothing can bring"
    return stuck("deadlock", {"message": message, "where": where})


def stuck(reason: str, detail: dict[str, Any], code_hash: str | None = None) -> HoldReason:
    """Return a hold for a person; with a hash, also for a worker with other code."""
    return HoldReason("stuck", reason, code_hash, without_secrets_in(detail), "pgflow")
