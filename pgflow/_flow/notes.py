"""The functions by which code notes something in its journal: state, labels, streams, random
numbers, and the end of a generation.

They are plain calls in both colours: none of them waits.
"""

from __future__ import annotations

import json
import uuid as uuid_module
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Literal, Never

from pgflow._engine.host import ContinueAsNew
from pgflow._engine.keys import Keys
from pgflow._engine.loop import inlining
from pgflow._engine.notes import Notes
from pgflow._flow.ledgers.saga import check_carried
from pgflow._flow.run_info import EPOCH
from pgflow._flow.scope import StepScope, WorkflowScope, current, resting, workflow_scope
from pgflow._flow.step import resting_on
from pgflow._model.codecs import ENVELOPE, encode_by_class, encode_plain
from pgflow._model.decisions import Decision
from pgflow._model.envelopes import is_envelope, seal_text
from pgflow._model.names import is_name
from pgflow._model.units import MAX_LABELS_BYTES, relabelled
from pgflow.errors import InvalidArgument, NotInRunError, NotStorable, WrongState

# ---------------------------------------------------------------- values and streams of a run


updating: ContextVar[int | None] = ContextVar("pgflow_updating", default=None)
"""Time of the update of an entity whose code runs, in microseconds."""


def now() -> datetime:
    """The time, on the database's clock: when the last outcome happened. The same on every replay;
    never goes back. In an update of an entity, the time of the update.
    """
    at_us = updating.get()
    if at_us is not None:
        return EPOCH + timedelta(microseconds=at_us)
    scope = workflow_scope("pgflow.now()")
    return EPOCH + timedelta(microseconds=scope.execution.parts[Notes].now_us())


def random() -> float:
    """A random number between 0 and 1 that a replay draws again."""
    return workflow_scope("pgflow.random()").execution.parts[Notes].random.random()


def uuid() -> uuid_module.UUID:
    """A random UUID that a replay makes again."""
    return workflow_scope("pgflow.uuid()").execution.parts[Notes].uuid()


def patched(id: str) -> bool:  # noqa: A002 - the word of the surface
    """Return True to take the new side of a code change; False only for runs that passed here
    before the change.

    Args:
        id: Name of the change.
    """
    return workflow_scope("pgflow.patched()").execution.parts[Notes].patched(id)


def deprecate_patch(id: str) -> None:  # noqa: A002 - the word of the surface
    """Replace ``patched(id)`` once no open run can take its old side: the new side runs without a
    branch.

    Runs that hold the marker of ``patched`` fit. New runs get one that code without this call
    passes over, and code that still calls ``patched`` - workers not yet deployed, or a step back -
    reads as the new side. When `pgflow patches` says that it is safe, the call can go.

    Args:
        id: Name of the change.
    """
    workflow_scope("pgflow.deprecate_patch()").execution.parts[Notes].deprecate_patch(id)


def set_state(**state: Any) -> None:
    """Publish values by name, readable with ``run.state()`` once durable. A later value replaces an
    earlier one.
    """
    scope = workflow_scope("pgflow.set_state()")
    text = encode_by_class(state, "the state of a run")
    if ENVELOPE in text and (
        taken := [name for name, value in json.loads(text).items() if is_envelope(value)]
    ):
        raise NotStorable(
            f"{taken[0]}= of set_state() begins with the key '$codec' and would be taken for an "
            "encoded value: rename it"
        )
    scope.execution.parts[Notes].set_state(text)


def set_labels(**labels: str | None) -> None:
    """Set labels of this run; other labels stay. Find runs by label in ``pgflow.runs`` and with
    ``pgflow list --label``.

    They become durable with the next commit of the run. A run that begins with part of this
    journal, as after a rewind, has the labels as of that part.

    Args:
        labels: Names and values; None removes a label.

    Raises:
        InvalidArgument: A value is not a string, or all labels together are longer than 16 KiB.
    """
    scope = workflow_scope("pgflow.set_labels()")
    for name, value in labels.items():
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(
                f"label {name!r} must be a string, or None to take it away, not {value!r}"
            )
    text = encode_plain(labels, "labels of a run")
    size = len(json.dumps(relabelled(scope.claim.labels, labels), ensure_ascii=False).encode())
    if size > MAX_LABELS_BYTES:
        raise InvalidArgument(f"labels are {size} bytes long; the limit is 16 KiB")
    if labels:
        scope.execution.parts[Notes].set_labels(text)


