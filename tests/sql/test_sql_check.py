"""The engine's own audit: each invariant is broken by hand, and exactly that one is reported."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import sqlkit
from sqlkit import (
    T0,
    Unit,
    begin,
    child,
    claim_one,
    commit,
    count,
    finish,
    flush,
    hold,
    one,
    poll,
    send,
    set_clock,
    sleep_for,
    start,
    unit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    Conn = psycopg.Connection[Any]

SCHEDULE = """select pgflow.set_schedule('s', 'demo', '{"every": 60}')"""
SEAL = "insert into pgflow.seal (run_id, round, sealed_at, upto_seq, hash) values ({run}, {round}, %(t)s, 1, '\\x00')"
ROUND = "insert into pgflow.seal_round (round, sealed_at, day, root, runs) values ({round}, %(t)s, '2030-01-01', '\\x00', array[{runs}]::bigint[])"
BEAT = "insert into pgflow.effect_beat (run_id, call, look_at, beat_at, timeout_seconds, can_ask) values ({run}, 1, %(t)s, %(t)s, 60, false)"
FRAME = """insert into pgflow.flow_frame (run_id, flow_id, seq, pc, call, tries, strikes, state, is_marked, undo,
  run, loops, news, vars) values ({run}, 1, {seq}, 1, 0, 0, 0, 'on', {marked}, '{{}}', '{{}}', '{{}}', '{{}}', '{{"x": 1}}')"""
FLOW = "select pgflow.create_workflow('leased()', 'begin wait for x; end')"

NOBODY = 14_999_999
"""A number that no run has, though the journal has a partition for it."""


@pytest.fixture
def world(db: Conn) -> dict[str, int]:
    """A database with something in every table; the runs' numbers by name."""
    set_clock(db, T0)
    ids = {
        name: start(
            db, "idle", key=name, run_at=T0 + sqlkit.seconds(60) if name == "delayed" else None
        ).run_id
        for name in ("ready", "delayed")
    }

    leased = begin(db, "leased", key="leased", timeout_seconds=100)
    licence = '[[3,"s","charge",1,0]]'
    effect: Iterable[Unit] = (
        unit("i", 2, "pay"),
        unit("C", 2, "pay"),
        unit("i", 3, "pay", starts=licence),
    )
    commit(db, flush(leased, unit(), *effect, unit("v", 4, None, '{"at": 1}')))
    db.execute("select pgflow.beat_step(%s, %s, 3, 1, null)", (leased.run_id, leased.token))
    db.execute(
        "insert into pgflow.owed (run_id, call, opened_at, kind, name) values (%s, 3, "
        "pgflow.now_(), 'effect', 'pay')",
        (leased.run_id,),
    )
    db.execute("select pgflow.cancel_run('leased')")

    accepted = begin(db, "accepted", key="accepted")
    commit(
        db,
        flush(
            accepted,
            unit("i", 1, "render"),
            unit("A", 1, "render", '{"ref": "job-1", "heartbeat_timeout": 60, "can_ask": false}'),
        ),
    )
    db.execute(
        """insert into pgflow.owed (run_id, call, opened_at, kind, name, detail)
           values (%s, 1, pgflow.now_(), 'effect', 'render', '{"state": "accepted", "ref": "job-1"}')""",
        (accepted.run_id,),
    )
    db.execute(BEAT.format(run=accepted.run_id), {"t": T0})

    db.execute("""select pgflow.set_pool('p', '{"usd": 9}')""")
    drawing = begin(db, "drawing", key="drawing", pool="p")
    asked = {"call": 1, "name": "ask", "amounts": {"usd": "2"}}
    commit(db, flush(drawing, closes=(), admits=[asked]))
    spent = unit("M", 0, "ask", '{"call": 1, "amounts": {"usd": "1"}}')
    commit(db, flush(drawing, spent, closes=()))

    parked = begin(db, "parked", key="parked")
    commit(
        db,
        flush(
            parked,
            unit("t", 1, "paid", None, delay_seconds=3600),
            signals=[[1, "paid"]],
            timers=[[1, 1, "W"]],
            park=True,
            idle=True,
        ),
    )
    send(db, "parked", "something else")
    waiting = begin(db, "waiting")
    commit(db, flush(waiting, signals=[[1, "never"]], park=True, idle=True))
    sleeping = begin(db, "sleeping", key="sleeping")
    commit(db, sleep_for(sleeping, 60))
    stuck = begin(db, "stuck", key="stuck")
    commit(db, flush(stuck, unit()))
    commit(db, hold(stuck))

    asking = begin(db, "asking", key="asking")
    gate = {"request": "30", "hash": "h", "approvers": [], "quorum": 1, "on_timeout": "expire"}
    gate |= {"escalate": [], "needs_value": False, "shape": True}
    wanted = [
        {**gate, "call": 1, "name": "pay", "key": "k/pay/1", "timeout": 3600},
        {**gate, "call": 2, "name": "ship", "key": "k/ship/1"},
    ]
    gates = [[1, "pay"], [2, "ship"]]
    commit(db, flush(asking, new_gates=wanted, gates=gates, park=True, idle=True))

    parent = begin(db, "parent", key="parent")
    commit(
        db,
        flush(
            parent,
            children=[
                child(1, "heard"),
                child(2, "told"),
                child(3, "running"),
                child(4, "abandoned", close_policy="a"),
            ],
        ),
    )
    kids = {}
    for name in ("heard", "told", "running", "abandoned"):
        kids[name] = claim_one(
            db, lanes=[one(db, "select lane_id from pgflow.lane where workflow = %s", name)]
        )
    finish(db, kids["heard"])
    commit(db, flush(parent, child_calls=[1]))
    finish(db, kids["told"])

    first = begin(db, "chain", key="chain")
    commit(db, flush(first, unit(), **{"continue": "{}"}))
    done = begin(db, "done", key="done")
    commit(db, flush(done, unit()))
    send(db, "done", "never taken")
    finish(db, done)
    poll(db)

    runs = {
        "leased": leased,
        "accepted": accepted,
        "drawing": drawing,
        "asking": asking,
        "parked": parked,
        "waiting": waiting,
        "sleeping": sleeping,
        "stuck": stuck,
        "parent": parent,
        "first": first,
        "done": done,
        **kids,
    }
    ids.update({name: run.run_id for name, run in runs.items()})
    origin = begin(db, "origin", key="origin")
    commit(db, flush(origin, unit()))
    finish(db, origin)
    ids["heir"] = one(db, "select run_id from pgflow.fork_run('origin', 'heir')")
    ids["second"] = one(db, "select pgflow.newest_run_(%s)", first.run_id)
    return {**ids, "nobody": NOBODY, "lane": leased.lane_id}


