"""Everything that the package `pgflow` offers, imported: the package imports it when the first name
is asked for.
"""

from pgflow import sync
from pgflow._client._async.client import AsyncClient
from pgflow._client._async.handles import AsyncRun
from pgflow._client._async.updates import AsyncSentUpdate
from pgflow._client._sync.client import Client
from pgflow._client._sync.handles import Run
from pgflow._client._sync.updates import SentUpdate
from pgflow._flow.authority.budget import charge
from pgflow._flow.authority.gate import Verdict, gate
from pgflow._flow.authority.obligation import discharge, owe, transfer, waive
from pgflow._flow.body import heartbeat, heartbeat_details
from pgflow._flow.children import Child, SyncChild, run_child, start_child
from pgflow._flow.decorators import Connection, decision, effect, read, step, transaction
from pgflow._flow.dynamic import call
from pgflow._flow.entities import Snapshot, Update, entity, query, update
from pgflow._flow.events import publish, wait_for_event
from pgflow._flow.interceptor import Interceptor, replaying
from pgflow._flow.ledgers.effect import AsyncEffect, SyncEffect
from pgflow._flow.ledgers.saga import saga
from pgflow._flow.ledgers.undo_plan.propose import PlannedCall, UndoRequest
from pgflow._flow.locks import lock
from pgflow._flow.many import as_completed, first_success, map, parallel  # noqa: A004
from pgflow._flow.messages import send
from pgflow._flow.notes import (
    because,
    close_stream,
    continue_as_new,
    deprecate_patch,
    emit,
    idempotency_key,
    inline,
    now,
    patched,
    random,
    set_labels,
    set_state,
    uuid,
)
from pgflow._flow.operations import operation
from pgflow._flow.relays import Relay, Sink, TryLater, Undeliverable
from pgflow._flow.run_info import RunInfo, in_workflow, logger, run_info
from pgflow._flow.schedules import schedule
from pgflow._flow.signals import Signal, SyncSignal
from pgflow._flow.step import AsyncStep, Step, SyncStep
from pgflow._flow.timers import sleep
from pgflow._flow.triggers import Change, on
from pgflow._flow.updates import BoundUpdate, UpdateHandler, serve
from pgflow._flow.workflow import Workflow, workflow
from pgflow._model.batches import BatchCount
from pgflow._model.budgets import Admit, Pool
from pgflow._model.decisions import Choice, Decision, Usage
from pgflow._model.effects import Absent, Accepted, Confirmed, Ref, Risk, StillUnknown
from pgflow._model.envelopes import PayloadCodec
from pgflow._model.events import Event
from pgflow._model.exceptions import register_errors
from pgflow._model.failures import FailedRun
from pgflow._model.fingerprints import fingerprint
from pgflow._model.gates import (
    Answer,
    Approve,
    Approved,
    Escalate,
    Escalated,
    Expired,
    GateRequest,
    OpenGate,
    Reject,
    Rejected,
    TakenOver,
    TakeOver,
)
from pgflow._model.kinds import Status
from pgflow._model.messages import Delivery, Message
from pgflow._model.obligations import Obligation
from pgflow._model.operations import Operation
from pgflow._model.options import MapResult, Retries, Slot, StartOptions
from pgflow._model.pages import Page
from pgflow._model.queues import Backlog, Queue, QueueRules
from pgflow._model.upcasters import upcaster
from pgflow._transactions.provider import (
    AsyncTransaction,
    AsyncTransactionProvider,
    Transaction,
    TransactionProvider,
)
from pgflow.app import App, AsyncApp
from pgflow.errors import (
    BudgetExceeded,
    CodecError,
    DefinitionError,
    Diverged,
    EffectFailed,
    GateClosed,
    GateRejected,
    HasActed,
    InvalidArgument,
    InvalidLink,
    InvalidSignature,
    KeyConflict,
    LeaseLost,
    LockLost,
    LockRefused,
    MissingGrant,
    NeedsGate,
    NonDeterminismError,
    NotAllowed,
    NotInRunError,
    NotInWorkflowError,
    NotStorable,
    PayloadChanged,
    PgflowError,
    PoolNotFound,
    RelayNotFound,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunStuck,
    ScheduleNotFound,
    SetupError,
    Stale,
    StepCommitted,
    StepFailed,
    TooManyFailures,
    UpdateFailed,
    UpdateRefused,
    UpdateRejected,
    VersionConflict,
    WorkerFailed,
    WrongColourError,
    WrongState,
)

__all__ = [
    "Absent", "Accepted", "Admit", "Answer", "App", "Approve", "Approved", "AsyncApp",
    "AsyncClient", "AsyncEffect", "AsyncRun", "AsyncSentUpdate", "AsyncStep", "AsyncTransaction",
    "AsyncTransactionProvider", "Backlog", "BatchCount", "BoundUpdate", "BudgetExceeded", "Change",
    "Child", "Choice", "Client", "CodecError", "Confirmed", "Connection", "Decision",
    "DefinitionError", "Delivery", "Diverged", "EffectFailed", "Escalate", "Escalated", "Event",
    "Expired", "FailedRun", "GateClosed", "GateRejected", "GateRequest", "HasActed", "Interceptor",
    "InvalidArgument", "InvalidLink", "InvalidSignature", "KeyConflict", "LeaseLost", "LockLost",
    "LockRefused", "MapResult", "Message", "MissingGrant", "NeedsGate", "NonDeterminismError",
    "NotAllowed", "NotInRunError", "NotInWorkflowError", "NotStorable", "Obligation", "OpenGate",
    "Operation", "Page", "PayloadChanged", "PayloadCodec", "PgflowError", "PlannedCall",
    "Pool", "PoolNotFound", "Queue", "QueueRules", "Ref", "Reject", "Rejected",
    "Relay", "RelayNotFound", "Retries", "Risk", "Run", "RunCancelled", "RunFailed", "RunInfo",
    "RunNotFound", "RunStuck", "ScheduleNotFound", "SentUpdate", "SetupError", "Signal", "Sink",
    "Slot", "Snapshot", "Stale", "StartOptions", "Status", "Step", "StepCommitted", "StepFailed",
    "StillUnknown", "SyncChild", "SyncEffect", "SyncSignal", "SyncStep", "TakeOver", "TakenOver",
    "TooManyFailures", "Transaction", "TransactionProvider", "TryLater", "Undeliverable",
    "UndoRequest", "Update", "UpdateFailed", "UpdateHandler", "UpdateRefused", "UpdateRejected",
    "Usage", "Verdict", "VersionConflict", "WorkerFailed", "Workflow", "WrongColourError",
    "WrongState", "as_completed", "because", "call", "charge", "close_stream",
    "continue_as_new", "decision", "deprecate_patch", "discharge", "effect", "emit", "entity",
    "fingerprint", "first_success", "gate", "heartbeat", "heartbeat_details", "idempotency_key",
    "in_workflow", "inline", "lock", "logger", "map", "now", "on", "operation", "owe", "parallel",
    "patched", "publish", "query", "random", "read", "register_errors", "replaying", "run_child",
    "run_info", "saga", "schedule", "send", "serve", "set_labels", "set_state", "sleep",
    "start_child", "step", "sync", "transaction", "transfer", "upcaster", "update", "uuid",
    "wait_for_event", "waive", "workflow",
]  # fmt: skip
