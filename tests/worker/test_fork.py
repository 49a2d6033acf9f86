"""A process that forks while an app is open: servers of web frameworks do that."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from records import SOON

from pgflow import App, workflow

SESSIONS = "select array_agg(pid order by pid) from pg_stat_activity where datname = current_database() and application_name = 'pgflow app'"


@workflow
async def work(n: int) -> int:
    return n


def in_child(do: Callable[[], Any]) -> tuple[int, int]:
    """Forks a child that does something and waits until the end of a pipe is closed: its pid, and
    that end.
    """
    told, tell = os.pipe()
    waits, go = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the pool of the parent has threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            do()
            os.write(tell, b"x")
            os.close(go)
            os.read(waits, 1)
            code = 0
        finally:
            os._exit(code)
    os.close(tell)
    os.read(told, 1)
    os.close(told)
    os.close(waits)
    return pid, go


def test_a_forked_process_opens_connections_of_its_own(dsn, conn):
    with App(dsn, include=[work]) as app:
        app.start(work.options(key="parent"), 1)
        (parents,) = conn.execute(SESSIONS).fetchone()
        pid, end = in_child(lambda: app.start(work.options(key="child"), 2))
        (both,) = conn.execute(SESSIONS).fetchone()
        assert len(both) == len(parents) + 1
        os.close(end)
        assert os.waitpid(pid, 0)[1] == 0
        assert app.get("child", work).status() == "queued"
        with app.worker():
            assert (app.get("parent", work).result(SOON), app.get("child", work).result(SOON)) == (
                1,
                2,
            )


def test_a_forked_process_may_close_an_app_of_its_parent_and_open_it_again(dsn, conn):
    with App(dsn, include=[work]) as app:
        app.start(work.options(key="parent"), 1)
        (parents,) = conn.execute(SESSIONS).fetchone()

        def close_and_open() -> None:
            app.close()
            with app, app.worker():
                assert app.start(work, 3).result(SOON) == 3

        pid, end = in_child(close_and_open)
        os.close(end)
        assert os.waitpid(pid, 0)[1] == 0
        (left,) = conn.execute(SESSIONS).fetchone()
        assert set(parents) <= set(left)
        assert app.get("parent", work).status() in ("queued", "completed")
