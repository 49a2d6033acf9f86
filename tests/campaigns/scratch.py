"""A server of our own, for faults that hit everybody on it: stopped at once, started again,
full.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import psycopg

from pgflow.embedded._binaries import find_programs
from tests.campaigns.ground import prepare_template
from tests.kits import servers
from tests.kits.ownserver import OwnServer

MAX_CONNECTIONS = 150


class Scratch(OwnServer):
    """A server of its own with a database to copy; fsync is on: what it acknowledged must be there
    when it comes back.
    """

    template: str

    def count_refusals(self) -> int:
        """Return the number of connections that it has refused because it was full."""
        text = (self.folder / "postgres.log").read_text(errors="replace")
        return text.count("too many clients") + text.count("remaining connection slots")

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """A fresh database with the schema and the tables of the jobs."""
        name = servers.create_database(self.dsn, self.template)
        yield servers.dsn_of(self.dsn, name)
        servers.drop_database(self.dsn, name)


@contextlib.contextmanager
def starting(server_dsn: str) -> Iterator[Scratch]:
    """A server of the same major version as that one."""
    settings = {
        "max_connections": str(MAX_CONNECTIONS),
        "shared_buffers": "64MB",
        "shared_preload_libraries": "",
        **_defaults_of(server_dsn),
    }
    with Scratch(version_like(server_dsn), **settings) as scratch:
        scratch.template = prepare_template(scratch.dsn)
        yield scratch


def _defaults_of(server_dsn: str) -> dict[str, str]:
    """Return the settings of that server for this run of the proof."""
    with psycopg.connect(server_dsn) as conn:
        return dict(
            conn.execute(
                "select name, setting from pg_settings where name = any(%s)",
                (["default_transaction_isolation", "jit"],),
            ).fetchall()
        )


def version_like(server_dsn: str) -> str:
    """Return that server's major version as `OwnServer` wants it: nothing, where it is the embedded
    one's.
    """
    with psycopg.connect(server_dsn) as conn:
        major = str(conn.info.server_version // 10_000)
    embedded = subprocess.run(
        [find_programs() / "postgres", "--version"], check=True, capture_output=True, text=True
    ).stdout
    return "" if embedded.split()[-1].split(".")[0] == major else major