@pytest.mark.usefixtures("world")
def test_a_sound_database_has_nothing_to_report(db):
    assert sqlkit.unsound(db) == set()
    for table in (
        "ready",
        "lease",
        "parked",
        "held",
        "wait",
        "timer",
        "signal",
        "undelivered",
        "deadline",
        "step_beat",
        "owed",
        "effect_beat",
        "reservation",
        "charge",
        "gate",
        "outcome",
    ):
        assert count(db, table) > 0, table


UNIT = "insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name) values ({run}, 1, %(t)s, %(t)s, {seq}, {call}, '{kind}', 's')"
READY = "insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority) values ({run}, %(t)s, %(lane)s, {seq}, 0, 0)"
LEASE = """
  insert into pgflow.lease (run_id, token, claimed_at, worker_id, lane_id, last_seq, attempt, priority, suspect)
  values ({run}, 1, %(t)s, 1, %(lane)s, 0, 1, 0, 0)
"""
MAIL = "insert into pgflow.signal (chain_id, sent_at, kind, name) values ({run}, %(t)s, '{kind}', '{name}')"
OUTCOME = (
    "insert into pgflow.outcome (run_id, finished_at, status) values ({run}, %(t)s, '{status}')"
)

CARRIED = "insert into pgflow.saga_effect (chain_id, generation, call, name, key, code, request) values ({chain}, 1, {call}, 's', '{key}', 'm:s', '{{}}')"

