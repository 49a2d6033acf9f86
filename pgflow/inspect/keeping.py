"""Rules of retention, and legal holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgflow.inspect.question import Question, listed


@dataclass(frozen=True)
class RetentionRule:
    """A rule by which workers remove runs. A row of the view ``pgflow.retention_rules``.

    Attributes:
        rule: Name of the rule.
        keep_seconds: Seconds from the end of a run and its family for which it is kept.
        workflow: Workflow of the runs that it is for; None for all.
        status: Status with which they ended; None for all.
        labels: Labels that they have; None for any.
        of_tenant: Their tenant; None for all.
        set_at: Time at which it was set.
        set_by: Name of the setter.
    """

    rule: str
    keep_seconds: float
    workflow: str | None
    status: str | None
    labels: dict[str, Any] | None
    of_tenant: str | None
    set_at: datetime
    set_by: str


@dataclass(frozen=True)
class LegalHold:
    """A run that nothing removes. A row of the view ``pgflow.legal_holds``.

    Attributes:
        key: Key of the run.
        why: The reason given.
        held_at: Time since which it is held.
        held_by: Name of the person who asked for it.
        tenant: Tenant of the run.
    """

    key: str
    why: str
    held_at: datetime
    held_by: str
    tenant: str


def list_retention_rules() -> Question[list[RetentionRule]]:
    """Ask for the rules of retention."""
    return listed(RetentionRule, "from pgflow.retention_rules order by rule")


def list_legal_holds() -> Question[list[LegalHold]]:
    """Ask for the runs under a legal hold."""
    return listed(LegalHold, "from pgflow.legal_holds order by held_at, key")
