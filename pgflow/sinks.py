"""Sinks: places outside of the engine to which a :class:`pgflow.events.Relay` brings events.

Each takes an event at least once, always under the same number. :class:`Http` and
:class:`RedisStream` need the extras ``http`` and ``redis``. A sink of your own is any object with
the two methods of :class:`pgflow.events.Sink`.

Example::

    hooks = Relay("hooks", ["orders"], to=Http("https://example.org/hook", secret=os.environ["S"]))
    app = AsyncApp(include=[hooks])
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import time
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pgflow._db.query import Query
from pgflow._flow.relays import TryLater, Undeliverable
from pgflow._model.events import Event
from pgflow._model.names import is_name
from pgflow._model.signatures import key_of, sign
from pgflow.errors import DefinitionError

__all__ = ["Http", "HttpRefused", "Notify", "RedisStream"]

LONGEST_RETRY_AFTER = 86_400.0
GONE = 410
MAX_NOTIFY_BYTES = 7_999
MAX_CHANNEL_BYTES = 63
MAX_LENGTH_DIGITS = 5
ASIDE_SECONDS = 1.0
"""Time for what an answer says behind its status."""


class HttpRefused(Exception):
    """A server has answered that it did not take an event."""


class Http:
    """Sink that posts each event as JSON: an object of ``id``, ``type`` (the topic), ``timestamp``,
    ``key`` and ``data`` (the payload).

    The header ``Idempotency-Key`` is the same for each attempt of an event. With a secret, the
    request is signed by Standard Webhooks. A status of 2xx accepts the event, whatever the body,
    and 410 means that further attempts cannot succeed. Any other answer is a failure;
    ``Retry-After`` is honoured up to a day. Redirects are not followed. The relay's ``timeout``
    limits each request.

    Args:
        url: Address of the server.
        secret: Key of the signature: ``whsec_`` and base64, or at least 16 bytes. Pass several to
            rotate keys: each of them signs.
        headers: Further headers.
        client: Your own ``httpx.AsyncClient``. Its timeouts apply too, and the sink does not close
            it.

    Raises:
        DefinitionError: httpx is not installed, or the URL is not an HTTP URL.
        InvalidArgument: A secret is too short.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | list[str | bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        client: Any = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise DefinitionError(
                "the sink Http needs httpx: pip install 'pgflow-engine[http]'"
            ) from error
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DefinitionError(
                f"the sink Http posts to a URL of http or https, not to one of {parts.scheme!r}"
            )
        self.url = url
        secrets = secret if isinstance(secret, list) else [secret]
        self._keys = [key_of(one) for one in secrets if one is not None]
        self._headers = {name.lower(): text for name, text in (headers or {}).items()}
        self._make = httpx.AsyncClient
        self._client = client
        self._is_ours = client is None
        self._target = f"POST {parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def __str__(self) -> str:
        """As the view of relays shows it: the server alone, since the rest may be secret."""
        return self._target

    async def deliver(self, event: Event, relay: str) -> None:
        """Post an event.

        Args:
            event: The event.
            relay: Name of the relay.

        Raises:
            HttpRefused: The server refused the event.
            TryLater: The server gave a time to retry.
            Undeliverable: The server answered 410 Gone.
        """
        if self._client is None:
            self._client = self._make(timeout=None)  # the relay has one
        # The dot separates the signed parts.
        name = urllib.parse.quote(relay, safe="").replace(".", "%2E")
        message_id = f"{name}/{event.id}"
        body = json.dumps(
            {
                "id": event.id,
                "type": event.topic,
                "timestamp": event.at.isoformat(),
                "key": event.key,
                "data": event.payload,
            }
        ).encode()
        headers = {
            **self._headers,
            "content-type": "application/json",
            "idempotency-key": message_id,
            "webhook-id": message_id,
        }
        if self._keys:
            now = int(time.time())
            headers["webhook-timestamp"] = str(now)
            headers["webhook-signature"] = " ".join(
                sign(key, message_id, now, body) for key in self._keys
            )
        posting = self._client.stream(
            "POST", self.url, content=body, headers=headers, follow_redirects=False
        )
        async with posting as response:
            await _pass_over(response)
            _judge(response.status_code, response.headers.get("retry-after"))

    async def close(self) -> None:
        """Close its connections."""
        if self._is_ours and self._client is not None:
            client, self._client = self._client, None
            await client.aclose()


async def _pass_over(response: Any) -> None:
    """Read a short body, so that the connection can be reused. It is not decoded, and a missing or
    broken body does not change the status.
    """
    length = response.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) <= MAX_LENGTH_DIGITS):
        return
    with contextlib.suppress(Exception):
        async with asyncio.timeout(ASIDE_SECONDS):
            async for _ in response.aiter_raw():
                pass


