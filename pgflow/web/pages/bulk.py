"""One order to many runs. The runs that a search finds are looked up once, shown and confirmed, and
exactly these get the order, even if the search finds others by then.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from pgflow.console.backend import Backend
from pgflow.console.orders import ORDERS, refusal_of
from pgflow.console.output import many
from pgflow.console.words import quoted
from pgflow.errors import HasActed, InvalidArgument, RunNotFound, WrongState
from pgflow.inspect import list_runs, read_statuses
from pgflow.web.page import Page, need, order_of, read_form
from pgflow.web.pages.runs import asked_of, command_of, filter_of

MOST_RUNS = 500
OF_MANY = {verb: ORDERS[verb] for verb in ("retry", "resume", "pause", "cancel")}
REFUSALS = (HasActed, InvalidArgument, RunNotFound, WrongState)
MOST_NAMED = 5
"""Keys that the command line of an order names."""
MOST_REFUSALS = 20
"""Most refusals that are listed one by one."""


async def ask_many(backend: Backend, request: Request) -> Page:
    """Show the runs that an order would be given to, and ask."""
    need(request, "operate")
    order, asked = order_of(request, OF_MANY, "many runs take"), asked_of(request)
    chosen = request.query_params.getlist("chosen")[:MOST_RUNS]
    if not chosen and not any(asked.values()):
        raise InvalidArgument("choose runs or search first: an order to all runs was not meant")
    where = filter_of(backend, asked)
    if chosen:
        where = replace(where, keys=chosen)
    status = [one for one in where.status or order.fits if one in order.fits]
    runs = []
    more = None
    if status:
        fitting = replace(where, status=status)
        found = await backend.ask(list_runs(fitting, limit=MOST_RUNS, oldest_first=True))
        runs, more = found.items, found.next
    return Page(
        "bulk",
        f"{order.title} many",
        {
            "order": order,
            "runs": runs,
            "more": more,
            "asked": asked,
            "most": MOST_RUNS,
            "keys": json.dumps([run.key for run in runs]),
            "said": {**asked, "verb": order.verb},
        },
        f"pgflow {order.verb} {' '.join(map(quoted, chosen[:MOST_NAMED]))}"
        + (" …" if len(chosen) > MOST_NAMED else "")
        if chosen
        else command_of(asked, order.verb),
        under="/runs",
    )


async def tell_many(backend: Backend, request: Request) -> Page:
    """Give an order to the runs that were shown."""
    principal = need(request, "operate")
    form = await read_form(request)
    order = order_of(request, OF_MANY, "many runs take")
    said: dict[str, Any] = {"by": principal.name}
    if why := form.get("why", "").strip():
        said["why"] = why
    refused = []
    keys = _keys(form.get("keys", ""))
    statuses = await backend.ask(read_statuses(keys))
    for key in keys:
        if statuses[key] not in order.fits:
            refused.append((key, refusal_of(order, key, statuses[key])))
            continue
        try:
            await backend.call(order.verb, key, **said)
        except REFUSALS as error:
            refused.append((key, str(error)))
    return told(order.title, "run", "ordered", len(keys), refused, "/runs")


def told(
    title: str, thing: str, done: str, asked: int, refused: list[tuple[str, str]], back: str
) -> Page:
    """Return the page that says what became of an order or answer to many.

    Args:
        title: Its title.
        thing: Noun for what was asked.
        done: Word for what was done.
        asked: Number of things that were asked.
        refused: Key of the run and reason, of each thing that refused.
        back: Page that lists such things.
    """
    return Page(
        "told",
        title,
        {
            "said": f"{many(asked - len(refused), thing)} {done}." if asked > len(refused) else "",
            "trouble": f"{many(len(refused), thing)} refused it." if refused else "",
            "refused": refused[:MOST_REFUSALS],
            "back": back,
        },
        under=back,
    )


def _keys(text: str) -> list[str]:
    """Return the keys that a form holds.

    Raises:
        InvalidArgument: It holds none, or something else.
    """
    try:
        keys: Any = json.loads(text)
    except (ValueError, RecursionError):
        keys = None
    if (
        not isinstance(keys, list)
        or not 0 < len(keys) <= MOST_RUNS
        or not all(isinstance(key, str) for key in keys)
    ):
        raise InvalidArgument(f"this form names no runs, or more than {MOST_RUNS}")
    return list(dict.fromkeys(keys))
