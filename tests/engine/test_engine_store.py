"""The store of the engine's tests is what the database is: each history is played on both."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import sqlkit
from enginekit import Worker
from enginetwin import Twin
from exampleflows import Example, each_example

if TYPE_CHECKING:
    import psycopg


def play(conn: psycopg.Connection[Any], example: Example, seed: Any) -> Twin:
    """Plays a run of an example on both stores, in an order left to chance, with workers that
    die.
    """
    store = Twin(conn, example.workflow, *example.children)
    store.coming = list(example.events)
    store.start(example.workflow, example.n)
    Worker(store, seed=seed).finish_dying(0.01, random.Random(seed))
    return store


@each_example()
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))])
def test_a_history_is_the_same_in_the_store_and_in_the_database(dsn, example, seed):
    with sqlkit.connect(dsn) as conn:
        store = play(conn, example, f"{example.name}/{seed}")
        assert {run.place for run in store.runs.values()} <= {"ended", "parked", "held"}
