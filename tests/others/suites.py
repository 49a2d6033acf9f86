"""The tables of the suites: each behaviour, and the test or the reason that answers it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOM = Path(__file__).parent
TESTS = ROOM.parent


@dataclass(frozen=True)
class Case:
    """One behaviour of a peer.

    Attributes:
        number: The peer's number or name of it.
        behaviour: The behaviour in a line.
        node: Our test as pytest names it; empty if there is a reason.
        reason: Why there is no test; empty if there is one.
        theirs: Where the peer has it.
    """

    number: str
    behaviour: str
    node: str
    reason: str
    theirs: str


@dataclass(frozen=True)
class Suite:
    """A folder of this room.

    Attributes:
        folder: The folder.
        facts: Content of `suite.toml`.
    """

    folder: Path
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def programs(self) -> str:
        """File of its own tests. The names of these files differ, as pytest wants it."""
        return f"tests/others/{self.name}/{self.name}_programs.py"

    @property
    def has_adapter(self) -> bool:
        """True if it runs the peer's own tests."""
        return (self.folder / "adapter.py").exists()

    def excuse(self, node: str) -> str:
        """Return why a test of the peer, with all its parameters if they are not named, may fail on ours;
        empty if it may not.
        """
        excused = self.facts["excused"]
        return excused.get(node) or excused.get(node.partition("[")[0], "")  # type: ignore[no-any-return]

    @cached_property
    def cases(self) -> list[Case]:
        """The lines of its table."""
        table = self.folder / "cases.tsv"
        if not table.exists():
            return []
        lines = [line.split("\t") for line in table.read_text().splitlines()]
        return [self._case(*line) for line in lines]

    def _case(self, number: str, behaviour: str, ours: str, theirs: str = "") -> Case:
        """Read one line: `-code` is a reason, `room/file:name` a test of another room. Brackets after a
        name have the parameters of a test, or a name in its file that it runs with others.
        """
        if ours.startswith("-"):
            return Case(number, behaviour, "", self.facts["reasons"][ours[1:]], theirs)
        place, colon, name = ours.rpartition(":")
        if colon:
            room, _, file = place.rpartition("/")
            node = f"tests/{room}/test_{file}.py::test_{name}"
        else:
            node = f"{self.programs}::test_{name}"
        return Case(number, behaviour, node, "", theirs)

    def flaws(self) -> list[str]:
        """Return what is wrong with the table: numbers twice, tests that are not there or unused."""
        found = []
        numbers = [case.number for case in self.cases]
        found += [f"{self.name}: {n} is there twice" for n in {*numbers} if numbers.count(n) > 1]
        for case in self.cases:
            if case.node and not _is_there(case.node):
                found.append(f"{self.name} {case.number}: there is no {case.node}")
        used = {case.node.partition("[")[0].rpartition("::")[2] for case in self.cases}
        unused = tests_of(TESTS.parent / self.programs) - used
        return found + [f"{self.programs}: {name} answers no case" for name in sorted(unused)]


def _is_there(node: str) -> bool:
    """Return True if a file has a test, and the words in the brackets after its name."""
    path, _, name = node.partition("::")
    test, _, words = name.removesuffix("]").partition("[")
    file = TESTS.parent / path
    return test in tests_of(file) and all(word in file.read_text() for word in words.split("-"))


@cache
def tests_of(path: Path) -> set[str]:
    """Return the names of the tests in a file."""
    if not path.exists():
        return set()
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


def suites(names: list[str] | None = None) -> list[Suite]:
    """Return the suites with these names, all by default, in the order of the page."""
    found = [
        Suite(file.parent, tomllib.loads(file.read_text())) for file in ROOM.glob("*/suite.toml")
    ]
    found.sort(key=lambda suite: (suite.facts["order"], suite.name))
    return [suite for suite in found if not names or suite.name in names]
