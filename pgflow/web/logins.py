"""Logins of the console's own: by a token that the user types, or at a provider."""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pgflow.console.backend import Backend
from pgflow.web.guard import cookie
from pgflow.web.oidc import LOGIN_SECONDS, LoginRefused, Oidc
from pgflow.web.page import Page, link, read_form
from pgflow.web.principals import (
    DEVICE_COOKIE,
    DEVICE_SECONDS,
    SESSION_COOKIE,
    SESSION_SECONDS,
    Auth,
    Local,
    Login,
    Tokens,
    TooManyTokens,
)

TICKET_COOKIE = "pgflow_login"
Handler = Callable[[Backend, Request], Awaitable[Page | Response]]


def login_routes(auth: Auth) -> list[tuple[str, str, Handler]]:
    """Return path, method and handler of each page to log in and out."""
    if isinstance(auth, Local):
        return [("/login", "GET", _ByLink(auth).show)]
    if isinstance(auth, Tokens):
        pages = _ByToken(auth)
        return [
            ("/login", "GET", pages.show),
            ("/login", "POST", pages.enter),
            ("/logout", "POST", leave),
        ]
    if isinstance(auth, Oidc):
        provider = _ByProvider(auth)
        return [
            ("/login", "GET", provider.show),
            ("/login/go", "GET", provider.go),
            ("/login/back", "GET", provider.back),
            ("/logout", "POST", leave),
        ]
    assert not isinstance(auth, Login)
    return []


async def leave(backend: Backend, request: Request) -> Response:
    """Log the user out."""
    del backend
    await read_form(request)
    return _leave_for(request, "/login", cookie(request, SESSION_COOKIE, "", seconds=0))


class _ByLink:
    """The page that the link of this machine opens."""

    def __init__(self, auth: Local) -> None:
        self._auth = auth

    async def show(self, backend: Backend, request: Request) -> Page | Response:
        """Let in a browser that has the link; say to others where it is."""
        del backend
        token = request.query_params.get("token", "")
        session = self._auth.session(token) if self._auth.is_here(request) else None
        if session is None:
            said = "This link is of a console that has ended, or of another one." if token else ""
            return _page(request, said, 401, is_link=True)
        name = self._auth.cookie_of(request)
        said = cookie(request, name, session, seconds=SESSION_SECONDS)
        return _leave_for(request, _back(request), said)


class _ByToken:
    """Pages to log in by a token."""

    def __init__(self, auth: Tokens) -> None:
        self._auth = auth

    async def show(self, backend: Backend, request: Request) -> Page:
        """Show a field for a token."""
        del backend
        return _page(request)

    async def enter(self, backend: Backend, request: Request) -> Page | Response:
        """Take a token."""
        del backend
        form = await read_form(request)
        address = request.client.host if request.client is not None else ""
        device = request.cookies.get(DEVICE_COOKIE, "")
        try:
            found = self._auth.session(form.get("token", ""), address, device)
        except TooManyTokens:
            return _page(request, "Too many wrong tokens. Wait a minute.", 429)
        if found is None:
            return _page(request, "This token is unknown.", 401)
        return _leave_for(
            request,
            _back(request),
            cookie(request, SESSION_COOKIE, found[0], seconds=SESSION_SECONDS),
            cookie(request, DEVICE_COOKIE, found[1], seconds=DEVICE_SECONDS),
        )


class _ByProvider:
    """Pages to log in at a provider."""

    def __init__(self, auth: Oidc) -> None:
        self._auth = auth

    async def show(self, backend: Backend, request: Request) -> Page:
        """Show the way to the provider."""
        del backend
        return _page(request, provider=self._auth.host)

    async def go(self, backend: Backend, request: Request) -> Page | Response:
        """Lead to the provider."""
        del backend
        try:
            begun = await self._auth.begin(_back(request))
        except LoginRefused as refused:
            return _page(request, str(refused), 503, provider=self._auth.host)
        answer = RedirectResponse(begun.address, 303)
        # The provider's site leads back here: a cookie that is Strict would not be sent then.
        ticket = cookie(
            request, TICKET_COOKIE, begun.ticket, seconds=LOGIN_SECONDS, is_strict=False
        )
        answer.headers.append("set-cookie", ticket)
        return answer

    async def back(self, backend: Backend, request: Request) -> Page | Response:
        """Take the identity with which the provider sends the user back."""
        del backend
        try:
            ticket = request.cookies.get(TICKET_COOKIE, "")
            session, path = await self._auth.end(ticket, request.query_params)
        except LoginRefused as refused:
            return _page(request, str(refused), 401, provider=self._auth.host)
        # A browser sends a cookie that is Strict only to a page that this site has led to.
        where = html.escape(link(request, "") + path)
        answer = HTMLResponse(
            f'<!doctype html><html lang="en"><title>pgflow</title><a href="{where}">Go on</a>',
            headers={"refresh": f"0; url={link(request, '') + path}"},
        )
        for said in (
            cookie(request, SESSION_COOKIE, session, seconds=SESSION_SECONDS),
            cookie(request, TICKET_COOKIE, "", seconds=0, is_strict=False),
        ):
            answer.headers.append("set-cookie", said)
        return answer


def _page(
    request: Request,
    trouble: str = "",
    status: int = 200,
    *,
    provider: str = "",
    is_link: bool = False,
) -> Page:
    values = {
        "trouble": trouble,
        "back": _back(request),
        "provider": provider,
        "is_link": is_link,
    }
    return Page("login", "Who are you?", values, status=status)


def _back(request: Request) -> str:
    """Return the page to go to after a login: one of this console, whatever the address says."""
    said = request.query_params.get("next", "/")
    is_ours = said.startswith("/") and not said.startswith(("//", "/\\"))
    return said if is_ours and said.isprintable() and said.isascii() else "/"


def _leave_for(request: Request, path: str, *cookies: str) -> Response:
    answer = Response(status_code=303, headers={"location": link(request, path)})
    for said in cookies:
        answer.headers.append("set-cookie", said)
    return answer
