"""Alerts: something that needs a person, or a group of such things, and the order among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pgflow.console.words import counted

MOST_ROWS = 8
"""Groups of one kind; a last row leads to the page that has the rest."""
LEVELS = ("bad", "ask", "look", "auto")
"""Levels of alerts, in their order: what needs repair, what waits for an answer, what is worth a
look, and what pgflow resolves by itself.
"""


@dataclass(frozen=True)
class Example:
    """One of the things that an alert is about.

    Attributes:
        key: Key of the run.
        amount: Amount that it is about, in words; empty if none is found.
        since: Time since which it is so; None if that is not known.
        page: Page that has it.
        query: Parameters of that page.
    """

    key: str
    amount: str
    since: datetime | None
    page: str
    query: dict[str, Any]


@dataclass(frozen=True)
class Alert:
    """Something that needs a person, or a group of things of one kind.

    Attributes:
        kind: Kind of it, in a word or two.
        level: One of ``LEVELS``: its place in the order, and its shape.
        name: Key or name of its subject.
        what: Words for it.
        since: Time since which it is so; None if that is not known.
        until: Time at which it is too late; None for none.
        action: Words for what to do.
        page: Page where that is done, by its name: ``run``, ``debt``, ``workers``, ...
        query: Parameters of that page: the key of a run, the name of a relay.
        count: Number of things that it stands for.
        amount: Amount that it is about, in words; empty if none is found, or it is a group.
        examples: Up to five things of a group.
    """

    kind: str
    level: str
    name: str
    what: str
    since: datetime | None
    action: str
    page: str
    query: dict[str, Any] = field(default_factory=dict)
    until: datetime | None = None
    count: int = 1
    amount: str = ""
    examples: tuple[Example, ...] = ()


def total(alerts: Iterable[Alert]) -> int:
    """Return the number of things that alerts stand for."""
    return sum(alert.count for alert in alerts)


def cut(alerts: list[Alert], page: str, of: int = 0, **query: str) -> list[Alert]:
    """Return alerts of one kind, cut to the number shown, and one for all that are left out.

    Args:
        alerts: The alerts.
        page: Page that has all of them.
        of: Number of all things, if these alerts may not be all.
        query: Parameters of that page.
    """
    left_out = alerts[MOST_ROWS:]
    if not left_out:
        return alerts
    rest = max(total(left_out), of - total(alerts[:MOST_ROWS]))
    more = Alert(
        left_out[0].kind,
        left_out[0].level,
        f"{counted(rest)} more",
        "",
        None,
        "See all",
        page,
        query,
        count=rest,
    )
    return [*alerts[:MOST_ROWS], more]
