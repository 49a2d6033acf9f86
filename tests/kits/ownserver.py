"""A server of one's own, with fsync on, that may be stopped at once and started again."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import servers

from pgflow.embedded._supervisor import find_free_port

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "jit": "off",
    "timezone": "UTC",
    "shared_preload_libraries": "pg_stat_statements",
}


class OwnServer:
    """Starts when entered, and is gone with its data when left.

    Args:
        wanted: A major version or a folder of programs, as ``PGFLOW_TEST_POSTGRES``; None asks that
            variable.
        root: Folder to make its own in; None is that of temporary files.
        settings: More lines of postgresql.conf.
    """

    def __init__(
        self, wanted: str | None = None, *, root: Path | None = None, **settings: str
    ) -> None:
        self.wanted = wanted
        # short: the path of a socket has a limit
        self.folder = Path(tempfile.mkdtemp(prefix="pgf", dir=root))
        self.data = self.folder / "data"
        self._pg_ctl = servers.write_pg_ctl(self.folder, wanted)
        self._settings = {**SETTINGS, **settings}
        self._said = settings
        self.port = 0
        self.password = secrets.token_urlsafe()  # it listens for everybody on this machine

    @property
    def dsn(self) -> str:
        """A superuser's, by TCP."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def version(self) -> str:
        """As the server says it."""
        with psycopg.connect(self.dsn) as conn:
            return str(conn.execute("show server_version").fetchone()[0]).split()[0]  # type: ignore[index]

    @property
    def label(self) -> str:
        """The version, and what was asked for beside it."""
        return (
            f"{self.version} ({', '.join(f'{name}={value}' for name, value in self._said.items())})"
            if self._said
            else self.version
        )

    @property
    def has_odd_level(self) -> bool:
        """True if transactions are not read committed by default."""
        return (
            self._settings.get("default_transaction_isolation", "read committed")
            != "read committed"
        )

    def _run(self, *arguments: str) -> None:
        log = self.folder / "log"
        with log.open("a") as out:
            done = subprocess.run(
                [self._pg_ctl, "-D", self.data, *arguments], stdout=out, stderr=out, check=False
            )
        assert done.returncode == 0, log.read_text()[-2000:]

    def __enter__(self) -> Self:
        """Makes the data and starts."""
        self.find_port()
        passwords = self.folder / "password"
        passwords.write_text(self.password)
        self._run(
            "initdb",
            "-s",
            "-o",
            f"-U postgres -A scram-sha-256 --pwfile={passwords} -E UTF8 --locale=C --no-sync",
        )
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(
                f"{name} = '{value}'\n"
                for name, value in {
                    **self._settings,
                    "unix_socket_directories": str(self.folder),
                }.items()
            )
            conf.write(f"port = {self.port}\n")
        self.start()
        return self

    def find_port(self) -> None:
        """Takes a port that is free."""
        self.port = find_free_port()

    def start(self) -> None:
        """Starts it, again if need be, and returns when it answers."""
        self._run("-w", "-s", "-l", str(self.folder / "postgres.log"), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stops it: `immediate` leaves recovery to the next start."""
        self._run("-w", "-s", "-m", mode, "stop")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops it and removes its data."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
