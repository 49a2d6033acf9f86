"""The journal of a run: a page of its units, and the whole folded into entries.

An entry is one call of the code: when it began, its attempts and its end. The journal says when
things were recorded. A body's licence, a timer and a child have their own unit, so their beginning
is known. A ``@read``, a ``@transaction`` and a wait for a signal leave only their outcome, so their
entry begins where the one before it in the journal happened; ``is_known`` is false then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, LiteralString

from pgflow._db.query import Query, Row
from pgflow._model.kinds import ENDED
from pgflow.errors import InvalidArgument
from pgflow.inspect.clock import database_now
from pgflow.inspect.listing import After, Listing, cut, one_more, parse_place
from pgflow.inspect.question import Question, Steps, once, question, statement
from pgflow.inspect.runs import RunRow, find_run

# ---------------------------------------------------------------- units


@dataclass(frozen=True)
class UnitRow:
    """A unit of a journal. A row of the view ``pgflow.timeline``.

    Attributes:
        seq: Its place in the journal, from 1 without a gap.
        call: Number of the call that it is about, in the order in which the code made them; 0 for
            the run itself.
        event: Kind of event, as the reference of SQL lists them.
        name: Of the step, signal, workflow or stream that it is about; None where there is none.
        at: Time of the event, as ``now()`` showed it to the workflow.
        recorded_at: Time at which the commit wrote it.
        due_at: Time at which the timer that it started, or the next attempt, is due; None for none.
        payload: Its result, error, message or value, as it is stored.
        starts: Bodies of steps that this commit allowed to start: call, class, name, ordinal or
            key, hash of arguments.
        token: Token of the lease that wrote it; 0 where no worker held the run.
        is_inherited: True if it happened to the run whose journal this one begins with.
    """

    seq: int
    call: int
    event: str
    name: str | None
    at: datetime
    recorded_at: datetime
    due_at: datetime | None
    payload: Any
    starts: list[list[Any]] | None
    token: int | None
    is_inherited: bool


_COLUMNS: LiteralString = (
    "t.seq, t.call, t.event, t.name, t.at, t.recorded_at, t.due_at, t.payload, t.starts, t.token, "
    "t.is_inherited"
)


def _read_units(rows: list[Row]) -> list[UnitRow]:
    return [UnitRow(*row) for row in rows]


def list_units(
    run_id: int, *, after: After = None, limit: int | None = 100
) -> Question[Listing[UnitRow]]:
    """Ask for a page of the units of a run, in the order of its journal.

    Args:
        run_id: The number of the run.
        after: ``next`` of the previous page, or the ``seq`` of a unit; None for the first page.
        limit: Maximum units of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    place = parse_place(after, int) or (0,)
    sql = statement(
        "select",
        _COLUMNS,
        "from pgflow.timeline t where t.run_id = %s and t.seq > %s order by t.seq limit %s",
    )
    return once(
        Query(
            sql,
            (run_id, *place, one_more(limit)),
            lambda rows: cut(_read_units(rows), limit, lambda unit: (unit.seq,)),
        )
    )


def last_seq(run_id: int) -> Question[int]:
    """Ask for the number of units that a run has so far."""
    # Not max(): behind the view's joins it would read every unit.
    sql = "select t.seq from pgflow.timeline t where t.run_id = %s order by t.seq desc limit 1"
    return once(Query(sql, (run_id,), lambda rows: int(rows[0][0]) if rows else 0))


def read_event_kinds(run_id: int) -> Question[frozenset[str]]:
    """Ask for the kinds of events that the journal of a run has."""
    sql = "select distinct t.event from pgflow.timeline t where t.run_id = %s"
    return once(Query(sql, (run_id,), lambda rows: frozenset(str(row[0]) for row in rows)))


# ---------------------------------------------------------------- entries

STEP, TIMER, SIGNAL, CHILD, GATE, LOCK, UPDATE, MARK = (
    "step", "timer", "signal", "child", "gate", "lock", "update", "mark",
)  # fmt: skip

RECOVERED = "recovered"
"""The last mark of a lease, if another went on without the run having been woken: its worker had
died, or handed it back. When the other began is not in the journal, only when it first recorded
something, which is where the mark ends.
"""

