"""Keys that clients make up, and the messages about starts that come in turn."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from types import FrameType

import psycopg
import pytest
from records import SOON

from pgflow import App, AsyncApp, workflow
from pgflow._client.starts import new_keys
from pgflow._worker.listener import WORK_CHANNEL, parse_work
from pgflow.app import _async, _sync
from pgflow.assets import is_compiled


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_keys_are_uuids_of_version_7_in_their_order(count):
    before = time.time_ns() // 1_000_000
    keys = new_keys(count)
    after = time.time_ns() // 1_000_000
    assert len(keys) == count
    assert keys == sorted(set(keys))
    for text in keys:
        key = uuid.UUID(text)
        assert str(key) == text
        assert (key.version, key.variant) == (7, uuid.RFC_4122)
        assert before <= key.int >> 80 <= after


def test_keys_of_two_batches_have_nothing_in_common_but_their_time():
    assert len({key for _ in range(200) for key in new_keys(50)}) == 200 * 50
    tails = [key[24:] for key in new_keys(1000)]
    assert len(set(tails)) == len(tails)


@workflow
async def first() -> None: ...


@workflow
async def later() -> None: ...


@workflow
async def last() -> None: ...


@pytest.mark.full
@pytest.mark.skipif(is_compiled(), reason="machine code calls no Python functions")
def test_a_start_takes_few_python_calls(pgflow_dsn, monkeypatch):
    monkeypatch.setattr(App, "_nudge_soon", lambda _: None)
    called: list[str] = []

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    with App(pgflow_dsn, include=[first]) as app:
        for _ in range(10):  # until its statement is prepared
            app.start(first)
        sys.setprofile(note)
        try:
            for _ in range(10):
                app.start(first)
        finally:
            sys.setprofile(None)
    print(f"\n{len(called) / 10} calls a start")
    assert len(called) / 10 <= 210


@pytest.mark.full
def test_of_starts_in_turn_the_first_is_told_at_once_and_all_others_together(
    pgflow_dsn, monkeypatch
):
    heard, lanes = asyncio.run(_starts_in_turn(pgflow_dsn, monkeypatch))
    assert heard[0] == {lanes[first.name]}
    assert set.union(*heard[1:]) == {lanes[later.name], lanes[last.name]}
    assert len(heard) == 2


async def _starts_in_turn(
    pgflow_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[set[int]], dict[str, int]]:
    """The lanes of each message about starts, and the lane of each workflow."""
    is_time, sleep = asyncio.Event(), asyncio.sleep

    async def sleep_until_it_is_time(seconds: float) -> None:
        await (is_time.wait() if seconds > 1000 else sleep(seconds))

    monkeypatch.setattr(_async, "NUDGE_SECONDS", 3600)
    monkeypatch.setattr("asyncio.sleep", sleep_until_it_is_time)
    async with await psycopg.AsyncConnection.connect(pgflow_dsn, autocommit=True) as listening:
        await listening.execute(f"listen {WORK_CHANNEL}")
        async with AsyncApp(pgflow_dsn, include=[first, later, last]) as app:
            told = listening.notifies()
            await app.start(first)
            heard = [parse_work((await anext(told)).payload)[0]]
            await told.aclose()
            for _ in range(20):
                await app.start(later)
            await app.start(last)
            is_time.set()
        rows = await (
            await listening.execute("select workflow, lane_id from pgflow.lanes order by lane_id")
        ).fetchall()
        lanes: dict[str, int] = dict(rows)
        async for message in listening.notifies(timeout=SOON.total_seconds()):
            heard.append(parse_work(message.payload)[0])
            if lanes[last.name] in heard[-1]:
                break
    return heard, lanes


def test_of_sync_starts_in_turn_all_but_the_first_are_told_together_before_the_app_closes(
    pgflow_dsn, monkeypatch
):
    monkeypatch.setattr(_sync, "NUDGE_SECONDS", 0.05)
    with psycopg.connect(pgflow_dsn, autocommit=True) as listening:
        listening.execute(f"listen {WORK_CHANNEL}")
        with App(pgflow_dsn, include=[first, later, last]) as app:
            for work in (first, *[later] * 20, last):
                app.start(work)
        rows = listening.execute("select workflow, lane_id from pgflow.lanes").fetchall()
        lanes: dict[str, int] = dict(rows)
        heard = [parse_work(told.payload)[0] for told in listening.notifies(timeout=0)]
    assert heard[0] == {lanes[first.name]}
    assert set.union(*heard[1:]) == {lanes[later.name], lanes[last.name]}
    assert len(heard) < 10


def test_a_start_that_comes_during_a_message_is_told_after_it(pgflow_dsn, monkeypatch):
    wake = AsyncApp._wake
    begun: list[str] = []

    async def wake_slowly(app: AsyncApp, chains: list[int], lanes: set[int]) -> None:
        await wake(app, chains, lanes)
        if not begun:
            begun.append((await app.start(last)).key)

    monkeypatch.setattr(AsyncApp, "_wake", wake_slowly)
    assert asyncio.run(_messages_of_one_start(pgflow_dsn)) == [first.name, last.name]


async def _messages_of_one_start(pgflow_dsn: str) -> list[str]:
    """The workflow of each message about starts, after one start."""
    heard = []
    async with await psycopg.AsyncConnection.connect(pgflow_dsn, autocommit=True) as listening:
        await listening.execute(f"listen {WORK_CHANNEL}")
        async with AsyncApp(pgflow_dsn, include=[first, last]) as app:
            await app.start(first)
            async for message in listening.notifies(timeout=SOON.total_seconds(), stop_after=2):
                heard += parse_work(message.payload)[0]
        rows = await (
            await listening.execute("select lane_id, workflow from pgflow.lanes")
        ).fetchall()
        names: dict[int, str] = dict(rows)
    return [names[lane] for lane in heard]
