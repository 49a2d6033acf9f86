"""The write-ahead buffer: units that were recorded and are not on their way yet."""

from __future__ import annotations

import json

from pgflow._engine.calls import StepCall
from pgflow._engine.clock import Clock
from pgflow._engine.effects import EffectCall
from pgflow._engine.flush import MAX_FLUSH_BYTES, MAX_FLUSH_UNITS, Flush, Returned, Row, Word
from pgflow._engine.host import Line
from pgflow._model.claims import Claim, Offer
from pgflow._model.kinds import Kind, StepKind

UNIT_BYTES = 100
"""About how many bytes a unit adds to a flush beside its payload."""


class Buffer:
    """Owns the rows and the sequence number of the last unit, in the journal or recorded.

    The rows are the last units up to that number, without a gap: whoever reads units of the
    journal, or gets them in an answer, says so by :meth:`go_to`.
    """

    def __init__(self, claim: Claim, clock: Clock, line: Line) -> None:
        self._claim = claim
        self._clock = clock
        self._line = line
        self.rows: list[Row] = []
        """The units that are not on their way yet."""
        self.size_bytes = 0
        """About how much they take."""
        self.seq = 0
        """Number of the last unit."""
        self.has_ledger = False
        """True if its units change a ledger."""
        self.has_obligations = False
        """True if its units open or close obligations."""
        self.has_draws = False
        """True if its units say what was spent."""
        self.has_emitted = False
        """True if its units have values of streams, for which somebody may wait."""
        self._taken: list[Offer] | None = None
        self._returned: list[Returned] | None = None
        self._words: list[Word] | None = None

    # ================================================================ what there is

    @property
    def has_mail(self) -> bool:
        """True if its units take something out of the mailbox, or give it back, or answer it."""
        return bool(self._taken or self._returned or self._words)

    # ================================================================ recording

    def go_to(self, seq: int) -> None:
        """A unit that is durable has this number."""
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
        """Adds a unit."""
        self.seq += 1
        row = Row(
            self.seq,
            number,
            kind,
            name,
            payload,
            self._clock.estimate_us(),
            delay_seconds,
            key,
            carried,
        )
        self.rows.append(row)
        self.size_bytes += UNIT_BYTES if payload is None else UNIT_BYTES + len(payload)
        if len(self.rows) >= MAX_FLUSH_UNITS or self.size_bytes >= MAX_FLUSH_BYTES:
            self._line.want_flush()
        return row

    def record_emitted(self, call: StepCall) -> int:
        """Puts what a body has emitted before its outcome, and says how much that was. A replay
        passes over it: it has no call.
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
        """The code has emitted a value, which readers wait for: it is flushed at once."""
        self.has_emitted = True
        self.flush_soon()

    def record_charges(self, call: StepCall) -> int:
        """Puts what a try has spent before what it came to, and says how many units that were. A
        replay passes over them: they have no call.
        """
        spent = call.take_charges(self._line.monotonic_ns() // 1000)
        for amounts, model in spent:
            told: dict[str, object] = {"call": call.number, "amounts": amounts}
            if model is not None:
                told["model"] = model
            if (decision := decision_of(call)) is not None:
                told["decision"] = decision
            self.record(0, Kind.BUDGET_CHARGED, call.name, json.dumps(told))
        if spent:
            self.draw()
        return len(spent)

    def draw(self) -> None:
        """The newest unit says what was spent: it is flushed soon."""
        self.has_draws = True
        self._line.want_flush()

    def flush_soon(self) -> None:
        """The newest unit is not to wait for something else to be flushed."""
        self._line.want_flush()

    def book(self) -> None:
        """The newest unit changes a ledger: it is flushed soon."""
        self.has_ledger = True
        self._line.want_flush()

    def owe(self) -> None:
        """The newest unit opens or closes an obligation: it is flushed soon."""
        self.has_obligations = True
        self.book()

    def take_message(self, offer: Offer) -> None:
        """A message is in one of its units, and leaves the mailbox with it."""
        if self._taken is None:
            self._taken = []
        self._taken.append(offer)

    def give_back(self, returned: Returned) -> None:
        """A signal goes back to the mailbox, which one of its units says."""
        if self._returned is None:
            self._returned = []
        self._returned.append(returned)

    def say(self, word: Word) -> None:
        """Somebody waits for what is said of an update: it is flushed soon."""
        if self._words is None:
            self._words = []
        self._words.append(word)
        self._line.want_flush()

    # ================================================================ leaving

    def pack(self, starts: list[StepCall]) -> Flush:
        """Return a flush of all that is in it, with licences."""
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
        """A transaction was rolled back: without its own rows,
        what it would have taken along is there again.
        """
        self.rows = flush.rows[: -flush.own_rows] + self.rows
        self.size_bytes = sum(UNIT_BYTES + len(row.payload or "") for row in self.rows)
        self.seq -= flush.own_rows

    def discard(self, seq: int) -> None:
        """The units in it are nobody's history; the last one of the run is this."""
        self._empty()
        self.seq = seq

    def _empty(self) -> None:
        self.rows, self.size_bytes, self._taken, self._returned = [], 0, None, None
        self._words = None
        self.has_ledger = self.has_obligations = self.has_draws = self.has_emitted = False


def decision_of(call: StepCall) -> str | None:
    """Key of the decision that a call is, or rests on; None if there is none."""
    if call.spec.effect == StepKind.DECISION:
        return call.key or None
    if isinstance(call, EffectCall):
        return call.decision
    return call.key.rsplit("/", 2)[0] if call.key else None