_KINDS = {
    "step_started": STEP, "step_completed": STEP, "step_failed": STEP,
    "attempt_failed": STEP, "step_abandoned": STEP,
    "timer_started": TIMER, "timer_fired": TIMER,
    "signal_received": SIGNAL, "wait_timed_out": SIGNAL,
    "child_started": CHILD, "child_finished": CHILD, "decision_recorded": STEP,
    "effect_intended": STEP, "effect_attempted": STEP, "effect_unknown": STEP,
    "effect_confirmed": STEP, "effect_failed": STEP, "effect_accepted": STEP,
    "budget_admitted": STEP, "budget_refused": STEP,
    "gate_asked": GATE, "gate_answered": GATE,
    "entity_updated": STEP, "lock_asked": LOCK, "lock_won": LOCK,
    "update_taken": UPDATE,
}  # fmt: skip
_ENDS = {
    "step_completed": "completed", "step_failed": "failed", "step_abandoned": "abandoned",
    "timer_fired": "fired", "signal_received": "received", "wait_timed_out": "timed out",
    "child_finished": "finished", "call_cancelled": "given up", "decision_recorded": "completed",
    "effect_confirmed": "completed", "effect_failed": "failed", "effect_accepted": "accepted",
    "budget_refused": "refused",
    "gate_answered": "answered",
    "entity_updated": "completed", "lock_won": "won", "lock_released": "refused",
    "update_taken": "taken",
}  # fmt: skip
_WAKES = {
    "gate_answered", "signal_received", "wait_timed_out", "timer_fired", "child_finished",
    "lock_won", "update_taken", "operator", "redacted", "call_cancelled",
}  # fmt: skip
"""Kinds of unit with which a parked run goes on.
Another lease that begins with anything else has taken over.
"""


@dataclass(frozen=True)
class Failure:
    """A failed attempt of a call, or an unanswered question about the outcome of an effect.

    Attributes:
        at: Time at which it failed.
        error: The error, as it is stored; :func:`describe_error` has words for it.
        attempt: Number of the attempt, from 1; 0 for a question.
    """

    at: datetime
    error: Any
    attempt: int = 1


@dataclass(frozen=True)
class Entry:
    """One call of a run's code, or a mark between calls.

    Attributes:
        call: Number of the call; 0 for a mark.
        kind: ``step``, ``timer``, ``signal``, ``child``, ``gate`` or ``mark``.
        name: Name of the call; of a mark, the event.
        began_at: Time of its beginning.
        is_known: True if the journal has the time of its beginning.
        status: Status at its end; ``open`` if it has not ended, empty for a mark.
        ended_at: Time of its end; None if it has not ended.
        failures: Failed attempts, and questions about an effect, in their order.
        cut_off: Attempts without a recorded end, because their lease was lost.
        acts: Number of times that an effect was allowed to act; 0 for all else.
        due_at: Time at which a timer, or the next attempt, is due; None for none.
        payload: Payload of a mark, as it is stored.
    """

    call: int
    kind: str
    name: str
    began_at: datetime
    is_known: bool
    status: str
    ended_at: datetime | None
    failures: tuple[Failure, ...]
    cut_off: int
    acts: int
    due_at: datetime | None
    payload: Any

    @property
    def attempts(self) -> int:
        """Number of tries of a step, as far as is recorded; 0 for all else."""
        if self.acts:
            return self.acts
        is_trying = self.status == "open" and self.is_known and self.due_at is None
        return (
            len(self.failures) + self.cut_off + (self.status == "completed" or is_trying)
            if self.kind == STEP
            else 0
        )

    @property
    def seconds(self) -> float | None:
        """Time that it took; None if it has not ended."""
        return None if self.ended_at is None else (self.ended_at - self.began_at).total_seconds()


