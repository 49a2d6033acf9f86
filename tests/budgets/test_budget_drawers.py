"""Two hundred draw at once in a long run, and sixty in others, and their sessions are killed: never over, nearly all usable."""

from __future__ import annotations

from decimal import Decimal

import drawers
import pytest


@pytest.mark.full
@pytest.mark.parametrize("nested", [False, True], ids=["one pool", "nested pools"])
def test_many_drawers_never_overdraw_and_can_spend_nearly_all(dsn, nested, capsys):
    report = drawers.draw(dsn, limit=Decimal(6), nested=nested, drawers=60, sessions=12)
    with capsys.disabled():
        print(f"\n{report}")
    drawers.judge(report)
    assert report.kills > 0
