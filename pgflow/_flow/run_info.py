"""Facts on a run: for its own code, for interceptors, and in the records of its logger."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pgflow._flow.scope import StepScope, WorkflowScope, current, log_fields
from pgflow.errors import NotInRunError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EffectClass = Literal["read", "step", "transaction", "decision", "effect"]
"""Kind of a step: it says what a retry may do."""


@dataclass(frozen=True)
class RunInfo:
    """Facts on the run of the calling code.

    Attributes:
        key: Its public key.
        workflow: Name of its workflow.
        generation: 1, and one more after each ``continue_as_new``.
        attempt: Number of the claim since the run last made progress.
        labels: Labels given at its start, as the code has changed them since.
        metadata: Data that has travelled from the start.
        tenant: Tenant that it belongs to.
        deadline: Time at which it will be cancelled, if ever.
        is_child: True if another run started it.
        step: In the body of a step: its name.
        step_attempt: In the body of a step: which try this is.
        run_id: Its number in the database.
        root: UUID of its chain, the stem of its idempotency keys; the same in every generation.
        call: In the body of a step: the number of the durable call.
        effect: In the body of a step: ``read``, ``step``,
            ``transaction``, ``decision`` or ``effect``.
        idempotency_key: In the body of a step: the key under which it acts on the outside.
    """

    key: str
    workflow: str
    generation: int
    attempt: int
    labels: dict[str, str]
    metadata: dict[str, Any]
    tenant: str
    deadline: datetime | None
    is_child: bool
    step: str | None = None
    step_attempt: int | None = None
    run_id: int = 0
    root: str = ""
    call: int | None = None
    effect: EffectClass | None = None
    idempotency_key: str | None = None


EFFECTS: dict[str, EffectClass] = {
    "r": "read",
    "s": "step",
    "t": "transaction",
    "d": "decision",
    "e": "effect",
}
"""Effect classes of steps by their letters."""


def run_info() -> RunInfo:
    """Return the facts on the run of this workflow or step; raise NotInRunError outside of one."""
    scope = current.get()
    if scope is None:
        raise NotInRunError("pgflow.run_info() works only in the code of a workflow or step")
    claim = scope.claim
    step = scope if isinstance(scope, StepScope) else None
    return RunInfo(
        key=claim.key,
        workflow=claim.workflow,
        generation=claim.generation,
        attempt=claim.attempt,
        labels=dict(claim.labels),
        metadata=dict(claim.metadata),
        tenant=claim.tenant,
        is_child=claim.parent_run_id is not None,
        deadline=None
        if claim.deadline_us is None
        else EPOCH + timedelta(microseconds=claim.deadline_us),
        run_id=claim.run_id,
        root=claim.root,
        step=None if step is None else step.call.name,
        step_attempt=None if step is None else step.attempt,
        call=None if step is None else step.call.number,
        effect=None if step is None else EFFECTS[step.call.spec.effect],
        idempotency_key=None if step is None else step.key,
    )


def in_workflow() -> bool:
    """Return True if the calling code is that of a workflow: for helpers and adapters that are used
    elsewhere too.

    Returns:
        True in the code of a workflow, replays included;
        False in the body of a step, and outside of runs.
    """
    return isinstance(current.get(), WorkflowScope)


class _RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs with run, step and attempt; silent while a workflow replays."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of the standard library
        scope = current.get()
        if isinstance(scope, WorkflowScope) and (
            scope.execution.history.replaying or scope.execution.code.closing
        ):
            return False
        return super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        scope = current.get()
        extra: dict[str, Any] = dict(kwargs.get("extra") or {})
        if isinstance(scope, StepScope):
            extra |= log_fields(scope.claim, scope.call, scope.attempt)
        elif scope is not None:
            extra |= log_fields(scope.claim)
        return msg, {**kwargs, "extra": extra}


logger = _RunLogger(logging.getLogger("pgflow.run"), {})
"""Logger for the code of workflows and steps: silent on replay; records carry ``run``, ``run_id``,
``workflow``, ``generation`` and, in the body of a step, ``step``, ``call``, ``attempt``
(:data:`pgflow.logs.FIELDS`).
"""
