"""Verdicts of gates, and requests to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Approved(Generic[R_co]):
    """A gate was approved, with the value as edited by whoever approved."""

    value: R_co
    by: tuple[str, ...]
    edited: bool


@dataclass(frozen=True)
class Rejected:
    """A gate was rejected."""

    reason: str
    by: tuple[str, ...]


@dataclass(frozen=True)
class Escalated:
    """A gate was handed on to somebody else."""

    to: str


@dataclass(frozen=True)
class Expired:
    """Nobody answered a gate in time."""


@dataclass(frozen=True)
class Approve:
    """Answer to a gate: go ahead, perhaps with an edited value."""

    edit: Any = None
    comment: str = ""


@dataclass(frozen=True)
class Reject:
    """Answer to a gate: do not."""

    reason: str


@dataclass(frozen=True)
class Escalate:
    """Answer to a gate: somebody else must decide."""

    to: str


Answer = Approve | Reject | Escalate
"""Answer to a gate."""


class GateRequest:
    """Message to the ``notify`` step of a gate."""

    id: str
    name: str
    run_key: str
    request: Any
