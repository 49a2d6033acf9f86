"""Waking: whatever is sent, due or decided reaches the run that waits for it, once, in the order in
which it happened.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest
import sqlkit
from servers import HANG_SECONDS
from sqlkit import (
    T0,
    Actor,
    Claim,
    begin,
    child,
    claim,
    claim_one,
    commit,
    connect,
    count,
    finish,
    flush,
    journal,
    mailbox,
    one,
    poll,
    rows,
    seconds,
    send,
    set_clock,
    sleep_for,
    start,
    status,
    still_waits,
    undelivered,
    unit,
    wait_for,
    wake,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Conn = psycopg.Connection[Any]


def park(conn: Conn, name: str = "paid", **options: Any) -> Claim:
    """A run that waits for a signal."""
    run = begin(conn, **options)
    answer = commit(conn, wait_for(run, name))
    assert answer.place_of(run) == "parked"
    wake(conn, *answer.wake)
    return run


def kinds(conn: Conn, run: Claim) -> list[tuple[str, int]]:
    """(kind, call) of each unit of a run."""
    return [(kind, call) for _, call, kind, _, _ in journal(conn, run.run_id)]


def cancel(conn: Conn, key: str, *, force: bool = False) -> int:
    return one(conn, "select pgflow.cancel_run(%s, 'enough', force => %s)", key, force)


def heard(listener: Conn) -> list[str]:
    """Return the messages on the channel of workers since the last look."""
    listener.execute("select 1")
    return [notification.payload for notification in listener.notifies(timeout=0)]


@pytest.fixture
def listener(dsn: str) -> Iterator[Conn]:
    with connect(dsn) as conn:
        conn.execute("listen pgflow_work")
        yield conn


def test_a_wake_tells_the_workers_which_lanes_have_work(conn, listener):
    runs = [park(conn), park(conn)]
    for run in runs:
        send(conn, run.key, "paid")
    conn.execute("select pgflow.wake(%s::bigint[])", ([run.chain_id for run in runs],))
    assert heard(listener) == [f"r{runs[0].lane_id}"]
    conn.execute("select pgflow.wake(%s::bigint[])", ([run.chain_id for run in runs],))
    assert heard(listener) == []


def test_a_wake_tells_the_holder_of_a_run_that_it_has_mail(conn, listener):
    run = begin(conn)
    send(conn, run.key, "paid")
    conn.execute("select pgflow.wake(array[%s::bigint])", (run.chain_id,))
    assert heard(listener) == [f"m{run.run_id}"]


def test_a_wake_tells_nobody_if_its_caller_will(conn, listener):
    run = park(conn)
    send(conn, run.key, "paid")
    conn.execute("select pgflow.wake(array[%s::bigint], tell => false)", (run.chain_id,))
    assert status(conn, run.run_id) == "queued"
    assert heard(listener) == []


def test_what_workers_are_told_fits_into_notifications_however_much_it_is(conn, listener):
    runs = list(range(2**62, 2**62 + 1000))
    conn.execute("select pgflow.tell_workers_(array(select generate_series(1, 800)), %s)", (runs,))
    said = heard(listener)
    parts = [part for payload in said for part in payload.split(";")]
    assert sorted(int(n) for part in parts if part[0] == "r" for n in part[1:].split(",")) == list(
        range(1, 801)
    )
    assert sorted(int(n) for part in parts if part[0] == "m" for n in part[1:].split(",")) == runs


def interleavings(*sequences: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every order of all steps that keeps each sequence's own order."""
    slots = [n for n, steps in enumerate(sequences) for _ in steps]
    for order in sorted(set(itertools.permutations(slots))):
        left = [iter(steps) for steps in sequences]
        yield tuple(next(left[n]) for n in order)


SENDER = ("send", "commit of send", "wake by sender")
PARKER = ("park", "commit of park", "wake by parker")


class Stage:
    """Two connections that hold their transactions open while a third one wakes and polls; none of
    them ever waits.
    """

    def __init__(
        self, dsn: str, act: dict[str, Callable[[Conn, Claim], Any]], level: str = "read committed"
    ) -> None:
        self.sender, self.parker, self.waker = (connect(dsn) for _ in range(3))
        self.act = act
        self.level = level

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for conn in (self.sender, self.parker, self.waker):
            conn.close()

    def play(self, order: tuple[str, ...], run: Claim) -> None:
        """Takes these steps, in this order."""
        # The sender's transaction may be older than everything that happens here.
        self.sender.execute(f"begin isolation level {self.level}")
        self.sender.execute("select count(*) from pgflow.run")
        self.parker.execute("begin")
        to_wake: list[int] = []
        for step in order:
            match step:
                case "send":
                    self.act["send"](self.sender, run)
                case "commit of send":
                    self.sender.execute("commit")
                case "wake by sender":
                    wake(self.waker, run.chain_id)
                case "park":
                    to_wake = self.act["park"](self.parker, run).wake
                case "commit of park":
                    self.parker.execute("commit")
                case "wake by parker":
                    # Only as the answer to its commit tells it to.
                    if to_wake:
                        wake(self.waker, *to_wake)
                case "poll":
                    poll(self.waker)


def begin_many(conn: Conn, count: int, name: str = "run") -> list[Claim]:
    started = [start(conn, name, key=f"{name}-{n}") for n in range(count)]
    return claim(conn, count, lanes=[started[0].lane_id])


def goes_on(conn: Conn, run: Claim) -> bool:
    """Return True if the run is ready, or its holder was told when it tried to park."""
    return status(conn, run.run_id) == "queued" or (
        status(conn, run.run_id) == "running" and len(journal(conn, run.run_id)) > 0
    )


SIGNAL: dict[str, Callable[[Conn, Claim], Any]] = {
    "send": lambda c, run: send(c, run.key, "paid", "1"),
    "park": lambda c, run: commit(c, wait_for(run, "paid")),
}


def play_all(
    dsn: str,
    conn: Conn,
    orders: list[tuple[str, ...]],
    level: str,
    then: Callable[[], object] = bool,
) -> None:
    runs = begin_many(conn, len(orders), level)
    with Stage(dsn, SIGNAL, level) as stage:
        for order, run in zip(orders, runs, strict=True):
            stage.play(order, run)
            then()
            assert goes_on(conn, run), (level, order)


@pytest.mark.full
def test_a_signal_wakes_its_run_in_every_order_of_sender_parker_and_poll(dsn, conn):
    orders = list(interleavings(SENDER, PARKER, ("poll",)))
    assert len(orders) == 140
    play_all(dsn, conn, orders, "read committed")


LEVELS = ["read committed", "repeatable read", "serializable"]


@pytest.mark.full
def test_a_signal_from_a_transaction_with_an_old_snapshot_wakes_its_run_in_every_order(dsn, conn):
    for level in LEVELS[1:]:
        play_all(dsn, conn, list(interleavings(SENDER, PARKER)), level)


