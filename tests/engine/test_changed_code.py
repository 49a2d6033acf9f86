"""Code that changes while runs are in the middle: every durable call of every example deleted,
doubled, swapped or renamed.

A run of the code as it was is stopped at points between, as by a crash, and goes on under each
changed copy of the code. Where the run has not come to the change, it must be accepted. Where it
has, it is accepted and does not contradict the journal, or the run is held with nothing written.
Whatever comes of it, no step whose end is recorded runs again.
"""

from __future__ import annotations

import ast
import gc
import inspect
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import changedcode
import pytest
from changedcode import Change
from enginekit import WatchedExecution, Worker
from enginestore import StoredRun
from exampleflows import Example, each_example
from test_engine_divergence import mismatch

from pgflow._engine.calls import StepCall
from pgflow._model.kinds import Kind

MIDDLES = 4


class LinesSeen(WatchedExecution):
    """Remembers the lines of the examples' source at which its code asked for something."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.lines: set[int] = set()
        self.step_keys: dict[int, str] = {}
        super().__init__(*args, **kwargs)
        self._next_call = self.history.next_call
        self.history.next_call = self._note_lines  # type: ignore[method-assign]

    def issue_step(self, *args: Any) -> StepCall:
        call = super().issue_step(*args)
        self.step_keys[call.number] = f"{self.claim.stem}/{call.name}/{call.ordinal}"
        return call

    def _note_lines(self) -> int:
        for line in self.code.driver.where():
            if found := re.search(r"exampleflows\.py:(\d+) in ", line):
                self.lines.add(int(found[1]))
        return self._next_call()


@pytest.fixture(autouse=True)
def unwound_arguments() -> Iterator[None]:
    """Code that is taken apart, or changed, leaves coroutines unawaited: Python says so where the
    collector comes by.
    """
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            gc.collect()
    finally:
        gc.enable()


@dataclass
class Point:
    """A run of the code as it was, stopped; the lines that its code had come to; the keys of all
    steps that were asked for.
    """

    worker: Worker
    lines: set[int]
    keys: dict[tuple[int, int], str]


def point(worker: Worker) -> Point:
    """This one."""
    frozen = worker._successor(worker.store.fork())
    frozen.random.seed(json.dumps(worker.played))
    newest: list[Any] = [attempt for attempt in worker.attempts if attempt.run_id == 1][-1:]
    keys = {
        (attempt.run_id, number): key
        for attempt in worker.attempts
        for number, key in attempt.step_keys.items()
    }  # type: ignore[attr-defined]
    return Point(frozen, {line for attempt in newest for line in attempt.lines}, keys)


def middles(example: Example, seed: int) -> Iterator[Point]:
    """A run of the code as it was, stopped before it begins and after each unit."""
    store, _ = example.start()
    worker = Worker(store, seed=seed, execution=LinesSeen)
    length = 0
    yield point(worker)
    for _ in worker.play_at_random():
        run = store.runs[1]
        if len(run.units) > length and run.place != "ended":
            length = len(run.units)
            yield point(worker)


def go_on(worker: Worker, example: Example, change: Change) -> tuple[Worker, StoredRun]:
    """Another worker, with changed code, goes on from what is durable."""
    successor = worker.fork_as_crashed()
    successor.make_execution = WatchedExecution
    successor.errors = ()
    module = changedcode.load(change)
    known = {w.name: w for e in module.EXAMPLES for w in (e.workflow, *e.children)}
    store = successor.store
    store.workflows = {name: known[name] for name in store.workflows}
    for run in store.runs.values():
        run.workflow = known[run.workflow.name]
    # A read or a transaction that is not recorded has not happened: another may stand in its place.
    successor.keys = {
        (run_id, call): what
        for (run_id, call), what in successor.keys.items()
        if call in store.runs[run_id].licensed() or call in ended(store.runs[run_id])
    }
    for _ in successor.play_at_random():
        pass
    return successor, store.runs[1]


def ended(run: StoredRun) -> set[int]:
    return {unit.call for unit in run.units if unit.kind in (Kind.STEP_COMPLETED, Kind.STEP_FAILED)}


def judge(at: Point, example: Example, change: Change) -> str:
    worker, lines = at.worker, at.lines
    before = {run_id: list(run.units) for run_id, run in worker.store.runs.items()}
    done = {
        (run_id, at.keys[run_id, call])
        for run_id, run in worker.store.runs.items()
        for call in ended(run)
    }
    successor, run = go_on(worker, example, change)
    again = [(run_id, key) for run_id, _name, key in successor.bodies_run if (run_id, key) in done]
    assert again == [], f"{change}: steps whose end is recorded ran again"
    assert run.units[: len(before[1])] == before[1]
    added = [
        unit for unit in run.units[len(before[1]) :] if unit.kind != Kind.OPERATOR
    ]  # people go on asking
    attempt = next(a for a in successor.attempts if a.run_id == 1)
    if attempt.history.divergence is None:
        assert mismatch(before[1], attempt) is None, str(change)
        return "accepted"
    assert run.place == "held"
    assert run.held[1] == "nondeterminism"  # type: ignore[index]
    assert added == [], f"{change}: a run that diverges has nothing written"
    where = f"{change} is reported to a run that has come to lines {sorted(lines)} only: {attempt.history.divergence}"
    assert changedcode.is_reached(change, lines), where
    return "reported"


@pytest.mark.full
@each_example(1, 2)
def test_every_change_is_accepted_or_reported_and_no_step_runs_twice(example, seeds):
    """Each change comes at the last point and at one of the others in turn; in full at all."""
    said: dict[str, int] = {"accepted": 0, "reported": 0}
    function = example.workflow.fn.__name__
    every = changedcode.changes(function)
    assert every, function
    for seed in seeds:
        points = some_points(example, seed)
        for n, change in enumerate(every):
            for at in points if len(seeds) > 1 else (points[n % MIDDLES], points[-1]):
                said[judge(at, example, change)] += 1
    assert said["accepted"] > 0
    assert said["reported"] > 0


def some_points(example: Example, seed: int) -> list[Point]:
    """The beginning, the last one, and some between."""
    found = list(middles(example, seed))
    return [found[n * (len(found) - 1) // MIDDLES] for n in range(MIDDLES + 1)]


def test_the_changes_are_what_they_are_called():
    kinds = {change.kind for change in changedcode.changes("in_sequence")}
    assert kinds == set(changedcode.CHANGES)
    first = ast.unparse(ast.parse(inspect.getsource(changedcode.exampleflows)))
    texts = {
        str(change): changedcode.source_of(change) for change in changedcode.changes("in_sequence")
    }
    assert len(set(texts.values())) == len(texts)
    assert first not in texts.values()