PROMISE = """
  insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
  select run_id, 1, %(t)s, %(t)s, {seq}, 9, 'O', 'refund', json_build_object('key', root || '/owe/refund/1')
  from pgflow.run where run_id = {run}
"""
SENT = """
  insert into pgflow.run_update (chain_id, sent_at, same_as, update_id, name, status, reply_run_id, reply_seq)
  values (%(leased)s, %(t)s, 1, 'u', 's', {status})
"""
SAID = """
  insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
  select %(leased)s, 1, %(t)s, %(t)s, 5 + n, 60 + n, kind, 's', '{{"id": "u"}}'
  from unnest('{kinds}'::text[]::"char"[]) with ordinality as k (kind, n)
"""
ANSWER = """
  insert into pgflow.gate_answer (gate, n, run_id, answered_at, closes, verdict, answered_by, sent_by)
  select {gate}, a.n, {run}, %(t)s, true, 'approve', 'ann', 'ann' {of}
"""
NOTED = """
  select pgflow.note_evidence_('gate_answer', json_build_array(a.gate, a.n), a.run_id) from pgflow.gate_answer a
  where not exists (select from pgflow.evidence e where e.key = json_build_array(a.gate, a.n)::text)
"""
OWED = """
  insert into pgflow.owed (run_id, call, opened_at, kind, name, detail)
  select run_id, 9, %(t)s, 'obligation', 'refund',
    jsonb_build_object('key', root || '/owe/refund/1', 'state', '{state}'::text)
  from pgflow.run where run_id = {run}
"""

FENCES = "select setval('pgflow.lock_fence_seq', 100)"
LOCK = "insert into pgflow.lock (fence, run_id, since, call, is_shared, key, holder) values ({fence}, {run}, %(t)s, 1, {shared}, 'k', 'h')"
LOCK_WAIT = "insert into pgflow.lock_wait (run_id, asked_at, call, is_shared, is_checked, key, holder) values ({run}, %(t)s, 1, false, true, 'k', 'h')"
WON = """
  insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
  values ({run}, 1, %(t)s, %(t)s, 6, 60, 'L', 'k', '{{"fence": 1}}')
"""

BLOB = "select pgflow.finish_blob(pgflow.open_blob())"
NAMED = """
  update pgflow.run set input = json_build_object('a', json_build_object('pgflow', 'blob', 'size_bytes', 0,
    'digest', encode(sha256(''), 'hex'))) where run_id = %(done)s
"""

