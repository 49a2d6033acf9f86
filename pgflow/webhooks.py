"""Webhooks that come in: a request whose signature holds becomes a run, or a signal to one, once
for each delivery.

An endpoint has a verifier and says what becomes of a request. Providers send a delivery again until
they are answered, so its number is part of the key of the run, or the idempotency key of the
signal: sent again, it is the same one. The request is answered once that is committed.

Example::

    hooks = [
        Endpoint("billing", Stripe(os.environ["STRIPE_SECRET"]), to=on_billing_event),
        Endpoint("code", GitHub(os.environ["GITHUB_SECRET"]), to=lambda request: None),
    ]
    web.mount("/hooks", pgflow.webhooks.asgi(app, hooks))   # POST /hooks/billing
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from pgflow._asgi import Asgi, Receive, Scope, live, read_body
from pgflow._asgi import Send as Respond
from pgflow._flow.signals import Signal
from pgflow._flow.step import resolve_hints
from pgflow._flow.workflow import Workflow
from pgflow._model.durations import Duration, duration
from pgflow._model.names import is_name
from pgflow._model.signatures import key_of, mac, sign
from pgflow.app import App, AsyncApp
from pgflow.errors import (
    DefinitionError,
    InvalidSignature,
    KeyConflict,
    NotStorable,
    PgflowError,
    RunNotFound,
)
from pgflow.inspect import ask, ask_async, database_now
from pgflow.texts import printable

__all__ = ["Endpoint", "GitHub", "Request", "Send", "StandardWebhooks", "Start", "Stripe", "asgi",
           "wsgi"]  # fmt: skip

log = logging.getLogger("pgflow")

TOLERANCE = timedelta(minutes=5)
MAX_BODY_BYTES = 1_048_576
MAX_ID_CHARS = 512

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class Request:
    """A request with a valid signature.

    Attributes:
        id: The provider's number of the delivery, the same when it is sent again.
        headers: Headers, with names in lower case.
        payload: Content, decoded from JSON.
    """

    id: str
    headers: dict[str, str]
    payload: Any


@dataclass(frozen=True)
class Start:
    """A run to be started for a request.

    Attributes:
        workflow: The workflow, without a key: the delivery is its key.
        args: Its arguments.
    """

    workflow: Workflow[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Send:
    """A signal to be sent for a request.

    Attributes:
        key: Key of the run.
        signal: The signal.
        value: Its payload.
    """

    key: str
    signal: Signal[Any]
    value: Any


class Verifier(Protocol):
    """Verification of requests of one provider."""

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> str:
        """Return the number of the delivery, if the signature holds.

        Args:
            headers: Headers, with names in lower case.
            body: Content as it came.
            now: Seconds since 1970, on the database's clock.

        Raises:
            InvalidSignature: It does not hold.
        """


def _keys(secrets: tuple[str | bytes, ...], *, plain: bool) -> list[bytes]:
    if not secrets:
        raise DefinitionError("a verifier of webhooks needs a secret")
    if plain:
        found = [secret.encode() if isinstance(secret, str) else secret for secret in secrets]
        if not all(found):
            raise DefinitionError("the secret of a webhook is empty")
        return found
    return [key_of(secret) for secret in secrets]


def _tolerance(given: Duration) -> float:
    found = duration(given, "tolerance of a verifier")
    assert found is not None
    return found.total_seconds()


def _header(headers: Mapping[str, str], name: str) -> str:
    found = headers.get(name)
    if not found:
        raise InvalidSignature(f"the request has no header {name}")
    return found


def _check_time(text: str, now: float, tolerance: float) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 13):
        raise InvalidSignature("the time of the signature is not a number")
    if abs(int(text) - now) > tolerance:
        raise InvalidSignature("the signature is too old, or of a time to come")
    return int(text)


def _any_is(expected: list[bytes], given: list[bytes]) -> bool:
    # Each is compared, so that the time it takes says nothing.
    return any([hmac.compare_digest(one, other) for one in expected for other in given])  # noqa: C419


class StandardWebhooks:
    """Verifier of requests that are signed as Standard Webhooks has it, as those of
    :class:`pgflow.sinks.Http` are.

    Args:
        *secrets: Keys of the signature, each ``whsec_`` and base64 or at least 16 bytes; any of
            them holds, while they are rotated.
        tolerance: A signature that is older, or younger, is refused.
    """

    def __init__(self, *secrets: str | bytes, tolerance: Duration = TOLERANCE) -> None:
        self._keys = _keys(secrets, plain=False)
        self._tolerance = _tolerance(tolerance)

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> str:
        """Return the number of the delivery; see :class:`Verifier`.

        Args:
            headers: Headers, with names in lower case.
            body: Content as it came.
            now: Seconds since 1970.

        Raises:
            InvalidSignature: The signature does not hold.
        """
        delivery = _header(headers, "webhook-id")
        at = _check_time(_header(headers, "webhook-timestamp"), now, self._tolerance)
        given = [
            part.encode()
            for part in _header(headers, "webhook-signature").split()
            if part.startswith("v1,")
        ]
        if not _any_is([sign(key, delivery, at, body).encode() for key in self._keys], given):
            raise InvalidSignature("the signature does not hold")
        return delivery


class Stripe:
    """Verifier of requests that are signed as Stripe does it; the delivery is the event's ``id``.

    Args:
        *secrets: Secrets of the endpoint; any of them holds.
        tolerance: A signature that is older, or younger, is refused.
    """

    def __init__(self, *secrets: str | bytes, tolerance: Duration = TOLERANCE) -> None:
        self._keys = _keys(secrets, plain=True)
        self._tolerance = _tolerance(tolerance)

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> str:
        """Return the number of the event; see :class:`Verifier`.

        Args:
            headers: Headers, with names in lower case.
            body: Content as it came.
            now: Seconds since 1970.

        Raises:
            InvalidSignature: The signature does not hold.
        """
        parts = [
            part.strip().partition("=") for part in _header(headers, "stripe-signature").split(",")
        ]
        times = [value for name, _, value in parts if name == "t"]
        if len(times) != 1:
            raise InvalidSignature("the signature has no time")
        at = _check_time(times[0], now, self._tolerance)
        given = [value.encode() for name, _, value in parts if name == "v1"]
        signed = f"{at}.".encode() + body
        if not _any_is([mac(key, signed).hex().encode() for key in self._keys], given):
            raise InvalidSignature("the signature does not hold")
        found = _parse(body)
        delivery = found.get("id") if isinstance(found, dict) else None
        if not isinstance(delivery, str) or not delivery:
            raise InvalidSignature("the event has no id")
        return delivery


class GitHub:
    """Verifier of requests signed by GitHub.

    GitHub signs neither the time nor the number of the delivery. So anyone who has seen a request
    can send it again under another number; only ``once_per_content`` accepts it once.

    Args:
        *secrets: Secrets of the hook; any of them is accepted.
        once_per_content: True to accept the same content once, under any number.
    """

    def __init__(self, *secrets: str | bytes, once_per_content: bool = False) -> None:
        self._keys = _keys(secrets, plain=True)
        self._once_per_content = once_per_content

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> str:
        """Return the number of the delivery; see :class:`Verifier`.

        Args:
            headers: Headers, with names in lower case.
            body: Content as it came.
            now: Not looked at.

        Raises:
            InvalidSignature: The signature does not hold.
        """
        del now
        given = _header(headers, "x-hub-signature-256").encode()
        expected = [b"sha256=" + mac(key, body).hex().encode() for key in self._keys]
        if not _any_is(expected, [given]):
            raise InvalidSignature("the signature does not hold")
        content = hashlib.sha256(body).hexdigest()[:32]
        if self._once_per_content:
            return content
        return f"{_header(headers, 'x-github-delivery')} {content}"


class Endpoint:
    """A place to which a provider sends its webhooks.

    Args:
        name: The last part of its address, and the beginning of the keys of what it starts.
        verifier: Verifies requests.
        to: A workflow with one parameter, which gets the payload, or all of it where the parameter
            is annotated with :class:`Request`; or a function of the request that returns a
            :class:`Start`, a :class:`Send`, or None to do nothing.

    Raises:
        DefinitionError: The name cannot be part of an address, or the workflow has not one
            parameter.
    """

    def __init__(
        self,
        name: str,
        verifier: Verifier,
        *,
        to: Workflow[..., Any] | Callable[[Request], Start | Send | None],
    ) -> None:
        if not is_name(name) or "/" in name or len(name) > 64:
            raise DefinitionError(
                f"the name of an endpoint must be 1 to 64 characters without '/', not {name!r}"
            )
        if isinstance(to, Workflow) and len(inspect.signature(to.fn).parameters) != 1:
            raise DefinitionError(
                f"endpoint {name!r} starts workflow {to.name}, which must have one parameter: the "
                "payload, or a Request"
            )
        self.name = name
        self.verifier = verifier
        self.to = to

    def decide(self, request: Request) -> Start | Send | None:
        """Return what becomes of a request.

        Args:
            request: The request.
        """
        to = self.to
        if not isinstance(to, Workflow):
            return to(request)
        (name,) = inspect.signature(to.fn).parameters
        if resolve_hints(to.fn).get(name) is Request:
            return Start(to, (request,))
        decoded = to.input_codec.decode(
            json.dumps({name: request.payload}), f"the payload of webhook {self.name}"
        )
        return Start(to, (decoded[name],))

    def key_of(self, request: Request) -> str:
        """Key of the run that a request starts, and idempotency key of its signal.

        Args:
            request: The request.
        """
        key = f"{self.name}/{request.id}"
        if len(key) <= 128 and is_name(key):
            return key
        digest = hashlib.sha256(request.id.encode(errors="surrogatepass")).hexdigest()
        return f"{self.name}/{digest[:48]}"


@dataclass(frozen=True)
class _Came:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class _Answer:
    status: int
    text: str


_REASONS = {
    202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
    405: "Method Not Allowed", 409: "Conflict", 413: "Content Too Large",
    422: "Unprocessable Content",
}  # fmt: skip
_ACCEPTED = _Answer(202, "accepted")


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise NotStorable("the content is not JSON") from error


def _received(endpoint: Endpoint, came: _Came, now: float) -> Request:
    delivery = endpoint.verifier.verify(came.headers, came.body, now)
    if len(delivery) > MAX_ID_CHARS:
        raise InvalidSignature("the number of the delivery is too long")
    return Request(delivery, came.headers, _parse(came.body))


def _refusal(endpoint: Endpoint, error: PgflowError) -> _Answer:
    """Return the answer to a request that cannot be taken. It quotes nothing of ours."""
    log.warning("webhook %s: request refused: %s", endpoint.name, printable(str(error))[:500])
    if isinstance(error, InvalidSignature):
        return _Answer(401, "the signature is not valid")
    if isinstance(error, RunNotFound):
        return _Answer(404, "no run has this key")
    if isinstance(error, KeyConflict):
        return _Answer(409, "this delivery was another one")
    if isinstance(error, NotStorable):
        return _Answer(422, "the content does not fit")
    raise error


def _find(endpoints: Mapping[str, Endpoint], came: _Came) -> Endpoint | _Answer:
    endpoint = endpoints.get(came.path.rstrip("/").rpartition("/")[2])
    if endpoint is None:
        return _Answer(404, "endpoint not found")
    return endpoint if came.method == "POST" else _Answer(405, "use POST")


def _order_of(
    app: App | AsyncApp, endpoint: Endpoint, came: _Came, now: float
) -> Callable[[], Any] | None:
    """Return the call of the app that a request decides; None if nothing is to be done."""
    request = _received(endpoint, came, now)
    decided = endpoint.decide(request)
    key = endpoint.key_of(request)
    if isinstance(decided, Start):
        workflow = decided.workflow.options(key=key, if_taken="attach")
        return partial(app.start, workflow, *decided.args)
    if isinstance(decided, Send):
        return partial(app.send, decided.key, decided.signal, decided.value, idempotency_key=key)
    return None


async def _take_async(app: AsyncApp, endpoint: Endpoint, came: _Came) -> _Answer:
    try:
        now = (await ask_async(app, database_now())).timestamp()
        order = _order_of(app, endpoint, came, now)
        if order is not None:
            await order()
    except PgflowError as error:
        return _refusal(endpoint, error)
    return _ACCEPTED


def _take(app: App, endpoint: Endpoint, came: _Came) -> _Answer:
    try:
        order = _order_of(app, endpoint, came, ask(app, database_now()).timestamp())
        if order is not None:
            order()
    except PgflowError as error:
        return _refusal(endpoint, error)
    return _ACCEPTED


def _by_name(endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        if found.setdefault(endpoint.name, endpoint) is not endpoint:
            raise DefinitionError(f"two endpoints are named {endpoint.name!r}")
    return found


# ---------------------------------------------------------------- the web


def asgi(app: App | AsyncApp, endpoints: Iterable[Endpoint]) -> Asgi:
    """Return an ASGI application that receives webhooks. Mount it anywhere: the last part of the
    path is the name of an endpoint.

    It answers 202 once the run or signal is recorded, 401 if the signature is not valid, 404 if no
    run has the key, 409 if the delivery was another signal before, and 422 if the content does not
    fit.

    Args:
        app: The app, which must be open while it serves.
        endpoints: The endpoints.

    Raises:
        DefinitionError: Two endpoints have the same name.
    """
    named = _by_name(endpoints)

    async def serve(scope: Scope, receive: Receive, send: Respond) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"webhooks are served over HTTP, not {scope['type']}")
        answer = await _answer(app, named, scope, receive)
        text = answer.text.encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(text)).encode()),
            *([(b"allow", b"POST")] if answer.status == 405 else []),
        ]
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": text})

    return serve


async def _answer(
    app: App | AsyncApp, named: Mapping[str, Endpoint], scope: Scope, receive: Receive
) -> _Answer:
    headers = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }
    came = _Came(scope["method"], scope["path"], headers)
    endpoint = _find(named, came)
    if isinstance(endpoint, _Answer):
        return endpoint
    if (body := await read_body(receive, MAX_BODY_BYTES)) is None:
        return _Answer(413, "this is too long")
    came = _Came(came.method, came.path, headers, body)
    if isinstance(app, App):
        return await asyncio.to_thread(_take, app, endpoint, came)
    return await _take_async(app, endpoint, came)


def wsgi(app: App, endpoints: Iterable[Endpoint]) -> Wsgi:
    """Return a WSGI application that receives webhooks; see :func:`asgi`.

    Args:
        app: The app, which must be open while it serves.
        endpoints: The endpoints.

    Raises:
        DefinitionError: Two endpoints have the same name.
    """
    named = _by_name(endpoints)

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        came = _Came(environ["REQUEST_METHOD"], environ.get("PATH_INFO", ""), headers)
        answer = _find(named, came)
        if isinstance(answer, Endpoint):
            length = environ.get("CONTENT_LENGTH") or "0"
            is_size = length.isascii() and length.isdigit() and len(length) < 13
            size = int(length) if is_size else MAX_BODY_BYTES + 1
            if size > MAX_BODY_BYTES:
                answer = _Answer(413, "this is too long")
            else:
                body = environ["wsgi.input"].read(size)
                answer = _take(app, answer, _Came(came.method, came.path, headers, body))
        text = answer.text.encode()
        start_response(
            f"{answer.status} {_REASONS[answer.status]}",
            [
                ("content-type", "text/plain; charset=utf-8"),
                ("content-length", str(len(text))),
                *([("allow", "POST")] if answer.status == 405 else []),
            ],
        )
        return [text]

    return serve