@pytest.mark.full
def test_a_signal_wakes_its_run_by_the_next_poll_though_both_sides_die_before_they_wake_it(
    dsn, conn
):
    for level in LEVELS:
        play_all(
            dsn,
            conn,
            list(interleavings(SENDER[:2], PARKER[:2], ("poll",))),
            level,
            then=lambda: poll(conn),
        )
    assert count(conn, "nudge") == 0


def end_of_a_child_in_every_order(
    dsn: str, conn: Conn, orders: list[tuple[str, ...]], then: Callable[[], object] = bool
) -> None:
    kids: dict[int, Claim] = {}
    act: dict[str, Callable[[Conn, Claim], Any]] = {
        "send": lambda c, run: finish(c, kids[run.run_id]),
        "park": lambda c, run: commit(c, flush(run, child_calls=[1], park=True, idle=True)),
    }
    with Stage(dsn, act) as stage:
        for order in orders:
            parent = begin(conn, "parent")
            commit(conn, flush(parent, children=[child(1)]))
            kids[parent.run_id] = claim_one(conn)
            stage.play(order, parent)
            then()
            place = status(conn, parent.run_id)
            assert place == "queued" or (
                place == "running" and kinds(conn, parent)[-1] == ("K", 1)
            ), order
            finish(conn, parent if place == "running" else claim_one(conn))


@pytest.mark.full
def test_the_result_of_a_child_wakes_its_parent_in_every_order(dsn, conn):
    orders = list(interleavings(SENDER, PARKER))
    assert len(orders) == 20
    end_of_a_child_in_every_order(dsn, conn, orders)


@pytest.mark.full
def test_the_result_of_a_child_wakes_its_parent_by_the_next_poll_though_both_sides_die_before_they_wake_it(
    dsn, conn
):
    end_of_a_child_in_every_order(
        dsn, conn, list(interleavings(SENDER[:2], PARKER[:2], ("poll",))), then=lambda: poll(conn)
    )
    assert count(conn, "nudge") == 0


REQUESTS = {
    "cancel": ("select pgflow.cancel_run(%s)", "queued"),
    "force": ("select pgflow.cancel_run(%s, force => true)", "cancelled"),
    "pause": ("select pgflow.pause_run(%s)", "paused"),
}


def request_in_every_order(
    dsn: str, conn: Conn, request: str, leave: Callable[[Claim], sqlkit.Flush]
) -> None:
    """Send a request in every order to a run that is about to leave its worker: it is heard, at the
    latest by the next poll.
    """
    query, expected = REQUESTS[request]
    orders = list(interleavings(SENDER, PARKER))
    runs = begin_many(conn, len(orders), request)
    act: dict[str, Callable[[Conn, Claim], Any]] = {
        "send": lambda c, run: one(c, query, run.key),
        "park": lambda c, run: commit(c, leave(run)),
    }
    with Stage(dsn, act) as stage:
        for order, run in zip(orders, runs, strict=True):
            stage.play(order, run)
            poll(conn)
            place = status(conn, run.run_id)
            assert place == expected or (place == "running" and kinds(conn, run)[-1] == ("x", 0)), (
                request,
                order,
            )


@pytest.mark.full
def test_a_request_reaches_a_run_that_waits_for_a_signal_in_every_order(dsn, conn):
    for request in REQUESTS:
        request_in_every_order(
            dsn, conn, request, lambda run: wait_for(run, "paid", timeout_seconds=3600)
        )


@pytest.mark.full
def test_a_request_reaches_a_run_that_sleeps_in_every_order(dsn, conn):
    for request in REQUESTS:
        request_in_every_order(dsn, conn, request, lambda run: sleep_for(run, 3600))


@pytest.mark.full
def test_a_cancel_reaches_a_run_that_gets_stuck_in_every_order(dsn, conn):
    for request in ("cancel", "force"):
        request_in_every_order(
            dsn,
            conn,
            request,
            lambda run: flush(run, unit(), hold=["stuck", "refused", None, None, "pgflow"]),
        )


@pytest.mark.full
def test_a_resume_reaches_a_run_that_is_about_to_pause_in_every_order(dsn, conn):
    orders = list(interleavings(SENDER, PARKER))
    runs = begin_many(conn, len(orders))
    for run in runs:
        one(conn, "select pgflow.pause_run(%s)", run.key)
        wake(conn, run.chain_id)
    act: dict[str, Callable[[Conn, Claim], Any]] = {
        "send": lambda c, run: one(c, "select pgflow.resume_run(%s)", run.key),
        "park": lambda c, run: commit(c, wait_for(run, "paid")),
    }
    with Stage(dsn, act) as stage:
        for order, run in zip(orders, runs, strict=True):
            stage.play(order, run)
            poll(conn)
            assert status(conn, run.run_id) != "paused", order


def test_a_cancel_reaches_a_run_whose_worker_died_once_too_often(db):
    db.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1))")
    run = begin(db, key="k")
    cancel(db, "k")
    wake(db, run.chain_id)
    db.execute("select pgflow.reap_worker(%s, 0)", (run.worker,))
    poll(db)
    assert status(db, run.run_id) in ("queued", "cancelled")


@pytest.mark.parametrize("how", ["held", "poison"])
def test_a_cancel_sent_before_a_claim_and_committed_after_it_reaches_a_run_that_gets_stuck(
    dsn, conn, how
):
    # Neither the time of the cancel nor a clock that went back may make it look like one that the
    # claim has brought.
    conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1))")
    sqlkit.start(conn, key="k")
    with connect(dsn) as asker:
        with asker.transaction():
            cancel(asker, "k")
            run = claim_one(conn)
        wake(conn, run.chain_id)
    if how == "held":
        commit(conn, sqlkit.hold(run))
    else:
        conn.execute("select pgflow.reap_worker(%s, 0)", (run.worker,))
    poll(conn)
    assert status(conn, run.run_id) == "queued"


@pytest.mark.parametrize("how", ["held", "poison"])
def test_a_cancel_brings_a_stuck_run_on_once_and_not_round_and_round(db, how):
    db.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1))")

    def get_stuck(run: Claim) -> None:
        if how == "held":
            commit(db, sqlkit.hold(run))
        else:
            db.execute("select pgflow.reap_worker(%s, 0)", (run.worker,))
        poll(db)

    run = begin(db, key="k")
    cancel(db, "k")
    wake(db, run.chain_id)
    get_stuck(run)
    again = claim_one(db)
    assert again.has_mail
    get_stuck(again)
    assert status(db, run.run_id) == "stuck"
    assert mailbox(db, run.chain_id) == [("x", "cancel")]
    cancel(db, "k")
    poll(db)
    assert status(db, run.run_id) == "queued"


