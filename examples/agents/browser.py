"""The browser agent: a click has no key, so the page itself shows whether it was done.

The agent clicks only on the page that the model has seen. If the outcome of a click is unknown, it
looks at the page again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pgflow
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import read, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Confirmed, StillUnknown, effect
from pgflow.errors import Diverged


@dataclass(frozen=True)
class Page:
    """Page of the site: the place in the shop, and the articles in the basket."""

    place: str
    basket: tuple[str, ...]


def page_of(site: str) -> Page:
    """Return the page of the site, computed from its recorded clicks."""
    clicks = counterparty(site).lines()
    basket = tuple(
        line["button"].removeprefix("add ") for line in clicks if "add" in line["button"]
    )
    place = "thanks" if any(line["button"] == "buy" for line in clicks) else "shop"
    return Page(place, basket)


@read
async def look(site: str) -> Page:
    """Take a picture of the page."""
    return page_of(site)


@decision()
async def aim(goal: list[str], page: Page) -> Choice[str | None]:
    """Choose a button: this stand-in for a model takes the first missing article."""
    missing = [article for article in goal if article not in page.basket]
    button = f"add {missing[0]}" if missing else "buy" if page.place == "shop" else None
    return Choice(button, why=f"{len(missing)} of {len(goal)} are missing", evidence=[str(page)])


@effect(risk="irreversible", keyed=False, timeout=ATTEMPT, settle_retries=OFTEN)
async def click(site: str, button: str, before: Page) -> Page:
    """Click. The site has no idempotency keys: a second click acts a second time."""
    del before
    await counterparty(site).act("click", uuid.uuid4().hex, button=button)
    return page_of(site)


@click.observe
async def _(site: str, button: str, before: Page) -> Page:
    del button, before
    return page_of(site)


@click.settle
async def _(site: str, button: str, before: Page) -> Confirmed[Page] | Absent | StillUnknown:
    del button
    now = page_of(site)
    return Confirmed(now) if now != before else Absent()


@workflow
async def buy(site: str, goal: list[str]) -> Page:
    """Look, aim and click until no button is left."""
    while True:
        page = await look(site)
        aimed = await aim(goal, page)
        if aimed.value is None:
            return page
        step = click.options(expect=pgflow.effects.fingerprint(page)).because(aimed)
        try:
            await step(site, aimed.value, page)
        except Diverged:
            continue  # the page has changed: look and decide again
