"""Schedules: the next slots, the outcome of past ones, and the history of changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, LiteralString

from pgflow._model.schedules import (
    MOST_LATE,
    parse_moment,
    read_spec,
    slots_after,
    slots_between,
)
from pgflow.errors import InvalidArgument
from pgflow.inspect.listing import After, Listing, page
from pgflow.inspect.question import Question, all_rows, first_row, select, statement


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule. A row of the view ``pgflow.schedules``.

    Attributes:
        name: Its name, the first part of the keys of its runs.
        workflow: Workflow of its runs.
        queue: Queue of its runs.
        spec: Its slots: ``cron`` or ``every``, and ``tz``, ``not_on``, ``only_on``, ``start_at``,
            ``end_at``, ``offset`` where they are given.
        state: ``active``, ``paused``, ``over`` (no slot is left), ``broken`` (it cannot be
            evaluated) or ``undeclared`` (it was due, and no code of a living worker declares it).
        overlap: Action of a slot while a run before it is open.
        catch_up: Treatment of slots that are late by more than a minute.
        max_catch_up: Most late slots that are caught up at once.
        jitter_seconds: Most seconds by which a slot is late on purpose.
        due_at: Time at which the next slot is due; None if none is known.
        late_seconds: Seconds since then.
        upcoming: The next slots, as far as they are computed.
        buffered: Slots that wait for the end of a run before.
        open_runs: Number of its newest runs that have not ended.
        last_slot_at: The last slot that was decided.
        last_fired_at: Time at which it last started a run.
        last_run_key: Key of that run.
        fired: Number of runs that it has started.
        skipped: Number of slots that started nothing because a run before was open.
        missed: Number of slots that were late and not caught up, or failed to start.
        error: Error of its last slot, or the reason why it is broken.
        error_at: Time of the error.
        paused_at: Time since which it is paused.
        paused_by: Author of the pause, with the role of the session in brackets.
        why_paused: The reason.
        undeclared_at: Time since which no code declares it.
        is_declared: True if code declares it; False if it was set by hand.
        created_at: Time at which it was set first.
        changed_at: Time at which it was set last.
        input: Input of its runs, without the slot.
        read_at: Time at which the row was read, on the database's clock.
    """

    name: str
    workflow: str
    queue: str
    spec: Mapping[str, Any]
    state: str
    overlap: str
    catch_up: str
    max_catch_up: int
    jitter_seconds: float
    due_at: datetime | None
    late_seconds: float
    upcoming: list[datetime]
    buffered: list[datetime]
    open_runs: int
    last_slot_at: datetime | None
    last_fired_at: datetime | None
    last_run_key: str | None
    fired: int
    skipped: int
    missed: int
    error: str | None
    error_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    why_paused: str | None
    undeclared_at: datetime | None
    is_declared: bool
    created_at: datetime
    changed_at: datetime
    input: Any
    read_at: datetime

    @property
    def slots(self) -> str:
        """Return its slots for people: ``30 2 * * * Europe/London``."""
        try:
            return str(read_spec(self.spec))
        except InvalidArgument:
            return json.dumps(self.spec)

    def next_slots(self, count: int, after: datetime | None = None) -> list[datetime]:
        """Return the slots that come after a time, without their jitter.

        Args:
            count: Number of slots.
            after: The time, with its zone; that at which the row was read if not given.

        Raises:
            InvalidArgument: Its slots cannot be evaluated.
        """
        return list(islice(slots_after(read_spec(self.spec), after or self.read_at), count))

    def slots_between(self, first: datetime, last: datetime) -> list[datetime]:
        """Return the slots from one time to another, both included, at most 1,000.

        Raises:
            InvalidArgument: They are more, or a time has no zone.
        """
        return slots_between(read_spec(self.spec), first, last, MOST_LATE)

    def parse_moment(self, text: str, what: str) -> datetime:
        """Return a time that a person typed. Without a zone it is meant in that of the schedule.

        Args:
            text: The time, such as ``2026-01-01T02:30``.
            what: Name for errors.

        Raises:
            InvalidArgument: It is not a time.
        """
        return parse_moment(text, what, str(self.spec.get("tz", "UTC")))


@dataclass(frozen=True)
class ScheduleChangeRow:
    """A change of a schedule. A row of the view ``pgflow.schedule_changes``.

    Attributes:
        change_id: Number of the change.
        at: Its time.
        schedule: Name of the schedule.
        what: ``set``, ``declared``, ``paused``, ``resumed``, ``triggered``, ``backfilled`` or
            ``removed``.
        said_by: Author of the change, with the role of the session in brackets.
        why: The reason.
        detail: Its new settings, the run that was started, or the slots that were backfilled.
    """

    change_id: int
    at: datetime
    schedule: str
    what: str
    said_by: str
    why: str | None
    detail: Any


@dataclass(frozen=True)
class ScheduleCount:
    """Number of schedules in one state.

    Attributes:
        state: As of :class:`ScheduleRow`.
        schedules: Number of them.
        late_seconds: Seconds for which the most late of them has been due.
    """

    state: str
    schedules: int
    late_seconds: float


_SCHEDULES: LiteralString = select(
    ScheduleRow, "from pgflow.schedules where (%s::text is null or name = %s)"
)

_CHANGES: LiteralString = select(
    ScheduleChangeRow,
    "from pgflow.schedule_changes where (%s::text is null or schedule = %s)",
)


def list_schedules(
    *, state: str | None = None, after: After = None, limit: int | None = 50
) -> Question[Listing[ScheduleRow]]:
    """Ask for a page of the schedules, by their names.

    Args:
        state: Only those in this state; None for all.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    given = () if state is None else (state,)
    sql = statement(_SCHEDULES, "and state = %s" if given else "")
    return page(ScheduleRow, sql, (None, None, *given), {"name": str}, after, limit)


def count_schedules() -> Question[list[ScheduleCount]]:
    """Ask for the number of schedules in each state."""
    sql = """
      select state, count(*), max(late_seconds) from pgflow.schedules group by state order by state
    """
    return all_rows(ScheduleCount, sql)


def find_schedule(name: str) -> Question[ScheduleRow | None]:
    """Ask for a schedule; None if there is none.

    Args:
        name: Its name.
    """
    return first_row(ScheduleRow, _SCHEDULES, name, name)


def list_schedule_changes(
    schedule: str | None = None, *, after: After = None, limit: int | None = 50
) -> Question[Listing[ScheduleChangeRow]]:
    """Ask for a page of the changes of schedules, the newest first.

    Args:
        schedule: Name of one; None for all.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum rows of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    values = (schedule, schedule)
    return page(
        ScheduleChangeRow, _CHANGES, values, {"change_id": int}, after, limit, newest_first=True
    )
