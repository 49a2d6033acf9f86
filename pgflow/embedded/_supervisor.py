"""The small process that owns the server: ``python -m pgflow.embedded._supervisor HOME``.

It detaches from the process that started it, makes the data folder if need be, starts Postgres in
the foreground as its own child (a child that dies is noticed at once; a daemon killed with -9 is
not), publishes its address, starts it again when it crashes, and stops it once it was unused for
`LINGER_SECONDS`.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import stat
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from pgflow.embedded._cluster import Cluster, PidFile, Postmaster, process_exists
from pgflow.embedded._folder import SUPERUSER, Folder, State, replace_file
from pgflow.embedded._locks import POLL_SECONDS, FileLock, is_locked
from pgflow.embedded._placement import place_cluster
from pgflow.errors import EmbeddedServerError

if TYPE_CHECKING:
    from types import FrameType

LINGER_SECONDS = 3.0
TICK_SECONDS = 0.5
START_ATTEMPTS = 5
LEFTOVER_SECONDS = 60.0
CLIENTS = """
  select from pg_catalog.pg_stat_activity
  where backend_type in ('client backend', 'walsender') and pid <> pg_catalog.pg_backend_pid()
  limit 1
"""
TOO_MANY_CONNECTIONS = "53300"
# What the kernel's address structure holds.
SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103


def main() -> int:
    """Supervise the server of the home in the argument, unless another process does."""
    folder = Folder(Path(sys.argv[1]))
    own_lock = FileLock(folder.supervisor_lock)
    if not own_lock.lock_until(time.monotonic() + 1):  # longer than any look of `is_locked`
        return 0
    # Before our starter goes on: it must not read what a former supervisor left.
    folder.failure.unlink(missing_ok=True)
    os.ftruncate(own_lock.descriptor, 0)
    if child := os.fork():
        # Here, so that it is known who supervises before our starter goes on.
        os.write(own_lock.descriptor, str(child).encode())
        os._exit(0)  # the child's copy of the descriptor keeps the lock
    try:
        Supervisor(folder).run()
    except EmbeddedServerError as error:
        report_failure(folder, str(error))
    except Exception as error:  # noqa: BLE001  a user waits for every error
        traceback.print_exc()
        report_failure(folder, repr(error))
    finally:
        # Before the users' lock, which ends with this process:
        # a user that gets that one must find no supervisor.
        own_lock.close()
    return 0


def report_failure(folder: Folder, reason: str) -> None:
    """Leave word for the process that waits for the server, while it still sees us alive."""
    replace_file(folder.failure, f"{reason}\nThe log {folder.log} ends:\n{folder.read_log_tail()}")


class Signals:
    """Wakes the supervisor when its child ends or a signal asks it to stop."""

    def __init__(self) -> None:
        self.asked_to_stop = False
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            # An ignored signal would stay ignored in our children.
            signal.signal(number, lambda *_: None)

    def _ask_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.asked_to_stop = True

    def wait(self, timeout_seconds: float) -> None:
        """Return at the next signal or after that time."""
        if select.select([self._reader], [], [], timeout_seconds)[0]:
            os.read(self._reader, 4096)


class Supervisor:
    """Looks after the one server of a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._users = FileLock(folder.users_lock)
        self._signals = Signals()
        self._state = folder.read_state()
        self._server: Postmaster | None = None
        self._withdraw()
        self._cluster = place_cluster(folder)

    def run(self) -> None:
        """Keep the server up while it has users, then stop it."""
        try:
            while self._has_crashed(self._adopt() or self._start()):
                self._withdraw()
        finally:
            self._end()

    def _end(self) -> None:
        try:
            self._withdraw()
        finally:
            if self._server is not None:
                self._server.stop()

    def _has_crashed(self, server: Postmaster) -> bool:
        """Watch the server until it ends by itself (True), or must be stopped."""
        idle_since: float | None = None
        while not self._signals.asked_to_stop:
            if not server.is_alive():
                # A server that was stopped in order, with pg_ctl perhaps, has removed its file.
                return PidFile.read(self._cluster.data) is not None
            if not self._users.try_lock():
                idle_since = None
            else:
                idle_since = idle_since or time.monotonic()
                if time.monotonic() - idle_since >= LINGER_SECONDS:
                    if not self._has_clients():
                        # With the users' lock: a new user waits until we are gone.
                        return False
                    idle_since = None
                self._users.unlock()
            self._signals.wait(TICK_SECONDS)
        return False

    def _has_clients(self) -> bool:
        """Return True if a client is connected: who has the address need not have the lock, such as
        a worker that was given the connection string of an app.
        """
        assert self._state is not None
        try:
            with psycopg.connect(
                self._state.dsn("postgres"), autocommit=True, connect_timeout=5
            ) as connection:
                return connection.execute(CLIENTS).fetchone() is not None
        except psycopg.OperationalError as error:
            return error.sqlstate == TOO_MANY_CONNECTIONS

    def _adopt(self) -> Postmaster | None:
        """Return the server that a killed supervisor left behind; None once no process uses the
        data folder.
        """
        deadline = time.monotonic() + LEFTOVER_SECONDS
        while is_locked(self._cluster.lock):
            found = PidFile.read(self._cluster.data)
            if found is not None and found.status == "ready" and process_exists(found.pid):
                self._server = Postmaster(found.pid, self._cluster.lock)
                self._publish(State(found.pid, found.port, found.socket_dir))
                return self._server
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"processes of a former server use {self._cluster.data} and do not end"
                )
            self._signals.wait(POLL_SECONDS)
        return None

    def _start(self) -> Postmaster:
        self._cluster.create()
        self._cluster.check_version()
        socket_dir = choose_socket_dir(self._cluster, self._state)
        port = self._state.port if self._state else 0
        for _ in range(START_ATTEMPTS):
            if port == 0 or not is_port_free(port):
                port = find_free_port()
            self._server = self._cluster.start(port, socket_dir)
            if self._wait_until_ready(self._server):
                return self._server
            self._server.wait_until_gone(LEFTOVER_SECONDS)
            if is_port_free(port) and not self._server.was_killed():
                break  # it has a reason of its own, which will not go away
        raise EmbeddedServerError("Postgres does not start")

    def _wait_until_ready(self, server: Postmaster) -> bool:
        while server.is_alive() and not self._signals.asked_to_stop:
            found = PidFile.read(self._cluster.data)
            if found is not None and found.pid == server.pid and found.status == "ready":
                state = State(found.pid, found.port, found.socket_dir)
                set_password(self._folder, state)
                self._publish(state)
                return True
            self._signals.wait(POLL_SECONDS)
        return server.is_alive()

    def _publish(self, state: State) -> None:
        self._state = state
        self._folder.write_state(state)

    def _withdraw(self) -> None:
        if self._state is not None:
            self._folder.write_state(replace(self._state, pid=0))


