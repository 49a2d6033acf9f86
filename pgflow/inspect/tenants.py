"""Tenants that a session acts for."""

from __future__ import annotations

from dataclasses import dataclass

from pgflow._db.query import Query
from pgflow.inspect.question import Question, once


@dataclass(frozen=True, slots=True)
class Tenants:
    """Tenants whose runs a session sees.

    Attributes:
        own: Those that it is bound to; empty for one that acts for all.
        has_others: True if it acts for all and some runs have a tenant. A list of the runs without
            one leaves those out.
    """

    own: tuple[str, ...]
    has_others: bool


def read_tenants() -> Question[Tenants]:
    """Ask for the tenants of the session."""
    return once(
        Query(
            "select pgflow.own_tenants(), pgflow.has_tenants()",
            (),
            lambda rows: Tenants(tuple(rows[0][0] or ()), has_others=rows[0][1]),
        )
    )
