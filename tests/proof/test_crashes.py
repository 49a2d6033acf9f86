"""The crash oracle itself: what counts as a kill, and what its judge finds. The gate plays it."""

from __future__ import annotations

import time

import crashes
import pytest

SOUND = {
    "lost": 0,
    "doubled": 0,
    "wrong_results": 0,
    "doubles_not_shown": 0,
    "held_and_not_ended": 0,
    "keys_per_step": 1,
    "violations": [],
}


def test_every_kill_is_in_the_plan_and_a_seed_is_a_plan():
    first, again, other = (crashes.Driver("", 3, seed).plan for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(point for point, _ in first) == sorted(crashes.POINTS * 3)


def test_a_worker_that_could_not_be_armed_is_no_kill(capfd):
    def arm() -> None:
        raise TypeError("the method has other parameters now")

    pid = crashes.fork(arm, "", [], crashes.RHYTHM)
    with pytest.raises(AssertionError, match="could not be made to die"):
        while crashes.died_as_told(pid) is None:
            time.sleep(0.01)
    assert "the method has other parameters now" in capfd.readouterr().err


@pytest.mark.parametrize("change", [
    {"lost": 1}, {"doubled": 1}, {"wrong_results": 1}, {"held_and_not_ended": 1}, {"keys_per_step": 2}, {"violations": [("seq", "x")]},
], ids=str)  # fmt: skip
def test_the_judge_finds_what_is_wrong(change):
    assert crashes.verdict(SOUND) == []
    assert len(crashes.verdict(SOUND | change)) == 1