def choose_socket_dir(cluster: Cluster, previous: State | None) -> Path:
    """Return a private folder whose name can be the address of a socket."""
    beside_data = cluster.data.parent / "run"
    # A client reads a comma as the end of the first of several hosts.
    if len(os.fsencode(beside_data / ".s.PGSQL.65535")) <= SOCKET_PATH_BYTES and "," not in str(
        beside_data
    ):
        beside_data.mkdir(mode=0o700, exist_ok=True)
        return cluster.give(beside_data)
    owner = cluster.data.stat().st_uid
    if previous is not None and is_private(Path(previous.socket_dir), owner):
        return Path(previous.socket_dir)
    return cluster.give(Path(tempfile.mkdtemp(prefix="pgflow-", dir="/tmp")))


def is_private(folder: Path, owner: int) -> bool:
    """Return True if this is a real folder that only its owner, this one, can enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o077


def is_port_free(port: int) -> bool:
    """Return True if the server could listen on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def find_free_port() -> int:
    """Return a port that is free now, by the kernel."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def set_password(folder: Folder, server: State) -> None:
    """Give the superuser the password in its file, which is made if missing; only its hash is sent.

    Without a password TCP logins fail, and nothing else does: a failure is only logged.
    """
    if not folder.password.exists():
        replace_file(folder.password, secrets.token_urlsafe(24))
    password = folder.password.read_text().strip()
    try:
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
            hashed = connection.pgconn.encrypt_password(
                password.encode(), SUPERUSER.encode(), b"scram-sha-256"
            ).decode()
            connection.execute(
                sql.SQL("alter role {} password {}").format(sql.Identifier(SUPERUSER), hashed)
            )
    except psycopg.Error as error:
        sys.stderr.write(f"cannot set the password: {error}\n")


if __name__ == "__main__":
    sys.exit(main())
