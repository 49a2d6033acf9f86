"""The journal of a run, folded into entries: one for each call, with when it began, its attempts and its end.

The journal says when things were recorded. A body's licence, a timer and a child have their own unit, so
their beginning is known; a ``@read``, a ``@transaction`` and a wait for a signal leave only their outcome,
so their entry begins where the one before it in the journal happened (`is_known` is false then).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pgflow_cli.encoded import encoded, readable

Row = Mapping[str, Any]

STEP, TIMER, SIGNAL, CHILD, MARK = "step", "timer", "signal", "child", "mark"

RECOVERED = "recovered"
"""The mark at which a lease was last heard of, where another went on without the run having been woken: its worker had died, or
handed it back. When the other began is not in the journal, only when it first recorded something, which is where the mark ends."""

_KINDS = {
    "step_started": STEP, "step_completed": STEP, "step_failed": STEP, "attempt_failed": STEP, "step_abandoned": STEP,
    "timer_started": TIMER, "timer_fired": TIMER, "signal_received": SIGNAL, "wait_timed_out": SIGNAL,
    "child_started": CHILD, "child_finished": CHILD, "decision_recorded": STEP,
    "effect_intended": STEP, "effect_attempted": STEP, "effect_unknown": STEP, "effect_confirmed": STEP, "effect_failed": STEP,
    "effect_accepted": STEP,
}  # fmt: skip
_ENDS = {
    "step_completed": "completed", "step_failed": "failed", "step_abandoned": "abandoned", "timer_fired": "fired",
    "signal_received": "received", "wait_timed_out": "timed out", "child_finished": "finished", "call_cancelled": "given up",
    "decision_recorded": "completed", "effect_confirmed": "completed", "effect_failed": "failed", "effect_accepted": "accepted",
}  # fmt: skip
_WAKES = {"signal_received", "wait_timed_out", "timer_fired", "child_finished", "operator", "call_cancelled"}
"""Kinds of unit with which a parked run goes on. Another lease that begins with anything else has taken over."""


@dataclass
class Entry:
    """One call of a run's code, or a mark between calls.

    Attributes:
        call: Its number; 0 for what is no call.
        kind: step, timer, signal, child or mark.
        name: Name of the call.
        status: Status at its end; ``open`` if it has not ended.
        began_at: Time of its beginning.
        ended_at: Time of its end; None if it has not ended.
        is_known: True if the journal has the time of its beginning.
        failures: Failed attempts: when, and the error.
        cut_off: Attempts of which nothing is known: the lease under which they began recorded no end of them.
        due_at: Time at which a timer, or the next attempt, is due.
        detail: Text of a mark.
    """

    call: int
    kind: str
    name: str
    began_at: datetime
    is_known: bool = True
    status: str = "open"
    ended_at: datetime | None = None
    failures: list[tuple[datetime, str]] = field(default_factory=list)
    cut_off: int = 0
    due_at: datetime | None = None
    detail: str = ""

    @property
    def attempts(self) -> int:
        """Number of tries of a step, as far as is recorded."""
        is_trying = self.status == "open" and self.is_known and self.due_at is None
        return len(self.failures) + self.cut_off + (self.status == "completed" or is_trying) if self.kind == STEP else 0

    def as_row(self) -> dict[str, Any]:
        """The entry for machines."""
        return {
            "call": self.call, "kind": self.kind, "name": self.name, "status": self.status, "began_at": self.began_at,
            "began_is_recorded": self.is_known, "ended_at": self.ended_at,
            "seconds": None if self.ended_at is None else round((self.ended_at - self.began_at).total_seconds(), 6),
            "attempts": self.attempts, "errors": [error for _, error in self.failures], "due_at": self.due_at, "detail": self.detail,
        }  # fmt: skip


def fold(units: Iterable[Row], created_at: datetime) -> list[Entry]:
    """Entries from the rows of ``pgflow.timeline`` of one run, in the order of the journal.

    Args:
        units: call, event, name, at, recorded_at, due_at, payload, starts, token.
        created_at: Time of the start of the run.
    """
    folding = _Folding(created_at)
    for unit in units:
        folding.take(unit)
    return folding.entries


class _Folding:
    def __init__(self, created_at: datetime) -> None:
        self.entries: list[Entry] = []
        self._open: dict[int, Entry] = {}
        self._last = created_at
        self._token: int | None = None
        self._heard_at = created_at
        self._begun_by: dict[int, int | None] = {}
        """Call -> token of the lease under which its body was begun and has not ended."""

    def take(self, unit: Row) -> None:
        self._note_lease(unit)
        event, call = unit["event"], unit["call"]
        if event == "timer_started" and call in self._open:
            self._open[call].due_at = unit["due_at"]
        elif event in _KINDS or (event == "call_cancelled" and call):
            self._take_call(unit, _KINDS.get(event, MARK))
        else:
            self.entries.append(_mark(unit))
        for number, _class, name, *_ in unit["starts"] or ():
            self._begin(number, STEP, name, unit["recorded_at"])
            self._begun_by.setdefault(number, unit["token"])
        self._last = max(self._last, unit["at"])
        if unit["token"]:
            self._heard_at = max(self._heard_at, unit["recorded_at"])

    def _note_lease(self, unit: Row) -> None:
        token = unit["token"] or None
        if token is None:
            return
        if self._token is not None and token != self._token and unit["event"] not in _WAKES:
            self.entries.append(
                Entry(
                    0, MARK, RECOVERED, self._heard_at, status="", ended_at=unit["recorded_at"],
                    detail="another lease goes on from the journal",
                )
            )
        self._token = token

    def _take_call(self, unit: Row, kind: str) -> None:
        event, call = unit["event"], unit["call"]
        known = self._open.get(call)
        if event in ("timer_started", "child_started"):
            kind = SIGNAL if kind == TIMER and unit["name"] else kind
            self._begin(call, kind, _name(unit, kind), unit["at"]).due_at = unit["due_at"]
            return
        if event in ("step_started", "effect_intended", "effect_attempted"):  # the column starts says what has begun
            return
        entry = known or self._begin(call, kind, _name(unit, kind), self._last, is_known=False)
        if event in ("step_completed", "step_failed", "attempt_failed"):
            entry.cut_off += self._begun_by.pop(call, unit["token"]) != unit["token"]
        if event in ("attempt_failed", "effect_unknown"):
            entry.failures.append((unit["at"], describe_error(unit["payload"])))
            entry.due_at = unit["due_at"]
            return
        if kind == SIGNAL:
            entry.kind, entry.name = SIGNAL, unit["name"] or entry.name
        entry.status, entry.ended_at, entry.due_at = _ENDS[event], max(unit["at"], entry.began_at), None
        if event in ("step_failed", "effect_failed"):
            entry.failures.append((unit["at"], describe_error(unit["payload"])))
        del self._open[call]

    def _begin(self, call: int, kind: str, name: str, at: datetime, *, is_known: bool = True) -> Entry:
        if call in self._open:
            return self._open[call]
        entry = Entry(call, kind, name, at, is_known)
        self._open[call] = entry
        self.entries.append(entry)
        return entry


def _name(unit: Row, kind: str) -> str:
    """Return the name of a call; a timer with a name is the time-out of a wait for that name."""
    return unit["name"] or {TIMER: "sleep", CHILD: "child"}.get(kind, kind)


def _mark(unit: Row) -> Entry:
    payload = readable(unit["payload"])
    detail = ""
    if isinstance(payload, dict):
        detail = ", ".join(f"{name}: {value}" for name, value in payload.items() if value is not None)
    elif payload is not None:
        detail = str(payload)
    name = unit["event"].replace("_", " ") if unit["name"] is None else f"{unit['event'].replace('_', ' ')} {unit['name']}"
    return Entry(unit["call"], MARK, name.removeprefix("operator "), unit["at"], status="", ended_at=unit["at"], detail=detail)


def describe_error(payload: Any) -> str:
    """A recorded error on one line."""
    if not isinstance(payload, dict):
        return str(payload)
    if "reason" in payload or "why" in payload:  # of an effect whose outcome is unknown
        from pgflow._model.reasons import in_words

        return f"unknown: {in_words(payload)}" + (f" ({describe_error(payload['error'])})" if payload.get("error") else "")
    name = str(payload.get("type") or "error").rpartition(".")[2]
    message = encoded(payload) or " ".join(str(payload.get("message") or "").split())
    return f"{name}: {message}" if message else name
