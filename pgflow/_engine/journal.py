"""The journal of a run, with the position of the replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from pgflow._model.kinds import OUTCOMES, Kind
from pgflow._model.units import Start, Unit


class Journal:
    """The units of a run, with the position of the replay."""

    def __init__(self, units: list[Unit]) -> None:
        self._units = units
        self._next = 0
        self._called: frozenset[int] | None = None
        self.starts: dict[int, Start] = {}
        self.ended: AbstractSet[int] = frozenset()
        self.given_up: AbstractSet[int] = frozenset()
        self.names: dict[int, str | None] = {}
        self.renewed: dict[int, str] = {}
        self.needless: dict[int, str] = {}
        """Key of the effect that did not need to be taken back, by call."""
        if units:
            self._index()

    def _index(self) -> None:
        ended, given_up = set(), set()
        for unit in self._units:
            for start in unit.starts or ():
                self.starts[start[0]] = Start(*start)
                self.names[start[0]] = start[2]
            if unit.kind in OUTCOMES:
                ended.add(unit.call)
                self.names[unit.call] = unit.name
                if unit.kind == Kind.COMPENSATED:
                    self.needless[unit.call] = json.loads(unit.payload or "{}").get(
                        "compensates", ""
                    )
            elif unit.kind in (Kind.CALL_CANCELLED, Kind.STEP_ABANDONED):
                given_up.add(unit.call)
            elif unit.kind == Kind.STEP_RENEWED:
                self.renewed[unit.call] = unit.payload or "null"
        self.ended, self.given_up = ended, given_up

    @property
    def called(self) -> frozenset[int]:
        """Calls that have units. mypyc does not cache a ``cached_property``, so this caches by
        hand.
        """
        if self._called is None:
            self._called = frozenset(unit.call for unit in self._units)
        return self._called

    def __len__(self) -> int:
        return len(self._units)

    def peek(self) -> Unit | None:
        """Return the next unit; None at the end."""
        return self._units[self._next] if self._next < len(self._units) else None

    def take(self) -> Unit:
        """Return the next unit and advance."""
        unit = self._units[self._next]
        self._next += 1
        return unit

    def newest(self, unit: Unit) -> Unit:
        """Return an outcome with the newest result of its call."""
        if unit.kind == Kind.STEP_COMPLETED and unit.call in self.renewed:
            return unit._replace(payload=self.renewed[unit.call])
        return unit

    @property
    def is_finished(self) -> bool:
        """True if only operators' units are left, which neither the code nor the ledger reads."""
        return all(unit.kind == Kind.OPERATOR for unit in self._units[self._next :])

    def open_starts(self) -> Iterator[Start]:
        """Return the licences of bodies that may have run and have no outcome."""
        return (
            start
            for start in self.starts.values()
            if start.call not in self.ended and start.call not in self.given_up
        )
