"""Plays the default suite again and again where machines are slow, and lists every test that ever
failed: ``python -m tests.steady -n 20 --load 6 --one-core``.

A test may fail because the code is wrong, never because its machine is busy or because another test
came before it. So each round has an order of its own: the files are shuffled, and the tests in each
of them. Beside it run as many busy loops as you say, on one core if you say so. A round's seed is
printed, and ``-n 1 --seed SEED`` plays it again.

This module is the plugin of pytest that shuffles and takes notes, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SEED, NOTES = "PGFLOW_STEADY_SEED", "PGFLOW_STEADY_NOTES"
"""Variables by which every process of a round is told its seed and the file of its failures."""

SAYS_OF_TESTS = (0, 1)
"""Codes of pytest that tell of tests: all passed, or some failed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the files, and the tests of each, in the same way in every process."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    chance, shuffled = random.Random(os.environ[SEED]), list(files.values())
    chance.shuffle(shuffled)
    for tests in shuffled:
        chance.shuffle(tests)
    items[:] = [item for tests in shuffled for item in tests]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failure, in the process that hears of all."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[NOTES]).open("a") as notes:
            notes.write(json.dumps([report.nodeid, report.longreprtext]) + "\n")


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep so many processes busy with nothing."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _outer_environment() -> dict[str, str]:
    """Return the environment without what a pytest around this one says of itself."""
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}


def play(seed: int, arguments: Sequence[str]) -> dict[str, str]:
    """Play one round; the answer has the tests that failed and what they said."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder, "notes")
        notes.touch()
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "tests.steady", *arguments],
            cwd=REPOSITORY,
            env={**_outer_environment(), SEED: str(seed), NOTES: str(notes)},
            stdout=subprocess.DEVNULL,
            check=False,
        ).returncode
        failed = dict(json.loads(line) for line in reversed(notes.read_text().splitlines()))
    if code not in SAYS_OF_TESTS:
        failed.setdefault("pytest", f"it ended with {code}: play `pytest {' '.join(arguments)}`")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the rounds; the exit code is 1 if a test failed in any of them."""
    parser = argparse.ArgumentParser("python -m tests.steady", description=__doc__)
    parser.add_argument("-n", type=int, default=3, help="number of rounds")
    parser.add_argument("--load", type=int, default=0, metavar="LOOPS", help="busy loops beside it")
    parser.add_argument("--one-core", action="store_true", help="everything shares one processor")
    parser.add_argument("--select", metavar="EXPR", help="tests to play, as `pytest -k` has them")
    parser.add_argument("--seed", type=int, help="seed of the first round; the next has the next")
    parser.add_argument("paths", nargs="*", help="files and folders of tests; all if you name none")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    if given.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    select = ["-k", given.select] if given.select else []
    times: Counter[str] = Counter()
    first: dict[str, str] = {}
    with busy_loops(given.load):
        for played in range(given.n):
            failed = play(seed + played, [*select, *given.paths])
            times.update(failed.keys())
            first = {**failed, **first}
            print(f"round {played + 1} of {given.n}, seed {seed + played}: {len(failed)} failed")
            sys.stdout.flush()
    for test, count in times.most_common():
        print(f"\n{test} failed {count} of {given.n} times, at first with:\n{first[test]}")
    return 1 if times else 0


if __name__ == "__main__":
    raise SystemExit(main())
