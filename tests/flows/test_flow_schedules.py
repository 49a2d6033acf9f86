"""Schedules without Python: expressions of cron in SQL, and sessions that fire what is due."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

import psycopg
import pytest
from flowkit import make, marks, work
from sqlkit import T0, one, rows, set_clock

from pgflow._model.schedules import make_spec, read_spec, slots_after

Conn = psycopg.Connection[Any]
YEAR = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
EXPRESSIONS = (
    "30 2 * * *", "*/30 * * * *", "15 1,2,3 * * SUN", "5/20 */2 * * *", "0 9-17 * * MON-FRI",
    "0 12 L * *", "0 12 LW * *", "30 1 13 * FRI", "0 6 * * MON#2", "0 6 * * 5L",
    "*/15 30 1 */2 * *", "@weekly",
)  # fmt: skip
ZONES = ("UTC", "Europe/London", "Australia/Lord_Howe", "Antarctica/Troll", "America/Havana")
"""Clocks that change by an hour, by half of one, by two, and at midnight."""


def expected(spec: dict[str, Any]) -> list[datetime]:
    first, last = YEAR
    return list(takewhile(lambda slot: slot <= last, slots_after(read_spec(spec), first)))


@pytest.mark.full
@pytest.mark.parametrize("zone", ZONES)
def test_a_year_of_slots_is_that_of_python(conn, zone):
    conn.execute("set timezone = 'UTC'")
    for cron in EXPRESSIONS:
        found = one(conn, "select pgflow.cron_slots_(%s, %s, %s, 100000, %s)", cron, zone, *YEAR)
        assert (cron, found) == (cron, expected({"cron": [cron], "tz": zone}))


SPECS: tuple[dict[str, Any], ...] = (
    {"every": 86400 * 3, "offset": 7},
    {"cron": ["0 9 * * *", "0 12 * * MON", "0 9 * * MON"], "tz": "Europe/London",
        "not_on": ["2026-03-29", "2026-04-01"]},
    {"cron": ["0 */6 * * *"], "only_on": ["2026-02-01", "2026-06-01"], "tz": "America/Havana"},
    {"every": 90000.5, "start_at": "2026-05-01T00:00:00+00:00",
        "end_at": "2026-07-01T00:00:00+00:00"},
)  # fmt: skip


def test_the_slots_of_a_schedule_are_those_of_python(db):
    db.execute("set timezone = 'UTC'")
    for spec in SPECS:
        found = one(db, "select pgflow.slots_(%s, %s, 100000, %s)", json.dumps(spec), *YEAR)
        assert (spec, found) == (spec, expected(spec))


def test_the_next_time_is_asked_for_in_sql(db):
    zone = "Europe/London"
    for after in ("2026-03-29 00:59:59", "2026-10-25 00:29", "2026-10-25 00:30", "2026-06-01"):
        at = datetime.fromisoformat(after).replace(tzinfo=UTC)
        for cron in ("30 1 * * *", "*/30 * * * *", "59 23 31 12 *"):
            found = one(db, "select pgflow.next_time(%s, %s, %s)", cron, zone, at)
            assert found == next(slots_after(make_spec(cron, tz=zone), at))


@pytest.mark.parametrize(
    "cron",
    ["61 * * * *", "* *", "*/0 * * * *", "5-2 * * * *", "* * * 13 *", "* * 30 2 *", "a b c d e"],
)
def test_what_is_no_expression_is_refused(db, cron):
    with (
        db.transaction(force_rollback=True),
        pytest.raises(psycopg.Error, match="not a cron expression|expression of cron"),
    ):
        db.execute("select pgflow.next_time(%s)", (cron,))


REPORT = "begin a: insert into mark (what) values (slot->>'at'); end"


def schedule(conn: Conn, cron: str = "0 * * * *", **options: Any) -> None:
    make(conn, "report(slot jsonb)", REPORT)
    given = {"spec": json.dumps({"cron": [cron]}), "slot_parameter": "slot", **options}
    named = "".join(f", {name} => %s" for name in given)
    conn.execute(f"select pgflow.set_schedule('s', 'report'{named})", list(given.values()))


def test_work_fires_what_is_due(conn):
    set_clock(conn, T0)
    schedule(conn)
    work(conn)
    assert marks(conn) == []
    set_clock(conn, T0 + timedelta(hours=1))
    work(conn)
    work(conn)
    assert marks(conn) == ["2030-01-01T01:00:00Z"]
    found = rows(conn, "select key, status from pgflow.runs")
    assert found == [("s/2030-01-01T01:00:00Z", "completed")]


@pytest.mark.parametrize(
    ("catch_up", "hours"), [("skip", []), ("latest", [5]), ("all", [1, 2, 3, 4, 5])]
)
def test_slots_that_were_missed_are_caught_up_as_the_schedule_says(conn, catch_up, hours):
    set_clock(conn, T0)
    schedule(conn, catch_up=catch_up, overlap="allow")
    work(conn)
    set_clock(conn, T0 + timedelta(hours=5, minutes=30))
    work(conn)
    assert sorted(marks(conn)) == [f"2030-01-01T0{hour}:00:00Z" for hour in hours]


def test_a_slot_waits_for_the_run_before_it_as_the_schedule_says(conn):
    set_clock(conn, T0)
    schedule(conn, overlap="skip")
    make(conn, "report(slot jsonb)", "begin wait for go; end")
    for hour in range(3):
        set_clock(conn, T0 + timedelta(hours=hour))
        work(conn)
    assert rows(conn, "select fired, skipped from pgflow.schedule") == [(1, 1)]


def test_a_slot_is_fired_once_by_two_at_once(dsn, conn):
    set_clock(conn, T0)
    schedule(conn)
    work(conn)
    set_clock(conn, T0 + timedelta(hours=1))
    with psycopg.connect(dsn) as other:
        # As a worker in Python does at once, and has not committed yet.
        assert one(other, "select fired from pgflow.keep_schedules(0, at_once => true)") == 1
        work(conn)
        assert marks(conn) == []
        other.commit()
    work(conn)
    assert marks(conn) == ["2030-01-01T01:00:00Z"]


def test_a_schedule_that_cannot_be_evaluated_says_so(conn):
    schedule(conn, "99 * * * *")
    work(conn)
    ((state, error),) = rows(conn, "select state, error from pgflow.schedules")
    assert (state, "'99' is no minute of an expression of cron" in error) == ("broken", True)
