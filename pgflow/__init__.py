"""pgflow: durable execution with nothing but the Postgres you already have.

The public surface is what this module names. ``pgflow.sync`` holds the twins for sync workflows,
``pgflow.testing`` the testing kit, ``pgflow.sqlalchemy`` and ``pgflow.django`` the integrations.
"""

from pgflow import sync as sync
from pgflow._version import __version__
from pgflow.app import App, AsyncApp
from pgflow.client import Answer, AsyncClient, AsyncRun, Client, Run
from pgflow.context import (
    RunInfo,
    Signal,
    SyncSignal,
    Verdict,
    because,
    charge,
    continue_as_new,
    emit,
    gate,
    heartbeat,
    heartbeat_details,
    idempotency_key,
    logger,
    now,
    owe,
    patched,
    random,
    run_child,
    run_info,
    saga,
    set_state,
    sleep,
    uuid,
)
from pgflow.decorators import Connection, decision, effect, read, step, transaction
from pgflow.errors import (
    BudgetExceeded,
    DefinitionError,
    HasActed,
    InvalidArgument,
    KeyConflict,
    LeaseLost,
    NonDeterminismError,
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
    StepCommitted,
    StepFailed,
    TooManyFailures,
    WrongColourError,
    WrongState,
)
from pgflow.interceptor import Interceptor
from pgflow.many import (
    as_completed,
    map,  # noqa: A004 - the field's word
)
from pgflow.model import (
    Absent,
    Admit,
    Approve,
    Approved,
    Choice,
    Confirmed,
    Decision,
    Escalate,
    Escalated,
    Expired,
    GateRequest,
    MapResult,
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
from pgflow.providers import AsyncTransaction, AsyncTransactionProvider, Transaction, TransactionProvider
from pgflow.step import AsyncEffect, AsyncStep, Step, SyncEffect, SyncStep
from pgflow.workflow import Workflow, schedule, workflow

__all__ = [
    "Absent", "Admit", "Answer", "App", "Approve", "Approved", "AsyncApp", "AsyncClient", "AsyncEffect", "AsyncRun", "AsyncStep",
    "AsyncTransaction", "AsyncTransactionProvider", "BudgetExceeded", "Choice", "Client", "Confirmed", "Connection", "Decision",
    "DefinitionError", "Escalate", "Escalated", "Expired", "GateRequest", "HasActed", "Interceptor", "InvalidArgument", "KeyConflict",
    "LeaseLost", "MapResult", "NonDeterminismError", "NotBuiltError", "NotInRunError", "NotInWorkflowError", "NotStorable",
    "PgflowError", "Reject", "Rejected", "Retries", "Risk", "Run", "RunCancelled", "RunFailed", "RunInfo", "RunNotFound", "RunStuck",
    "SetupError", "Signal", "Slot", "StartOptions", "Status", "Step", "StepCommitted", "StepFailed", "StillUnknown", "SyncEffect",
    "SyncSignal", "SyncStep", "TooManyFailures", "Transaction", "TransactionProvider", "Usage", "Verdict", "Workflow",
    "WrongColourError", "WrongState", "__version__", "as_completed", "because", "charge", "continue_as_new", "decision", "effect",
    "emit", "gate", "heartbeat", "heartbeat_details", "idempotency_key", "logger", "map", "now", "owe", "patched", "random", "read",
    "run_child", "run_info", "saga", "schedule", "set_state", "sleep", "step", "sync", "transaction", "uuid", "workflow",
]  # fmt: skip
