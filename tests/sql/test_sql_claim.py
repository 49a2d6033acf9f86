"""Claiming: in order, never more than asked, never twice, never beyond a limit - and without
waiting for anybody.
"""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlkit
from servers import HANG_SECONDS
from sqlkit import (
    T0,
    Claim,
    claim,
    claim_one,
    connect,
    count,
    flush,
    one,
    register,
    rows,
    start,
    start_many,
    status,
    unit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    Conn = psycopg.Connection[Any]


def start_in(conn: Conn, workflow: str, queue: str = "default", priority: int = 0) -> int:
    return start(conn, workflow, queue=queue, priority=priority).run_id


def lane_of(conn: Conn, workflow: str, queue: str = "default") -> int:
    return one(
        conn, "select lane_id from pgflow.lane where queue = %s and workflow = %s", queue, workflow
    )


def limit(conn: Conn, max_running: int | None, queue: str = "default") -> None:
    conn.execute(
        "select pgflow.set_queue(%s, jsonb_build_object('concurrency', %s::int))",
        (queue, max_running),
    )


def die(conn: Conn, worker: int) -> None:
    """The worker is declared dead."""
    beat = one(conn, "select beat from pgflow.worker where worker_id = %s", worker)
    conn.execute("select pgflow.reap_worker(%s, %s)", (worker, beat))


def make_suspect(conn: Conn, run_id: int) -> None:
    """Two workers have died with this run, which has recorded nothing and goes on alone."""
    conn.execute("update pgflow.ready set suspect = 2, company = 1 where run_id = %s", (run_id,))


def run_ids(claims: list[Claim]) -> list[int]:
    return [c.run_id for c in claims]


def test_claims_go_by_priority_over_all_lanes_and_then_first_in_first_out(db):
    plan = [("a", 0), ("b", 5), ("a", -3), ("b", 0), ("c", 0), ("a", 5), ("c", -3), ("b", 0)]
    started = [
        (priority, n, start_in(db, workflow, priority=priority))
        for n, (workflow, priority) in enumerate(plan)
    ]
    expected = [run_id for *_, run_id in sorted(started)]
    assert run_ids(claim(db, 3)) + run_ids(claim(db, 10)) == expected


def test_a_run_that_comes_back_goes_before_those_that_started_after_it(db):
    ids = [start_in(db, "a") for _ in range(4)]
    back, woken, _ = claim(db, 3)
    sqlkit.commit(db, sqlkit.wait_for(woken, "paid"))
    sqlkit.send(db, woken.key, "paid")
    sqlkit.poll(db)
    db.execute("select pgflow.release_runs(%s, %s)", ([back.run_id], [back.token]))
    assert run_ids(claim(db, 3)) == [ids[0], ids[1], ids[3]]


def test_a_claim_never_takes_more_than_asked(db):
    start_many(db, [(None, "{}")] * 20, "a")
    start_many(db, [(None, "{}")] * 20, "b")
    assert [len(claim(db, n)) for n in (0, -1, 1, 7, 100)] == [0, 0, 1, 7, 32]


def test_a_claim_takes_only_from_the_lanes_it_names(db):
    start_in(db, "a")
    b = start_in(db, "b")
    assert claim(db, 5, lanes=[]) == []
    assert claim(db, 5, lanes=[-1, 999_999]) == []
    assert run_ids(claim(db, 5, lanes=[lane_of(db, "b"), lane_of(db, "b")])) == [b]


def claim_one_with_everything(db: Conn) -> tuple[Any, Any, Any]:
    """A run with all that a start can say, claimed; the start, the worker and the claim."""
    sqlkit.set_clock(db, T0)
    started = start(
        db,
        key="k",
        input='{"b":1, "a":2}',
        labels='{"x": "y"}',
        metadata='{"m": [null]}',
        tenant="t",
        timeout_seconds=9,
        queue="q",
    )
    worker = register(db)
    return started, worker, claim_one(db, worker=worker)


def test_a_claim_tells_what_a_worker_must_know(db):
    started, _, claimed = claim_one_with_everything(db)
    assert (claimed.run_id, claimed.chain_id, claimed.lane_id, claimed.generation) == (
        started.run_id, started.run_id, started.lane_id, 1,
    )  # fmt: skip
    assert (
        claimed.attempt,
        claimed.suspect,
        claimed.last_seq,
        claimed.units,
        claimed.has_mail,
    ) == (1, 0, 0, None, False)
    assert (claimed.key, claimed.input, claimed.created_us, claimed.now_us) == (
        "k", '{"b":1, "a":2}', sqlkit.micros(T0), sqlkit.micros(T0),
    )  # fmt: skip
    assert claimed.root == one(db, "select root::text from pgflow.run_key")


def test_a_claim_tells_what_few_runs_have_and_nothing_of_a_plain_one(db):
    _, _, claimed = claim_one_with_everything(db)
    assert claimed.extra == {
        "labels": {"x": "y"}, "metadata": {"m": [None]}, "parent_run_id": None, "leaves_saga": None,
        "tenant": "t", "deadline_us": sqlkit.micros(T0) + 9_000_000, "beats": False,
        "heritage": None, "saga": None, "offer": None, "pool": None,
    }  # fmt: skip
    start(db, key="plain")
    assert claim_one(db).extra is None


def test_a_claim_leaves_a_lease_with_its_worker(db):
    started, worker, claimed = claim_one_with_everything(db)
    found = one(db, "select token, worker_id, lane_id, attempt from pgflow.lease")
    assert found == (claimed.token, worker, started.lane_id, 1)


def test_a_claim_tells_of_mail_that_cannot_wait(db):
    for key in ("none", "signal", "cancel", "pause"):
        run = sqlkit.begin(db, key, key=key)
        sqlkit.commit(db, flush(run, unit()))
        db.execute("select pgflow.release_runs(%s, %s)", ([run.run_id], [run.token]))
    sqlkit.send(db, "signal", "x")
    db.execute("select pgflow.cancel_run('cancel'), pgflow.pause_run('pause')")
    found = {c.key: c.has_mail for c in claim(db, 9)}
    assert found == {"none": False, "signal": False, "cancel": True, "pause": True}


PLANNER = (
    "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan", "enable_tidscan", "enable_sort", "enable_nestloop", "enable_material",
    "enable_memoize", "enable_hashjoin", "enable_mergejoin", "enable_hashagg",
)  # fmt: skip
NESTED_LOOPS = {
    "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan", "enable_tidscan",
    "enable_nestloop",
}  # fmt: skip
"""With nothing else enabled, what is in an IN (...) is run again for each row."""
CLAIMS_OF_CHANCE = 127


def plans() -> Iterator[set[str]]:
    """Yield sets of enabled planner options."""
    chance = random.Random(24)
    yield NESTED_LOOPS
    for _ in range(CLAIMS_OF_CHANCE):
        yield {name for name in PLANNER if chance.random() < 0.5}


@pytest.mark.full
@pytest.mark.parametrize("lanes", [1, 3], ids=["one lane", "three lanes"])
def test_no_plan_makes_a_claim_take_more_than_asked(db, lanes):
    for n in range(lanes):
        start_many(db, [(None, "{}")] * (900 // lanes), f"w{n}")
    worker = register(db)
    left = rows(db, "select run_id from pgflow.ready order by priority, run_id")
    for enabled in plans():
        db.execute("discard plans")
        for name in PLANNER:
            db.execute(f"set local {name} = {'on' if name in enabled else 'off'}")
        db.execute(
            "set local plan_cache_mode = "
            f"{'force_generic_plan' if 'enable_sort' in enabled else 'force_custom_plan'}"
        )
        assert run_ids(claim(db, 7, worker=worker)) == left[:7], enabled
        del left[:7]
    assert count(db, "lease") == 7 * (CLAIMS_OF_CHANCE + 1)


@pytest.mark.full
@pytest.mark.parametrize("lanes", [1, 5], ids=["one lane", "five lanes"])
def test_no_run_is_claimed_twice_and_none_is_left_out(dsn, conn, lanes):
    total = 10_000 if lanes == 1 else 3_000
    for n in range(lanes):
        start_many(conn, [(None, "{}")] * (total // lanes), f"w{n}")

    def take_all(c: Conn, _: int) -> list[int]:
        worker, lanes = register(c), sqlkit.all_lanes(c)
        taken: list[int] = []
        while more := claim(c, 50, worker=worker, lanes=lanes):
            assert len(more) <= 50
            taken += run_ids(more)
        return taken

    parts = sqlkit.race(dsn, 4, take_all)
    taken = [run_id for part in parts for run_id in part]
    assert len(taken) == len(set(taken))
    # Whoever finds only rows that others have locked gives up; the next poll takes what is left.
    taken += run_ids(claim(conn, total))
    assert sorted(taken) == rows(conn, "select run_id from pgflow.run order by run_id")
    assert one(conn, "select count(distinct token) from pgflow.lease") == total


@pytest.mark.parametrize("workflows", [["a"], ["a", "b"]], ids=["one lane", "two lanes"])
def test_a_claim_steps_over_rows_that_are_locked(dsn, conn, workflows):
    ids = [start_in(conn, workflow) for _ in range(4) for workflow in workflows]
    with connect(dsn) as claimer, connect(dsn) as other, other.transaction():
        other.execute("select from pgflow.ready where run_id = any(%s) for update", (ids[:2],))
        assert run_ids(claim(claimer, 1)) == [ids[2]]


def test_a_claim_beside_one_that_is_not_committed_takes_the_next_runs(dsn, conn):
    ids = [start_in(conn, "a") for _ in range(6)]
    with connect(dsn) as second:
        with conn.transaction():
            assert run_ids(claim(conn, 3)) == ids[:3]
            assert run_ids(claim(second, 2)) == ids[3:5]
        with conn.transaction(force_rollback=True):
            assert run_ids(claim(conn, 3)) == ids[5:]
            assert claim(second, 3) == []
        assert run_ids(claim(second, 3)) == ids[5:]


def test_a_claim_that_steps_over_locked_rows_still_goes_by_priority(dsn, conn):
    ids = [
        start_in(conn, workflow, priority=priority)
        for workflow, priority in (("a", 9), ("b", 8), ("a", 2), ("b", 1))
    ]
    with connect(dsn) as claimer, connect(dsn) as other, other.transaction():
        other.execute("select from pgflow.ready where run_id = %s for update", (ids[3],))
        assert run_ids(claim(claimer, 1)) == [ids[2]]


def test_a_paused_queue_gives_nothing_until_it_is_resumed(db):
    sqlkit.set_clock(db, T0)
    held, free = start_in(db, "a", "held"), start_in(db, "a", "free")
    running = start_in(db, "b", "held")
    claim_one(db, lanes=[lane_of(db, "b", "held")])
    db.execute("select pgflow.pause_queue('held')")
    assert run_ids(claim(db, 5)) == [free]
    assert status(db, running) == "running"
    db.execute("select pgflow.pause_queue('held')")
    assert one(db, "select paused_at from pgflow.queue where queue = 'held'") == T0
    db.execute("select pgflow.resume_queue('held')")
    assert run_ids(claim(db, 5)) == [held]


def test_a_queue_may_be_paused_before_anything_is_in_it(db):
    db.execute("select pgflow.pause_queue('later')")
    start_in(db, "a", "later")
    assert claim(db, 5) == []
    db.execute("select pgflow.resume_queue('unknown')")
    assert rows(db, "select queue from pgflow.queue") == ["later"]


def test_a_paused_lane_gives_nothing(db):
    start_in(db, "a")
    b = start_in(db, "b")
    db.execute("update pgflow.lane set paused_at = pgflow.now_() where workflow = 'a'")
    assert run_ids(claim(db, 5)) == [b]


def test_runs_that_nobody_here_serves_do_not_clog_the_head(db):
    for n in range(20):
        start_many(db, [(None, "{}")] * 50, f"unknown{n}", priority=-100)
    db.execute("analyze pgflow.ready")
    mine = [start_in(db, "mine"), start_in(db, "mine too")]
    assert run_ids(claim(db, 5, lanes=[lane_of(db, "mine"), lane_of(db, "mine too")])) == mine


def test_serve_lanes_makes_the_lanes_of_every_pair_and_answers_those_pinned_to_the_version_that_is_served(
    db,
):
    start_in(db, "b", "q1")
    db.execute(
        "insert into pgflow.lane (queue, workflow, version) values ('q1', 'a', 'v2'), ('q1', 'a', "
        "'v1'), ('q3', 'a', '')"
    )
    found = rows(
        db,
        "select queue, workflow, version from pgflow.serve_lanes(%s, %s, %s)",
        ["q1", "q2"],
        ["a", "b"],
        ["v2", "v1"],
    )
    assert sorted(found) == [
        ("q1", "a", ""), ("q1", "a", "v2"), ("q1", "b", ""), ("q2", "a", ""), ("q2", "b", ""),
    ]  # fmt: skip
    assert rows(db, "select queue from pgflow.queue order by queue") == ["q1", "q2"]


def test_workers_that_name_the_same_new_lanes_at_once_agree_on_them(dsn, conn):
    workflows = [f"w{n}" for n in range(30)]
    query = "select array_agg(lane_id order by workflow) from pgflow.serve_lanes(%s, %s)"
    answers = sqlkit.race(
        dsn, 4, lambda c, n: one(c, query, ["q"], workflows if n % 2 else workflows[::-1])
    )
    assert answers == [answers[0]] * 4
    assert count(conn, "lane") == 30


def test_a_limit_holds_over_all_lanes_of_its_queue_and_counts_what_ends(db):
    for _ in range(4):
        start_in(db, "a", "few")
        start_in(db, "b", "few")
        start_in(db, "c", "many")
    limit(db, 3, "few")
    only_a = [lane_of(db, "a", "few")]
    first = claim(db, 2, lanes=only_a)
    assert len(first) == 2
    # Leases of lanes that this claim does not name count too.
    assert len(claim(db, 9, lanes=[lane_of(db, "b", "few")])) == 1
    assert claim(db, 9, lanes=only_a) == []
    assert len(claim(db, 9)) == 4
    sqlkit.finish(db, first[0])
    sqlkit.commit(db, sqlkit.wait_for(first[1], "x"))
    assert len(claim(db, 9)) == 2


def test_a_limit_can_be_lowered_raised_and_lifted_while_runs_go_on(db):
    start_many(db, [(None, "{}")] * 20)
    limit(db, 4)
    held = claim(db, 9)
    assert len(held) == 4
    limit(db, 2)
    for n, expected in enumerate((0, 0, 1)):
        sqlkit.finish(db, held[n])
        assert len(claim(db, 9)) == expected, n
    limit(db, 3)
    assert len(claim(db, 9)) == 1
    limit(db, None)
    assert len(claim(db, 9)) == 9


@pytest.mark.parametrize(
    "rule", ["'concurrency', 0", "'concurrency', -1", "'max_deaths', 0", "'max_deaths', 1001"]
)
def test_a_limit_that_makes_no_sense_is_refused(db, rule):
    with pytest.raises(psycopg.Error) as error, db.transaction():
        db.execute(f"select pgflow.set_queue('q', jsonb_build_object({rule}))")
    assert error.value.sqlstate == "PF003"


def test_setting_a_limit_keeps_the_number_of_deaths_unless_told(db):
    query = "select max_running, max_deaths from pgflow.queue"
    db.execute(
        "select pgflow.set_queue('q', jsonb_build_object('concurrency', 3, 'max_deaths', 7))"
    )
    db.execute("select pgflow.set_queue('q', jsonb_build_object('concurrency', 4))")
    assert one(db, query) == (4, 7)
    db.execute("select pgflow.set_queue('q', jsonb_build_object('concurrency', null))")
    assert one(db, query) == (None, 7)


def test_a_limit_is_never_exceeded_at_any_instant(dsn, conn):
    most, workers, turns = 5, 4, 20
    for workflow in ("a", "b"):
        start_many(conn, [(None, "{}")] * (workers * turns * workers), workflow)
    limit(conn, most)
    all_see_it_full = threading.Barrier(workers)

    def work(c: Conn, n: int) -> tuple[int, int]:
        """Holds what it claims until the queue is full, then takes turns: each counts the leases of
        all after each claim.
        """
        worker, lanes = register(c), sqlkit.all_lanes(c)
        claims, seen, done, taken = [], 0, 0, 0
        while seen < most:  # together they want ten
            claims += claim(c, 1 + n, worker=worker, lanes=lanes)
            seen = max(seen, count(c, "lease"))
        all_see_it_full.wait()
        while taken < turns:
            if claims:
                sqlkit.commit(
                    c, *(flush(x, outcome=("completed", None, "null", None)) for x in claims)
                )
                done, taken = done + len(claims), taken + 1
            claims = claim(c, 1 + n, worker=worker, lanes=lanes)
            seen = max(seen, count(c, "lease"))
        if claims:
            sqlkit.commit(c, *(flush(x, outcome=("completed", None, "null", None)) for x in claims))
        return done + len(claims), seen

    answers = sqlkit.race(dsn, workers, work)
    assert max(seen for _, seen in answers) == most
    assert sum(done for done, _ in answers) == count(conn, "outcome") >= workers * turns
    assert min(done for done, _ in answers) >= turns


def test_a_claim_waits_for_another_of_the_same_limited_queue_and_then_counts_its_leases(dsn, conn):
    start_many(conn, [(None, "{}")] * 9)
    start_many(conn, [(None, "{}")] * 9, "free", queue="free")
    limit(conn, 3)
    lane = [lane_of(conn, "demo")]
    with sqlkit.Actor(dsn) as second:
        with connect(dsn) as first, first.transaction():
            assert len(claim(first, 2, lanes=lane)) == 2
            answer = second.do(claim, 9, lanes=lane)
            second.until_waiting(conn, answer)
            with connect(dsn) as third:
                assert len(claim(third, 2, lanes=[lane_of(conn, "free", "free")])) == 2
        assert len(answer.result()) == 1


def test_suspects_never_block_the_others(db):
    bad = [start_in(db, "a", priority=-9) for _ in range(3)]
    good = [start_in(db, "a") for _ in range(3)]
    for run_id in bad:
        make_suspect(db, run_id)
    first = claim(db, 3)
    assert run_ids(first) == [bad[0], *good[:2]]
    assert [c.suspect for c in first] == [2, 0, 0]
    assert run_ids(claim(db, 3, take_suspect=False)) == [good[2]]
    assert claim(db, 3, take_suspect=False) == []
    assert run_ids(claim(db, 3)) == [bad[1]]
    assert run_ids(claim(db, 1)) == [bad[2]]


def test_a_suspect_that_another_worker_is_claiming_blocks_nobody(dsn, conn):
    bad, good = start_in(conn, "a", priority=-9), start_in(conn, "a")
    make_suspect(conn, bad)
    with connect(dsn) as second, conn.transaction():
        assert run_ids(claim(conn, 1)) == [bad]
        assert run_ids(claim(second, 2)) == [good]


def test_a_claim_takes_one_suspect_over_limited_and_unlimited_queues_together(db):
    ids = [start_in(db, "a", queue) for queue in ("l1", "l1", "l2", "free")]
    for run_id in ids:
        make_suspect(db, run_id)
    limit(db, 5, "l1")
    limit(db, 5, "l2")
    assert [len(claim(db, 9)) for _ in range(5)] == [1, 1, 1, 1, 0]


def test_a_limited_queue_of_one_goes_on_beside_a_suspect(db):
    limit(db, 1)
    bad, good = start_in(db, "a"), start_in(db, "a")
    make_suspect(db, bad)
    taken = []
    for _ in range(2):
        claimed = claim_one(db)
        taken.append(claimed.run_id)
        assert claim(db, 9) == []
        sqlkit.finish(db, claimed)
    assert sorted(taken) == [bad, good]


def test_a_backlog_does_not_starve_a_suspect_of_a_limited_queue(db):
    limit(db, 1)
    bad = start_in(db, "a")
    make_suspect(db, bad)
    start_many(db, [(None, "{}")] * 20, "a")
    taken = []
    for _ in range(10):
        claimed = claim_one(db)
        taken.append(claimed.run_id)
        sqlkit.finish(db, claimed)
    assert bad in taken


@pytest.mark.unsound
def test_claims_come_in_their_order_though_statistics_know_of_no_lease(db):
    for _ in range(20):
        start_in(db, "a")
    claim(db, 20)
    db.execute("delete from pgflow.lease")
    db.execute("analyze pgflow.lease")
    started = sorted(
        (priority, start_in(db, "a", priority=priority)) for priority in [0, 0, -1, 1, 0]
    )
    assert run_ids(claim(db, 10)) == [run_id for _, run_id in started]


def claim_behind(
    conn: Conn, position: tuple[int, int], max_runs: int = 10, **options: Any
) -> list[int]:
    worker, lanes = register(conn), options.get("lanes") or sqlkit.all_lanes(conn)
    query = "select run_id from pgflow.claim_runs(%s, %s, %s, %s, true, %s)"
    return sorted(
        rows(conn, query, worker, lanes, max_runs, sqlkit.tokens(max_runs), list(position))
    )


@pytest.mark.parametrize("workflows", [("a", "a"), ("a", "b")], ids=["one lane", "two lanes"])
def test_a_claim_that_reads_on_takes_what_stands_behind_in_the_order_of_claiming(db, workflows):
    started = sorted(
        (priority, start_in(db, workflows[n % 2], priority=priority))
        for n, priority in enumerate([0, 0, -1, 1, 0, 1, -1, 0])
    )
    position = started[3]
    assert claim_behind(db, position, 3) == sorted(run_id for _, run_id in started[4:7])
    assert claim_behind(db, position) == [started[7][1]]
    assert claim_behind(db, position) == []
    assert run_ids(claim(db, 10)) == [run_id for _, run_id in started[:4]]


def test_a_claim_that_reads_on_keeps_to_limits_and_takes_a_suspect_wherever_it_stands(db):
    first, suspect, *rest = [start_in(db, "a", "q") for _ in range(6)]
    make_suspect(db, suspect)
    limit(db, 3, "q")
    assert claim_behind(db, (0, rest[0])) == [suspect, rest[1], rest[2]]
    assert claim_behind(db, (0, rest[0])) == []
    limit(db, None, "q")
    assert run_ids(claim(db, 10)) == [first, rest[0], rest[3]]


def test_a_claim_tells_where_the_runs_stand_and_how_long_it_looked(db):
    run = start_in(db, "a", priority=-7)
    ((run_id, priority, took_us),) = rows(
        db,
        "select run_id, priority, took_us from pgflow.claim_runs(%s, %s, 1, '{1}')",
        register(db),
        sqlkit.all_lanes(db),
    )
    assert (run_id, priority) == (run, -7)
    assert 0 < took_us < 10_000_000


@pytest.mark.parametrize(
    "verb",
    [
        "claim_runs(%(w)s, %(l)s, 1, '{1}')",
        "commit_and_claim('{\"r\": []}', %(w)s, %(l)s, 1, '{1}', true)",
    ],
)
def test_a_worker_that_is_not_registered_claims_nothing(db, verb):
    run = start_in(db, "a")
    worker = register(db)
    die(db, worker)
    with (
        pytest.raises(psycopg.Error, match="not registered, or was declared dead") as error,
        db.transaction(),
    ):
        db.execute(f"select * from pgflow.{verb}", {"w": worker, "l": [lane_of(db, "a")]})
    assert error.value.sqlstate == "PF004"
    assert status(db, run) == "queued"


def with_journal(conn: Conn, payloads: list[str]) -> Claim:
    """A run that has recorded these payloads and was handed back."""
    run = sqlkit.begin(conn)
    sqlkit.commit(
        conn, flush(run, *(unit(call=n, payload=payload) for n, payload in enumerate(payloads, 1)))
    )
    conn.execute("select pgflow.release_runs(%s, %s)", ([run.run_id], [run.token]))
    return claim_one(conn)


def read_pages(conn: Conn, run: Claim) -> list[list[list[Any]]]:
    pages = [json.loads(run.units)] if run.units else []
    after = pages[-1][-1][0] if pages else 0
    while page := one(conn, "select pgflow.load_units(%s, %s)", run.run_id, after):
        pages.append(json.loads(page))
        after = pages[-1][-1][0]
    return pages


def test_a_short_journal_comes_with_the_claim(db):
    run = with_journal(db, ['{"b":1,"a":-0.0}', "1e22", '"\\u00e9"', "null"])
    assert run.last_seq == 4
    assert one(db, "select pgflow.load_units(%s, 4)", run.run_id) is None
    (page,) = read_pages(db, run)
    assert [(seq, call, kind, name, payload) for seq, call, kind, name, payload, *_ in page] == [
        (1, 1, "c", "step", '{"b":1,"a":-0.0}'),
        (2, 2, "c", "step", "1e22"),
        (3, 3, "c", "step", '"\\u00e9"'),
        (4, 4, "c", "step", "null"),
    ]


def test_a_long_journal_comes_in_pages_in_the_order_in_which_it_was_recorded(db):
    """Calls that end in another order than they were issued: the last page holds the first
    calls.
    """
    run = sqlkit.begin(db)
    length = 4500
    sqlkit.commit(
        db, flush(run, *(unit(call=length + 1 - n, payload=str(n)) for n in range(1, length + 1)))
    )
    pages = []
    after = 0
    while page := one(db, "select pgflow.load_units(%s, %s)", run.run_id, after):
        pages.append(json.loads(page))
        after += len(pages[-1])  # as a worker asks, whose journal has no gap
    assert len(pages) > 2
    units = [(seq, call, payload) for page in pages for seq, call, _, _, payload, *_ in page]
    assert len(units) == length
    # The first that differs: a comparison of two lists of this length takes pytest minutes.
    expected = ((n, length + 1 - n, str(n)) for n in range(1, length + 1))
    assert next(((u, e) for u, e in zip(units, expected, strict=True) if u != e), None) is None


def test_a_unit_travels_with_its_licences_and_times(db):
    sqlkit.set_clock(db, T0)
    run = sqlkit.begin(db)
    licence = '[[2,"s","charge",1,-5]]'
    sqlkit.commit(
        db,
        flush(
            run,
            unit("t", 1, None, None, starts=licence, delay_seconds=1.5, at=T0 - sqlkit.seconds(1)),
        ),
    )
    (row,) = json.loads(one(db, "select pgflow.load_units(%s, 0)", run.run_id))
    at = sqlkit.micros(T0)
    assert row == [
        1, 1, "t", None, None, [[2, "s", "charge", 1, -5]], at - 1_000_000, at + 1_500_000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "units"),
    [('"x"', 4500), (f'"{"y" * 50_000}"', 40), (f'"{"z" * 900_000}"', 3)],
    ids=["many", "large", "huge"],
)
def test_a_long_journal_comes_in_pages_without_gap_or_overlap(db, payload, units):
    run = with_journal(db, [payload] * units)
    assert run.last_seq == units
    pages = read_pages(db, run)
    assert [unit[0] for page in pages for unit in page] == list(range(1, units + 1))
    assert len(pages) > 1
    assert run.units is not None
    assert len(run.units) < 2 * 1024 * 1024


def test_runs_handed_back_are_ready_and_the_attempt_is_not_counted(db):
    run = sqlkit.begin(db)
    sqlkit.commit(db, flush(run, unit(), unit(call=2)))
    assert one(db, "select pgflow.release_runs(%s, %s)", [run.run_id], [run.token]) == [run.run_id]
    assert one(db, "select last_seq, attempt, suspect from pgflow.ready") == (2, 0, 0)
    assert claim_one(db).attempt == 1


def test_only_the_holder_of_the_token_hands_a_run_back(db):
    mine, other = sqlkit.begin(db), sqlkit.begin(db)
    query = "select pgflow.release_runs(%s, %s)"
    found = one(db, query, [other.run_id, mine.run_id, 999], [mine.token, mine.token, 1])
    assert found == [mine.run_id]
    assert status(db, other.run_id) == "running"
    assert one(db, query, [mine.run_id], [mine.token]) == []
    assert one(db, query, [], []) == []


def test_a_run_is_not_handed_back_before_the_commit_on_its_way_has_arrived(dsn, conn):
    run = sqlkit.begin(conn)
    with sqlkit.Actor(dsn) as other:
        with connect(dsn) as committer, committer.transaction():
            sqlkit.commit(committer, flush(run, unit()))
            answer = other.do(one, "select pgflow.release_runs(%s, %s)", [run.run_id], [run.token])
            other.until_waiting(conn)
        assert answer.result() == [run.run_id]
    assert one(conn, "select last_seq from pgflow.ready") == 1


def test_a_run_that_ends_meanwhile_is_not_handed_back(dsn, conn):
    run = sqlkit.begin(conn)
    with sqlkit.Actor(dsn) as other:
        with connect(dsn) as committer, committer.transaction():
            sqlkit.finish(committer, run)
            answer = other.do(one, "select pgflow.release_runs(%s, %s)", [run.run_id], [run.token])
            other.until_waiting(conn)
        assert answer.result() == []
    assert status(conn, run.run_id) == "completed"


def test_strays_are_handed_back_if_they_were_claimed_before_a_time(db):
    sqlkit.set_clock(db, T0)
    worker, other = register(db), register(db)
    start_many(db, [(None, "{}")] * 4)
    known, *strays = claim(db, 3, worker=worker)
    claim_one(db, worker=other)
    query = "select (pgflow.release_strays(%s, %s, %s)).strays"
    later = T0 + sqlkit.seconds(0.001)
    sqlkit.set_clock(db, T0 + sqlkit.seconds(5))
    for before in (None, T0):
        assert one(db, query, worker, [known.run_id], before) == 0
    assert one(db, query, worker, [known.run_id], later) == 2
    assert {status(db, c.run_id) for c in strays} == {"queued"}
    assert count(db, "lease") == 2
    assert one(db, query, worker, [], later) == 1
    look = "select (pgflow.release_strays(%s, %s, null)).seen_at"
    assert one(db, look, worker, []) == T0 + sqlkit.seconds(5)


def test_a_claim_does_not_wait_for_a_slow_finish_nor_for_a_slow_start(dsn, conn):
    """Every function that moves runs is held open at once; a claim takes what is free beside
    them.
    """
    lane = start(conn).lane_id
    finishing, committing = claim_one(conn), sqlkit.begin(conn)
    free = start_in(conn, "demo")
    stop = threading.Event()

    def hold_open(step: Any) -> None:
        with connect(dsn) as c, c.transaction():
            step(c)
            ready.release()
            assert stop.wait(HANG_SECONDS)

    ready = threading.Semaphore(0)
    steps = [
        lambda c: sqlkit.finish(c, finishing),
        lambda c: sqlkit.commit(c, flush(committing, unit())),
        lambda c: start(c, key="slow"),
        lambda c: one(c, "select pgflow.pause_queue('elsewhere')"),
    ]
    with ThreadPoolExecutor(len(steps)) as pool:
        held = [pool.submit(hold_open, step) for step in steps]
        try:
            for _ in steps:
                assert ready.acquire(timeout=HANG_SECONDS)
            with connect(dsn) as claimer:
                assert run_ids(claim(claimer, 9, lanes=[lane])) == [free]
        finally:
            stop.set()
        for future in held:
            future.result()
