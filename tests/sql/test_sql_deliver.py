"""A signal on the short way: its sender makes the run ready, its claim brings it, and the holder
takes it with what it records next. So does the holder of a parent with the result of a child.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlkit
from psycopg import IsolationLevel, errors
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
    start,
    status,
    still_waits,
    undelivered,
    unsound,
    wait_for,
    wake,
)

if TYPE_CHECKING:
    import psycopg

    Conn = psycopg.Connection[Any]

EXACT = '{"b": 1.0, "a": [1e22, -0.0], "b": "\\u00e9"}'


def park(conn: Conn, *names: str, timeout_seconds: float | None = None, **options: Any) -> Claim:
    """A run that waits for signals, the first as call 1."""
    run = begin(conn, **options)
    first, *others = names or ("paid",)
    asked = wait_for(run, first, timeout_seconds=timeout_seconds)
    asked.question["signals"] += [[call, name] for call, name in enumerate(others, 2)]
    answer = commit(conn, asked)
    assert answer.place_of(run) == "parked"
    wake(conn, *answer.wake)
    return run


def deliver(
    conn: Conn, key: str, name: str = "paid", payload: str = "null"
) -> tuple[int, int | None]:
    return one(
        conn, "select chain_id, lane_id from pgflow.deliver_signal(%s, %s, %s)", key, name, payload
    )


def test_the_run_that_waits_for_it_is_ready_and_the_signal_in_its_mailbox(db):
    set_clock(db, T0)
    run = park(db, timeout_seconds=60)
    set_clock(db, T0 + seconds(5))
    assert deliver(db, run.key, "paid", EXACT) == (run.chain_id, run.lane_id)
    assert status(db, run.run_id) == "queued"
    found = one(db, "select sent_at, payload::text, sent_by = session_user from pgflow.signal")
    assert found == (T0 + seconds(5), EXACT, True)
    found = one(db, "select last_seq, attempt, has_begun, ready_at from pgflow.ready")
    assert found == (1, 0, True, T0 + seconds(5))
    assert [count(db, table) for table in ("nudge", "wait", "timer", "parked")] == [0] * 4
    assert not unsound(db)
    again = claim_one(db)
    found = commit(db, still_waits(again, "paid", 1, 1)).units_of(again)
    assert found == [[2, 1, "S", "paid", EXACT]]


def test_others_see_the_signal_and_the_place_at_once(dsn, conn):
    run = park(conn)
    with connect(dsn) as other, conn.transaction():
        deliver(conn, run.key)
        assert (status(other, run.run_id), count(other, "signal"), count(other, "ready")) == (
            "waiting",
            0,
            0,
        )
    assert one(conn, "select r.xmin = s.xmin from pgflow.ready r, pgflow.signal s")


def test_the_newest_generation_has_it(db):
    first = begin(db, key="k")
    commit(db, flush(first, **{"continue": "{}"}))
    second = claim_one(db)
    commit(db, wait_for(second, "paid"))
    assert deliver(db, "k") == (first.chain_id, second.lane_id)
    assert status(db, second.run_id) == "queued"


def test_workers_are_told_unless_the_caller_will(conn, dsn):
    told, untold, kept = park(conn), park(conn), begin(conn)
    with connect(dsn) as listener:
        listener.execute("listen pgflow_work")
        deliver(conn, told.key)
        conn.execute("select pgflow.deliver_signal(%s, 'paid', tell => false)", (untold.key,))
        deliver(conn, kept.key)
        listener.execute("select 1")
        assert [n.payload for n in listener.notifies(timeout=0)] == [f"r{told.lane_id}"]
    assert status(conn, untold.run_id) == "queued"


def _planned(conn: Conn) -> Claim:
    started = start(conn, key="later", run_at=T0 + seconds(3600))
    return Claim(
        started.run_id,
        0,
        started.run_id,
        started.lane_id,
        1,
        0,
        0,
        0,
        "later",
        "",
        "{}",
        None,
        False,
        0,
        0,
        None,
    )


def _stuck(conn: Conn) -> Claim:
    run = begin(conn)
    commit(conn, sqlkit.hold(run))
    return run


@pytest.mark.parametrize("make", [
    pytest.param(begin, id="running"), pytest.param(lambda conn: park(conn, "other"), id="waits for another"),
    pytest.param(_planned, id="has not begun"), pytest.param(_stuck, id="stuck"),
])  # fmt: skip
def test_else_it_is_sent_as_ever(db, make):
    set_clock(db, T0)
    run = make(db)
    before, units = status(db, run.run_id), journal(db, run.run_id)
    assert deliver(db, run.key, "paid", "1") == (run.chain_id, None)
    assert mailbox(db, run.chain_id)[-1] == ("s", "paid")
    assert count(db, "nudge") >= 1
    assert (status(db, run.run_id), journal(db, run.run_id)) == (before, units)
    assert not unsound(db)


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_what_was_asked_before_is_done_all_the_same(db, verb):
    run = park(db)
    db.execute(f"select pgflow.{verb}_run(%s)", (run.key,))
    assert deliver(db, run.key)[1] == run.lane_id
    poll(db)
    assert status(db, run.run_id) == {"cancel": "queued", "pause": "paused"}[verb]
    assert not unsound(db)


def test_the_mail_of_one_that_has_ended_is_put_aside(db):
    run = begin(db, key="k")
    finish(db, run)
    assert deliver(db, "k") == (run.chain_id, None)
    wake(db, run.chain_id)
    assert undelivered(db, run.chain_id) == [("s", "paid")]


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_it_is_only_sent_where_one_snapshot_serves_the_transaction(dsn, conn, level):
    run = park(conn)
    with connect(dsn) as sender:
        sender.isolation_level = level
        with sender.transaction():
            assert deliver(sender, run.key) == (run.chain_id, None)
    wake(conn, run.chain_id)
    assert status(conn, run.run_id) == "queued"


def test_it_waits_for_nobody(dsn, conn):
    run = park(conn)
    with connect(dsn) as second, conn.transaction():
        assert deliver(conn, run.key, "paid", "1")[1] == run.lane_id
        assert deliver(second, run.key, "paid", "2") == (run.chain_id, None)
    poll(conn)
    again = claim_one(conn)
    for call in (1, 2):
        commit(conn, still_waits(again, "paid", call))
    assert [payload for *_, payload in journal(conn, run.run_id)] == ["1", "2"]


def test_what_a_wake_moved_meanwhile_is_left_to_it(dsn, conn):
    run = park(conn, timeout_seconds=60)
    conn.execute("update pgflow.timer set due_at = now() - interval '1 second'")
    with Actor(dsn) as sender:
        with conn.transaction():
            poll(conn)
            assert sender.do(deliver, run.key).result(HANG_SECONDS) == (run.chain_id, None)
    assert status(conn, run.run_id) == "queued"
    assert mailbox(conn, run.chain_id) == [("s", "paid")]


def test_one_that_is_rolled_back_was_never_sent(conn):
    run = park(conn)
    with conn.transaction(force_rollback=True):
        deliver(conn, run.key)
    assert status(conn, run.run_id) == "waiting"
    assert [count(conn, table) for table in ("wait", "signal", "nudge")] == [1, 0, 0]


@pytest.mark.parametrize(("key", "name", "payload", "state"), [
    ("nobody", "paid", "null", "PF001"), ("k", "", "null", "PF003"), ("k", "x" * 256, "null", "PF003"),
    ("k", "paid", "[" * 300 + "]" * 300, "PF003"), ("k", "paid", '"' + "x" * 1_100_000 + '"', "PF003"),
])  # fmt: skip
def test_what_no_run_can_take_is_refused(db, key, name, payload, state):
    run = park(db, key="k")
    with pytest.raises(errors.Error) as error, db.transaction():
        deliver(db, key, name, payload)
    assert error.value.sqlstate == state
    assert status(db, run.run_id) == "waiting"


def test_no_payload_is_null(db):
    run = park(db)
    db.execute("select pgflow.deliver_signal(%s, 'paid', null)", (run.key,))
    assert one(db, "select payload::text from pgflow.signal") == "null"


def offers(conn: Conn, run: Claim) -> list[Any] | None:
    """Return the offer to whoever claims the run."""
    claimed = claim_one(conn)
    assert claimed.run_id == run.run_id
    return (claimed.extra or {}).get("offer")


def test_a_claim_brings_the_signal_that_is_all_there_is_in_the_mailbox(db):
    set_clock(db, T0)
    run = park(db)
    deliver(db, run.key, "paid", EXACT)
    number = one(db, "select signal_id from pgflow.signal")
    claimed = claim_one(db)
    assert claimed.extra == {"offer": [number, "paid", EXACT, sqlkit.micros(T0)]}
    assert not claimed.has_mail


def test_beside_all_else_that_a_claim_says(db):
    start(db, key="k", labels='{"a": "b"}')
    send(db, "k", "paid", "1")
    extra = claim_one(db).extra
    assert extra is not None
    assert (extra["labels"], extra["offer"][1:3]) == ({"a": "b"}, ["paid", "1"])


@pytest.mark.parametrize("others", [["paid"], ["other"], ["cancel"], ["pause"], []])
def test_nothing_is_offered_where_there_is_more_or_nothing(db, others):
    run = begin(db)
    for n, name in enumerate(["paid", *others] if others else []):
        db.execute(
            f"select pgflow.{name}_run(%s)"
            if name in ("cancel", "pause")
            else f"select pgflow.send_signal(%s, '{name}', '{n}')",
            (run.key,),
        )
    one(db, "select pgflow.release_runs(%s, %s)", [run.run_id], [run.token])
    assert offers(db, run) is None


def taking(run: Claim, number: int, *more: sqlkit.Unit, name: str = "paid", **options: Any) -> str:
    """The batch of a holder that takes a signal."""
    batch = json.loads(
        sqlkit.document(flush(run, sqlkit.unit("S", 1, name, "1"), *more, **options))
    )
    return json.dumps({**batch, "taken": [[run.run_id, run.chain_id, name, number]]})


def test_what_a_batch_takes_leaves_the_mailbox_with_its_unit(db):
    run = begin(db)
    send(db, run.key, "paid", "1")
    send(db, run.key, "paid", "2")
    first = one(db, "select min(signal_id) from pgflow.signal")
    assert one(db, "select pgflow.commit_units(%s)", taking(run, first)) is None
    assert journal(db, run.run_id) == [(1, 1, "S", "paid", "1")]
    assert rows(db, "select payload::text from pgflow.signal") == ["2"]
    found = one(db, "select pgflow.commit_units(%s, true)", taking(run, first))
    assert found == {"bad": [[run.run_id, "already"]]}
    assert count(db, "signal") == 1


def test_a_signal_that_is_gone_cannot_be_taken(db):
    run, other = begin(db), begin(db)
    send(db, run.key, "paid", "1")
    number = one(db, "select signal_id from pgflow.signal")
    for batch in (
        taking(run, number + 1),
        taking(run, number, name="other"),
        taking(other, number),
    ):
        with (
            pytest.raises(errors.Error, match="no longer in their mailboxes") as error,
            db.transaction(),
        ):
            one(db, "select pgflow.commit_units(%s)", batch)
        assert error.value.sqlstate == "PF006"
    assert (count(db, "signal"), count(db, "unit")) == (1, 0)


def test_who_has_lost_the_run_takes_nothing(db):
    run = begin(db)
    send(db, run.key, "paid", "1")
    number = one(db, "select signal_id from pgflow.signal")
    batch = taking(run, number)
    one(db, "select pgflow.release_runs(%s, %s)", [run.run_id], [run.token])
    assert one(db, "select pgflow.commit_units(%s)", batch) == {"bad": [[run.run_id, "lost"]]}
    assert (count(db, "signal"), count(db, "unit")) == (1, 0)


def test_of_a_mixed_batch_only_the_good_take_their_signals(db):
    good, lost = begin(db), begin(db)
    batches = []
    for run in (good, lost):
        send(db, run.key, "paid", "1")
        batches.append(json.loads(taking(run, one(db, "select max(signal_id) from pgflow.signal"))))
    one(db, "select pgflow.release_runs(%s, %s)", [lost.run_id], [lost.token])
    batch = {
        **batches[0],
        **{part: batches[0][part] + batches[1][part] for part in ("runs", "units", "taken")},
    }
    found = one(db, "select pgflow.commit_units(%s)", json.dumps(batch))["bad"]
    assert found == [[lost.run_id, "lost"]]
    assert rows(db, "select chain_id from pgflow.signal") == [lost.chain_id]
    assert journal(db, lost.run_id) == []


def family(conn: Conn, *, is_parked: bool = False) -> tuple[Claim, Claim]:
    """A parent and its child, held by one worker."""
    parent = begin(conn)
    commit(conn, flush(parent, children=[child()], idle=False))
    if is_parked:
        commit(conn, flush(parent, child_calls="{[1,2)}", park=True, idle=True))
        assert status(conn, parent.run_id) == "waiting"
    return parent, claim_one(conn, worker=parent.worker)


def result_of(conn: Conn, kid: Claim) -> list[Any]:
    """The message that its parent has of it, as it is offered."""
    number, payload = one(conn, "select signal_id, payload::text from pgflow.signal")
    assert json.loads(payload)["run_id"] == kid.run_id
    return [number, "1", payload, sqlkit.micros(T0), 1, "child"]


def test_the_end_of_a_child_tells_a_parent_that_the_same_worker_holds(db):
    set_clock(db, T0)
    parent, kid = family(db)
    answer = finish(db, kid, output=EXACT)
    assert answer.raw is not None
    assert answer.raw["told"] == [[parent.chain_id, result_of(db, kid)]]
    assert answer.wake == [parent.chain_id]


def told(answer: sqlkit.Answer) -> Any:
    assert answer.raw is not None
    return answer.raw["told"]


def test_another_worker_is_told_nothing(db):
    parent = begin(db)
    commit(db, flush(parent, children=[child()], idle=False))
    answer = finish(db, claim_one(db))
    assert (told(answer), answer.wake) == (None, [parent.chain_id])


def test_nor_is_a_parent_that_has_parked(db):
    _, kid = family(db, is_parked=True)
    assert told(finish(db, kid)) is None


def test_nothing_is_told_beside_other_mail(db):
    parent, kid = family(db)
    send(db, parent.key, "paid", "1")
    assert told(finish(db, kid)) is None


def test_of_two_children_that_end_together_the_database_has_the_order(db):
    parent = begin(db)
    commit(db, flush(parent, children=[child(1), child(2)], idle=False))
    kids = claim(db, 2, worker=parent.worker)
    done = [flush(kid, outcome=("completed", None, "1", None), has_kin=True) for kid in kids]
    assert told(commit(db, *done)) is None


def test_a_child_that_may_leave_effects_is_left_to_the_database(db):
    """It says with the result what its parent takes back if it fails."""
    _, kid = family(db)
    commit(db, flush(kid, children=[child(1, "grandchild")], idle=False))
    finish(db, claim_one(db, worker=kid.worker))
    commit(db, flush(kid, child_calls="{[1,2)}", idle=False))
    assert [row[2] for row in journal(db, kid.run_id)] == ["k", "K"]
    assert told(finish(db, kid)) is None


def test_one_that_failed_leaves_nothing(db):
    set_clock(db, T0)
    parent, kid = family(db)
    commit(db, flush(kid, children=[child(1, "grandchild")], idle=False))
    finish(db, claim_one(db, worker=kid.worker))
    commit(db, flush(kid, child_calls="{[1,2)}", idle=False))
    assert told(finish(db, kid, "failed")) == [[parent.chain_id, result_of(db, kid)]]


def test_a_claim_brings_the_result_of_a_child_to_a_parent_that_waited(db):
    set_clock(db, T0)
    parent, kid = family(db, is_parked=True)
    wake(db, *finish(db, kid, output=EXACT).wake)
    claimed = claim_one(db)
    assert (claimed.run_id, claimed.has_mail) == (parent.run_id, False)
    assert claimed.extra is not None
    assert claimed.extra["result"] == result_of(db, kid)
    assert "offer" not in claimed.extra  # which older workers take for a signal


def test_a_result_leaves_the_mailbox_with_its_unit(db):
    parent, kid = family(db)
    number, name, payload, *_ = told(finish(db, kid))[0][1]
    taken = flush(parent, sqlkit.unit("K", 1, "child", payload))
    batch = json.loads(sqlkit.document(taken))
    message = [parent.run_id, parent.chain_id, name, number]
    for wrong in ([*message], [*message, "s"], [*message[:3], number + 1, "c"]):
        with pytest.raises(errors.Error, match="no longer in their mailboxes"), db.transaction():
            one(db, "select pgflow.commit_units(%s)", json.dumps({**batch, "taken": [wrong]}))
    batch["taken"] = [[*message, "c"]]
    assert one(db, "select pgflow.commit_units(%s)", json.dumps(batch)) is None
    assert (count(db, "signal"), journal(db, parent.run_id)[-1][2]) == (0, "K")
