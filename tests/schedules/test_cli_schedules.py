"""`pgflow schedules`: setting, looking, pausing, triggering, backfilling, removing."""

from __future__ import annotations

import json

import psycopg
import pytest
from clikit import Answer, pgflow
from schedulekit import at, keep, slots
from sqlkit import one, rows, set_clock


def ask(dsn: str, *words: str, code: int = 0) -> Answer:
    answer = pgflow(dsn, "schedules", *words)
    assert answer.code == code, answer.err
    return answer


@pytest.fixture
def hourly(dsn: str, conn: psycopg.Connection) -> None:
    set_clock(conn, at("03-01 10:30"))
    ask(
        dsn,
        "set",
        "s",
        "work",
        "name=Ada",
        "n:=3",
        "--cron",
        "0 * * * *",
        "--tz",
        "Asia/Kolkata",
        "--why",
        "they asked",
    )
    keep(conn)


@pytest.mark.full
def test_a_schedule_is_set_and_shown(dsn, conn, hourly):
    assert (
        ask(
            dsn,
            "set",
            "s",
            "work",
            "name=Ada",
            "n:=3",
            "--cron",
            "0 * * * *",
            "--tz",
            "Asia/Kolkata",
        ).data["changed"]
        is False
    )
    (row,) = json.loads(ask(dsn).out)
    assert (row["name"], row["state"], row["slots"]) == ("s", "active", "0 * * * * Asia/Kolkata")
    shown = ask(dsn, "show", "s", "--next", "2").data
    assert shown["next"] == ["2027-03-01T11:30:00+00:00", "2027-03-01T12:30:00+00:00"]
    assert shown["input"] == {"name": "Ada", "n": 3}
    assert [(one["what"], one["why"]) for one in shown["changes"]] == [("set", "they asked")]
    person = pgflow(dsn, "schedules", "show", "s", tty=True)
    assert "next: 2027-03-01 11:30:00Z" in person.out
    table = pgflow(dsn, "schedules", tty=True, width=160)
    assert "0 * * * * Asia/Kolkata" in table.out


def test_one_is_paused_with_a_reason_and_resumed(dsn, conn, hourly):
    assert "--why" in ask(dsn, "pause", "s", code=2).err
    assert ask(dsn, "pause", "s", "--why", "the books are closed").data["changed"] is True
    assert keep(conn, at("03-01 12:00")) == 0
    assert json.loads(ask(dsn).out)[0]["why_paused"] == "the books are closed"
    assert ask(dsn, "resume", "s").data["changed"] is True
    assert ask(dsn, "resume", "s").data["changed"] is False
    assert keep(conn, at("03-01 12:30")) == 1


def test_one_is_triggered_and_a_range_is_backfilled(dsn, conn, hourly):
    assert ask(dsn, "trigger", "s", "--why", "now").data["key"] == "s/2027-03-01T10:30:00Z"
    # Times without a zone are those of the schedule: five and a half hours ahead.
    found = ask(dsn, "trigger", "s", "--slot", "2027-03-01T12:00").data["key"]
    assert found == "s/2027-03-01T06:30:00Z"
    given = ("2027-03-01T12:00", "2027-03-01T08:30+00:00")
    dry = json.loads(ask(dsn, "backfill", "s", *given, "--dry-run").out)
    assert [row["slot_at"][11:16] for row in dry] == ["06:30", "07:30", "08:30"]
    done = json.loads(ask(dsn, "backfill", "s", *given, "--overlap", "allow").out)
    assert [row["state"] for row in done] == ["there", "started", "started"]
    assert len(slots(conn)) == 4


def test_one_is_removed(dsn, conn, hourly):
    assert ask(dsn, "remove", "s", "--why", "no more").data["comes_back"] is False
    assert rows(conn, "select * from pgflow.schedules") == []
    assert one(
        conn,
        "select said_by <> '' and why = 'no more' from pgflow.schedule_changes where what = 'removed'",
    )
    assert "does not exist: `pgflow schedules` lists them" in ask(dsn, "show", "s", code=2).err


def test_what_is_buffered_while_it_is_paused_is_said_to_wait(dsn, conn, hourly):
    ask(dsn, "pause", "s", "--why", "the books are closed")
    filled = ask(dsn, "backfill", "s", "2027-02-01", "2027-02-01T02:30")
    assert [row["state"] for row in json.loads(filled.out)] == ["buffered"] * 3
    assert "The schedule is paused" in filled.err
    assert keep(conn) == 0
    ask(dsn, "resume", "s")
    assert keep(conn) == 1


def test_bounds_are_times_in_the_zone_of_the_schedule(dsn, conn):
    set_clock(conn, at("03-01 10:30"))
    bounds = ("--start-at", "2027-03-02", "--end-at", "2027-03-02T00:00+00:00")
    ask(dsn, "set", "t", "work", "--cron", "@hourly", "--tz", "Asia/Tokyo", *bounds)
    keep(conn)
    shown = ask(dsn, "show", "t", "--next", "99").data
    assert shown["slots"] == "@hourly Asia/Tokyo"
    assert (shown["next"][0], len(shown["next"])) == ("2027-03-01T15:00:00+00:00", 10)


@pytest.mark.parametrize(("words", "says"), [
    (("set", "t", "work", "--cron", "@often"), "@daily"), (("set", "t", "work", "--every", "5m", "--end-at", "soon"), "--end-at"),
    (("set", "t", "work", "--cron", "61 * * * *"), "Bad minute"), (("set", "t", "work"), "either"),
    (("set", "t", "work", "--every", "often"), "--every"), (("set", "t", "work", "--every", "5m", "--overlap", "never"), "overlap"),
    (("set", "t", "work", "--cron", "0 0 * * *", "--tz", "Mars/Phobos"), "time zone"),
    (("pause", "nobody", "--why", "x"), "does not exist"), (("backfill", "s", "yesterday", "today"), "FIRST"),
    (("backfill", "s", "2027-01-01", "2027-03-01", "--overlap", "skip"), "--overlap"), (("backfill", "s", "2026-01-01", "2027-03-01"), "more than 1000"),
    (("trigger", "s", "--slot", "noon"), "--slot"),
])  # fmt: skip
def test_mistakes_are_told(dsn, hourly, words, says):
    assert says in ask(dsn, *words, code=2).err
