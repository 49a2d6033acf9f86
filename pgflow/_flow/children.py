"""Child runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, cast

from pgflow._engine.calls import ChildCall, ChildRequest
from pgflow._engine.children import Children
from pgflow._flow.elsewhere import ELSEWHERE, key_of, request_of
from pgflow._flow.ledgers.handover import take_over
from pgflow._flow.ledgers.saga import give_up_child, innermost
from pgflow._flow.messages import execute_update, execute_update_sync, send, send_sync
from pgflow._flow.run_info import run_info
from pgflow._flow.scope import WorkflowScope, async_scope, sync_scope
from pgflow._flow.signals import Signal
from pgflow._flow.updates import UpdateHandler
from pgflow._flow.workflow import Workflow, check_workflow
from pgflow._model.envelopes import is_hiding
from pgflow._model.kinds import ClosePolicy
from pgflow._model.messages import Delivery
from pgflow._model.options import NO_CLUSTER
from pgflow.errors import InvalidArgument

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


def run_child(
    workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, R]:
    """Start another workflow as a child of this run and wait for its result.

    Raises:
        RunFailed: The child failed; its error is the ``__cause__``.
        RunCancelled: The child was cancelled.
        KeyConflict: ``options(key=...)`` named a run that is not this child.
    """
    scope = async_scope("pgflow.run_child()", "pgflow.sync.run_child()")
    return await_child(scope, workflow, args, kwargs)


async def await_child(
    scope: WorkflowScope, workflow: Workflow[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> R:
    """Start a child run and wait for its result; see :func:`run_child`."""
    call = issue_child(scope, workflow, args, kwargs)
    try:
        return cast("R", await call.waiter)  # type: ignore[misc]
    except asyncio.CancelledError:
        await give_up_child(scope, call)
        raise


def start_child(
    workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, Child[R]]:
    """Start another workflow as a child of this run and continue as soon as it exists. Wait for it
    later with the handle.

    Unlike :func:`run_child` in a task, it returns only when the start is durable. So a child with
    ``options(when_parent_ends="abandon")`` goes on though this run ends at once. Any other is
    cancelled when this run ends.

    Returns:
        The child: ``child.key``, ``await child.result()``, ``child.send()``, ``child.cancel()``.

    Raises:
        KeyConflict: ``options(key=...)`` named a run that is not this child.

    Example::

        report = await pgflow.start_child(render, order)
        await notify(order, report.key)
        url = await report.result()
    """
    scope = async_scope("pgflow.start_child()", "pgflow.sync.start_child()")
    return _start_child(scope, workflow, args, kwargs)


async def _start_child(
    scope: WorkflowScope, workflow: Workflow[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Child[R]:
    call = issue_child(scope, workflow, args, kwargs, waits_for_start=True)
    child: Child[R] = Child(scope, call)
    if call.start is not None:
        try:
            await call.start.waiter  # type: ignore[misc]
        except asyncio.CancelledError:
            await give_up_child(scope, call)
            raise
    return child


class _Child(Generic[R]):
    """A child that has been started, in either colour."""

    def __init__(self, scope: WorkflowScope, call: ChildCall) -> None:
        self._scope = scope
        self._call = call

    def __repr__(self) -> str:
        """As in logs."""
        return f"<{type(self).__name__} {self.key!r}>"

    @property
    def key(self) -> str:
        """The child's public key: by which clients find it, and send it signals."""
        if self._call.name == ELSEWHERE:
            given = json.loads(self._call.request.input)["options"]["key"]
            return key_of(self._call.key, given)
        return self._call.key

    @property
    def workflow(self) -> str:
        """Name of its workflow."""
        return self._call.name

    def cancel(self) -> None:
        """Ask the child to end. Its code may clean up. Its result is then RunCancelled, unless it
        completed first.

        Raises:
            InvalidArgument: It was started with ``when_parent_ends="abandon"``: such a run is a
                client's to cancel.
        """
        if self._call.request.close_policy != ClosePolicy.CANCEL:
            raise InvalidArgument(
                f"child {self.key!r} outlives this run, so it is not this run's to cancel: call "
                f"app.cancel({self.key!r}) in a step"
            )
        self._scope.execution.parts[Children].ask_to_end(self._call)


