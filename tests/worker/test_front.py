"""The place that claims read from: seldom the head where that takes long, and never past a run for
good.
"""

from __future__ import annotations

from typing import Any

import pytest
from records import SOON, wait_until

from pgflow import App, Signal, workflow
from pgflow._db.calls.claim import ClaimRequest, Position
from pgflow._model.claims import Claim
from pgflow._worker import claims as front
from pgflow._worker.claims import MOST_SECONDS, ClaimCursor


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def claimed(
    *run_ids: int, priority: int = 0, took_seconds: float = 0.0, suspect: int = 0
) -> list[Claim]:
    rest: dict[str, Any] = {
        "token": 1,
        "lane_id": 1,
        "generation": 1,
        "attempt": 1,
        "last_seq": 0,
        "key": "",
        "root": "",
        "input": "null",
        "units": [],
        "has_mail": False,
        "created_us": 0,
        "now_us": 0,
    }
    return [
        Claim(
            run_id=n,
            chain_id=n,
            suspect=suspect,
            priority=priority,
            took_us=int(took_seconds * 1e6),
            **rest,
        )
        for n in run_ids
    ]


def request(count: int, after: Position | None = None) -> ClaimRequest:
    return ClaimRequest(1, [1], count, True, after)


def ask(seen: ClaimCursor, claims: list[Claim]) -> Position | None:
    """A claim of as many as there are; from where it read."""
    after = seen.position()
    seen.answered(request(len(claims), after), claims)
    return after


def test_a_look_from_the_head_is_repeated_after_ten_times_as_long_as_it_took():
    clock = Clock()
    seen = ClaimCursor(clock)
    assert ask(seen, claimed(1, 2, took_seconds=0.02)) is None
    assert ask(seen, claimed(3, 4)) == (0, 2)
    clock.now += 0.199
    assert ask(seen, claimed(5, 6)) == (0, 4)
    clock.now += 0.002
    assert ask(seen, claimed(7, 8, took_seconds=0.0001)) is None
    clock.now += 0.0011
    assert ask(seen, claimed(9)) is None


def test_it_is_repeated_after_a_second_however_long_it_took():
    clock = Clock()
    seen = ClaimCursor(clock)
    ask(seen, claimed(1, took_seconds=5))
    clock.now += MOST_SECONDS - 0.001
    assert seen.position() == (0, 1)
    clock.now += 0.001
    assert seen.position() is None


@pytest.mark.parametrize("found", [(), (3,)])
def test_a_claim_that_finds_less_than_it_asked_for_leads_to_a_look_from_the_head_at_once(found):
    seen = ClaimCursor(Clock())
    ask(seen, claimed(1, 2, took_seconds=1))
    seen.answered(request(2, seen.position()), claimed(*found))
    assert seen.position() is None


def test_claims_that_overtake_each_other_move_it_on_and_never_back():
    seen = ClaimCursor(Clock())
    ask(seen, claimed(1, 2, took_seconds=1))
    seen.answered(request(2, (0, 2)), claimed(5, 6))
    seen.answered(request(2, (0, 2)), claimed(3, 4))
    assert seen.position() == (0, 6)
    seen.answered(request(2, (0, 2)), claimed(1, priority=1) + claimed(9))
    assert seen.position() == (1, 1)
    seen.answered(request(1, (0, 2)), [])
    seen.answered(request(1, (0, 2)), claimed(8))
    assert seen.position() is None


def test_a_suspect_which_may_stand_anywhere_does_not_move_it():
    seen = ClaimCursor(Clock())
    ask(seen, claimed(99, took_seconds=1, suspect=2) + claimed(1))
    assert seen.position() == (0, 1)
    seen.answered(request(1, (0, 1)), claimed(99, suspect=2))
    assert seen.position() == (0, 1)
    alone = ClaimCursor(Clock())
    ask(alone, claimed(99, took_seconds=1, suspect=2))
    assert alone.position() is None


go = Signal("go", type(None))


@workflow
async def patient(n: int) -> int:
    await go.wait()
    return n


@workflow
async def quick(n: int) -> int:
    return n


@pytest.mark.full
def test_what_becomes_ready_behind_the_back_of_claims_that_read_on_is_worked_on_too(
    dsn, conn, monkeypatch
):
    monkeypatch.setattr(front, "TIMES_AS_LONG", 1e9)
    monkeypatch.setattr(front, "MOST_SECONDS", 1e9)
    positions = []
    position = ClaimCursor.position

    def watched(self: ClaimCursor) -> Position | None:
        positions.append(position(self))
        return positions[-1]

    monkeypatch.setattr(ClaimCursor, "position", watched)
    with App(dsn, include=[patient, quick]) as app:
        old = app.start(patient, 0)
        with app.worker(concurrency=4, poll_seconds=0.05):
            wait_until(lambda: old.status() == "waiting", "it waits")
            runs = app.start_many(quick, [(n,) for n in range(200)])
            old.send(go, None)
            urgent = app.start(quick.options(priority=-5), 1000)
            assert (old.result(SOON), urgent.result(SOON)) == (0, 1000)
            assert [run.result(SOON) for run in runs] == list(range(200))
            more = app.start_many(quick, [(n,) for n in range(20)])
            assert [run.result(SOON) for run in more] == list(range(20))
    assert any(positions)
    assert conn.execute("select count(*) from pgflow.ready").fetchone() == (0,)
