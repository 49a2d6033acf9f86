"""Streams on the web: server-sent events, and the same over a WebSocket, as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from pgflow._asgi import Asgi, Receive, Scope, Send, live
from pgflow._worker.parts import cancel
from pgflow.app import App, AsyncApp
from pgflow.errors import InvalidArgument, RunNotFound, RunStuck
from pgflow.streams.tails import Event, Tails

MayRead = Callable[[Scope, str, str], Awaitable[bool]]

BEAT_SECONDS = 15.0
"""After so long without an event a comment is sent, so that nothing between takes the line for
dead.
"""
FIRST_EVENT_SECONDS = 0.3
"""So long an answer waits for its first event, which may be that there is nothing more to read."""
RETRY_MS = 2_000
NO_CONTENT, METHOD_NOT_ALLOWED = 204, 405
OVER, POLICY_VIOLATION, TRY_AGAIN_LATER, OUR_OWN = 1000, 1008, 1013, 4000
"""Codes with which a WebSocket is closed. Our own have the status of HTTP in them."""
MAX_REASON_BYTES = 123
"""Longest reason that the close of a WebSocket has room for."""


def asgi(app: App | AsyncApp, *, may_read: MayRead, origins: Collection[str] = ()) -> Asgi:
    """Return an ASGI application that sends streams as server-sent events or over a WebSocket.
    Mount it anywhere: the last two parts of the path are the key of the run and the name of the
    stream.

    A unit is an event ``unit`` with its id. A client that reconnects with ``Last-Event-ID``, as
    browsers do, or with ``?after=``, continues after it. With ``?live=1``, values of running steps
    are events ``draft``, without an id. The data of both is ``{"value": ..., "draft": ...}``: a
    unit replaces the draft of the same name, and all drafts that were never meant to be kept. An
    event ``end`` ends the stream. A later request gets 204, which stops browsers.

    A WebSocket gets the same as messages, each an object ``{"event": ..., "id": ..., "value": ...,
    "draft": ...}``, and continues after ``?after=``. It closes with 1000 after the end, with 1013
    if the run is stuck, with 4404 if the run does not exist, and with 4400 if the id is not valid.

    Args:
        app: The app, which must be open while it serves.
        may_read: Function that returns True if a request, given by its ASGI scope, may read a
            stream of a run. Keys of runs are not secret.
        origins: Origins of web pages, such as ``https://example.org``, that may open a WebSocket
            besides the requested host. A browser opens one for any page, with the cookies of the
            user.
    """
    tails: dict[asyncio.AbstractEventLoop, Tails] = {}

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            for one in tails.values():
                await one.close()
            return
        if scope["type"] not in ("http", "websocket"):
            raise RuntimeError(f"streams are served over HTTP or WebSocket, not {scope['type']}")
        loop = asyncio.get_running_loop()
        if loop not in tails:
            tails[loop] = Tails(app)
        with contextlib.suppress(_Gone):
            if scope["type"] == "http":
                await _respond(tails[loop], may_read, scope, receive, _sender(send))
            else:
                await _converse(tails[loop], may_read, origins, scope, receive, _sender(send))

    return serve


class _Gone(Exception):
    """The reader has hung up."""


def _sender(send: Send) -> Send:
    async def tell(message: MutableMapping[str, Any]) -> None:
        try:
            await send(message)
        except OSError:
            raise _Gone from None

    return tell


async def _respond(
    tails: Tails, may_read: MayRead, scope: Scope, receive: Receive, send: Send
) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        await _refuse(send, 405, "streams are read")
        return
    run, stream = _names(scope)
    if not run or not stream:
        await _refuse(send, 404, "the path ends with the key of a run and the name of a stream")
        return
    if not await may_read(scope, run, stream):
        await _refuse(send, 403, "not allowed")
        return
    headers = _headers(scope)
    response = _Response(send, is_head=scope["method"] == "HEAD")
    await _tell(tails, response, scope, receive, headers.get(b"last-event-id", ""))


async def _converse(
    tails: Tails,
    may_read: MayRead,
    origins: Collection[str],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    await receive()  # websocket.connect
    run, stream = _names(scope)
    is_ours = _is_from(_headers(scope), origins)
    if not (run and stream and is_ours and await may_read(scope, run, stream)):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # 403, by the server
        return
    await send({"type": "websocket.accept"})
    await _tell(tails, _Socket(send), scope, receive, "")


def _headers(scope: Scope) -> dict[bytes, str]:
    return {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _is_from(headers: dict[bytes, str], origins: Collection[str]) -> bool:
    """Return True if no web page asks, or one that may."""
    origin = headers.get(b"origin")
    if origin is None or origin in origins:
        return True
    return origin.lower().partition("://")[2] == headers.get(b"host", "").lower() != ""


async def _tell(
    tails: Tails, answer: _Response | _Socket, scope: Scope, receive: Receive, after: str
) -> None:
    """Send a reader the events of a stream, until it ends or the reader disconnects."""
    query = urllib.parse.parse_qs(scope.get("query_string", b"").decode("latin-1"))
    after = after or query.get("after", [""])[0]
    live = query.get("live", ["0"])[0] == "1"
    events = tails.read(*_names(scope), after=after or None, live=live)
    gone = asyncio.create_task(_until_gone(receive), name="pgflow-stream-reader")
    coming = asyncio.ensure_future(anext(events))
    try:
        while not gone.done():
            patience = BEAT_SECONDS if answer.has_begun else FIRST_EVENT_SECONDS
            both: list[asyncio.Future[Any]] = [gone, coming]
            await asyncio.wait(both, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                await answer.beat()
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                await answer.end(knew_all=bool(after))
                return
            except RunStuck as error:
                await answer.stuck(str(error))
                return
            except (RunNotFound, InvalidArgument) as error:
                await answer.refuse(400 if isinstance(error, InvalidArgument) else 404, str(error))
                return
            await answer.event(event)
            if answer.is_head:
                await answer.close()
                return
            coming = asyncio.ensure_future(anext(events))
    finally:
        await cancel([task for task in (gone, coming) if isinstance(task, asyncio.Task)])
        await events.aclose()


def _names(scope: Scope) -> tuple[str, str]:
    """Return the key of the run and the name of the stream; empty where the path has none."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else urllib.parse.quote(scope["path"])
    parts = path.split("/")
    if len(parts) < 2:
        return "", ""
    run, stream = (urllib.parse.unquote(part) for part in parts[-2:])
    return run, stream


