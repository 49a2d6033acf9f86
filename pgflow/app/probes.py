"""The endpoint of a worker that answers probes: whether it lives, and whether it is ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgflow.errors import InvalidArgument

if TYPE_CHECKING:
    from pgflow.app import Worker

REQUEST_SECONDS = 5.0
"""Longest wait for a request: a probe sends it at once."""


@dataclass
class Probes:
    """Answers the probes of a worker, on its own event loop: one that is blocked answers nothing.

    Args:
        ready_seconds: Longest silence of the heart of a worker that is ready.
        asked: Set once the worker is asked to stop.

    Attributes:
        worker: The worker, once it has started.
    """

    ready_seconds: float
    asked: asyncio.Event
    worker: Worker | None = None

    def judge(self, path: str) -> tuple[int, str]:
        """Status and text of the answer to a request."""
        has_failed = self.worker is not None and self.worker.failed.is_set()
        if path not in ("/live", "/ready"):
            return 404, "ask for /live or /ready"
        if has_failed:
            return 503, "a part of the worker has failed"
        if path == "/live":
            return 200, "live"
        if self.worker is None:
            return 503, "starting"
        if self.asked.is_set():
            return 503, "stopping"
        silence = self.worker.beat_age_seconds
        if silence > self.ready_seconds:
            return 503, f"the database has not heard from it for {silence:.0f} s"
        return 200, f"worker {self.worker.worker_id} is ready"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request, and closes the connection."""
        with suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.decode("latin-1").partition(" ")
                status, text = self.judge(rest.partition(" ")[0].partition("?")[0])
                if method not in ("GET", "HEAD"):
                    status, text = 405, "GET it"
                body = f"{text}\n".encode()
                reply = (
                    f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}\r\n"
                    f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n"
                )
                writer.write(reply.encode() + (b"" if method == "HEAD" else body))
                await writer.drain()
        writer.close()


@asynccontextmanager
async def answering(probes: Probes, address: tuple[str, int] | None) -> AsyncIterator[None]:
    """Answers probes meanwhile, if an address is given.

    Raises:
        InvalidArgument: There can be no server at this address.
    """
    if address is None:
        yield
        return
    host, port = address
    try:
        server = await asyncio.start_server(probes.answer, host, port, limit=8192)
    except (OSError, UnicodeError) as error:  # the latter: no name of a host
        raise InvalidArgument(
            f"no probes at {host}:{port}: {getattr(error, 'strerror', None) or error}"
        ) from None
    name, number, *_ = server.sockets[0].getsockname()
    shown = f"[{name}]" if ":" in name else name
    logging.getLogger("pgflow").info("probes at http://%s:%s/live and /ready", shown, number)
    try:
        yield
    finally:
        server.close()
