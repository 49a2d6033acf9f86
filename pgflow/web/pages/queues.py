"""Queues: the runs in each, and its rules, which you can change while it works."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.backend import Backend
from pgflow.console.words import quoted
from pgflow.errors import InvalidArgument, RunNotFound
from pgflow.inspect import (
    QUEUE_RULES,
    QueueRow,
    database_now,
    list_queue_changes,
    list_queued_lanes,
    list_queues,
)
from pgflow.web.page import Page, need, principal_of, query, read_form, see

CHANGE_ROWS = 20
MOST_QUEUES = 200
MOST_LANES = 100
"""Rows of a page: names of queues and workflows are the clients', who may give thousands."""
FIELDS = {
    name: rule for name, rule in QUEUE_RULES.items() if rule.kind in ("number", "text", "rate")
}
"""Rules with a field, as the page has them; `pgflow queues set` has all."""
DONE = {
    "pause": "Nothing is claimed from it any more. What runs goes on.",
    "resume": "It goes on.",
    "set": "The rules hold from the next claim on.",
    "same": "It was so already: nothing has changed.",
}


async def show_queues(backend: Backend, request: Request) -> Page:
    """Show queues, and their lanes without a worker."""
    del request
    found = await backend.ask(list_queues())
    return Page(
        "queues",
        "Queues",
        {
            "queues": busiest(found, MOST_QUEUES),
            "left_out": max(0, len(found) - MOST_QUEUES),
            "lanes": await backend.ask(list_queued_lanes(limit=MOST_LANES + 1)),
            "most_lanes": MOST_LANES,
            "now": await backend.ask(database_now()),
        },
        "pgflow queues",
    )


async def show_queue(backend: Backend, request: Request) -> Page:
    """Show a queue, its rules, and who changed them."""
    found = await _find(backend, request)
    fields = [(name, rule, _shown(found, name)) for name, rule in FIELDS.items()]
    return Page(
        "queue",
        found.queue,
        {
            "queue": found,
            "fields": fields,
            "others": {name: rule for name, rule in found.rules.items() if name not in FIELDS},
            "changes": await backend.ask(list_queue_changes(found.queue, limit=CHANGE_ROWS)),
            "lanes": await backend.ask(list_queued_lanes(found.queue, limit=MOST_LANES + 1)),
            "most_lanes": MOST_LANES,
            "may": principal_of(request).may("operate"),
            "now": await backend.ask(database_now()),
            "done": DONE.get(request.query_params.get("done", ""), ""),
        },
        f"pgflow queues changes {quoted(found.queue)}",
    )


async def change_queue(backend: Backend, request: Request) -> Response:
    """Pause or resume a queue, or set the rules that the user edited."""
    principal = need(request, "operate")
    form = await read_form(request)
    found = await _find(backend, request)
    verb, said = form.get("verb", ""), {"by": principal.name, "why": form.get("why", "") or None}
    if verb == "set":
        rules = _edited(form)
        if rules:
            await backend.call("set_queue", found.queue, **said, **rules)
        verb = "set" if rules else "same"
    elif verb in ("pause", "resume"):
        await backend.call(f"{verb}_queue", found.queue, **said)
    else:
        raise InvalidArgument("a queue is paused, resumed or given rules")
    return see(request, "/queue", name=found.queue, done=verb)


def busiest(found: list[QueueRow], most: int) -> list[QueueRow]:
    """Return all queues, or if they are too many those with the most open runs, by name."""
    if len(found) <= most:
        return found
    ranked = sorted(found, key=lambda one: -(one.queued + one.running + one.waiting + one.stuck))
    return sorted(ranked[:most], key=lambda one: one.queue)


def _edited(form: dict[str, str]) -> dict[str, Any]:
    """Return the rules whose fields are not as they were shown: others may have been set since."""
    rules: dict[str, Any] = {}
    for name in FIELDS:
        text = form.get(name, "").strip()
        if text != form.get(f"was-{name}", "").strip():
            rules[name] = _rule(name, text) if text else None
    return rules


def _rule(name: str, text: str) -> int | str:
    if FIELDS[name].kind != "number":
        return text
    if not text.isdecimal() or len(text) > 9:
        raise InvalidArgument(f"{name} of a queue is a whole number, not {text!r}")
    return int(text)


def _shown(found: QueueRow, name: str) -> str:
    rule = found.rules.get(name)
    return "" if rule is None else str(rule)


async def _find(backend: Backend, request: Request) -> QueueRow:
    name = query(request, "name")
    found = await backend.ask(list_queues(name))
    if not found:
        raise RunNotFound(f"queue {name!r} does not exist")
    return found[0]
