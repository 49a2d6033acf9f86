"""A slot fires at most once, whoever looks and whatever happens; policies say what becomes of the
others.
"""

from __future__ import annotations

import json
from datetime import timedelta

import psycopg
import pytest
import sqlkit
from schedulekit import at, column, finish_all, keep, look, setting, slots
from sqlkit import connect, one, register, rows, set_clock

from pgflow._db.calls import schedules as calls
from pgflow._db.query import run
from pgflow._model.schedules import refill
from pgflow._worker.scheduler import compute

Conn = psycopg.Connection


def test_slots_fire_when_they_are_due_and_not_before(conn):
    set_clock(conn, at("03-01 10:30"))
    assert setting(conn, slot_parameter="slot", input='{"n": 1e22, "b": -0.0}')
    assert keep(conn) == 0
    assert column(conn, "upcoming[1]") == at("03-01 11:00")
    assert keep(conn, at("03-01 10:59:59")) == 0
    assert keep(conn, at("03-01 11:00")) == 1
    assert keep(conn) == 0
    assert slots(conn) == ["2027-03-01T11:00:00Z"]
    assert one(conn, "select input::text from pgflow.run") == (
        '{"n": 1e22, "b": -0.0, "slot" : {"at" : "2027-03-01T11:00:00Z"}}'
    )
    assert one(conn, "select labels from pgflow.run") == {"schedule": "s"}


def test_a_slot_has_one_run_though_many_look_at_once(conn, dsn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, overlap="allow")
    keep(conn)
    set_clock(conn, at("03-01 11:00"))
    with connect(dsn) as one_of_them, connect(dsn) as other:
        with one_of_them.transaction():
            assert look(one_of_them).fired == 1
            assert look(other).fired == 0  # it passes over what is being decided
        assert look(other).fired == 0
    assert slots(conn) == ["2027-03-01T11:00:00Z"]