def test_a_sender_waits_for_nobody(dsn, conn):
    places = {"ready": start(conn, key="ready"), "leased": None, "parked": None, "stuck": None}
    lane = start(conn, "w", key="x").lane_id
    finish(conn, claim_one(conn, lanes=[lane]))
    begin(conn, "leased", key="leased")
    commit(conn, wait_for(begin(conn, "parked", key="parked"), "other"))
    commit(conn, sqlkit.hold(begin(conn, "stuck", key="stuck")))
    with connect(dsn) as other, connect(dsn) as sender, other.transaction():
        for table in ("ready", "lease", "parked", "held", "run", "run_key", "lane", "queue"):
            other.execute(f"select from pgflow.{table} for update")
        for key in places:
            send(sender, key, "hello")
            for verb in ("cancel", "pause", "resume", "retry"):
                one(sender, f"select pgflow.{verb}_run(%s)", key)
        wake(sender)
    assert one(conn, "select count(*) from pgflow.signal where kind = 's'") == 4


def test_two_senders_of_the_same_run_do_not_wait_for_each_other(dsn, conn):
    park(conn, key="k")
    with connect(dsn) as a, connect(dsn) as b, a.transaction(), b.transaction():
        send(a, "k", "paid", "1")
        send(b, "k", "paid", "2")
        send(a, "k", "paid", "3")
    assert poll(conn).lanes != []
    assert count(conn, "signal") == 3


@pytest.mark.parametrize(
    "verb",
    ["send_signal(%s, 'x')", "cancel_run(%s)", "pause_run(%s)", "resume_run(%s)", "retry_run(%s)"],
)
def test_a_message_to_an_unknown_key_is_refused_and_leaves_nothing(db, verb):
    start(db, key="k", tenant="other")
    for key in ("k", "", "K", "' or 1=1 --", None):
        with pytest.raises(psycopg.Error) as error, db.transaction():
            db.execute(f"select pgflow.{verb}", (key,))
        assert error.value.sqlstate == "PF001"
    assert count(db, "signal") == count(db, "nudge") == 0


@pytest.mark.parametrize(
    ("name", "payload"), [("", "1"), ("x" * 256, "1"), (None, "1"), ("x", '"\\u0000"'), ("x", "[" * 201 + "]" * 201)],
    ids=["empty", "long", "none", "NUL", "deep"],
)  # fmt: skip
def test_a_signal_beyond_the_limits_is_refused(db, name, payload):
    start(db, key="k")
    with pytest.raises(psycopg.Error) as error, db.transaction():
        db.execute("select pgflow.send_signal('k', %s, %s)", (name, payload))
    assert error.value.sqlstate == "PF003"


def test_a_signal_keeps_its_exact_text(db):
    for text in ('{"b":1,"a":-0.0,"a":1e22}', '" \\u00e9"', "null", "[ ]"):
        run = park(db, key=text)
        send(db, text, "paid", text)
        wake(db, run.chain_id)
        again = claim_one(db)
        (taken,) = commit(db, still_waits(again, "paid", 1)).units_of(again)
        assert taken == [1, 1, "S", "paid", text]
        assert journal(db, run.run_id) == [(1, 1, "S", "paid", text)]
        finish(db, again)


def test_a_signal_without_a_payload_is_null(db):
    run = park(db, key="k")
    db.execute("select pgflow.send_signal('k', 'paid')")
    db.execute("select pgflow.send_signal('k', 'paid', null)")
    wake(db, run.chain_id)
    again = claim_one(db)
    for call in (1, 2):
        (taken,) = commit(db, still_waits(again, "paid", call)).units_of(again)
        assert taken[4] == "null"


def test_each_signal_goes_to_one_wait_in_the_order_of_sending(db):
    run = begin(db, key="k")
    for n in range(3):
        send(db, "k", "paid", str(n))
    send(db, "k", "other", '"o"')
    taken = []
    for waits in (
        [[1, "paid"], [2, "paid"]],
        [[2, "paid"], [3, "paid"]],
        [[3, "paid"], [4, "paid"]],
        [[4, "paid"], [5, "other"]],
    ):
        taken += commit(db, flush(run, signals=waits, park=True, idle=True)).units_of(run)
    found = [(call, name, payload) for _, call, _, name, payload in taken]
    assert found == [(1, "paid", "0"), (2, "paid", "1"), (3, "paid", "2"), (5, "other", '"o"')]
    assert [seq for seq, *_ in taken] == [1, 2, 3, 4]
    assert mailbox(db, run.chain_id) == []
    found = commit(db, flush(run, signals=[[4, "paid"]], park=True, idle=True)).place_of(run)
    assert found == "parked"


def test_a_signal_goes_with_the_units_of_its_flush_or_stays(dsn, conn):
    run = begin(conn, key="k")
    send(conn, "k", "paid", "1")
    with connect(dsn) as worker, worker.transaction(force_rollback=True):
        answer = commit(worker, flush(run, unit(), signals=[[2, "paid"]], park=True, idle=True))
        assert [u[:3] for u in answer.units_of(run)] == [[2, 2, "S"]]
    assert mailbox(conn, run.chain_id) == [("s", "paid")]
    assert journal(conn, run.run_id) == []


def test_a_message_that_is_not_waited_for_wakes_nobody_and_is_kept(db):
    run = park(db, key="k")
    send(db, "k", "paid ", "1")
    send(db, "k", "Paid", "2")
    assert wake(db, run.chain_id) == ([], [], [], 0)
    assert status(db, run.run_id) == "waiting"
    assert len(mailbox(db, run.chain_id)) == 2
    assert count(db, "nudge") == 0


def test_a_leased_run_is_named_so_that_its_holder_can_be_told(db):
    run = begin(db, key="k")
    send(db, "k", "paid")
    assert wake(db, run.chain_id).mail == [run.run_id]
    assert count(db, "nudge") == 0


@pytest.mark.parametrize(("sent_after", "expected"), [(4.9, "S"), (5.1, "W")])
def test_what_happened_first_wins_however_late_the_database_looks(db, sent_after, expected):
    set_clock(db, T0)
    run = begin(db, key="k")
    commit(db, wait_for(run, "paid", timeout_seconds=5))
    set_clock(db, T0 + seconds(sent_after))
    send(db, "k", "paid", "1")
    set_clock(db, T0 + seconds(3600))
    poll(db)
    again = claim_one(db)
    answer = commit(db, still_waits(again, "paid", 1, timer_seq=1))
    assert [u[2] for u in answer.units_of(again)] == [expected]
    assert mailbox(db, run.chain_id) == ([] if expected == "S" else [("s", "paid")])
    finish(db, again)
    assert undelivered(db, run.chain_id) == ([] if expected == "S" else [("s", "paid")])


