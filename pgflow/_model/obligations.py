"""Obligations: debts of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Obligation:
    """An obligation, as recorded by :func:`pgflow.authority.owe`. You may pass it as an argument,
    return it, and send it as the payload of a signal.

    Attributes:
        key: Its key, which is enough to close it.
        what: Name of the debt.
        to: Name of the creditor; empty if not given.
        detail: Facts recorded with it.
    """

    key: str
    what: str
    to: str = ""
    detail: Any = None


def key_of(obligation: Obligation | str) -> str:
    """Return the key of an obligation, however it was given."""
    return obligation.key if isinstance(obligation, Obligation) else obligation