class Child(_Child[R]):
    """A child that an async workflow has started with :func:`pgflow.start_child`."""

    def __init__(self, scope: WorkflowScope, call: ChildCall) -> None:
        super().__init__(scope, call)
        waiter: Any = call.waiter
        # The parent need not await the child's end.
        waiter.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def result(self) -> R:
        """Wait for the child to end and return its value. You may call it again. Cancelling this
        wait does not cancel the child.

        Raises:
            RunFailed: The child failed; its error is the ``__cause__``.
            RunCancelled: The child was cancelled.
        """
        waiter: Any = self._call.waiter
        return cast("R", await asyncio.shield(waiter))

    async def send(self, signal: Signal[T], value: T) -> Delivery:
        """Send a signal to the child; see :func:`pgflow.send`."""
        return await send(self.key, signal, value)

    async def execute_update(
        self, update: UpdateHandler[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Ask the child for an update, and wait for its answer; see
        :func:`pgflow.updates.execute_update`.
        """
        return await execute_update(self.key, update, *args, **kwargs)


class SyncChild(_Child[R]):
    """A child that a sync workflow has started with ``pgflow.sync.start_child``."""

    def result(self) -> R:
        """Wait for the child to end and return its value; see :meth:`Child.result`."""
        waiter: Any = self._call.waiter
        if not waiter.done():
            _, thread = sync_scope("the result of a child", "its .result()")
            thread.block(self._call)
        return cast("R", waiter.take())

    def send(self, signal: Signal[T], value: T) -> Delivery:
        """Send a signal to the child; see :func:`pgflow.send`."""
        return send_sync(self.key, signal, value)

    def execute_update(
        self, update: UpdateHandler[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Ask the child for an update, and wait for its answer; see
        :func:`pgflow.updates.execute_update`.
        """
        return execute_update_sync(self.key, update, *args, **kwargs)


def issue_child(
    scope: WorkflowScope,
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    waits_for_start: bool = False,
) -> ChildCall:
    """Issue the start of a child run. This run compensates its effects once it has completed."""
    if not isinstance(workflow, Workflow):
        check_workflow(workflow, "start_child()" if waits_for_start else "run_child()")
    call = scope.execution.parts[Children].issue(
        child_request(scope, workflow, args, kwargs),
        workflow.result_codec,
        workflow.errors_of(scope.app_errors),
        waits_for_start,
    )
    call.take_over = partial(take_over, scope, innermost.get())
    return call


def child_request(
    scope: WorkflowScope,
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> ChildRequest:
    """A child run as the database is asked for it."""
    options = workflow.start_options
    for interceptor in scope.interceptors:
        options = interceptor.start_child(run_info(), workflow.name, options)
    if options.if_taken != "match":
        raise InvalidArgument(
            f"a child is this run's own: if_taken={options.if_taken!r} is for runs that a client "
            "or a step starts"
        )
    if options.times_key:
        raise InvalidArgument(
            "a child is this run's own: key_for=, debounce=, max_wait= and collect= are for runs "
            "that a client or a step starts"
        )
    text = workflow.encode_input(args, kwargs, is_hidden=is_hiding(scope.claim.envelopes))
    is_elsewhere = options.is_placed
    if is_elsewhere:
        if not scope.claim.is_in_cluster:
            raise InvalidArgument(NO_CLUSTER)
        text = json.dumps(request_of(workflow.name, text, options), ensure_ascii=False)
        options = replace(options, key=None, queue=ELSEWHERE, labels={}, timeout=None, version="")
    return ChildRequest(
        workflow=ELSEWHERE if is_elsewhere else workflow.name,
        queue=options.queue,
        input=text,
        key=options.key,
        priority=options.priority,
        run_at_us=None if options.run_at is None else int(options.run_at.timestamp() * 1e6),
        timeout_seconds=None if options.timeout is None else options.timeout.total_seconds(),
        labels=options.labels or None,
        metadata={**scope.execution.claim.metadata, **options.metadata} or None,
        close_policy=ClosePolicy.CANCEL
        if options.when_parent_ends == "cancel"
        else ClosePolicy.ABANDON,
        version=options.version,
        aliases=() if is_elsewhere else workflow.aliases,
        pool=options.pool,
        budget=options.budget,
    )