def emit(stream: str, value: Any, *, durable: bool = True) -> None:
    """Append a value to an output stream of this run, readable with ``run.stream(name)`` once
    durable.

    In the body of a step it counts if the step's try succeeds, and is durable together with its
    result. Readers who ask for ``run.stream(name, live=True)`` get it while the body runs. Values
    emitted by a failed attempt are void.

    Args:
        stream: Name of the stream.
        value: Anything JSON.
        durable: False, in the body of a step, for what only those get who read along, and what is
            gone once the step has ended: the words of a model as they come, say, before the step
            emits the whole answer.

    Raises:
        WrongState: :func:`close_stream` has ended it.
        InvalidArgument: It is not to be kept, and no body of a step emits it.
    """
    scope: WorkflowScope | StepScope | None = current.get()
    if not isinstance(scope, StepScope):
        scope = workflow_scope("pgflow.emit()")
    if not is_name(stream):
        raise InvalidArgument(
            f"the name of a stream must be a text of 1 to 255 bytes without NUL, not {stream!r}"
        )
    text = encode_plain(value, f"a value of stream {stream!r}")
    if isinstance(scope, StepScope):
        sealed = seal_text(scope.claim.envelopes, text, f"a value of stream {stream!r}")
        scope.emit(stream, sealed, durable=durable)
        return
    if not durable:
        raise InvalidArgument(
            f"what the code of a workflow emits to stream {stream!r} is durable at once: "
            "durable=False is for the body of a step"
        )
    if stream in scope.closed_streams:
        raise WrongState(
            f"stream {stream!r} of this run is closed: emit before close_stream({stream!r}), or to "
            "another stream"
        )
    scope.execution.parts[Notes].emit(stream, text)


def close_stream(stream: str) -> None:
    """Close an output stream of this run: readers stop at its end while the run continues.

    An open stream ends with the run. Closing a closed stream has no effect, and emitting to it
    raises WrongState. After :func:`continue_as_new` the next generation may emit again, and readers
    from then on get these values too.

    Args:
        stream: Its name.
    """
    scope = workflow_scope("pgflow.close_stream()")
    if not is_name(stream):
        raise InvalidArgument(
            f"the name of a stream must be a text of 1 to 255 bytes without NUL, not {stream!r}"
        )
    if stream not in scope.closed_streams:
        scope.execution.parts[Notes].close_stream(stream)
        scope.closed_streams |= {stream}


def continue_as_new(*args: Any, **kwargs: Any) -> Never:
    """End this run and start a new one of the same key with a fresh journal, for loops that never
    end.

    Effects that the run would compensate if it failed now are carried along: the effects of the
    ``saga()`` blocks that this call leaves, and those outside of blocks that have a ``compensate``.
    The next generation takes them back, the last first, if it fails or is cancelled, after what it
    has done itself; once the run completes they stand.

    Args:
        *args: Arguments of the workflow for its next generation.
        **kwargs: The same by name.

    Raises:
        NotStorable: An effect that is to be carried along has arguments that cannot be read back as
            they are annotated.
        WrongState: A block has taken back what earlier generations did.
    """
    scope = workflow_scope("pgflow.continue_as_new()")
    check_carried(scope)
    values = scope.execution.values
    text = scope.definition.encode_input(args, kwargs, is_hidden=values.are_hidden)
    raise ContinueAsNew(values.sealed(text, f"the input of workflow {scope.claim.workflow}"))


def idempotency_key(*, form: Literal["text", "uuid"] = "text") -> str:
    """The key under which this step acts on the outside: the same on every try, for no other call.

    Args:
        form: ``text`` reads ``<root>/<step>/<n>``; ``uuid`` is a UUID made of that.
    """
    scope = current.get()
    if isinstance(scope, StepScope):
        key = scope.key
    elif isinstance(scope, WorkflowScope):
        key = f"{scope.execution.parts[Notes].stem}//{scope.execution.parts[Keys].next_ordinal('')}"
    else:
        raise NotInRunError("pgflow.idempotency_key() works only in the code of a workflow or step")
    return key if form == "text" else str(uuid_module.uuid5(_KEY_NAMESPACE, key))


_KEY_NAMESPACE = uuid_module.UUID("9f6f1ce3-7a5f-5f9f-8b5e-3c8b1d8c1e11")


@contextmanager
def inline() -> Iterator[None]:
    """Run functions that a framework hands to a thread at once, as code of the workflow: for its
    helpers that are a ``def``.

    In async workflows ``asyncio.to_thread()`` and ``loop.run_in_executor()`` are refused, since a
    replay would start such a thread again. Many frameworks use them for every ``def`` that they are
    given, to keep the loop free. Inside this block these functions run in the workflow itself, and
    again at every replay. So they must do the same again:
    what touches the world belongs into a step.

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
    """Make the calls inside rest on a decision, as with ``step.because(...)``;
    the innermost block counts.

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
