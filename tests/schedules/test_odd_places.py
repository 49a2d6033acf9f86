"""Schedules where something is odd: a queue that rests, a workflow that nobody serves, a pooler, a
database that is serializable by default.
"""

from __future__ import annotations

import psycopg
import pytest
from poolers import bouncer
from records import wait_until
from schedulekit import at, column, keep, look, setting, slots
from sqlkit import connect, one, rows, set_clock

from pgflow import App, Slot, schedule, workflow


def test_slots_of_a_paused_queue_wait_in_it_and_overlap_as_ever(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn)
    keep(conn)
    conn.execute("select pgflow.pause_queue('default')")
    for hour in (11, 12, 13):
        keep(conn, at(f"03-01 {hour}:00"))
    assert slots(conn) == ["2027-03-01T11:00:00Z"]
    assert rows(conn, "select pgflow.status_(run_id) from pgflow.run") == ["queued"]
    assert column(conn, "(open_runs, skipped)") == ("1", "2")


def test_a_workflow_that_nobody_serves_has_its_runs_wait(conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, workflow="not_deployed")
    keep(conn)
    assert keep(conn, at("03-01 11:00")) == 1
    assert column(conn, "(state, error)") == ("active", None)
    assert rows(conn, "select pgflow.status_(run_id) from pgflow.run") == ["queued"]


@pytest.mark.full
@pytest.mark.parametrize("place", ["pooler", "serializable"])
def test_workers_fire_behind_a_pooler_and_in_a_serializable_database(dsn, conn, place):
    @schedule("* * * * * *", overlap="allow", name="each second")
    @workflow
    async def ticking(slot: Slot) -> None: ...

    def work(where: str) -> None:
        done = "select count(*) from pgflow.outcome where status = 'completed'"
        with App(where, include=[ticking]) as app, App(where, include=[ticking]) as other:
            with app.worker(poll_seconds=0.1), other.worker(poll_seconds=0.1):
                app.set_schedule("mine", schedule(every=1), ticking)
                wait_until(lambda: one(conn, done) >= 4, "slots have run")
                app.pause_schedule("mine", why="enough")
                assert app.trigger_schedule("mine").run_key.startswith("mine/")

    if place == "pooler":
        with bouncer(dsn, "transaction") as pooled:
            work(pooled)
    else:
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        conn.execute(f"alter database {name} set default_transaction_isolation = serializable")  # type: ignore[arg-type]
        work(dsn)
    keys = rows(conn, "select key from pgflow.run")
    assert len(set(keys)) == len(keys)


def test_looks_at_once_in_serializable_transactions_fire_once(conn, dsn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, overlap="allow")
    keep(conn)
    set_clock(conn, at("03-01 11:00"))
    with connect(dsn) as person, connect(dsn) as other:
        for who in (person, other):
            who.execute("set default_transaction_isolation = serializable")
        with person.transaction():
            again = (
                "select is_new from pgflow.trigger_schedule('s', slot_at => '2027-03-01 09:00+00')"
            )
            assert one(person, again)
            assert look(other).fired == 0  # the row is the person's
    assert keep(conn) == 1
    assert slots(conn) == ["2027-03-01T09:00:00Z", "2027-03-01T11:00:00Z"]
