"""The folder of one embedded server, with all its files by name.

``PGFLOW_HOME/postgres`` belongs to one user and is closed to all others (0700), so that local
connections need no password. The folder above it may be any, and is never changed. Processes
communicate through ``state.json``, written by rename so that a reader sees all of it or none.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from pgflow.errors import EmbeddedServerError

SUPERUSER = "postgres"
DATABASE = "pgflow"


def default_home() -> Path:
    """`PGFLOW_HOME`, else pgflow's place among the user's data."""
    if home := os.environ.get("PGFLOW_HOME"):
        return Path(home).expanduser()
    if data_home := os.environ.get("XDG_DATA_HOME"):
        return Path(data_home) / "pgflow"
    return Path.home() / ".local" / "share" / "pgflow"


@dataclass(frozen=True)
class State:
    """The server when this was written: its postmaster, or 0 without one, and its address.

    The address is kept for the next start, so that addresses that were noted stay valid.
    """

    pid: int
    port: int
    socket_dir: str

    def dsn(self, database: str) -> str:
        """Return the address of a database of this server, through the socket."""
        return (
            f"postgresql://{SUPERUSER}@/{database}"
            f"?host={quote(self.socket_dir, safe='')}&port={self.port}"
        )


@dataclass(frozen=True)
class Folder:
    """The private folder of one embedded server."""

    home: Path

    @classmethod
    def of(cls, home: Path | None) -> Folder:
        """Return the folder under `home`, by the one absolute name that all processes agree on."""
        return cls((home if home is not None else default_home()).expanduser().resolve())

    @property
    def root(self) -> Path:
        return self.home / "postgres"

    @property
    def data(self) -> Path:
        """The data folder of Postgres: a symbolic link where another account has to own it."""
        return self.root / "data"

    @property
    def programs(self) -> Path:
        """A copy of the programs, where the installed ones cannot be run."""
        return self.root / "programs"

    @property
    def users_lock(self) -> Path:
        return self.root / "users.lock"

    @property
    def start_lock(self) -> Path:
        return self.root / "start.lock"

    @property
    def supervisor_lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def postgres_lock(self) -> Path:
        return self.root / "postgres.lock"

    @property
    def password(self) -> Path:
        """The superuser's password, which connections by TCP need."""
        return self.root / "password"

    @property
    def log(self) -> Path:
        """Log of the supervisor and the server."""
        return self.root / "server.log"

    @property
    def failure(self) -> Path:
        """File with the reason why the last supervisor gave up,
        for the user process that waits for it.
        """
        return self.root / "failure.txt"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    def create(self) -> None:
        """Make the folder, private to this user."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = self.root.stat().st_uid
            if owner == os.geteuid():
                self.root.chmod(0o700)  # a umask or a copy may have left it otherwise
        except OSError as error:
            raise EmbeddedServerError(
                f"cannot use {self.root} ({error.strerror}): choose another PGFLOW_HOME"
            ) from error
        if owner != os.geteuid():
            raise EmbeddedServerError(
                f"{self.root} belongs to another user (uid {owner}): choose another PGFLOW_HOME"
            )

    def read_state(self) -> State | None:
        """Return the server that was last published, or None."""
        try:
            return State(**json.loads(self.state.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write_state(self, state: State) -> None:
        """Publish a server that is ready."""
        replace_file(self.state, json.dumps(asdict(state)))

    def read_failure(self) -> str | None:
        """Return the reason why the last supervisor gave up, or None."""
        try:
            return self.failure.read_text()
        except OSError:
            return None

    def read_log_tail(self, lines: int = 8) -> str:
        """Return the end of the log, for an error message."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def replace_file(path: Path, text: str) -> None:
    """Write a private file so that a reader sees the old text or the new one, never a part."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