@dataclass
class _Draft:
    """An entry while the units about it are read."""

    call: int
    kind: str
    name: str
    began_at: datetime
    is_known: bool = True
    status: str = "open"
    ended_at: datetime | None = None
    failures: list[Failure] = field(default_factory=list)
    cut_off: int = 0
    acts: int = 0
    due_at: datetime | None = None
    payload: Any = None

    def fail(self, unit: UnitRow) -> None:
        """Note a failure: of an effect, only the first after an act is an attempt's."""
        last = max((failure.attempt for failure in self.failures), default=0)
        number = self.acts if self.acts > last else 0
        if not self.acts:
            number = len(self.failures) + self.cut_off + 1
        self.failures.append(Failure(unit.at, unit.payload, number))

    def finished(self) -> Entry:
        return Entry(**{**vars(self), "failures": tuple(self.failures)})


def fold(units: Iterable[UnitRow], created_at: datetime) -> list[Entry]:
    """Return the entries that the units of one run make, in the order of the journal.

    Args:
        units: All units of the run.
        created_at: Time of the start of the run.
    """
    folding = _Folding(created_at)
    for unit in units:
        folding.take(unit)
    return [draft.finished() for draft in folding.entries]


class _Folding:
    def __init__(self, created_at: datetime) -> None:
        self.entries: list[_Draft] = []
        self._open: dict[int, _Draft] = {}
        self._last = created_at
        self._token: int | None = None
        self._heard_at = created_at
        self._begun_by: dict[int, int | None] = {}
        """Call -> token of the lease under which its body was begun and has not ended."""
        self._acts: Counter[int] = Counter()
        """Call -> number of times that its effect was allowed to act."""

    def take(self, unit: UnitRow) -> None:
        self._note_lease(unit)
        event, call = unit.event, unit.call
        if event == "timer_started" and call in self._open:
            self._open[call].due_at = unit.due_at
        elif (
            event in _KINDS
            or (event == "call_cancelled" and call)
            or (event == "lock_released" and call in self._open)
        ):
            self._take_call(unit, _KINDS.get(event, MARK))
        else:
            self.entries.append(_mark(unit))
        for number, _class, name, *_ in unit.starts or ():
            if number == call and event in _ENDS:  # a step in SQL is recorded once it is done
                continue
            self._begin(number, STEP, name, unit.recorded_at)
            self._begun_by.setdefault(number, unit.token)
        self._last = max(self._last, unit.at)
        if unit.token:
            self._heard_at = max(self._heard_at, unit.recorded_at)

    def _note_lease(self, unit: UnitRow) -> None:
        token = unit.token or None
        if token is None:
            return
        if self._token is not None and token != self._token and unit.event not in _WAKES:
            self.entries.append(
                _Draft(0, MARK, RECOVERED, self._heard_at, status="", ended_at=unit.recorded_at)
            )
        self._token = token

    def _take_call(self, unit: UnitRow, kind: str) -> None:
        event, call = unit.event, unit.call
        known = self._open.get(call)
        if event == "lock_asked":
            waiting = self._begin(call, kind, _name(unit, kind), unit.at)
            waiting.kind = LOCK
            return
        if event in ("timer_started", "child_started", "gate_asked"):
            kind = SIGNAL if kind == TIMER and unit.name else kind
            self._begin(call, kind, _name(unit, kind), unit.at).due_at = unit.due_at
            return
        if event == "budget_admitted":
            self._begin(call, kind, _name(unit, kind), unit.at)
            return
        if event in ("step_started", "effect_intended", "effect_attempted"):
            # The column starts says what has begun.
            if event != "step_started" and "origin" not in (unit.payload or {}):
                self._acts[call] += 1
            if known:
                known.acts = self._acts[call]
            return
        draft = known or self._begin(call, kind, _name(unit, kind), self._last, is_known=False)
        if event in ("step_completed", "entity_updated", "step_failed", "attempt_failed"):
            draft.cut_off += self._begun_by.pop(call, unit.token) != unit.token
        if event in ("attempt_failed", "effect_unknown"):
            draft.fail(unit)
            draft.due_at = unit.due_at
            return
        if kind == SIGNAL and draft.kind != LOCK:
            draft.kind, draft.name = SIGNAL, unit.name or draft.name
        draft.status, draft.ended_at, draft.due_at = (
            _ENDS[event],
            max(unit.at, draft.began_at),
            None,
        )
        if event in ("step_failed", "effect_failed", "budget_refused"):
            draft.fail(unit)
        # The times of commits and of the run come from clocks that differ a little.
        self._last = max(self._last, draft.ended_at)
        del self._open[call]

    def _begin(
        self, call: int, kind: str, name: str, at: datetime, *, is_known: bool = True
    ) -> _Draft:
        if call in self._open:
            return self._open[call]
        draft = _Draft(call, kind, name, at, is_known, acts=self._acts[call])
        self._open[call] = draft
        self.entries.append(draft)
        return draft


