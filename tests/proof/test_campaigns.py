"""Each campaign with as little of it as there can be: what it proves is said by `python -m
tests.campaigns`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.campaigns import plan, prove

if TYPE_CHECKING:
    from tests.kits.evidence import Findings


@pytest.fixture(scope="module")
def findings(server_dsn: str) -> Findings:
    return prove(server_dsn, 0.1, int(os.environ.get("PGFLOW_TEST_SEED", "1")))


@pytest.mark.full
def test_every_campaign_comes_to_its_end_and_breaks_no_promise(findings: Findings) -> None:
    assert [
        f"{e.guarantee} {e.fault}: {e.lost} lost, {e.doubled} doubled, {e.wrong}"
        for e in findings.broken
    ] == []
    assert {e.guarantee for e in findings.evidence} == {
        g for campaign in plan.CAMPAIGNS for g in campaign.guarantees
    }


@pytest.mark.full
def test_every_fault_of_a_campaign_happens(findings: Findings) -> None:
    assert findings.void == []
