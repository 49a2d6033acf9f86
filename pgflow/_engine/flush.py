"""A flush: everything an execution sends in one commit, and the document that carries it.

The document is built by joining text, because rows are small, a worker builds tens of thousands a
second, and each value is JSON text already. ``pgflow/_model/protocol.py`` describes each row.
Long values travel beside the document: inside it they would be escaped here and parsed twice by the
server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pgflow._engine.calls import StepCall
from pgflow._model.claims import Offer
from pgflow._model.codecs import quote_json
from pgflow._model.protocol import Question

_to_json = json.JSONEncoder().encode  # as `json.dumps`, which is one call more

CHILDS = ',"c"'
"""Suffix of a taken message that is the result of a child."""
# A buffer that reaches either bound requests a flush before the code waits.
MAX_FLUSH_UNITS = 64
MAX_FLUSH_BYTES = 256 * 1024
MAX_FLUSH_STARTS = 1000
APART_CHARS = 1000
"""Values of at least this length travel beside the document."""
MAX_FLUSH_CHILDREN = 500
"""Maximum number of children that start in one commit. The first ones run while those of the next
commit are inserted.
"""


class Row(NamedTuple):
    """A unit to append to the journal. Its delay starts at ``at_us``, on the run's clock."""

    seq: int
    call: int
    kind: str
    name: str | None
    payload: str | None
    at_us: int
    delay_seconds: float | None
    key: str | None = None
    carried: StepCall | None = None
    """The call that this result belongs to, if another run's body produced it: the unit names the
    key under which that ran.
    """


new_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)
"""Make a row of all its values, without a call of a Python function: `Row(...)` is one."""


class Returned(NamedTuple):
    """A taken message or answer, at ``seq``, that goes back, with the reason."""

    call: int
    seq: int
    error: str


class Word(NamedTuple):
    """Report on an update: taken from the mailbox, or answered, or both.

    Attributes:
        update_id: Its id.
        message: Number of the message to delete; None to leave the mailbox alone.
        seq: Seq of the unit with the answer; None if the journal has none.
        status: The answer, a code; None if it is only taken.
        error: Reason of a rejection, as JSON.
    """

    update_id: str
    message: int | None = None
    seq: int | None = None
    status: str | None = None
    error: str | None = None


class Misfit(NamedTuple):
    """Reason why a call cannot take the message that it waits for."""

    name: str
    error: str


class Ending(NamedTuple):
    """End of a run: its status, and the reason, output or error."""

    status: str
    reason: str | None
    output: str | None
    error: str | None


@dataclass(eq=False)
class Flush:
    """One run's part of a commit."""

    run_id: int
    token: int
    chain_id: int
    expected_seq: int
    """Last seq before this flush."""
    last_seq: int
    """Last seq that this flush writes."""
    rows: list[Row]
    starts: list[StepCall] = field(default_factory=list)
    question: Question | None = None
    ending: Ending | None = None
    has_kin: bool = False
    has_gates: bool = False
    """True if the ending run has used gates."""
    has_events: bool = False
    """True if the ending run has waited for events."""
    has_locks: bool = False
    """True if the run may hold a lock, which its end releases."""
    tries: int = 0
    has_ledger: bool = False
    has_obligations: bool = False
    """True if its units open or close obligations, or its ending leaves some to people."""
    has_draws: bool = False
    """True if a unit records spending."""
    has_emitted: bool = False
    """True if a unit has a value of a stream, for which readers may wait."""
    over: list[int | None] | None = None
    """Calls whose reservations end, ``[None]`` for all of the run; None to leave the pools alone.
    """
    taken: Sequence[Offer] = ()
    """Messages to delete from the mailbox; their units are among the rows."""
    returned: Sequence[Returned] = ()
    """Messages that go back to the mailbox; a unit among the rows records each."""
    words: Sequence[Word] = ()
    """Reports on updates."""
    size_bytes: int = 0
    """Estimated size of its units."""
    own_rows: int = 0
    """Number of last rows that a transactional step added itself. They are dropped if its
    transaction is rolled back.
    """
    failing_since: float | None = None
    """Time on the loop's clock when the server first refused it."""

    def licences(self, index: int) -> str:
        """Return the JSON for a row's ``starts`` column, or an empty string. The last row lists the
        bodies that this commit licenses; any row names the call whose result it reuses.
        """
        carried = self.rows[index].carried
        calls = self.starts if index == len(self.rows) - 1 else []
        if carried is not None:
            calls = [carried, *calls]
        text = ""
        for call in calls:
            ordinal = call.ordinal if isinstance(call.ordinal, int) else quote_json(call.ordinal)
            text += (
                f'{"," if text else "["}[{call.number},"{call.spec.effect}",'
                f"{quote_json(call.name)},{ordinal},{call.args_hash}]"
            )
        return text and text + "]"

    def unit_rows(self, now_us: Callable[[], int], apart: list[str]) -> str:
        """Return the :class:`UnitRow` of each unit, joined.

        Args:
            now_us: Returns the run's time; called only if a row has a delay.
            apart: Receives the long values, except those that the ledger of effects reads in the
                document.
        """
        rows = []
        last = len(self.rows) - 1 if self.starts else -1
        for i, r in enumerate(self.rows):
            key = "" if r.key is None else "," + quote_json(r.key)
            payload = "null"
            if r.payload is not None:
                if len(r.payload) < APART_CHARS or self.has_ledger:
                    payload = quote_json(r.payload)
                else:
                    key = f"{key or ',null'},{_put_apart(r.payload, apart)}"
            rows.append(
                f'[{self.run_id},{r.seq},{r.call},"{r.kind}",'
                f"{'null' if r.name is None else quote_json(r.name)},{payload},"
                f"{quote_json(self.licences(i)) if r.carried or i == last else 'null'},"
                f"{r.at_us},{'null' if r.delay_seconds is None else _seconds_left(r, now_us)},"
                f"{self.token}{key}]"
            )
        return ",".join(rows)

    def taken_rows(self) -> list[str]:
        """Return the :class:`TakenRow` of each message."""
        address = f"{self.run_id},{self.chain_id}"
        return [
            f"[{address},{quote_json(o.name)},{o.signal_id}{'' if o.call is None else CHILDS}]"
            for o in self.taken
        ]

    def end_row(self, apart: list[str]) -> str:
        """Return the :class:`EndRow`; ``apart`` receives a long output."""
        assert self.ending is not None
        status, reason, output, error = self.ending
        number, inside = "", "null"
        if output is not None:
            if len(output) < APART_CHARS:
                inside = quote_json(output)
            else:
                number = f",{_put_apart(output, apart)}"
        return (
            f'[{self.run_id},"{status}",{"null" if reason is None else quote_json(reason)},'
            f"{inside},{'null' if error is None else quote_json(error)},"
            f"{self.chain_id},{self.token}{number}]"
        )