# invariant -> ways to break it, each of one or more statements
LINE_RUN = (
    "insert into pgflow.line_run (run_id, rank, lane_id, is_fresh, queue, key) "
    "values ({run}, 0, 1, true, 'default', '')"
)
MUTATIONS: dict[str, list[list[str]]] = {
    "an open run has exactly one place": [
        ["delete from pgflow.ready where run_id = %(ready)s"],
        ["delete from pgflow.lease where run_id = %(running)s"],
        ["delete from pgflow.held where run_id = %(stuck)s"],
        [
            "delete from pgflow.parked where run_id = %(sleeping)s",
            "delete from pgflow.timer where run_id = %(sleeping)s",
        ],
        [LEASE.format(run="%(ready)s")],
        [READY.format(run="%(stuck)s", seq=1)],
        ["delete from pgflow.outcome where run_id = %(done)s"],
    ],
    "a finished run has no place": [
        [READY.format(run="%(done)s", seq=1)],
        [LEASE.format(run="%(heard)s")],
    ],
    "a place belongs to a run": [
        [READY.format(run="%(nobody)s", seq=0)],
        [LEASE.format(run="%(nobody)s")],
    ],
    "a confirmation is of a run": [
        ["insert into pgflow.confirmation values (%(nobody)s, %(t)s, 'T-1', 'confirmed', 'bank')"]
    ],
    "a place stands in a lane": [
        ["update pgflow.ready set lane_id = 999999 where run_id = %(ready)s"]
    ],
    "a blob that a run names is there": [
        ["insert into pgflow.blob_use (blob_id, run_id) values (99, %(done)s)"],
        [BLOB, NAMED, "update pgflow.blob_use set blob_id = 99", BLOB, NAMED],
    ],
    "what names a blob is a run": [
        [
            BLOB,
            "insert into pgflow.blob_use (blob_id, run_id) select blob_id, %(nobody)s from pgflow.blob",
        ]
    ],
    "a blob that no run names is loose": [[BLOB, "update pgflow.blob set is_loose = false"]],
    "a blob has all its chunks": [
        [BLOB, "update pgflow.blob set size_bytes = 1"],
        [BLOB, "update pgflow.blob set digest = sha256('x')"],
    ],
    "a chunk is of a blob": [
        ["insert into pgflow.blob_chunk (blob_id, n, hash, data) values (99, 0, sha256('x'), 'x')"]
    ],
    "drafts are of open runs": [
        ["insert into pgflow.draft values (%(done)s, 1, 0, 0, 'try', 'stream', '1')"]
    ],
    "an outcome belongs to a run": [[OUTCOME.format(run="%(nobody)s", status="completed")]],
    "the units of a run are dense from 1": [
        ["delete from pgflow.unit where run_id = %(leased)s and seq = 1"],
        [
            "delete from pgflow.unit where run_id = %(leased)s and seq = 2",
            "delete from pgflow.unit where run_id = %(leased)s and seq = 3",
        ],
        [UNIT.format(run="%(leased)s", seq=9, call=9, kind="c")],
    ],
    "units belong to a run": [[UNIT.format(run="%(nobody)s", seq=1, call=1, kind="c")]],
    "a place knows the last unit": [
        ["update pgflow.parked set last_seq = 0 where run_id = %(parked)s"],
        ["update pgflow.ready set last_seq = 1 where run_id = %(ready)s"],
        ["update pgflow.held set last_seq = 2 where run_id = %(stuck)s"],
        ["update pgflow.lease set last_seq = 1 where run_id = %(running)s"],
        ["delete from pgflow.unit where run_id = %(sleeping)s"],
        [UNIT.format(run="%(stuck)s", seq=2, call=2, kind="c")],
    ],
    "a call ends once": [
        [UNIT.format(run="%(leased)s", seq=6, call=1, kind="f")],
        [UNIT.format(run="%(leased)s", seq=6, call=1, kind="c")],
        [UNIT.format(run="%(parent)s", seq=6, call=1, kind="x")],
    ],
    "nothing is recorded after the outcome": [
        [
            (
                "update pgflow.unit set recorded_at = recorded_at + interval '1 microsecond' where "
                "run_id = %(done)s"
            )
        ],
        [
            (
                "update pgflow.outcome set finished_at = finished_at - interval '1 second' where "
                "run_id = %(done)s"
            )
        ],
    ],
    "a parked run can be woken": [
        ["delete from pgflow.timer where run_id = %(sleeping)s"],
        ["delete from pgflow.timer where run_id = %(delayed)s"],
        ["delete from pgflow.wait where run_id = %(waiting)s"],
    ],
    "a wait with a time-out has its timer": [
        ["delete from pgflow.timer where run_id = %(parked)s"]
    ],
    "only parked runs wait": [
        ["insert into pgflow.wait (run_id, call, kind, name) values (%(ready)s, 1, 's', 'x')"],
        ["insert into pgflow.timer (run_id, call, due_at) values (%(done)s, 1, %(t)s)"],
        ["insert into pgflow.timer (run_id, call, due_at) values (%(leased)s, 1, %(t)s)"],
    ],
    "no wake-up is lost": [
        [MAIL.format(run="%(parked)s", kind="s", name="paid")],
        ["update pgflow.signal set name = 'paid' where chain_id = %(parked)s"],
        ["update pgflow.wait set name = 'something else' where run_id = %(parked)s"],
    ],
    "no request of a person is lost": [
        [MAIL.format(run=f"%({name})s", kind=kind, name="x")]
        for name in ("sleeping", "stuck")
        for kind in "xprt"
    ],
    "mail of the finished is put aside": [
        [MAIL.format(run="%(done)s", kind="s", name="x")],
        [MAIL.format(run="%(heard)s", kind="x", name="cancel")],
    ],
    "mail belongs to a chain": [[MAIL.format(run="%(nobody)s", kind="s", name="x")]],
    "generations are dense": [
        [
            """
            insert into pgflow.run (run_id, chain_id, root_run_id, created_at, root, generation, lane_id, priority, tenant, key, input)
            select %(nobody)s, chain_id, root_run_id, created_at, root, 3, lane_id, priority, tenant, key, input from pgflow.run where run_id = %(done)s
            """,
            OUTCOME.format(run="%(nobody)s", status="completed"),
        ]
    ],
    "a continued run has a successor": [
        [
            "delete from pgflow.run where run_id = %(second)s",
            "delete from pgflow.ready where run_id = %(second)s",
        ]
    ],
    "a run with a successor is continued": [
        ["update pgflow.outcome set status = 'completed' where run_id = %(first)s"]
    ],
    "a key names a chain": [
        [
            (
                "insert into pgflow.run_key (chain_id, root, key) values (%(nobody)s, "
                "gen_random_uuid(), 'x')"
            )
        ]
    ],
    "a child is recorded by its parent": [
        ["update pgflow.run set parent_call = 77 where run_id = %(running)s"],
        ["update pgflow.unit set kind = 'a' where run_id = %(parent)s and call = 3"],
    ],
    "a parent hears of its child": [
        ["delete from pgflow.signal where kind = 'c'"],
        ["update pgflow.unit set kind = 'a' where run_id = %(parent)s and kind = 'K'"],
    ],
    "a deadline is not forgotten": [["delete from pgflow.deadline where run_id = %(leased)s"]],
    "deadlines are of open runs": [
        [
            (
                "insert into pgflow.deadline (run_id, due_at) values (%(done)s, %(t)s::timestamptz + "
                "interval '1 day')"
            )
        ]
    ],
    "beats of steps are of open runs": [
        [
            (
                "insert into pgflow.step_beat (run_id, call, attempt, beat_at) values (%(done)s, 1, 1, "
                "%(t)s)"
            )
        ]
    ],
    "beats are of accepted effects": [
        [BEAT.format(run="%(done)s")],
        ["update pgflow.owed set detail = detail - 'ref' where run_id = %(accepted)s"],
    ],
    "an accepted effect that promised beats is watched": [
        ["delete from pgflow.effect_beat where run_id = %(accepted)s"],
        ["update pgflow.effect_beat set look_at = null where run_id = %(accepted)s"],
    ],
    "a run begins with the journal of its origin": [
        [
            (
                "update pgflow.unit set at = at + interval '1 second' where run_id = %(heir)s and seq "
                "= 1"
            )
        ],
        ["update pgflow.unit set kind = 'f' where run_id = %(heir)s and seq = 1"],
        ["update pgflow.run set origin_seq = 2 where run_id = %(heir)s"],
    ],
    "labels are those of the start with the changes that the run has made": [
        ["insert into pgflow.relabelled (run_id) values (%(nobody)s)"],
        ["insert into pgflow.relabelled (run_id) values (%(leased)s)"],
    ],
    "what is carried is for a run": [
        [
            (
                "insert into pgflow.carried (run_id, args_hash, seq, call, is_done, name, key) values "
                "(%(nobody)s, 1, 1, 1, false, 'x', 'y')"
            )
        ]
    ],
    "what a saga carries was done by its chain": [
        [CARRIED.format(chain="%(nobody)s", call=1, key="x")],
        [CARRIED.format(chain="%(first)s", call=1, key="x")],
    ],
    "a run that failed has taken back what it carried": [
        [
            (
                "update pgflow.unit set kind = 'i', call = 9, key = 'x' where run_id = %(first)s and "
                "seq = 1"
            ),
            "update pgflow.unit set kind = 'C', call = 9 where run_id = %(first)s and seq = 2",
            CARRIED.format(chain="%(first)s", call=9, key="x"),
            "delete from pgflow.ready where run_id = %(second)s",
            (
                "insert into pgflow.outcome (run_id, finished_at, status, error) values (%(second)s, "
                "%(t)s, 'failed', '{}')"
            ),
        ]
    ],
    "a lock has one holder, or several that share it": [
        [
            FENCES,
            LOCK.format(fence=1, run="%(leased)s", shared="true"),
            LOCK.format(fence=2, run="%(leased)s", shared="false"),
        ]
    ],
    "numbers are drawn before rows have them": [
        [LOCK.format(fence=1000, run="%(leased)s", shared="true")],
        [
            (
                "insert into pgflow.signal (signal_id, chain_id, kind, name, sent_at, payload) "
                "overriding system value values (-999999, %(leased)s, 's', 'n', %(t)s, 'null')"
            )
        ],
        [
            (
                "insert into pgflow.lane (lane_id, queue, workflow) overriding system value "
                "values (999999, 'default', 'n')"
            )
        ],
    ],
    "a fence is given once": [[WON.format(run="%(leased)s"), WON.format(run="%(parent)s")]],
    "locks are held by open runs": [[FENCES, LOCK.format(fence=1, run="%(done)s", shared="false")]],
    "only open runs wait for locks": [
        [
            FENCES,
            LOCK.format(fence=1, run="%(leased)s", shared="false"),
            LOCK_WAIT.format(run="%(done)s"),
        ]
    ],
    "a lock that is free is not waited for": [[LOCK_WAIT.format(run="%(leased)s")]],
    "who waits for a lock stands in its queue, or has word of it": [
        ["insert into pgflow.wait (run_id, call, kind, name) values (%(parked)s, 9, 'l', 'k')"]
    ],
    "a document is written before it is changed": [
        [
            (
                "insert into pgflow.document (created_at, updated_at, collection, path, value) "
                "values (%(t)s, %(t)s::timestamptz - interval '1 s', 'c', '{a}', '1')"
            )
        ]
    ],
    "the history of an entity leads to its state": [
        ["insert into pgflow.entity values (1, %(t)s, 'e', 'k', null)"],
        ["insert into pgflow.entity values (0, %(t)s, 'e', 'k', '1')"],
    ],
    "an update that a run has made is in the history of the entity": [
        [UNIT.format(run="%(leased)s", seq=6, call=60, kind="H")]
    ],
    "an update in the history of an entity is in that of its run": [
        [
            (
                "insert into pgflow.entity_history (version, at, run_id, call, name, key, update, "
                "said_by, args, verdict) "
                "values (0, %(t)s, %(leased)s, 60, 'e', 'k', 'u', 'x', '{}', '1')"
            )
        ]
    ],
    "an update that its handler has answered has a unit that says so": [
        [SENT.format(status="'done', %(leased)s, 99")]
    ],
    "who sent an update has its answer": [
        [SENT.format(status="null, null, null"), SAID.format(kinds="{h,b}")]
    ],
    "an update has one answer in a journal": [
        [SENT.format(status="'done', %(leased)s, 6"), SAID.format(kinds="{b,b}")]
    ],
    "an update is taken once in a journal": [
        [SENT.format(status="null, null, null"), SAID.format(kinds="{h,h}")]
    ],
    "no update is lost": [[SENT.format(status="null, null, null")]],
    "a run waits only for answers that are not there": [
        [
            (
                "insert into pgflow.update_asker (chain_id, reply_to, update_id, reply_as) values "
                "(%(leased)s, %(leased)s, 'u', 'u')"
            )
        ]
    ],
    "an update in a mailbox is of somebody": [[MAIL.format(run="%(leased)s", kind="u", name="s")]],
    "a relay goes no further than what is over": [
        [
            (
                "insert into pgflow.relay (horizon, declared_at, name, target, topics) values "
                "(1000000, %(t)s, 'r', '', '{t}')"
            )
        ]
    ],
    "only open runs wait for events": [
        [
            (
                "insert into pgflow.event_wait (chain_id, event_id, value, is_current, name, topic, path) "
                "values (0, 0, 0, true, 'e', 't', '{}')"
            )
        ]
    ],
    "events are compared no further than what is over": [
        ["update pgflow.event_cursor set event_id = 7"]
    ],
    "a delivery is of a relay that has passed its event": [
        [
            (
                "insert into pgflow.delivery (event_id, at, due_at, attempts, is_dead, relay, topic, "
                "payload) values (0, %(t)s, %(t)s, 1, false, 'r', 't', '1')"
            )
        ]
    ],
    "what is owed equals the journal": [
        ["delete from pgflow.owed where run_id <> %(accepted)s and kind = 'effect'"],
        [
            (
                "insert into pgflow.owed (run_id, call, opened_at, kind, name) values (%(leased)s, 2, "
                "%(t)s, 'effect', 'pay')"
            )
        ],
        [UNIT.format(run="%(leased)s", seq=6, call=3, kind="C")],
        [UNIT.format(run="%(leased)s", seq=6, call=6, kind="i")],
    ],
    "opened obligations are closed or owed": [
        [PROMISE.format(run="%(leased)s", seq=6)],
        [OWED.format(run="%(leased)s", state="open")],
    ],
    "a run that has completed owes only what outlives it": [
        [PROMISE.format(run="%(done)s", seq=2), OWED.format(run="%(done)s", state="open")]
    ],
    "what was breached is recorded": [
        [PROMISE.format(run="%(leased)s", seq=6), OWED.format(run="%(leased)s", state="breached")]
    ],
    "a pool has reserved what open calls have": [
        ["""update pgflow.reservation set amounts = '{"usd": 0.5}'"""],
        ["delete from pgflow.reservation"],
    ],
    "a pool has charged what runs have spent": [
        ["""update pgflow.charge set amounts = '{"usd": 3}'"""],
        ["update pgflow.spend set forgotten = 1"],
    ],
    "a reservation is of an open call": [
        [
            OUTCOME.format(run="%(drawing)s", status="cancelled"),
            "delete from pgflow.lease where run_id = %(drawing)s",
        ],
        [UNIT.format(run="%(drawing)s", seq=3, call=1, kind="c")],
        ["update pgflow.reservation set call = 7"],
    ],
    "a charge is beside its unit": [
        ["delete from pgflow.charge", "update pgflow.spend set forgotten = 1"],
        [UNIT.format(run="%(drawing)s", seq=3, call=9, kind="M")],
    ],
    "the pool that a run has of its own is there": [
        ["update pgflow.run set pool = 'run/gone' where run_id = %(drawing)s"]
    ],
    "gates asked are answered, expired, given up or open": [
        [UNIT.format(run="%(leased)s", seq=6, call=9, kind="g")]
    ],
    "the answer of an open gate is owed": [
        ["delete from pgflow.owed where run_id = %(asking)s and call = 1"]
    ],
    "a verdict is the answer that closed its gate": [
        [UNIT.format(run="%(leased)s", seq=6, call=9, kind="G")]
    ],
    "a gate is closed once": [
        [
            ANSWER.format(
                gate="'k/over/1'", run="%(leased)s", of="from generate_series(1, 2) as a (n)"
            ),
            NOTED,
        ]
    ],
    "no verdict is lost": [
        [
            ANSWER.format(
                gate="g.gate",
                run="g.run_id",
                of="from (select 1) a (n), pgflow.gate g where call = 1",
            ),
            NOTED,
        ]
    ],
    "a parked run waits for its gates": [
        ["delete from pgflow.wait where run_id = %(asking)s and call = 1"],
        ["delete from pgflow.timer where run_id = %(asking)s"],
    ],
    "effects balance": [[UNIT.format(run="%(leased)s", seq=6, call=2, kind="C")]],
    "effects balance in total": [[UNIT.format(run="%(leased)s", seq=6, call=2, kind="F")]],
    "the journal is append only by trigger": [
        [
            (
                "update pg_trigger set tgenabled = 'D' where tgname = 'append_only' and tgrelid = "
                "'pgflow.unit_0'::regclass"
            )
        ]
    ],
    "a schedule is looked at, or says why not": [
        [SCHEDULE, "update pgflow.schedule set look_at = null"]
    ],
    "a schedule that is paused or undeclared is not looked at": [
        [SCHEDULE, "update pgflow.schedule set paused_at = %(t)s"],
        [SCHEDULE, "update pgflow.schedule set undeclared_at = %(t)s"],
    ],
    "a slot is decided once": [
        [SCHEDULE, "update pgflow.schedule set upcoming = array[after_at], last_slot_at = after_at"]
    ],
    "slots stand in their order": [
        [
            SCHEDULE,
            "update pgflow.schedule set upcoming = array[after_at, after_at - interval '1 s']",
        ],
        [SCHEDULE, "update pgflow.schedule set upcoming = array[after_at + interval '1 s']"],
    ],
    "a schedule is looked at when its first slot is due": [
        [SCHEDULE, "update pgflow.schedule set due_at = look_at - interval '1 s'"]
    ],
    "a run in a line is ready, in the negative of its lane": [
        [LINE_RUN.format(run="%(ready)s")],
        [LINE_RUN.format(run="%(asking)s")],
        ["update pgflow.ready set lane_id = -lane_id where run_id = %(ready)s"],
    ],
    "a run whose queue limits keys has had a turn": [
        ["insert into pgflow.line (queue, key, max_per_key) values ('default', 'tenant', 1)"]
    ],
    "a seal belongs to its round": [
        [SEAL.format(run="%(done)s", round=2)],
        [ROUND.format(runs="1", round=1), SEAL.format(run="%(done)s", round=1)],
    ],
    "the runs that were passed are sealed or pending": [
        ["update pgflow.seal_state set passed_run_id = %(ready)s"]
    ],
    "what people said is as it was noted": [
        [
            (
                "insert into pgflow.queue_change (changed_at, queue, what, said, changed_by)"
                " values (%(t)s, 'q', 'paused', '{}', 'eve')"
            )
        ],
        [
            "insert into pgflow.evidence (noted_at, kind, key, hash) values (%(t)s, 'policy', '[9]', '')"
        ],
    ],
    "a frame is of an open run": [[FRAME.format(run="%(done)s", seq=0, marked=False)]],
    "rows of a loop are of a frame": [
        ["insert into pgflow.flow_item (run_id, pc, n, item) values (%(ready)s, 1, 1, '1')"]
    ],
    "a compensation has the variables of its step": [
        [
            FRAME.format(run="%(ready)s", seq=0, marked=False),
            "update pgflow.flow_frame set undo = '{2}'",
        ]
    ],
    "a frame is no further than its journal": [
        [FRAME.format(run="%(ready)s", seq=5, marked=False)]
    ],
    "a legal hold is of a run": [
        ["insert into pgflow.legal_hold values (%(nobody)s, %(t)s, 'court', 'ann')"]
    ],
    "a role of a tenant acts for no other": [
        ["insert into pgflow.tenant_grant values (%(t)s, 'pgflow_client', 'acme', 'x') returning 1"]
    ],
    "a run has the tenant of what it comes from": [
        [f"update pgflow.run set tenant = 'x' where {what} is not null"]
        for what in ("parent_run_id", "origin_run_id")
    ],
    "a workflow in SQL has one current version": [
        [FLOW, "update pgflow.flow set is_current = false"]
    ],
    "a frame is the fold of its journal": [
        [FLOW, FRAME.format(run="%(leased)s", seq=1, marked=True)]
    ],
    "what is sealed is what is there": [
        [ROUND.format(runs="%(done)s", round=1), SEAL.format(run="%(done)s", round=1)]
    ],
}
NUMBERS = "numbers are drawn before rows have them"
ALSO = {
    "generations are dense": {NUMBERS},
    "a relay goes no further than what is over": {NUMBERS},
    "events are compared no further than what is over": {NUMBERS},
    "what is owed equals the journal": {"effects balance", "effects balance in total"},
    "effects balance": {"effects balance in total", "a call ends once"},
    "effects balance in total": {"effects balance", "a call ends once"},
}
"""Invariants that cannot be broken without others."""