def _judge(status: int, retry_after: str | None) -> None:
    if 200 <= status < 300:
        return
    message = f"the server answered {status}"
    if status == GONE:
        raise Undeliverable(message)
    seconds = _seconds_of(retry_after)
    if seconds is not None:
        raise TryLater(message, seconds)
    raise HttpRefused(message)


def _seconds_of(retry_after: str | None) -> float | None:
    """Seconds until the time that a header says, in either of its forms; None if it says none."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_RETRY_AFTER)
    try:
        at = email.utils.parsedate_to_datetime(text)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        seconds = (at - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):  # a year or a zone of thirty digits
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


class Notify:
    """Notifies a channel of Postgres of each event, in the transaction in which the relay passes
    it. Listeners hear of it once; a session that does not listen has missed it.

    The notification is an object of ``id``, ``topic``, ``key`` and ``payload``, which is left out
    where all of it is longer than 7,999 bytes.

    Args:
        channel: Name of the channel, at most 63 bytes.

    Raises:
        DefinitionError: No channel can have the name.
    """

    def __init__(self, channel: str) -> None:
        if not is_name(channel) or len(channel.encode()) > MAX_CHANNEL_BYTES:
            raise DefinitionError(
                f"a channel has a name of 1 to {MAX_CHANNEL_BYTES} bytes, not {channel!r}"
            )
        self.channel = channel

    def __str__(self) -> str:
        """As the view of relays shows it."""
        return f"NOTIFY {self.channel}"

    def statement(self, event: Event, relay: str) -> Query[None]:
        """Return the notification of an event.

        Args:
            event: The event.
            relay: Name of the relay.
        """
        del relay
        payload = {"id": event.id, "topic": event.topic, "key": event.key}
        text = json.dumps({**payload, "payload": event.payload}, ensure_ascii=False)
        if len(text.encode()) > MAX_NOTIFY_BYTES:
            text = json.dumps(payload, ensure_ascii=False)
        sql = "select pg_catalog.pg_notify(%s::text, %s::text)"
        return Query(sql, (self.channel, text), lambda _: None)


class RedisStream:
    """Appends each event to a stream of Redis, with the fields ``id``, ``topic``, ``key`` (if it
    has one), ``at`` and ``payload`` (as JSON).

    Args:
        url: Of the server, such as ``redis://localhost:6379/0``.
        stream: Name of the stream; that of the topic if not given.
        max_length: The stream is cut to about so many entries; None for never.

    Raises:
        DefinitionError: redis is not installed.
    """

    def __init__(
        self, url: str, *, stream: str | None = None, max_length: int | None = None
    ) -> None:
        try:
            import redis.asyncio
        except ImportError as error:
            raise DefinitionError(
                "the sink RedisStream needs redis: pip install 'pgflow-engine[redis]'"
            ) from error
        self._connect: Any = redis.asyncio.from_url
        self._url = url
        self._client: Any = None
        self.stream = stream
        self.max_length = max_length

    def __str__(self) -> str:
        """As the view of relays shows it."""
        return f"Redis stream {self.stream or 'of the topic'}"

    async def deliver(self, event: Event, relay: str) -> None:
        """Append an event.

        Args:
            event: The event.
            relay: Name of the relay.
        """
        del relay
        if self._client is None:
            self._client = self._connect(self._url)
        fields = {
            "id": str(event.id),
            "topic": event.topic,
            "at": event.at.isoformat(),
            "payload": json.dumps(event.payload),
            **({} if event.key is None else {"key": event.key}),
        }
        await self._client.xadd(
            self.stream or event.topic, fields, maxlen=self.max_length, approximate=True
        )

    async def close(self) -> None:
        """Close its connection."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()
