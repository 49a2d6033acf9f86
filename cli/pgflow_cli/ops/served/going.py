"""Tasks beside the worker of a server of files: looks at the files, and webhooks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket

from pgflow_cli.look.failures import Mistake
from pgflow_cli.ops.served.arrivals import Arrivals
from pgflow_cli.ops.served.starts import Starts

log = logging.getLogger("pgflow")


class Going:
    """Tasks beside the worker: looks at the files, and webhooks that come in.

    Raises:
        Mistake: Webhooks cannot come in.
    """

    def __init__(
        self, starts: Starts, arrivals: Arrivals, folder: Path, host: str, port: int
    ) -> None:
        self._starts = starts
        self._arrivals = arrivals
        self._folder = folder
        self._endpoints = starts.endpoints()
        self._listening = _listen(host, port) if self._endpoints else None

    @asynccontextmanager
    async def go_on(self) -> AsyncIterator[None]:
        """Go on until the context is left."""
        await self._starts.remove_schedules(self._folder)
        await self._starts.set_schedules()
        tasks = [asyncio.create_task(self._arrivals.watch())]
        if self._listening is not None:
            tasks.append(asyncio.create_task(self._take_webhooks(self._listening)))
        log.info("%s: %d triggers", self._folder, len(self._starts.triggers))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_webhooks(self, listening: socket) -> None:
        from pgflow.webhooks import asgi
        from pgflow_cli.ops.web import make_server

        server = make_server(asgi(self._starts.app, self._endpoints))
        host, port = listening.getsockname()[:2]
        for endpoint in self._endpoints:
            log.info("webhook %s: http://%s:%s/%s", endpoint.name, host, port, endpoint.name)
        await server.serve(sockets=[listening])


def _listen(host: str, port: int) -> socket:
    """Return a socket at which webhooks come in.

    Raises:
        Mistake: Nothing can listen there, or not without another package.
    """
    try:
        import uvicorn  # noqa: F401
    except ImportError:
        raise Mistake('webhooks need a server: pip install "pgflow-engine[web]"') from None
    from pgflow_cli.ops.web import listen_at

    return listen_at(host, port)
