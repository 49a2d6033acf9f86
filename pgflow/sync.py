"""For sync workflows: the twins of what waits. Everything else is a plain call in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, cast, overload

from pgflow._engine.calls import Call, ChildCall
from pgflow._engine.drivers import Race
from pgflow._engine.timers import Timers
from pgflow._flow import dynamic
from pgflow._flow import locks as _locks
from pgflow._flow.authority import gate as _gates
from pgflow._flow.authority.gate import Verdict
from pgflow._flow.children import SyncChild, issue_child
from pgflow._flow.entities import Snapshot, query_sync
from pgflow._flow.events import publish_sync
from pgflow._flow.events import wait_for_event_sync as _wait_for_event
from pgflow._flow.ledgers.saga import give_up_child_sync, sync_saga
from pgflow._flow.many import Tally, check_mapped, of_item
from pgflow._flow.messages import execute_update_sync, send_sync
from pgflow._flow.scope import WorkflowScope, current, sync_scope
from pgflow._flow.serving import serve_sync as _serve_sync
from pgflow._flow.signals import Signal
from pgflow._flow.step import Calls, Step
from pgflow._flow.timers import checked, seconds_of
from pgflow._flow.updates import UpdateHandler
from pgflow._flow.workflow import Workflow
from pgflow._model.decisions import Decision
from pgflow._model.durations import Duration
from pgflow._model.events import Event
from pgflow._model.gates import GateRequest, OnTimeout
from pgflow._model.messages import Delivery
from pgflow._model.options import MapResult, Retries
from pgflow.errors import WrongColourError

S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


def sleep(delay: Duration, *, name: str | None = None) -> None:
    """Sleep durably; see :func:`pgflow.sleep`."""
    scope, thread = sync_scope("pgflow.sync.sleep()", "pgflow.sleep()")
    seconds = seconds_of(delay)
    name = name if name is None else checked(name)
    if seconds == 0:
        return
    call = scope.execution.parts[Timers].issue(seconds, name)
    try:
        thread.block(call)
    except asyncio.CancelledError:
        scope.execution.cancel_call(call)
        raise


def serve(
    state: Any, *, until: Callable[[], bool] | None = None, timeout: Duration | None = None
) -> None:
    """Serve the handlers of the running workflow, one at a time; see
    :func:`pgflow.updates.serve`.
    """
    _serve_sync(state, until=until, timeout=timeout)


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


def send(key: str, signal: Signal[T], value: T) -> Delivery:
    """Send a signal to another run; see :func:`pgflow.send`."""
    return send_sync(key, signal, value)


def execute_update(
    key: str, update: UpdateHandler[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Ask another run for an update, and wait for its answer; see
    :func:`pgflow.updates.execute_update`.
    """
    return execute_update_sync(key, update, *args, **kwargs)


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
    sync_scope("pgflow.sync.gate()", "pgflow.authority.gate()")
    asked = _gates.ask(name, request, answer, approvers, quorum, timeout, on_timeout, escalate)
    return _gates.gate_sync(asked, notify, verify)


def lock(
    key: str,
    *,
    ttl: Duration | None = None,
    shared: bool = False,
    timeout: Duration | None = None,
) -> AbstractContextManager[int]:
    """A block that at most one run at a time is in, of all that name the same key; see
    :func:`pgflow.lock`.
    """
    return _locks.sync_lock(key, ttl, timeout, shared=shared)


def publish(topic: str, payload: Any, *, key: str | None = None) -> int:
    """Publish an event; see :func:`pgflow.events.publish`."""
    return publish_sync(topic, payload, key)


def wait_for_event(
    topic: str,
    match: dict[str, Any] | None = None,
    *,
    key: str | None = None,
    after: Event | int | None = None,
    timeout: Duration | None = None,
) -> Event:
    """Wait durably for an event; see :func:`pgflow.events.wait_for_event`."""
    return _wait_for_event(topic, match, key, after, timeout)


def query(entity: type[S], key: str) -> Snapshot[S]:
    """Read an entity, without a lock; see :func:`pgflow.entities.query`."""
    return query_sync(entity, key)


def saga(
    *,
    goal: str | None = None,
    planner: Step[[Any], Decision[Any]] | None = None,
    steps: Sequence[Step[..., Any]] = (),
    inherits: bool = False,
) -> AbstractContextManager[None]:
    """A block whose effects are taken back, the last first, when an exception leaves it; see
    :func:`pgflow.effects.saga`.
    """
    return sync_saga(goal=goal, planner=planner, steps=steps, inherits=inherits)
