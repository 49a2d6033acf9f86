"""Live pages: a page that is requested as a stream of events is sent again whenever it has changed.

The address is that of the page, so the same rights apply. A stream ends after a short while and the
browser asks again, which costs the database nothing if nothing is new. So a user who loses their
rights loses the page, and a stream does not keep a server from stopping for long.

All pages together may take only a part of one core of the database. They are made one after the
other, each after a pause in proportion to the last. So many pages, or slow ones, become staler and
not more expensive. A page of one address and one person is made once for all its viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pgflow.web.guard import refusal
from pgflow.web.news import News
from pgflow.web.page import principal_of
from pgflow.web.principals import Principal

LIVE_PATHS = (
    "/", "/overview", "/runs", "/run", "/gates", "/effects", "/obligations", "/budgets",
    "/schedules", "/schedule", "/outbox", "/relay", "/queues", "/workers", "/worker", "/workflows",
    "/workflow",
)  # fmt: skip
"""Pages without input that a refresh could lose."""

SHARE = 0.04
"""Part of the time for which live pages may wait for the database. On a quiet machine it works for
nearly all of that, and a fifth is left for the poll: `python -m tests.console --live` measures it.
"""
REST_SECONDS = 1.0
"""Rest of a page after it was sent: what is new meanwhile comes together."""
STREAM_SECONDS = 20.0
RETRY_MILLISECONDS = 500
MOST_STREAMS = 500

Make = Callable[[Request], Awaitable[tuple[str, float]]]
"""Function that makes a page: its HTML, and the seconds for which the database was asked."""


@dataclass
class _View:
    """A page of one person as it was last made, shared by all that look at it now."""

    looking: int = 0
    count: int = -1
    html: str = ""


class Live:
    """The streams of a console.

    Args:
        news: Changes to wait for.
        make: Function that makes the page of a request.
    """

    def __init__(self, news: News, make: Make) -> None:
        self._news = news
        self._make = make
        self._name = secrets.token_hex(4)
        self._views: dict[tuple[str, Principal], _View] = {}
        self._turn = asyncio.Lock()
        self._free_at = 0.0
        self._streams = 0
        self._closed = asyncio.Event()

    @property
    def mark(self) -> str:
        """The mark of a page that is made now: a stream that begins with it leaves out what the
        page has already.
        """
        return f"{self._name}-{self._news.count}"

    def close(self) -> None:
        """End all streams."""
        self._closed.set()
        self._news.close()

    def stream(self, request: Request) -> Response:
        """Return a page as a stream of events."""
        if self._streams >= MOST_STREAMS:
            return refusal(503, "Too many pages are live. Load this one anew by hand.")
        return StreamingResponse(
            self._events(request),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def _events(self, request: Request) -> AsyncIterator[str]:
        self._streams += 1
        try:
            async with self._news.heard():
                with self._looking(request) as view:
                    yield f"retry: {RETRY_MILLISECONDS}\n\n"
                    async for event in self._changes(request, view):
                        yield event
        finally:
            self._streams -= 1

    async def _changes(self, request: Request, view: _View) -> AsyncIterator[str]:
        """Yield the page whenever it has changed, until the time of a stream is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + STREAM_SECONDS
        seen, sent = self._known(request), ""
        while not self._closed.is_set():
            try:
                await asyncio.wait_for(self._news.after(seen), until - loop.time())
            except TimeoutError:
                return
            await self._renew(request, view, self._news.count)
            if self._closed.is_set():
                return
            seen = view.count
            if view.html != sent:
                sent = view.html
                yield f"id: {self._name}-{seen}\nevent: page\ndata: {json.dumps(sent)}\n\n"
            await self._rest(REST_SECONDS)

    def _known(self, request: Request) -> int:
        """Return the count that a browser says its page is of; -1 if it says none of ours."""
        said = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        name, _, count = said.rpartition("-")
        is_ours = name == self._name and count.isascii() and count.isdecimal() and len(count) < 16
        return int(count) if is_ours else -1

    @contextlib.contextmanager
    def _looking(self, request: Request) -> Iterator[_View]:
        key = (_address(request), principal_of(request))
        view = self._views.setdefault(key, _View())
        view.looking += 1
        try:
            yield view
        finally:
            view.looking -= 1
            if not view.looking:
                self._views.pop(key, None)

    async def _renew(self, request: Request, view: _View, count: int) -> None:
        """Make a page anew in its turn, unless another stream has done so meanwhile."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if view.count >= count:
                return
            await self._rest(self._free_at - loop.time())
            if self._closed.is_set():
                return
            view.count = self._news.count
            view.html, seconds = await self._make(request)
            self._free_at = loop.time() + seconds * (1 / SHARE - 1)

    async def _rest(self, seconds: float) -> None:
        """Wait for so long, or until all streams end: no page that rests keeps a server."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()


def wants_stream(request: Request) -> bool:
    """Return True if a page is asked for as a stream of events."""
    return "text/event-stream" in request.headers.get("accept", "")


def _address(request: Request) -> str:
    said = [pair for pair in request.query_params.multi_items() if pair[0] != "seen"]
    return f"{request.scope['path']}?{json.dumps(sorted(said))}"