def test_a_signal_sent_at_the_very_moment_of_the_time_out_is_told_apart_by_nothing_but_once(db):
    set_clock(db, T0)
    run = begin(db, key="k")
    commit(db, wait_for(run, "paid", timeout_seconds=5))
    set_clock(db, T0 + seconds(5))
    send(db, "k", "paid", "1")
    poll(db)
    again = claim_one(db)
    assert len(commit(db, still_waits(again, "paid", 1, timer_seq=1)).units_of(again)) == 1


def test_due_timers_and_results_of_children_come_together_and_a_signal_alone(db):
    set_clock(db, T0)
    run = begin(db, key="k")
    commit(
        db,
        flush(
            run,
            unit("t", 1, None, None, delay_seconds=1),
            unit("t", 2, None, None, delay_seconds=3),
            children=[child(3)],
        ),
    )
    kid = claim_one(db)
    set_clock(db, T0 + seconds(2))
    finish(db, kid, output='"done"')
    set_clock(db, T0 + seconds(4))
    send(db, "k", "a")
    set_clock(db, T0 + seconds(5))
    send(db, "k", "b")
    question = {
        "timers": [[1, 1, "T"], [2, 2, "T"]], "child_calls": [3], "signals": [[4, "a"], [5, "b"]],
        "park": True, "idle": True,
    }  # fmt: skip
    found = [u[1:3] for u in commit(db, flush(run, **question)).units_of(run)]
    assert found == [[1, "T"], [3, "K"], [2, "T"]]
    assert [u[1:3] for u in commit(db, flush(run, signals=[[4, "a"], [5, "b"]])).units_of(run)] == [
        [4, "S"]
    ]
    assert [u[1:3] for u in commit(db, flush(run, signals=[[5, "b"]])).units_of(run)] == [[5, "S"]]


def test_mail_that_nobody_took_is_put_aside_when_the_run_ends(db):
    set_clock(db, T0)
    run = begin(db, key="k")
    send(db, "k", "a", '{"b":1, "a":-0.0}')
    send(db, "k", "b")
    set_clock(db, T0 + seconds(9))
    finish(db, run)
    assert mailbox(db, run.chain_id) == []
    assert one(
        db,
        "select name, payload::text, sent_at, moved_at from pgflow.undelivered order by signal_id",
    ) == ("a", '{"b":1, "a":-0.0}', T0, T0 + seconds(9))


def test_mail_to_a_finished_run_is_accepted_and_put_aside(db):
    run = begin(db, key="k")
    finish(db, run)
    send(db, "k", "late")
    cancel(db, "k")
    assert wake(db, run.chain_id).ended == []
    assert undelivered(db, run.chain_id) == [("s", "late"), ("x", "cancel")]
    assert status(db, run.run_id) == "completed"
    assert kinds(db, run) == []
    assert count(db, "nudge") == count(db, "signal") == 0


def test_mail_on_its_way_when_the_run_ends_is_put_aside_by_the_next_wake(dsn, conn):
    run = begin(conn, key="k")
    with connect(dsn) as sender:
        with sender.transaction():
            send(sender, "k", "late")
            finish(conn, run)
            assert wake(conn, run.chain_id) == ([], [], [], 0)
        poll(conn)
    assert undelivered(conn, run.chain_id) == [("s", "late")]


def test_mail_is_put_aside_in_every_order_of_sender_and_end(dsn, conn):
    orders = list(interleavings(SENDER, PARKER[:2]))
    runs = begin_many(conn, len(orders))
    act: dict[str, Callable[[Conn, Claim], Any]] = {"send": SIGNAL["send"], "park": finish}
    with Stage(dsn, act) as stage:
        for order, run in zip(orders, runs, strict=True):
            stage.play(order, run)
            poll(conn)
            assert undelivered(conn, run.chain_id) == [("s", "paid")], order


@pytest.mark.parametrize("place", ["ready", "held", "parked"])
def test_mail_that_comes_while_the_run_is_ended_without_its_code_is_put_aside(dsn, conn, place):
    chain = start(conn, key="k").run_id if place != "parked" else park(conn, key="k").chain_id
    if place == "held":
        conn.execute("select pgflow.pause_run('k', 'lunch')")
        wake(conn, chain)
    with connect(dsn) as ender, ender.transaction():
        cancel(ender, "k", force=True)
        assert wake(ender, chain).ended == [chain]
        send(conn, "k", "late")
        wake(conn, chain)
    poll(conn)
    assert undelivered(conn, chain) == [("s", "late")]
    assert count(conn, "nudge") == count(conn, "signal") == 0


def test_a_run_that_comes_back_after_a_wake_has_read_the_clock_is_not_ended_before_its_last_unit(
    dsn, conn
):
    """The clock of the waker stands still behind a lock, once it was read."""
    conn.execute(
        """
        create or replace function pgflow.now_() returns timestamptz language plpgsql set search_path = pg_catalog, pg_temp as $$
        declare t timestamptz := clock_timestamp();
        begin
          if current_setting('test.halts', true) = 'yes' then perform pg_advisory_xact_lock(4711); end if;
          return t;
        end $$
        """
    )
    run = begin(conn, key="k")
    cancel(conn, "k", force=True)
    with connect(dsn) as gate, Actor(dsn) as waker:
        gate.execute("select pg_advisory_lock(4711)")
        waker.conn.execute("set test.halts = 'yes'")
        woken = waker.do(wake, run.chain_id)
        waker.until_waiting(conn)
        commit(conn, flush(run, unit("s", 1, "pay")))
        conn.execute("select pgflow.release_runs(%s, %s)", ([run.run_id], [run.token]))
        gate.execute("select pg_advisory_unlock(4711)")
        assert woken.result(HANG_SECONDS).ended == [run.chain_id]
    assert one(
        conn, "select finished_at >= (select max(recorded_at) from pgflow.unit) from pgflow.outcome"
    )
    assert sqlkit.unsound(conn) == set()


def test_a_run_locked_elsewhere_is_not_waited_for_and_keeps_its_nudge(dsn, conn):
    run, other = park(conn, key="k"), park(conn, key="other")
    send(conn, "k", "paid")
    send(conn, "other", "paid")
    with connect(dsn) as locker, connect(dsn) as waker, locker.transaction():
        locker.execute("select from pgflow.parked where run_id = %s for update", (run.run_id,))
        woken = wake(waker)
        assert (woken.busy, woken.lanes) == (1, [other.lane_id])
        assert rows(waker, "select chain_id from pgflow.nudge") == [run.chain_id]
    assert poll(conn).lanes == [run.lane_id]
    assert count(conn, "nudge") == 0


def test_a_sweep_that_takes_as_many_nudges_as_it_may_says_that_there_may_be_more(db):
    for key in ("a", "b", "c"):
        park(db, key=key)
        send(db, key, "paid")
    polls = [poll(db, 2) for _ in range(2)]
    assert [(len(polled.lanes), polled.busy) for polled in polls] == [(2, 1), (1, 0)]


