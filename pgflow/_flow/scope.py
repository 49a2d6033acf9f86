"""The scope in which code runs: in a workflow, in the body of a step, or in neither.

The scope is ambient - a context variable - because helpers and callbacks of frameworks cannot
thread an argument through. Each execution sets it in a fresh context of its own, and each body in a
copy of the worker's, so no scope leaks into another run.
"""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pgflow._engine.calls import Call, StepCall
from pgflow._engine.drivers import ThreadDriver
from pgflow._engine.execution import Execution
from pgflow._engine.steps import Steps
from pgflow._model.budgets import Spent
from pgflow._model.claims import Claim
from pgflow._model.exceptions import ErrorClasses
from pgflow.errors import NotInRunError, WrongColourError


@dataclass(eq=False)
class WorkflowScope:
    """The code of a workflow."""

    execution: Execution
    app_errors: tuple[type[Exception], ...]
    definition: Any
    thread: ThreadDriver | None = None
    """The driver of a sync workflow; None in an async one."""
    thread_id: int | None = None
    is_check: bool = False
    """True if a recorded run is replayed only to see if the code repeats it."""
    interceptors: Sequence[Any] = ()
    effects: list[Any] = field(default_factory=list)
    """Effects outside of any saga block, with their calls, for the run itself to take back: those
    of earlier generations, then its own.
    """
    decisions: dict[str, Any] = field(default_factory=dict)
    """Decisions on which something was asked to rest, by their keys: why an effect was done."""
    blocks: Sequence[Any] = ()
    """The saga blocks that are open."""
    closed_streams: frozenset[str] = frozenset()
    """Streams that the code has closed."""
    steps: Steps | None = None
    """The engine's part of them, once the code has asked for one."""
    is_last: bool = False
    """True if no generation may follow: this one has taken back what others did."""

    @property
    def claim(self) -> Claim:
        """The run."""
        return self.execution.claim

    async def wait(self, call: Call) -> Any:
        """Return what a call of async code answers. A cancellation gives the call up."""
        try:
            return await call.waiter  # type: ignore[misc]
        except asyncio.CancelledError:
            self.execution.cancel_call(call)
            raise

    def block(self, call: Call) -> Any:
        """Return what a call of sync code answers. A cancellation gives the call up."""
        assert self.thread is not None
        try:
            self.thread.block(call)
        except asyncio.CancelledError:
            self.execution.cancel_call(call)
            raise
        return call.waiter.take()  # type: ignore[union-attr]


class Reporter(Protocol):
    """Receiver of the reports of a running step's body."""

    def beat(self, scope: StepScope, details: Any) -> None:
        """The body is alive, and has come so far."""

    def send_emitted(self, scope: StepScope) -> None:
        """The body has emitted something."""


class StepScope:
    """The body of a step. Most need nothing but the first attributes: the others are of the class
    until they are set, since a scope is made for each body.

    Attributes:
        claim: The run.
        execution: Its activation.
        call: The call.
        attempt: Number of the try, from 1.
        last_details: The last word of the try before.
        chains_to_wake: Chains that the transaction has given a reason to look.
        lanes_made_ready: Lanes in which it has made runs ready.
        connection: That of the transaction.
        transaction: The transaction, as its provider has opened it.
        transaction_is_sync: True if it is of a sync library.
        drafts: Takes what the body emits to those who read along; made by its first emit.
        emitted: Values that this try has emitted, as (stream, JSON text, whether it is kept).
        try_id: Made by its first emit.
    """

    last_details: Any = None
    chains_to_wake: tuple[int, ...] = ()
    lanes_made_ready: frozenset[int] = frozenset()
    connection: Any = None
    transaction: Any = None
    transaction_is_sync: bool = False
    drafts: Any = None
    try_id: str = ""

    def __init__(
        self, execution: Execution, call: StepCall, attempt: int, reporter: Reporter
    ) -> None:
        self.claim = execution.claim
        self.execution = execution
        self.call = call
        self.attempt = attempt
        self.emitted: list[tuple[str, str, bool]] = []
        self._reporter = reporter

    def beat(self, details: Any) -> None:
        """Report that the body is alive, with its progress."""
        self._reporter.beat(self, details)

    def emit(self, stream: str, text: str, *, durable: bool = True) -> None:
        """Add a value that the body emits: a stream, and the value as JSON text."""
        if not self.try_id:
            self.try_id = uuid.uuid4().hex[:16]
        self.emitted.append((stream, text, durable))
        self._reporter.send_emitted(self)

    def charge(self, spent: Spent) -> None:
        """Add a charge of the body, which counts whatever the outcome of the attempt."""
        if self.call.charges is None:
            self.call.charges = []
        self.call.charges.append(spent)

    def begin_try(self) -> None:
        """Begin a try: drop the values that an earlier one emitted."""
        self.emitted, self.try_id = [], ""

    def succeeded(self) -> None:
        """Hand the values that this try emitted to the call, where they count."""
        self.call.try_id = self.try_id
        self.call.emitted = tuple(
            (stream, text if is_kept else None) for stream, text, is_kept in self.emitted
        )

    @property
    def key(self) -> str:
        """Idempotency key of the call."""
        if isinstance(self.call.ordinal, str):
            return self.call.ordinal
        return f"{self.claim.stem}/{self.call.name}/{self.call.ordinal}"


