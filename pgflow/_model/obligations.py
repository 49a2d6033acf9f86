"""Obligations: what a run owes somebody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Obligation:
    """Something owed, as :func:`pgflow.owe` has recorded it. A value: it may be an argument, a
    result and the payload of a signal.

    Attributes:
        key: Its key, by which anybody closes it.
        what: Name of what is owed.
        to: To whom; empty if nobody is named.
        detail: Facts that its code has recorded with it.
    """

    key: str
    what: str
    to: str = ""
    detail: Any = None


def key_of(obligation: Obligation | str) -> str:
    """Return the key of an obligation, however it was given."""
    return obligation.key if isinstance(obligation, Obligation) else obligation
