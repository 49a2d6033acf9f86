"""The history of a run: what its journal holds, and what is being added to it.

While the code repeats the journal, what it notes is compared with what is there; from then on it is
recorded, in a buffer that leaves with the next flush.
"""

from __future__ import annotations

import json
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import Call, ChildCall, StepCall
from pgflow._engine.drivers import Driver
from pgflow._engine.flush import MAX_FLUSH_BYTES, MAX_FLUSH_UNITS, Row
from pgflow._engine.host import Host
from pgflow._engine.journal import Journal
from pgflow._engine.loop import MAX_SWALLOWED_UNWINDS, Unwind
from pgflow._model.claims import Claim
from pgflow._model.exceptions import ErrorData
from pgflow._model.kinds import Kind
from pgflow._model.units import CALL_MARKS, KIND_NAMES, Unit, beside_code, without_returned
from pgflow.errors import CodecError, NonDeterminismError, PgflowError

T = TypeVar("T")

NEVER = 0
"""Number of a call that never comes back: code that swallows every Unwind and asks again would not give control back else."""


UNREADABLE = "codec"
"""Reason of a run that is held because a value cannot be encoded or decoded."""

LONG_CHARS = 400_000
"""A note of this length might be refused once it is encoded: then it is again on a replay."""


class Parting(NamedTuple):
    """The place at which the code parts from the journal: both sides, for whoever shows them."""

    journal: str
    code: str
    seq: int | None
    """Number of the unit that the code does not repeat; None if it is not about one."""
    where: list[str]
    """Source lines at which the code stood."""