resting: contextvars.ContextVar[tuple[str, str | int | None] | None] = contextvars.ContextVar(
    "pgflow_because", default=None
)
"""The decision, and its item, that the next calls rest on: ``with pgflow.because(...)``."""


class Held(NamedTuple):
    """A lock held by the code."""

    key: str
    fence: int


locked: contextvars.ContextVar[tuple[Held, ...]] = contextvars.ContextVar(
    "pgflow_locks", default=()
)
"""Locks of the enclosing blocks, the outermost first."""

Scope = WorkflowScope | StepScope

current: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("pgflow_scope", default=None)


def variables() -> tuple[tuple[contextvars.ContextVar[Any], Any], ...]:
    """The context variables of the code that calls, without pgflow's own. A context would refer to
    the run, and that to its calls.
    """
    context = contextvars.copy_context()
    if len(context) == (current in context) + (resting in context) + (locked in context):
        return ()
    return tuple(
        (var, value)
        for var, value in context.items()
        if var is not current and var is not resting and var is not locked
    )


def workflow_scope(what: str) -> WorkflowScope:
    """The workflow whose code calls, or NotInRunError."""
    scope = current.get()
    if isinstance(scope, WorkflowScope):
        return scope
    if scope is None:
        raise NotInRunError(f"{what} works only in the code of a workflow")
    raise NotInRunError(
        f"{what} works in the code of a workflow, not in the body of step {scope.call.name!r}"
    )


def async_scope(what: str, twin: str) -> WorkflowScope:
    """Return the scope of the calling async workflow. In a sync one, raise an error that names
    ``twin``.
    """
    scope = current.get()
    if not isinstance(scope, WorkflowScope):
        scope = workflow_scope(what)
    if scope.thread is not None:
        raise WrongColourError(f"{what} is for async workflows: in this sync one, call {twin}")
    return scope


def sync_scope(what: str, twin: str) -> tuple[WorkflowScope, ThreadDriver]:
    """Return the scope and driver of the calling sync workflow. In an async one, raise an error
    that names ``twin``.
    """
    scope = workflow_scope(what)
    if scope.thread is None:
        raise WrongColourError(f"{what} is for sync workflows: in this async one, await {twin}")
    return scope, scope.thread


def step_scope_of(connection: Any) -> StepScope | None:
    """The transactional step whose own connection this is, if the caller is in one."""
    scope = current.get()
    return scope if isinstance(scope, StepScope) and scope.connection is connection else None


def log_fields(
    claim: Claim, call: StepCall | None = None, attempt: int | None = None
) -> dict[str, Any]:
    """The attributes of a log record about a run, and about a step of it;
    :data:`pgflow.logs.FIELDS`.
    """
    fields: dict[str, Any] = {
        "run": claim.key,
        "run_id": claim.run_id,
        "workflow": claim.workflow,
        "generation": claim.generation,
    }
    if call is not None:
        fields |= {
            "step": call.name,
            "call": call.number,
            "attempt": call.failed_attempts + 1 if attempt is None else attempt,
        }
    return fields


def known_errors(scope: WorkflowScope, *more: tuple[type[Exception], ...]) -> ErrorClasses:
    """The classes as which errors may be rebuilt here."""
    return ErrorClasses(scope.app_errors, *more)