def test_a_nudge_that_came_after_the_look_is_kept(dsn, conn):
    run = park(conn, key="k")
    with connect(dsn) as waker, waker.transaction():
        wake(waker, run.chain_id)
        send(conn, "k", "paid")
    assert count(conn, "nudge") == 1
    assert poll(conn).lanes == [run.lane_id]


def test_two_wakes_at_once_make_a_run_ready_once(dsn, conn):
    run = park(conn, key="k")
    send(conn, "k", "paid")
    with connect(dsn) as second:
        with conn.transaction():
            assert wake(conn, run.chain_id).lanes == [run.lane_id]
            assert wake(second, run.chain_id) == ([], [], [], 1)
            assert wake(second) == ([], [], [], 0)
        assert wake(second, run.chain_id) == ([], [], [], 0)
    assert len(claim(conn, 5)) == 1


@pytest.mark.full
def test_many_wakes_polls_and_senders_at_once_lose_nothing(dsn, conn):
    runs = begin_many(conn, 60)
    for run in runs:
        commit(conn, wait_for(run, "paid"))

    def work(c: Conn, n: int) -> None:
        if n % 2:
            for run in runs:
                poll(c) if run.run_id % 5 == 0 else wake(c, run.chain_id)
        else:
            for run in runs if n else reversed(runs):
                send(c, run.key, "paid", str(n))
                wake(c, run.chain_id)

    sqlkit.race(dsn, 4, work)
    poll(conn)
    woken = claim(conn, 500)
    assert sorted(c.run_id for c in woken) == sorted(run.run_id for run in runs)
    for run in woken:
        assert len(commit(conn, flush(run, signals=[[1, "paid"]])).units_of(run)) == 1
        assert len(commit(conn, flush(run, signals=[[2, "paid"]])).units_of(run)) == 1
    assert count(conn, "signal") == count(conn, "nudge") == 0


def test_a_sweep_looks_at_a_bounded_number_of_nudges(db):
    for n in range(3):
        park(db, key=f"k{n}")
        send(db, f"k{n}", "paid")
    assert [len(one(db, "select lanes from pgflow.wake(null, 2)")) for _ in range(3)] == [2, 1, 0]


def test_waking_chains_that_do_not_exist_is_nothing(db):
    assert wake(db, 10**15, 10**15, -1) == ([], [], [], 0)
    assert wake(db) == ([], [], [], 0)


def test_a_timer_fires_once_and_never_early(db):
    set_clock(db, T0)
    run = begin(db)
    assert commit(db, sleep_for(run, 60)).place_of(run) == "parked"
    assert poll(db).next_due_seconds == 60
    for early in (0, 30, 59.999999):
        set_clock(db, T0 + seconds(early))
        assert poll(db).lanes == [], early
    set_clock(db, T0 + seconds(60))
    assert poll(db).lanes == [run.lane_id]
    assert poll(db).lanes == []
    again = claim_one(db)
    ask = {"timers": [[1, 1, "T"]], "park": True, "idle": True}
    assert [u[1:3] for u in commit(db, flush(again, **ask)).units_of(again)] == [[1, "T"]]
    assert kinds(db, run) == [("t", 1), ("T", 1)]
    assert poll(db).next_due_seconds is None


def test_a_timer_that_is_looked_at_before_its_time_has_not_fired(db):
    set_clock(db, T0)
    run = begin(db)
    commit(db, flush(run, unit("t", 1, None, None, delay_seconds=60)))
    ask = {"timers": [[1, 1, "T"]]}
    set_clock(db, T0 + seconds(59.999999))
    assert commit(db, flush(run, **ask)).units_of(run) == []
    set_clock(db, T0 + seconds(60))
    assert [u[1:3] for u in commit(db, flush(run, **ask)).units_of(run)] == [[1, "T"]]


def test_a_timer_that_is_late_is_not_lost(db):
    set_clock(db, T0)
    for n in range(3):
        commit(db, sleep_for(begin(db, priority=-n), 10 * (3 - n)))
    set_clock(db, T0 + seconds(86_400 * 365))
    assert [len(poll(db, 2).lanes) for _ in range(3)] == [2, 1, 0]
    assert len(claim(db, 9)) == 3


def test_a_clock_that_goes_back_after_the_wake_neither_fires_the_timer_nor_loses_it(db):
    set_clock(db, T0)
    commit(db, sleep_for(begin(db), 60))
    set_clock(db, T0 + seconds(7200))
    poll(db)
    run = claim_one(db)
    ask = {"timers": [[1, 1, "T"]], "park": True, "idle": True}
    set_clock(db, T0 - seconds(3 * 3600))
    assert commit(db, flush(run, **ask)).place_of(run) == "parked"
    assert poll(db).lanes == []
    set_clock(db, T0 + seconds(59))
    assert poll(db).lanes == []
    set_clock(db, T0 + seconds(61))
    poll(db)
    run = claim_one(db)
    assert [u[1:3] for u in commit(db, flush(run, **ask)).units_of(run)] == [[1, "T"]]


def test_a_retry_of_a_step_wakes_its_run_and_is_never_an_answer(db):
    set_clock(db, T0)
    run = begin(db)
    commit(
        db,
        flush(
            run,
            unit("a", 1, "charge", '{"message": "no"}', delay_seconds=30),
            retries=[[1, 1]],
            park=True,
            idle=True,
        ),
    )
    set_clock(db, T0 + seconds(30))
    assert poll(db).lanes == [run.lane_id]
    again = claim_one(db)
    assert commit(db, flush(again, timers=[], signals=[], idle=True)).units_of(again) == []
    assert kinds(db, run) == [("a", 1)]


def test_the_next_timer_is_the_earliest_of_timers_and_deadlines(db):
    set_clock(db, T0)
    assert poll(db).next_due_seconds is None
    commit(db, sleep_for(begin(db), 60))
    assert poll(db).next_due_seconds == 60
    start(db, timeout_seconds=7.25)
    assert poll(db).next_due_seconds == 7.25


def test_a_due_timer_of_a_run_locked_elsewhere_is_left_for_the_next_poll(dsn, conn):
    set_clock(conn, T0)
    run, other = begin(conn), begin(conn)
    commit(conn, sleep_for(run, 1))
    commit(conn, sleep_for(other, 2))
    set_clock(conn, T0 + seconds(5))
    with connect(dsn) as locker, connect(dsn) as poller, locker.transaction():
        locker.execute("select from pgflow.parked where run_id = %s for update", (run.run_id,))
        polled = poll(poller)
        assert polled.lanes == [other.lane_id]
        assert polled.next_due_seconds == -4
    assert poll(conn).lanes == [run.lane_id]


