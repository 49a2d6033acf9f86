"""Views that anybody may read, and the verbs that ask for one run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlkit import (
    T0,
    begin,
    child,
    claim,
    claim_one,
    commit,
    connect,
    finish,
    flush,
    hold,
    one,
    register,
    rows,
    seconds,
    set_clock,
    sleep_for,
    start,
    start_many,
    unit,
    wait_for,
    wake,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    Conn = psycopg.Connection[Any]

STATUSES = ("queued", "running", "waiting", "paused", "stuck", "completed", "failed", "cancelled")


@pytest.fixture
def one_of_each(db: Conn) -> dict[str, int]:
    """A run in every status, its key the name of the status."""
    set_clock(db, T0)
    ids = {}
    for status in STATUSES:
        run = begin(db, status, key=status, queue="q")
        ids[status] = run.run_id
        commit(db, flush(run, unit()))
        match status:
            case "queued":
                db.execute("select pgflow.release_runs(%s, %s)", ([run.run_id], [run.token]))
            case "waiting":
                commit(db, wait_for(run, "paid", 2, timeout_seconds=60))
            case "paused":
                db.execute("select pgflow.pause_run('paused', 'lunch', sent_by => 'ann')")
                commit(db, flush(run, idle=True))
            case "stuck":
                commit(db, hold(run, "nondeterminism", "h", {"line": 7}))
            case "completed":
                finish(db, run, output='{"b":1,"a":-0.0}')
            case "failed":
                finish(db, run, "failed", error='{"message":"no"}')
            case "cancelled":
                finish(db, run, "cancelled", reason="asked")
    return ids


def test_each_place_has_its_status_and_says_why(db, one_of_each):
    query = "select status, reason, since, worker_id is not null, finished_at is not null from pgflow.runs where run_id = %s"
    found = {status: one(db, query, run_id) for status, run_id in one_of_each.items()}
    assert found == {
        "queued": ("queued", "no worker serves queue q", T0, False, False),
        "running": ("running", None, T0, True, False),
        "waiting": ("waiting", "signal paid, until 2030-01-01T00:01:00Z", T0, False, False),
        "paused": ("paused", "lunch", T0, False, False),
        "stuck": ("stuck", "nondeterminism", T0, False, False),
        "completed": ("completed", None, T0, False, True),
        "failed": ("failed", None, T0, False, True),
        "cancelled": ("cancelled", "asked", T0, False, True),
    }
    for status, run_id in one_of_each.items():
        assert one(db, "select pgflow.run_status(%s)", status) == status
        assert rows(db, "select run_id from pgflow.runs where status = %s", status) == [run_id]


def test_each_reason_has_a_code_and_its_detail(db, one_of_each):
    query = "select reason_code, reason_detail from pgflow.runs where run_id = %s"
    found = {status: one(db, query, run_id) for status, run_id in one_of_each.items()}
    until = (T0 + seconds(60)).isoformat()
    assert found == {
        "queued": ("no_worker", None), "running": (None, None),
        "waiting": ("signal", {"signals": ["paid"], "until": until}),
        "paused": ("paused", {"by": "ann (postgres)"}), "stuck": ("nondeterminism", {"line": 7}),
        "completed": (None, None), "failed": (None, None), "cancelled": ("itself", None),
    }  # fmt: skip
    db.execute("update pgflow.queue set paused_at = pgflow.now_() where queue = 'q'")
    assert one(db, query, one_of_each["queued"]) == ("queue_paused", None)


def test_every_run_is_seen_once_and_a_chain_by_its_newest_generation(db):
    commit(db, flush(begin(db, key="k"), **{"continue": "{}"}))
    commit(db, flush(claim_one(db), **{"continue": '{"n": 3}'}))
    start(db, key="other")
    found = rows(db, "select key, generation, status, input from pgflow.runs order by key")
    assert found == [("k", 3, "queued", {"n": 3}), ("other", 1, "queued", {})]


def test_a_run_that_waits_for_several_things_names_them(db):
    set_clock(db, T0)
    run = begin(db, key="k")
    commit(db, flush(run, children=[child(1)]))
    commit(db, flush(run, child_calls=[1], signals=[[2, "a b"]], park=True, idle=True))
    assert one(db, "select reason from pgflow.runs where key = 'k'") in (
        "child, signal a b",
        "signal a b, child",
    )
    assert one(db, "select reason_code, reason_detail from pgflow.runs where key = 'k'") == (
        "signal",
        {"signals": ["a b"], "children": 1},
    )
    start(db, key="late", run_at=T0 + seconds(5.5))
    found = one(db, "select status, reason, reason_code from pgflow.runs where key = 'late'")
    assert found == ("waiting", "until 2030-01-01T00:00:05Z", "timer")


def tables_read(conn: Conn, query: str) -> set[str]:
    """Tables of the schema that the plan of a query reads."""
    found: set[str] = set()

    def walk(node: dict[str, Any]) -> None:
        if "Relation Name" in node:
            found.add(node["Relation Name"])
        for below in node.get("Plans", ()):
            walk(below)

    walk(one(conn, f"explain (format json) {query}")[0]["Plan"])
    return found


PLACES = {"ready", "lease", "parked", "held", "outcome"}
PLACE_OF = {
    "queued": {"ready"}, "running": {"lease"}, "waiting": {"parked"}, "paused": {"held"}, "stuck": {"held"},
    "completed": {"outcome"}, "failed": {"outcome"}, "cancelled": {"outcome"},
}  # fmt: skip


@pytest.mark.parametrize("status", STATUSES)
def test_a_filter_on_status_reads_one_place_only(db, status):
    read = tables_read(
        db, f"select key, workflow, since from pgflow.runs where status = '{status}'"
    )
    assert read & PLACES == PLACE_OF[status]
    assert not {table for table in read if table.startswith("unit")}


def test_a_filter_on_several_statuses_reads_their_places_only(db):
    assert tables_read(
        db, "select key from pgflow.runs where status in ('queued', 'running')"
    ) & PLACES == {"ready", "lease"}


def test_the_timeline_tells_a_run_in_order(db):
    set_clock(db, T0)
    run = begin(db, key="k", tenant="t")
    commit(
        db,
        flush(
            run,
            unit(name="charge", payload='{"b":1,"a":2}'),
            unit("t", 2, None, None, delay_seconds=60),
        ),
    )
    commit(db, flush(run, **{"continue": "{}"}))
    query = "select key, generation, seq, call, event, name, payload::text, due_at, tenant from pgflow.timeline order by generation, seq"
    second = one(db, "select pgflow.newest_run_(%s)", run.chain_id)
    assert rows(db, query) == [
        ("k", 1, 1, 1, "step_completed", "charge", '{"b":1,"a":2}', None, "t"),
        ("k", 1, 2, 2, "timer_started", None, None, T0 + seconds(60), "t"),
        ("k", 1, 3, 0, "continued", None, json.dumps({"run_id": second}).replace(": ", " : "), None,
            "t"),
    ]  # fmt: skip


def test_the_end_of_a_stream_has_a_name_of_its_own(db):
    run = begin(db)
    commit(db, flush(run, unit("e", 1, "log", '"a"'), unit("e", 2, "log", None)))
    query = "select event, name from pgflow.timeline order by seq"
    assert rows(db, query) == [("emitted", "log"), ("stream_closed", "log")]


def test_a_run_names_its_trace(db):
    trace = "0af7651916cd43dd8448eb211c80319c"
    for parent in (f"00-{trace}-b7ad6b7169203331-01", "nonsense"):
        start(db, metadata=json.dumps({"traceparent": parent}))
    assert rows(db, "select trace_id from pgflow.traces order by run_id") == [trace, None]


def test_every_kind_of_unit_has_a_name_and_every_name_a_kind(db):
    allowed = one(
        db,
        "select pg_get_constraintdef(oid) from pg_constraint where contypid = "
        "'pgflow.unit_letter'::regtype",
    )
    kinds = rows(db, "select kind from pgflow.unit_kind")
    assert sorted(kinds) == sorted(set(allowed.split("'")[1::2]))
    found = len({kind for (kind,) in db.execute("select name from pgflow.unit_kind").fetchall()})
    assert found == len(kinds)


STEP = "select call, step, status, attempts, started_at, ended_at, output, error, idempotency_key from pgflow.steps where key = 'k' order by call"


def test_a_step_is_one_row_from_its_licence_to_its_end(db):
    set_clock(db, T0)
    run = begin(db, key="k")
    licence = '[[1,"s","charge",1,5],[2,"s","charge",2,6],[3,"e","pay","dec/pay/x",7],[4,"s","slow",1,0],[5,"s","left",1,0]]'
    commit(db, flush(run, unit("s", 1, "charge", None, starts=licence)))
    set_clock(db, T0 + seconds(1))
    commit(
        db,
        flush(
            run,
            unit("c", 1, "charge", "1", at=T0 + seconds(1)),
            unit("a", 2, "charge", '{"message": "busy"}', delay_seconds=1),
            unit("a", 2, "charge", '{"message": "busy"}', delay_seconds=1),
            unit("f", 2, "charge", '{"message": "no"}', at=T0 + seconds(1)),
            unit("X", 5, "left", None, at=T0 + seconds(1)),
            unit("c", 6, "lookup", "null", at=T0 + seconds(1)),  # a read needs no licence
        ),
    )
    end = T0 + seconds(1)
    assert rows(db, STEP) == [
        (1, "charge", "completed", 1, T0, end, 1, None, f"{run.root}/charge/1"),
        (2, "charge", "failed", 3, T0, end, None, {"message": "no"}, f"{run.root}/charge/2"),
        (4, "slow", "started", 1, T0, None, None, None, f"{run.root}/slow/1"),
        (5, "left", "abandoned", 1, T0, end, None, None, f"{run.root}/left/1"),
        (6, "lookup", "completed", 1, None, end, None, None, None),
    ]


def test_a_step_that_another_worker_did_again_was_begun_more_than_once(db):
    """Each of these was begun under the first lease. What that recorded no end of was cut off, and
    may have acted.
    """
    first = begin(db, key="k")
    licence = '[[1,"s","cut",1,5],[2,"s","whole",1,6],[3,"s","failed",1,7],[4,"s","both",1,8]]'
    commit(
        db,
        flush(
            first,
            unit("s", 1, "cut", None, starts=licence),
            unit("c", 2, "whole", "1"),
            unit("a", 3, "failed", "{}", delay_seconds=1),
        ),
    )
    db.execute("select pgflow.release_runs(%s, %s)", ([first.run_id], [first.token]))
    second = claim_one(db)
    commit(
        db,
        flush(
            second,
            unit("c", 1, "cut", "1"),
            unit("c", 3, "failed", "1"),
            unit("a", 4, "both", "{}", delay_seconds=1),
            unit("c", 4, "both", "1"),
        ),
    )
    assert rows(db, "select step, status, attempts from pgflow.steps order by call") == [
        ("cut", "completed", 2),
        ("whole", "completed", 1),
        ("failed", "completed", 2),
        ("both", "completed", 3),
    ]
    for repeated in ("steps where attempts > 1", "repeated_steps"):
        found = rows(db, f"select step from pgflow.{repeated} order by call")
        assert found == ["cut", "failed", "both"]


def test_a_run_whose_only_trouble_was_a_lost_worker_has_repeated_steps(db):
    for key, is_lost in (("lost", True), ("parked", False)):
        first = begin(db, key=key)
        commit(
            db,
            flush(
                first,
                unit("s", 1, "step", None, starts='[[1,"s","step",1,5]]'),
                *([] if is_lost else [unit("c", 1, "step", "1")]),
            ),
        )
        db.execute("select pgflow.release_runs(%s, %s)", ([first.run_id], [first.token]))
        second = claim_one(db)
        commit(
            db, flush(second, unit("c", 1 if is_lost else 2, "step" if is_lost else "other", "1"))
        )
        finish(db, second)
    found = rows(db, "select key, step, attempts from pgflow.repeated_steps")
    assert found == [("lost", "step", 2)]


def test_a_page_of_steps_reads_the_runs_of_that_page_only(db):
    for _ in range(30):
        run = begin(db)
        commit(
            db,
            flush(
                run,
                *(unit("c", call, "step", "1") for call in range(1, 11)),
                outcome=("completed", None, "null", None),
            ),
        )
    ids = rows(db, "select distinct run_id from pgflow.steps order by run_id")
    page = "select run_id, call from pgflow.steps where run_id >= %s and (run_id, call) > (%s, %s) order by run_id, call limit 7"
    at, seen = (0, 0), []
    while found := db.execute(page, (at[0], *at)).fetchall():
        seen += found
        at = found[-1]
    assert seen == [(run_id, call) for run_id in ids for call in range(1, 11)]
    # Of thirty runs, any way is cheap, and which one is the cheapest depends on the rows that other
    # tests have left behind.
    db.execute("set local enable_sort = off")
    db.execute("set local enable_seqscan = off")
    (plan,) = db.execute(
        "explain (analyze, costs off, timing off, summary off, format json) " + page,
        (ids[15], ids[15], 5),
    ).fetchone()
    loops = [
        node["Actual Loops"] for node in walk(plan[0]["Plan"]) if node["Node Type"] == "Aggregate"
    ]
    assert loops, plan
    assert max(loops) <= 3


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from walk(below)


def test_the_idempotency_key_of_a_later_generation_names_it(db):
    first = begin(db, key="k")
    commit(db, flush(first, **{"continue": "{}"}))
    second = claim_one(db)
    commit(db, flush(second, unit("s", 1, "charge", None, starts='[[1,"s","charge",1,0]]')))
    assert one(db, "select idempotency_key from pgflow.steps") == f"{first.root}~2/charge/1"


def test_queues_show_what_stands_where(db, one_of_each):
    set_clock(db, T0 + seconds(9))
    start(db, "another", queue="q")
    db.execute(
        "select pgflow.set_queue('q', jsonb_build_object('concurrency', 7, 'max_deaths', 9)), pgflow.pause_queue('empty')"
    )
    query = "select queue, queued, running, waiting, paused, stuck, oldest_queued_at, max_running, max_deaths, paused_at from pgflow.queues order by 1"
    assert rows(db, query) == [
        ("empty", 0, 0, 0, 0, 0, None, None, 5, T0 + seconds(9)),
        ("q", 2, 1, 1, 1, 1, T0, 7, 9, None),
    ]
    query = "select workflow, queued from pgflow.lanes where queued > 0 order by 1"
    assert rows(db, query) == [("another", 1), ("queued", 1)]


def test_workers_show_what_they_hold(db):
    busy, idle = register(db, "a"), register(db, "b")
    start_many(db, [(None, "{}")] * 3)
    claim(db, 3, worker=busy)
    assert rows(db, "select worker_id, host, running from pgflow.workers order by worker_id") == [
        (busy, "a", 3),
        (idle, "b", 0),
    ]


def test_result_tells_how_a_run_stands_and_how_it_ended(db, one_of_each):
    query = "select status, output::text, error::text, reason from pgflow.result(%s)"
    assert [one(db, query, status) for status in STATUSES] == [
        ("queued", None, None, None), ("running", None, None, None), ("waiting", None, None, None),
        ("paused", None, None, "lunch"), ("stuck", None, '{"line": 7}', "nondeterminism"),
        ("completed", '{"b":1,"a":-0.0}', None, None), ("failed", None, '{"message":"no"}', None),
        ("cancelled", None, None, "asked"),
    ]  # fmt: skip


def test_results_answer_for_those_that_have_ended_are_stuck_or_are_gone(db, one_of_each):
    found = rows(
        db,
        "select chain_id, status, output, error from pgflow.results(%s) order by 1",
        [*one_of_each.values(), 10**9],
    )
    assert found == [
        (one_of_each["stuck"], "stuck", None, '{"line": 7}'),
        (one_of_each["completed"], "completed", '{"b":1,"a":-0.0}', None),
        (one_of_each["failed"], "failed", None, '{"message":"no"}'),
        (one_of_each["cancelled"], "cancelled", None, None),
        (10**9, "gone", None, None),
    ]


def test_results_follow_a_chain_to_its_end(db):
    first = begin(db, key="k")
    commit(db, flush(first, **{"continue": "{}"}))
    assert rows(db, "select status from pgflow.results(%s)", [first.chain_id]) == []
    finish(db, claim_one(db), output="2")
    found = rows(db, "select chain_id, output from pgflow.results(%s)", [first.chain_id])
    assert found == [(first.chain_id, "2")]


@pytest.mark.parametrize("verb", [
    "result('k')", "run_status('k')", "run_state('k')", "find_chain('k')", "read_stream('k', 's')",
])  # fmt: skip
def test_a_question_about_an_unknown_key_is_refused(db, verb):
    start(db, key="k", tenant="other")
    with pytest.raises(psycopg.Error) as error, db.transaction():
        db.execute(f"select * from pgflow.{verb}")
    assert error.value.sqlstate == "PF001"


def test_the_state_of_a_run_is_the_last_word_on_each_key(db):
    run = begin(db, key="k")
    assert one(db, "select pgflow.run_state('k')") == {}
    states = ['{"a": 1, "b": null}', '{"c": {"x": 1}}', '{"a": 2, "c": {}}', "{}"]
    commit(db, flush(run, *(unit("v", n, None, text) for n, text in enumerate(states, 1))))
    assert one(db, "select pgflow.run_state('k')") == {"a": 2, "b": None, "c": {}}
    commit(db, flush(run, **{"continue": "{}"}))
    assert one(db, "select pgflow.run_state('k')") == {}


READ_STREAM = "select run_id, seq, value from pgflow.read_stream('k', 'log', after_run => %s, after_seq => %s, skip => %s, max => %s)"


def test_a_stream_is_read_in_order_over_generations_and_in_pages(db):
    expected = []
    run = begin(db, key="k")
    for generation in range(3):
        values = [f'{{"g":{generation},"n":{n}}}' for n in range(4)]
        emitted = [
            u
            for n, value in enumerate(values)
            for u in (
                unit("e", 3 * n + 1, "log", value),
                unit("e", 3 * n + 2, "other", "0"),
                unit("v", 3 * n + 3, None, "{}"),
            )
        ]
        commit(db, flush(run, *emitted))
        expected += [(run.run_id, 1 + 3 * n, value) for n, value in enumerate(values)]
        if generation < 2:
            commit(db, flush(run, **{"continue": "{}"}))
            run = claim_one(db)
    start(db, key="noise")
    noise = claim_one(db)
    commit(db, flush(noise, unit("e", 1, "log", "-1")))
    assert rows(db, READ_STREAM, 0, 0, 0, 1000) == expected
    pages, after = [], (0, 0)
    while page := rows(db, READ_STREAM, *after, 0, 5):
        pages.append(page)
        after = page[-1][:2]
    assert [len(page) for page in pages] == [5, 5, 2]
    assert [row for page in pages for row in page] == expected
    assert rows(db, READ_STREAM, 0, 0, 3, 2) == expected[3:5]


def test_a_tenant_asks_for_its_own_runs(db):
    start(db, key="k", tenant="a")
    start(db, key="k", tenant="b")
    finish(db, claim(db, 2)[1], output='"b"')
    assert [
        one(db, "select status, output from pgflow.result('k', %s)", tenant) for tenant in "ab"
    ] == [("running", None), ("completed", "b")]
    found = [one(db, "select pgflow.run_status('k', %s)", tenant) for tenant in "ab"]
    assert found == ["running", "completed"]


def test_whoever_reads_while_a_run_moves_sees_it_in_one_place(dsn, conn):
    run = begin(conn, key="k")
    with connect(dsn) as reader, connect(dsn) as second:
        query = "select status from pgflow.runs where key = 'k'"
        with conn.transaction():
            commit(conn, sleep_for(run, 60))
            assert rows(reader, query) == ["running"]
            assert one(second, "select pgflow.run_status('k')") == "running"
        assert rows(reader, query) == ["waiting"]
        with conn.transaction():
            one(conn, "select pgflow.cancel_run('k', force => true)")
        with conn.transaction():
            wake(conn, run.chain_id)
            assert rows(reader, query) == ["waiting"]
        assert rows(reader, query) == ["cancelled"]


def is_by_index(conn: Conn, query: str) -> bool:
    """Return True if the plan of a query reads neither all runs nor the whole journal."""
    found: list[str] = []

    def walk(node: dict[str, Any]) -> None:
        # The history is in the first partition; those that are still empty may be read whole.
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in ("run", "unit_0"):
            found.append(node["Relation Name"])
        for below in node.get("Plans", ()):
            walk(below)

    walk(one(conn, f"explain (format json) {query}")[0]["Plan"])
    return not found


@pytest.fixture
def history(db: Conn) -> None:
    """Enough finished runs for an index to pay."""
    start_many(db, [(f"key-{n}", "{}") for n in range(3000)])
    for _ in range(12):
        runs = claim(db, 250)
        commit(
            db,
            *(
                flush(run, unit(), unit(call=2), outcome=("completed", None, "1", None))
                for run in runs
            ),
        )
    db.execute("analyze pgflow.run, pgflow.unit, pgflow.outcome, pgflow.lane, pgflow.run_key")


@pytest.mark.full
@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("view", ["runs", "steps", "timeline"])
@pytest.mark.parametrize("column", ["key", "run_id"])
def test_what_happened_to_one_run_is_found_by_index(db, view, column):
    run_id = one(db, "select run_id from pgflow.run where key = 'key-7'")
    value = "'key-7'" if column == "key" else str(run_id)
    assert is_by_index(db, f"select * from pgflow.{view} where {column} = {value}")
