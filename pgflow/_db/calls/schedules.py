"""``sql/events/schedules.sql``: firing due slots, and declaring and setting schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pgflow._db.query import Query
from pgflow._model.schedules import Refill

BackfillOverlap = Literal["buffer_all", "allow"]
"""Runs of a backfill: one after the other, or all at once."""


class ToRefill(NamedTuple):
    """A schedule whose next slots have to be computed.

    Attributes:
        name: Its name.
        version: Of what its slots are.
        spec: Its slots, as they are stored.
        after: The last slot that is known.
        now: Time on the database's clock.
        has_none: True if it fires nothing until then.
    """

    name: str
    version: int
    spec: Mapping[str, Any]
    after: datetime
    now: datetime
    has_none: bool


class Kept(NamedTuple):
    """Result of a look at the schedules.

    Attributes:
        fired: Number of runs that were started.
        lanes: Lanes that they are ready in.
        cancelled: Chains that were cancelled for them.
        undeclared: Schedules that were due, and that no code of a living worker declares any more.
        troubles: Reasons for which runs could not be started, each with its schedule.
        refills: Those whose next slots have to be computed.
        wait_seconds: Time until the next look; None if nothing is to come.
    """

    fired: int
    lanes: list[int]
    cancelled: list[int]
    undeclared: list[str]
    troubles: list[str]
    refills: list[ToRefill]
    wait_seconds: float | None


def keep_schedules(worker_id: int, most: int, *, at_once: bool = False) -> Query[Kept]:
    """Fire due slots, if this worker keeps the schedules or must do it at once."""
    sql = (
        "select fired, lanes, cancelled, undeclared, troubles, refills, wait_seconds "
        "from pgflow.keep_schedules(%s::int, %s::int, %s::boolean)"
    )

    def read(rows: list[tuple[Any, ...]]) -> Kept:
        fired, lanes, cancelled, undeclared, troubles, refills, wait_seconds = rows[0]
        asked = [to_refill(one) for one in refills]
        return Kept(fired, lanes, cancelled, undeclared, troubles, asked, wait_seconds)

    return Query(sql, (worker_id, most, at_once), read)


def to_refill(row: Mapping[str, Any]) -> ToRefill:
    """Read a schedule that the database asks to refill."""
    return ToRefill(
        row["name"],
        row["version"],
        row["spec"],
        datetime.fromisoformat(row["after"]),
        datetime.fromisoformat(row["now"]),
        row["has_none"],
    )


def refill_schedules(refills: Sequence[tuple[ToRefill, Refill | str]]) -> Query[int]:
    """Give schedules their next slots, or the reason why there are none."""
    told = json.dumps(
        [
            {
                "name": one.name,
                "version": one.version,
                "after": one.after.isoformat(),
                **(
                    {"error": answer}
                    if isinstance(answer, str)
                    else {
                        "slots": [slot.isoformat() for slot in answer.slots],
                        "is_over": answer.is_over,
                    }
                ),
            }
            for one, answer in refills
        ]
    )
    sql = "select pgflow.refill_schedules(%s::jsonb)"
    return Query(sql, (told,), lambda rows: int(rows[0][0]))


def attach_schedules(worker_id: int, names: Sequence[str]) -> Query[int]:
    """Declare these schedules for a worker; return how many no worker had declared."""
    sql = "select pgflow.attach_schedules(%s::int, %s::text[])"
    return Query(sql, (worker_id, list(names)), lambda rows: int(rows[0][0]))


def declare_schedules(worker_id: int, declared: Sequence[Mapping[str, Any]]) -> Query[list[str]]:
    """Set schedules whose declaration in code has changed; return their names."""
    sql = "select pgflow.declare_schedules(%s::int, %s::jsonb)"
    return Query(sql, (worker_id, json.dumps(declared)), lambda rows: list(rows[0][0]))


def set_schedule(
    declared: Mapping[str, Any],
    input_text: str,
    labels: Mapping[str, str] | None,
    why: str | None,
    by: str | None,
) -> Query[bool]:
    """Create or set a schedule; False if nothing changed."""
    sql = (
        "select pgflow.set_schedule(%s::text, %s::text, %s::jsonb, %s::text, %s::json, %s::text, "
        "%s::text, %s::text, %s::int, %s::float8, %s::int, %s::float8, %s::jsonb, %s::text, "
        "%s::text)"
    )
    params = (
        declared["name"],
        declared["workflow"],
        json.dumps(declared["spec"]),
        declared["queue"],
        input_text,
        declared["slot_parameter"],
        declared["overlap"],
        declared["catch_up"],
        declared["max_catch_up"],
        declared["jitter_seconds"],
        declared["priority"],
        declared["timeout_seconds"],
        None if labels is None else json.dumps(labels),
        why,
        by,
    )
    return Query(sql, params, lambda rows: bool(rows[0][0]))


def read_schedule_spec(name: str) -> Query[Mapping[str, Any]]:
    """The slots of a schedule, as they are stored."""
    sql = "select pgflow.read_schedule_spec(%s::text)"
    return Query(sql, (name,), lambda rows: dict(rows[0][0]))


def remove_schedule(name: str, why: str | None, by: str | None) -> Query[bool]:
    """Remove a schedule; True if code of a living worker declares it."""
    sql = "select pgflow.remove_schedule(%s::text, %s::text, %s::text)"
    return Query(sql, (name, why, by), lambda rows: bool(rows[0][0]))


def pause_schedule(name: str, why: str | None, by: str | None) -> Query[bool]:
    """Pause a schedule; False if it was paused."""
    sql = "select pgflow.pause_schedule(%s::text, %s::text, %s::text)"
    return Query(sql, (name, why, by), lambda rows: bool(rows[0][0]))


def resume_schedule(name: str, why: str | None, by: str | None) -> Query[bool]:
    """Resume a schedule; False if it was not paused."""
    sql = "select pgflow.resume_schedule(%s::text, %s::text, %s::text)"
    return Query(sql, (name, why, by), lambda rows: bool(rows[0][0]))


class StartedSlot(NamedTuple):
    """Run of a slot that was asked for.

    Attributes:
        run_key: Its key.
        run_id: Its number.
        is_new: False if it was there.
        lane_id: Lane that it is in.
    """

    run_key: str
    run_id: int
    is_new: bool
    lane_id: int

    @property
    def chains(self) -> list[int]:
        """Chains to be woken: none."""
        return []

    @property
    def lanes(self) -> list[int]:
        """Lanes with a run that is ready."""
        return [self.lane_id] if self.is_new else []


def trigger_schedule(
    name: str, why: str | None, by: str | None, slot_at: datetime | None
) -> Query[StartedSlot]:
    """Start a run of a schedule now."""
    sql = (
        "select run_key, run_id, is_new, lane_id "
        "from pgflow.trigger_schedule(%s::text, %s::text, %s::text, %s::timestamptz)"
    )
    return Query(sql, (name, why, by, slot_at), lambda rows: StartedSlot(*rows[0]))


class BackfilledSlot(NamedTuple):
    """A slot of a backfill.

    Attributes:
        slot_at: The slot.
        run_key: Key of its run.
        state: ``started``, ``buffered``, or ``there`` if it had a run.
        lane_id: Lane in which the run was started, if it was.
    """

    slot_at: datetime
    run_key: str
    state: str
    lane_id: int | None


class Backfilled(NamedTuple):
    """Slots of a backfill, in their order."""

    slots: list[BackfilledSlot]

    @property
    def chains(self) -> list[int]:
        """Chains to be woken: none."""
        return []

    @property
    def lanes(self) -> list[int]:
        """Lanes with a run that is ready."""
        return sorted({one.lane_id for one in self.slots if one.lane_id is not None})


def backfill_schedule(
    name: str, slots: Sequence[datetime], overlap: str, why: str | None, by: str | None
) -> Query[Backfilled]:
    """Start runs for past slots."""
    sql = (
        "select slot_at, run_key, state, lane_id "
        "from pgflow.backfill_schedule(%s::text, %s::timestamptz[], %s::text, %s::text, %s::text)"
    )
    params = (name, list(slots), overlap, why, by)
    return Query(sql, params, lambda rows: Backfilled([BackfilledSlot(*row) for row in rows]))
