"""Events in a run: publishing, in the code of a workflow and in the body of a ``@transaction``, and
waiting for one.

Publishing in the code is a transactional step of the library's own, so an event is published
exactly once. In a body it is a statement of the body's transaction. A wait is one for a message
that the database sends (``sql/events/waits.sql``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, cast

import psycopg

from pgflow._db.calls import outbox as calls
from pgflow._db.failures import ours
from pgflow._db.query import OnAsyncConnection, Query, run_by, run_on_async, run_through
from pgflow._engine.events import Events
from pgflow._flow.scope import StepScope, WorkflowScope, async_scope, current, sync_scope
from pgflow._flow.step import Calls, follow, follow_sync, own_transaction
from pgflow._model.codecs import codec_for, encode_by_class, encode_plain
from pgflow._model.durations import Duration, duration
from pgflow._model.envelopes import Envelopes, seal_text
from pgflow._model.events import Event, Wanted
from pgflow._model.names import is_name
from pgflow.errors import InvalidArgument, NotInRunError, WrongColourError

MAX_MATCH_BYTES = 16_384
"""A longer match has no business in a row of each wait."""


def encode_event(topic: str, payload: Any, key: str | None, envelopes: Envelopes | None) -> str:
    """Payload of an event as it is stored.

    Raises:
        InvalidArgument: No event can have the topic or the key.
        NotStorable: The payload cannot be stored.
    """
    for what, text in (("topic", topic), ("key", topic if key is None else key)):
        if not is_name(text):
            raise InvalidArgument(
                f"the {what} of an event must be a text of 1 to 255 bytes without NUL, not {text!r}"
            )
    what = f"the payload of an event of topic {topic!r}"
    return seal_text(envelopes, encode_by_class(payload, what, may_mark=False), what)


async def _publish(
    connection: psycopg.AsyncConnection[Any], topic: str, payload: str, key: str | None
) -> int:
    scope = current.get()
    assert isinstance(scope, StepScope)
    query = calls.publish(topic, payload, key, scope.claim.run_id)
    return await run_on_async(OnAsyncConnection(connection), query)


_step = own_transaction(_publish, "publish")


def _in_body(topic: str, payload: Any, key: str | None) -> tuple[StepScope, Query[int]] | None:
    """The statement for the transaction whose body calls; None in the code of a workflow."""
    scope = current.get()
    if not isinstance(scope, StepScope):
        return None
    if scope.transaction is None:
        raise NotInRunError(
            f"pgflow.events.publish() was called in the body of step {scope.call.name!r}, which "
            "has no transaction: call it in the body of a @transaction or in a workflow, or "
            "app.publish() for an event of its own"
        )
    text = encode_event(topic, payload, key, scope.claim.envelopes)
    return scope, calls.publish(topic, text, key, scope.claim.run_id)


def _stored(topic: str, payload: Any, key: str | None) -> str:
    scope = current.get()
    if scope is None:
        raise NotInRunError(
            "pgflow.events.publish() works in the code of a workflow and in the body of a "
            "@transaction: elsewhere, call app.publish() or app.using(connection).publish()"
        )
    return encode_event(topic, payload, key, scope.claim.envelopes)


async def publish(topic: str, payload: Any, *, key: str | None = None) -> int:
    """Publish an event: exactly once in an async workflow, and as part of the transaction in the
    body of an async ``@transaction``.

    Args:
        topic: Topic, to which relays listen.
        payload: Content; anything JSON.
        key: Events of one key are delivered in their order; None if any order will do.

    Returns:
        The number of the event.

    Raises:
        NotInRunError: It is called elsewhere.
        NotStorable: The payload cannot be stored.
    """
    found = _in_body(topic, payload, key)
    if found is None:
        return await _step.aio(topic, _stored(topic, payload, key), key)
    scope, query = found
    if scope.transaction_is_sync:
        raise WrongColourError(
            "pgflow.events.publish() is for async code: in this body, call pgflow.sync.publish()"
        )
    with ours():
        return await run_by(scope.transaction.execute, query)


def publish_sync(topic: str, payload: Any, *, key: str | None = None) -> int:
    """Publish an event; see :func:`pgflow.events.publish`."""
    found = _in_body(topic, payload, key)
    if found is None:
        return _step.sync(topic, _stored(topic, payload, key), key)
    scope, query = found
    if not scope.transaction_is_sync:
        raise WrongColourError(
            "pgflow.sync.publish() is for sync code: in this body, await pgflow.events.publish()"
        )
    with ours():
        return run_through(scope.transaction.execute, query)


# ================================================================ waiting


def wait_for_event(
    topic: str,
    match: dict[str, Any] | None = None,
    *,
    key: str | None = None,
    after: Event | int | None = None,
    timeout: Duration | None = None,
) -> Coroutine[Any, Any, Event]:
    """Wait durably for an event: the first one of a topic that fits, by number.

    A wait sees what commits after it began, which the database decides in the commit that records
    what the code had done by then. Nothing that commits between that and the run's parking is
    missed. Earlier commits are not seen, unless ``after`` is given.

    Args:
        topic: Topic of the event.
        match: Content that its payload must have: an object, as JSON. An object of the payload may
            have more members than that of the match, a list more elements.
        key: Key of the event; any if not given.
        after: An event, or its number: the wait sees all with a greater number that are still
            kept, and none before. So a run that waits again behind the last one misses nothing, and
            one that has published a question finds its answer however early that came.
        timeout: Give up after this long.

    Raises:
        TimeoutError: None came in time.
        InvalidArgument: No event can be so; or there is a match, and the app has a codec, which the
            database cannot look through.

    Example::

        paid = await pgflow.events.wait_for_event("payments", {"order": order.id, "status": "paid"})
    """
    scope = async_scope("pgflow.events.wait_for_event()", "pgflow.sync.wait_for_event()")
    return follow(scope, _calls(scope, _wanted(scope, topic, match, key, after), timeout))


def wait_for_event_sync(
    topic: str,
    match: dict[str, Any] | None = None,
    *,
    key: str | None = None,
    after: Event | int | None = None,
    timeout: Duration | None = None,
) -> Event:
    """Wait durably for an event; see :func:`pgflow.events.wait_for_event`."""
    scope, _ = sync_scope("pgflow.sync.wait_for_event()", "pgflow.events.wait_for_event()")
    wanted = _wanted(scope, topic, match, key, after)
    return cast("Event", follow_sync(scope, _calls(scope, wanted, timeout)))


def _calls(scope: WorkflowScope, wanted: Wanted, timeout: Duration | None) -> Calls:
    return (
        yield scope.execution.parts[Events].issue(
            wanted, _codec(), _patience(wanted.topic, timeout)
        )
    )


def _codec() -> Any:
    return codec_for(Event)


def _patience(topic: str, timeout: Duration | None) -> timedelta | None:
    what = f"timeout of a wait for an event of topic {topic!r}"
    return duration(timeout, what, least_seconds=-math.inf)


def _wanted(
    scope: WorkflowScope,
    topic: str,
    match: dict[str, Any] | None,
    key: str | None,
    after: Event | int | None,
) -> Wanted:
    for what, text in (("topic", topic), ("key", topic if key is None else key)):
        if not is_name(text):
            raise InvalidArgument(
                f"the {what} of an event must be a text of 1 to 255 bytes without NUL, not {text!r}"
            )
    number = after.id if isinstance(after, Event) else after
    if number is not None and (type(number) is not int or not 0 <= number < 2**63):
        raise InvalidArgument(f"after is an event or the number of one, not {after!r}")
    if match is None:
        return Wanted(topic, None, key, number)
    if not isinstance(match, dict):
        raise InvalidArgument(f"match is an object that the payload must contain, not {match!r}")
    if scope.claim.envelopes is not None:
        raise InvalidArgument(
            "the app has a codec, so the database cannot compare payloads: wait by key= instead of "
            "match="
        )
    text = encode_plain(match, f"the match of a wait for an event of topic {topic!r}")
    if len(text.encode()) > MAX_MATCH_BYTES:
        raise InvalidArgument(f"match is longer than {MAX_MATCH_BYTES} bytes")
    return Wanted(topic, json.loads(text), key, number)
