"""Trying mutants: a process of pytest tries them in forks (`judge.py`), and its answers are read as
they come.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .judge import ARGUMENTS, BEAT_SECONDS, HUNG, INVALID, NOTICED, ORDERS, SURVIVED, Order
from .traces import TIERS, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .judge import Answer
    from .places import Mutant

REPOSITORY = Path(__file__).parents[2]
UNREACHED = "not reached"
__all__ = ["HUNG", "INVALID", "NOTICED", "SURVIVED", "UNREACHED", "Trial", "try_all"]

MOST_SECONDS = 300.0
"""Sum of what the tests tried on a mutant took when recorded."""
MOST_TESTS = 200

TEMPLATE = """import sys; sys.path.insert(0, "tests/kits"); import servers
dsn = sys.argv[1]
name = servers.create_database(dsn)
servers.install_schema(servers.dsn_of(dsn, name))
servers.shrink_catalog(servers.dsn_of(dsn, name))
print(name)"""


@dataclass(frozen=True)
class Trial:
    """Result of one mutant."""

    mutant: Mutant
    verdict: str
    tier: str = ""
    by: str = ""
    """The test that has noticed."""
    tried: int = 0
    reaching: int = 0
    """Number of tests that run its line, of which so many were tried."""
    said: str = ""
    unsound: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        how = self.by or f"{self.tried} of {self.reaching} tests"
        return f"{self.verdict:<11} {self.mutant.id}  ({how})"


def try_all(
    mutants: Sequence[Mutant], trace: Trace, server_dsn: str, at_once: int = 2
) -> Iterator[Trial]:
    """Try these mutants in each tier, until it is noticed.

    Args:
        mutants: The mutants.
        trace: What the tests run.
        server_dsn: DSN of a superuser.
        at_once: Number of mutants tried at a time.
    """
    environment = dict(os.environ) | {"PGFLOW_TEST_DSN": server_dsn}
    made = subprocess.run(
        [sys.executable, "-c", TEMPLATE, server_dsn],
        cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    environment["PGFLOW_TEST_TEMPLATE"] = made.stdout.strip()
    left = {mutant.id: Trial(mutant, UNREACHED) for mutant in mutants}
    for tier in TIERS:
        orders = [order for trial in left.values() if (order := _order(trial.mutant, trace, tier))]
        for order, answer in _judged(orders, environment, at_once):
            before = left[order.mutant.id]
            trial = Trial(
                order.mutant,
                answer.verdict,
                tier,
                answer.by,
                before.tried + answer.tried,
                before.reaching + len(trace.reaching(order.mutant, tier)),
                answer.said,
                answer.unsound,
            )
            left[order.mutant.id] = trial
            if trial.verdict != SURVIVED:
                yield left.pop(order.mutant.id)
    yield from left.values()


def _order(mutant: Mutant, trace: Trace, tier: str) -> Order | None:
    names, seconds = [], 0.0
    for test in trace.reaching(mutant, tier):
        if names and (seconds + test.seconds > MOST_SECONDS or len(names) == MOST_TESTS):
            continue  # a faster one may say as much
        names.append(test.name)
        seconds += test.seconds
    return Order(mutant, tuple(names), seconds) if names else None


def _judged(
    orders: Sequence[Order], environment: dict[str, str], at_once: int
) -> Iterator[tuple[Order, Answer]]:
    if not orders:
        return
    files = sorted({name.partition("::")[0] for order in orders for name in order.tests})
    with tempfile.TemporaryDirectory(prefix="pgflow-mutants-") as folder:
        (Path(folder) / "orders").write_bytes(pickle.dumps((at_once, list(orders))))
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "tests.mutants.judge", *ARGUMENTS, *files],
            cwd=REPOSITORY,
            env=environment | {ORDERS: folder},
            stdout=subprocess.DEVNULL,
        )
        left = dict(enumerate(orders))
        has_ended = False
        while left and not has_ended:
            has_ended = process.poll() is not None
            for number in list(left):
                path = Path(folder) / f"{number}.answer"
                if path.exists():
                    yield left.pop(number), pickle.loads(path.read_bytes())  # noqa: S301
            time.sleep(BEAT_SECONDS)
        assert not left, f"pytest ended with {process.returncode}, before {len(left)} mutants"
        process.wait()
