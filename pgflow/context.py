"""The functions for the code of workflows and steps, and the types that they return.

Functions that wait (``sleep``, ``run_child``, ``map``, ``gate``) are coroutines for async workflows;
their twins for sync ones are in :mod:`pgflow.sync`. All others are plain calls in both colours.
"""

from __future__ import annotations

import asyncio
import json
import math
import uuid as uuid_module
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, Literal, Never, ParamSpec, TypeVar, cast, overload

from pgflow._engine.calls import ChildCall, ChildRequest
from pgflow._engine.host import ContinueAsNew
from pgflow._engine.loop import inlining
from pgflow._scope import (
    StepScope,
    WorkflowScope,
    async_scope,
    current,
    known_errors,
    resting,
    sync_scope,
    workflow_scope,
)
from pgflow.carry import take_over
from pgflow.durations import Duration, duration
from pgflow.envelopes import is_envelope, seal_text
from pgflow.errors import InvalidArgument, NotBuiltError, NotInRunError, NotStorable, WrongState
from pgflow.model import Approved, Decision, Escalated, Expired, GateRequest, Rejected, is_name
from pgflow.runinfo import EPOCH, run_info
from pgflow.saga import check_carried, give_up_child
from pgflow.step import Step, resting_on
from pgflow.unbuilt import declared_only
from pgflow.units import MAX_LABELS_BYTES, relabelled
from pgflow.values import ENVELOPE, MAX_BYTES, codec_for, encode_plain
from pgflow.workflow import Workflow

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")

Verdict = Approved[T] | Rejected | Escalated | Expired
"""Answer of a gate."""


# ---------------------------------------------------------------- waiting


# What is awaited asks for its scope when it is called: sync code, which never awaits, is told of the twin too.


def sleep(delay: Duration) -> Coroutine[Any, Any, None]:
    """Sleeps durably: the wait goes on over crashes and deploys, and holds nothing while it lasts.

    Args:
        delay: Time to sleep; a number means seconds.
    """
    async_scope("pgflow.sleep()", "pgflow.sync.sleep()")
    return asyncio.sleep(seconds_of(delay))


def seconds_of(delay: Duration) -> float:
    """A duration in seconds; refuses one that is not a duration."""
    return duration(delay, "a delay").total_seconds()


