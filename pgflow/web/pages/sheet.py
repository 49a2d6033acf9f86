"""The statements behind a page, and statements of your own.

If you may see a page, you may see its queries. To run a statement you need the role ``admin``: an
auditor reads the runs of every tenant, and a statement may be expensive.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Awaitable, Callable

import psycopg
from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.backend import Backend, watched
from pgflow.errors import InvalidArgument, NotAllowed
from pgflow.inspect.sheet import (
    EXAMPLES,
    MOST_ROWS,
    MOST_SECONDS,
    find_auditor_dsn,
    read_sheet,
    shown_statement,
)
from pgflow.web.page import Page, link, need, principal_of, read_form

Handlers = dict[str, Callable[[Backend, Request], Awaitable[Page | Response]]]


async def show_sheet(backend: Backend, request: Request) -> Page:
    """Show a field for a statement."""
    return _page(backend, request, request.query_params.get("sql", ""))


async def run_sheet(backend: Backend, request: Request) -> Page:
    """Run a statement, and show its rows."""
    need(request, "admin")
    text = (await read_form(request)).get("sql", "").strip()
    try:
        sheet = await asyncio.to_thread(
            read_sheet, backend.dsn, text, auditor_dsn=backend.auditor_dsn or find_auditor_dsn()
        )
    except InvalidArgument as error:
        return _page(backend, request, text, trouble=str(error), status=400)
    except NotAllowed as error:
        return _page(backend, request, text, trouble=str(error), status=403)
    except psycopg.errors.QueryCanceled:
        said = f"It took longer than {MOST_SECONDS:.0f} s, and was given up. Ask for less."
        return _page(backend, request, text, trouble=said, status=503)
    return _page(backend, request, text, sheet=sheet)


def _page(
    backend: Backend, request: Request, text: str, *, status: int = 200, **said: object
) -> Page:
    del backend
    values = {
        "sql": text,
        "sheet": None,
        "trouble": "",
        "examples": EXAMPLES,
        "most": MOST_ROWS,
        "may": principal_of(request).may("admin"),
        **said,
    }
    return Page("sheet", "SQL", values, "pgflow sql", status)


async def show_behind(backend: Backend, request: Request, handlers: Handlers) -> Page:
    """Show the statements that a page has asked."""
    path, _, query = request.query_params.get("page", "").partition("?")
    if path not in handlers:
        raise InvalidArgument("this address names no page of the console")
    with watched() as seen:
        await handlers[path](backend, _request_of(request, path, query))
    said = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    return Page(
        "behind",
        "What a page asks",
        {
            "statements": list(dict.fromkeys(shown_statement(one) for one in seen.statements)),
            "page": link(request, path, **said),
            "path": path,
            "may": principal_of(request).may("admin"),
        },
        under="/sql",
    )


def _request_of(request: Request, path: str, query: str) -> Request:
    """Return a request for another page by the same user."""
    root = request.scope.get("root_path", "")
    scope = {**request.scope, "path": root + path, "query_string": query.encode()}
    return Request(scope)
