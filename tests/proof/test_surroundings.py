"""Programs and crashes in surroundings that a role or a pooler makes; all of them: `python -m
tests.surroundings`.
"""

from __future__ import annotations

import pytest
import surroundings


@pytest.mark.full
@pytest.mark.parametrize("name", [surroundings.POOLER, "all time-outs"])
def test_nothing_is_lost_stuck_or_failed_in(server_dsn: str, name: str) -> None:
    if name not in surroundings.playable(server_dsn):
        pytest.skip(f"needs {name}")
    played = surroundings.play(server_dsn, name, 3, programs=8, kills=1)
    assert (played.wrong, played.lost, played.doubled) == ((), 0, 0)
    assert played.kills >= 13