def run_child(workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
    """Starts another workflow as a child of this run and waits for its result.

    Raises:
        RunFailed: The child failed; its error is the ``__cause__``.
        RunCancelled: The child was cancelled.
        KeyConflict: ``options(key=...)`` named a run that is not this child.
    """
    scope = async_scope("pgflow.run_child()", "pgflow.sync.run_child()")
    return _run_child(scope, workflow, args, kwargs)


async def _run_child(scope: WorkflowScope, workflow: Workflow[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    call = issue_child(scope, workflow, args, kwargs)
    try:
        return cast("R", await call.waiter)  # type: ignore[misc]
    except asyncio.CancelledError:
        await give_up_child(scope, call)
        raise


def start_child(workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Child[R]]:
    """Starts another workflow as a child of this run and goes on as soon as it exists: with a handle, by which it is waited for later.

    Unlike :func:`run_child` in a task, it returns only when the start is durable. So a child with
    ``options(when_parent_ends="abandon")`` goes on though this run ends at once. Any other is cancelled when this run ends.

    Returns:
        The child: ``child.key``, ``await child.result()``, ``child.cancel()``.

    Raises:
        KeyConflict: ``options(key=...)`` named a run that is not this child.

    Example::

        report = await pgflow.start_child(render, order)
        await notify(order, report.key)
        url = await report.result()
    """
    scope = async_scope("pgflow.start_child()", "pgflow.sync.start_child()")
    return _start_child(scope, workflow, args, kwargs)


async def _start_child(scope: WorkflowScope, workflow: Workflow[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Child[R]:
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
        return self._call.key

    @property
    def workflow(self) -> str:
        """Name of its workflow."""
        return self._call.name

    def cancel(self) -> None:
        """Asks the child to end: its code may clean up. Its result is then RunCancelled, unless it was faster.

        Raises:
            InvalidArgument: It was started with ``when_parent_ends="abandon"``: such a run is a client's to cancel.
        """
        if self._call.request.close_policy != "c":
            raise InvalidArgument(
                f"child {self.key!r} outlives this run, so it is not this run's to cancel: call app.cancel({self.key!r}) in a step"
            )
        self._scope.execution.ask_to_end(self._call)


class Child(_Child[R]):
    """A child that an async workflow has started with :func:`pgflow.start_child`."""

    def __init__(self, scope: WorkflowScope, call: ChildCall) -> None:
        super().__init__(scope, call)
        waiter: Any = call.waiter
        waiter.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever starts a child need not ask how it ended

    async def result(self) -> R:
        """Waits for the child to end and returns its value. It may be asked for again. Giving up this wait does not cancel the child.

        Raises:
            RunFailed: The child failed; its error is the ``__cause__``.
            RunCancelled: The child was cancelled.
        """
        waiter: Any = self._call.waiter
        return cast("R", await asyncio.shield(waiter))


class SyncChild(_Child[R]):
    """A child that a sync workflow has started with ``pgflow.sync.start_child``."""

    def result(self) -> R:
        """Waits for the child to end and returns its value; see :meth:`Child.result`."""
        waiter: Any = self._call.waiter
        if not waiter.done():
            _, thread = sync_scope("the result of a child", "its .result()")
            thread.block([self._call])
        return cast("R", waiter.take())


def issue_child(
    scope: WorkflowScope, workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, waits_for_start: bool = False
) -> ChildCall:
    """Asks for a child run. What it has done is this run's to take back once it has completed."""
    call = scope.execution.issue_child(
        child_request(scope, workflow, args, kwargs), workflow.result_codec, known_errors(scope, workflow.raises), waits_for_start
    )
    call.take_over = take_over(scope)
    return call


def child_request(scope: WorkflowScope, workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ChildRequest:
    """A child run as the database is asked for it."""
    workflow.check_built()
    options = workflow.start_options
    for interceptor in scope.interceptors:
        options = interceptor.start_child(run_info(), workflow.name, options)
    if options.if_taken != "match":
        raise InvalidArgument(f"a child is this run's own: if_taken={options.if_taken!r} is for runs that a client or a step starts")
    return ChildRequest(
        workflow=workflow.name,
        queue=options.queue,
        input=workflow.encode_input(args, kwargs),
        key=options.key,
        priority=options.priority,
        run_at_us=None if options.run_at is None else int(options.run_at.timestamp() * 1e6),
        timeout_seconds=None if options.timeout is None else options.timeout.total_seconds(),
        labels=options.labels or None,
        metadata={**scope.claim.metadata, **options.metadata} or None,
        close_policy="c" if options.when_parent_ends == "cancel" else "a",
        version=options.version,
        aliases=workflow.aliases,
    )


def _patience(name: str, timeout: Duration | None) -> timedelta | None:
    """Return the time limit of a wait for a signal, None for none; a time that has passed leaves zero."""
    return duration(timeout, f"timeout of a wait for signal {name!r}", least_seconds=-math.inf)


class SyncSignal(Generic[T]):
    """A signal as a sync workflow waits for it."""

    def __init__(self, signal: Signal[T]) -> None:
        self._signal = signal

    def wait(self, *, timeout: Duration | None = None) -> T:
        """Waits for the next message of this name; TimeoutError if none comes in time."""
        scope, thread = sync_scope(f"signal {self._signal.name!r}.sync.wait()", "its .wait()")
        call = scope.execution.issue_signal(self._signal.name, self._signal.codec, _patience(self._signal.name, timeout))
        try:
            thread.block([call])
        except asyncio.CancelledError:
            scope.execution.cancel_call(call)
            raise
        return cast("T", call.waiter.take())  # type: ignore[union-attr]


class Signal(Generic[T]):
    """A typed, durable message to a run: each one sent is taken by exactly one wait, in order.

    Args:
        name: Its name; senders and receivers meet by it.
        type: Class of the payload.

    Example::

        paid = Signal("paid", Payment)
        payment = await paid.wait(timeout=timedelta(days=3))   # in the workflow
        await app.send("order-1", paid, Payment(...))          # anywhere else
    """

    def __init__(self, name: str, type: type[T]) -> None:  # noqa: A002 - the word users write
        if not is_name(name):
            raise InvalidArgument(f"the name of a signal must be a text of 1 to 255 bytes without NUL, not {name!r}")
        self.name = name
        self.type = type
        self.codec = codec_for(type)

    def wait(self, *, timeout: Duration | None = None) -> Coroutine[Any, Any, T]:
        """Waits for the next message of this name.

        Args:
            timeout: Give up after this long; a later message stays for the next wait.

        A message whose payload does not fit the type is not taken: the run is stuck, reason ``signal``, until somebody drops, replaces
        or requeues it (``pgflow messages``).

        Raises:
            TimeoutError: None came in time.
        """
        return self._wait(async_scope(f"signal {self.name!r}.wait()", "its .sync.wait()"), timeout)

    async def _wait(self, scope: WorkflowScope, timeout: Duration | None) -> T:
        call = scope.execution.issue_signal(self.name, self.codec, _patience(self.name, timeout))
        try:
            return cast("T", await call.waiter)  # type: ignore[misc]
        except asyncio.CancelledError:
            scope.execution.cancel_call(call)
            raise

    @property
    def sync(self) -> SyncSignal[T]:
        """The same signal for sync workflows."""
        return SyncSignal(self)


@overload
async def gate(
    name: str, request: T, *, approvers: Sequence[str] = (), quorum: int = 1, timeout: Duration | None = None,
    on_timeout: Literal["expire", "reject", "escalate", "approve"] = "expire", notify: Step[[GateRequest], Any] | None = None,
) -> Verdict[T]: ...
@overload
async def gate(
    name: str, request: Any, *, answer: type[A], approvers: Sequence[str] = (), quorum: int = 1, timeout: Duration | None = None,
    on_timeout: Literal["expire", "reject", "escalate", "approve"] = "expire", notify: Step[[GateRequest], Any] | None = None,
) -> Verdict[A]: ...
@declared_only("gates")
async def gate(name: str, request: Any, **options: Any) -> Any:  # noqa: ARG001 - the surface stands, the gate does not
    """Waits for an authorised answer. Declared now; gates are not built yet."""
    raise NotBuiltError(f"gates are not built yet: gate({name!r})")


# ---------------------------------------------------------------- what a run says and is told


def now() -> datetime:
    """The time, on the database's clock: when the last outcome happened. The same on every replay; never goes back."""
    scope = workflow_scope("pgflow.now()")
    return EPOCH + timedelta(microseconds=scope.execution.now_us())


def random() -> float:
    """A random number between 0 and 1 that a replay draws again."""
    return workflow_scope("pgflow.random()").execution.random.random()


def uuid() -> uuid_module.UUID:
    """A random UUID that a replay makes again."""
    return workflow_scope("pgflow.uuid()").execution.uuid()


def patched(id: str) -> bool:  # noqa: A002 - the word of the surface
    """Return True to take the new side of a code change; False only for runs that passed here before the change.

    Args:
        id: Name of the change.
    """
    return workflow_scope("pgflow.patched()").execution.patched(id)


def deprecate_patch(id: str) -> None:  # noqa: A002 - the word of the surface
    """Takes the place of ``patched(id)`` once no open run can take its old side: the new side is taken without a branch.

    Runs that hold the marker of ``patched`` fit. New runs get one that code without this call passes over, and code that
    still calls ``patched`` - workers not yet deployed, or a step back - reads as the new side. When `pgflow patches` says that it is
    safe, the call can go.

    Args:
        id: Name of the change.
    """
    workflow_scope("pgflow.deprecate_patch()").execution.deprecate_patch(id)


def set_state(**state: Any) -> None:
    """Publishes values by name, readable with ``run.state()`` once durable; a later value replaces an earlier one."""
    scope = workflow_scope("pgflow.set_state()")
    text = encode_plain(state, "the state of a run")
    if ENVELOPE in text and (taken := [name for name, value in json.loads(text).items() if is_envelope(value)]):
        raise NotStorable(f"{taken[0]}= of set_state() begins with the key '$codec' and would be taken for an encoded value: rename it")
    scope.execution.set_state(text)


def set_labels(**labels: str | None) -> None:
    """Changes labels of this run, by which it is found in ``pgflow.runs`` and by ``pgflow list --label``; others stay.

    Durable with what the run does next. A run that begins with the journal of this one, as by a rewind, has the labels of then.

    Args:
        labels: Names and values; None takes a label away.

    Raises:
        InvalidArgument: A value is no string, or all labels together are longer than 16 KiB.
    """
    scope = workflow_scope("pgflow.set_labels()")
    for name, value in labels.items():
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(f"label {name!r} must be a string, or None to take it away, not {value!r}")
    text = encode_plain(labels, "labels of a run")
    size = len(json.dumps(relabelled(scope.claim.labels, labels), ensure_ascii=False).encode())
    if size > MAX_LABELS_BYTES:
        raise InvalidArgument(f"labels are {size} bytes long; the limit is 16 KiB")
    if labels:
        scope.execution.set_labels(text)


def emit(stream: str, value: Any) -> None:
    """Appends a value to an output stream of this run, readable with ``run.stream(name)`` once durable.

    In the body of a step it counts if the step's try succeeds, and is durable together with its result. Readers who ask for
    ``run.stream(name, live=True)`` get it while the body runs. What a try that fails has emitted is void.

    Args:
        stream: Name of the stream.
        value: Anything JSON.

    Raises:
        WrongState: :func:`close_stream` has ended it.
    """
    scope: WorkflowScope | StepScope | None = current.get()
    if not isinstance(scope, StepScope):
        scope = workflow_scope("pgflow.emit()")
    if not is_name(stream):
        raise InvalidArgument(f"the name of a stream must be a text of 1 to 255 bytes without NUL, not {stream!r}")
    text = encode_plain(value, f"a value of stream {stream!r}")
    if isinstance(scope, StepScope):
        scope.emit(stream, seal_text(scope.claim.envelopes, text, f"a value of stream {stream!r}"))
        return
    if stream in scope.closed_streams:
        raise WrongState(f"stream {stream!r} of this run is closed: emit before close_stream({stream!r}), or to another stream")
    scope.execution.emit(stream, text)


def close_stream(stream: str) -> None:
    """Ends an output stream of this run: readers who have read all of it stop, though the run goes on.

    A stream that nobody closes ends with the run. Closing it again does nothing, and emitting to it raises WrongState. After
    :func:`continue_as_new` the next generation may emit again: who reads from then on gets these values too.

    Args:
        stream: Its name.
    """
    scope = workflow_scope("pgflow.close_stream()")
    if not is_name(stream):
        raise InvalidArgument(f"the name of a stream must be a text of 1 to 255 bytes without NUL, not {stream!r}")
    if stream not in scope.closed_streams:
        scope.execution.close_stream(stream)
        scope.closed_streams.add(stream)


def continue_as_new(*args: Any, **kwargs: Any) -> Never:
    """Ends this run as a new one of the same key with a fresh journal: for loops that never end.

    What the run would take back if it failed now is carried along: the effects of the ``saga()`` blocks that this call leaves, and
    those outside of blocks that have a ``compensate``. The next generation takes them back, the last first, if it fails or is
    cancelled, after what it has done itself; once the run completes they stand.

    Args:
        *args: Arguments of the workflow for its next generation.
        **kwargs: The same by name.

    Raises:
        NotStorable: An effect that is to be carried along has arguments that cannot be read back as they are annotated.
    """
    scope = workflow_scope("pgflow.continue_as_new()")
    check_carried(scope)
    text = scope.definition.encode_input(args, kwargs)
    raise ContinueAsNew(scope.execution.sealed(text, f"the input of workflow {scope.claim.workflow}"))


def idempotency_key(*, form: Literal["text", "uuid"] = "text") -> str:
    """The key under which this step acts on the outside: the same on every try, for no other call.

    Args:
        form: ``text`` reads ``<root>/<step>/<n>``; ``uuid`` is a UUID made of that.
    """
    scope = current.get()
    if isinstance(scope, StepScope):
        key = scope.key
    elif isinstance(scope, WorkflowScope):
        key = f"{scope.execution.stem}//{scope.execution.next_ordinal('')}"
    else:
        raise NotInRunError("pgflow.idempotency_key() works only in the code of a workflow or step")
    return key if form == "text" else str(uuid_module.uuid5(_KEY_NAMESPACE, key))


_KEY_NAMESPACE = uuid_module.UUID("9f6f1ce3-7a5f-5f9f-8b5e-3c8b1d8c1e11")


def heartbeat(details: Any = None) -> None:
    """In a long step: says that it lives and how far it is. The details are there for its next try.

    Args:
        details: Anything JSON, at most 64 KiB as it is stored.
    """
    scope = _step_scope("pgflow.heartbeat()")
    text = seal_text(scope.claim.envelopes, encode_plain(details, "the details of a heartbeat"), "the details of a heartbeat")
    if len(text) > MAX_BYTES // 16:
        raise InvalidArgument("the details of a heartbeat may be 64 KiB at most")
    scope.beat(text)


def heartbeat_details() -> Any:
    """In a step: what its last try said with :func:`heartbeat`; None if it said nothing."""
    return _step_scope("pgflow.heartbeat_details()").last_details


def _step_scope(what: str) -> StepScope:
    scope = current.get()
    if not isinstance(scope, StepScope):
        raise NotInRunError(f"{what} works only in the body of a step that a workflow called")
    return scope


@contextmanager
def inline() -> Iterator[None]:
    """Run functions that a framework hands to a thread at once, as code of the workflow: for its helpers that are a ``def``.

    In async workflows ``asyncio.to_thread()`` and ``loop.run_in_executor()`` are refused, since a replay would start such a
    thread again. Many frameworks use them for every ``def`` that they are given, to keep the loop free. Inside this
    block these functions run in the workflow itself, and again at every replay. So they must do the same again: what touches
    the world belongs into a step.

    Outside of workflows, and in sync ones, it changes nothing.

    Example::

        with pgflow.inline():
            state = await graph.ainvoke(state)
    """
    token = inlining.set(True)
    try:
        yield
    finally:
        inlining.reset(token)


@contextmanager
def because(decision: Decision[Any], item: str | int | None = None) -> Iterator[None]:
    """Make the calls inside rest on a decision, as with ``step.because(...)``; the innermost block counts.

    Args:
        decision: The decision.
        item: Part of it that the calls are about.
    """
    workflow_scope("pgflow.because()")
    token = resting.set(resting_on(decision, item))
    try:
        yield
    finally:
        resting.reset(token)


# ---------------------------------------------------------------- declared, not built


@declared_only("budgets")
def charge(*, usd: Decimal = Decimal(0), tokens: int = 0) -> None:
    """Charges a budget. Declared now; budgets are not built yet."""
    raise NotBuiltError(f"budgets are not built yet: charge(usd={usd}, tokens={tokens})")


@declared_only("obligations")
def owe(what: str, *, to: str = "", by: Duration | None = None) -> None:
    """Opens an obligation. Declared now; obligations are not built yet."""
    raise NotBuiltError(f"obligations are not built yet: owe({what!r}, to={to!r}, by={by})")
