"""The guard before every page: which requests it lets in, and what a browser may do with the
answer.

Every fault of a request is found before a page sees it. A page is never shown in a frame, takes
script and style from this server only, and is never cached. A change needs four things that a
foreign page cannot have together: the POST comes from this origin, the browser confirms that if it
sends its headers, the principal has the role, and the form has the mark that was made for this
principal in this browser.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgflow.web.principals import Auth, Login, Principal, host_of
from pgflow.web.proxies import Network, through

MAX_BODY_BYTES = 4 * 1024 * 1024
"""A form may bring a value of a run, which has at most 1 MiB and is encoded for its way."""
MAX_QUERY_BYTES = 16_384
BODY_SECONDS = 30.0
"""Time that a form may be on its way."""

MARK_COOKIE = "pgflow_mark"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
        "img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "x-robots-tag": "noindex",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

OPEN_PATHS = (
    "/login", "/login/go", "/login/back", "/static/console.css",
    "/static/console.js", "/static/icon.svg",
)  # fmt: skip
"""Paths that are open without a login."""


class Guard:
    """An ASGI application around the pages.

    Args:
        pages: The pages.
        auth: Function that says who sends a request.
        hosts: Names by which this server may be called; any if not given.
        secret: Key of the marks of forms; the same in all processes that serve one host.
        close: Function that ends the live pages.
        proxies: Networks of the proxies before it.
    """

    def __init__(
        self,
        pages: ASGIApp,
        auth: Auth,
        hosts: Sequence[str] | None,
        secret: bytes | None,
        close: Callable[[], None],
        proxies: Sequence[Network] = (),
    ) -> None:
        self._pages = pages
        self._proxies = proxies
        self._is_secure = isinstance(auth, Login) and auth.is_secure
        self._auth = auth
        self._hosts = None if hosts is None else {name.lower() for name in hosts}
        self._secret = secret or secrets.token_bytes(32)
        self.close = close
        """Ends the live pages: a server may wait for them when it stops."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._pages(scope, receive, send)
            return
        scope = through(scope, self._proxies)
        if self._is_secure:
            scope = {**scope, "scheme": "https"}
        request = Request(scope)
        nonce = request.cookies.get(MARK_COOKIE, "")
        is_new = not _is_nonce(nonce)
        nonce = secrets.token_urlsafe(24) if is_new else nonce

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if _path(request).startswith("/static/"):
                    headers["cache-control"] = "public, max-age=86400"
                if is_new:
                    headers.append("set-cookie", cookie(request, MARK_COOKIE, nonce))
            await send(message)

        answer = await self._refuse(request, nonce)
        if answer is not None:
            await answer(scope, receive, guarded)
            return
        await self._pages(scope, _bounded(receive), guarded)

    async def _refuse(self, request: Request, nonce: str) -> Response | None:
        """Return the answer to a request that no page may see; None to let it in."""
        if self._hosts is not None and host_of(request) not in self._hosts:
            return refusal(400, "This server is not known by that name.")
        if len(request.scope.get("query_string", b"")) > MAX_QUERY_BYTES:
            return refusal(414, "This address is too long.")
        if request.method not in ("GET", "HEAD", "POST"):
            return refusal(405, "Pages are read by GET, and forms are sent by POST.")
        if request.method == "POST" and not _is_own(request):
            return refusal(403, "This form was sent from another site.")
        said = self._auth(request)
        principal = await said if isinstance(said, Awaitable) else said
        path = _path(request)
        if principal is None and path not in OPEN_PATHS:
            return self._ask_who(request, path)
        if principal is not None and not principal.may("view"):
            return refusal(403, f"{principal.name} may not look here.")
        request.scope["pgflow.principal"] = principal
        request.scope["pgflow.mark"] = self._mark(nonce, principal)
        return None

    def _ask_who(self, request: Request, path: str) -> Response:
        if not isinstance(self._auth, Login) or request.method == "POST":
            return refusal(401, "Only those may look here whom this server knows.")
        query = request.url.query
        back = urllib.parse.urlencode({"next": path + (f"?{query}" if query else "")})
        root = request.scope.get("root_path", "")
        return RedirectResponse(f"{root}/login?{back}", 303)

    def _mark(self, nonce: str, principal: Principal | None) -> str:
        """Return the mark of forms for a principal in one browser."""
        name = principal.name if principal is not None else ""
        said = f"pgflow mark\0{nonce}\0{name}".encode()
        return hmac.new(self._secret, said, hashlib.sha256).hexdigest()


def refusal(status: int, words: str) -> Response:
    """Return a plain text answer without any content of the request."""
    return PlainTextResponse(words + "\n", status)


def has_mark(request: Request, given: str) -> bool:
    """Return True if a form has the mark that was made for its sender."""
    return hmac.compare_digest(request.scope["pgflow.mark"].encode(), given.encode())


def cookie(
    request: Request, name: str, value: str, *, seconds: int | None = None, is_strict: bool = True
) -> str:
    """Return a cookie that no script can read and no other site can send. One that is not strict is
    also sent when a user follows a link to here.
    """
    root = request.scope.get("root_path", "") or "/"
    same = "Strict" if is_strict else "Lax"
    age = "" if seconds is None else f"; Max-Age={seconds}"
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{name}={value}; Path={root}; HttpOnly; SameSite={same}{age}{secure}"


def _is_nonce(text: str) -> bool:
    return len(text) == 32 and all(char.isalnum() or char in "-_" for char in text)


def _is_own(request: Request) -> bool:
    """Return True if a browser does not say that another site has sent this."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    return urllib.parse.urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()


def _path(request: Request) -> str:
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def _bounded(receive: Receive) -> Receive:
    """Return a receiver that takes no more of a body than a form may have, and waits no longer for
    it.
    """
    seen, is_whole = 0, False
    until = asyncio.get_running_loop().time() + BODY_SECONDS

    async def bounded() -> Any:
        nonlocal seen, is_whole
        try:
            async with asyncio.timeout_at(None if is_whole else until):
                message = await receive()
        except TimeoutError:
            raise TooSlow from None
        is_whole = not message.get("more_body", False)
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise TooLong
        return message

    return bounded


class TooSlow(Exception):
    """The body of a request did not come in time."""


class TooLong(Exception):
    """The body of a request is longer than that of any form."""
