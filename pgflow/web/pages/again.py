"""A part of a run again: back to a unit of its journal, or a fork that begins with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.backend import Backend
from pgflow.console.orders import read_json
from pgflow.console.words import literal, quoted
from pgflow.errors import InvalidArgument
from pgflow.inspect import find_detail, find_run, last_seq, list_units
from pgflow.web.page import Page, need, query, read_form, see

TREATMENTS = {
    "": "refuse if it has acted outside",
    "reuse": "reuse its results where the run asks for the same",
    "repeat": "do it again, under new keys",
    "compensate": "take its effects back first",
}
"""Treatments of the part that is dropped, by their names; a fork takes nothing back."""


async def ask_again(backend: Backend, request: Request) -> Page:
    """Show how a part of a run is done again, and ask."""
    principal = need(request, "operate")
    run = await backend.ask(find_detail(query(request, "key"), tenant=backend.tenant))
    last = await backend.ask(last_seq(run.run_id))
    text = request.query_params.get("at", "")
    at = last if not text else _number(text)
    kept = (await backend.ask(list_units(run.run_id, after=at - 1, limit=1))).items if at else []
    key, by = literal(run.key), literal(principal.name)
    return Page(
        "again",
        f"Again: {run.key}",
        {
            "run": run,
            "last": last,
            "at": min(at, last),
            "unit": kept[0] if kept else None,
            "treatments": TREATMENTS,
            "input": json.dumps(backend.clear(run.input), ensure_ascii=False, indent=2)
            if backend.reads_everything(run.input)
            else "",
            "rewind_sql": f"select pgflow.rewind_run({key}, to_seq => {at}, sent_by => {by})",
            "fork_sql": f"select pgflow.fork_run({key}, 'NEW KEY', at_seq => {at}, "
            f"sent_by => {by})",
        },
        f"pgflow rewind {quoted(run.key)} --to {at}",
        under="/runs",
    )


async def do_again(backend: Backend, request: Request) -> Response:
    """Rewind a run, or fork it."""
    principal = need(request, "operate")
    form = await read_form(request)
    run = await backend.ask(find_run(query(request, "key"), tenant=backend.tenant))
    said: dict[str, Any] = {"by": principal.name, "effects": _treatment(form)}
    if why := form.get("why", "").strip():
        said["why"] = why
    if form.get("verb") == "rewind":
        await backend.call("rewind", run.key, _number(form.get("at", "")), **said)
        return see(request, "/run", key=run.key, done="rewind")
    if form.get("verb") != "fork":
        raise InvalidArgument("a part is done again by a rewind or a fork")
    said["at"] = _number(form.get("at", ""))
    if said["at"] == 0 and (text := form.get("input", "").strip()):
        said["input"] = read_json(text, "the input")
        if not isinstance(said["input"], dict):
            raise InvalidArgument("the input is an object of parameter names")
    new_key = await backend.call("fork", run.key, form.get("new_key", "").strip() or None, **said)
    return see(request, "/run", key=new_key, done="fork")


def _treatment(form: Mapping[str, str]) -> str | None:
    effects = form.get("effects", "")
    if effects not in TREATMENTS:
        raise InvalidArgument(
            f"effects are treated by none of {', '.join(TREATMENTS)}: {effects!r}"
        )
    return effects or None


def _number(text: str) -> int:
    said = text.strip()
    if not (said.isascii() and said.isdecimal() and len(said) < 10):
        raise InvalidArgument("say how many units of the journal are kept: a number, 0 for none")
    return int(said)
