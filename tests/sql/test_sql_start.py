"""Starting runs: a key names one run for good, and a start is plain inserts in the caller's
transaction.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlkit
from psycopg import IsolationLevel, errors
from sqlkit import (
    T0,
    Actor,
    claim,
    claim_one,
    connect,
    count,
    one,
    poll,
    rows,
    seconds,
    set_clock,
    start,
    start_many,
    status,
)

from pgflow._client.starts import new_keys

if TYPE_CHECKING:
    Conn = psycopg.Connection[Any]

NOT_FOUND, CONFLICT, INVALID = "PF001", "PF002", "PF003"


def sqlstate_of(conn: Conn, **options: Any) -> str | None:
    """SQLSTATE of a start, None if it succeeds."""
    try:
        with conn.transaction():
            start(conn, **options)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def test_the_same_key_and_input_name_the_same_run(db):
    first = start(db, key="order-7", input='{"a": 1, "b": 2}')
    again = start(db, key="order-7", input='{"b":2,"a":1.0}')
    assert first.is_new
    assert not again.is_new
    assert (again.run_key, again.run_id, again.lane_id) == (
        first.run_key,
        first.run_id,
        first.lane_id,
    )
    assert count(db, "run") == count(db, "ready") == 1


def test_a_key_stays_with_its_run_when_that_has_ended(db):
    first = start(db, key="k")
    sqlkit.finish(db, claim_one(db))
    assert start(db, key="k")[1:3] == (first.run_id, False)
    assert status(db, first.run_id) == "completed"


@pytest.mark.parametrize(
    "other", [{"workflow": "other"}, {"input": '{"n": 2}'}], ids=["workflow", "input"]
)
def test_a_key_refuses_another_workflow_or_input_and_its_run_is_unharmed(db, other):
    first = start(db, key="k", input='{"n": 1}')
    before = rows(
        db,
        "select r::text from pgflow.run r union all select r::text from pgflow.ready r order by 1",
    )
    with (
        pytest.raises(psycopg.Error, match="key 'k' already names a run of demo") as error,
        db.transaction(),
    ):
        start(db, **{"workflow": "demo", "key": "k", "input": '{"n": 1}', **other})
    assert error.value.sqlstate == CONFLICT
    assert (
        rows(
            db,
            "select r::text from pgflow.run r union all select r::text from pgflow.ready r order "
            "by 1",
        )
        == before
    )
    assert claim_one(db).run_id == first.run_id


def test_a_key_of_a_child_is_a_conflict_for_a_start_from_outside(db):
    parent = sqlkit.begin(db)
    sqlkit.commit(db, sqlkit.flush(parent, children=[sqlkit.child(key="kid")]))
    with pytest.raises(psycopg.Error) as error, db.transaction():
        start(db, "child", key="kid")
    assert error.value.sqlstate == CONFLICT


def test_tenants_have_keys_of_their_own(db):
    first, second = start(db, key="k", tenant="a"), start(db, key="k", tenant="b")
    assert first.is_new
    assert second.is_new
    assert first.run_id != second.run_id
    with pytest.raises(psycopg.Error) as error, db.transaction():
        sqlkit.send(db, "k", "paid")
    assert error.value.sqlstate == NOT_FOUND


def test_a_run_without_a_key_gets_a_uuid_of_version_7_in_order_of_time(db):
    keys = [start(db).run_key for _ in range(3)]
    assert [uuid.UUID(key).version for key in keys] == [7, 7, 7]
    # The first 48 bits are milliseconds since 1970.
    stamps = [uuid.UUID(key).int >> 80 for key in keys]
    now = one(db, "select pgflow.micros_(clock_timestamp()) / 1000")
    assert stamps == sorted(stamps)
    assert now - 60_000 < stamps[0] <= now
    assert rows(db, "select root::text from pgflow.run_key order by chain_id") == keys


@pytest.mark.full
def test_32_concurrent_starters_make_one_run(dsn, conn):
    for n in range(3):
        started = sqlkit.race(dsn, 32, lambda c, _, key=f"k{n}": start(c, key=key))
        assert len({s.run_id for s in started}) == 1
        assert [s.is_new for s in started].count(True) == 1
    assert count(conn, "run") == 3


def test_of_two_starts_that_conflict_the_second_waits_and_is_refused(dsn, conn):
    with Actor(dsn) as late:
        with connect(dsn) as early, early.transaction():
            first = start(early, key="k", input='{"n": 1}')
            answer = late.do(start, key="k", input='{"n": 2}')
            late.until_waiting(conn)
        with pytest.raises(psycopg.Error) as error:
            answer.result()
    assert error.value.sqlstate == CONFLICT
    assert claim_one(conn).run_id == first.run_id


def test_a_start_that_waited_for_one_that_was_rolled_back_starts_the_run(dsn, conn):
    start(conn, key="other")  # makes the lane
    with Actor(dsn) as late:
        with connect(dsn) as early, early.transaction(force_rollback=True):
            start(early, key="k", input='{"n": 1}')
            answer = late.do(start, key="k", input='{"n": 2}')
            late.until_waiting(conn)
        assert answer.result().is_new
    assert one(conn, "select input->>'n' from pgflow.run where key = 'k'") == "2"


def test_a_rollback_leaves_nothing(conn):
    with conn.transaction(force_rollback=True):
        started = start(conn, key="k", timeout_seconds=60, labels='{"a": "b"}')
        start(conn, key="late", run_at=T0)
        start_many(conn, [("x", "{}"), (None, "{}")])
        sqlkit.send(conn, "k", "paid")
    for table in (
        "run_key",
        "run",
        "ready",
        "parked",
        "timer",
        "deadline",
        "signal",
        "nudge",
        "lane",
        "queue",
    ):
        assert count(conn, table) == 0, table
    assert start(conn, key="k", workflow="another", input='{"n": 1}').run_id > started.run_id


def test_a_run_is_visible_to_others_only_after_the_commit(dsn, conn):
    start(conn)
    claim_one(conn)
    with connect(dsn) as caller:
        with caller.transaction():
            start(caller, key="k")
            assert claim(conn) == []
            with pytest.raises(psycopg.Error) as error:
                sqlkit.send(conn, "k", "paid")
            assert error.value.sqlstate == NOT_FOUND
        assert claim_one(conn).key == "k"


OLD_SNAPSHOTS = (IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)


def test_callers_of_any_isolation_level_start_side_by_side(dsn, conn):
    start(conn, key="known", input='{"n": 1}')
    for level in OLD_SNAPSHOTS:
        with connect(dsn) as a, connect(dsn) as b:
            a.isolation_level = b.isolation_level = level
            with a.transaction(), b.transaction():
                assert start(a, key=f"a {level}").is_new
                assert start(b, key=f"b {level}").is_new
                assert all(s.is_new for s in start_many(a, [(f"c {level}", "{}"), (None, "{}")]))
            with a.transaction():
                assert not start(a, key="known", input='{"n": 1}').is_new
                assert [
                    s.is_new for s in start_many(a, [("known", '{"n": 1}'), (f"d {level}", "{}")])
                ] == [False, True]
    assert count(conn, "run") == 11


def test_a_key_taken_after_the_callers_snapshot_is_a_serialization_failure_and_no_second_run(
    dsn, conn
):
    start(conn, key="other")
    for level in OLD_SNAPSHOTS:
        with connect(dsn) as caller:
            caller.isolation_level = level
            with pytest.raises(errors.SerializationFailure), caller.transaction():
                one(caller, "select 1")
                first = start(conn, key=level.name)
                start(caller, key=level.name)
            with caller.transaction():
                assert start(caller, key=level.name)[1:3] == (first.run_id, False)


def test_a_batch_answers_and_queues_in_its_own_order(db):
    keys: list[str | None] = ["z", "m", "a", None, "q"]
    started = start_many(db, [(key, json.dumps({"n": n})) for n, key in enumerate(keys)])
    assert [s.run_key for s in started][:3] == ["z", "m", "a"]
    assert uuid.UUID(started[3].run_key).version == 7
    assert all(s.is_new for s in started)
    claimed = claim(db, 10)
    assert [c.run_id for c in claimed] == [s.run_id for s in started]
    assert [json.loads(c.input)["n"] for c in claimed] == [0, 1, 2, 3, 4]


def test_a_batch_finds_the_runs_that_are_there_and_starts_the_others(db):
    known = start(db, key="b", input='{"n": 1}')
    started = start_many(db, [("a", "{}"), ("b", '{"n": 1.0}'), ("c", "{}")])
    assert [(s.run_key, s.is_new) for s in started] == [("a", True), ("b", False), ("c", True)]
    assert started[1].run_id == known.run_id
    assert count(db, "ready") == 3


@pytest.mark.parametrize(
    "clash", [{"input": '{"n": 2}'}, {"workflow": "other"}], ids=["input", "workflow"]
)
def test_one_conflict_starts_nothing_of_a_batch(db, clash):
    start(db, **{"key": "b", "input": '{"n": 1}', **clash})
    with (
        pytest.raises(psycopg.Error, match="key 'b' already names a run") as error,
        db.transaction(),
    ):
        start_many(db, [("a", "{}"), ("b", '{"n": 1}'), ("c", "{}")])
    assert error.value.sqlstate == CONFLICT
    assert count(db, "run") == count(db, "run_key") == 1


def test_a_key_twice_in_a_batch_is_one_run_or_a_conflict(db):
    started = start_many(db, [("a", '{"n": 1}'), ("b", "{}"), ("a", '{"n": 1}')])
    assert started[0].run_id == started[2].run_id
    assert [s.run_key for s in started] == ["a", "b", "a"]
    assert sorted(s.is_new for s in started) == [False, True, True]
    assert count(db, "run") == count(db, "ready") == 2
    with pytest.raises(psycopg.Error) as error, db.transaction():
        start_many(db, [("x", '{"n": 1}'), ("x", '{"n": 2}')])
    assert error.value.sqlstate == CONFLICT
    assert count(db, "run") == 2


def test_new_keys_are_the_stems_of_their_runs_and_not_looked_for(db):
    batch = [(key, "{}") for key in new_keys(3)]
    runs = start_many(db, batch, keys_are_new=True)
    assert [(run.run_key, run.is_new) for run in runs] == [(key, True) for key, _ in batch]
    found = rows(db, "select key, root::text from pgflow.run_key order by chain_id")
    assert found == [(key, key) for key, _ in batch]
    with pytest.raises(errors.UniqueViolation), db.transaction():
        start_many(db, [(new_keys(1)[0], "{}"), *batch], keys_are_new=True)
    found = [(again.run_id, again.is_new) for again in start_many(db, batch)]
    assert found == [(run.run_id, False) for run in runs]


@pytest.mark.parametrize("key", ["order-1", None])
def test_keys_that_are_no_uuids_cannot_be_new(db, key):
    with pytest.raises(psycopg.Error, match="keys_are_new is for") as refused:
        start_many(db, [(new_keys(1)[0], "{}"), (key, "{}")], keys_are_new=True)
    assert refused.value.sqlstate == "PF003"


def test_keys_made_up_for_a_batch_stand_in_its_order(db):
    keys = [uuid.UUID(run.run_key) for run in start_many(db, [(None, "{}")] * 300)]
    assert keys == sorted(set(keys))
    assert {(key.version, key.variant) for key in keys} == {(7, uuid.RFC_4122)}


def test_an_empty_batch_starts_nothing(db):
    assert start_many(db, []) == []
    assert count(db, "run") == 0


def test_two_batches_with_common_keys_in_opposite_order_never_deadlock(dsn, conn):
    start(conn)  # the lane is there
    options = sqlkit.PATIENT + " -c deadlock_timeout=20ms"

    def both(c: Conn, n: int) -> list[bool]:
        new = []
        for batch in range(20):
            keys = [(f"{batch}-{i}", "{}") for i in range(50)]
            new += [s.is_new for s in start_many(c, keys if n else keys[::-1])]
        return new

    first, second = sqlkit.race(dsn, 2, both, options)
    assert sum(first) + sum(second) == 1000
    assert count(conn, "run") == 1001


def test_two_batches_that_wait_for_the_same_key_do_not_deadlock_over_others(dsn, conn):
    start(conn)  # the lane is there
    with sqlkit.Actor(dsn) as first, sqlkit.Actor(dsn) as second:
        for actor in (first, second):
            actor.conn.execute("set deadlock_timeout = '20ms'")
        with connect(dsn) as app, app.transaction():
            start(app, key="between")
            up = first.do(start_many, [("a", "{}"), ("between", "{}"), ("b", "{}")])
            first.until_waiting(conn)
            down = second.do(start_many, [("b", "{}"), ("between", "{}"), ("a", "{}")])
            second.until_waiting(conn)
        assert [s.is_new for s in up.result()] == [True, False, True]
        assert [s.is_new for s in down.result()] == [False, False, False]


def test_a_delayed_run_waits_for_its_time_and_is_never_early(db):
    set_clock(db, T0)
    one_of = start(db, run_at=T0 + seconds(60))
    two, three = start_many(db, [(None, "{}"), (None, "{}")], run_at=T0 + seconds(61))
    assert {status(db, s.run_id) for s in (one_of, two, three)} == {"waiting"}
    assert poll(db).next_due_seconds == 60
    set_clock(db, T0 + seconds(59.999999))
    assert poll(db).lanes == []
    assert claim(db) == []
    set_clock(db, T0 + seconds(60))
    assert poll(db).lanes == [one_of.lane_id]
    (claimed,) = claim(db, 5)
    assert claimed.run_id == one_of.run_id
    assert claimed.created_us == sqlkit.micros(T0 + seconds(60))
    set_clock(db, T0 + seconds(61))
    poll(db)
    assert {c.run_id for c in claim(db, 5)} == {two.run_id, three.run_id}


def test_a_run_whose_time_is_past_is_ready_at_once(db):
    set_clock(db, T0)
    start(db, run_at=T0 - seconds(1))
    start(db, run_at=T0)
    start_many(db, [(None, "{}")], run_at=T0)
    assert len(claim(db, 5)) == 3


def test_the_deadline_counts_from_the_time_to_start(db):
    set_clock(db, T0)
    start(db, key="a", timeout_seconds=0.5)
    start(db, key="b", timeout_seconds=0.5, run_at=T0 + seconds(10))
    start(db, key="c", timeout_seconds=0.5, run_at=T0 - seconds(10))
    start_many(db, [("d", "{}")], timeout_seconds=0.5, run_at=T0 + seconds(10))
    start(db, key="e")
    found = dict(
        rows(
            db,
            "select r.key, d.due_at from pgflow.run r left join pgflow.deadline d using (run_id)",
        )
    )
    early, late = T0 + seconds(0.5), T0 + seconds(10.5)
    assert found == {"a": early, "b": late, "c": early, "d": late, "e": None}


NESTED_200 = '{"a":' + "[" * 199 + "]" * 199 + "}"
NESTED_201 = '{"a":' + "[" * 200 + "]" * 200 + "}"
MEBIBYTE = 1048576

REFUSED: list[dict[str, Any]] = [
    {"workflow": None}, {"workflow": ""}, {"workflow": "x" * 256}, {"workflow": "é" * 128},
    {"queue": ""}, {"queue": "x" * 256}, {"key": ""}, {"key": "x" * 129}, {"priority": 32768},
    {"priority": -32769}, {"priority": None}, {"run_at": "infinity"}, {"run_at": "-infinity"},
    {"run_at": "10000-01-01"}, {"timeout_seconds": 0}, {"timeout_seconds": -1},
    {"timeout_seconds": float("nan")}, {"timeout_seconds": float("inf")},
    {"timeout_seconds": 3.3e9}, {"labels": '{"n": 1}'}, {"labels": '{"n": null}'}, {"input": None},
    {"input": "null"}, {"input": "[]"}, {"input": '"text"'}, {"input": NESTED_201},
    {"input": f'{{"a": "{"x" * MEBIBYTE}"}}'}, {"input": '{"a": "\\u0000"}'},
    {"input": '{"\\u0000": 1}'}, {"input": '{"a": "\\\\\\u0000"}'},
]  # fmt: skip

ACCEPTED: list[dict[str, Any]] = [
    {"workflow": "x" * 255},
    {"queue": "é" * 127},
    {"key": "é" * 128},
    {"priority": -32768},
    {"priority": 32767},
    {"run_at": "9999-12-31 23:59:59.999999+00"},
    {"timeout_seconds": 3.2e9},
    {"labels": "{}"},
    {"input": NESTED_200},
    {"input": f'{{"a":"{"[" * 500}"}}'},
    {"input": '{"a": "\\\\u0000"}'},  # a backslash and then u0000
    {"input": '{"a": "\\ud83d\\ude00"}'},
]

LONG: dict[str, tuple[str, str | None]] = {
    "a string of a mebibyte": (f'{{"a":"{"x" * (MEBIBYTE - 8)}"}}', None),
    "4299 digits": (f'{{"a": {"7" * 4299}}}', None),
    "4300 digits": (f'{{"a": {"7" * 4300}}}', INVALID),
    "4300 digits of a fraction": (f'{{"a": -0.{"7" * 4300}}}', INVALID),
    "a string of 5000 digits": (f'{{"a": "{"7" * 5000}"}}', None),
}

# What other values do to a caller who cannot know the tables: an error without a name, or a row
# that some client cannot read.
REFUSED_OTHERWISE: dict[str, dict[str, Any]] = {
    "labels that are no object": {"labels": "[]"},
    "labels of more than 16 KiB": {"labels": json.dumps({"a": "x" * 20_000})},
    "metadata that are no object": {"metadata": "[]"},
    "metadata of more than 16 KiB": {"metadata": json.dumps({"a": "x" * 20_000})},
    "tenant of more than 255 bytes": {"tenant": "x" * 256},
    "no tenant": {"tenant": None},
    "retention below zero": {"key_retention_seconds": -1},
    "time before the year 1": {"run_at": "0044-03-15 BC"},
    "deadline after the year 9999": {"run_at": "9999-12-31", "timeout_seconds": 3.2e9},
    "lone surrogate": {"input": '{"a": "\\ud800"}'},
    "number that overflows": {"input": '{"a": 1e200000}'},
}


def test_a_start_beyond_the_limits_is_refused_by_name(db):
    found = {str(options)[:80]: sqlstate_of(db, **options) for options in REFUSED}
    assert found == dict.fromkeys(found, INVALID)


def test_a_start_at_the_limits_is_accepted(db):
    found = {str(options)[:80]: sqlstate_of(db, **options) for options in ACCEPTED}
    assert found == dict.fromkeys(found)


@pytest.mark.parametrize(("text", "expected"), LONG.values(), ids=LONG)
def test_a_long_input_is_judged_by_what_it_holds(db, text, expected):
    assert sqlstate_of(db, input=text) == expected


@pytest.mark.parametrize("options", REFUSED_OTHERWISE.values(), ids=REFUSED_OTHERWISE)
def test_other_values_that_no_run_can_have_are_refused_by_name_too(db, options):
    assert sqlstate_of(db, **options) == INVALID


@pytest.mark.parametrize("run", [
    ("", "{}"), ("x" * 129, "{}"), (None, "[]"), (None, None), (None, "{"), (None, NESTED_201),
    (None, '{"a": "\\u0000"}'),
], ids=["empty key", "long key", "no object", "no input", "no JSON", "too deep", "NUL"])  # fmt: skip
def test_a_batch_is_held_to_the_limits_of_a_single_start(db, run):
    with pytest.raises(psycopg.Error) as error, db.transaction():
        start_many(db, [run])
    assert error.value.sqlstate == INVALID


@pytest.mark.parametrize("input_text", [
    '{"b":-0.0,"a":1e22,"c":"\\u00e9"}', '{"a": 1E3, "a": 2}',
    '{"n":123456789012345678901234567890.10}',
])  # fmt: skip
def test_an_input_keeps_its_exact_text(db, input_text):
    single, batch = (
        start(db, "text", input=input_text),
        start_many(db, [(None, input_text)], "text")[0],
    )
    stored = [c.input for c in claim(db, 9, lanes=[single.lane_id])]
    assert batch.lane_id == single.lane_id
    assert stored == [input_text, input_text]


@pytest.mark.parametrize("kind", ["json", "jsonb", "text"])
def test_an_input_is_json_or_jsonb_or_the_text_of_one(db, kind):
    key = one(db, f"select run_key from pgflow.start_run('w', '{{\"n\": 1}}'::{kind})")
    assert one(db, "select input->>'n' from pgflow.run where key = %s", key) == "1"


def test_an_input_of_another_type_is_refused_before_its_cast_could_run_as_the_owner(db):
    db.execute("create type mine as (n int)")
    db.execute(
        "create function as_text(mine) returns text language plpgsql as "
        "$$ begin raise 'runs as %', current_user; end $$"
    )
    db.execute("create cast (mine as text) with function as_text(mine)")
    with pytest.raises(
        psycopg.Error, match=r"must be json, jsonb or text, not public\.mine"
    ) as error:
        db.execute("select pgflow.start_run('w', row(1)::mine)")
    assert error.value.sqlstate == INVALID


HOSTILE = [
    "'; drop schema pgflow cascade; --", '"; drop table run; --', "' or 1=1 --",
    "$$; select pg_sleep(9); $$", "%s %(x)s {} {0} %1$s", "back\\slash \\' \\u0041",
    "line\nbreak\ttab\r\x01\x7f", "\u202eright to left\u202c \u200b\ufeff", "🜏 emoji 👩‍👩‍👧", " ",
    "null", "{1,2}", "pg_catalog.now()",
]  # fmt: skip


def test_hostile_names_are_stored_verbatim(db):
    for text in HOSTILE:
        started = start(
            db,
            text,
            key=text,
            queue=text,
            tenant=text,
            labels=json.dumps({text: text}),
            metadata=json.dumps({text: text}),
            input=json.dumps({text: text}),
        )
        claimed = claim_one(db, lanes=[started.lane_id])
        sqlkit.commit(db, sqlkit.flush(claimed, sqlkit.unit(name=text, payload=json.dumps(text))))
        query = (
            "select workflow, queue, key, tenant, labels, input from pgflow.runs where run_id = %s"
        )
        found = one(db, query, started.run_id)
        assert found == (text, text, text, text, {text: text}, {text: text})
        assert claimed.extra is not None
        assert claimed.extra["metadata"] == {text: text}
        assert (
            one(
                db,
                "select pgflow.send_signal(%s, %s, %s, %s, %s)",
                text,
                text,
                json.dumps(text),
                text,
                text,
            )
            == started.run_id
        )
        assert one(db, "select pgflow.run_status(%s, %s)", text, text) == "running"
        assert one(
            db, "select name, payload::text from pgflow.timeline where run_id = %s", started.run_id
        ) == (text, json.dumps(text))


def test_a_key_is_freed_when_its_retention_after_the_end_is_over(db):
    set_clock(db, T0)
    for key, retention in (("short", 60), ("long", 120), ("zero", 0), ("kept", None)):
        start(db, key=key, key_retention_seconds=retention)
    running = start(db, "other", key="running", key_retention_seconds=0)
    for claimed in claim(db, 4):
        sqlkit.finish(db, claimed)
    swept = []
    for after in (0, 59.9, 60, 120):
        set_clock(db, T0 + seconds(after))
        swept.append(one(db, "select pgflow.sweep_keys()"))
    assert swept == [1, 0, 1, 1]
    assert rows(db, "select key from pgflow.run_key order by key") == ["kept", "running"]
    again = start(db, "quite another", key="short", input='{"n": 1}')
    assert again.is_new
    assert status(db, running.run_id) == "queued"


def test_the_retention_of_a_chain_counts_from_the_end_of_its_last_generation(db):
    set_clock(db, T0)
    start(db, key="k", key_retention_seconds=60)
    sqlkit.commit(db, sqlkit.flush(claim_one(db), **{"continue": "{}"}))
    set_clock(db, T0 + seconds(1000))
    assert one(db, "select pgflow.sweep_keys()") == 0
    sqlkit.finish(db, claim_one(db))
    set_clock(db, T0 + seconds(1060))
    assert one(db, "select pgflow.sweep_keys()") == 1


def test_a_second_start_does_not_change_the_retention(db):
    start(db, key="k", key_retention_seconds=60)
    start(db, key="k", key_retention_seconds=0)
    assert one(db, "select retention_seconds from pgflow.run_key") == 60


def test_a_sweep_finds_what_is_over_behind_many_that_are_open_and_looks_at_few(db):
    db.execute(
        "insert into pgflow.run_key (tenant, key, chain_id, root, retention_seconds)"
        " select '', 'open-' || n, 0, gen_random_uuid(), 60 from generate_series(1, 1000) n"
    )
    for retention in (0, 0, 60, 3600):
        start(db, key_retention_seconds=retention)
    for claimed in claim(db, 4):
        sqlkit.finish(db, claimed)
    set_clock(db, T0.replace(year=2040))
    assert sum(one(db, "select pgflow.sweep_keys()") for _ in range(30)) == 4
    assert rows(db, "select distinct chain_id from pgflow.run_key") == [0]
    db.execute("delete from pgflow.run_key")


def test_a_sweep_that_must_not_wait_leaves_the_keys_to_who_is_at_work(dsn, conn):
    start(conn, key="k", key_retention_seconds=0)
    sqlkit.finish(conn, claim_one(conn))
    with sqlkit.connect(dsn) as other:
        with other.transaction():
            other.execute("select pg_advisory_xact_lock(pgflow.latch_('retention'))")
            assert one(conn, "select pgflow.sweep_keys(wait => false)") == 0
        assert one(conn, "select pgflow.sweep_keys(wait => false)") == 1


def test_a_sweep_frees_at_most_as_many_keys_as_asked(db):
    for _ in range(3):
        start(db, key_retention_seconds=0)
    for claimed in claim(db, 3):
        sqlkit.finish(db, claimed)
    assert [one(db, "select pgflow.sweep_keys(2)") for _ in range(3)] == [2, 1, 0]


def ended_with_a_key_to_sweep(conn: Conn) -> None:
    start(conn, key="k", key_retention_seconds=0)
    sqlkit.finish(conn, claim_one(conn))


def test_a_start_whose_key_is_swept_meanwhile_starts_a_run(dsn, conn):
    ended_with_a_key_to_sweep(conn)
    with Actor(dsn) as starter:
        with connect(dsn) as sweeper, sweeper.transaction():
            # The starter has found the key taken, and stops before it reads whose it is.
            sweeper.execute("lock table pgflow.run in access exclusive mode")
            started = starter.do(start, key="k")
            starter.until_waiting(conn)
            assert one(sweeper, "select pgflow.sweep_keys()") == 1
        assert started.result().is_new


def test_a_batch_with_a_key_that_is_swept_meanwhile_starts_its_run(dsn, conn):
    ended_with_a_key_to_sweep(conn)
    with Actor(dsn) as starter:
        with connect(dsn) as sweeper, sweeper.transaction():
            sweeper.execute("lock table pgflow.run in access exclusive mode")
            started = starter.do(start_many, [("k", "{}"), ("other", "{}")])
            starter.until_waiting(conn)
            assert one(sweeper, "select pgflow.sweep_keys()") == 1
        assert [s.is_new for s in started.result()] == [True, True]
