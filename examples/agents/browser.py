"""The browser agent: a click has no key, so the page itself says whether it was done.

A click is meant for the page that the model has seen. It is not made on another one. If nobody
knows whether it was made, the page is looked at again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pgflow
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import (
    Absent,
    Choice,
    Confirmed,
    Diverged,
    StillUnknown,
    decision,
    effect,
    read,
    workflow,
)


@dataclass(frozen=True)
class Page:
    """Page that the site shows: the place in the shop, and the articles in the basket."""

    place: str
    basket: tuple[str, ...]


def page_of(site: str) -> Page:
    """Returns the page as the site shows it: all that was clicked on it made it."""
    clicks = counterparty(site).lines()
    basket = tuple(
        line["button"].removeprefix("add ") for line in clicks if "add" in line["button"]
    )
    place = "thanks" if any(line["button"] == "buy" for line in clicks) else "shop"
    return Page(place, basket)


@read
async def look(site: str) -> Page:
    """Takes a picture of the page."""
    return page_of(site)


@decision()
async def aim(goal: list[str], page: Page) -> Choice[str | None]:
    """Chooses a button. A model would; this one takes the first thing that is missing."""
    missing = [article for article in goal if article not in page.basket]
    button = f"add {missing[0]}" if missing else "buy" if page.place == "shop" else None
    return Choice(button, why=f"{len(missing)} of {len(goal)} are missing", evidence=[str(page)])


@effect(risk="irreversible", keyed=False, timeout=ATTEMPT, settle_retries=OFTEN)
async def click(site: str, button: str, before: Page) -> Page:
    """Clicks. The site knows no keys: a second click does the same once more."""
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
    """Looks, aims and clicks until there is nothing to click on."""
    while True:
        page = await look(site)
        aimed = await aim(goal, page)
        if aimed.value is None:
            return page
        step = click.options(expect=pgflow.fingerprint(page)).because(aimed)
        try:
            await step(site, aimed.value, page)
        except Diverged:
            continue  # somebody else was here: the next look decides again
