"""A deploy of changed code with runs in flight: workers of both versions run and are killed, and
every run comes to its right end.

`python -m tests.deploys` does it with a thousand runs, and with workers that are processes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import psycopg
import pytest
from deploys import code, go, right
from records import eventually

import pgflow
from pgflow import App, AsyncApp, step
from pgflow._db.calls import worker as worker_calls
from pgflow._worker.options import WorkerOptions
from pgflow._worker.worker import Worker

RUNS = 90

ran: Counter[str] = Counter()
"""Number of times that a body ran to its end, by its key: in the bodies' own memory, since it is
them that must not be repeated.
"""


@step
async def act(what: str) -> str:
    ran[pgflow.idempotency_key()] += 1
    return what


class Fleet:
    """Workers of two versions, of which some are killed."""

    def __init__(self, dsn: str) -> None:
        self.apps = {version: AsyncApp(dsn, include=code(version, act)) for version in (1, 2)}
        self.live: list[tuple[int, Worker]] = []

    async def add(self, version: int) -> None:
        app = self.apps[version]
        worker = Worker(
            app._resolve(),
            app.definitions,
            WorkerOptions(concurrency=25, poll_seconds=0.1, grace_seconds=2.0),
        )
        await worker.start()
        self.live.append((version, worker))

    async def kill_one(self, chance: random.Random) -> int:
        """Kills a worker as a crash would, has its death noticed, and answers its version."""
        version, worker = self.live.pop(chance.randrange(len(self.live)))
        await worker.abandon()
        app = self.apps[2]
        beats = await app.ask(worker_calls.observe_workers())
        await app.ask(worker_calls.reap_worker(worker.worker_id, beats.get(worker.worker_id, -1)))
        return version

    async def stop(self, version: int) -> None:
        """The end of a version: its workers hand back what they have."""
        for pair in [pair for pair in self.live if pair[0] == version]:
            self.live.remove(pair)
            await pair[1].stop()


def statuses(conn: psycopg.Connection) -> Counter[str]:
    return Counter(
        dict(conn.execute("select status, count(*) from pgflow.runs group by 1").fetchall())
    )


@pytest.mark.full
def test_a_deploy_drains_with_no_run_stuck_while_workers_of_both_versions_are_killed(
    dsn: str, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgflow._worker.upkeep.STRAYS_EVERY_SECONDS", 0.2)
    ran.clear()
    asyncio.run(deploy(dsn, conn, RUNS // 3))
    rows = conn.execute(
        "select workflow, input->>'n', output, version, status, reason from pgflow.runs"
    ).fetchall()
    assert Counter(row[4] for row in rows) == {"completed": len(rows)}
    wrong = [row for row in rows if not right(row[0], int(row[1]), row[2], row[3])]
    assert wrong == []
    assert len(rows) == 2 * 3 * (RUNS // 3) + 3
    taken = Counter(len(row[2]) for row in rows if row[0] == "patched")
    assert taken[2] >= RUNS // 3, "runs from before the deploy take the old side"
    assert taken[3] > 0, "runs begun by the new code take the new one"
    done = conn.execute(
        "select idempotency_key from pgflow.steps where status = 'completed'"
    ).fetchall()
    assert {key for (key,) in done} == set(ran), (
        "what has acted is recorded, and what is recorded has acted"
    )


async def deploy(dsn: str, conn: psycopg.Connection, each: int) -> None:
    chance = random.Random(7)
    fleet = Fleet(dsn)
    old, new = fleet.apps[1], fleet.apps[2]
    async with old, new:
        for _ in range(2):
            await fleet.add(1)
        for flow in code(1, act):
            await old.start_many(flow, [(n,) for n in range(each)])
        await eventually(lambda: statuses(conn)["waiting"] == 3 * each, "the first runs wait", 40)
        for _ in range(2):
            await fleet.add(2)
        for flow in reversed(code(2, act)):  # those that both versions begin come first
            await new.start_many(flow, [(n,) for n in range(each, 2 * each)])
        keys = [key for (key,) in conn.execute("select key from pgflow.runs").fetchall()]
        chance.shuffle(keys)
        for at, key in enumerate(keys):
            await new.send(key, go, 1)
            if at % (len(keys) // 8) == len(keys) // 16:
                await fleet.add(await fleet.kill_one(chance))
        await eventually(lambda: statuses(conn)["completed"] == 6 * each, "all runs end", 60)
        assert (
            conn.execute(
                "select version from pgflow.versions where pinned and not safe_to_remove"
            ).fetchall()
            == []
        )
        await fleet.stop(1)
        for flow in code(2, act):  # while both were there, the old one may have begun all of them
            last = await new.start(flow, 2 * each)
            await last.send(go, 1)
        await eventually(
            lambda: statuses(conn)["completed"] == 6 * each + 3, "the runs after the deploy end", 20
        )
        await fleet.stop(2)


def test_a_run_that_older_code_could_not_replay_goes_on_with_newer_code_that_is_there(
    dsn: str, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgflow._worker.upkeep.STRAYS_EVERY_SECONDS", 0.2)

    async def both() -> None:
        fleet = Fleet(dsn)
        async with fleet.apps[1], fleet.apps[2] as new:
            await fleet.add(1)
            await fleet.stop(1)
            await fleet.add(2)
            flow = code(2, act)[2]
            run = await new.start(flow, 1)
            await eventually(lambda: statuses(conn)["waiting"] == 1, "it waits")
            await fleet.stop(2)
            await fleet.add(1)
            await run.send(go, 1)
            await eventually(
                lambda: statuses(conn)["stuck"] == 1, "the old code cannot go on with it"
            )
            await fleet.add(2)
            await fleet.stop(1)
            await eventually(lambda: statuses(conn)["completed"] == 1, "the new code can")
            await fleet.stop(2)

    asyncio.run(both())


def test_two_versions_that_both_cannot_replay_a_run_do_not_hand_it_to_and_fro(
    dsn: str, conn: psycopg.Connection
) -> None:
    ids = {}
    for version in ("older", "newer"):
        ids[version] = conn.execute(
            "select pgflow.register_worker('h', 1, '{default}', 1, '0')"
        ).fetchone()[0]  # type: ignore[index]
        conn.execute(
            "select pgflow.register_code(%s, %s::jsonb)",
            (ids[version], f'[["w", "{version}", "{version}", false, null, {{}}]]'),
        )
    app = App(dsn)
    with app:
        conn.execute("select pgflow.start_run('w')")
        conn.execute("""
            with gone as (delete from pgflow.ready returning *)
            insert into pgflow.held (run_id, held_at, lane_id, last_seq, attempt, priority, has_begun, state, reason, code_hash)
            select run_id, now(), lane_id, 0, 0, 0, true, 'stuck', 'nondeterminism', 'newer' from gone
        """)
        assert conn.execute("select pgflow.release_outdated(%s)", (ids["older"],)).fetchone() == (
            0,
        )
        conn.execute("update pgflow.held set code_hash = 'older'")
        assert conn.execute("select pgflow.release_outdated(%s)", (ids["older"],)).fetchone() == (
            0,
        )
        assert conn.execute("select pgflow.release_outdated(%s)", (ids["newer"],)).fetchone() == (
            1,
        )
