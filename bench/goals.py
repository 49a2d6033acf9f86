"""Goals and bounds: what `bench/goals.toml` asks for, and whether it is so."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.catalog import METRICS, OURSELVES
from bench.report import Record, number

FILE = Path(__file__).with_name("goals.toml")


@dataclass(frozen=True)
class Goal:
    """One goal; see the file."""

    name: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    times: str | None = None
    per: str | None = None
    beyond: dict[str, str] | None = None
    floor: str | None = None

    def __post_init__(self) -> None:
        others = [
            name for name in (self.per, self.floor, self.beyond and self.beyond["metric"]) if name
        ]
        unknown = [name for name in (self.metric, *others) if name not in METRICS]
        assert not unknown, f"goals.toml: no such metric: {unknown}"
        assert (self.at_least is None) != (self.at_most is None), (
            f"goals.toml: {self.name}: one of at_least and at_most"
        )

    @property
    def other(self) -> tuple[str, str] | None:
        """The metric and engine that it is compared with."""
        if self.times:
            return self.metric, self.times
        if self.per:
            return self.per, OURSELVES
        return (self.beyond["metric"], self.beyond["engine"]) if self.beyond else None


@dataclass(frozen=True)
class Judged:
    """A goal, and what became of it: ``figure`` is None where something was not measured, ``bare``
    what a bare loop came to.
    """

    goal: Goal
    figure: float | None
    evidence: str
    bare: float | None = None

    @property
    def met(self) -> bool:
        return self._is_enough(self.figure)

    @property
    def is_out_of_reach(self) -> bool:
        """True if even a bare loop of the engine's own calls misses it."""
        return self.bare is not None and not self.met and not self._is_enough(self.bare)

    def _is_enough(self, figure: float | None) -> bool:
        if figure is None:
            return False
        limit = self.goal.at_least if self.goal.at_least is not None else self.goal.at_most
        assert limit is not None
        return figure >= limit if self.goal.at_least is not None else figure <= limit

    def __str__(self) -> str:
        goal = self.goal
        wanted = (
            f">= {number(goal.at_least)}"
            if goal.at_least is not None
            else f"<= {number(goal.at_most or 0)}"
        )
        unit = (
            f" x {goal.times}"
            if goal.times
            else f" x {goal.per}"
            if goal.per
            else f" {METRICS[goal.metric].unit}".rstrip()
        )
        found = "not measured" if self.figure is None else f"{number(self.figure)}{unit}"
        bare = "" if self.bare is None or self.met else f"; a bare loop {number(self.bare)}{unit}"
        bare += ": out of reach" if self.is_out_of_reach else ""
        return f"{'met  ' if self.met else 'UNMET'}  {goal.name}: {found}, goal {wanted}{unit}; {self.evidence}{bare}"


def read_goals(section: str = "goal") -> list[Goal]:
    """The goals, or with ``count`` the bounds."""
    found: list[dict[str, Any]] = tomllib.loads(FILE.read_text())[section]
    return [Goal(**{"name": METRICS[entry["metric"]].says, **entry}) for entry in found]


def judge(goals: Iterable[Goal], records: Iterable[Record]) -> list[Judged]:
    """Each goal against what was measured."""
    known = {(record.metric, record.engine): record for record in records}
    return [_judge(goal, known) for goal in goals]


def _judge(goal: Goal, known: dict[tuple[str, str], Record]) -> Judged:
    ours = known.get((goal.metric, OURSELVES))
    other = known.get(goal.other) if goal.other else None
    compared = [(goal.metric, OURSELVES), *([goal.other] if goal.other else [])]
    evidence = ", ".join(
        _say(metric, engine, known.get((metric, engine))) for metric, engine in compared
    )
    if ours is None or (goal.other and other is None):
        return Judged(goal, None, evidence)
    bare = known.get((goal.floor, OURSELVES)) if goal.floor else None
    return Judged(
        goal, _compared(goal, ours, other), evidence, _compared(goal, bare, other) if bare else None
    )


def _compared(goal: Goal, ours: Record, other: Record | None) -> float:
    if other is None:
        return ours.median
    return ours.median - other.median if goal.beyond else ours.median / other.median


def _say(metric: str, engine: str, record: Record | None) -> str:
    if record is None:
        return f"{engine}: no {metric}"
    return f"{engine} {number(record.median)} ({number(min(record.runs))} to {number(max(record.runs))}, {len(record.runs)} runs)"
