"""The program that counts the cost of a unit on the way through very many names what grows, and plays
every unit that it counts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from ownserver import OwnServer
from records import in_a_loop

from tests import flat

PART = flat.Counts(1_000, 100.0, 0.04, 50.0, 740.0, 27_000, 0.3, 0.1, 80.0)


@pytest.mark.parametrize("cost", flat.JUDGED)
def test_a_cost_that_grows_is_named(cost):
    value = getattr(PART, cost)
    parts = [replace(PART, **{cost: value * (1 + n / 20)}) for n in range(flat.PARTS)]
    [line] = flat.Played("sleeps", parts).grown
    assert line.startswith(f"sleeps: {cost} grew")
    assert flat.Played("sleeps", [PART] * flat.PARTS).grown == []


def test_one_part_that_a_vacuum_made_dear_is_no_growth():
    parts = [PART] * flat.PARTS
    parts[3] = replace(PART, buffers=5 * PART.buffers)
    assert flat.Played("sleeps", parts).grown == []


def test_objects_that_stay_are_named_except_those_of_the_run_that_maps():
    parts = [replace(PART, objects=20_000 + n * 1_000) for n in range(flat.PARTS)]
    [line] = flat.Played("parks", parts).grown
    assert "objects" in line
    assert flat.Played("items", parts).grown == []


@pytest.mark.full
@in_a_loop
async def test_each_way_is_played_to_its_end():
    with OwnServer(fsync="off") as server:
        found = await flat.play(server.dsn, 1_000)
    assert [played.unit for played in found] == [
        *("starts", "parks", "wakes", "sleeps", "children", "items", "steps"),
        *("steps that end", "removed steps"),
    ]
    for played in found:
        assert played.unsound == []
        assert sum(part.units for part in played.parts) == 1_000, played.unit
        for cost in flat.JUDGED:
            assert sum(getattr(part, cost) * part.units for part in played.parts) > 0
