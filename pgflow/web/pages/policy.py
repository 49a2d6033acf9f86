"""The policy in force: its rules, and what they would say of an act. Nothing is done."""

from __future__ import annotations

from typing import cast, get_args

from starlette.requests import Request

from pgflow._model.effects import Risk
from pgflow.console.backend import Backend
from pgflow.console.orders import read_json
from pgflow.console.words import quoted
from pgflow.errors import InvalidArgument
from pgflow.inspect import judge_act
from pgflow.web.page import Page

RISKS: tuple[str, ...] = get_args(Risk)
ANY_NAME = "an effect"
"""Name of the effect to judge before the user enters one."""


async def show_policy(backend: Backend, request: Request) -> Page:
    """Show the rules, and which of them fits an act that an address names."""
    said = {
        name: request.query_params.get(name, "").strip()
        for name in ("name", "risk", "request", "model")
    }
    risk = said["risk"] or "irreversible"
    if risk not in RISKS:
        raise InvalidArgument(f"risk {risk!r}: there are {', '.join(RISKS)}")
    arguments = read_json(said["request"] or "{}", "the request")
    if not isinstance(arguments, dict):
        raise InvalidArgument("the request is an object of the effect's arguments by name")
    judged = await backend.ask(
        judge_act(
            said["name"] or ANY_NAME, cast("Risk", risk), arguments, by_model=said["model"] == "1"
        )
    )
    asked = bool(said["name"])
    return Page(
        "policy",
        "Policy",
        {
            "rules": judged,
            "said": said,
            "risks": RISKS,
            "asked": asked,
            "verdict": next((rule for rule in judged if rule.counts), None) if asked else None,
        },
        f"pgflow policy check {quoted(said['name'])} --risk {risk}" if asked else "",
    )
