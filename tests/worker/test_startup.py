"""Functions that an app declares with on_start and on_stop: around every worker, wherever it
works.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import clikit
import pytest
from records import SOON

from pgflow import App, AsyncApp, step, workflow
from pgflow.errors import DefinitionError, WorkerFailed

opened: list[str] = []


@step
def look() -> list[str]:
    return list(opened)


@workflow
def see() -> list[str]:
    return look()


@pytest.fixture(autouse=True)
def _closed() -> None:
    opened.clear()


@pytest.mark.full
def test_a_step_finds_what_was_opened_and_nothing_is_open_afterwards(dsn):
    app = App(dsn, include=[see])

    @app.on_start
    def first() -> None:
        opened.append("first")

    @app.on_start
    async def second() -> None:
        opened.append("second")

    @app.on_stop
    def close_first() -> None:
        opened.remove("first")
        assert opened == []  # what was opened last was closed first

    @app.on_stop
    async def close_second() -> None:
        opened.remove("second")

    with app:
        assert opened == []  # a process that only starts runs has no use for them
        assert app.run(see) == ["first", "second"]
        assert opened == []
        assert app.run(see) == ["first", "second"]
    assert opened == []


def test_an_async_function_runs_on_the_loop_of_the_worker_and_a_sync_one_in_no_thread_of_its(dsn):
    places: list[Any] = []

    async def main() -> None:
        app = AsyncApp(dsn, include=[see])

        @app.on_start
        async def here() -> None:
            places.append(asyncio.get_running_loop() is loop)

        @app.on_start
        def elsewhere() -> None:
            places.append(threading.get_ident() != thread)

        async def add(place: bool) -> None:
            places.append(place)

        app.on_start(partial(add, True))
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        async with app, app.worker():
            pass

    asyncio.run(main())
    assert places == [True, True, True]


def test_several_workers_of_a_loop_share_what_was_opened(dsn):
    async def main() -> None:
        app = AsyncApp(dsn, include=[see])
        app.on_start(lambda: opened.append("opened"))
        app.on_stop(lambda: opened.append("closed"))
        async with app:
            async with app.worker():
                async with app.worker(queues=["other"]):
                    assert opened == ["opened"]
                assert opened == ["opened"]
            assert opened == ["opened", "closed"]

    asyncio.run(main())


@pytest.mark.full
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_start_that_fails_lets_no_worker_start(dsn, colour):
    app = App(dsn, include=[see])

    def boom() -> None:
        raise OSError("the shop is closed")

    async def boom_async() -> None:
        boom()

    app.on_start(lambda: opened.append("opened"))
    app.on_start(boom if colour == "sync" else boom_async)
    app.on_stop(lambda: opened.append("closed"))
    with app:
        handle = app.start(see)
        with (
            pytest.raises(
                WorkerFailed, match=r"boom(_async)? of @app.on_start has failed: the shop is closed"
            ) as caught,
            app.worker(),
        ):
            pytest.fail("the worker has started")
        assert isinstance(caught.value.__cause__, OSError)
        assert handle.status() == "queued"
        assert opened == ["opened"]


def test_a_stop_that_fails_keeps_none_from_being_called_and_is_told(dsn):
    app = App(dsn, include=[see])
    app.on_stop(lambda: opened.append("closed"))

    @app.on_stop
    def boom() -> None:
        raise OSError("it will not close")

    with (
        app,
        pytest.raises(WorkerFailed, match="boom of @app.on_stop has failed: it will not close"),
        app.worker(),
    ):
        assert app.start(see).result(SOON) == []
    assert opened == ["closed"]


@pytest.mark.parametrize("wrong", [None, lambda engine: engine, 3])
@pytest.mark.parametrize("decorator", ["on_start", "on_stop"])
def test_a_function_that_can_never_be_called_is_refused_where_it_is_declared(wrong, decorator):
    with pytest.raises(DefinitionError, match=f"@app.{decorator}"):
        getattr(App(), decorator)(wrong)


FLOWS = """
import pgflow
opened = []

@pgflow.step
def look() -> list[str]:
    return list(opened)

@pgflow.workflow
def see() -> list[str]:
    return look()

app = pgflow.App(include=[see])

@app.on_start
def open_it() -> None:
    {body}

@app.on_stop
async def close_it() -> None:
    print("closed", opened)
"""


@pytest.mark.full
def test_the_commands_that_work_call_them(dsn, tmp_path):
    flows = tmp_path / "started_flows.py"
    flows.write_text(FLOWS.format(body="opened.append('engine')"))
    ran = clikit.finish(clikit.process(dsn, "run", str(flows), "--key", "see-1"))
    assert (ran.code, ran.out.splitlines()[0]) == (0, "closed ['engine']"), ran
    clikit.finish(clikit.process(dsn, "start", str(flows), "--key", "see-2"))
    ticked = clikit.finish(clikit.process(dsn, "tick", str(flows)))
    assert (ticked.code, ticked.out.splitlines()[0]) == (0, "closed ['engine']"), ticked
    with App(dsn) as app:
        assert app.get("see-2", see).result(SOON) == ["engine"]


@pytest.mark.full
def test_a_command_that_cannot_start_says_so_in_one_line(dsn, tmp_path):
    flows = tmp_path / "failing_flows.py"
    flows.write_text(FLOWS.format(body="raise OSError('the shop is closed')"))
    for command in ("tick", "workers"):
        ended = clikit.finish(clikit.process(dsn, command, str(flows)))
        assert (ended.code, ended.out) == (1, "")
        assert (
            ended.err
            == "pgflow: the function open_it of @app.on_start has failed: the shop is closed\n"
        )
