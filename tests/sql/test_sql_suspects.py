"""Suspects: of many runs whose workers die, the one that kills them is found in a logarithm of
deaths, and the others go on meanwhile.
"""

from __future__ import annotations

import json
from math import ceil, log2
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sqlkit import (
    Claim,
    claim,
    claim_one,
    commit,
    connect,
    flush,
    one,
    register,
    rows,
    start_many,
    unit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import psycopg

    Conn = psycopg.Connection[Any]

MOST_DEATHS = 5


class Hunt(NamedTuple):
    deaths: int
    """Workers that died until nothing was left to do."""
    rounds: int
    """Claims of suspects that ended well."""
    stuck: list[int]
    completed: set[int]


def begin(conn: Conn, count: int, queue: str = "default", **rules: Any) -> list[int]:
    if rules:
        conn.execute("select pgflow.set_queue(%s, %s::jsonb)", (queue, json.dumps(rules)))
    inputs = [(None, json.dumps({"k": str(n % 7)})) for n in range(count)]
    return [started.run_id for started in start_many(conn, inputs)]


def die(conn: Conn, worker: int) -> None:
    conn.execute("select pgflow.reap_worker(%s, 0)", (worker,))


def nothing(conn: Conn, claims: list[Claim]) -> None:
    """Nothing is recorded before a worker dies."""


def license_bodies(conn: Conn, claims: list[Claim]) -> None:
    """The licence of the first body is recorded, by the first claim of a run."""
    fresh = [flush(c, unit("s", starts='[[1, "s", "act", 1, ""]]')) for c in claims if not c.seq]
    if fresh:
        commit(conn, *fresh)


def hunt(
    conn: Conn,
    guilty: Collection[int],
    *,
    room: int = 2000,
    record: Callable[[Conn, list[Claim]], None] = nothing,
) -> Hunt:
    """One worker after the other claims all that it may, and dies of a guilty run before any body
    of what it claimed with that has returned. Else all end.
    """
    deaths = rounds = 0
    worker = register(conn)
    while claims := claim(conn, room, worker=worker):
        record(conn, claims)
        if any(c.run_id in guilty for c in claims):
            die(conn, worker)
            deaths += 1
            worker = register(conn)
        else:
            rounds += any(c.suspect > 1 for c in claims)
            commit(conn, *(flush(c, outcome=("completed", None, "null", None)) for c in claims))
    stuck = rows(conn, "select run_id from pgflow.held where reason = 'poison' order by 1")
    return Hunt(deaths, rounds, stuck, set(rows(conn, "select run_id from pgflow.outcome")))


def most_deaths(count: int) -> int:
    """All at once, all at once again, and then each time with half as many."""
    return max(MOST_DEATHS, 2 + ceil(log2(count)))


@pytest.mark.parametrize("rules", [{}, {"concurrency": 100}, {"key": "input.k", "per_key": 50}])
def test_after_a_first_death_all_of_its_runs_go_on_at_once(db, rules):
    ids = begin(db, 40, **rules)
    worker = register(db)
    assert len(claim(db, 100, worker=worker)) == 40
    die(db, worker)
    again = claim(db, 100, take_suspect=False)
    assert {(c.run_id, c.suspect) for c in again} == {(run_id, 1) for run_id in ids}


def test_only_a_run_that_waits_for_its_group_says_that_it_is_suspect(db):
    begin(db, 1)
    why = "select reason_code, reason, reason_detail->>'deaths' from pgflow.runs"
    die(db, claim_one(db).worker)
    assert one(db, why)[0] != "suspect"
    die(db, claim_one(db).worker)
    assert one(db, why) == ("suspect", "suspect: 2 deaths", "2")


@pytest.mark.parametrize("record", [nothing, license_bodies])
@pytest.mark.parametrize(
    ("count", "which"), [(1, 0), (2, 1), (3, 0), (40, 0), (40, 17), (40, 39), (100, 63)]
)
def test_one_that_kills_is_found_in_a_logarithm_of_deaths(db, count, which, record):
    ids = begin(db, count)
    guilty = ids[which]
    found = hunt(db, [guilty], record=record)
    assert found.stuck == [guilty]
    assert found.completed == {*ids} - {guilty}
    # A licence is progress: the death after it is nobody's.
    assert found.deaths <= most_deaths(count) + (record is license_bodies)
    assert found.rounds <= 1 + ceil(log2(count))


@pytest.mark.parametrize("rules", [
    {"concurrency": 100}, {"per_worker": 30}, {"key": "input.k", "per_key": 50},
    {"ageing_seconds": 60},
], ids=str)  # fmt: skip
def test_queues_with_limits_and_lines_find_it_as_fast(db, rules):
    ids = begin(db, 40, **rules)
    found = hunt(db, [ids[21]])
    assert found.stuck == [ids[21]]
    assert found.completed == {*ids} - {ids[21]}
    assert found.deaths <= most_deaths(40)
    assert found.rounds <= 2 + ceil(log2(40))


def test_a_line_in_order_finds_it_too(db):
    ids = begin(db, 6, key="input.k", fifo=True)
    found = hunt(db, [ids[2]])
    assert (found.stuck, found.completed) == ([ids[2]], {*ids} - {ids[2]})
    assert found.deaths <= most_deaths(6)


def test_several_that_kill_are_found_each(db):
    ids = begin(db, 60)
    guilty = ids[::20]
    found = hunt(db, guilty)
    assert found.stuck == guilty
    assert found.completed == {*ids} - {*guilty}
    assert found.deaths <= len(guilty) * most_deaths(60)


def test_a_queue_that_allows_few_deaths_condemns_no_neighbour(db):
    ids = begin(db, 16, max_deaths=1)
    found = hunt(db, [ids[3]])
    assert (found.stuck, found.completed) == ([ids[3]], {*ids} - {ids[3]})


@pytest.mark.full
def test_among_a_thousand_it_takes_two_deaths_more_than_a_logarithm(db):
    ids = begin(db, 1000)
    found = hunt(db, [ids[777]])
    assert (found.stuck, len(found.completed)) == ([ids[777]], 999)
    assert found.deaths <= 12


def test_a_worker_has_one_group_at_a_time_beside_all_others(db):
    begin(db, 8)
    for _ in range(2):
        die(db, claim(db, 8)[0].worker)
    (fresh,) = begin(db, 1)
    first = claim(db, 20)
    assert sorted(c.suspect for c in first) == [0, 2, 2, 2, 2]
    assert claim(db, 20, worker=first[0].worker, take_suspect=False) == []
    assert fresh in {c.run_id for c in first}
    assert [c.suspect for c in claim(db, 20)] == [2] * 4
    assert claim(db, 20) == []


def test_of_a_group_that_dies_half_come_again_and_the_others_go_first(db):
    begin(db, 8)
    for _ in range(2):
        die(db, claim(db, 8)[0].worker)
    unlucky = claim(db, 8)
    die(db, unlucky[0].worker)
    groups = [claim(db, 8) for _ in range(4)]
    assert [[c.suspect for c in group] for group in groups] == [[2] * 4, [3] * 2, [3] * 2, []]
    assert {c.run_id for group in groups[1:] for c in group} == {c.run_id for c in unlucky}


def test_a_group_is_no_larger_than_each_of_it_allows(db):
    ids = begin(db, 5)
    company = dict(zip(ids, [3, 3, 2, 1, 1], strict=True))
    for run_id, most in company.items():
        db.execute(
            "update pgflow.ready set suspect = 2, company = %s where run_id = %s", (most, run_id)
        )
    groups = [[company[c.run_id] for c in claim(db, 9)] for _ in range(4)]
    assert groups == [[3, 3], [2], [1], [1]]


def test_a_death_beside_strangers_does_not_make_a_group_larger_again(db):
    begin(db, 4)
    for _ in range(3):
        die(db, claim(db, 4)[0].worker)
    alone = db.execute("select run_id from pgflow.ready where company = 1").fetchall()
    begin(db, 30)
    die(db, claim(db, 30, take_suspect=False)[0].worker)
    last = claim(db, 40)
    die(db, last[0].worker)
    assert {
        most
        for (most,) in db.execute(
            "select company from pgflow.ready where run_id = any(%s)", ([i for (i,) in alone],)
        )
    } == {1}


def test_one_that_is_alone_among_fresh_runs_is_found(db):
    guilty, *others = begin(db, 6)
    db.execute("update pgflow.ready set suspect = 4, company = 1 where run_id = %s", (guilty,))
    db.execute("update pgflow.ready set suspect = 1 where run_id = any(%s)", (others[3:],))
    die(db, claim(db, 9)[0].worker)
    assert rows(db, "select run_id from pgflow.held") == [guilty]
    found = rows(db, "select suspect, company from pgflow.ready order by run_id")
    assert found == [*[(1, 0)] * 3, *[(2, 2)] * 2]


def test_two_suspects_of_which_one_has_lived_on_are_not_found_guilty_together(db):
    """A worker may have begun with the second because the first lived on for long."""
    ids = begin(db, 2)
    db.execute("update pgflow.ready set suspect = 20, company = 1")
    worker = register(db)
    assert [len(claim(db, 9, worker=worker)) for _ in range(2)] == [1, 1]
    die(db, worker)
    assert rows(db, "select suspect, company from pgflow.ready") == [(21, 1)] * 2
    alone = claim_one(db)
    die(db, alone.worker)
    assert rows(db, "select run_id from pgflow.held") == [alone.run_id]
    assert alone.run_id in ids


def test_one_that_is_handed_back_keeps_its_company(db):
    begin(db, 4)
    for _ in range(2):
        die(db, claim(db, 4)[0].worker)
    two = claim(db, 4)
    db.execute(
        "select pgflow.release_runs(%s, %s)", ([c.run_id for c in two], [c.token for c in two])
    )
    assert rows(db, "select suspect, company from pgflow.ready") == [(2, 2)] * 4


def test_workers_that_claim_at_once_take_groups_of_their_own(dsn, conn):
    begin(conn, 8)
    for _ in range(2):
        die(conn, claim(conn, 8)[0].worker)
    with connect(dsn) as second, conn.transaction():
        first = {c.run_id for c in claim(conn, 3)}
        other = {c.run_id for c in claim(second, 3)}
    assert (len(first), first & other) == (3, set())
