"""A register outside, which refuses old fences, and an entity, under runs whose workers are killed
and frozen: each fence has one holder, and no update is lost.
"""

from __future__ import annotations

import pytest
import registers


@pytest.mark.full
@pytest.mark.parametrize("workflow", registers.WORKFLOWS)
def test_each_fence_has_one_holder_and_no_update_is_lost(dsn, workflow):
    harms, wrong = registers.play(dsn, workflow, runs=24, harms=4, seed=1)
    assert wrong == []
    assert harms > 0
