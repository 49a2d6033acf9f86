"""Acts and decisions belong to a workflow, whose journal records them."""

from __future__ import annotations

import pytest

from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.errors import NotInRunError


@effect(risk="reversible")
async def charge() -> str:
    return "charged"


@effect(risk="irreversible")
def charge_sync() -> str:
    return "charged"


@decision(retries=2)
async def decide() -> Choice[int]:
    return Choice(1, why="because")


def test_effects_and_decisions_are_refused_outside_a_workflow_as_nothing_would_record_them():
    for call in (charge, charge_sync, decide):
        with pytest.raises(NotInRunError, match="outside a workflow"):
            call()