@pytest.mark.full
def test_two_polls_at_once_wake_each_run_once(dsn, conn):
    set_clock(conn, T0)
    for run in begin_many(conn, 100):
        commit(conn, sleep_for(run, 1))
    set_clock(conn, T0 + seconds(2))
    woken = sqlkit.race(dsn, 4, lambda c, _: sum(len(poll(c, 7).lanes) for _ in range(20)))
    assert sum(woken) + len(poll(conn).lanes) == 100
    assert len(claim(conn, 200)) == 100


def expire(conn: Conn) -> sqlkit.Polled:
    set_clock(conn, T0 + seconds(60))
    return poll(conn)


def test_a_deadline_is_never_early_and_cancels_once(db):
    set_clock(db, T0)
    run = begin(db, key="k", timeout_seconds=60)
    set_clock(db, T0 + seconds(59.999999))
    poll(db)
    assert mailbox(db, run.chain_id) == []
    expire(db)
    poll(db)
    assert mailbox(db, run.chain_id) == [("x", "cancel")]
    assert one(db, "select sent_by, payload->>'why' from pgflow.signal") == ("pgflow", "deadline")
    assert count(db, "deadline") == 0


def test_a_run_that_never_began_ends_at_its_deadline(db):
    set_clock(db, T0)
    queued = start(db, key="queued", timeout_seconds=60)
    delayed = start(db, key="delayed", run_at=T0 + seconds(50), timeout_seconds=10)
    assert sorted(expire(db).ended) == [queued.run_id, delayed.run_id]
    for run_id in (queued.run_id, delayed.run_id):
        found = one(db, "select status, reason from pgflow.outcome where run_id = %s", run_id)
        assert found == ("cancelled", "deadline")
        assert one(
            db, "select reason_code, reason_detail from pgflow.runs where run_id = %s", run_id
        ) == ("deadline", {"by": "pgflow"})
        assert sqlkit.operators(db, run_id) == [("cancel", "pgflow", "deadline")]
    assert count(db, "timer") == count(db, "parked") == count(db, "ready") == 0


def test_a_run_that_waits_is_woken_at_its_deadline_to_clean_up(db):
    set_clock(db, T0)
    run = begin(db, key="k", timeout_seconds=60)
    commit(db, sleep_for(run, 3600))
    assert expire(db).lanes == [run.lane_id]
    again = claim_one(db)
    assert again.has_mail
    answer = commit(db, flush(again, timers=[[1, 1, "T"]], park=True, idle=True))
    found = [(kind, json.loads(payload)) for _, _, kind, _, payload in answer.units_of(again)]
    assert found == [("x", {"why": "deadline", "by": "pgflow", "reason": "deadline"})]


def test_the_holder_of_a_run_is_told_of_its_deadline(db):
    set_clock(db, T0)
    run = begin(db, timeout_seconds=60)
    assert expire(db).mail == [run.run_id]
    assert one(db, "select mail from pgflow.beat(%s)", run.worker) == [run.run_id]


def test_a_deadline_that_passes_while_the_run_ends_changes_nothing(dsn, conn):
    set_clock(conn, T0)
    run = begin(conn, timeout_seconds=60)
    with connect(dsn) as worker, connect(dsn) as poller:
        set_clock(conn, T0 + seconds(60))
        with worker.transaction():
            finish(worker, run)
            poll(poller)
        poll(poller)
    assert status(conn, run.run_id) == "completed"
    assert count(conn, "signal") == count(conn, "undelivered") == count(conn, "deadline") == 0


START_OF_A_CHILD = """
  select tenant, metadata, deadline_at, root_run_id, parent_run_id, parent_call, close_policy, run_at, pgflow.status_(run_id)
  from pgflow.run where parent_call = %s
"""


def begin_two_children(db: Conn) -> tuple[Any, Any]:
    """A run with a child that says nothing of itself and one that says all; it and the answer."""
    set_clock(db, T0)
    top = begin(db, "top", key="top", tenant="t", metadata='{"trace": [1]}', timeout_seconds=100)
    answer = commit(
        db,
        flush(
            top,
            children=[
                child(1, "plain"),
                child(
                    2,
                    "own",
                    key="mine",
                    queue="q2",
                    timeout_seconds=5,
                    metadata={"other": 1},
                    run_at=T0 + seconds(10),
                    close_policy="a",
                ),
            ],
        ),
    )
    assert [u[1:4] for u in answer.units_of(top)] == [[1, "k", "plain"], [2, "k", "own"]]
    assert len(answer.lanes) == 2
    return top, answer


def test_a_child_inherits_what_its_start_does_not_say(db):
    top, _ = begin_two_children(db)
    inherited = ("t", {"trace": [1]}, T0 + seconds(100), top.run_id, top.run_id)
    assert one(db, START_OF_A_CHILD, 1) == (*inherited, 1, "c", None, "queued")


def test_a_child_has_what_its_start_says(db):
    top, answer = begin_two_children(db)
    own = ("t", {"other": 1}, T0 + seconds(15), top.run_id, top.run_id)
    assert one(db, START_OF_A_CHILD, 2) == (*own, 2, "a", T0 + seconds(10), "waiting")
    assert json.loads(answer.units_of(top)[1][4]) == {
        "run_id": one(db, "select run_id from pgflow.run where parent_call = 2"),
        "key": "mine",
    }


def test_a_grandchild_has_the_root_of_its_family(db):
    top, _ = begin_two_children(db)
    plain = claim_one(db)
    commit(db, flush(plain, children=[child(1, "grandchild")]))
    found = one(db, "select root_run_id from pgflow.run where parent_run_id = %s", plain.run_id)
    assert found == top.run_id


@pytest.mark.parametrize(("ending", "expected"), [
    (("completed", None, '{"b":1,"a":-0.0}', None),
        {"status": "completed", "reason": None, "output": {"b": 1, "a": -0.0}, "error": None}),
    (("failed", None, None, '{"message":"no"}'),
        {"status": "failed", "reason": None, "output": None, "error": {"message": "no"}}),
    (("cancelled", "asked", None, None),
        {"status": "cancelled", "reason": "asked", "output": None, "error": None}),
])  # fmt: skip
def test_a_parent_hears_how_its_child_ended(db, ending, expected):
    parent = begin(db, "parent")
    commit(db, flush(parent, children=[child(7, "kid")]))
    found = commit(db, flush(parent, child_calls=[7], park=True, idle=True)).place_of(parent)
    assert found == "parked"
    kid = claim_one(db)
    assert kid.extra is not None
    assert kid.extra["parent_run_id"] == parent.run_id
    answer = commit(db, flush(kid, outcome=ending, has_kin=True))
    assert answer.wake == [parent.chain_id]
    wake(db, *answer.wake)
    again = claim_one(db)
    (heard,) = commit(db, flush(again, child_calls=[7], park=True, idle=True)).units_of(again)
    assert heard[1:4] == [7, "K", "kid"]
    assert json.loads(heard[4]) == {**expected, "run_id": kid.run_id}
    assert mailbox(db, parent.chain_id) == []