def test_a_crash_before_the_commit_leaves_the_slot_to_the_next(conn, dsn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    keep(conn)
    set_clock(conn, at("03-01 11:00"))
    with connect(dsn) as dying:
        with dying.transaction(force_rollback=True):
            assert look(dying).fired == 1
    assert slots(conn) == []
    assert keep(conn) == 1
    assert slots(conn) == ["2027-03-01T11:00:00Z"]


def test_slots_that_were_computed_twice_count_once(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    first = run(conn, calls.keep_schedules(0, 100, at_once=True)).refills
    second = run(conn, calls.keep_schedules(0, 100, at_once=True)).refills
    assert run(conn, calls.refill_schedules(compute(first))) == 1
    assert run(conn, calls.refill_schedules(compute(second))) == 0
    assert column(conn, "cardinality(upcoming)") == 16


def test_a_clock_that_goes_back_fires_nothing_again(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    keep(conn)
    assert keep(conn, at("03-01 12:00:30")) == 1  # latest
    finish_all(conn)
    for back in ("03-01 09:00", "03-01 11:00", "03-01 12:00", "03-01 12:30"):
        assert keep(conn, at(back)) == 0
    assert keep(conn, at("03-01 13:00")) == 1
    assert slots(conn) == ["2027-03-01T12:00:00Z", "2027-03-01T13:00:00Z"]


@pytest.mark.parametrize(("catch_up", "fired", "missed"), [
    ("skip", ["12:00"], 5), ("latest", ["12:00"], 5), ("all", [f"{h:02}:00" for h in range(7, 13)], 0),
])  # fmt: skip
def test_late_slots_are_caught_up_as_it_is_said(conn, catch_up, fired, missed):
    set_clock(conn, at("03-01 06:30"))
    setting(conn, catch_up=catch_up, overlap="allow")
    keep(conn)
    assert keep(conn, at("03-01 12:00:30")) == len(fired)
    assert slots(conn) == [f"2027-03-01T{slot}:00Z" for slot in fired]
    assert column(conn, "missed") == missed


@pytest.mark.parametrize(
    ("catch_up", "fired"), [("skip", []), ("latest", ["12:00"]), ("all", ["11:00", "12:00"])]
)
def test_when_all_are_late_only_skip_starts_nothing(conn, catch_up, fired):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, catch_up=catch_up, overlap="allow")
    keep(conn)
    keep(conn, at("03-01 12:20"))
    assert slots(conn) == [f"2027-03-01T{slot}:00Z" for slot in fired]


@pytest.mark.parametrize("pause", [40, 75, 160])
@pytest.mark.parametrize("every", [2, 10])
def test_slots_that_are_seconds_apart_do_not_start_all_at_once_after_a_pause(conn, every, pause):
    set_clock(conn, at("03-01 10:00:00"))
    setting(conn, spec={"every": every}, overlap="allow", catch_up="skip")
    keep(conn)
    assert keep(conn, at("03-01 10:00:03")) == 3 // every
    fired = keep(conn, at("03-01 10:00:03") + timedelta(seconds=pause))
    assert 1 <= fired <= 6 // every + 2
    assert fired + column(conn, "missed") == (pause + 3) // every - 3 // every


def test_a_slot_that_is_late_by_a_moment_is_not_missed(conn):
    set_clock(conn, at("03-01 10:00:00"))
    setting(conn, spec={"every": 1}, overlap="allow", catch_up="skip")
    keep(conn)
    assert keep(conn, at("03-01 10:00:05")) == 5
    assert column(conn, "missed") == 0


def test_after_a_year_as_many_are_caught_up_as_may_be(conn):
    set_clock(conn, at("03-01 06:30"))
    setting(conn, spec={"cron": ["*/5 * * * *"]}, catch_up="all", max_catch_up=7, overlap="allow")
    keep(conn)
    assert keep(conn, at("12-31 23:32")) == 7
    assert slots(conn)[-1] == "2027-12-31T23:30:00Z"
    assert slots(conn)[0] == "2027-12-31T23:00:00Z"
    assert keep(conn, at("12-31 23:35")) == 1


def overlapping(conn: Conn, overlap: str) -> None:
    set_clock(conn, at("03-01 10:30"))
    setting(conn, overlap=overlap)
    keep(conn)
    for hour in (11, 12, 13):
        keep(conn, at(f"03-01 {hour}:00"))


def hours(conn: Conn) -> list[int]:
    return [int(slot[11:13]) for slot in slots(conn)]


def test_a_slot_is_skipped_while_a_run_is_open(conn):
    overlapping(conn, "skip")
    assert hours(conn) == [11]
    assert column(conn, "skipped") == 2
    finish_all(conn)
    assert keep(conn) == 0
    assert keep(conn, at("03-01 14:00")) == 1
    assert hours(conn) == [11, 14]


@pytest.mark.parametrize("then", ["is queued", "is claimed"])
def test_a_run_that_has_gone_on_as_new_is_open(conn, then):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    keep(conn)
    keep(conn, at("03-01 11:00"))
    sqlkit.commit(conn, sqlkit.flush(sqlkit.claim_one(conn), **{"continue": "{}"}))
    if then == "is claimed":
        sqlkit.claim_one(conn)
    assert keep(conn, at("03-01 12:00")) == 0
    assert (hours(conn)[:1], column(conn, "skipped")) == ([11], 1)
    if then == "is queued":
        sqlkit.finish(conn, sqlkit.claim_one(conn))
        assert keep(conn, at("03-01 13:00")) == 1


def test_one_slot_waits_for_the_end_of_the_run_before(conn):
    overlapping(conn, "buffer_one")
    assert (hours(conn), column(conn, "skipped")) == ([11], 1)
    finish_all(conn)
    assert keep(conn) == 1
    assert hours(conn) == [11, 12]


def test_all_slots_wait_each_for_the_run_before(conn):
    overlapping(conn, "buffer_all")
    assert (hours(conn), column(conn, "buffered")) == ([11], [at("03-01 12:00"), at("03-01 13:00")])
    for expected in ([11, 12], [11, 12, 13]):
        finish_all(conn)
        assert keep(conn) == 1
        assert hours(conn) == expected
    finish_all(conn)
    assert keep(conn) == 0


def test_a_slot_cancels_the_run_before_and_follows_it(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, overlap="cancel_other")
    keep(conn)
    keep(conn, at("03-01 11:00"))
    chain = one(conn, "select run_id from pgflow.run")
    set_clock(conn, at("03-01 12:00"))
    assert look(conn).cancelled == [chain]
    assert hours(conn) == [11]
    set_clock(conn, at("03-01 13:00"))
    assert look(conn).cancelled == []  # it has its cancel
    conn.execute("select pgflow.poll()")
    assert one(conn, "select status from pgflow.outcome") == "cancelled"
    assert keep(conn) == 1
    assert hours(conn) == [11, 13]
    assert column(conn, "skipped") == 1


def test_all_run_side_by_side_if_they_may(conn):
    overlapping(conn, "allow")
    assert hours(conn) == [11, 12, 13]
    assert column(conn, "open_runs") == 3


def test_jitter_is_the_same_for_a_slot_and_changes_no_order(conn):
    set_clock(conn, at("03-01 00:30"))
    setting(conn, jitter_seconds=1800, overlap="allow")
    setting(conn, "other", jitter_seconds=1800, overlap="allow")
    keep(conn)
    dues = "select pgflow.slot_due_(%s, u, 1800) - u from pgflow.schedule s, unnest(s.upcoming) u where s.name = %s"
    first = rows(conn, dues, "s", "s")
    assert first == rows(conn, dues, "s", "s")
    assert first != rows(conn, dues, "other", "other")
    assert all(timedelta(0) <= late < timedelta(minutes=30) for late in first)
    assert len(set(first)) == len(first)
    due = column(conn, "due_at")
    assert due == at("03-01 01:00") + first[0]
    assert keep(conn, due - timedelta(seconds=1)) in (0, 1)  # the other's, perhaps
    assert slots(conn) == []
    keep(conn, due)
    assert slots(conn) == ["2027-03-01T01:00:00Z"]


def test_a_changed_expression_counts_from_the_change_on(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, overlap="allow")
    keep(conn)
    set_clock(conn, at("03-01 11:00:30"))  # a slot is due, and nobody has looked yet
    assert setting(conn, spec={"cron": ["45 * * * *"]}, overlap="allow")
    assert keep(conn) == 1
    assert keep(conn, at("03-01 12:00")) == 1
    assert slots(conn) == ["2027-03-01T11:00:00Z", "2027-03-01T11:45:00Z"]


def test_slots_of_an_old_expression_are_not_taken(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    old = run(conn, calls.keep_schedules(0, 100, at_once=True)).refills
    setting(conn, spec={"cron": ["45 * * * *"]})
    assert run(conn, calls.refill_schedules(compute(old))) == 0
    keep(conn)
    assert column(conn, "upcoming[1]") == at("03-01 10:45")


def test_what_is_set_again_as_it_was_changes_nothing(conn):
    set_clock(conn, at("03-01 10:30"))
    assert setting(conn)
    assert not setting(conn)
    assert setting(conn, overlap="allow")
    found = rows(conn, "select what from pgflow.schedule_changes order by change_id")
    assert found == ["set", "set"]
    keep(conn)
    upcoming = column(conn, "upcoming")
    assert setting(conn, queue="other")
    assert column(conn, "upcoming") == upcoming


def test_a_paused_schedule_starts_nothing_and_goes_on_with_what_is_to_come(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, catch_up="all", overlap="allow")
    keep(conn)
    paused = "select pgflow.pause_schedule('s', 'the books are closed', 'ada')"
    assert (one(conn, paused), one(conn, paused)) == (True, False)
    assert keep(conn, at("03-01 13:30")) == 0
    found = column(conn, "(state, paused_by, why_paused)")
    assert found == ("paused", "ada (postgres)", "the books are closed")
    assert one(conn, "select pgflow.resume_schedule('s')") is True
    assert one(conn, "select pgflow.resume_schedule('s')") is False
    assert keep(conn) == 0
    assert keep(conn, at("03-01 14:00")) == 1
    assert slots(conn) == ["2027-03-01T14:00:00Z"]


def test_one_that_is_paused_for_long_goes_on_too(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, catch_up="all", overlap="allow")
    keep(conn)
    conn.execute("select pgflow.pause_schedule('s')")
    set_clock(conn, at("09-01 10:30"))
    conn.execute("select pgflow.resume_schedule('s')")
    assert keep(conn) == 0
    assert keep(conn, at("09-01 11:00")) == 1


def test_a_run_is_triggered_whatever_else_is(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    conn.execute("select pgflow.pause_schedule('s')")
    key, _, is_new, _ = one(
        conn, "select * from pgflow.trigger_schedule('s', 'now, please', 'ada')"
    )
    assert (key, is_new) == ("s/2027-03-01T10:30:00Z", True)
    again = "select is_new from pgflow.trigger_schedule('s', slot_at => '2027-03-01 10:30+00')"
    assert one(conn, again) is False
    assert rows(conn, "select what, said_by, why from pgflow.schedule_changes order by change_id")[
        2:
    ] == [("triggered", "ada (postgres)", "now, please")]
    conn.execute("select pgflow.resume_schedule('s')")
    keep(conn, at("03-01 11:00"))
    assert column(conn, "(fired, skipped)") == ("1", "1")  # the triggered one is open


def backfill(conn: Conn, *given: str, **options: str) -> list[tuple]:
    named = "".join(f", {name} => '{value}'" for name, value in options.items())
    return rows(
        conn,
        f"select to_char(slot_at at time zone 'UTC', 'HH24:MI'), state from pgflow.backfill_schedule('s', %s::timestamptz[]{named})",
        [at(f"03-01 {slot}") for slot in given],
    )


def test_a_range_of_the_past_is_filled_and_no_slot_twice(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    keep(conn)
    keep(conn, at("03-01 11:00"))
    found = backfill(conn, "09:00", "10:00", "11:00")
    assert found == [("09:00", "buffered"), ("10:00", "buffered"), ("11:00", "there")]
    assert backfill(conn, "09:00", "08:00") == [("08:00", "buffered"), ("09:00", "buffered")]
    for expected in ([11, 8], [11, 8, 9], [11, 8, 9, 10]):
        finish_all(conn)
        keep(conn)
        assert hours(conn) == expected
    finish_all(conn)
    found = backfill(conn, "07:00", "08:00", overlap="allow")
    assert found == [("07:00", "started"), ("08:00", "there")]
    assert keep(conn, at("03-01 12:00")) == 0  # skip: that of seven o'clock is open
    assert hours(conn) == [11, 8, 9, 10, 7]


def test_a_slot_that_was_backfilled_before_it_was_caught_up_runs_once(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, overlap="allow", catch_up="all")
    keep(conn)
    set_clock(conn, at("03-01 12:30"))
    assert backfill(conn, "11:00", overlap="allow") == [("11:00", "started")]
    assert keep(conn) == 1
    assert hours(conn) == [11, 12]


@pytest.mark.parametrize(("call", "says"), [
    ("pgflow.backfill_schedule('s', array['2027-03-01 12:00+00'::timestamptz])", "is in the future"),
    ("pgflow.backfill_schedule('s', '{}', 'skip')", "buffer_all"),
    ("pgflow.backfill_schedule('s', array(select timestamptz '2020-01-01' + n * interval '1 h' from generate_series(1, 1001) n))", "more than the 1000"),
    ("pgflow.set_schedule('t', 'w', '{\"cron\": [\"* * *\"]}')", "five or six fields"),
    ("pgflow.set_schedule('t', 'w', '{\"cron\": [\"@often\"]}')", "five or six fields"),
    ("pgflow.set_schedule('t', 'w', '{\"every\": 60, \"tz\": \"Mars/Phobos\"}')", "unknown time zone"),
    ("pgflow.set_schedule('t', 'w', '{}')", "either cron or every"),
    ("pgflow.set_schedule('t', 'w', '[]')", "is an object"),
    ("pgflow.set_schedule('t', 'w', 'null')", "is an object"),
    ("pgflow.set_schedule('t', 'w', null)", "is an object"),
    ("pgflow.set_schedule('t', 'w', '{\"every\": 60, \"evry\": 1}')", "has no evry"),
    ("pgflow.set_schedule('t', 'w', '{\"every\": 0.5}')", "at least 1"),
    ("pgflow.set_schedule('t', 'w', '{\"every\": 60}', overlap => 'both')", "cannot be kept"),
    ("pgflow.set_schedule('', 'w', '{\"every\": 60}')", "1 to 90 characters"),
])  # fmt: skip
def test_what_cannot_be_is_refused(conn, call, says):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    with pytest.raises(psycopg.Error, match=says) as refused:
        conn.execute(f"select {call}")
    assert refused.value.sqlstate == "PF003"


@pytest.mark.parametrize("verb", [
    "pause_schedule", "resume_schedule", "trigger_schedule", "remove_schedule",
    "read_schedule_spec",
])  # fmt: skip
def test_a_schedule_that_there_is_not_is_said_to_be_none(conn, verb):
    with pytest.raises(psycopg.Error, match="schedule 'x' does not exist") as refused:
        conn.execute(f"select pgflow.{verb}('x')")
    assert refused.value.sqlstate == "PF027"


def test_an_expression_that_cannot_be_evaluated_breaks_no_other(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, "bad", spec={"cron": ["61 * * * *"]})
    setting(conn)
    keep(conn)
    found = column(conn, "(state, error)", "bad")
    assert found == ("broken", "'61 * * * *' is not a cron expression: Bad minute")
    assert keep(conn, at("03-01 11:00")) == 1
    assert setting(conn, "bad", spec={"cron": ["1 * * * *"]})
    assert keep(conn, at("03-01 11:01")) == 1
    assert column(conn, "state", "bad") == "active"


def test_one_whose_evaluation_fails_in_any_way_breaks_no_other(conn, monkeypatch):
    def fail(spec: object, *rest: object) -> object:
        if getattr(spec, "tz", "") == "Europe/London":
            raise LookupError("odd")
        return refill(spec, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("pgflow._worker.scheduler.refill", fail)
    set_clock(conn, at("03-01 10:30"))
    setting(conn, "bad", spec={"cron": ["0 * * * *"], "tz": "Europe/London"})
    setting(conn)
    keep(conn)
    assert column(conn, "(state, error)", "bad") == ("broken", "odd")
    assert keep(conn, at("03-01 11:00")) == 1


def test_a_run_that_cannot_be_started_is_the_trouble_of_its_schedule_alone(conn):
    set_clock(conn, at("03-01 10:30"))
    conn.execute("insert into pgflow.queue (queue) values ('strict') on conflict do nothing")
    setting(conn, "a bad one", queue="strict", workflow="nobody")
    setting(conn)
    keep(conn)
    conn.execute("update pgflow.queue set refuses_unknown = true where queue = 'strict'")
    assert keep(conn, at("03-01 11:00")) == 1
    assert "slot 2027-03-01T11:00:00Z: " in column(conn, "error", "a bad one")
    assert column(conn, "(missed, state)", "a bad one") == ("1", "active")
    conn.execute("update pgflow.queue set refuses_unknown = false where queue = 'strict'")
    finish_all(conn)
    assert keep(conn, at("03-01 12:00")) == 2
    assert column(conn, "error", "a bad one") is None


def test_a_schedule_without_slots_left_is_over(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(
        conn, spec={"cron": ["0 * * * *"], "end_at": "2027-03-01T12:00:00+00:00"}, overlap="allow"
    )
    keep(conn)
    assert keep(conn, at("03-01 11:00")) == 1
    assert keep(conn, at("03-01 12:00")) == 1
    assert column(conn, "state") == "over"
    assert keep(conn, at("03-01 13:00")) == 0


def test_a_removed_schedule_leaves_its_runs(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    keep(conn)
    keep(conn, at("03-01 11:00"))
    assert one(conn, "select pgflow.remove_schedule('s', 'no more', 'ada')") is False
    assert keep(conn, at("03-01 12:00")) == 0
    assert slots(conn) == ["2027-03-01T11:00:00Z"]
    # Made anew it does not fire what it has fired.
    set_clock(conn, at("03-01 10:59"))
    setting(conn)
    keep(conn)
    assert keep(conn, at("03-01 11:00")) == 0


def test_one_worker_keeps_the_schedules_and_the_others_ask_seldom(conn):
    set_clock(conn, at("03-01 10:30"))
    assert look(conn, 1, at_once=False).wait_seconds == 30  # nothing to keep
    setting(conn)
    fleet = [register(conn) for _ in range(20)]
    assert look(conn, fleet[0], at_once=False).refills
    keeper = look(conn, fleet[0], at_once=False)
    assert keeper.wait_seconds == 5
    waits = [
        look(conn, worker, at_once=False).wait_seconds for worker in fleet[1:] for _ in range(20)
    ]
    assert min(waits) >= 20
    assert max(waits) <= 60
    assert 36 < sum(waits) / len(waits) < 44  # two seconds for each of twenty
    # While it is alive nobody else fires; once it is gone, or has not looked for ten seconds, anybody.
    set_clock(conn, at("03-01 11:00"))
    set_clock(conn, at("03-01 10:30:04"))
    assert look(conn, fleet[1], at_once=False).wait_seconds > 5
    conn.execute("select pgflow.leave_worker(%s)", (fleet[0],))
    assert look(conn, fleet[1], at_once=False).wait_seconds == 5
    set_clock(conn, at("03-01 10:30:13"))
    assert look(conn, fleet[2], at_once=False).wait_seconds > 5
    set_clock(conn, at("03-01 10:30:15"))
    assert look(conn, fleet[2], at_once=False).wait_seconds == 5


def test_the_keeper_comes_when_a_slot_is_due(conn):
    set_clock(conn, at("03-01 10:59:58"))
    setting(conn)
    worker = register(conn)
    look(conn, worker, at_once=False)
    assert look(conn, worker, at_once=False).wait_seconds == 2
    set_clock(conn, at("03-01 11:00"))
    assert look(conn, worker, at_once=False).fired == 1


def test_the_keeper_does_not_ask_again_and_again_for_what_a_person_has_locked(conn, dsn):
    set_clock(conn, at("03-01 10:59"))
    setting(conn)
    worker = register(conn)
    look(conn, worker, at_once=False)
    set_clock(conn, at("03-01 11:00"))
    with connect(dsn) as person, person.transaction(force_rollback=True):
        person.execute("select pgflow.pause_schedule('s')")
        told = look(conn, worker, at_once=False)
        assert (told.fired, told.wait_seconds) == (0, 1)
    assert look(conn, worker, at_once=False).fired == 1


def test_a_worker_that_stops_keeps_nothing(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    first, second = register(conn), register(conn)
    look(conn, first, at_once=False)
    assert look(conn, second, at_once=False).refills == []
    conn.execute("select pgflow.beat(%s, true)", (first,))
    assert look(conn, second, at_once=False).wait_seconds == 5


def declare(conn: Conn, worker: int, *names: str, cron: str = "0 * * * *") -> list[str]:
    declared = [
        {
            "name": name,
            "workflow": "work",
            "queue": "default",
            "spec": {"cron": [cron], "tz": "UTC"},
            "overlap": "allow",
            "catch_up": "all",
            "max_catch_up": 100,
            "jitter_seconds": 0,
            "priority": 0,
            "timeout_seconds": None,
            "run_version": "",
            "slot_parameter": None,
        }
        for name in names
    ]
    run(conn, calls.attach_schedules(worker, names))
    keep(conn)
    return run(conn, calls.declare_schedules(worker, declared))


def test_a_deploy_of_the_same_code_changes_nothing(conn):
    set_clock(conn, at("03-01 10:30"))
    assert declare(conn, register(conn), "s") == ["s"]
    keep(conn)
    upcoming = column(conn, "upcoming")
    assert declare(conn, register(conn), "s") == []
    assert column(conn, "upcoming") == upcoming
    assert column(conn, "is_declared") is True
    assert rows(conn, "select what from pgflow.schedule_changes") == ["declared"]


def test_what_a_person_has_set_stands_until_the_code_says_something_else(conn):
    set_clock(conn, at("03-01 10:30"))
    declare(conn, register(conn), "s")
    assert setting(conn, spec={"cron": ["30 * * * *"]})
    assert declare(conn, register(conn), "s") == []
    assert column(conn, "spec->'cron'->>0") == "30 * * * *"
    assert declare(conn, register(conn), "s", cron="15 * * * *") == ["s"]
    assert column(conn, "spec->'cron'->>0") == "15 * * * *"


def test_what_no_code_declares_any_more_stops_and_says_so(conn):
    set_clock(conn, at("03-01 10:30"))
    old = register(conn)
    declare(conn, old, "s", "kept")
    keep(conn)
    new = register(conn)
    declare(conn, new, "kept")
    assert keep(conn, at("03-01 11:00")) == 2  # the old code is still there
    conn.execute("select pgflow.leave_worker(%s)", (old,))
    set_clock(conn, at("03-01 12:00"))
    told = look(conn)
    assert (told.fired, told.undeclared) == (1, ["s"])
    assert column(conn, "state") == "undeclared"
    assert look(conn).undeclared == []
    assert keep(conn, at("03-01 13:00")) == 1
    # The deploy is rolled back: what was missed is caught up.
    set_clock(conn, at("03-01 13:30"))
    back = register(conn)
    declare(conn, back, "s", "kept")
    assert column(conn, "state") == "active"
    assert slots(conn) == [f"2027-03-01T{hour}:00:00Z" for hour in (11, 12, 13)]
    assert keep(conn, at("03-01 14:00")) == 2


def test_what_the_old_code_missed_is_caught_up_before_the_new_code_changes_it(conn):
    set_clock(conn, at("03-01 10:30"))
    first = register(conn)
    declare(conn, first, "s")
    keep(conn)
    conn.execute("select pgflow.leave_worker(%s)", (first,))
    set_clock(conn, at("03-04 10:15"))  # longer than the slots that are kept
    declare(conn, register(conn), "s", cron="30 * * * *")
    assert len(slots(conn)) == 72
    keep(conn)
    keep(conn, at("03-04 11:00"))
    assert slots(conn)[-2:] == ["2027-03-04T10:00:00Z", "2027-03-04T10:30:00Z"]


def test_two_versions_side_by_side_do_not_take_each_others_schedules_away(conn):
    set_clock(conn, at("03-01 10:30"))
    old, new = register(conn), register(conn)
    declare(conn, old, "s")
    declare(conn, new, "t")
    for hour in (11, 12, 13):
        assert keep(conn, at(f"03-01 {hour}:00")) == 2
    assert json.dumps(rows(conn, "select state from pgflow.schedules")) == '["active", "active"]'


def expression(conn: Conn) -> str:
    return str(column(conn, "spec->'cron'->>0"))


def test_the_newest_code_that_is_there_says_when(conn):
    set_clock(conn, at("03-01 10:30"))
    old = register(conn)
    declare(conn, old, "s")
    set_clock(conn, at("03-01 10:31"))
    new = register(conn)
    assert declare(conn, new, "s", cron="30 * * * *") == ["s"]
    # A second worker of the old code, or the same one under a new number, takes nothing back.
    set_clock(conn, at("03-01 10:32"))
    again = register(conn)
    assert declare(conn, again, "s") == []
    conn.execute("select pgflow.leave_worker(%s)", (old,))
    keep(conn)
    assert expression(conn) == "30 * * * *"
    # The deploy is rolled back: the last worker of the new code goes.
    conn.execute("select pgflow.leave_worker(%s)", (new,))
    keep(conn)
    assert expression(conn) == "0 * * * *"
    assert keep(conn, at("03-01 11:30")) == 1
    assert slots(conn) == ["2027-03-01T11:00:00Z"]


def test_an_old_worker_that_was_thought_dead_hands_over_when_it_goes(conn):
    set_clock(conn, at("03-01 10:30"))
    old = register(conn)
    declare(conn, old, "s")
    new = register(conn)
    set_clock(conn, at("03-01 10:31"))
    declare(conn, new, "s", cron="30 * * * *")
    # It comes back under another number, when nobody says the same any more.
    conn.execute("select pgflow.leave_worker(%s)", (old,))
    keep(conn)
    set_clock(conn, at("03-01 10:32"))
    back = register(conn)
    declare(conn, back, "s")
    assert expression(conn) == "0 * * * *"
    conn.execute("select pgflow.leave_worker(%s)", (back,))
    keep(conn)
    assert expression(conn) == "30 * * * *"
    assert keep(conn, at("03-01 11:30")) == 1
    assert slots(conn) == ["2027-03-01T11:30:00Z"]


def test_what_a_person_has_removed_or_set_stays_so_when_a_worker_goes(conn):
    set_clock(conn, at("03-01 10:30"))
    first, second = register(conn), register(conn)
    for worker in (first, second):
        declare(conn, worker, "s", "t")
    keep(conn)
    conn.execute("select pgflow.remove_schedule('t')")
    assert setting(conn, spec={"cron": ["15 * * * *"]})
    conn.execute("select pgflow.leave_worker(%s)", (second,))
    keep(conn)
    assert expression(conn) == "15 * * * *"
    assert rows(conn, "select name from pgflow.schedules") == ["s"]


def test_who_chooses_waits_for_no_open_transaction_and_looks_again(conn, dsn):
    set_clock(conn, at("03-01 10:30"))
    old = register(conn)
    declare(conn, old, "s")
    set_clock(conn, at("03-01 10:31"))
    new = register(conn)
    declare(conn, new, "s", cron="30 * * * *")
    keep(conn)
    conn.execute("select pgflow.leave_worker(%s)", (new,))
    with connect(dsn) as person, person.transaction():
        person.execute("select pgflow.pause_schedule('s')")
        keep(conn)
        assert expression(conn) == "30 * * * *"
    setting(conn, "other")  # else nothing is looked at
    keep(conn)
    assert expression(conn) == "0 * * * *"


@pytest.mark.full
def test_no_look_starts_more_than_its_connection_has_time_for(conn):
    set_clock(conn, at("03-01 10:00"))
    for n in range(4):
        setting(conn, f"s{n}", {"every": 60}, overlap="allow", catch_up="all", max_catch_up=300)
    keep(conn)
    set_clock(conn, at("03-01 15:00"))
    look(conn)  # learns what has passed by then
    assert [look(conn).fired for _ in range(3)] == [600, 600, 0]


def test_declarations_of_workers_that_are_gone_are_forgotten(conn):
    set_clock(conn, at("03-01 10:30"))
    for _ in range(5):
        worker = register(conn)
        declare(conn, worker, "s")
        conn.execute("select pgflow.leave_worker(%s)", (worker,))
    assert one(conn, "select count(*) from pgflow.schedule_declaration") == 1
