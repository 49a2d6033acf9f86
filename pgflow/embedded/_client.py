"""The client of the server in a process: register, see that it runs, and let go.

The order of the locks is that of `pgflow.embedded`: ``users.lock`` first and for as long as the
server is needed, ``start.lock`` only while looking or starting.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import psycopg
from psycopg import sql

import pgflow
from pgflow.embedded._binaries import find_programs
from pgflow.embedded._cluster import PidFile, command_line
from pgflow.embedded._folder import DATABASE, Folder, State
from pgflow.embedded._locks import POLL_SECONDS, FileLock, is_locked
from pgflow.errors import EmbeddedServerError

START_SECONDS = 60.0
STOP_SECONDS = 60.0
LOG_BYTES = 10_000_000
SUPERVISOR = "pgflow.embedded._supervisor"


@dataclass(frozen=True)
class ServerStatus:
    """State of the embedded server of a home.

    Attributes:
        home: The folder that was asked about.
        running: True if the server takes connections, or is about to.
        pid: Process id of its postmaster, if it runs.
        supervisor_pid: Process id of what looks after it;
            None after a kill -9, until the next `acquire`.
        dsn: Its address, if it runs.
    """

    home: Path
    running: bool
    pid: int | None = None
    supervisor_pid: int | None = None
    dsn: str | None = None


class EmbeddedServer:
    """A running server that this process needs until `release`, or until it ends in any way.

    A process forked from this one needs it too, for as long as it lives.

    Attributes:
        home: The folder its data is under.
        dsn: Address of its database ``pgflow``, through a private socket.
        pid: Process id of its postmaster when it was acquired.
        port: Its port, on 127.0.0.1 and in the name of the socket.
        socket_dir: The folder of the socket.
    """

    def __init__(self, folder: Folder, state: State, user: FileLock) -> None:
        self._folder = folder
        self._user = user
        self.home = folder.home
        self.dsn = state.dsn(DATABASE)
        self.pid = state.pid
        self.port = state.port
        self.socket_dir = Path(state.socket_dir)

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.dsn} pid {self.pid}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the server for this process; a second call does nothing."""
        self._user.close()
        if is_locked(self._folder.postgres_lock) and not is_locked(self._folder.supervisor_lock):
            # The former one was killed, and the server would run on
            # until its next user.
            with suppress(EmbeddedServerError):
                launch_supervisor(self._folder)


def acquire(home: Path | None = None) -> EmbeddedServer:
    """Have a server: the one that runs under `home`, or else a new one.

    Args:
        home: Folder for the data. Default: ``PGFLOW_HOME``,
            else ``pgflow`` in the user's data folder.

    Returns:
        The server, which stays up until every process that acquired it has released it or ended.

    Raises:
        EmbeddedServerError: It does not start; the message says why.

    Example::

        with acquire() as server, psycopg.connect(server.dsn) as connection:
            connection.execute("select 1")
    """
    folder = Folder.of(home)
    folder.create()
    deadline = time.monotonic() + START_SECONDS
    user = _register(folder, deadline)
    try:
        with _take_turn(folder, deadline):
            state = _ensure_running(folder, deadline)
    except BaseException:
        user.close()
        raise
    return EmbeddedServer(folder, state, user)


def _register(folder: Folder, deadline: float) -> FileLock:
    """Become a user, which waits while a supervisor is stopping the server for lack of users."""
    user = FileLock(folder.users_lock)
    if user.lock_until(deadline, shared=True):
        return user
    user.close()
    raise EmbeddedServerError(
        f"the embedded server under {folder.home} is being stopped, and does not end: see "
        f"{folder.log}"
    )


def _take_turn(folder: Folder, deadline: float) -> FileLock:
    """Be the only process that looks whether the server runs, and starts or stops it."""
    turn = FileLock(folder.start_lock)
    if turn.lock_until(deadline):
        return turn
    turn.close()
    raise EmbeddedServerError(
        f"another process starts or stops the embedded server under {folder.home}: see {folder.log}"
    )


def status(home: Path | None = None) -> ServerStatus:
    """Look at the server under `home` without starting or needing it."""
    folder = Folder.of(home)
    found = PidFile.read(folder.data)
    supervisor_pid = _supervisor_pid(folder)
    if found is None or not found.port or not is_locked(folder.postgres_lock):
        return ServerStatus(folder.home, running=False, supervisor_pid=supervisor_pid)
    dsn = State(found.pid, found.port, found.socket_dir).dsn(DATABASE)
    return ServerStatus(
        folder.home, running=True, pid=found.pid, supervisor_pid=supervisor_pid, dsn=dsn
    )


