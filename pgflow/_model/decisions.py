"""Decisions, with their reasons and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Generic, TypeVar

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Usage:
    """Cost of a call to a model."""

    usd: Decimal = Decimal(0)
    tokens: int = 0


@dataclass(frozen=True)
class Choice(Generic[T]):
    """Result of a ``@decision``: the value chosen, and why."""

    value: T
    why: str
    evidence: Sequence[str] = ()
    alternatives: Sequence[str] = ()
    policy: str | None = None
    model: str | None = None
    usage: Usage | None = None

    def recorded(self) -> Choice[T]:
        """Return it as a :class:`Decision` has it: with lists."""
        return replace(
            self, evidence=_listed(self.evidence), alternatives=_listed(self.alternatives)
        )


def _listed(items: Sequence[str]) -> Sequence[str]:
    return list(items) if isinstance(items, tuple) else items


@dataclass(frozen=True)
class Decision(Generic[R_co]):
    """A recorded choice, as the workflow gets it.

    Attributes:
        id: Its idempotency key, which the keys of what rests on it name.
        value: Value that was chosen.
        why: The reason given.
        evidence: Evidence that the choice rested on.
        alternatives: Alternatives to it.
        policy: Policy that it followed.
        model: Model that chose.
        usage: Cost of the choice.
    """

    id: str
    value: R_co
    why: str
    evidence: Sequence[str] = ()
    alternatives: Sequence[str] = ()
    policy: str | None = None
    model: str | None = None
    usage: Usage | None = None
