"""Fixtures: one server a session, one database a test, and the engine's own audit after each.

The schema is installed once, into a template; each test gets a copy of it, which costs some
hundredths of a second, and serves the tests after it where the first left nothing but rows. A test that
breaks the database on purpose says so with ``@pytest.mark.unsound``; one that must be the only one
connected with it, with ``@pytest.mark.alone``.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import cache_from_source
from pathlib import Path

import hypothesis
import psycopg
import pytest
import servers
from copies import Copies
from psycopg.pq import TransactionStatus
from servers import postgresql_proc  # noqa: F401  a fixture

import pgflow._engine
import pgflow.assets
import pgflow.testing
from pgflow import App, AsyncApp

MANY_TESTS = 50
"""Number of tests above which it is worth the time to make their template small."""

# Each test has a database of its own, a thousand small files: half of the time is the file
# system's, if it is one on a disk.
if (memory := servers.find_memory(8)) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


# Some images forbid Python to keep what it compiles. Then each of the thousands of processes that the
# tests start would compile all of pgflow anew, so it is kept outside of the tree.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(servers.CACHE / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


# A shell ignores Ctrl-C in what it starts in the background, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# On a machine of CI, whoever names no database gets none: the tests that want the embedded server do.
os.environ.setdefault("PGFLOW_EMBEDDED", "1")


# One commit, one verdict: the same examples each time, and no example that an earlier run has kept.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


# A harness waits as long as any other test does: only a hang ends it.
pgflow.testing.IDLE_TIMEOUT_SECONDS = servers.HANG_SECONDS


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Compile the tests once, on all processors, before several processes collect all of them: to
    rewrite their assertions takes longer than anything else of a collection.
    """
    if config.args != config.getini("testpaths"):
        return
    halves = [half for half in _uncompiled_halves() if half]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", ""]
    compiling = [
        subprocess.Popen([*command, *half], cwd=config.rootpath, stdout=subprocess.DEVNULL)
        for half in halves
    ]
    for process in compiling:
        process.wait()


def _uncompiled_halves() -> tuple[list[str], list[str]]:
    tests = sorted(Path(__file__).parent.rglob("test_*.py"))
    tag = f"pytest-{pytest.__version__}.pyc"

    def is_compiled(path: Path) -> bool:
        cache = Path(cache_from_source(str(path)))
        kept = cache.with_name(f"{cache.stem}-{tag}")
        return kept.exists() and kept.stat().st_mtime >= path.stat().st_mtime

    left = [str(path) for path in tests if not is_compiled(path)]
    return left[::2], left[1::2]


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes that test: they often wait for servers, so a small machine
    bears more than it has processors.
    """
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(processors, min(4, 2 * processors))


def pytest_collection_finish() -> None:
    """Have the collector of garbage pass by the modules and the ten thousand tests, which stay: it
    comes often, and would go through all of them each time.
    """
    gc.freeze()


def pytest_report_header() -> str:
    """Return a line on the engine under test: there may be a compiled one beside the text, or
    before it on the path.
    """
    return f"engine: {'compiled' if pgflow.assets.is_compiled() else 'interpreted'}, {Path(pgflow._engine.__file__).parent}"


@pytest.fixture(scope="session")
def server_dsn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """DSN of a database of the tests' server that stays, as superuser."""
    if dsn := os.environ.get("PGFLOW_TEST_DSN"):
        return dsn
    request.config.option.postgresql_exec = str(
        servers.write_pg_ctl(tmp_path_factory.mktemp("bin"))
    )
    request.config.option.postgresql_unixsocketdir = str(tmp_path_factory.mktemp("run"))
    process = request.getfixturevalue("postgresql_proc")
    address = psycopg.conninfo.make_conninfo(
        host=process.host, port=process.port, user=process.user, password=process.password
    )
    dsn = servers.dsn_of(address, "postgres")
    servers.make_logins_cheap(dsn, process.user, process.password)
    return dsn


@pytest.fixture(scope="session")
def template(request: pytest.FixtureRequest, server_dsn: str) -> Iterator[str]:
    """Name of a database with the schema installed, with which nobody is connected;
    ``PGFLOW_TEST_TEMPLATE`` names one that is there.
    """
    if name := os.environ.get("PGFLOW_TEST_TEMPLATE"):
        yield name
        return
    name = servers.create_database(server_dsn)
    fresh = servers.dsn_of(server_dsn, name)
    servers.install_for_tests(fresh)
    if request.session.testscollected > MANY_TESTS:
        servers.shrink_catalog(fresh)
    yield name
    servers.drop_database(server_dsn, name)


