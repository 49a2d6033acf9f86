"""Types of ASGI, the lifespan of an application without start-up and shutdown, and the bodies of
requests up to a size.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


async def live(receive: Receive, send: Send) -> None:
    """Answer a server's lifespan messages until it shuts down."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def read_body(receive: Receive, most_bytes: int) -> bytes | None:
    """Return the body of a request; None if it has more bytes than that."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > most_bytes:
            return None
        if not message.get("more_body"):
            return bytes(body)
