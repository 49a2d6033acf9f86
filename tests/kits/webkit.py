"""The console in tests: a browser without a screen, which keeps cookies, reads forms and sends
them.
"""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, Self

import httpx
import psycopg
from records import wait_until
from servers import HANG_SECONDS

from pgflow.web import Principal, asgi

BASE = "http://127.0.0.1"
APART = {
    "p", "div", "dt", "dd", "td", "th", "tr", "li", "h1", "h2", "h3", "label", "option", "summary",
    "pre", "section", "button", "legend", "title", "nav", "a",
}  # fmt: skip
"""Elements whose text does not run on into that before."""
VOID = {"meta", "link", "input", "br", "img", "hr"}


@dataclass
class Form:
    """A form of a page.

    Attributes:
        action: Address that it is sent to.
        method: ``get`` or ``post``.
        fields: Values of its fields as they stand in the page.
    """

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


class Reader(HTMLParser):
    """A page as a browser reads it: its elements, its text, its links and forms."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.links: list[str] = []
        self.forms: list[Form] = []
        self.open: list[str] = []
        self.broken: list[str] = []
        self._area: str | None = None
        self._choice: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        named = dict(attrs)
        self.elements.append((tag, named))
        self.text += " " if tag in APART else ""
        if tag not in VOID:
            self.open.append(tag)
        if tag == "a":
            self.links.append(named.get("href") or "")
        elif tag == "form":
            self.forms.append(Form(named.get("action") or "", named.get("method") or "get"))
        elif tag == "input" and self.forms and named.get("type") != "radio":
            if named.get("type") == "checkbox" and "checked" not in named:
                return
            self.forms[-1].fields[named.get("name") or ""] = named.get("value") or ""
        elif tag == "textarea":
            self._area = named["name"]
            self.forms[-1].fields[self._area or ""] = ""
        elif tag == "select":
            self._choice = named["name"]
        elif tag == "option" and self._choice is not None:
            fields = self.forms[-1].fields
            if "selected" in named or self._choice not in fields:
                fields[self._choice] = named.get("value") or ""

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            fields, name = self.forms[-1].fields, self._area or ""
            fields[name] = fields[name].removeprefix("\n")  # as browsers do
            self._area = None
        if tag == "select":
            self._choice = None
        if not self.open or self.open.pop() != tag:
            self.broken.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._area is not None:
            self.forms[-1].fields[self._area] += data

    @property
    def words(self) -> str:
        """The text on one line."""
        return " ".join(self.text.split())


class Browser:
    """A browser of one person.

    Args:
        app: The app.
        principal: The person; ``auth`` in its place says it of each request.
        is_old: True for one that says nothing of where a form comes from.
        **options: Further ones of `asgi`.
    """

    def __init__(
        self,
        app: Any,
        principal: Principal | None = None,
        *,
        auth: Any = None,
        is_old: bool = False,
        **options: Any,
    ) -> None:
        served = self.served = asgi(app, auth=auth or (lambda _: principal), **options)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(served, client=("127.0.0.1", 5000)),
            base_url=BASE,
            headers={"host": "127.0.0.1"},
        )
        self.last: httpx.Response | None = None
        self._said = {} if is_old else {"origin": BASE}

    async def get(self, path: str, **said: str) -> Reader:
        """Open a page, which must be there."""
        self.last = await self.client.get(
            path + (f"?{urllib.parse.urlencode(said)}" if said else "")
        )
        assert self.last.status_code == 200, (path, self.last.status_code, self.last.text[-600:])
        return Reader(self.last.text)

    async def status(self, path: str, **said: str) -> int:
        """Open a page, and return the status of the answer."""
        self.last = await self.client.get(
            path + (f"?{urllib.parse.urlencode(said)}" if said else "")
        )
        return self.last.status_code

    async def send(self, form: Form, **values: str) -> httpx.Response:
        """Send a form with some of its fields filled in; names with a dot are written with two
        underscores.
        """
        filled = {**form.fields, **{name.replace("__", "."): text for name, text in values.items()}}
        self.last = await self.client.post(form.action, data=filled, headers=self._said)
        return self.last

    async def submit(self, path: str, which: dict[str, str], **values: str) -> httpx.Response:
        """Open a page, and send the form on it that has these fields."""
        page = await self.get(path)
        return await self.send(form_of(page, which), **values)


class Watched:
    """A page that is looked at live.

    Attributes:
        status: Status of the answer.
        events: Events that came so far: id and page of each event.
    """

    def __init__(self, browser: Browser, path: str, **headers: str) -> None:
        self.status = 0
        self.events: list[tuple[str, Reader]] = []
        self._news = asyncio.Event()
        self._left = asyncio.Event()
        self._text = ""
        where, _, query = path.partition("?")
        said = {"host": "127.0.0.1", "accept": "text/event-stream", **headers}
        scope = {
            "type": "http",
            "method": "GET",
            "path": where,
            "query_string": query.encode(),
            "headers": [(name.encode(), text.encode()) for name, text in said.items()],
            "client": ("127.0.0.1", 5000),
            "scheme": "http",
            "server": ("127.0.0.1", 80),
        }
        self._task = asyncio.create_task(browser.served(scope, self._receive, self._send))
        self._task.add_done_callback(lambda _: self._news.set())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        await self._task

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self._text += message.get("body", b"").decode()
            *whole, self._text = self._text.split("\n\n")
            for event in whole:
                named = dict(line.split(": ", 1) for line in event.split("\n"))
                if named.get("event") == "page":
                    self.events.append((named["id"], Reader(json.loads(named["data"]))))
        self._news.set()

    async def until(self, words: str) -> Reader:
        """Wait until the page has these words."""
        async with asyncio.timeout(HANG_SECONDS):
            while not self.events or words not in self.events[-1][1].words:
                assert not self._task.done(), (self.status, [page.words for _, page in self.events])
                self._news.clear()
                await self._news.wait()
        return self.events[-1][1]

    async def ended(self) -> int:
        """Wait for the end of the stream, and return its status."""
        async with asyncio.timeout(HANG_SECONDS):
            await self._task
        return self.status


def mark_of(browser: Browser, principal: Principal) -> str:
    """Return the mark of a browser that has seen a page: no form of that person need have it."""
    guard: Any = browser.served
    return str(guard._mark(browser.client.cookies["pgflow_mark"], principal))


def form_of(page: Reader, which: dict[str, str]) -> Form:
    """Return the form of a page that has these fields."""
    for form in page.forms:
        if form.method == "post" and all(
            form.fields.get(name) == text for name, text in which.items()
        ):
            return form
    raise AssertionError(f"no form with {which}: {[form.fields for form in page.forms]}")


def refuse(conn: psycopg.Connection[Any], relay: str, error: str, *, dead_of: int = 1) -> list[int]:
    """Let a relay take what there is and fail with all of it, for good with each so-manieth event;
    return the numbers of the events.
    """
    taken: list[list[Any]] = []

    def take() -> bool:
        _, _, events = conn.execute(
            "select state, wait_seconds, events from pgflow.take_events(%s, 7, 30, 1000)", (relay,)
        ).fetchone() or (None, None, None)
        taken.extend(events or [])
        return bool(taken)

    wait_until(take, "no older transaction is open on the server")
    numbers = [event[0] for event in taken]
    results = [
        [number, "failed" if place % dead_of else "dead", error, 60]
        for place, number in enumerate(numbers)
    ]
    conn.execute(
        "select pgflow.settle_events(%s, 7, %s, %s)", (relay, numbers[-1], json.dumps(results))
    )
    return numbers


def address(path: str, **said: str) -> str:
    """Return the address of a page."""
    return f"{path}?{urllib.parse.urlencode(said)}"


def is_harmless(page: Reader) -> list[str]:
    """Return what in a page could run or fetch something that is not the console's own."""
    bad = []
    for tag, attrs in page.elements:
        if tag == "script" and "/static/console.js?" not in (attrs.get("src") or ""):
            bad.append(tag)
        if tag in ("iframe", "object", "embed", "img", "style", "base"):
            bad.append(tag)
        for name, value in attrs.items():
            text = (value or "").strip().lower()
            if name.startswith("on") or name == "style":
                bad.append(f"{tag} {name}")
            if name in ("href", "src", "action") and not text.startswith(("/", "#")):
                bad.append(f"{tag} {name}={text}")
            if name in ("href", "src", "action") and text.startswith("//"):
                bad.append(f"{tag} {name}={text}")
    return bad + page.broken


def tampered(cookie: str) -> str:
    """Return a signed cookie with another character in its signature; not the last, whose bits may say
    nothing.
    """
    return cookie[:-9] + ("y" if cookie[-9] == "x" else "x") + cookie[-8:]
