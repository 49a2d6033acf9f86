"""Saved searches of runs, by names that people choose: each person's own, and those for everyone.

A search is its address. What is kept is that address under a name, as a document of the person, so
it is there in every browser and in every process that serves the console.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.backend import Backend
from pgflow.documents import Put
from pgflow.errors import InvalidArgument
from pgflow.web.page import Page, need, read_form, see
from pgflow.web.pages.runs import (
    COLLECTION,
    EVERYONE,
    MOST_FILTERS,
    asked_of,
    command_of,
    filter_of,
    list_filters,
)

MOST_CHARS = 60


async def ask_filter(backend: Backend, request: Request) -> Page:
    """Show how a search is saved, and those that are."""
    principal, asked = need(request, "operate"), asked_of(request)
    filter_of(backend, asked)
    return Page(
        "filters",
        "Saved searches",
        {
            "asked": asked,
            "is_searched": any(asked.values()),
            "filters": await list_filters(backend, principal),
            "most": MOST_CHARS,
        },
        command_of(asked),
        under="/runs",
    )


async def save_filter(backend: Backend, request: Request) -> Response:
    """Save a search, or forget one."""
    principal, asked = need(request, "operate"), asked_of(request)
    form = await read_form(request)
    name = " ".join(form.get("name", "").split())
    if not 0 < len(name) <= MOST_CHARS:
        raise InvalidArgument(f"name the search, in at most {MOST_CHARS} characters")
    if form.get("verb") == "forget":
        for folder in (EVERYONE, principal.name):
            await backend.forget(COLLECTION, (folder, name))
        return see(request, "/filters")
    filter_of(backend, asked)
    if not any(asked.values()):
        raise InvalidArgument("search first: every run there is needs no name")
    kept = await list_filters(backend, principal)
    if len(kept) >= MOST_FILTERS and name not in kept:
        raise InvalidArgument(f"forget another first: {MOST_FILTERS} searches are kept at most")
    said = {field: value for field, value in asked.items() if value}
    folder = EVERYONE if "everyone" in form else principal.name
    await backend.keep(Put(COLLECTION, (folder, name), said))
    return see(request, "/runs", **said)
