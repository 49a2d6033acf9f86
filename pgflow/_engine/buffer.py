"""The write-ahead buffer: units that are recorded but not sent yet."""

from __future__ import annotations

import json

from pgflow._engine.calls import StepCall
from pgflow._engine.clock import Clock
from pgflow._engine.flush import (
    MAX_FLUSH_BYTES,
    MAX_FLUSH_UNITS,
    Flush,
    Returned,
    Row,
    Word,
    new_row,
)
from pgflow._engine.host import Line
from pgflow._engine.parts import Parts
from pgflow._model.claims import Offer
from pgflow._model.kinds import Kind

UNIT_BYTES = 100
"""Estimated bytes that a unit adds to a flush beside its payload."""


class Buffer:
    """Owns the unsent rows and the sequence number of the last unit, in the journal or recorded.

    The rows are the last units up to that number, without a gap. Call :meth:`go_to` for each unit
    read from the journal or received in an answer.
    """

    def __init__(self, parts: Parts) -> None:
        self._claim = parts.claim
        self._clock = parts[Clock]
        self._line = parts[Line]
        self.rows: list[Row] = []
        """Units that are not sent yet."""
        self.size_bytes = 0
        """Estimated size of the rows."""
        self.seq = 0
        """Sequence number of the last unit."""
        self.has_ledger = False
        """True if a unit changes a ledger."""
        self.has_obligations = False
        """True if a unit opens or closes an obligation."""
        self.has_draws = False
        """True if a unit records spending."""
        self.has_emitted = False
        """True if a unit has a value of a stream, for which readers may wait."""
        self._taken: list[Offer] | None = None
        self._returned: list[Returned] | None = None
        self._words: list[Word] | None = None

    # ================================================================ what there is

    @property
    def has_mail(self) -> bool:
        """True if a unit takes from the mailbox, returns to it, or answers an update."""
        return bool(self._taken or self._returned or self._words)

    # ================================================================ recording

    def go_to(self, seq: int) -> None:
        """Continue after a durable unit with this number."""
        self.seq = seq

    def record(
        self,
        number: int,
        kind: str,
        name: str | None,
        payload: str | None,
        delay_seconds: float | None = None,
        key: str | None = None,
        carried: StepCall | None = None,
    ) -> Row:
        """Add a unit and return its row."""
        self.seq += 1
        at_us = self._clock.estimate_us()
        row = new_row((self.seq, number, kind, name, payload, at_us, delay_seconds, key, carried))
        self.rows.append(row)
        self.size_bytes += UNIT_BYTES if payload is None else UNIT_BYTES + len(payload)
        if len(self.rows) >= MAX_FLUSH_UNITS or self.size_bytes >= MAX_FLUSH_BYTES:
            self._line.want_flush()
        return row

    def record_emitted(self, call: StepCall) -> int:
        """Record the values that a body emitted, before its outcome, and return their number. A
        replay skips them, since they have no call.
        """
        count = 0
        for n, (stream, text) in enumerate(call.emitted):
            if text is not None:
                self.record(0, Kind.EMITTED, stream, text, key=f"{call.number}:{call.try_id}:{n}")
                count += 1
        if count:
            self.has_emitted = True
        return count

    def emitted(self) -> None:
        """Flush at once: the newest unit is a value that readers wait for."""
        self.has_emitted = True
        self.flush_soon()

    def record_charges(self, call: StepCall) -> int:
        """Record the spending of a try, before its result, and return the number of units. A replay
        skips them, since they have no call.
        """
        spent = call.take_charges(self._line.monotonic_ns() // 1000)
        for amounts, model in spent:
            charge: dict[str, object] = {"call": call.number, "amounts": amounts}
            if model is not None:
                charge["model"] = model
            if (decision := call.decision_key) is not None:
                charge["decision"] = decision
            self.record(0, Kind.BUDGET_CHARGED, call.name, json.dumps(charge))
        if spent:
            self.draw()
        return len(spent)

    def draw(self) -> None:
        """Flush soon: the newest unit records spending."""
        self.has_draws = True
        self._line.want_flush()

    def flush_soon(self) -> None:
        """Flush soon, without waiting for another reason to flush."""
        self._line.want_flush()

    def book(self) -> None:
        """Flush soon: the newest unit changes a ledger."""
        self.has_ledger = True
        self._line.want_flush()

    def owe(self) -> None:
        """Flush soon: the newest unit opens or closes an obligation."""
        self.has_obligations = True
        self.book()

    def take_message(self, offer: Offer) -> None:
        """Delete a message from the mailbox with the flush that records its unit."""
        if self._taken is None:
            self._taken = []
        self._taken.append(offer)

    def give_back(self, returned: Returned) -> None:
        """Return a message to the mailbox with the flush that records its return."""
        if self._returned is None:
            self._returned = []
        self._returned.append(returned)

    def say(self, word: Word) -> None:
        """Report on an update, and flush soon: its sender waits."""
        if self._words is None:
            self._words = []
        self._words.append(word)
        self._line.want_flush()

    # ================================================================ leaving

    def pack(self, starts: list[StepCall]) -> Flush:
        """Return a flush of the whole buffer, with licences, and empty the buffer."""
        if starts and not self.rows:
            first = starts[0]
            self.record(first.number, Kind.STEP_STARTED, first.name, None)
        claim, rows = self._claim, self.rows
        flush = Flush(
            claim.run_id,
            claim.token,
            claim.chain_id,
            self.seq - len(rows),
            self.seq,
            rows,
            starts,
            has_ledger=self.has_ledger,
            has_obligations=self.has_obligations,
            has_draws=self.has_draws,
            has_emitted=self.has_emitted,
            taken=self._taken or (),
            returned=self._returned or (),
            words=self._words or (),
            size_bytes=self.size_bytes,
        )
        self.rows, self.size_bytes = [], 0
        if (
            flush.has_ledger
            or flush.has_draws
            or flush.has_emitted
            or flush.taken
            or flush.returned
            or flush.words
        ):
            self._empty()
        return flush

    def put_back(self, flush: Flush) -> None:
        """Restore the rows that a rolled-back transaction took along, without its own."""
        self.rows = flush.rows[: -flush.own_rows] + self.rows
        self.size_bytes = sum(UNIT_BYTES + len(row.payload or "") for row in self.rows)
        self.seq -= flush.own_rows

    def discard(self, seq: int) -> None:
        """Drop all rows: they will not be recorded. Continue after ``seq``."""
        self._empty()
        self.seq = seq

    def _empty(self) -> None:
        self.rows, self.size_bytes, self._taken, self._returned = [], 0, None, None
        self._words = None
        self.has_ledger = self.has_obligations = self.has_draws = self.has_emitted = False
