"""A primary and its standby, made by pg_basebackup, with faults: the primary is killed or frozen,
the standby promoted.

Both run on this machine; a DSN names both, the standby first if asked to. Replication is
synchronous or not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import servers
from ownserver import OwnServer

SETTINGS = {
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
    "wal_keep_size": "256MB",
    "shared_buffers": "64MB",
}


class Standby(OwnServer):
    """A copy of another server, that follows it."""

    def __init__(self, primary: OwnServer) -> None:
        super().__init__(primary.wanted)
        self._primary = primary
        self.password = primary.password

    def __enter__(self) -> Self:
        """Copies the primary's data and follows it."""
        self.find_port()
        tool = servers.find_test_programs(self.wanted) / "pg_basebackup"
        command = [
            sys.executable,
            "-m",
            "pgflow.embedded._namespace",
            str(tool),
            "-D",
            str(self.data),
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
        ]
        address = psycopg.conninfo.make_conninfo(
            self._primary.dsn, application_name="standby", dbname=None
        )
        done = subprocess.run(
            [*command, "-d", address],
            cwd=servers.REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(
                f"port = {self.port}\nunix_socket_directories = "
                f"'{self.folder}'\nsynchronous_standby_names = ''\n"
            )
        self.start()
        return self

    def promote(self) -> None:
        """Takes writes from now on; returns when it does."""
        self._run("-w", "-s", "promote")


class Pair:
    """See the module. Both are gone with their data when it is left.

    Args:
        wanted: Version or folder of the programs, as for :class:`OwnServer`.
        synchronous: True if a commit waits for the standby.
    """

    def __init__(self, wanted: str | None = None, *, synchronous: bool) -> None:
        self.synchronous = synchronous
        self.primary = OwnServer(wanted, **SETTINGS)
        self._stack = contextlib.ExitStack()
        self._frozen: list[int] = []

    def __enter__(self) -> Self:
        """Starts both; the standby follows."""
        with contextlib.ExitStack() as stack:
            self._stack.callback(shutil.rmtree, self.primary.folder, ignore_errors=True)
            self.primary.__enter__()
            stack.callback(self.kill)
            self.standby = Standby(self.primary)
            stack.enter_context(self.standby)
            if self.synchronous:
                with psycopg.connect(self.primary.dsn, autocommit=True) as admin:
                    admin.execute("alter system set synchronous_standby_names = 'standby'")
                    admin.execute("select pg_reload_conf()")
            servers.wait_until(self._follows, "the standby follows the primary")
            self._stack.enter_context(stack.pop_all())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends both."""
        self._stack.close()

    def _follows(self) -> bool:
        wanted = "sync" if self.synchronous else "async"
        with psycopg.connect(self.primary.dsn) as conn:
            return (
                conn.execute(
                    "select from pg_stat_replication where state = 'streaming' and sync_state = %s",
                    (wanted,),
                ).fetchone()
                is not None
            )

    def dsn(self, *, standby_first: bool = False, database: str = "postgres") -> str:
        """Return the address of both."""
        ports = [self.primary.port, self.standby.port]
        addresses = ",".join(
            f"127.0.0.1:{port}" for port in (reversed(ports) if standby_first else ports)
        )
        return f"postgresql://postgres:{self.primary.password}@{addresses}/{database}"

    # ------------------------------------------------------------ what happens to them

    def kill(self) -> None:
        """The primary and all its processes are gone at once, as with its machine; nothing if they
        are already.
        """
        for pid in self._frozen or processes_of(self.primary):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        servers.wait_until(lambda: not processes_of(self.primary), "the primary is gone")

    def freeze(self) -> None:
        """The primary answers nothing any more, and its kernel goes on acknowledging what is sent
        to it.
        """
        self._frozen = processes_of(self.primary)
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """The primary goes on as if nothing had been."""
        for pid in self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen = []

    def cut_off(self) -> None:
        """The standby hears nothing of what the primary does from now on: its stream stands
        still.
        """
        senders = [pid for pid in processes_of(self.primary) if b"walsender" in command_of(pid)]
        assert senders, "nobody sends to the standby"
        for pid in senders:
            os.kill(pid, signal.SIGSTOP)

    def promote(self) -> float:
        """The standby takes writes; the time at which it did."""
        self.standby.promote()
        return time.monotonic()


def command_of(pid: int) -> bytes:
    """Return the command line of a process; nothing for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def processes_of(server: OwnServer) -> list[int]:
    """The server's processes, the first of them first; none of one that is gone."""
    try:
        first = int((server.data / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, IndexError):
        return []
    if str(server.data).encode() not in command_of(first):
        return []
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return [first, *map(int, children)]