@pytest.fixture(scope="session")
def copies(server_dsn: str, template: str) -> Iterator[Copies]:
    """The databases that tests are lent. The testing kit replays and audits on the connections that
    look after them.
    """
    lent, audit_of_kit = Copies(server_dsn, template), pgflow.testing.audit
    replay_of_kit = pgflow.testing.replay_all

    def audit(dsn: str) -> None:
        if dsn not in lent:
            audit_of_kit(dsn)
            return
        violations = lent.audit(dsn)
        assert not violations, f"pgflow.check() found: {violations}"

    def replay_all(app: AsyncApp | App) -> None:
        if app.dsn in lent:
            pgflow.testing._replay_on(lent.keeper(app.dsn), app.definitions)
        else:
            replay_of_kit(app)

    with pytest.MonkeyPatch.context() as patch:
        lent.recycled.patch(patch)
        patch.setattr(pgflow.testing, "audit", audit)
        patch.setattr(pgflow.testing, "replay_all", replay_all)
        if servers.ROLE == "least":
            set_clock = pgflow.testing.set_clock

            def set_as_administrator(dsn: str, ahead: timedelta) -> None:
                name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
                set_clock(servers.dsn_of(server_dsn, str(name)), ahead)

            patch.setattr(pgflow.testing, "set_clock", set_as_administrator)
        yield lent
    lent.close()


@pytest.fixture
def dsn(request: pytest.FixtureRequest, server_dsn: str, template: str) -> Iterator[str]:
    """DSN of a database with the schema and nothing else; its books must balance when the test is
    over.
    """
    is_due = request.node.get_closest_marker("unsound") is None
    if request.node.get_closest_marker("alone"):
        name = servers.create_database(server_dsn, template)
        fresh = servers.as_role(servers.dsn_of(server_dsn, name), "owner")
        yield fresh
        try:
            assert not is_due or servers.unsound(fresh) == []
        finally:
            servers.drop_database(server_dsn, name)
        return
    copies = request.getfixturevalue("copies")
    lent = copies.take()
    yield lent
    try:
        assert not is_due or copies.audit(lent) == []
    finally:
        copies.give_back(lent)


@pytest.fixture
def empty_dsn(server_dsn: str) -> Iterator[str]:
    """DSN of a fresh database without the schema."""
    name = servers.create_database(server_dsn)
    yield servers.as_role(servers.dsn_of(server_dsn, name), "owner")
    servers.drop_database(server_dsn, name)


@pytest.fixture
def other_dsn(server_dsn: str, template: str) -> Iterator[str]:
    """DSN of a second database with the schema and nothing else."""
    name = servers.create_database(server_dsn, template)
    yield servers.as_role(servers.dsn_of(server_dsn, name), "owner")
    servers.drop_database(server_dsn, name)


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    """A connection to the fresh database, in autocommit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def shared_dsn(server_dsn: str, template: str) -> Iterator[str]:
    """A database with the schema for all tests that leave nothing in it; see `db`."""
    name = servers.create_database(server_dsn, template)
    yield servers.as_role(servers.dsn_of(server_dsn, name), "owner")
    servers.drop_database(server_dsn, name)


@pytest.fixture(scope="session")
def shared_connections() -> Iterator[list[psycopg.Connection]]:
    """The connection of `db`, if there is one: it has planned what earlier tests asked."""
    kept: list[psycopg.Connection] = []
    yield kept
    for connection in kept:
        connection.close()


@pytest.fixture
def db(
    request: pytest.FixtureRequest, shared_dsn: str, shared_connections: list[psycopg.Connection]
) -> Iterator[psycopg.Connection]:
    """A connection inside a transaction that is rolled back after the test: cheap, for tests that
    need no second connection.
    """
    connection = (
        shared_connections.pop()
        if shared_connections
        else psycopg.connect(shared_dsn, autocommit=True)
    )
    try:
        with connection.transaction(force_rollback=True):
            yield connection
            is_open = connection.info.transaction_status == TransactionStatus.INTRANS
            if is_open and request.node.get_closest_marker("unsound") is None:
                found = connection.execute("select invariant, detail from pgflow.check()")
                assert found.fetchall() == []
    finally:
        if connection.info.transaction_status == TransactionStatus.IDLE:
            shared_connections.append(connection)
        else:
            connection.close()


@pytest.fixture
def pgflow_dsn(dsn: str) -> str:
    """The testing kit's fixtures (`flow`, `aflow`) work on the same databases as everything else
    here.
    """
    return servers.as_role(dsn, "least")
