"""A register outside, which refuses old fences, and an entity, under runs whose workers are killed
and frozen: each fence has one holder, and no update is lost.
"""

from __future__ import annotations

import pytest
import registers
from shares import IS_LONG


@pytest.mark.parametrize("workflow", registers.WORKFLOWS)
def test_each_fence_has_one_holder_and_no_update_is_lost(dsn: str, workflow: str) -> None:
    size = 45 if IS_LONG else 24
    harms, wrong = registers.play(dsn, workflow, runs=size, harms=size // 6, seed=1)
    assert wrong == []
    assert harms > 0
