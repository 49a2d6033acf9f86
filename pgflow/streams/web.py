"""Streams on the web: server-sent events, and the same over a WebSocket, as an ASGI application.

It needs ``pip install "pgflow-engine[web]"``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

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
NO_CONTENT = 204
OVER, POLICY_VIOLATION, TRY_AGAIN_LATER, OUR_OWN = 1000, 1008, 1013, 4000
"""Codes with which a WebSocket is closed. Our own have the status of HTTP in them."""
MAX_REASON_BYTES = 123
"""Longest reason that the close of a WebSocket has room for."""
HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}


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
        if scope["type"] == "http":
            with contextlib.suppress(OSError, ClientDisconnect):  # the reader has hung up
                await _respond(tails[loop], may_read, Request(scope, receive), send)
        else:
            with contextlib.suppress(WebSocketDisconnect):
                await _converse(tails[loop], may_read, origins, WebSocket(scope, receive, send))

    return serve


class _Told(NamedTuple):
    """A step of a stream: ``unit``, ``draft``, ``end``, ``stuck``, ``beat`` or ``refused``."""

    kind: str
    event: Event | None = None
    why: str = ""
    status: int = 0


async def _tell(
    tails: Tails, request: HTTPConnection, after: str | None
) -> AsyncGenerator[_Told, None]:
    """Yield the events of a stream, a beat where none comes for long, and why it is over."""
    is_live = request.query_params.get("live") == "1"
    events = tails.read(*_names(request.scope), after=after, live=is_live)
    coming = asyncio.ensure_future(anext(events))
    patience = FIRST_EVENT_SECONDS
    try:
        while True:
            await asyncio.wait([coming], timeout=patience)
            patience = BEAT_SECONDS
            if not coming.done():
                yield _Told("beat")
                continue
            event = coming.result()
            yield _Told("unit" if event.is_durable else "draft", event)
            coming = asyncio.ensure_future(anext(events))
    except StopAsyncIteration:
        yield _Told("end")
    except RunStuck as error:
        yield _Told("stuck", why=str(error))
    except RunNotFound as error:
        yield _Told("refused", why=str(error), status=404)
    except InvalidArgument as error:
        yield _Told("refused", why=str(error), status=400)
    finally:
        await cancel([coming])
        await events.aclose()


async def _respond(tails: Tails, may_read: MayRead, request: Request, send: Send) -> None:
    after = request.headers.get("last-event-id") or request.query_params.get("after")
    async with contextlib.aclosing(_tell(tails, request, after)) as told:
        response = await _refusal(may_read, request) or await _response(request, told, after)
        await response(request.scope, request.receive, send)


async def _refusal(may_read: MayRead, request: Request) -> Response | None:
    run, stream = _names(request.scope)
    if request.method not in ("GET", "HEAD"):
        return _refuse(405, "streams are read", allow="GET, HEAD")
    if not run or not stream:
        return _refuse(404, "the path ends with the key of a run and the name of a stream")
    if not await may_read(request.scope, run, stream):
        return _refuse(403, "not allowed")
    return None


def _refuse(status: int, why: str, **headers: str) -> Response:
    return PlainTextResponse(why, status, {"cache-control": "no-store", **headers})


async def _response(
    request: Request, told: AsyncGenerator[_Told, None], after: str | None
) -> Response:
    """Return the answer to a reader: its status depends on the first event."""
    first = await anext(told)
    if first.kind == "refused":
        return _refuse(first.status, first.why)
    if first.kind == "end" and after:
        return Response(status_code=NO_CONTENT)  # to a browser that has all of it: stop
    if request.method == "HEAD":
        return Response(headers=HEADERS, media_type="text/event-stream")
    return StreamingResponse(_lines(first, told), headers=HEADERS, media_type="text/event-stream")


async def _lines(first: _Told, told: AsyncGenerator[_Told, None]) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n{_line(first)}"
    async for step in told:
        yield _line(step)


def _line(step: _Told) -> str:
    """Return a step as a server-sent event."""
    if step.kind == "beat":
        return ": still here\n\n"
    if step.kind == "refused":
        return ""
    if step.event is None:
        return f"event: {step.kind}\ndata: {json.dumps(step.why or None)}\n\n"
    id_ = f"id: {step.event.id}\n" if step.event.is_durable else ""
    frame = {"value": step.event.value, "draft": step.event.draft}
    return f"event: {step.kind}\n{id_}data: {json.dumps(frame, ensure_ascii=False)}\n\n"


async def _converse(
    tails: Tails, may_read: MayRead, origins: Collection[str], socket: WebSocket
) -> None:
    run, stream = _names(socket.scope)
    is_ours = _is_from(socket, origins)
    if not (run and stream and is_ours and await may_read(socket.scope, run, stream)):
        await socket.close(POLICY_VIOLATION)  # 403, by the server
        return
    await socket.accept()
    sending = asyncio.create_task(_send_all(tails, socket), name="pgflow-stream-reader")
    gone = asyncio.create_task(_until_gone(socket), name="pgflow-stream-reader")
    try:
        await asyncio.wait([sending, gone], return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        await cancel([sending, gone])


async def _until_gone(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _send_all(tails: Tails, socket: WebSocket) -> None:
    """Send the events of a stream until it ends, then close."""
    async with contextlib.aclosing(_tell(tails, socket, socket.query_params.get("after"))) as told:
        async for kind, event, why, status in told:
            if event is not None:
                frame = {"id": event.id, "value": event.value, "draft": event.draft}
                await _say(socket, kind, **frame)
            elif kind == "end":
                await _say(socket, kind)
                await socket.close(OVER)
            elif kind == "stuck":
                await _say(socket, kind, value=why)
                await socket.close(TRY_AGAIN_LATER)
            elif kind == "refused":
                reason = why.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
                await socket.close(OUR_OWN + status, reason)


async def _say(socket: WebSocket, event: str, **said: Any) -> None:
    await socket.send_text(json.dumps({"event": event, **said}, ensure_ascii=False))


def _is_from(socket: WebSocket, origins: Collection[str]) -> bool:
    """Return True if no web page asks, or one that may."""
    origin = socket.headers.get("origin")
    if origin is None or origin in origins:
        return True
    return origin.lower().partition("://")[2] == socket.headers.get("host", "").lower() != ""


def _names(scope: Scope) -> tuple[str, str]:
    """Return the key of the run and the name of the stream; empty where the path has none."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else urllib.parse.quote(scope["path"])
    parts = path.split("/")
    if len(parts) < 2:
        return "", ""
    run, stream = (urllib.parse.unquote(part) for part in parts[-2:])
    return run, stream
