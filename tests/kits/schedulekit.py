"""Schedules in tests: looked after by hand, on a clock that stands still."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import psycopg
from sqlkit import one, rows, set_clock

from pgflow._db.calls import schedules as calls
from pgflow._db.calls.schedules import Kept
from pgflow._db.query import run
from pgflow._worker.scheduler import compute

Conn = psycopg.Connection[Any]


def at(text: str) -> datetime:
    """Return a time of 2027 in UTC: ``03-28 01:30``."""
    return datetime.fromisoformat(f"2027-{text}").replace(tzinfo=UTC)


def setting(
    conn: Conn, name: str = "s", spec: dict[str, Any] | None = None, **options: Any
) -> bool:
    """Sets a schedule from SQL; hourly if nothing else is said."""
    given = {
        "name": name,
        "workflow": "work",
        "spec": json.dumps(spec or {"cron": ["0 * * * *"]}),
        **options,
    }
    arguments = ", ".join(f"{option} => %s" for option in given)
    return bool(one(conn, f"select pgflow.set_schedule({arguments})", *given.values()))


def look(conn: Conn, worker: int = 0, *, at_once: bool = True) -> Kept:
    """One look of a worker, and the slots that it computes."""
    kept = run(conn, calls.keep_schedules(worker, 100, at_once=at_once))
    if kept.refills:
        run(conn, calls.refill_schedules(compute(kept.refills)))
    return kept


def keep(conn: Conn, when: datetime | None = None) -> int:
    """Looks until nothing more is due, at a time; answers how many runs were started."""
    if when is not None:
        set_clock(conn, when)
    fired = 0
    while True:
        kept = look(conn)
        fired += kept.fired
        if not kept.fired and not any(found.has_none for found in kept.refills):
            return fired


def slots(conn: Conn, name: str = "s") -> list[str]:
    """Slots that have a run, in the order in which these were started."""
    keys = rows(conn, "select key from pgflow.run where key like %s order by run_id", f"{name}/%")
    return [key.partition("/")[2] for key in keys]


def finish_all(conn: Conn) -> None:
    """Every run ends, as if its code had."""
    for key in rows(
        conn, "select r.key from pgflow.run r where pgflow.ended_as_(r.run_id) is null"
    ):
        conn.execute("select pgflow.cancel_run(%s)", (key,))
    conn.execute("select pgflow.poll()")


def column(conn: Conn, what: str, name: str = "s") -> Any:
    """A column of the view of schedules."""
    return one(conn, f"select {what} from pgflow.schedules where name = %s", name)