def _name(unit: UnitRow, kind: str) -> str:
    """Return the name of a call; a timer with a name is the time-out of a wait for that name."""
    return unit.name or {TIMER: "sleep", CHILD: "child"}.get(kind, kind)


def _mark(unit: UnitRow) -> _Draft:
    event = unit.event.replace("_", " ")
    name = event if unit.name is None else f"{event} {unit.name}"
    return _Draft(
        unit.call,
        MARK,
        name.removeprefix("operator "),
        unit.at,
        status="",
        ended_at=unit.at,
        payload=unit.payload,
    )


# ---------------------------------------------------------------- histories


@dataclass(frozen=True)
class History:
    """One generation of a run, and all that it did.

    Attributes:
        run: The run as it is now, which may be a later generation.
        generation: Generation that this is the history of.
        status: Status of that generation; ``continued`` if there is a later one.
        began_at: Time of its start, or of the first unit if that is earlier: it may begin with
            another's journal.
        ended_at: Time of its end; None if it has not ended.
        why: Reason of its status in one text; None if there is nothing to say.
        entries: Entries that its units make.
        units: All units of its journal.
        now: Time on the database's clock.
        run_id: The number of that generation; None for an earlier one without units.
    """

    run: RunRow
    generation: int
    status: str
    began_at: datetime
    ended_at: datetime | None
    why: str | None
    entries: list[Entry]
    units: list[UnitRow]
    now: datetime
    run_id: int | None = None

    @property
    def has_ended(self) -> bool:
        """True if the run has ended; not if only this generation has."""
        return self.status in ENDED

    @property
    def seen_until(self) -> datetime:
        """Time up to which it reaches: its end, or now; and no earlier than its last entry."""
        last = max(
            (entry.ended_at or entry.began_at for entry in self.entries), default=self.began_at
        )
        end = self.ended_at if self.has_ended else None
        return max(last, end or self.now)


@question
def read_history(key: str, generation: int | None = None, *, tenant: str = "") -> Steps[History]:
    """Ask for all that is recorded of a run, or of an earlier generation of it.

    Args:
        key: Key of the run.
        generation: Number of the generation; None for the newest.
        tenant: Tenant of the run.

    Raises:
        RunNotFound: No run has the key.
        InvalidArgument: The run has no such generation.
    """
    run = yield from find_run(key, tenant=tenant)
    if generation is not None and not 1 <= generation <= run.generation:
        raise InvalidArgument(
            f"run {key!r} has {run.generation} generation{'s' if run.generation > 1 else ''}, not "
            f"{generation}"
        )
    wanted = generation or run.generation
    is_newest = wanted == run.generation
    condition: LiteralString = (
        "t.run_id = %s" if is_newest else "t.key = %s and t.tenant = %s and t.generation = %s"
    )
    columns = statement(_COLUMNS, ", t.run_id")
    sql = statement("select", columns, "from pgflow.timeline t where", condition, "order by t.seq")
    rows: list[Row] = yield Query(sql, (run.run_id,) if is_newest else (key, tenant, wanted), list)
    units = _read_units([row[:-1] for row in rows])
    now = yield from database_now()
    run_id: int | None = run.run_id if is_newest else rows[0][-1] if rows else None
    return _history(run, wanted, units, now, run_id)


def _history(
    run: RunRow, generation: int, units: list[UnitRow], now: datetime, run_id: int | None
) -> History:
    began_at, ended_at, status, why = run.created_at, run.finished_at, str(run.status), run.why
    if generation < run.generation and units:
        began_at = run.created_at if generation == 1 else units[0].at
        ended_at, status, why = units[-1].recorded_at, "continued", None
    if units:
        began_at = min(began_at, units[0].at)  # a part of the journal may be older than the run
    return History(
        run, generation, status, began_at, ended_at, why, fold(units, began_at), units, now, run_id
    )
