"""A server of ASGI applications that stays up in a flood: uvicorn, with bounds on the requests that
are on their way.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pgflow.errors import InvalidArgument

REQUEST_SECONDS = 30.0
"""Time that a request may be on its way."""
MOST_HALF_OPEN = 100
"""Connections without a whole request."""
MOST_CONNECTIONS = 500
"""Connections at once; a request on one more is answered by 503."""


def make_server(served: Any) -> Any:
    """Return a server of an ASGI application, by uvicorn without its own ways with signals: it
    would end by the signal again, and so never with 0.

    Args:
        served: The application.
    """
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(
        uvicorn.Config(
            _answering_to_the_end(served),
            http=_make_protocol(),
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
            limit_concurrency=MOST_CONNECTIONS,
        )
    )


def _make_protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a bound on requests that have not come as a whole: each has so
    long, and where they are too many the oldest makes room.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    half_open: dict[Any, asyncio.TimerHandle] = {}

    class Protocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self.forget()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            cycle = self.cycle
            if cycle is None or cycle.response_complete or not cycle.response_started:
                super().send_400_response(msg)
            else:
                self.transport.close()
            if cycle is not None:
                cycle.disconnected = True  # else its answer would follow, against the protocol

        def watch(self) -> None:
            cycle = self.cycle
            if cycle is not None and not cycle.more_body and not cycle.response_complete:
                self.forget()
            elif self not in half_open and not self.transport.is_closing():
                half_open[self] = self.loop.call_later(REQUEST_SECONDS, self.give_up)
                if len(half_open) > MOST_HALF_OPEN:
                    next(iter(half_open)).give_up()

        def forget(self) -> None:
            if self in half_open:
                half_open.pop(self).cancel()

        def give_up(self) -> None:
            self.forget()
            self.transport.close()

    return Protocol


def _answering_to_the_end(served: Any) -> Any:
    """Return an application that answers also where the server stops and breaks a request off,
    because the database has not answered for so long. Else each is logged as an error of ours.
    """

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        has_begun = False

        async def noted(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await served(scope, receive, noted)
        except asyncio.CancelledError:
            if not has_begun:
                headers = [(b"content-type", b"text/plain; charset=utf-8")]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
            text = b"" if has_begun else b"This server stops: load the page again later."
            await send({"type": "http.response.body", "body": text})

    return answering


def listen_at(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        InvalidArgument: The address is in use, or does not exist.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise InvalidArgument(f"nothing can listen at {host}:{port}: {why}") from None
