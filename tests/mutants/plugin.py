"""The plugin of pytest that records for each test which functions it enters: `pytest -p
tests.mutants.plugin`.

What Python enters is told by the interpreter (`recorder.py`), what the database enters by
`track_functions`. Each database of the tests has it on; its counters are set to zero when the
database is lent to a test and read when it comes back.
"""

from __future__ import annotations

import importlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from .recorder import FOLDER, INHERITED, Recorder
from .recorder import __file__ as recorder_file

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLED = "select distinct funcname from pg_stat_user_functions where schemaname = 'pgflow'"
OTHERS = """select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""
LOOKS = 50
"""Number of looks at whether the sessions of a test have gone, and so told what they called."""


class Tracing:
    """The hooks."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._recorder = Recorder(str(folder))
        self._called: set[str] = set()
        self._has_passed = True
        self._shared: dict[str, psycopg.Connection[Any]] = {}
        (folder / "sitecustomize.py").write_text(INHERITED.format(path=recorder_file))
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(folder), os.environ.get("PYTHONPATH")])
        )

    def pytest_collection_finish(self) -> None:
        """Begin once all tests are imported."""
        self._follow_databases()
        self._recorder.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record one test, its fixtures included."""
        self._called.clear()
        self._has_passed = True
        self._recorder.begin()
        shared = None
        began = time.monotonic()
        try:
            shared = yield
        finally:
            seconds = time.monotonic() - began
            self._recorder.write(
                item.nodeid,
                [*self._recorder.entered(), *sorted(self._called)],
                seconds=round(seconds, 3),
                passed=self._has_passed,
            )
        return shared

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Read what was called in the database that tests share."""
        dsn = getattr(item, "funcargs", {}).get("shared_dsn")
        try:
            return (yield)
        finally:
            if dsn is not None:
                with suppress(psycopg.Error):  # the last test of a session drops it
                    self._read_shared(dsn)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that it failed or was skipped: such a test notices nothing."""
        if not report.passed:
            self._has_passed = False

    def _read(self, conn: psycopg.Connection[Any]) -> None:
        for _ in range(LOOKS):
            if conn.execute(OTHERS).fetchone() == (0,):
                break
            conn.execute("select pg_sleep(0.01)")
        self._called |= {f"sql::{name}" for (name,) in conn.execute(CALLED)}
        conn.execute("select pg_stat_reset()")

    def _read_shared(self, dsn: str) -> None:
        if dsn not in self._shared:
            self._shared[dsn] = _connect(dsn)
        self._read(self._shared[dsn])

    def _follow_databases(self) -> None:
        servers: Any = importlib.import_module("servers")
        copies: Any = importlib.import_module("copies")
        create, drop = servers.create_database, servers.drop_database
        take, give_back = copies.Copies.take, copies.Copies.give_back

        def create_database(
            server: str, template: str | None = None, name: str | None = None
        ) -> str:
            made: str = create(server, template, name)
            with psycopg.connect(server, autocommit=True) as admin:
                admin.execute(
                    sql.SQL("alter database {} set track_functions = 'all'").format(
                        sql.Identifier(made)
                    )
                )
            return made

        def drop_database(server: str, name: str) -> None:
            try:
                with _connect(servers.dsn_of(server, name)) as conn:
                    self._read(conn)
            except psycopg.Error:
                pass  # a test has dropped it, or nobody may connect with it
            drop(server, name)

        def take_and_reset(lent: Any) -> str:
            dsn: str = take(lent)
            lent.keeper(dsn).execute("select pg_stat_reset()")
            return dsn

        def read_and_give_back(lent: Any, dsn: str) -> None:
            try:
                self._read(lent.keeper(dsn))
            except psycopg.Error:
                pass  # the test has ended its server
            give_back(lent, dsn)

        servers.create_database, servers.drop_database = create_database, drop_database
        copies._keep = _connect
        copies.Copies.take, copies.Copies.give_back = take_and_reset, read_and_give_back


def _connect(dsn: str) -> psycopg.Connection[Any]:
    """A connection whose own calls are not counted: the audit calls every check."""
    conn = psycopg.connect(dsn, autocommit=True, application_name="pgflow tests")
    conn.execute("set track_functions = 'none'")
    return conn


def pytest_configure(config: pytest.Config) -> None:
    """Record, if the environment names a folder for it."""
    is_controller = not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no"
    if (folder := os.environ.get(FOLDER)) and not is_controller:
        config.pluginmanager.register(Tracing(Path(folder).absolute()), "pgflow tracing")
