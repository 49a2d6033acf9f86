"""Which tests are tried on a mutant: those that enter its function, by the record of `plugin.py`.

A record is a folder with a file of each process that recorded, and says of each test of a tier what
it entered, how long it took and whether it passed. Tests of many files come before many of one
file, then those that enter least else, then the fastest. What runs while a module is imported
belongs to no test: there any test that enters the module is taken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from .recorder import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .places import Mutant

REPOSITORY = Path(__file__).parents[2]
TIERS = {"default": (), "full": ("-m", "")}
"""Arguments of pytest by which a tier is played; what `full` has beside the default is its own."""

MOST_TESTS = 150
"""Number of tests tried on a mutant, in each tier."""

MOST_SECONDS = 120.0
"""Seconds that these took when they were recorded, in all."""


@dataclass
class Heard:
    """What the record says of one test."""

    name: str
    tier: str
    seconds: float = 0.0
    passed: bool = False
    entered: set[str] = field(default_factory=set)


class Trace:
    """The record of all tiers."""

    def __init__(self, tests: Iterable[Heard]) -> None:
        self.tests = {test.name: test for test in tests}
        self._by_key: dict[str, list[Heard]] = defaultdict(list)
        for test in self.tests.values():
            if test.passed:
                for key in test.entered:
                    self._by_key[key].append(test)

    def reaching(self, mutant: Mutant, tier: str) -> list[Heard]:
        """Return the tests of a tier that enter the mutant's function, in the order to try them."""
        return _in_order([t for t in self._that_enter(mutant) if t.tier == tier], _words_of(mutant))

    def _that_enter(self, mutant: Mutant) -> list[Heard]:
        if found := self._by_key.get(mutant.key):
            return found
        # A lambda or a generator of it, or the class or module around it.
        head = mutant.key.removesuffix("<module>")
        near = {t.name: t for key, ts in self._by_key.items() if key.startswith(head) for t in ts}
        return (
            list(near.values())
            if mutant.function == "<module>" or "<locals>" in mutant.key
            else (list(near.values()) or self._that_name(mutant))
        )

    def _that_name(self, mutant: Mutant) -> list[Heard]:
        """Tests of files that name the function: of what no record sees, such as views, and what a
        server calls that a test has started.
        """
        name = mutant.function.rpartition(".")[2].rstrip("_")
        files = {test.name.split("::")[0] for test in self.tests.values()}
        naming = {file for file in files if name in _text_of(file)} if len(name) > 5 else set()
        return [t for t in self.tests.values() if t.passed and t.name.split("::")[0] in naming]


def _words_of(mutant: Mutant) -> tuple[str, str]:
    return mutant.function.rpartition(".")[2].strip("_"), Path(mutant.path).stem.strip("_")


_texts: dict[str, str] = {}


def _text_of(file: str) -> str:
    if file not in _texts:
        path = REPOSITORY / file
        _texts[file] = path.read_text() if path.exists() else ""
    return _texts[file]


def _in_order(tests: Sequence[Heard], words: tuple[str, str]) -> list[Heard]:
    """One of each file, then another of each: files that name the place first."""
    by_file: dict[str, list[Heard]] = defaultdict(list)
    for test in sorted(tests, key=lambda t: (len(t.entered), t.seconds, t.name)):
        by_file[test.name.split("::")[0]].append(test)

    def nearness(file: str) -> tuple[int, int, str]:
        text = _text_of(file)
        named = sum(word in text for word in words) + 2 * (words[1] in Path(file).stem)
        return -named, len(by_file[file][0].entered), file

    files = [by_file[file] for file in sorted(by_file, key=nearness)]
    return [test for row in zip_longest(*files) for test in row if test is not None]


def cut(tests: Sequence[Heard]) -> list[Heard]:
    """Return as many of these as are tried."""
    kept: list[Heard] = []
    seconds = 0.0
    for test in tests:
        if len(kept) < MOST_TESTS and (seconds + test.seconds <= MOST_SECONDS or not kept):
            kept.append(test)
            seconds += test.seconds
    return kept


def record(folder: Path, tier: str, words: Sequence[str], server_dsn: str | None) -> int:
    """Play a tier, or the named part of it, and keep what its tests enter."""
    environment = dict(os.environ) | {FOLDER: str((folder / tier).absolute())}
    if server_dsn is not None:
        environment["PGFLOW_TEST_DSN"] = server_dsn
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.plugin", *TIERS[tier]]
    return subprocess.run(
        [*command, *words], cwd=REPOSITORY, env=environment, check=False
    ).returncode


def read(folder: Path) -> Trace:
    """Return what was recorded; a test of both tiers is of the first."""
    tests: dict[str, Heard] = {}
    for tier in TIERS:
        for file in sorted((folder / tier).glob("*.jsonl")):
            names: list[str] = []
            for line in file.read_text().splitlines():
                said = json.loads(line)
                names += said["new"]
                test = tests.setdefault(said["test"], Heard(said["test"], tier))
                test.entered |= {names[n] for n in said["called"]}
                if "seconds" in said and test.tier == tier:
                    test.seconds, test.passed = said["seconds"], said["passed"]
    return Trace(tests.values())