@mypyc_attr(allow_interpreted_subclasses=True)
class History(ABC):
    """The lowest layer of an :class:`~pgflow._engine.execution.Execution`; see the module."""

    _driver: Driver

    def __init__(self, claim: Claim, host: Host[Any]) -> None:
        self.claim = claim
        self.run_id = claim.run_id
        self.journal = Journal(without_returned(self._journal_of(claim)))
        self.replaying = len(self.journal) > 0
        self.closing = False
        self.divergence: NonDeterminismError | None = None
        self._held_as = "nondeterminism"
        self._host = host
        self._parting: Parting | None = None
        self._calls: dict[int, Call] = {}
        self._left_behind: set[int] = set()  # calls that were open when the code ended, while an effect goes on
        self._last_call = 0
        self._refusals = 0
        self._seq = 0
        self._buffer: list[Row] = []
        self._buffer_bytes = 0
        self._now_us: int | None = None
        self._clock_us = claim.now_us - host.monotonic_us()
        self._random: random.Random | None = None
        self._random_stem = ""

    def _journal_of(self, claim: Claim) -> list[Unit]:
        """The units that are replayed."""
        return claim.units if claim.heritage is None else beside_code(claim.units)

    @abstractmethod
    def _want_flush(self) -> None:
        """Something is to become durable soon."""

    @abstractmethod
    def _go_live(self) -> None:
        """Everything recorded has been repeated."""

    # ================================================================ time

    def estimate_us(self) -> int:
        """The database's clock as far as it is known here: its time at the claim and what has passed since."""
        return max(self._clock_us + self._host.monotonic_us(), self._now_us or 0)

    def _sync_clock(self, database_us: int) -> None:
        self._clock_us = max(self._clock_us, database_us - self._host.monotonic_us())

    def time_seconds(self) -> float:
        """Time for the event loop: seconds since the run was created, as of the last outcome."""
        return 0.0 if self._now_us is None else max(0.0, (self._now_us - self.claim.created_us) / 1e6)

    def now_us(self) -> int:
        """Return the time of the last outcome, for ``now()``; before the first one, record the current time and return that."""
        if self._now_us is None:
            unit = self._note(self._next_call(), Kind.CLOCK_READ, None, None)
            self._now_us = unit.at_us if unit is not None else self._buffer[-1].at_us
        return self._now_us

    @property
    def random(self) -> random.Random:
        """Random numbers that a replay draws again."""
        stem = self.stem
        if self._random is None or self._random_stem != stem:
            self._random, self._random_stem = random.Random(stem), stem  # noqa: S311 - repeatable is what it is for
        return self._random

    @property
    def stem(self) -> str:
        """Seed of random numbers and of keys that the code makes; an inherited part of the journal keeps the seed it had."""
        if self.claim.heritage is not None:
            for upto, stem in self.claim.heritage.seeds:
                if upto is None or self._seq < upto:
                    return stem
        return self.claim.stem

    def uuid(self) -> uuid.UUID:
        """A random UUID that a replay makes again."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    # ================================================================ recording

    def _check_open(self) -> None:
        if self.closing or self.divergence is not None:
            self._refusals += 1
            raise Unwind

    def _next_call(self) -> int:
        if self._refusals >= MAX_SWALLOWED_UNWINDS:
            return NEVER
        self._check_open()
        self._last_call += 1
        return self._last_call

    def _note(self, number: int, kind: str, name: str | None, payload: str | None, delay_seconds: float | None = None) -> Unit | None:
        """Repeats a note of the journal and returns it, or records a new one and returns None."""
        self._check_open()
        unit = self._next_noted()
        if unit is None:
            self._record(number, kind, name, payload, delay_seconds)
            return None
        if (unit.call, unit.kind, unit.name) != (number, kind, name):
            asked = f"the code asks for {KIND_NAMES[kind]} {name or ''} as call {number}"
            self.diverge(f"the journal has {unit} here", code=asked, unit=unit)
        self._seq = unit.seq
        return self.journal.take()

    def _next_noted(self) -> Unit | None:
        """Return the next unit of the journal; None if all of it has been repeated, and the run makes history from here on."""
        if not self.replaying:
            return None
        self._skip_marks()
        unit = self.journal.peek()
        if unit is None:
            self._go_live()
        return unit

    def _record(
        self, number: int, kind: str, name: str | None, payload: str | None, delay_seconds: float | None = None, key: str | None = None,
        carried: StepCall | None = None,
    ) -> Row:  # fmt: skip
        self._seq += 1
        row = Row(self._seq, number, kind, name, payload, self.estimate_us(), delay_seconds, key, carried)
        self._buffer.append(row)
        self._buffer_bytes += size_of(row)
        if len(self._buffer) >= MAX_FLUSH_UNITS or self._buffer_bytes >= MAX_FLUSH_BYTES:
            self._want_flush()
        return row

    def _record_emitted(self, call: StepCall) -> int:
        """Puts what a body has emitted before its outcome, and says how much that was. A replay passes over it: it has no call."""
        for n, (stream, text) in enumerate(call.emitted):
            self._record(0, Kind.EMITTED, stream, text, key=f"{call.number}:{call.try_id}:{n}")
        return len(call.emitted)

    # ================================================================ values as they are recorded

    def _by_codec(self, work: Callable[[], T]) -> T:
        """Return what the app's codec makes of something; if it fails, the run is held."""
        try:
            return work()
        except CodecError as error:
            self.diverge(str(error), UNREADABLE)

    def sealed(self, text: str, what: str) -> str:
        """A value as it is recorded. If the app's codec fails, the run is held.

        Raises:
            NotStorable: It is too long once it is encoded.
        """
        envelopes = self.claim.envelopes
        return text if envelopes is None else self._by_codec(lambda: envelopes.seal(text, what))

    def _sealed_note(self, text: str, what: str, *, is_object: bool = False) -> str:
        """Return a note of the code as it is recorded; in clear where a replay repeats it."""
        envelopes = self.claim.envelopes
        if envelopes is None:
            return text
        self._check_open()
        if len(text) < LONG_CHARS and self._next_noted() is not None:
            return text
        return self._by_codec(lambda: envelopes.seal_each(text, what)) if is_object else self.sealed(text, what)

    def _error_text(self, data: ErrorData) -> str:
        """An error as it is recorded."""
        envelopes = self.claim.envelopes
        return json.dumps(data) if envelopes is None else self._by_codec(lambda: envelopes.seal_error(data)[0])

    def _told(self, error: BaseException) -> str:
        """Return the text of an error for a person, recorded in clear: where the app has a codec, nothing that may quote a value."""
        if self.claim.envelopes is None:
            return str(error)
        return getattr(error, "outline", None) or (str(error) if isinstance(error, PgflowError) else type(error).__name__)

    @property
    def oldest_unflushed_us(self) -> int | None:
        """Time at which the oldest unit that is not on its way was recorded, in microseconds; None if there is none."""
        return self._buffer[0].at_us if self._buffer else None

    # ================================================================ divergence

    def diverge(self, journal: str, reason: str = "nondeterminism", *, code: str = "", unit: Unit | None = None) -> NoReturn:
        """The journal cannot be repeated: nothing more is recorded, and the run is held for a person under this reason.

        Args:
            journal: The journal's side; or all of it, if it has no two sides.
            reason: Reason of the hold, a code.
            code: The code's side.
            unit: Unit of the journal that the code does not repeat.
        """
        if self.divergence is None:
            self._held_as = reason
            message = f"{journal}, {code}" if code else journal
            self.divergence = NonDeterminismError(f"run {self.claim.key!r} ({self.claim.workflow}): {message}")
            self._parting = Parting(journal, code, None if unit is None else unit.seq, self._driver.where())
        raise Unwind

    def _skip_marks(self, *, only_of_known: bool = False, upto_patch: str | None = None) -> None:
        journal = self.journal
        while (unit := journal.peek()) is not None and unit.is_mark and not (only_of_known and not self._knows(unit.call)):
            if self._is_start(unit):
                return
            if unit.kind == Kind.PATCHED and unit.name == upto_patch:
                return
            self._seq = unit.seq
            journal.take()
            self._take_mark(unit)

    def _is_start(self, unit: Unit) -> bool:
        """Return True if the code waits for this start of a child, to which it is an outcome."""
        call = self._calls.get(unit.call)
        return unit.kind == Kind.CHILD_STARTED and isinstance(call, ChildCall) and call.awaits_start

    def _knows(self, number: int) -> bool:
        """Return True if the code has asked for this call, and more of it may come."""
        return number in self._calls

    def _take_mark(self, unit: Unit) -> None:
        """Learns what a mark says of its call."""
        if unit.kind in CALL_MARKS:
            call = self._calls.get(unit.call)
            if call is None or not call.read(unit):
                self.diverge(f"the journal has {unit}", code=f"the code has {call or 'no such call'}", unit=unit)

    def _check_starts(self) -> None:
        """Every body that may have run must have been asked for again by now: it was, when its licence was written."""
        for start in self.journal.open_starts():
            call = self._calls.get(start.call)
            if not isinstance(call, StepCall) and start.call not in self._left_behind:
                licensed = f"the journal has licensed call {start.call} as step {start.name!r}"
                self.diverge(licensed, code=f"the code has {call or 'no such call'}")


def size_of(row: Row) -> int:
    """About how many bytes a unit adds to a flush."""
    return 100 + len(row.payload or "")
