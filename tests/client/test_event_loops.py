"""One app of a module on many event loops: a task of a queue calls `asyncio.run`, each test has a
loop of its own, a web framework has a thread for each.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import psycopg
import pytest
from servers import HANG_SECONDS

from pgflow import AsyncApp, workflow

Act = Callable[[AsyncApp], Coroutine[Any, Any, Any]]


@pytest.fixture(autouse=True)
def connections_of_ended_loops() -> Iterator[None]:
    """A loop that ends without a close leaves connections of which Python warns when it collects
    them: here, and not in a test of something else.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@workflow
async def echo(n: int) -> int:
    return n


async def start(app: AsyncApp) -> None:
    assert (await app.start(echo, 1)).key


async def opened(app: AsyncApp) -> None:
    async with app:
        await start(app)


async def status(app: AsyncApp) -> None:
    assert await (await app.start(echo, 1)).status() in ("queued", "running", "completed")


async def work(app: AsyncApp) -> None:
    async with app, app.worker():
        assert await (await app.start(echo, 1)).result(timeout=HANG_SECONDS) == 1


async def work_alone(app: AsyncApp) -> None:
    async with app.worker():
        assert await (await app.start(echo, 1)).result(timeout=HANG_SECONDS) == 1


async def run(app: AsyncApp) -> None:
    assert await app.run(echo, 1) == 1


async def close(app: AsyncApp) -> None:
    await app.close()


async def wait_in_vain(app: AsyncApp) -> None:
    with pytest.raises(TimeoutError):
        await (await app.start(echo, 1)).result(timeout=0.001)


ACTS: list[Act] = [start, opened, status, work, work_alone, run, close, wait_in_vain]


def name(act: object) -> str:
    return getattr(act, "__name__", str(act))


@pytest.mark.parametrize(
    "first", [start, *(pytest.param(act, marks=pytest.mark.full) for act in ACTS[1:])], ids=name
)
def test_an_app_goes_on_whatever_it_did_on_a_loop_that_has_ended(dsn, first):
    for second in ACTS:
        app = AsyncApp(dsn, include=[echo])
        for act in (first, second, first):
            asyncio.run(act(app))
        asyncio.run(close(app))


def connections(conn: psycopg.Connection) -> list[Any]:
    return conn.execute(
        "select application_name, state, query from pg_stat_activity "
        "where datname = current_database() and application_name in ('pgflow app', 'pgflow results', 'pgflow listener')"
    ).fetchall()


@pytest.mark.usefixtures("no_leaks")
def test_loops_that_have_ended_leave_no_connections_behind(dsn, conn):
    app = AsyncApp(dsn, include=[echo])
    for act in itertools.islice(itertools.cycle([start, wait_in_vain, run]), 4):
        asyncio.run(act(app))
    asyncio.run(close(app))
    gc.collect()
    gone = threading.Event()
    for _ in range(int(HANG_SECONDS * 100)):
        if not connections(conn):
            break
        gone.wait(0.01)
    assert connections(conn) == []


@pytest.fixture
def no_leaks(recwarn: pytest.WarningsRecorder):
    yield
    gc.collect()
    assert [w for w in recwarn if issubclass(w.category, ResourceWarning)] == []


def test_loops_in_threads_share_an_app_and_a_close_of_one_harms_no_other(dsn):
    app = AsyncApp(dsn, include=[echo])
    together = threading.Barrier(4)
    errors: list[BaseException] = []

    async def act() -> None:
        for _ in range(2):
            await start(app)
            await asyncio.to_thread(together.wait, HANG_SECONDS)
            await run(app)
            await app.close()

    def work_in_thread() -> None:
        try:
            asyncio.run(act())
        except BaseException as error:  # noqa: BLE001 - said by the test
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=work_in_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_processes_that_are_forked_off_have_connections_of_their_own(dsn):
    """As a prefork pool does: the parent has used the app, each child runs task after task."""
    app = AsyncApp(dsn, include=[echo])
    asyncio.run(run(app))
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                for act in (start, run, opened):
                    asyncio.run(act(app))
            except BaseException:  # noqa: BLE001 - its exit code says so
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    asyncio.run(run(app))
