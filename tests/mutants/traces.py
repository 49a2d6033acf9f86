"""Which tests are tried on a mutant: those that enter its function, by the record of `plugin.py`.

A record is a folder with a file of each process that recorded, and says of each test of a tier what
it entered, how long it took and whether it passed. A test reaches a mutant if it ran its line, or its
function where a record has no lines: in SQL, and from Python 3.11. Those are tried first whose text
says most of what is at the place, for the time that they take. What runs while a module is imported
belongs to no test: there any test that enters the module is taken.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .recorder import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .places import Mutant

REPOSITORY = Path(__file__).parents[2]
TIERS = {"default": (), "full": ("-m", "")}
"""Arguments of pytest by which a tier is played; what `full` has beside the default is its own."""

SHORTEST_SECONDS = 0.05
LINES_AROUND = 3
NAME_WEIGHT = 3.0
SHORTEST_NAME = 5
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
WORD = re.compile(r"[a-z]{3,}")


@dataclass
class Heard:
    """What the record says of one test."""

    name: str
    tier: str
    seconds: float = 0.0
    passed: bool = False
    entered: set[str] = field(default_factory=set)

    @property
    def file(self) -> str:
        """Path of its file."""
        return self.name.partition("::")[0]


class Trace:
    """The record of all tiers."""

    def __init__(self, tests: Iterable[Heard]) -> None:
        self.tests = {test.name: test for test in tests}
        self._by_key: dict[str, list[Heard]] = defaultdict(list)
        for test in self.tests.values():
            if test.passed:
                for key in test.entered:
                    self._by_key[key].append(test)
        self._has_lines = any("@" in key for key in self._by_key)

    def reaching(self, mutant: Mutant, tier: str) -> list[Heard]:
        """Return the tests of a tier that enter the mutant's function, in the order to try them."""
        tests = [test for test in self._that_enter(mutant) if test.tier == tier]
        return in_order(tests, mutant, (REPOSITORY / mutant.path).read_text())

    def _that_enter(self, mutant: Mutant) -> list[Heard]:
        if self._has_lines and (keys := keys_of(mutant, (REPOSITORY / mutant.path).read_text())):
            return list({t.name: t for key in keys for t in self._by_key.get(key, ())}.values())
        is_in_function = mutant.path.endswith(".sql") or not self._has_lines
        if is_in_function and (found := self._by_key.get(mutant.key)):
            return found
        head = mutant.key.partition(".<locals>")[0].removesuffix("<module>")
        near = {t.name: t for key, ts in self._by_key.items() if key.startswith(head) for t in ts}
        return list(near.values()) or self._that_name(mutant)

    def _that_name(self, mutant: Mutant) -> list[Heard]:
        """Tests of files that name it: of what no record sees, such as views, and what a server calls
        that a test has started.
        """
        name = mutant.function.rpartition(".")[2].strip("_<>")
        if len(name) < SHORTEST_NAME or name == "module":
            return []
        return [t for t in self.tests.values() if t.passed and name in TEXTS.of_file(t.file)]


def keys_of(mutant: Mutant, sound: str) -> list[str]:
    """Return the names in a record of the lines that a mutant changes; none where it is not in the
    body of a function.
    """
    if mutant.path.endswith(".sql"):
        return []
    line = sound[: mutant.splices[0].start].count("\n") + 1
    around: list[Any] = [
        node
        for node in ast.walk(ast.parse(sound))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    functions = [node for node in around if isinstance(node, FUNCTIONS)]
    if not functions or isinstance(around[-1], (*FUNCTIONS, ast.ClassDef)):
        return []
    function, statement = functions[-1], around[-1]
    head = min([function.lineno, *(one.lineno for one in function.decorator_list)])
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or line
    lines = range(statement.lineno, max(last, statement.lineno) + 1)
    if isinstance(statement, ast.Try | ast.Match):
        lines = range(line, line + 1)
    return [f"{mutant.key}@{one - head}" for one in lines]


def context_of(mutant: Mutant, sound: str) -> str:
    """Return the text of the mutant's lines and those around them."""
    before = sound[: mutant.splices[0].start].count("\n")
    behind = sound[: mutant.splices[-1].end].count("\n")
    lines = sound.split("\n")
    return "\n".join(lines[max(0, before - LINES_AROUND) : behind + LINES_AROUND + 1])


class _Texts:
    """The words of tests, each file read once."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[str, dict[str, set[str]]]] = {}

    def of_file(self, path: str) -> str:
        return self._read(path)[0]

    def of_test(self, name: str) -> set[str]:
        path, _, rest = name.partition("::")
        function = rest.partition("[")[0].rpartition("::")[2]
        words = self._read(path)[1].get(function, set())
        return words | _words(function) | _words(Path(path).stem)

    def _read(self, path: str) -> tuple[str, dict[str, set[str]]]:
        if path not in self._files:
            file = REPOSITORY / path
            text = file.read_text() if file.suffix == ".py" and file.exists() else ""
            functions = {
                node.name: _words(ast.get_source_segment(text, node) or "")
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            self._files[path] = text, functions
        return self._files[path]


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))


TEXTS = _Texts()


def in_order(tests: Sequence[Heard], mutant: Mutant, sound: str) -> list[Heard]:
    """Return the tests, those first whose text says most of what stands at the place: a word counts
    by its rarity among them, those of the function's and the file's name threefold.
    """
    words = {test.name: TEXTS.of_test(test.name) for test in tests}
    counts = Counter(word for found in words.values() for word in found)
    names = _words(mutant.function) | _words(Path(mutant.path).stem)
    weights = dict.fromkeys(_words(context_of(mutant, sound)), 1.0)
    for name in names:
        weights[name] = weights.get(name, 0.0) + NAME_WEIGHT

    def nearness(test: Heard) -> float:
        said = words[test.name]
        score = sum(
            weights[word] * math.log((len(tests) + 1) / counts[word])
            for word in said & weights.keys()
        )
        cost = max(test.seconds, SHORTEST_SECONDS) ** 0.75
        return (score + SHORTEST_SECONDS) / math.sqrt(len(said) or 1) / cost

    return sorted(tests, key=lambda test: (-nearness(test), test.seconds, test.name))


def record(folder: Path, tier: str, words: Sequence[str], server_dsn: str | None) -> int:
    """Play a tier and keep what its tests enter; a part of it, if named, adds to what is there."""
    if not words:
        shutil.rmtree(folder / tier, ignore_errors=True)
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
