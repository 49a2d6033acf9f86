"""The simulator: a seed is a history, what was found once stays found, and broken variants are
caught.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.simulator.broken import BROKEN
from tests.simulator.campaign import Order, play
from tests.simulator.episode import Simulator

KEPT = YAML(typ="safe").load(Path(__file__).parents[1] / "seeds.yaml")
CAUGHT_WITHIN = 20_000
"""Transactions."""


@pytest.fixture(scope="module")
def simulator(server_dsn):
    made = Simulator(server_dsn)
    yield made
    made.close()


def test_a_seed_is_a_history(simulator):
    first = simulator.play(7, 60)
    second = simulator.play(7, 60)
    assert first.broken is None
    assert (second.hash, second.transactions, second.fired) == (
        first.hash,
        first.transactions,
        first.fired,
    )
    assert simulator.play(8, 60).hash != first.hash


@pytest.mark.full
@pytest.mark.parametrize("kept", KEPT, ids=[f"seed {kept['seed']}" for kept in KEPT])
def test_a_seed_that_broke_a_promise_breaks_it_no_more(simulator, kept):
    story = simulator.play(
        kept["seed"],
        kept["transactions"],
        check_every=1,
        without=tuple(kept.get("parameters", {}).get("without", ())),
    )
    assert story.broken is None, "\n".join(story.trace)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["message taken twice", "timers early", "unfenced batch", "unfenced step"]
)
def test_a_broken_variant_is_caught(server_dsn, name):
    totals = play(Order(server_dsn, 1, CAUGHT_WITHIN, broken=name), shorten=False)
    assert totals.broken, f"{BROKEN[name].what}: not noticed in {totals.transactions} transactions"
