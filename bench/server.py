"""The server that everything is measured on: one that is named, or one of our own with settings as
in production.
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

# fsync, full_page_writes and synchronous_commit keep their defaults, which are on.
SETTINGS = {
    "shared_preload_libraries": "pg_stat_statements",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "200",
    "jit": "off",
}
SHOWN = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "jit",
)


class Server:
    """A running server, and the databases that are made on it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._prefix = f"pgflow_bench_{secrets.token_hex(4)}"
        self._number = 0

    def _admin(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True, application_name="bench")

    @contextmanager
    def database(self, template: str | None = None) -> Iterator[tuple[str, str]]:
        """A new database, which is dropped in the end: its name and its DSN."""
        self._number += 1
        name = f"{self._prefix}_{self._number}"
        copy = sql.SQL("template {}").format(sql.Identifier(template)) if template else sql.SQL("")
        with self._admin() as admin:
            admin.execute(sql.SQL("create database {} {}").format(sql.Identifier(name), copy))
        try:
            yield name, self.dsn_of(name)
        finally:
            with self._admin() as admin:
                admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    def dsn_of(self, database: str) -> str:
        """A database of this server, as a URL, which every library understands."""
        parts = {
            name: str(value)
            for name, value in conninfo_to_dict(self.dsn).items()
            if value is not None
        }
        user, password = quote(parts.get("user", ""), safe=""), parts.get("password")
        userinfo = f"{user}:{quote(password, safe='')}@" if password else f"{user}@" if user else ""
        return f"postgresql://{userinfo}{parts.get('host', 'localhost')}:{parts.get('port', '5432')}/{database}"

    def settings(self) -> dict[str, str]:
        """Return the settings that decide how durable and how fast a commit is."""
        with self._admin() as admin:
            return {name: admin.execute(f"show {name}").fetchone()[0] for name in SHOWN}  # type: ignore[index]

    def commits_per_second(self, seconds: float = 0.4) -> float:
        """Measure how many rows a second one connection commits one at a time, just now."""
        with (
            self.database() as (_, dsn),
            psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as conn,
        ):
            conn.execute(
                "create table bench_app (id bigint generated always as identity primary key, v "
                "jsonb)"
            )
            count, began = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - began) < seconds:
                conn.execute("insert into bench_app (v) values (%s)", ('{"a": 1}',))
                count += 1
        return count / elapsed


@contextmanager
def open_server(dsn: str | None, spec: str | None = None) -> Iterator[Server]:
    """The server of a DSN; else a new one, which is gone afterwards.

    Args:
        dsn: Of a server that runs.
        spec: Version or folder of programs and settings of a new one, as ``python -m tests.proof``
            takes them; those of the embedded server, if neither is given.
    """
    if dsn is not None:
        yield Server(dsn)
        return
    if spec is not None:
        sys.path.append(str(Path(__file__).parents[1] / "tests" / "kits"))
        from ownserver import OwnServer

        wanted, *settings = spec.split(",")
        with OwnServer(
            wanted, **{**SETTINGS, **dict(setting.split("=", 1) for setting in settings)}
        ) as own:
            yield Server(own.dsn)
        return
    from pgflow.embedded import acquire, stop

    home = Path(tempfile.mkdtemp(prefix="pgflow-bench-"))
    try:
        with acquire(home) as server, psycopg.connect(server.dsn, autocommit=True) as admin:
            for name, value in SETTINGS.items():
                admin.execute(
                    sql.SQL("alter system set {} = {}").format(
                        sql.Identifier(name), sql.Literal(value)
                    )
                )
        stop(home)
        with acquire(home) as server:
            password = secrets.token_urlsafe()
            with psycopg.connect(server.dsn, autocommit=True) as admin:
                admin.execute(
                    sql.SQL("create role bench superuser login password {}").format(
                        sql.Literal(password)
                    )
                )
            yield Server(f"postgresql://bench:{password}@127.0.0.1:{server.port}/postgres")
        stop(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def machine() -> dict[str, str]:
    """Return a description of this machine: processors, system, Python."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
            model,
        )
    except OSError:
        pass
    return {
        "processors": f"{os.cpu_count()} x {model}",
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }
