"""The places where pgflow can be broken, found in its source each time.

A mutant is one small change of one function. Its id, `path::function::operator#n`, says where the
change is by names: no edit of another function moves it. `python_operators.py` and
`sql_operators.py` find the changes, here they become mutants, and a seed draws from them: as many of
each room, and of each function at most one more than of another.
"""

from __future__ import annotations

import difflib
import fnmatch
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.colours import of_the_other_colour, sources

from . import python_operators, sql_operators

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

REPOSITORY = Path(__file__).parents[2]
ROOTS = ("pgflow", "cli/pgflow_cli", "sql")


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
    def twin(self) -> str:
        """Path of the sync twin that is made of its file; empty if there is none."""
        found = of_the_other_colour(self.path)
        return found if found != self.path and (REPOSITORY / found).exists() else ""

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
    """Paths of the files that can be broken. A sync twin is broken with the async file that it is
    made of.
    """
    made = {Path(of_the_other_colour(str(path))) for path in sources(REPOSITORY)}
    for root in ROOTS:
        for file in sorted((REPOSITORY / root).rglob("*")):
            if file.suffix in {".py", ".sql"} and file not in made:
                yield str(file.relative_to(REPOSITORY))


def find_in(path: str, text: str) -> list[Mutant]:
    """Return the mutants of a file, in the order of their places."""
    operators = sql_operators if path.endswith(".sql") else python_operators
    numbers: Counter[str] = Counter()
    mutants, seen = [], set()
    for function, name, splices in operators.find(text):
        parts = tuple(Splice(*splice) for splice in splices)
        if parts in seen or all(text[s.start : s.end] == s.text for s in parts):
            continue  # two operators came to the same change, or one to none
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
    """Return mutants drawn by the seed: of each room in turn, and there of each function in turn.

    The operator is drawn before the place, so that a rare one is seen as often as a common one.
    """
    rooms: dict[str, dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for mutant in mutants:
        rooms[mutant.room][mutant.key].append(mutant)
    chance = random.Random(seed)  # noqa: S311  a draw that can be repeated
    orders = [_in_turn(chance, [*groups.values()]) for groups in rooms.values()]
    chance.shuffle(orders)
    drawn = (mutant for one in zip_longest(*orders) for mutant in one if mutant is not None)
    return [*islice(drawn, count)]


def _in_turn(chance: random.Random, groups: list[list[Mutant]]) -> Iterator[Mutant]:
    """Draw of some functions: one mutant of each, then a second one of each, and so on."""
    chance.shuffle(groups)
    while groups:
        for group in groups:
            operator = chance.choice(sorted({m.operator for m in group}))
            drawn = chance.choice([m for m in group if m.operator == operator])
            group.remove(drawn)
            yield drawn
        groups = [group for group in groups if group]
