"""Which tests are tried on a mutant: those that enter its function, by the record of `plugin.py`.

Nothing is known of tests whose folder is not recorded: they may enter anything, and are tried if their
text is near. So a few mutants can be tried at once, without a record.

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

from tools.colours import of_the_other_colour

from .recorder import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .places import Mutant

REPOSITORY = Path(__file__).parents[2]
TIERS = {"default": (), "full": ("-m", "")}
"""Arguments of pytest by which a tier is played; what `full` has beside the default is its own."""

NO_TESTS = 5
ENDED = (0, 1, NO_TESTS)
"""What pytest ends with if it has played all tests, of which some may have failed."""
TEMPLATE = """import sys; sys.path.insert(0, "tests/kits"); import servers
dsn = sys.argv[1]
name = servers.create_database(dsn)
servers.install_schema(servers.dsn_of(dsn, name))
servers.shrink_catalog(servers.dsn_of(dsn, name))
print(name)"""

SHORTEST_SECONDS = 0.05
UNKNOWN_SECONDS = 1.0
LINES_AROUND = 3
NAME_WEIGHT = 3.0
SHORTEST_NAME = 5
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
WORD = re.compile(r"[a-z]{3,}")
WHOLLY_FULL = re.compile(r"^pytestmark = .*mark\.full", re.MULTILINE)


@dataclass
class Heard:
    """What the record says of one test."""

    name: str
    tier: str
    seconds: float = 0.0
    passed: bool = False
    entered: set[str] | None = field(default_factory=set)
    """None where it is not recorded."""

    @property
    def file(self) -> str:
        """Path of its file."""
        return self.name.partition("::")[0]


class Trace:
    """The record of all tiers."""

    def __init__(self, tests: Iterable[Heard]) -> None:
        self.tests = {test.name: test for test in tests}
        self._by_key: dict[str, list[Heard]] = defaultdict(list)
        self._unknown = [test for test in self.tests.values() if test.entered is None]
        for test in self.tests.values():
            if test.passed:
                for key in test.entered or ():
                    self._by_key[key].append(test)
        self._has_lines = any("@" in key for key in self._by_key)

    def reaching(self, mutant: Mutant, tier: str) -> list[Heard]:
        """Return the tests of a tier that enter the mutant's function, or may, in the order to try
        them.
        """
        other = self._by_key.get(of_the_other_colour(mutant.key), ()) if mutant.twin else ()
        found = {test.name: test for test in (*self._that_enter(mutant), *other)}
        entering = [*found.values(), *self._unknown]
        tests = [test for test in entering if test.tier == tier]
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
        known = (test for test in self.tests.values() if test.entered and test.passed)
        return [test for test in known if name in TEXTS.of_file(test.file)]


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
        return self._read(path)[1].get(function, set())

    def _read(self, path: str) -> tuple[str, dict[str, set[str]]]:
        if path not in self._files:
            file = REPOSITORY / path
            text = file.read_text() if file.suffix == ".py" and file.exists() else ""
            lines = text.split("\n")
            functions = {
                node.name: _words("\n".join([path, *lines[node.lineno - 1 : node.end_lineno]]))
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            self._files[path] = text, functions
        return self._files[path]


def _words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in WORD.findall(text.lower())}


TEXTS = _Texts()


def in_order(tests: Sequence[Heard], mutant: Mutant, sound: str) -> list[Heard]:
    """Return the tests, those first whose text says most of what stands at the place: a word counts
    by its rarity among them, those of the function's and the file's name threefold. Of the rows of a
    table, each counts less than the one before.
    """
    weights = dict.fromkeys(_words(context_of(mutant, sound)), 1.0)
    for name in _words(mutant.function) | _words(mutant.path):
        weights[name] = weights.get(name, 0.0) + NAME_WEIGHT
    words = [TEXTS.of_test(test.name) for test in tests]
    common = [said & weights.keys() for said in words]
    counts = Counter(word for found in common for word in found)
    rarity = {word: weights[word] * math.log((len(tests) + 1) / n) for word, n in counts.items()}
    rows: Counter[str] = Counter()
    found = []
    for test, said, shared in zip(tests, words, common, strict=True):
        table = test.name.partition("[")[0]
        rows[table] += 1
        score = (sum(map(rarity.__getitem__, shared)) + SHORTEST_SECONDS) / math.sqrt(
            len(said) or 1
        )
        cost = max(test.seconds, SHORTEST_SECONDS) ** 0.75 * math.sqrt(rows[table])
        found.append((-score / cost, test.seconds, test.name))
    by_name = {test.name: test for test in tests}
    return [by_name[name] for _, _, name in sorted(found)]


def record(folder: Path, tier: str, words: Sequence[str], server_dsn: str) -> int:
    """Play a tier and keep what its tests enter. Each folder of tests is played by itself and is
    kept once it has ended, so that a record goes on where it was left; what you name is played again.

    Returns:
        The highest code that pytest ended with.
    """
    environment = on_template(server_dsn)
    worst = 0
    for word in words or rooms_of_tests():
        kept = folder.absolute() / tier / word.replace("/", ".")
        if kept.exists() and not words:
            continue
        made = kept.with_name(f"{kept.name}.new")
        shutil.rmtree(made, ignore_errors=True)
        code = _play(made, tier, word, environment)
        if code in ENDED:
            shutil.rmtree(kept, ignore_errors=True)
            made.rename(kept)
        worst = max(worst, code if code != NO_TESTS else 0)
    return worst


def rooms_of_tests() -> list[str]:
    """Return the folders of tests."""
    folders = sorted((REPOSITORY / "tests").iterdir())
    return [f"tests/{one.name}" for one in folders if any(one.rglob("test_*.py"))]


def _play(made: Path, tier: str, word: str, environment: dict[str, str]) -> int:
    made.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.plugin", *TIERS[tier]]
    environment = environment | {FOLDER: str(made)}
    return subprocess.run([*command, word], cwd=REPOSITORY, env=environment, check=False).returncode


def on_template(server_dsn: str) -> dict[str, str]:
    """Return the environment of a pytest whose tests share a server, with the schema installed once,
    where `PGFLOW_TEST_TEMPLATE` does not name a database that has it.
    """
    environment = os.environ | {"PGFLOW_TEST_DSN": server_dsn}
    if "PGFLOW_TEST_TEMPLATE" in environment:
        return environment
    made = subprocess.run(
        [sys.executable, "-c", TEMPLATE, server_dsn],
        cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return environment | {"PGFLOW_TEST_TEMPLATE": made.stdout.strip()}


def read(folder: Path, rooms: Sequence[str] = ()) -> Trace:
    """Return what was recorded, and the tests of the default tier in those of these folders that were
    not; a test of both tiers is of the first.
    """
    tests: dict[str, Heard] = {}
    for tier in TIERS:
        for file in sorted((folder / tier).glob("*/*.jsonl")):
            if file.parent.suffix == ".new":
                continue
            names: list[str] = []
            for line in file.read_text().splitlines():
                said = json.loads(line)
                names += said["new"]
                test = tests.setdefault(said["test"], Heard(said["test"], tier))
                entered = {names[n] for n in said["called"]}
                test.entered = entered | (test.entered or set())
                if "seconds" in said and test.tier == tier:
                    test.seconds, test.passed = said["seconds"], said["passed"]
    kept = {one.name for one in (folder / "default").glob("*")}
    left = [word for word in rooms if word.replace("/", ".") not in kept]
    unknown = (
        Heard(name, "default", UNKNOWN_SECONDS, passed=True, entered=None)
        for name in _written(left)
    )
    return Trace([*tests.values(), *(test for test in unknown if test.name not in tests)])


def _written(rooms: Sequence[str]) -> Iterator[str]:
    """The names of the tests of the default tier in these folders, as their text has them: without
    the rows of tables.
    """
    for room in rooms:
        for file in sorted((REPOSITORY / room).rglob("test_*.py")):
            path = str(file.relative_to(REPOSITORY))
            text = file.read_text()
            if not WHOLLY_FULL.search(text):
                for name in _tests_in(ast.parse(text).body):
                    yield f"{path}::{name}"


def _tests_in(block: Sequence[ast.stmt]) -> Iterator[str]:
    for node in block:
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{name}" for name in _tests_in(node.body))
        elif isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
            marks = " ".join(map(ast.unparse, node.decorator_list))
            yield from () if "mark.full" in marks else (node.name,)