async def _until_gone(receive: Receive) -> None:
    """Return once the reader has hung up."""
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


async def _refuse(send: Send, status: int, why: str) -> None:
    body = why.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *([(b"allow", b"GET, HEAD")] if status == METHOD_NOT_ALLOWED else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Response:
    """An answer, which begins with what it is about: once there are events it has a status."""

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send = send
        self.is_head = is_head
        self.has_begun = False

    async def _write(self, text: str) -> None:
        if not self.has_begun:
            self.has_begun = True
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-store"),
                (b"x-accel-buffering", b"no"),
                (b"x-content-type-options", b"nosniff"),
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            text = f"retry: {RETRY_MS}\n\n{text}"
        if not self.is_head:
            await self._send(
                {"type": "http.response.body", "body": text.encode(), "more_body": True}
            )

    async def event(self, event: Event) -> None:
        """Send an event."""
        said = json.dumps({"value": event.value, "draft": event.draft}, ensure_ascii=False)
        if event.is_durable:
            await self._write(f"event: unit\nid: {event.id}\ndata: {said}\n\n")
        else:
            await self._write(f"event: draft\ndata: {said}\n\n")

    async def beat(self) -> None:
        """Send a sign of life."""
        await self._write(": still here\n\n")

    async def stuck(self, why: str) -> None:
        """Send that a person is needed. A later request may find that the run continues."""
        await self._write(f"event: stuck\ndata: {json.dumps(why)}\n\n")
        await self.close()

    async def end(self, *, knew_all: bool) -> None:
        """End the stream. A reader that already had all of it gets a status to stop a browser."""
        if knew_all and not self.has_begun:
            await self._send({"type": "http.response.start", "status": NO_CONTENT, "headers": []})
        else:
            await self._write("event: end\ndata: null\n\n")
        await self.close()

    async def refuse(self, status: int, why: str) -> None:
        """Answer that there is nothing to read."""
        if self.has_begun:
            await self.close()
        else:
            await _refuse(self._send, status, why)

    async def close(self) -> None:
        """End the answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class _Socket:
    """An answer over a WebSocket."""

    is_head = False
    has_begun = True

    def __init__(self, send: Send) -> None:
        self._send = send

    async def _write(self, event: str, **said: Any) -> None:
        text = json.dumps({"event": event, **said}, ensure_ascii=False)
        await self._send({"type": "websocket.send", "text": text})

    async def event(self, event: Event) -> None:
        """Send an event."""
        kind = "unit" if event.is_durable else "draft"
        await self._write(kind, id=event.id, value=event.value, draft=event.draft)

    async def beat(self) -> None:
        """Do nothing: the server checks the connection itself."""

    async def stuck(self, why: str) -> None:
        """Send that a person is needed. A later request may find that the run continues."""
        await self._write("stuck", value=why)
        await self.close(TRY_AGAIN_LATER)

    async def end(self, *, knew_all: bool) -> None:
        """End the stream."""
        del knew_all
        await self._write("end")
        await self.close()

    async def refuse(self, status: int, why: str) -> None:
        """Answer that there is nothing to read."""
        reason = why.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        await self.close(OUR_OWN + status, reason)

    async def close(self, code: int = OVER, reason: str = "") -> None:
        """End the answer."""
        await self._send({"type": "websocket.close", "code": code, "reason": reason})
