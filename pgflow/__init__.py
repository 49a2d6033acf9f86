"""pgflow: durable execution with nothing but the Postgres you already have.

The public surface is what this module names. ``pgflow.sync`` holds the twins for sync workflows,
``pgflow.testing`` the testing kit, ``pgflow.sqlalchemy`` and ``pgflow.django`` the integrations.
"""

from pgflow import sync as sync
from pgflow._version import __version__
from pgflow.app import App, AsyncApp
from pgflow.client import Answer, AsyncClient, Client
from pgflow.context import (
    Child,
    Signal,
    SyncChild,
    SyncSignal,
    Verdict,
    because,
    charge,
    close_stream,
    continue_as_new,
    deprecate_patch,
    emit,
    gate,
    heartbeat,
    heartbeat_details,
    idempotency_key,
    inline,
    now,
    owe,
    patched,
    random,
    run_child,
    set_labels,
    set_state,
    sleep,
    start_child,
    uuid,
)
from pgflow.decorators import Connection, decision, effect, read, step, transaction
from pgflow.dynamic import call
from pgflow.effect import AsyncEffect, SyncEffect
from pgflow.envelopes import PayloadCodec
from pgflow.errors import (
    BudgetExceeded,
    CodecError,
    DefinitionError,
    Diverged,
    EffectFailed,
    HasActed,
    InvalidArgument,
    KeyConflict,
    LeaseLost,
    NeedsGate,
    NonDeterminismError,
    NotAllowed,
    NotBuiltError,
    NotInRunError,
    NotInWorkflowError,
    NotStorable,
    PgflowError,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunStuck,
    SetupError,
    Stale,
    StepCommitted,
    StepFailed,
    TooManyFailures,
    WorkerFailed,
    WrongColourError,
    WrongState,
)
from pgflow.failures import register_errors
from pgflow.fingerprints import fingerprint
from pgflow.handles import AsyncRun, Run
from pgflow.interceptor import Interceptor
from pgflow.many import (
    as_completed,
    map,  # noqa: A004 - the field's word
)
from pgflow.model import (
    Absent,
    Accepted,
    Admit,
    Approve,
    Approved,
    Choice,
    Confirmed,
    Decision,
    Delivery,
    Escalate,
    Escalated,
    Expired,
    GateRequest,
    MapResult,
    Message,
    Page,
    Ref,
    Reject,
    Rejected,
    Retries,
    Risk,
    Slot,
    StartOptions,
    Status,
    StillUnknown,
    Usage,
)
from pgflow.plan import PlannedCall, PlannedSql, UndoRequest
from pgflow.providers import AsyncTransaction, AsyncTransactionProvider, Transaction, TransactionProvider
from pgflow.runinfo import RunInfo, in_workflow, logger, run_info
from pgflow.saga import saga
from pgflow.step import AsyncStep, Step, SyncStep
from pgflow.upcasters import upcaster
from pgflow.workflow import Workflow, schedule, workflow

__all__ = [
    "Absent", "Accepted", "Admit", "Answer", "App", "Approve", "Approved", "AsyncApp", "AsyncClient", "AsyncEffect", "AsyncRun",
    "AsyncStep", "AsyncTransaction", "AsyncTransactionProvider", "BudgetExceeded", "Child", "Choice", "Client", "CodecError",
    "Confirmed", "Connection", "Decision", "DefinitionError", "Delivery", "Diverged", "EffectFailed", "Escalate", "Escalated",
    "Expired", "GateRequest", "HasActed", "Interceptor", "InvalidArgument", "KeyConflict", "LeaseLost", "MapResult", "Message",
    "NeedsGate", "NonDeterminismError", "NotAllowed", "NotBuiltError", "NotInRunError", "NotInWorkflowError", "NotStorable", "Page",
    "PayloadCodec", "PgflowError", "PlannedCall", "PlannedSql", "Ref", "Reject", "Rejected", "Retries", "Risk", "Run",
    "RunCancelled", "RunFailed", "RunInfo", "RunNotFound", "RunStuck", "SetupError", "Signal", "Slot", "Stale", "StartOptions",
    "Status", "Step", "StepCommitted", "StepFailed", "StillUnknown", "SyncChild", "SyncEffect", "SyncSignal", "SyncStep",
    "TooManyFailures", "Transaction", "TransactionProvider", "UndoRequest", "Usage", "Verdict", "WorkerFailed", "Workflow",
    "WrongColourError", "WrongState", "__version__", "as_completed", "because", "call", "charge", "close_stream", "continue_as_new",
    "decision", "deprecate_patch", "effect", "emit", "fingerprint", "gate", "heartbeat", "heartbeat_details", "idempotency_key",
    "in_workflow", "inline", "logger", "map", "now", "owe", "patched", "random", "read", "register_errors", "run_child", "run_info",
    "saga", "schedule", "set_labels", "set_state", "sleep", "start_child", "step", "sync", "transaction", "upcaster", "uuid",
    "workflow",
]  # fmt: skip
