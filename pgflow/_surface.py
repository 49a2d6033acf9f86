"""Everyday surface of the package `pgflow`, and the modules that hold the rest of it. The package
imports all of it when the first name is asked for.
"""

from pgflow import (
    authority,
    decisions,
    effects,
    entities,
    errors,
    events,
    extensions,
    queues,
    sync,
    updates,
)
from pgflow._client._async.client import AsyncClient
from pgflow._client._async.handles import AsyncRun
from pgflow._client._sync.client import Client
from pgflow._client._sync.handles import Run
from pgflow._flow.body import heartbeat, heartbeat_details
from pgflow._flow.children import Child, SyncChild, run_child, start_child
from pgflow._flow.decorators import Connection, read, step, transaction
from pgflow._flow.dynamic import call
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
from pgflow._flow.run_info import RunInfo, in_workflow, logger, run_info
from pgflow._flow.schedules import schedule
from pgflow._flow.signals import Signal, SyncSignal
from pgflow._flow.step import AsyncStep, Step, SyncStep
from pgflow._flow.timers import sleep
from pgflow._flow.workflow import Workflow, workflow
from pgflow._model.failures import FailedRun
from pgflow._model.kinds import Status
from pgflow._model.messages import Delivery, Message
from pgflow._model.options import MapResult, Retries, Slot, StartOptions
from pgflow._model.pages import Page
from pgflow._model.upcasters import upcaster
from pgflow.app import App, AsyncApp
from pgflow.errors import (
    InvalidArgument,
    KeyConflict,
    PgflowError,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunStuck,
    StepFailed,
)

__all__ = [
    "App", "AsyncApp", "AsyncClient", "AsyncRun", "AsyncStep", "Child", "Client", "Connection",
    "Delivery", "FailedRun", "InvalidArgument", "KeyConflict", "MapResult", "Message", "Page",
    "PgflowError", "Retries", "Run", "RunCancelled", "RunFailed", "RunInfo", "RunNotFound",
    "RunStuck", "Signal", "Slot", "StartOptions", "Status", "Step", "StepFailed", "SyncChild",
    "SyncSignal", "SyncStep", "Workflow", "as_completed", "authority", "because", "call",
    "close_stream", "continue_as_new", "decisions", "deprecate_patch", "effects", "emit",
    "entities", "errors", "events", "extensions", "first_success", "heartbeat", "heartbeat_details",
    "idempotency_key", "in_workflow", "inline", "lock", "logger", "map", "now", "parallel",
    "patched", "queues", "random", "read", "run_child", "run_info", "schedule", "send",
    "set_labels", "set_state", "sleep", "start_child", "step", "sync", "transaction", "upcaster",
    "updates", "uuid", "workflow",
]  # fmt: skip
