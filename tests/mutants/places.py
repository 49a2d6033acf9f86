"""The places where pgflow can be broken, found in its source each time.

A mutant is one small change of one function. Its id, `path::function::operator#n`, says where the
change is by names: no edit of another function moves it. `python_operators.py` and
`sql_operators.py` find the changes, here they become mutants, and a seed draws from them: one of
each function drawn, and the functions of the core more often than others.
"""

from __future__ import annotations

import difflib
import fnmatch
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import python_operators, sql_operators

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

REPOSITORY = Path(__file__).parents[2]
ROOTS = ("pgflow", "cli/pgflow_cli", "sql")

WEIGHTS = {
    "sql/runs": 6,
    "sql/ledgers": 6,
    "sql": 4,
    "pgflow/_engine": 6,
    "pgflow/_worker": 5,
    "pgflow/_transactions": 5,
    "pgflow/_db": 4,
    "pgflow/_flow": 4,
    "pgflow/_client": 4,
    "pgflow/_model": 3,
    "pgflow/replay": 2,
    "pgflow/schema": 2,
}
"""Chances of a function of a room to be drawn; that of all others is 1."""


class Splice(NamedTuple):
    """New text for a part of a file."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Mutant:
    """One change of one function of a file."""

    id: str
    path: str
    function: str
    operator: str
    splices: tuple[Splice, ...]

    @property
    def room(self) -> str:
        """The folder by which it is counted."""
        return "/".join(self.path.split("/")[:-1][:2])

    @property
    def key(self) -> str:
        """The name of its function in the record of what tests enter."""
        return (
            f"sql::{self.function}"
            if self.path.endswith(".sql")
            else f"{self.path}::{self.function}"
        )

    @property
    def weight(self) -> int:
        """Its function's chance to be drawn."""
        return next((n for room, n in WEIGHTS.items() if self.path.startswith(f"{room}/")), 1)

    def apply(self, sound: str) -> str:
        """Return the text of the file with the change."""
        for start, end, text in sorted(self.splices, reverse=True):
            sound = sound[:start] + text + sound[end:]
        return sound

    def diff(self, sound: str) -> str:
        """Return the change as a reader sees it."""
        lines = difflib.unified_diff(
            sound.splitlines(),
            self.apply(sound).splitlines(),
            self.path,
            self.path,
            n=2,
            lineterm="",
        )
        return "\n".join(lines)


def source_files() -> Iterator[str]:
    """Paths of the files that can be broken."""
    for root in ROOTS:
        for file in sorted((REPOSITORY / root).rglob("*")):
            if file.suffix in {".py", ".sql"}:
                yield str(file.relative_to(REPOSITORY))


def find_in(path: str, text: str) -> list[Mutant]:
    """Return the mutants of a file, in the order of their places."""
    operators = sql_operators if path.endswith(".sql") else python_operators
    numbers: Counter[str] = Counter()
    mutants, seen = [], set()
    for function, name, splices in operators.find(text):
        parts = tuple(Splice(*splice) for splice in splices)
        if parts in seen:
            continue  # two operators came to the same change
        seen.add(parts)
        place = f"{path}::{function}::{name}"
        numbers[place] += 1
        mutants.append(Mutant(f"{place}#{numbers[place]}", path, function, name, parts))
    return mutants


def find_all(patterns: Sequence[str] = ()) -> list[Mutant]:
    """Return all mutants whose id has or matches one of the patterns; all, if there is none."""
    found = []
    for path in source_files():
        found += find_in(path, (REPOSITORY / path).read_text())
    return [m for m in found if not patterns or any(_matches(m.id, p) for p in patterns)]


def _matches(name: str, pattern: str) -> bool:
    return pattern in name or fnmatch.fnmatchcase(name, pattern)


def draw(mutants: Iterable[Mutant], seed: int, count: int) -> list[Mutant]:
    """Return mutants drawn by the seed: first one of each function, by weight, then more.

    The operator is drawn before the place, so that a rare one is seen as often as a common one.
    """
    by_function: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_function[f"{mutant.path}::{mutant.function}"].append(mutant)
    chance = random.Random(seed)  # noqa: S311  a draw that can be repeated
    order = sorted(
        by_function.values(),
        key=lambda group: chance.random() ** (1 / group[0].weight),
        reverse=True,
    )
    drawn: list[Mutant] = []
    while order and len(drawn) < count:
        for group in order[: count - len(drawn)]:
            operator = chance.choice(sorted({m.operator for m in group}))
            drawn.append(chance.choice([m for m in group if m.operator == operator]))
            group.remove(drawn[-1])
        order = [group for group in order if group]
    return drawn
