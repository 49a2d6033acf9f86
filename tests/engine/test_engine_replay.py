"""A run comes to the same end wherever its process dies, and what was durable is repeated exactly.

Each example workflow is run in many seeded orders of commits, bodies, timers and messages. At every
commit, and at points between, the process dies: another goes on from a copy of what was durable.
That what starts is licensed, under the same key on every attempt, is asserted by the kit at every
start of a body.
"""

from __future__ import annotations

import json
import random

from enginekit import Worker, divergence, replay
from exampleflows import Example, each_example


def assert_ended_well(example: Example, worker: Worker) -> None:
    """The run came to the end that was expected, and the journals of all runs replay to theirs."""
    store = worker.store
    last = store.newest(store.runs[1])
    assert last.status == example.status, (last, worker.played)
    if example.result is not None:
        assert last.result() == example.result
    for run in store.runs.values():
        assert divergence(run) is None
        assert run.place == "ended"
    keys = [(run_id, key) for (run_id, _call), (_name, key, _args) in worker.keys.items()]
    assert len(keys) == len(set(keys)), "two calls acted under one key"


def assert_goes_on_alike(example: Example, worker: Worker) -> None:
    """Somebody else goes on from what is durable now, sees what was seen before, and comes to the
    same end.
    """
    journals = {run.run_id: list(run.units) for run in worker.store.runs.values()}
    successor = worker.fork_as_crashed()
    successor.finish_at_random()
    assert_ended_well(example, successor)
    for run_id, journal in journals.items():
        assert successor.store.runs[run_id].units[: len(journal)] == journal
    for run_id, before in worker.executions.items():
        after = next((e for e in successor.attempts if e.run_id == run_id), None)
        if after is not None and after.claim.last_seq == len(journals[run_id]):
            seen = before.events(len(journals[run_id]))
            assert after.events(len(journals[run_id]))[: len(seen)] == seen


@each_example(4, 30)
def test_a_run_comes_to_the_same_end_in_any_order_of_events(example, seeds):
    for seed in seeds:
        store, _ = example.start()
        worker = Worker(store, seed=seed)
        worker.finish_at_random()
        assert_ended_well(example, worker)


@each_example(2, 30)
def test_a_death_after_any_commit_and_between_changes_nothing_that_was_durable(example, seeds):
    exhaustive = len(seeds) // 15
    for seed in seeds:
        store, _ = example.start()
        worker = Worker(store, seed=seed)
        between = random.Random(seed)
        for move in worker.play_at_random():
            if move.startswith(("commit", "claim")) or seed < exhaustive or between.random() < 0.05:
                assert_goes_on_alike(example, worker)
        assert_ended_well(example, worker)


@each_example(6, 30)
def test_a_run_survives_one_death_after_another(example, seeds):
    for seed in seeds:
        store, _ = example.start()
        worker = Worker(store, seed=seed)
        chance = random.Random(f"deaths {seed}")
        lives = 0
        while lives < 20:
            lives += 1
            if not any(chance.random() < 0.08 for _ in worker.play_at_random()):
                break
            worker = worker.crash()
        assert_ended_well(example, worker)


@each_example(4, 30)
def test_a_replay_sees_every_value_and_error_as_the_first_run_did(example, seeds):
    for seed in seeds:
        store, _ = example.start()
        worker = Worker(store, seed=seed)
        worker.finish_at_random()
        for run in store.runs.values():
            last = [execution for execution in worker.attempts if execution.run_id == run.run_id][
                -1:
            ]
            again = replay(run)
            assert again.history.divergence is None
            assert [again.events()] == [execution.events() for execution in last]
            if run.status == "failed":
                assert json.loads(again.end.ending.error)["args"] == json.loads(run.error)["args"]
