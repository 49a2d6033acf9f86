"""Signals that a run sends: in the code of a workflow, and in the body of a ``@transaction``.

Sending in the code is a transactional step of the library's own: the message is in the mailbox of
the other run once, with what this run had done by then, and a replay sends nothing. In a body it is
a statement of the body's transaction.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import psycopg

from pgflow._db.calls import mail
from pgflow._db.query import OnAsyncConnection, Query, run_by, run_on_async, run_through
from pgflow._flow.scope import StepScope, current
from pgflow._flow.signals import Signal
from pgflow._flow.step import AsyncStep
from pgflow._model.envelopes import Envelopes
from pgflow._model.kinds import EndedAs, StepKind
from pgflow._model.messages import Delivery
from pgflow.errors import InvalidArgument, NotInRunError, RunNotFound, WrongColourError

T = TypeVar("T")


def payload_text(
    signal: Signal[T], value: T, envelopes: Envelopes | None, idempotency_key: str | None = None
) -> str:
    """Return the payload of a signal as it is stored, checked to be readable by the receiver.

    Raises:
        NotStorable: It does not fit the signal's type.
    """
    what = f"the payload of signal {signal.name!r}"
    text = signal.codec.encode(value, what)
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
    return mail.send_signal(key, name, payload, claim.tenant, claim.key)


def _sent(scope: StepScope, sent: mail.Sent) -> Delivery:
    """Have the receiver woken once the transaction is committed."""
    scope.chains_to_wake += tuple(sent.chains)
    return delivery_of(sent)


def _make() -> AsyncStep[..., Delivery, Any]:
    async def send_signal(
        connection: psycopg.AsyncConnection[Any], key: str, name: str, payload: str
    ) -> Delivery:
        scope = current.get()
        assert isinstance(scope, StepScope)
        query = _sending(scope, key, name, payload)
        return _sent(scope, await run_on_async(OnAsyncConnection(connection), query))

    made: Any = AsyncStep(send_signal, StepKind.TRANSACTION, "send", 1, None, (RunNotFound,))
    made.isolation, made.provider, made.connection_parameter = None, None, "connection"
    return made  # type: ignore[no-any-return]


_step = _make()


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
        return await _step.aio(*_stored(key, signal, value))
    scope, query = found
    if scope.transaction_is_sync:
        raise WrongColourError(
            "pgflow.send() is for async code: in this body, call pgflow.sync.send()"
        )
    return _sent(scope, await run_by(scope.transaction.execute, query))


def send_sync(key: str, signal: Signal[T], value: T) -> Delivery:
    """As :func:`send`, for sync workflows and bodies."""
    found = _in_body(key, signal, value)
    if found is None:
        return _step.sync(*_stored(key, signal, value))
    scope, query = found
    if not scope.transaction_is_sync:
        raise WrongColourError(
            "pgflow.sync.send() is for sync code: in this body, await pgflow.send()"
        )
    return _sent(scope, run_through(scope.transaction.execute, query))