def stop(home: Path | None = None) -> None:
    """Stop the server under `home` now, even if it is in use. Do nothing if it does not run.

    Raises:
        EmbeddedServerError: It does not stop.
    """
    folder = Folder.of(home)
    if not folder.root.is_dir():
        return
    deadline = time.monotonic() + STOP_SECONDS
    with _take_turn(folder, deadline):
        while is_locked(folder.supervisor_lock) or is_locked(folder.postgres_lock):
            _have_supervisor_stop(folder)
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the embedded server under {folder.home} does not stop: see {folder.log}"
                )
            time.sleep(POLL_SECONDS)


def _have_supervisor_stop(folder: Folder) -> None:
    if not is_locked(folder.supervisor_lock):
        launch_supervisor(folder)  # to look after what a killed one left behind
    if pid := _supervisor_pid(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _supervisor_pid(folder: Folder) -> int | None:
    if not is_locked(folder.supervisor_lock):
        return None
    text = folder.supervisor_lock.read_text()
    # A supervisor that has only just begun has not yet written over the number of the one before.
    return int(text) if text and SUPERVISOR in command_line(int(text)) else None


def _ensure_running(folder: Folder, deadline: float) -> State:
    """Return the server that takes connections; called by one process at a time, which is a
    registered user.
    """
    while time.monotonic() < deadline:
        if not is_locked(folder.supervisor_lock):
            launch_supervisor(folder)
        state = _wait_for_server(folder, deadline)
        if state is not None:
            return state
        if failure := folder.read_failure():
            raise EmbeddedServerError(failure)
    raise _too_late(folder)


def _wait_for_server(folder: Folder, deadline: float) -> State | None:
    """Wait for a server that takes connections; None when the supervisor ended instead."""
    refusal: psycopg.OperationalError | None = None
    while is_locked(folder.supervisor_lock):
        state = folder.read_state()
        if state is not None and state.pid:
            try:
                _have_database(state)
            except psycopg.OperationalError as error:
                refusal = error
            else:
                return state
        if time.monotonic() > deadline:
            raise _too_late(folder) from refusal
        time.sleep(POLL_SECONDS)
    return None


def _too_late(folder: Folder) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"the embedded server under {folder.home} is not ready in time: see {folder.log}"
    )


def _have_database(state: State) -> None:
    """Make our database if it is missing;
    an OperationalError says that the server takes no connections.
    """
    with psycopg.connect(state.dsn("postgres"), autocommit=True, connect_timeout=5) as connection:
        if (
            connection.execute(
                "select from pg_catalog.pg_database where datname = %s", [DATABASE]
            ).rowcount
            == 0
        ):
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
        _have_auditor(connection)


def _have_auditor(connection: psycopg.Connection[Any]) -> None:
    """Let pgflow_auditor log in. It runs the statements that people write, and has no other role.

    The socket, which this user alone can reach, asks for no password. By TCP it has none.
    """
    found = connection.execute(
        "select rolcanlogin from pg_catalog.pg_roles where rolname = 'pgflow_auditor'"
    ).fetchone()
    if found is None:
        connection.execute("create role pgflow_auditor login")
    elif not found[0]:
        connection.execute("alter role pgflow_auditor login")


def launch_supervisor(folder: Folder) -> None:
    """Start a supervisor, which detaches; on return it holds its lock, or another one does."""
    find_programs()  # to fail here, where the trace is of use
    with open_log(folder) as log:
        launched = subprocess.run(  # noqa: S603  our own module
            [sys.executable, "-P", "-m", SUPERVISOR, str(folder.home)],
            cwd=folder.root,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,
        )
    if launched.returncode != 0:
        raise EmbeddedServerError(
            f"the supervisor of the embedded server does not start:\n{folder.read_log_tail()}"
        )


def _environment() -> dict[str, str]:
    """Ours, with our import path, and without what would change how Postgres or libpq behave."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PG") or name.startswith("PGFLOW_")
    }
    here = Path(pgflow.__file__).parents[1]
    path = os.pathsep.join(
        [str(here), *(str(Path(entry).absolute()) for entry in sys.path if entry)]
    )
    return kept | {"PYTHONPATH": path, "LC_ALL": "C"}


def open_log(folder: Folder) -> BinaryIO:
    """Return the log, to be added to; one older log is kept."""
    if folder.log.exists() and folder.log.stat().st_size > LOG_BYTES:
        folder.log.replace(folder.log.with_name("server.log.1"))
    return os.fdopen(os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