def _put_apart(text: str, apart: list[str]) -> int:
    """Append a long value and return its position from 1."""
    apart.append(text)
    return len(apart)


def _seconds_left(row: Row, now_us: Callable[[], int]) -> float:
    assert row.delay_seconds is not None
    return max(0.0, row.delay_seconds - (now_us() - row.at_us) / 1e6)


def draws_of(flush: Flush) -> list[str]:
    """Return the :class:`DrawRow` of each call."""
    if flush.over is None:
        return []
    calls = flush.over or [0]
    return [f"[{flush.run_id},{'null' if call is None else call}]" for call in calls]


def batch_document(
    worker_id: int, flushes: Iterable[tuple[Flush, Callable[[], int]]], apart: list[str]
) -> str:
    """Return the ``commit_units`` document for a worker's flushes.

    Args:
        worker_id: The worker.
        flushes: Pairs of a flush and a function that returns its run's time in microseconds.
        apart: Receives the long values, which travel beside the document.
    """
    runs, units, ends, taken, returned, draws, replies, questions = [], [], [], [], [], [], [], []
    kin: list[str] = []
    gated: list[str] = []
    awaiting: list[str] = []
    locking: list[str] = []
    has_ledger = has_obligations = False
    for run_id, flush, now_us in sorted([(f.run_id, f, now_us) for f, now_us in flushes]):
        runs.append(f"[{run_id},{flush.token},{flush.expected_seq}]")
        if flush.rows:
            units.append(flush.unit_rows(now_us, apart))
            has_ledger = has_ledger or flush.has_ledger
        has_obligations = has_obligations or flush.has_obligations
        if flush.ending is not None:
            ends.append(flush.end_row(apart))
            concerned = (
                (kin, flush.has_kin),
                (gated, flush.has_gates),
                (awaiting, flush.has_events),
                (locking, flush.has_locks),
            )
            for rows, is_concerned in concerned:
                if is_concerned:
                    rows.append(str(run_id))
        if flush.taken or flush.returned:
            taken += flush.taken_rows()
            returned += [json.dumps([run_id, flush.chain_id, *r]) for r in flush.returned]
        if flush.words:
            replies += [json.dumps([run_id, flush.chain_id, *w]) for w in flush.words]
        if flush.over is not None:
            draws += draws_of(flush)
        if flush.question is not None:
            questions.append(_to_json(flush.question))
    parts = [f'"worker":{worker_id},"runs":[{",".join(runs)}],"units":[{",".join(units)}]']
    if has_ledger or has_obligations:
        parts.append('"has_ledger":true')
    if has_obligations:
        parts.append('"has_obligations":true')
    lists = (
        ("taken", taken),
        ("returned", returned),
        ("draws", draws),
        ("ends", ends),
        ("kin", kin),
        ("gated", gated),
        ("awaiting", awaiting),
        ("locking", locking),
        ("replies", replies),
        ("questions", questions),
    )
    parts += [f'"{name}":[{",".join(rows)}]' for name, rows in lists if rows]
    return "{" + ",".join(parts) + "}"
