"""Trying mutants: a process of pytest tries them in forks (`judge.py`), and its answers are read as
they come.
"""

from __future__ import annotations

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
from .traces import TIERS, Trace, on_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .judge import Answer
    from .places import Mutant

REPOSITORY = Path(__file__).parents[2]
UNREACHED = "not reached"
__all__ = ["HUNG", "INVALID", "NOTICED", "SURVIVED", "UNREACHED", "Trial", "try_all"]

MOST_TESTS = 200


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
    mutants: Sequence[Mutant],
    trace: Trace,
    server_dsn: str,
    *,
    at_once: int = 2,
    most_seconds: float = 300.0,
) -> Iterator[Trial]:
    """Try these mutants in each tier, until it is noticed; the last trial of a mutant counts.

    Args:
        mutants: The mutants.
        trace: What the tests run.
        server_dsn: DSN of a superuser.
        at_once: Number of mutants tried at a time.
        most_seconds: Sum of what the tests tried on a mutant took when recorded, in each tier.
    """
    environment = on_template(server_dsn)
    left = {mutant.id: Trial(mutant, UNREACHED) for mutant in mutants}
    for tier in TIERS:
        found = (_order(trial.mutant, trace, tier, most_seconds) for trial in left.values())
        orders = [order for order in found if order]
        for order, answer in _judged(orders, environment, at_once):
            before = left.pop(order.mutant.id)
            trial = Trial(
                order.mutant,
                answer.verdict,
                tier,
                answer.by,
                before.tried + answer.tried,
                before.reaching + order.reaching,
                answer.said,
                answer.unsound,
            )
            if trial.verdict == SURVIVED:
                left[order.mutant.id] = trial
            yield trial
    yield from (trial for trial in left.values() if trial.verdict == UNREACHED)


def _order(mutant: Mutant, trace: Trace, tier: str, most_seconds: float) -> Order | None:
    tests: dict[str, float] = {}
    reaching = trace.reaching(mutant, tier)
    for test in reaching:
        if tests and (
            sum(tests.values()) + test.seconds > most_seconds or len(tests) == MOST_TESTS
        ):
            continue  # a faster one may say as much
        tests[test.name] = test.seconds
    return Order(mutant, tests, len(reaching)) if tests else None


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
