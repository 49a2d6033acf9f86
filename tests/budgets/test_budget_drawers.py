"""Two hundred draw at once in a long run, and sixty in others, and their sessions are killed: never over, nearly all usable."""

from __future__ import annotations

from decimal import Decimal

import drawers
import pytest
from shares import IS_LONG


@pytest.mark.parametrize("nested", [False, True], ids=["one pool", "nested pools"])
def test_many_drawers_never_overdraw_and_can_spend_nearly_all(
    dsn: str, nested: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    size = {} if IS_LONG else {"drawers": 60, "sessions": 12}
    report = drawers.draw(dsn, limit=Decimal(20 if IS_LONG else 6), nested=nested, **size)
    with capsys.disabled():
        print(f"\n{report}")
    drawers.judge(report)
    assert report.kills > 0
