"""Messages that a run sends: signals, in the code of a workflow and in the body of a
``@transaction``, and updates, in the code.

Sending in the code is a transactional step of the library's own: the message is in the mailbox of
the other run once, with what this run had done by then, and a replay sends nothing. In a body it is
a statement of the body's transaction.

The answer to an update comes as a signal. So asking is a step and a wait, and a run that waits for
an answer is parked.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any, ParamSpec, TypeVar, cast

import psycopg

from pgflow._db.calls import cluster, mail, updates
from pgflow._db.query import OnAsyncConnection, Query, run_by, run_on_async, run_through
from pgflow._flow.scope import (
    StepScope,
    WorkflowScope,
    async_scope,
    current,
    known_errors,
    sync_scope,
)
from pgflow._flow.signals import Signal
from pgflow._flow.step import own_transaction
from pgflow._flow.updates import UpdateHandler, read_reply
from pgflow._model.envelopes import Envelopes, is_hiding
from pgflow._model.kinds import EndedAs
from pgflow._model.messages import Delivery
from pgflow.errors import (
    InvalidArgument,
    KeyConflict,
    NotInRunError,
    RunNotFound,
    WrongColourError,
)

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def payload_text(
    signal: Signal[T], value: T, envelopes: Envelopes | None, idempotency_key: str | None = None
) -> str:
    """Return the payload of a signal as it is stored, checked to be readable by the receiver.

    Raises:
        InvalidArgument: It is the name of a signal, and not the signal.
        NotStorable: It does not fit the signal's type.
    """
    if not isinstance(signal, Signal):
        raise InvalidArgument(f"send a pgflow.Signal, such as Signal({signal!r}, int), not a name")
    what = f"the payload of signal {signal.name!r}"
    text = signal.codec.encode(value, what, is_hidden=is_hiding(envelopes))
    signal.codec.decode(text, what)
    if envelopes is None:
        return text
    if idempotency_key is None:
        return envelopes.seal(text, what)
    return envelopes.seal_compared(text, what, idempotency_key)


def delivery_of(sent: mail.Sent) -> Delivery:
    """Return the answer for a sender."""
    return Delivery(sent.message_id, cast("EndedAs | None", sent.ended_as), sent.is_new)


def _sending(scope: StepScope, key: str, name: str, payload: str) -> Query[mail.Sent]:
    claim = scope.claim
    send = cluster.send_signal if claim.is_in_cluster else mail.send_signal
    return send(key, name, payload, claim.tenant, claim.key)


def _sent(scope: StepScope, sent: mail.Sent) -> Delivery:
    """Have the receiver woken once the transaction is committed."""
    scope.chains_to_wake += tuple(sent.chains)
    return delivery_of(sent)


async def _send_signal(
    connection: psycopg.AsyncConnection[Any], key: str, name: str, payload: str
) -> Delivery:
    scope = current.get()
    assert isinstance(scope, StepScope)
    query = _sending(scope, key, name, payload)
    return _sent(scope, await run_on_async(OnAsyncConnection(connection), query))


async def _send_update(
    connection: psycopg.AsyncConnection[Any], key: str, name: str, args: str, update_id: str | None
) -> str:
    """Return the name of the signal that brings the answer: the idempotency key of this step."""
    scope = current.get()
    assert isinstance(scope, StepScope)
    claim = scope.claim
    query = updates.send_update(
        key,
        name,
        args,
        update_id or scope.key,
        claim.tenant,
        sent_by=claim.key,
        reply_to=claim.key,
        reply_as=scope.key,
    )
    sent = await run_on_async(OnAsyncConnection(connection), query)
    scope.chains_to_wake += tuple(sent.chains)
    return scope.key


_REFUSALS = (RunNotFound, KeyConflict)
_signalling = own_transaction(_send_signal, "send", _REFUSALS)
_asking = own_transaction(_send_update, "execute_update", _REFUSALS)


def _stored(key: str, signal: Signal[T], value: T) -> tuple[str, str, str]:
    """Return the arguments of the step.

    Raises:
        NotInRunError: The caller is not in a run.
        InvalidArgument: ``signal`` is not a signal.
    """
    scope = current.get()
    if scope is None:
        raise NotInRunError(
            "pgflow.send() works in the code of a workflow and in the body of a @transaction: "
            "elsewhere, call app.send() or app.using(connection).send()"
        )
    if not isinstance(signal, Signal):
        raise InvalidArgument(f"send() takes a pgflow.Signal(name, type), not {signal!r}")
    return key, signal.name, payload_text(signal, value, scope.claim.envelopes)


def _in_body(key: str, signal: Signal[T], value: T) -> tuple[StepScope, Query[mail.Sent]] | None:
    """The statement for the transaction whose body calls; None in the code of a workflow."""
    scope = current.get()
    if not isinstance(scope, StepScope):
        return None
    if scope.transaction is None:
        raise NotInRunError(
            f"pgflow.send() was called in the body of step {scope.call.name!r}, which has no "
            "transaction: call it in the body of a @transaction or in a workflow, or app.send() "
            "with idempotency_key=pgflow.idempotency_key()"
        )
    return scope, _sending(scope, *_stored(key, signal, value))


async def send(key: str, signal: Signal[T], value: T) -> Delivery:
    """Send a signal to another run of the same tenant: exactly once in an async workflow, and as
    part of the transaction in the body of an async ``@transaction``.

    Args:
        key: Key of the run.
        signal: The signal.
        value: Its payload.

    Returns:
        What became of it: it is in the mailbox of the run, or the run had ended and will not take
        it.

    Raises:
        RunNotFound: No run has the key.
        NotStorable: The payload does not fit the signal's type.
        NotInRunError: It is called elsewhere.

    Example::

        await pgflow.send(order.courier, picked_up, order.parcel)
    """
    found = _in_body(key, signal, value)
    if found is None:
        return await _signalling.aio(*_stored(key, signal, value))
    scope, query = found
    if scope.transaction_is_sync:
        raise WrongColourError(
            "pgflow.send() is for async code: in this body, call pgflow.sync.send()"
        )
    return _sent(scope, await run_by(scope.transaction.execute, query))


def send_sync(key: str, signal: Signal[T], value: T) -> Delivery:
    """Send a signal to another run; see :func:`pgflow.send`."""
    found = _in_body(key, signal, value)
    if found is None:
        return _signalling.sync(*_stored(key, signal, value))
    scope, query = found
    if not scope.transaction_is_sync:
        raise WrongColourError(
            "pgflow.sync.send() is for sync code: in this body, await pgflow.send()"
        )
    return _sent(scope, run_through(scope.transaction.execute, query))


def _asked(
    scope: WorkflowScope, key: str, update: UpdateHandler[..., Any], args: Any, kwargs: Any
) -> tuple[str, str, str, str | None]:
    """Return the arguments of the step.

    Raises:
        InvalidArgument: ``update`` is not a handler.
        NotStorable: An argument does not fit its annotation.
    """
    if not isinstance(update, UpdateHandler):
        raise InvalidArgument(
            f"execute_update() takes a handler that @workflow.update has made, not {update!r}"
        )
    envelopes = scope.claim.envelopes
    text = update.encode_args(args, kwargs, is_hidden=is_hiding(envelopes))
    if envelopes is not None:
        what = f"the arguments of update {update.name}"
        text = envelopes.seal_compared(text, what, update.update_id or key)
    return key, update.name, text, update.update_id


def _read(scope: WorkflowScope, key: str, update: UpdateHandler[..., R], told: Any) -> R:
    value, error = (
        None if told[part] is None else json.dumps(told[part], ensure_ascii=False)
        for part in ("value", "error")
    )
    reply = updates.Reply(told["status"], value, error)
    errors = known_errors(scope, update.workflow.raises)
    return read_reply(update, key, reply, scope.claim.envelopes, errors)


def execute_update(
    key: str, update: UpdateHandler[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, R]:
    """Ask another run of the same tenant for an update, and wait for its answer. It is asked once,
    however often this run is replayed, and the wait holds nothing.

    Args:
        key: Key of the run.
        update: The handler, perhaps with ``.options(update_id=)``.
        *args: Its arguments, without the state.
        **kwargs: The same by name.

    Returns:
        The handler's value.

    Raises:
        UpdateFailed: The handler raised an error, which is the ``__cause__``.
        UpdateRejected: The validator raised, or the handler does not exist. Nothing was done.
        UpdateRefused: The run ended before it answered.
        RunNotFound: No run has the key.
        KeyConflict: Another update of that run has the id.
        NotStorable: An argument does not fit its annotation.

    Example::

        size = await pgflow.updates.execute_update("cart-ann", add, "tea")
    """
    scope = async_scope("pgflow.updates.execute_update()", "pgflow.sync.execute_update()")
    return _execute_update(scope, key, update, args, kwargs)


async def _execute_update(
    scope: WorkflowScope, key: str, update: UpdateHandler[..., R], args: Any, kwargs: Any
) -> R:
    answer = await _asking.aio(*_asked(scope, key, update, args, kwargs))
    return _read(scope, key, update, await Signal(answer, object).wait())


def execute_update_sync(
    key: str, update: UpdateHandler[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Ask another run for an update, and wait for its answer; see
    :func:`pgflow.updates.execute_update`.
    """
    scope, _ = sync_scope("pgflow.sync.execute_update()", "pgflow.updates.execute_update()")
    answer = _asking.sync(*_asked(scope, key, update, args, kwargs))
    return _read(scope, key, update, Signal(answer, object).sync.wait())
