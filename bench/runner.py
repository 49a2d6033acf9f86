"""Running the engines in turn, A B A B: every round goes through all scenarios, every scenario
through all engines.

A measurement is a process of its own with a database of its own, copied from one in which the
engine was installed; nothing of the one before is left. Each round begins with a calibration.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import ourselves
from bench.catalog import (
    CALIBRATION,
    COMPILED,
    LIMIT,
    METRICS,
    OURSELVES,
    SCENARIOS,
    Scenario,
    functions_of,
    program_of,
)
from bench.engines.kit import DSN_VARIABLE
from bench.peers import NotInstalled, Peer
from bench.server import Server

REPOSITORY = Path(__file__).parents[1]


@dataclass
class Results:
    """Results of a run of the bench.

    Attributes:
        runs: The value of each alternation, by metric and engine.
        settings: Of the committing sessions, by engine.
        counted: Counts after the timings, by engine.
        forms: Form in which an engine was there, if it can be in several.
        missing: Engines and scenarios that are not there, and the reasons.
        rounds: Number of times that everything was done.
        took_seconds: All of it.
    """

    runs: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    settings: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    counted: dict[str, dict[str, int]] = field(default_factory=dict)
    forms: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    took_seconds: float = 0.0

    def add(self, engine: str, answer: dict[str, Any]) -> None:
        for metric, value in answer["figures"].items():
            assert metric in METRICS, (
                f"{engine} measures {metric}, which bench/catalog.py does not know"
            )
            self.runs.setdefault((metric, engine), []).append(value)
        for name, values in answer["settings"].items():
            known = self.settings.setdefault(engine, {}).setdefault(name, [])
            known.extend(value for value in values if value not in known)
        for what, count in answer["counted"].items():
            counted = self.counted.setdefault(engine, {})
            counted[what] = counted.get(what, 0) + count


class EngineFailed(Exception):
    """Reason why an engine could not be measured."""


@dataclass
class Engine:
    """An engine that is there: its program, and the database to copy."""

    name: str
    python: str
    template: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def ask(
        self, scenario: str, dsn: str, sizes: dict[str, Any], timeout_seconds: float
    ) -> dict[str, Any]:
        """Runs its program, and reads the last line of what it says.

        Raises:
            EngineFailed: It ended otherwise, or did not.
        """
        command = [
            self.python,
            "-m",
            f"bench.engines.{program_of(self.name)}",
            scenario,
            json.dumps(sizes),
        ]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PGFLOW_", "PYTHON", "DATABASE_URL"))
        }
        program = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**environment, **self.variables, DSN_VARIABLE: dsn},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, complaints = program.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"no answer within {timeout_seconds:.0f} s") from None
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
                program.communicate()
        if program.returncode != 0:
            raise EngineFailed(
                (complaints.strip().splitlines() or [f"exit code {program.returncode}"])[-1]
            )
        answer: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
        return answer


@dataclass
class Plan:
    """Plan of a run of the bench.

    Attributes:
        engines: By name, pgflow first.
        scenarios: Names; all if empty.
        quick: Small sizes.
        rounds: Number of times.
        seconds: Nothing is begun so long after ``began``, and what runs then is given up.
        each_seconds: One measurement may take so long, or what its scenario allows.
        began: Monotonic time.
    """

    engines: list[str]
    scenarios: set[str] = field(default_factory=set)
    quick: bool = False
    rounds: int = 5
    seconds: float = float("inf")
    each_seconds: float = float("inf")
    began: float = field(default_factory=time.monotonic)

    def left_seconds(self, scenario: Scenario) -> float:
        """Return the seconds that one measurement may take now."""
        return min(
            self.began + self.seconds - time.monotonic(),
            self.each_seconds,
            scenario.timeout_seconds,
        )

    def chosen(self) -> list[Scenario]:
        return [
            s
            for s in SCENARIOS
            if (not self.scenarios or s.name in self.scenarios)
            and (s.full if not self.quick else s.quick)
        ]

    def takes_part(self, engine: str, scenario: Scenario) -> bool:
        is_peer = engine not in (OURSELVES, COMPILED, LIMIT)
        return scenario.name in functions_of(engine) and not (
            self.quick and is_peer and not scenario.quick_peers
        )


def run(
    server: Server,
    plan: Plan,
    peers: dict[str, Peer],
    tell: Callable[[str], None],
    *,
    apart: bool = False,
) -> Results:
    """Everything that the plan says; what cannot be measured is in ``missing``. ``apart``: pgflow
    in an environment of its own, not as it is here.
    """
    results = Results()
    with ExitStack() as stack:
        engines = _prepare(server, plan, peers, results, stack, tell, apart=apart)
        for number in range(1, plan.rounds + 1):
            results.runs.setdefault((CALIBRATION.name, LIMIT), []).append(
                server.commits_per_second()
            )
            pairs = [(s, e) for s in plan.chosen() for e in engines if plan.takes_part(e.name, s)]
            for scenario, engine in pairs:
                _measure(
                    server,
                    plan,
                    engine,
                    scenario,
                    results,
                    lambda what, n=number: tell(f"round {n} of {plan.rounds}: {what}"),
                )
            results.rounds = number
    results.took_seconds = time.monotonic() - plan.began
    return results


def _prepare(
    server: Server,
    plan: Plan,
    peers: dict[str, Peer],
    results: Results,
    stack: ExitStack,
    tell: Callable[[str], None],
    *,
    apart: bool = False,
) -> list[Engine]:
    """The engines that can be had, each with a database in which it is installed."""
    engines = []
    for name in plan.engines:
        if not any(plan.takes_part(name, scenario) for scenario in plan.chosen()):
            continue
        tell(f"preparing {name}")
        try:
            if name in peers:
                engine = Engine(name, peers[name].interpreter(), shares=peers[name].shares)
            elif name == COMPILED or (apart and name == OURSELVES):
                engine = _ourselves(name)
            else:
                engine = Engine(name, sys.executable)
            engine.template, dsn = stack.enter_context(server.database())
            if form := engine.ask("install", dsn, {}, 120).get("form"):
                results.forms[name] = form
        except (NotInstalled, EngineFailed) as error:
            results.missing[name] = f"skipped: {error}"
        else:
            engines.append(engine)
    return engines


def _ourselves(name: str) -> Engine:
    """pgflow from an environment of its own. What is installed goes before the folder from which
    the program is started.
    """
    return Engine(
        name, ourselves.interpreter(compiled=name == COMPILED), variables={"PYTHONSAFEPATH": "1"}
    )


def _measure(
    server: Server,
    plan: Plan,
    engine: Engine,
    scenario: Scenario,
    results: Results,
    tell: Callable[[str], None],
) -> None:
    what = f"{engine.name}, {scenario.name}"
    sizes = scenario.sizes(quick=plan.quick, share=engine.shares.get(scenario.name, 1.0))
    left_seconds = plan.left_seconds(scenario)
    if left_seconds < 1:
        results.missing[what] = "left out: the time of a quick run is over"
        return
    assert sizes is not None
    tell(what)
    try:
        with server.database(engine.template) as (_, dsn):
            results.add(engine.name, engine.ask(scenario.name, dsn, sizes, left_seconds))
    except EngineFailed as error:
        results.missing[what] = str(error)


def rank(engine: str) -> tuple[bool, bool, bool, str]:
    """Sorts engines: pgflow first, the limits last."""
    return engine != OURSELVES, engine != COMPILED, engine == LIMIT, engine


def measured(results: Results, metrics: Iterable[str]) -> list[str]:
    """The engines that have a figure of any of these metrics, pgflow first."""
    found = {engine for metric, engine in results.runs if metric in set(metrics)}
    return sorted(found, key=rank)