@pytest.mark.unsound
@pytest.mark.parametrize("invariant", MUTATIONS)
def test_a_broken_invariant_is_reported_and_no_other(db, world, invariant):
    for statements in MUTATIONS[invariant]:
        with db.transaction(force_rollback=True):
            db.execute("set local pgflow.rewrites = 'on'")
            for statement in statements:
                assert db.execute(statement, {**world, "t": T0}).rowcount > 0, statement
            assert sqlkit.unsound(db) == {invariant} | ALSO.get(invariant, set()), statements


def test_every_invariant_is_broken_by_some_test(db):
    source = one(
        db,
        "select string_agg(prosrc, '') from pg_proc where pronamespace = 'pgflow'::regnamespace "
        "and proname ~ '^check_' and pronargs = 0",
    )
    assert set(re.findall(r"select '([^']+)',\s+format\(", source)) == set(MUTATIONS)


@pytest.mark.unsound
@pytest.mark.parametrize(
    ("opened", "closed", "payload", "audits"),
    [
        ("i", "C", "{}", ("check_effects_", "check_balance_")),
        ("O", "D", '{"key": "%s", "verdict": "discharged"}', ("check_obligations_",)),
    ],
)
def test_an_audit_looks_at_the_journal_once_however_much_one_run_has_closed(
    db, world, opened, closed, payload, audits
):
    rows = """
        insert into pgflow.unit (run_id, token, at, recorded_at, seq, call, kind, name, payload)
        select %(run)s, 1, %(t)s, %(t)s, 1000 + 2 * n + k.pos, 1000 + n, k.kind, 'x',
          replace(%(payload)s, '%%s', n::text)::json
        from generate_series(1, %(many)s) n, unnest(%(kinds)s::text[]) with ordinality k (kind, pos)
    """

    def blocks_read(audit: str) -> int:
        (plan,) = one(db, f"explain (analyze, buffers, format json) select from pgflow.{audit}()")
        return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]

    def look(many: int) -> int:
        with db.transaction(force_rollback=True):
            given = {"run": world["ready"], "t": T0, "many": many, "payload": payload}
            db.execute(rows, {**given, "kinds": [opened, closed]})
            return sum(map(blocks_read, audits))

    # Eight times as much: 64 times where each looks at all. A plan that changes between is worth less.
    assert look(3200) < 24 * look(400)


def test_the_audit_only_reads(conn):
    conn.execute("begin read only")
    assert conn.execute("select * from pgflow.check()").fetchall() == []
