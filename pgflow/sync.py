"""For sync workflows: the twins of what waits. Everything else is a plain call in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, cast, overload

from pgflow._engine.calls import Call, ChildCall
from pgflow._engine.drivers import Race
from pgflow._flow import dynamic
from pgflow._flow.authority.gate import Verdict, gate_calls
from pgflow._flow.authority.gate import ask as _ask
from pgflow._flow.children import SyncChild, issue_child
from pgflow._flow.entities import query_sync as query
from pgflow._flow.events import publish_sync as publish
from pgflow._flow.events import wait_for_event_sync as wait_for_event
from pgflow._flow.ledgers.saga import give_up_child_sync
from pgflow._flow.ledgers.saga import saga_sync as saga
from pgflow._flow.locks import lock_sync as lock
from pgflow._flow.many import Tally, check_mapped, of_item
from pgflow._flow.messages import execute_update_sync as execute_update
from pgflow._flow.messages import send_sync as send
from pgflow._flow.scope import WorkflowScope, current, sync_scope
from pgflow._flow.serving import serve_sync as serve
from pgflow._flow.step import Calls, Step, follow_sync
from pgflow._flow.timers import sleep_sync as sleep
from pgflow._flow.workflow import Workflow
from pgflow._model.durations import Duration
from pgflow._model.gates import GateRequest, OnTimeout
from pgflow._model.options import MapResult, Retries
from pgflow.errors import WrongColourError

__all__ = [
    "call", "execute_update", "gate", "lock", "map", "publish", "query", "run_child", "saga",
    "send", "serve", "sleep", "start_child", "wait_for_event",
]  # fmt: skip

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


@overload
def call(
    name: str,
    fn: Callable[[*Ts], Coroutine[Any, Any, R]],
    /,
    *args: *Ts,
    returns: Any = None,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
) -> R: ...
@overload
def call(
    name: str,
    fn: Callable[[*Ts], R],
    /,
    *args: *Ts,
    returns: Any = None,
    retries: Retries | int = 3,
    timeout: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
) -> R: ...
def call(name: str, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]  # mypy on TypeVarTuple
    """Call a function as a step with a given name; see :func:`pgflow.call`."""
    step = dynamic.make(name, fn, **options)
    scope = current.get()
    if isinstance(scope, WorkflowScope) and scope.thread is None:
        raise WrongColourError(
            "pgflow.sync.call() is for sync workflows: in this async one, await pgflow.call()"
        )
    return step.sync(*args)


def run_child(workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Start another workflow as a child of this run and wait for its result; see
    :func:`pgflow.run_child`.
    """
    scope, thread = sync_scope("pgflow.sync.run_child()", "pgflow.run_child()")
    call = issue_child(scope, workflow, args, kwargs)
    try:
        thread.block(call)
    except asyncio.CancelledError:
        give_up_child_sync(scope, call)
        raise
    return cast("R", call.waiter.take())  # type: ignore[union-attr]


def start_child(workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> SyncChild[R]:
    """Start another workflow as a child of this run and continue as soon as it exists; see
    :func:`pgflow.start_child`.
    """
    scope, thread = sync_scope("pgflow.sync.start_child()", "pgflow.start_child()")
    call = issue_child(scope, workflow, args, kwargs, waits_for_start=True)
    if call.start is not None:
        try:
            thread.block(call.start)
        except asyncio.CancelledError:
            give_up_child_sync(scope, call)
            raise
        call.start.waiter.take()  # type: ignore[union-attr]
    return SyncChild(scope, call)


def map(  # noqa: A001 - the field's word; users write pgflow.sync.map
    step: Step[[T], R] | Workflow[[T], R],
    items: Iterable[T],
    *,
    max_parallel: int | None = None,
    min_successful: int | None = None,
    tolerated_failures: int = 0,
    tolerated_percent: float | None = None,
    item_name: Callable[[T], str] | None = None,
) -> MapResult[T, R]:
    """Call a step, or run a child workflow, for every item, in parallel; see :func:`pgflow.map`."""
    scope, thread = sync_scope("pgflow.sync.map()", "pgflow.map()")
    check_mapped(step)
    limits = max_parallel, min_successful, tolerated_failures, tolerated_percent
    tally: Tally[T, R] = Tally("map()", list(items), *limits)
    waiting = enumerate(tally.items)
    running: dict[int, tuple[Calls, Call]] = {}
    race = Race()
    try:
        while not tally.enough:
            for index, item in islice(waiting, tally.max_parallel - len(running)):
                calls = _calls_of(scope, of_item(step, item, item_name), item)
                running[index] = calls, next(calls)
                race.enter(index, running[index][1])
            if not running:
                break
            thread.block(race)
            for index in race.take():
                _count(tally, index, running)
                if index in running:
                    race.enter(index, running[index][1])
    finally:
        for calls, call in running.values():
            if isinstance(call, ChildCall):
                give_up_child_sync(scope, call)
            else:
                scope.execution.cancel_call(call)
                with suppress(asyncio.CancelledError):
                    calls.throw(asyncio.CancelledError())
    return tally.result()


def _count(tally: Tally[Any, Any], index: int, running: dict[int, tuple[Calls, Call]]) -> None:
    """Take the answer for an item: its next call, or its outcome if no more follows."""
    calls, call = running.pop(index)
    try:
        try:
            value = call.waiter.take()  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - the calls decide what becomes of it
            running[index] = calls, calls.throw(error)
        else:
            running[index] = calls, calls.send(value)
    except StopIteration as end:
        tally.count(index, None, end.value)
    except Exception as error:  # noqa: BLE001 - an item's error is its outcome
        tally.count(index, error, None)


def _calls_of(scope: WorkflowScope, step: Step[[T], R] | Workflow[[T], R], item: T) -> Calls:
    if isinstance(step, Step):
        return (yield from step.calls(scope, (item,), {}))
    return (yield issue_child(scope, step, (item,), {}))


@overload
def gate(
    name: str,
    request: T,
    *,
    approvers: Sequence[str] = (),
    quorum: int = 1,
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "expire",
    escalate: Sequence[str] = (),
    notify: Step[[GateRequest], Any] | None = None,
    verify: Step[[T], bool] | None = None,
) -> Verdict[T]: ...
@overload
def gate(
    name: str,
    request: Any,
    *,
    answer: type[A],
    approvers: Sequence[str] = (),
    quorum: int = 1,
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "expire",
    escalate: Sequence[str] = (),
    notify: Step[[GateRequest], Any] | None = None,
    verify: Step[[A], bool] | None = None,
) -> Verdict[A]: ...
def gate(
    name: str,
    request: Any,
    *,
    answer: Any = None,
    approvers: Sequence[str] = (),
    quorum: int = 1,
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "expire",
    escalate: Sequence[str] = (),
    notify: Step[[GateRequest], Any] | None = None,
    verify: Step[[Any], bool] | None = None,
) -> Any:
    """Ask for approval and wait for an authorised answer; see :func:`pgflow.authority.gate`."""
    scope, _ = sync_scope("pgflow.sync.gate()", "pgflow.authority.gate()")
    asked = _ask(name, request, answer, approvers, quorum, timeout, on_timeout, escalate)
    return follow_sync(scope, gate_calls(scope, asked, notify, verify))