def test_only_the_child_that_is_waited_for_is_heard(db):
    parent = begin(db, "parent")
    commit(db, flush(parent, children=[child(1), child(2)]))
    first, second = claim(db, 2)
    finish(db, second, output="2")
    answer = commit(db, flush(parent, child_calls=[1], park=True, idle=True))
    assert answer.units_of(parent) == []
    # The result that nobody waits for stays in the mailbox and wakes nobody.
    wake(db, *answer.wake)
    assert status(db, parent.run_id) == "waiting"
    wake(db, *finish(db, first, output="1").wake)
    again = claim_one(db)
    assert [u[1] for u in commit(db, flush(again, child_calls=[1, 2])).units_of(again)] == [2, 1]


def test_children_are_waited_for_by_ranges_of_their_calls(db):
    parent = begin(db, "parent")
    commit(db, flush(parent, children=[child(call) for call in (1, 2, 3, 5)]))
    kids = claim(db, 4)
    finish(db, kids[2])
    answer = commit(db, flush(parent, child_calls="{[1,2],[5,5]}", park=True, idle=True))
    assert (answer.place_of(parent), answer.units_of(parent)) == ("parked", [])
    assert one(db, "select call, calls from pgflow.wait") == (1, [1, 2, 5])
    wake(db, *answer.wake)
    assert status(db, parent.run_id) == "waiting"
    wake(db, *finish(db, kids[3]).wake)
    again = claim_one(db)
    found = [u[1] for u in commit(db, flush(again, child_calls="{[1,2],[5,5]}")).units_of(again)]
    assert found == [5]
    assert [u[1] for u in commit(db, flush(again, child_calls="{[1,3]}")).units_of(again)] == [3]


def test_children_of_many_parents_start_in_the_order_of_their_calls_whatever_their_keys(db):
    parents = [begin(db, "parent") for _ in range(3)]
    start(db, "child", key="elsewhere")
    children = [
        child(4), child(5, key="shared"), child(6, key="elsewhere"), child(7),
        child(8, key="shared"),
    ]  # fmt: skip
    answer = commit(db, *(flush(parent, unit(call=1), children=children) for parent in parents))
    for place, parent in enumerate(parents):
        found = answer.units_of(parent)
        assert [u[0] for u in found] == [2, 3, 4, 5, 6]
        assert [u[1] for u in found] == [4, 5, 6, 7, 8]
        # A key is the first one's: of the parent that stands first in the batch, and of its first
        # call.
        assert "".join(u[2] for u in found) == ("kkKkK" if place == 0 else "kKKkK")
        assert kinds(db, parent)[1:] == [(u[2], u[1]) for u in found]
        first, second = (json.loads(u[4])["run_id"] for u in found if u[1] in (4, 7))
        assert first < second
    assert count(db, "run") == 3 + 1 + 3 * 2 + 1
    assert count(db, "run_key") == count(db, "run")


def test_what_a_batch_is_answered_is_what_its_runs_would_be_answered_alone(db):
    set_clock(db, T0)
    runs = [begin(db, key=f"k{n}") for n in range(6)]
    asleep, due, told, paused, forced, asking = runs
    commit(
        db,
        *(
            flush(run, unit("t", 1, None, None, delay_seconds=1 if run is due else 100))
            for run in runs
        ),
    )
    set_clock(db, T0 + seconds(5))
    send(db, "k2", "go", '{"b": 1}')
    db.execute("select pgflow.pause_run('k3')")
    cancel(db, "k4", force=True)
    question = {"timers": [[1, 1, "T"]], "signals": [[2, "go"]], "idle": True}
    answer = commit(db, *(flush(run, **question, park=run is not asking) for run in runs))
    assert {run.key: answer.place_of(run) for run in runs} == {
        "k0": "parked", "k1": "leased", "k2": "leased", "k3": "held", "k4": "ended", "k5": "leased",
    }  # fmt: skip
    found = [[u[1:3] for u in answer.units_of(run)] for run in runs]
    assert found == [[], [[1, "T"]], [[2, "S"]], [], [], []]
    assert sorted(answer.wake) == sorted([asleep.chain_id])
    assert count(db, "parked") == count(db, "held") == 1
    assert (told.run_id, paused.run_id, forced.run_id) == (
        runs[2].run_id,
        runs[3].run_id,
        runs[4].run_id,
    )


@pytest.mark.parametrize("how", ["completed", "failed", "continued", "force"])
def test_the_end_of_a_parent_cancels_the_children_that_are_not_abandoned(db, how):
    parent = begin(db, "parent", key="p")
    commit(
        db,
        flush(
            parent,
            children=[
                child(1, key="with"),
                child(2, key="without", close_policy="a"),
                child(3, key="done"),
            ],
        ),
    )
    _, _, done = claim(db, 3)
    finish(db, done)
    if how == "continued":
        answer = commit(db, flush(parent, **{"continue": "{}"}))
    elif how == "force":
        cancel(db, "p", force=True)
        answer = commit(db, flush(parent, unit()))
        answer = commit(db, flush(parent, park=True)) if not answer.wake else answer
    else:
        answer = finish(db, parent, how)
    chains = dict(rows(db, "select key, chain_id from pgflow.run where parent_call is not null"))
    assert answer.wake == [chains["with"]]
    found = {key: mailbox(db, chain) for key, chain in chains.items()}
    assert found == {"with": [("x", "cancel")], "without": [], "done": []}
    found = one(db, "select payload->>'why', sent_by from pgflow.signal where kind = 'x'")
    assert found == ("the parent run ended", "pgflow")


def test_a_child_whose_call_was_given_up_is_cancelled(db):
    parent = begin(db, "parent")
    commit(
        db,
        flush(
            parent,
            children=[child(1, key="unwanted"), child(2, key="wanted"), child(3, key="done")],
        ),
    )
    unwanted, wanted, done = claim(db, 3)
    finish(db, done)
    chains = [unwanted.chain_id, done.chain_id]
    answer = commit(
        db,
        flush(
            parent,
            unit("x", 1, None, None),
            unit("x", 3, None, None),
            unwanted=chains,
            child_calls=[2],
            park=True,
            idle=True,
        ),
    )
    assert answer.place_of(parent) == "parked"
    assert sorted(answer.wake) == sorted([*chains, parent.chain_id])
    wake(db, *answer.wake)
    assert mailbox(db, unwanted.chain_id) == [("x", "cancel")]
    assert mailbox(db, wanted.chain_id) == mailbox(db, done.chain_id) == []
    assert undelivered(db, done.chain_id) == [("x", "cancel")]


def test_a_child_that_outlives_its_parent_tells_nobody(db):
    parent = begin(db, "parent")
    commit(db, flush(parent, children=[child(1, close_policy="a")]))
    kid = claim_one(db)
    finish(db, parent)
    assert finish(db, kid).wake == []
    assert count(db, "signal") == count(db, "undelivered") == 0


