"""Requests of people to runs: cancel, pause, resume, retry - wherever the run is, and with who and
why on record.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlkit
from sqlkit import (
    T0,
    Claim,
    begin,
    claim,
    claim_one,
    commit,
    connect,
    count,
    finish,
    flush,
    hold,
    journal,
    mailbox,
    one,
    operators,
    poll,
    rows,
    seconds,
    set_clock,
    start,
    status,
    undelivered,
    unit,
    wait_for,
    wake,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Conn = psycopg.Connection[Any]

ME, WHY = "ann (postgres)", "because"


def ask(conn: Conn, verb: str, key: str = "k", **options: Any) -> int:
    """One of the verbs, and the wake that follows its commit."""
    arguments = {"key": key, "why": WHY, "sent_by": "ann", **options}
    named = ", ".join(f"{name} => %s" for name in arguments)
    chain = one(conn, f"select pgflow.{verb}_run({named})", *arguments.values())
    wake(conn, chain)
    return chain


def begun(conn: Conn) -> Claim:
    """A run that has recorded something."""
    run = begin(conn, key="k")
    commit(conn, flush(run, unit()))
    return run


def hand_back(conn: Conn, run: Claim) -> None:
    conn.execute("select pgflow.release_runs(%s, %s)", ([run.run_id], [run.token]))


def put_fresh(conn: Conn) -> int:
    return start(conn, key="k").run_id


def put_queued(conn: Conn) -> int:
    run = begun(conn)
    hand_back(conn, run)
    return run.run_id


def put_delayed(conn: Conn) -> int:
    return start(conn, key="k", run_at=T0 + seconds(3600)).run_id


def put_waiting(conn: Conn) -> int:
    run = begun(conn)
    commit(conn, wait_for(run, "paid", 2, timeout_seconds=3600))
    return run.run_id


def put_running(conn: Conn) -> int:
    return begun(conn).run_id


def put_paused(conn: Conn) -> int:
    run_id = put_queued(conn)
    conn.execute("select pgflow.pause_run('k', 'first', sent_by => 'bob')")
    wake(conn, run_id)
    return run_id


def put_stuck(conn: Conn) -> int:
    run = begun(conn)
    commit(conn, hold(run, "nondeterminism", "hash", {"where": 1}))
    return run.run_id


def put_finished(conn: Conn) -> int:
    run = begun(conn)
    finish(conn, run)
    return run.run_id


PLACES: dict[str, Callable[[Conn], int]] = {
    "fresh": put_fresh, "queued": put_queued, "delayed": put_delayed, "waiting": put_waiting,
    "running": put_running, "paused": put_paused, "stuck": put_stuck, "finished": put_finished,
}  # fmt: skip
BEFORE = [("pause", "bob (postgres)", "first")]
"""Entries that the journal of a paused run has already."""

# verb -> place -> (status after it, what its journal says of people, mailbox)
DONE = [("cancel", ME, WHY)]
EXPECTED: dict[str, dict[str, tuple[str, list[tuple[str, str, str]], list[tuple[str, str]]]]] = {
    "cancel": {"fresh": ("cancelled", DONE, []), "queued": ("queued", [], [("x", "cancel")]),
        "delayed": ("cancelled", DONE, []), "waiting": ("queued", [], [("x", "cancel")]),
        "running": ("running", [], [("x", "cancel")]),
        "paused": ("queued", BEFORE, [("x", "cancel")]), "stuck": ("queued", [], [("x", "cancel")]),
        "finished": ("completed", [], [])},
    "force": {"fresh": ("cancelled", DONE, []), "queued": ("cancelled", DONE, []),
        "delayed": ("cancelled", DONE, []), "waiting": ("cancelled", DONE, []),
        "running": ("running", [], [("x", "force")]), "paused": ("cancelled", BEFORE + DONE, []),
        "stuck": ("cancelled", DONE, []), "finished": ("completed", [], [])},
    "pause": {"fresh": ("paused", [("pause", ME, WHY)], []),
        "queued": ("paused", [("pause", ME, WHY)], []),
        "delayed": ("paused", [("pause", ME, WHY)], []),
        "waiting": ("paused", [("pause", ME, WHY)], []),
        "running": ("running", [], [("p", "pause")]), "paused": ("paused", BEFORE, []),
        "stuck": ("stuck", [], []), "finished": ("completed", [], [])},
    "resume": {"fresh": ("queued", [], []), "queued": ("queued", [], []),
        "waiting": ("queued", [("resume", ME, WHY)], []),
        "paused": ("queued", [*BEFORE, ("resume", ME, WHY)], []),
        "stuck": ("queued", [("resume", ME, WHY)], []), "finished": ("completed", [], [])},
    "retry": {"fresh": ("queued", [], []), "queued": ("queued", [], []),
        "waiting": ("queued", [("retry", ME, WHY)], []),
        "paused": ("queued", [*BEFORE, ("retry", ME, WHY)], []),
        "stuck": ("queued", [("retry", ME, WHY)], [])},
}  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "place"), [(verb, place) for verb, places in EXPECTED.items() for place in places]
)
def test_a_request_does_what_its_place_allows_and_says_who_and_why(db, verb, place):
    set_clock(db, T0)
    run_id = PLACES[place](db)
    if verb == "force":
        ask(db, "cancel", force=True)
    else:
        ask(db, verb)
    assert (status(db, run_id), operators(db, run_id), mailbox(db, run_id)) == EXPECTED[verb][place]
    poll(db)  # whoever ends a run without its code leaves word to look once more
    assert count(db, "nudge") == 0


@pytest.mark.parametrize("place", [place for place in PLACES if place != "finished"])
def test_what_was_paused_or_stuck_is_ready_again_with_a_fresh_budget(db, place):
    set_clock(db, T0)
    run_id = PLACES[place](db)
    if place in ("delayed", "running"):
        return
    db.execute("update pgflow.held set attempt = 7")
    ask(db, "pause")
    ask(db, "resume")
    run = claim_one(db)
    assert (run.run_id, run.attempt, run.suspect) == (run_id, 1, 0)
    assert run.last_seq == len(journal(db, run_id))


@pytest.mark.parametrize("verbs", [("pause", "resume"), ("resume",), ("retry",)], ids=" then ".join)
def test_a_delayed_run_does_not_start_early_because_it_was_resumed(db, verbs):
    set_clock(db, T0)
    put_delayed(db)
    for verb in verbs:
        ask(db, verb)
    assert claim(db) == []
    set_clock(db, T0 + seconds(3600))
    poll(db)
    assert len(claim(db)) == 1


def test_a_paused_run_says_who_held_it_since_when_and_why(db):
    set_clock(db, T0)
    run_id = put_waiting(db)
    ask(db, "pause")
    query = "select state, reason, held_by, held_at from pgflow.held where run_id = %s"
    assert one(db, query, run_id) == ("paused", WHY, ME, T0)
    assert one(db, "select status, reason from pgflow.result('k')") == ("paused", WHY)
    assert count(db, "timer") == count(db, "wait") == 0
    set_clock(db, T0 + seconds(9999))
    poll(db)
    assert status(db, run_id) == "paused"


def test_a_request_without_a_reason_or_a_name_has_the_verb_and_the_session_user(db):
    run_id = put_waiting(db)
    for verb in ("pause", "resume"):
        db.execute(f"select pgflow.{verb}_run('k')")
        wake(db, run_id)
    user = one(db, "select session_user::text")
    assert operators(db, run_id) == [("pause", user, "paused"), ("resume", user, "resumed")]


def test_a_long_reason_is_cut_where_it_is_stored(db):
    run_id = put_waiting(db)
    ask(db, "pause", why="x" * 100_000, sent_by="y" * 1000)
    (operator,) = operators(db, run_id)
    who = "y" * 180 + " (postgres)"
    assert operator == ("pause", who, "x" * 4096)
    assert one(db, "select reason, held_by from pgflow.held") == ("x" * 255, who)


def test_a_long_reason_in_another_alphabet_does_not_stop_the_sweep(db):
    run_id = put_waiting(db)
    with db.transaction():
        ask(db, "pause", why="ж" * 200)
    poll(db)
    assert status(db, run_id) == "paused"


def test_a_long_reason_in_another_alphabet_does_not_stop_a_commit(db):
    run = begun(db)
    ask(db, "pause", why="ж" * 200)
    with db.transaction():
        assert commit(db, wait_for(run, "x")).place_of(run) == "held"


def test_the_holder_of_a_run_is_told_of_cancels_and_pauses_and_of_nothing_else(db):
    worker = sqlkit.register(db)
    ids = {
        key: start(db, key=key).run_id
        for key in ("cancel", "pause", "resume", "retry", "signal", "nothing")
    }
    claim(db, 9, worker=worker)
    begin(db, key="elsewhere")
    sqlkit.send(db, "signal", "x")
    for verb in ("cancel", "pause", "resume", "retry"):
        ask(db, verb, key=verb)
    ask(db, "cancel", key="elsewhere")
    alive, mail = one(db, "select alive, mail from pgflow.beat(%s)", worker)
    assert alive
    assert sorted(mail) == sorted([ids["cancel"], ids["pause"]])


def test_a_cancel_is_delivered_once_with_who_and_why(db):
    run = begun(db)
    ask(db, "cancel")
    ask(db, "cancel", why="again")
    (taken,) = commit(db, flush(run, signals=[[2, "paid"]], park=True, idle=True)).units_of(run)
    assert taken[1:4] == [0, "x", "cancel"]
    assert json.loads(taken[4]) == {"why": WHY, "by": ME}
    answer = commit(db, flush(run, signals=[[2, "paid"]], cancelled=True, park=True, idle=True))
    assert (answer.units_of(run), answer.place_of(run)) == ([], "parked")
    assert mailbox(db, run.chain_id) == []


def test_a_cancel_comes_in_its_turn_among_what_happened(db):
    set_clock(db, T0)
    run = begin(db, key="k")
    for n, what in enumerate(("send", "cancel", "send")):
        set_clock(db, T0 + seconds(n))
        sqlkit.send(db, "k", "paid", str(n)) if what == "send" else ask(db, "cancel")
    seen = [
        commit(db, flush(run, signals=[[call, "paid"]], park=True, idle=True)).units_of(run)[0]
        for call in (1, 2, 2)
    ]
    assert [(call, kind) for _, call, kind, *_ in seen] == [(1, "S"), (0, "x"), (2, "S")]


def test_a_pause_holds_a_run_only_when_no_body_runs_and_nothing_has_happened(db):
    run = begun(db)
    ask(db, "pause")
    ask(db, "pause", why="really", sent_by="bob")
    answer = commit(db, flush(run, unit(call=2), signals=[[3, "paid"]], park=True, idle=False))
    assert (answer.place_of(run), answer.settled[run.run_id]["pause"]) == ("leased", True)
    sqlkit.send(db, "k", "paid")
    answer = commit(db, flush(run, signals=[[3, "paid"]], park=True, idle=True))
    assert (answer.place_of(run), answer.settled[run.run_id]["pause"]) == ("leased", True)
    assert len(answer.units_of(run)) == 1
    found = commit(db, flush(run, signals=[[4, "paid"]], park=True, idle=True)).place_of(run)
    assert found == "held"
    assert operators(db, run.run_id) == [("pause", ME, WHY), ("pause", "bob (postgres)", "really")]
    assert mailbox(db, run.chain_id) == []
    assert one(db, "select last_seq, state from pgflow.held") == (5, "paused")


def test_a_resume_takes_back_a_pause_that_has_not_taken_effect(db):
    run = begun(db)
    for verb in ("pause", "resume"):
        ask(db, verb)
    answer = commit(db, wait_for(run, "paid"))
    assert (answer.place_of(run), answer.settled[run.run_id]["pause"]) == ("parked", False)
    assert mailbox(db, run.chain_id) == []


def test_a_pause_after_a_resume_counts(db):
    run = begun(db)
    for verb in ("pause", "resume", "pause"):
        ask(db, verb)
    assert commit(db, wait_for(run, "paid")).place_of(run) == "held"
    assert mailbox(db, run.chain_id) == []


def test_a_forced_cancel_ends_a_run_with_its_holders_next_question(db):
    run = begun(db)
    sqlkit.send(db, "k", "paid")
    ask(db, "cancel", force=True)
    answer = commit(
        db,
        flush(
            run,
            unit(call=2),
            signals=[[3, "paid"]],
            children=[sqlkit.child(4)],
            park=True,
            idle=True,
        ),
    )
    assert (answer.place_of(run), answer.units_of(run)) == ("ended", [])
    found = one(db, "select status, reason, token from pgflow.outcome")
    assert found == ("cancelled", WHY, run.token)
    assert [kind for _, _, kind, _, _ in journal(db, run.run_id)] == ["c", "c", "o"]
    assert undelivered(db, run.chain_id) == [("s", "paid")]
    assert count(db, "run") == 1


def test_a_forced_cancel_outlives_the_death_of_the_holder(db):
    run = begun(db)
    ask(db, "cancel", force=True)
    db.execute("select pgflow.reap_worker(%s, 0)", (run.worker,))
    again = claim_one(db)
    assert again.has_mail
    assert commit(db, flush(again, park=True)).place_of(again) == "ended"


NOTHING = "only a stuck or failed run can be retried"


@pytest.mark.parametrize(
    ("ending", "why"),
    [("completed", NOTHING), ("failed", "no step of it has failed"), ("cancelled", NOTHING)],
)
def test_a_retry_of_a_run_that_has_ended_is_refused(db, ending, why):
    run = begun(db)
    finish(db, run, ending)
    with (
        pytest.raises(psycopg.Error, match=f"run 'k' is {ending}: {why}") as error,
        db.transaction(),
    ):
        ask(db, "retry")
    assert error.value.sqlstate == "PF006"
    assert count(db, "signal") == count(db, "undelivered") == 0


def test_a_retry_of_a_chain_that_goes_on_is_not_refused(db):
    commit(db, flush(begun(db), **{"continue": "{}"}))
    commit(db, hold(claim_one(db)))
    ask(db, "retry")
    assert claim_one(db).generation == 2


@pytest.mark.parametrize(("verbs", "place", "expected"), [
    (("pause", "resume"), "queued", "queued"), (("resume", "pause"), "queued", "paused"),
    (("pause", "resume", "pause"), "waiting", "paused"), (("pause", "retry"), "waiting", "queued"),
    (("pause", "cancel"), "waiting", "queued"), (("cancel", "pause"), "waiting", "queued"),
    (("cancel", "pause"), "fresh", "cancelled"), (("resume", "pause"), "paused", "paused"),
])  # fmt: skip
def test_of_requests_that_come_together_the_last_counts_and_a_cancel_always(
    db, verbs, place, expected
):
    run_id = PLACES[place](db)
    for verb in verbs:
        db.execute(f"select pgflow.{verb}_run('k')")
    poll(db)
    assert status(db, run_id) == expected


def test_requests_that_come_together_are_on_record_in_their_order(db):
    db.execute("set local enable_bitmapscan = off")
    run_id = put_waiting(db)
    for n, verb in enumerate(("pause", "resume", "pause")):
        db.execute(f"select pgflow.{verb}_run('k', %s, sent_by => %s)", (f"why {n}", f"who {n}"))
    poll(db)
    assert operators(db, run_id) == [
        ("pause", "who 0 (postgres)", "why 0"),
        ("resume", "who 1 (postgres)", "why 1"),
        ("pause", "who 2 (postgres)", "why 2"),
    ]
    assert one(db, "select reason, held_by from pgflow.held") == ("why 2", "who 2 (postgres)")


def test_a_request_to_a_run_locked_elsewhere_is_kept_for_the_next_poll(dsn, conn):
    for place, table in (("waiting", "parked"), ("queued", "ready"), ("stuck", "held")):
        run_id = PLACES[place](conn)
        with connect(dsn) as locker, connect(dsn) as waker:
            with locker.transaction():
                locker.execute(
                    f"select from pgflow.{table} where run_id = %s for update", (run_id,)
                )
                one(waker, "select pgflow.cancel_run('k', force => true)")
                assert wake(waker, run_id).busy, place
                assert count(waker, "nudge") > 0
            assert poll(waker).ended == [run_id]
        conn.execute("delete from pgflow.run_key")


@pytest.mark.full
def test_a_cancel_and_a_completion_have_one_winner(dsn, conn):
    ids = [s.run_id for s in sqlkit.start_many(conn, [(f"k{n}", "{}") for n in range(150)])]

    def work(c: Conn, n: int) -> int:
        worker, lanes = sqlkit.register(c), sqlkit.all_lanes(c)
        done = 0
        for number in range(150):
            if n:
                done += (
                    wake(
                        c, one(c, "select pgflow.cancel_run(%s, force => true)", f"k{149 - number}")
                    ).ended
                    != []
                )
            else:
                for run in claim(c, 1, worker=worker, lanes=lanes):
                    while "busy" in (bad := finish(c, run).bad).values():
                        pass  # a wake has the lease in its hands: a worker tries again as well
                    done += bad == {}
        return done

    completed, cancelled = sqlkit.race(dsn, 2, work)
    wake(conn, *ids)
    found = dict(rows(conn, "select status, count(*) from pgflow.outcome group by status"))
    assert (found.get("completed", 0), found.get("cancelled", 0)) == (completed, cancelled)
    assert completed + cancelled == 150
    assert rows(conn, "select run_id from pgflow.outcome order by run_id") == ids
    assert count(conn, "signal") == 0


def test_a_completion_on_its_way_wins_over_a_cancel_that_comes_later(dsn, conn):
    run = begun(conn)
    with connect(dsn) as person:
        with conn.transaction():
            finish(conn, run)
            ask(person, "cancel", force=True)
        poll(person)
    assert status(conn, run.run_id) == "completed"
    assert undelivered(conn, run.chain_id) == [("x", "force")]


def test_two_people_who_cancel_at_once_end_a_run_once(dsn, conn):
    run_id = put_waiting(conn)
    with connect(dsn) as other:
        with conn.transaction():
            one(conn, "select pgflow.cancel_run('k', 'a', force => true)")
        with conn.transaction():
            assert wake(conn, run_id).ended == [run_id]
            one(other, "select pgflow.cancel_run('k', 'b', force => true)")
            assert wake(other, run_id).ended == []
        poll(other)
    assert one(conn, "select status, reason from pgflow.outcome") == ("cancelled", "a")
    assert undelivered(conn, run_id) == [("x", "force")]
