"""The heart of a worker: it beats whatever the loop does, is not deceived by its own sleep, and
stops effects when nobody hears it.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from records import SOON, count, steps, wait_until
from sqlkit import claim, register, start

from pgflow import App, read, step, workflow
from pgflow._db.connect import ConnectOptions
from pgflow._worker import heartbeat as heart_module
from pgflow._worker.acknowledged import Acknowledged
from pgflow._worker.heartbeat import Heartbeat, HeartbeatCallbacks, Watchdog
from pgflow._worker.options import Rhythm, WorkerOptions
from pgflow._worker.parts import Life

FAST = Rhythm(beat=0.02, look=0.02, dead_after=0.4)


def heart_of(dsn: str, worker: int, rhythm: Rhythm) -> Heartbeat:
    """The heart of a worker whose loop does not move."""
    life = Life(rhythm.dead_after / 2)
    life.registered(worker)
    context: Any = SimpleNamespace(
        connect=ConnectOptions(dsn),
        options=WorkerOptions(rhythm=rhythm),
        life=life,
        tasks=SimpleNamespace(loop=SimpleNamespace(call_soon_threadsafe=lambda *_: None)),
        acknowledged=Acknowledged(),
    )
    callbacks = HeartbeatCallbacks(*[lambda *_: None] * len(HeartbeatCallbacks._fields))
    return Heartbeat(context, callbacks, Watchdog(lambda: 0, 0, rhythm.blocked_after))


def test_a_loop_that_stands_still_does_not_stop_the_heart(dsn, conn):
    worker = register(conn)
    heart = heart_of(dsn, worker, FAST)
    heart.start()
    try:
        beats = "select beat >= 5 from pgflow.worker where worker_id = %s"
        wait_until(lambda: conn.execute(beats, (worker,)).fetchone() == (True,), "the heart beats")
    finally:
        heart.join()


def test_an_outage_is_said_once_and_so_is_its_end(dsn, conn, caplog):
    caplog.set_level("INFO", "pgflow")
    name, heart = conn.info.dbname, heart_of(dsn, register(conn), FAST)
    allow = sql.SQL("alter database {} with allow_connections {}")
    session = "from pg_stat_activity where datname = %s and application_name = 'pgflow heartbeat'"
    with psycopg.connect(dsn, dbname="postgres", autocommit=True) as admin:

        def beats() -> bool:
            return admin.execute(f"select exists (select {session})", (name,)).fetchone() == (True,)

        heart.start()
        try:
            wait_until(beats, "the heart beats")
            admin.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
            admin.execute(f"select pg_terminate_backend(pid) {session}", (name,))
            wait_until(lambda: heart._missed >= 5, "beats are missed")
            admin.execute(allow.format(sql.Identifier(name), sql.SQL("true")))
            wait_until(lambda: "sends heartbeats again" in caplog.text, "the heart beats again")
        finally:
            admin.execute(allow.format(sql.Identifier(name), sql.SQL("true")))
            heart.join()
    assert caplog.text.count("missed a heartbeat") == 1
    again = re.search(
        r"sends heartbeats again, [0-9.]+ s after it missed the first of ([0-9]+)", caplog.text
    )
    assert again is not None
    assert int(again[1]) >= 5


@pytest.mark.full
def test_who_was_asleep_takes_nobody_for_dead(dsn, conn, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(heart_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    start(conn)
    silent, watcher = register(conn), register(conn)
    claim(conn, worker=silent)
    heart = heart_of(dsn, watcher, Rhythm())
    heart.renew()
    try:
        heart._look()
        clock.now += 3600  # the machine slept, and the other worker's perhaps too
        heart._look()
        assert count(conn, "pgflow.lease") == 1
        for _ in range(19):
            clock.now += Rhythm().look
            heart._look()
        assert count(conn, "pgflow.lease") == 1
        clock.now += Rhythm().look
        heart._look()
        assert count(conn, "pgflow.lease") == 0
    finally:
        heart._close()


@pytest.mark.full
def test_a_worker_that_may_be_thought_dead_begins_nothing_that_acts(dsn, conn):
    begun: list[str] = []

    @step
    async def act() -> str:
        begun.append("act")
        return "acted"

    @read
    async def look() -> str:
        begun.append("look")
        return "seen"

    @workflow
    async def acting() -> str:
        return await act()

    @workflow
    async def looking() -> str:
        return await look()

    with (
        App(dsn, include=[acting, looking]) as app,
        app.worker(poll_seconds=0.05, rhythm=FAST),
        psycopg.connect(dsn) as other,
    ):
        # no beat is acknowledged from here on
        other.execute("select from pgflow.worker for update")
        silence = "select clock_timestamp() - beat_at > interval '0.3 s' from pgflow.worker"
        wait_until(lambda: conn.execute(silence).fetchone() == (True,), "the last beat is old")
        run = app.start(acting)
        wait_until(lambda: steps(conn, run.key), "the step is licensed")
        assert app.run(looking) == "seen"
        assert begun == ["look"]
        other.rollback()
        assert run.result(SOON) == "acted"
    assert begun == ["look", "act"]
