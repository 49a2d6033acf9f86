"""The policy in force: find the rules that fit an act before it happens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pgflow._model.effects import Risk
from pgflow.inspect.question import Question, listed


@dataclass(frozen=True)
class JudgedRule:
    """A rule of the policy in force, judged for an act.

    Attributes:
        version: Version of the policy.
        rule: Its place there: the first rule that fits counts.
        needs: ``gate`` if the act needs approval, ``nothing`` if not.
        fits: True if it fits the act.
        counts: True if it is the first that does.
        terms: Terms of its gate: names, quorum and times; None for the defaults.
        says: Its conditions.
    """

    version: int
    rule: int
    needs: str
    fits: bool
    counts: bool
    terms: dict[str, Any] | None
    says: dict[str, Any]


def judge_act(
    name: str,
    risk: Risk,
    request: dict[str, Any] | None = None,
    *,
    by_model: bool = False,
    role: str | None = None,
) -> Question[list[JudgedRule]]:
    """Ask which rules of the policy in force would fit an effect; nothing is done.

    Args:
        name: Name of the effect.
        risk: Its risk.
        request: Its arguments, by name.
        by_model: True if a model has chosen it.
        role: Database role as which its worker acts; None for that of the question.
    """
    rest = "from pgflow.try_policy(%s::text, %s::text, %s::jsonb, %s::boolean, %s::text)"
    return listed(JudgedRule, rest, name, risk, json.dumps(request or {}), by_model, role)
