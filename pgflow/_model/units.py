"""Units of a journal, as stored functions answer them and the engine reads them.

The order of units is the whole of a run's history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from pgflow._model.kinds import (
    ANSWERS,
    EFFECT_MARKS,
    EFFECT_OUTCOMES,
    KIND_NAMES,
    MARKS,
    OUTCOMES,
    Kind,
)

_SAID_BY_OTHERS = {Kind.OBLIGATION_OPENED: '{"carried"', Kind.OBLIGATION_CLOSED: '{"word"'}
"""Beginnings of the payloads of those that are not notes (``sql/ledgers/obligations.sql``)."""

_BESIDE_BODY = (Kind.PATCHED, Kind.EMITTED, Kind.BUDGET_CHARGED)


class Unit(NamedTuple):
    """One row of the journal."""

    seq: int
    call: int
    kind: str
    name: str | None
    payload: str | None
    starts: list[Any] | None
    at_us: int
    due_us: int | None

    @property
    def is_answer(self) -> bool:
        """True if the database may have decided it, perhaps several in one answer; a worker decides
        outcomes of steps one by one.
        """
        return self.kind in ANSWERS or (self.kind == Kind.CALL_CANCELLED and self.call == 0)

    @property
    def is_mark(self) -> bool:
        """True if a replay reads it without expecting it of the code. At call 0 these are patches
        once deprecated, and what a step's body emitted or spent.
        """
        return (
            self.kind in MARKS
            or (self.call == 0 and self.kind in _BESIDE_BODY)
            or (
                self.kind in _SAID_BY_OTHERS
                and (self.payload or "").startswith(_SAID_BY_OTHERS[self.kind])
            )
        )

    @property
    def is_outcome(self) -> bool:
        """True if it is released to the code, as the cancellation of the whole run (call 0) is."""
        return self.kind in OUTCOMES or (self.kind == Kind.CALL_CANCELLED and self.call == 0)

    def __str__(self) -> str:
        """As a person reads it in a diff."""
        name = f" {self.name!r}" if self.name else ""
        return f"unit {self.seq}: {KIND_NAMES.get(self.kind, self.kind)}{name}, call {self.call}"


new_unit: Callable[[tuple[Any, ...]], Unit] = partial(tuple.__new__, Unit)
"""Make a unit of its values, without a call of a Python function: `Unit(...)` is one."""

MAX_LABELS_BYTES = 16_384
"""As the domain ``pgflow.run_object`` has it."""


def relabelled(labels: dict[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Labels with changes, of which None takes one away."""
    after: dict[str, str | None] = {**labels, **changes}
    return {name: value for name, value in after.items() if value is not None}


def parse_units(text: str | None) -> list[Unit]:
    """Units from the JSON of a claim or of ``load_units``."""
    return [*map(new_unit, json.loads(text))] if text else []


def ended_by(units: list[Unit], seq: int) -> frozenset[int]:
    """The calls that have ended, or were given up, by a seq."""
    return frozenset(
        u.call
        for u in units
        if u.seq <= seq and (u.is_outcome or u.kind in (Kind.CALL_CANCELLED, Kind.STEP_ABANDONED))
    )


class Start(NamedTuple):
    """A licence: the body of this call may have run."""

    call: int
    effect: str
    name: str
    ordinal: int | str
    args_hash: int


FIRST_ADOPTED = 1_000_000_000
"""First number of calls that are not of the code: a run takes them over from a dropped part of a
journal (``sql/again/adopt.sql``).
"""

_BESIDE = EFFECT_MARKS | EFFECT_OUTCOMES | {Kind.CHILD_STARTED, Kind.COMPENSATED}


def beside_code(units: list[Unit]) -> list[Unit]:
    """A journal as the code sees it: what was done before it went on is there to be passed over."""
    if all(u.call < FIRST_ADOPTED for u in units):
        return units
    return [
        u._replace(kind=Kind.OPERATOR, starts=None)
        if u.call >= FIRST_ADOPTED and u.kind in _BESIDE
        else u
        for u in units
    ]


RETURNED = "signal_returned"
"""Name of the operator's unit that takes a signal back which the code could not take: it is in the
mailbox again.
"""

ANSWER_RETURNED = "answer_returned"
"""Name of the operator's unit that takes the answer of a gate back which the code could not take:
the gate is open again.
"""


def without_returned(units: list[Unit]) -> list[Unit]:
    """Return a journal without the signals and answers that were returned, as if they had not been
    taken.
    """
    returned = {
        json.loads(u.payload or "{}")["seq"]
        for u in units
        if u.kind == Kind.OPERATOR and u.name in (RETURNED, ANSWER_RETURNED)
    }
    return (
        [u._replace(kind=Kind.OPERATOR) if u.seq in returned else u for u in units]
        if returned
        else units
    )