def test_a_parent_and_its_child_may_end_in_one_batch(db):
    parent = begin(db, "parent")
    commit(db, flush(parent, children=[child(1)]))
    kid = claim_one(db)
    done = ("completed", None, "1", None)
    assert (
        commit(
            db, flush(parent, outcome=done, has_kin=True), flush(kid, outcome=done, has_kin=True)
        ).raw
        is None
    )
    assert count(db, "signal") == 0


def test_a_child_whose_key_is_taken_is_refused_to_its_parent_only(db):
    start(db, "other", key="taken")
    parent = begin(db, "parent")
    answer = commit(
        db,
        flush(parent, children=[child(1, key="free"), child(2, key="taken"), child(3, key="free")]),
    )
    found = [u[1:4] for u in answer.units_of(parent)]
    assert found == [[1, "k", "child"], [2, "K", "child"], [3, "K", "child"]]
    refusal = json.loads(answer.units_of(parent)[1][4])
    assert refusal["status"] == "refused"
    assert refusal["error"]["type"] == "pgflow.errors.KeyConflict"
    assert "'taken' already names a run of other" in refusal["error"]["message"]
    assert one(db, "select count(*) from pgflow.run where parent_run_id is not null") == 1


def test_a_delayed_child_starts_at_its_time(db):
    set_clock(db, T0)
    parent = begin(db, "parent")
    commit(db, flush(parent, children=[child(1, run_at=T0 + seconds(30))]))
    assert poll(db).lanes == []
    set_clock(db, T0 + seconds(30))
    assert len(poll(db).lanes) == 1


def test_a_child_waits_for_whoever_is_about_to_take_its_key_and_is_then_refused(dsn, conn):
    parent = begin(conn, "parent")
    start(conn, "other")  # the lane is there
    with Actor(dsn) as committer:
        with connect(dsn) as app, app.transaction():
            start(app, "other", key="k")
            answer = committer.do(commit, flush(parent, children=[child(1, key="k")]))
            committer.until_waiting(conn)
        assert [u[2] for u in answer.result().units_of(parent)] == ["K"]


def test_two_batches_that_start_children_of_the_same_keys_do_not_deadlock(dsn, conn):
    one_of, other = begin(conn, "parent"), begin(conn, "parent")
    start(conn, "child")  # the lane is there
    with Actor(dsn) as first, Actor(dsn) as second:
        for actor in (first, second):
            actor.conn.execute("set deadlock_timeout = '20ms'")
        with connect(dsn) as app, app.transaction():
            start(app, "child", key="between")
            a = first.do(
                commit,
                flush(
                    one_of, children=[child(1, key="a"), child(2, key="between"), child(3, key="b")]
                ),
            )
            first.until_waiting(conn)
            b = second.do(commit, flush(other, children=[child(1, key="b"), child(2, key="a")]))
            second.until_waiting(conn)
        assert len(a.result().units_of(one_of)) == 3
        assert len(b.result().units_of(other)) == 2


def test_the_next_generation_goes_on_under_the_same_key_with_the_same_mailbox(db):
    set_clock(db, T0)
    first = begin(
        db,
        key="k",
        priority=3,
        labels='{"a": "b"}',
        metadata='{"m": 1}',
        tenant="",
        timeout_seconds=60,
    )
    send(db, "k", "paid", "1")
    answer = commit(db, flush(first, unit(), **{"continue": '{"n":-0.0}'}))
    assert answer.place_of(first) == "ended"
    assert answer.lanes == [first.lane_id]
    assert status(db, first.run_id) == "continued"
    send(db, "k", "paid", "2")
    second = claim_one(db)
    assert (second.chain_id, second.generation, second.key, second.root, second.input) == (
        first.chain_id, 2, "k", first.root, '{"n":-0.0}',
    )  # fmt: skip
    assert second.run_id > first.run_id
    assert second.extra == first.extra
    assert one(db, "select priority, attempt from pgflow.lease") == (3, 1)
    assert rows(db, "select run_id from pgflow.deadline") == [second.run_id]
    assert [
        commit(db, flush(second, signals=[[n, "paid"]])).units_of(second)[0][4] for n in (1, 2)
    ] == ["1", "2"]
    assert one(db, "select pgflow.run_status('k')") == "running"
    assert not start(db, key="k").is_new
    commit(db, flush(second, **{"continue": "{}"}))
    third = claim_one(db)
    assert third.generation == 3
    finish(db, third, output='"end"')
    assert one(db, "select status, output from pgflow.result('k')") == ("completed", "end")
    send(db, "k", "late")
    poll(db)
    assert undelivered(db, first.chain_id) == [("s", "late")]


def test_a_request_to_a_run_that_continues_reaches_the_next_generation(db):
    first = begin(db, key="k")
    cancel(db, "k")
    commit(db, flush(first, **{"continue": "{}"}))
    poll(db)
    # Nothing has been recorded in the new generation: nobody needs to run for it to end.
    assert one(db, "select pgflow.run_status('k')") == "cancelled"


def test_a_generation_of_a_child_tells_the_parent_only_at_the_end(db):
    parent = begin(db, "parent")
    commit(db, flush(parent, children=[child(1)]))
    answer = commit(db, flush(claim_one(db), **{"continue": "{}"}))
    assert answer.wake == []
    assert mailbox(db, parent.chain_id) == []
    second = claim_one(db)
    assert finish(db, second, output="2").wake == [parent.chain_id]
    (heard,) = commit(db, flush(parent, child_calls=[1])).units_of(parent)
    assert json.loads(heard[4])["run_id"] == second.run_id


def test_a_forced_cancel_of_a_parent_reaches_the_newest_generation_of_its_child(db):
    parent = begin(db, "parent", key="p")
    commit(db, flush(parent, children=[child(1, key="c")]))
    first = claim_one(db)
    commit(db, flush(first, **{"continue": "{}"}))
    finish(db, parent)
    poll(db)
    assert one(db, "select pgflow.run_status('c')") == "cancelled"


def test_a_wake_does_not_take_the_mail_of_a_run_that_continues_meanwhile(dsn, conn):
    run = begin(conn, key="k")
    send(conn, "k", "paid", '"money"')
    with Actor(dsn) as waker:
        with connect(dsn) as locker, locker.transaction():
            # The wake has read which generation is the newest, and stops where it reads timers.
            locker.execute("lock table pgflow.timer in access exclusive mode")
            woken = waker.do(wake, run.chain_id)
            waker.until_waiting(conn)
            commit(conn, flush(run, **{"continue": "{}"}))
        woken.result()
    assert mailbox(conn, run.chain_id) == [("s", "paid")]
    assert undelivered(conn, run.chain_id) == []
