"""Two hundred draw at once, and their sessions are killed: never over, nearly all usable."""

from __future__ import annotations

from decimal import Decimal

import drawers
import pytest


@pytest.mark.timeout(180)
@pytest.mark.parametrize("nested", [False, True], ids=["one pool", "nested pools"])
def test_two_hundred_drawers_never_overdraw_and_can_spend_nearly_all(
    dsn: str, nested: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report = drawers.draw(dsn, limit=Decimal(20), nested=nested)
    with capsys.disabled():
        print(f"\n{report}")
    drawers.judge(report)
    assert report.kills > 0
