"""Schedules and the outbox in the console: what comes next, what is late or dead, and orders to
schedules.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import psycopg
import pytest
from schedulekit import at, look, setting
from sqlkit import one, rows, set_clock
from test_console_pages import ANN, seen_in
from webkit import Browser, address, form_of, is_harmless, mark_of, refuse

from pgflow import Slot, schedule, workflow
from pgflow.web import Principal

BOB = Principal("bob", ["operate"])
WATCHER = Principal("eve", ["view"])


@schedule("0 * * * *", tz="Europe/London")
@workflow
async def hourly(slot: Slot) -> datetime:
    return slot.at


def order_to(name: str, verb: str, **said: str) -> str:
    return address("/schedule/order", name=name, verb=verb, **said)


@pytest.mark.full
async def test_schedules_show_what_comes_next(aflow, conn):
    aflow.include(hourly)
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=1))
    setting(conn, "no such day", {"cron": ["0 0 30 2 *"]})
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/schedules")
    assert is_harmless(page) == []
    seen_in(page, "hourly", "active", "0 * * * * Europe/London", "no such day")
    seen_in(page, "pgflow schedules")
    page = await browser.get("/schedule", name="hourly")
    assert is_harmless(page) == []
    seen_in(page, "The next is due in", "Next slots Europe/London", "While a run is open skip")
    seen_in(page, "Set by code", "declared", "pgflow schedules show hourly")
    (run,) = [link for link in page.links if link.startswith("/run?")]
    seen_in(await browser.get(run), "hourly/", "completed")
    seen_in(await browser.get("/schedules", state="paused"), "No schedule is paused.")
    assert await browser.status("/schedules", state="asleep") == 400
    assert await browser.status("/schedule", name="none") == 404
    assert await browser.status("/schedule") == 400


@pytest.mark.full
async def test_a_schedule_is_paused_resumed_and_triggered_by_a_name(aflow, conn):
    aflow.include(hourly)
    setting(conn, "it's late")
    browser = Browser(aflow.app, BOB)
    path = order_to("it's late", "pause")
    page = await browser.get(path)
    seen_in(page, "Its slots start no run until it is resumed.")
    seen_in(page, "select pgflow.pause_schedule('it''s late', why => 'WHY', sent_by => 'bob');")
    answer = await browser.submit(path, {}, why="holidays")
    assert answer.headers["location"] == "/schedule?name=it%27s+late&done=pause"
    page = await browser.get(answer.headers["location"])
    seen_in(page, "It is paused.", "by bob (postgres): holidays", "Resume")
    page = await browser.get(path)
    seen_in(page, "The schedule is paused now, so this will change nothing.")
    answer = await browser.submit(path, {})
    assert "nothing has changed" in (await browser.get(answer.headers["location"])).words
    answer = await browser.submit(order_to("it's late", "resume"), {})
    assert answer.status_code == 303
    assert rows(conn, "select state from pgflow.schedules") == ["active"]
    answer = await browser.submit(order_to("it's late", "trigger"), {}, why="they want it")
    assert answer.headers["location"].startswith("/run?key=it%27s+late%2F")
    for _ in range(2):  # of one slot there is one run
        answer = await browser.submit(order_to("it's late", "trigger"), {}, slot="2027-03-01T09:00")
        assert answer.headers["location"] == "/run?key=it%27s+late%2F2027-03-01T09%3A00%3A00Z"
    said = "select what, said_by, why from pgflow.schedule_changes order by change_id"
    assert rows(conn, said)[1:] == [
        ("paused", "bob (postgres)", "holidays"),
        ("resumed", "bob (postgres)", None),
        ("triggered", "bob (postgres)", "they want it"),
        ("triggered", "bob (postgres)", None),
    ]
    for wrong in ({"slot": "noon"}, {"slot": "2027-13-01"}):
        answer = await browser.submit(order_to("it's late", "trigger"), {}, **wrong)
        assert answer.status_code == 400, wrong
    assert await browser.status(order_to("it's late", "remove")) == 400
    assert await browser.status(order_to("none", "pause")) == 404


@pytest.mark.full
async def test_slots_of_the_past_are_shown_before_they_are_backfilled(aflow, conn):
    set_clock(conn, at("03-29 12:30"))
    setting(conn, "acme", {"cron": ["0 9 * * *"], "tz": "Europe/London"})
    browser = Browser(aflow.app, BOB)
    page = await browser.get(order_to("acme", "backfill"))
    seen_in(page, "From, in Europe/London", "pgflow schedules backfill acme FIRST LAST")
    assert not [form for form in page.forms if form.method == "post"]
    (form,) = [form for form in page.forms if form.fields.get("verb") == "backfill"]
    said = {**form.fields, "first": "2027-03-27T00:00", "last": "2027-03-29T09:00"}
    path = address(form.action, **said)
    page = await browser.get(path)
    # The clocks go forward on the 28th.
    seen_in(page, "3 slots", "Sat 2027-03-27 09:00", "Mon 2027-03-29 09:00", "Backfill 3 slots")
    seen_in(page, "pgflow schedules backfill acme 2027-03-27T00:00 2027-03-29T09:00")
    assert one(conn, "select count(*) from pgflow.run") == 0
    answer = await browser.submit(path, {}, why="they were down")
    assert "3 slots: 0 started, 3 wait for the run before, 0 had a run." in answer.text
    assert len(one(conn, "select buffered from pgflow.schedules")) == 3
    path = address(form.action, **{**said, "overlap": "allow"})
    answer = await browser.submit(path, {})
    assert "3 slots: 3 started, 0 wait for the run before, 0 had a run." in answer.text
    answer = await browser.submit(path, {})
    assert "3 slots: 0 started, 0 wait for the run before, 3 had a run." in answer.text
    keys = rows(conn, "select key from pgflow.run order by run_id")
    assert keys == [f"acme/2027-03-{day}Z" for day in ("27T09:00:00", "28T08:00:00", "29T08:00:00")]
    found = set(rows(conn, "select said_by from pgflow.schedule_changes where what <> 'set'"))
    assert found == {"bob (postgres)"}
    for wrong in (
        {"last": ""},
        {"first": "x"},
        {"overlap": "skip"},
        {"last": "2028-01-01"},
        {"first": "1990-01-01"},
    ):
        answer = await browser.submit(path, {}, **wrong)
        assert answer.status_code == 400, (wrong, answer.text)
    empty = {**said, "first": "2027-03-28T10:00", "last": "2027-03-28T11:00"}
    seen_in(await browser.get(address(form.action, **empty)), "No slot is in there.")


async def test_a_viewer_orders_no_schedule(aflow, conn):
    setting(conn, "s")
    viewer, bob = Browser(aflow.app, WATCHER), Browser(aflow.app, BOB)
    page = await viewer.get("/schedule", name="s")
    assert not [link for link in page.links if link.startswith("/schedule/order")]
    for verb in ("pause", "resume", "trigger"):
        path = order_to("s", verb)
        assert await viewer.status(path) == 403
        (form,) = [form for form in (await bob.get(path)).forms if form.method == "post"]
        assert (await viewer.send(form)).status_code == 403
        form.fields["mark"] = "0" * 64
        assert (await bob.send(form)).status_code == 403
    assert rows(conn, "select what from pgflow.schedule_changes") == ["set"]


async def test_home_names_schedules_that_start_nothing_and_relays_in_trouble(aflow, conn):
    set_clock(conn, at("03-01 10:30"))
    setting(conn, "odd", {"cron": ["x x x x x"]})
    setting(conn, "late")
    look(conn)
    set_clock(conn, at("03-01 11:05"))
    declare(conn, "mailer")
    one(conn, "select pgflow.publish('orders', '1')")
    refuse(conn, "mailer", "503")
    page = await Browser(aflow.app, ANN).get("/")
    seen_in(page, "odd", "A slot has been due for 5 m, and no worker fires it.")
    seen_in(page, "mailer 1 event could not be delivered, and will not be tried again.")
    declare(conn, "hooks")
    conn.execute(
        "update pgflow.relay set open_until = %s, failures = 7, error = 'refused' where name = 'hooks'",
        [at("03-01 10:59")],
    )
    seen_in(await Browser(aflow.app, ANN).get("/"), "hooks Its target fails: refused")


def declare(conn: psycopg.Connection, name: str) -> None:
    one(conn, "select pgflow.declare_relay(%s, array['orders'])", name)


async def test_the_outbox_shows_lag_and_what_is_dead(aflow, conn):
    browser = Browser(aflow.app, ANN)
    seen_in(await browser.get("/outbox"), "There are no relays yet.")
    declare(conn, "mailer")
    one(conn, "select pgflow.publish('orders', %s)", json.dumps({"n": "<b>1</b>"}))
    (dead,) = refuse(conn, "mailer", "<i>503</i>")
    for _ in range(3):
        one(conn, "select pgflow.publish('orders', '1')")
    page = await browser.get("/outbox")
    assert is_harmless(page) == []
    seen_in(page, "mailer", "orders", "pgflow outbox")
    (path,) = [link for link in page.links if "state=dead" in link]
    page = await browser.get(path)
    assert is_harmless(page) == []
    seen_in(page, "Lag 3 events, the oldest", "dead 1", "waiting 0", str(dead), "<i>503</i>")
    seen_in(page, '"n": "<b>1</b>"', "Try dead events again")
    page = await browser.get("/relay", name="mailer", state="waiting")
    seen_in(page, "It has delivered all that it took.")
    assert await browser.status("/relay", name="none") == 404
    assert await browser.status("/relay", name="mailer", state="lost") == 400
    assert await browser.status("/relay", name="mailer", after="x") == 400


async def test_dead_events_come_in_pages(aflow, conn):
    declare(conn, "mailer")
    conn.execute("select pgflow.publish('orders', '1', 'k' || n) from generate_series(0, 119) n")
    refuse(conn, "mailer", "no", dead_of=2)
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/relay", name="mailer")
    seen_in(page, "dead 60", "waiting 60", "k0 ", "k98 ", "Next page")
    assert "k3 " not in page.words
    assert "k100 " not in page.words
    (path,) = [link for link in page.links if "after=" in link]
    page = await browser.get(path)
    seen_in(page, "k100 ", "k118 ")
    assert "k98 " not in page.words


def relay_order(verb: str, **said: str) -> str:
    return address("/relay/order", name="mailer", verb=verb, **said)


@pytest.mark.full
async def test_a_relay_takes_orders_that_are_kept_with_who_gave_them(aflow, conn):
    declare(conn, "mailer")
    conn.execute("select pgflow.publish('orders', '1', 'k' || n) from generate_series(1, 3) n")
    first, *_ = refuse(conn, "mailer", "no")
    bob = Browser(aflow.app, BOB)
    page = await bob.get("/relay", name="mailer")
    for verb in ("pause", "redeliver", "replay"):
        assert relay_order(verb) in page.links, verb
    assert relay_order("redeliver", event=str(first)) in page.links
    answer = await bob.submit(relay_order("pause"), {}, why="the target moves")
    assert answer.headers["location"] == "/relay?name=mailer&done=pause"
    assert one(conn, "select state from pgflow.relays") == "paused"
    page = await bob.get("/relay", name="mailer", done="pause")
    seen_in(page, "It takes no more events.", "paused bob (postgres) the target moves")
    await bob.submit(relay_order("resume"), {})
    page = await bob.get(relay_order("redeliver", event=str(first)))
    seen_in(page, f"pgflow outbox redeliver mailer {first}", f"redeliver_events('mailer', {first},")
    assert (await bob.submit(relay_order("redeliver"), {}, event=str(first))).status_code == 303
    assert (await bob.submit(relay_order("redeliver"), {}, event=str(first))).status_code == 409
    assert (await bob.submit(relay_order("redeliver"), {})).status_code == 303
    assert one(conn, "select dead from pgflow.relays") == 0
    assert await bob.status(relay_order("redeliver")) == 200
    assert (await bob.submit(relay_order("replay"), {}, event=str(first))).status_code == 303
    said = "select what, said, why, changed_by from pgflow.relay_changes where what <> 'declared' order by changed_at"
    assert conn.execute(said).fetchall() == [
        ("paused", {}, "the target moves", "bob (postgres)"),
        ("resumed", {}, None, "bob (postgres)"),
        ("redelivered", {"event": first, "events": 1}, None, "bob (postgres)"),
        ("redelivered", {"events": 2}, None, "bob (postgres)"),
        ("replayed", {"from_event": first}, None, "bob (postgres)"),
    ]
    for event in ("", "-1", "x", "1e3", "²", "9" * 19):
        assert (await bob.submit(relay_order("replay"), {}, event=event)).status_code == 400, event
    assert await bob.status(relay_order("drop")) == 400


async def test_a_viewer_gives_no_order_to_a_relay(aflow, conn):
    declare(conn, "mailer")
    viewer = Browser(aflow.app, WATCHER)
    page = await viewer.get("/relay", name="mailer")
    assert not [link for link in page.links if "/relay/order" in link]
    assert await viewer.status(relay_order("pause")) == 403
    page = await Browser(aflow.app, BOB).get(relay_order("pause"))
    form = form_of(page, {})
    form.fields["mark"] = mark_of(viewer, WATCHER)  # as if it had leaked
    assert (await viewer.send(form)).status_code == 403
    assert conn.execute("select what from pgflow.relay_changes").fetchall() == [("declared",)]


def test_nobody_writes_the_record_of_orders_to_relays(conn):
    with pytest.raises(psycopg.errors.Error, match="written by orders to relays only"):
        conn.execute(
            "select pgflow.put_documents(%s)",
            (json.dumps([{"collection": "pgflow.relays", "path": ["x"], "value": 1}]),),
        )
    for verb, given in (("delete_documents", "[]"), ("delete_folder", "{x}")):
        with pytest.raises(psycopg.errors.Error, match="written by orders to relays only"):
            conn.execute(f"select pgflow.{verb}('pgflow.relays', %s)", (given,))
