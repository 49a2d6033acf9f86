"""Connections that outlive their test: most of what a test costs the server is to begin a process and
fill its caches, for each of the four or five connections of a worker.

A connection to a copy of the database that a test closes in good order is reset, as a pooler of sessions
does, and lent to the next that connects in the same way in the same process. Its caches stay; its plans
and its counts, which depend on what came before, do not. Defaults of the database or the role
(``alter database ... set``) reach new sessions only: where there are any, all sessions are new. A test
that needs a fresh session is marked ``alone``.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import generators, pq
from psycopg.abc import PQGenConn
from psycopg.conninfo import conninfo_to_dict

APPLICATION = "pgflow tests"
"""Name of a session that waits to be lent again; those of the keepers of copies have it too."""

_RESET = (
    b"close all; unlisten *; select pg_advisory_unlock_all(), pg_stat_force_next_flush(); deallocate all; reset session authorization;"
    b" reset all; discard plans; discard temp; discard sequences; set application_name = '"
    + APPLICATION.encode()
    + b"'; "
)
_LEND = b"reset application_name; "
_DEFAULTS = (
    b"select from pg_db_role_setting"
    b" where setdatabase in (0, (select oid from pg_database where datname = current_database()))"
    b" and setrole in (0, (select oid from pg_roles where rolname = session_user))"
)


class Recycled:
    """The open sessions, by the parameters that they were opened with.

    Args:
        server: DSN of their server.
        is_lent: True for the name of a copy that a test has now.
    """

    def __init__(self, server: str, is_lent: Callable[[str], bool]) -> None:
        self._place = _place_of(conninfo_to_dict(server))
        self._is_lent = is_lent
        self._idle: dict[tuple[str, str], list[pq.abc.PGconn]] = defaultdict(list)
        self._keys: dict[int, tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._closed = pq.PGconn.connect_start(b"host=/nowhere")
        self._closed.finish()
        self._of_parent: list[object] = []
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """Use none of the sessions in a process that was forked off, and end none of them."""
        self._of_parent.append(self._idle)
        self._idle, self._keys, self._lock = defaultdict(list), {}, threading.Lock()

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Lend and keep the connections of this process."""
        open_anew, close, close_async = (
            generators.connect,
            psycopg.Connection.close,
            psycopg.AsyncConnection.close,
        )

        def connect(conninfo: str, **options: Any) -> PQGenConn[pq.abc.PGconn]:
            given = conninfo_to_dict(conninfo)
            name = str(given.get("dbname", ""))
            if not self._is_lent(name) or _place_of(given) != self._place:  # a pooler waits for it
                pgconn = yield from open_anew(conninfo, **options)
                self._keys.pop(id(pgconn), None)  # of one that is no more
                return pgconn
            key = name, conninfo
            if (pgconn := self._take(key)) is None:
                pgconn = yield from open_anew(conninfo, **options)
            self._keys[id(pgconn)] = key
            return pgconn

        def closed(connection: psycopg.Connection) -> None:
            self._keep(connection)
            close(connection)

        async def closed_async(connection: psycopg.AsyncConnection) -> None:
            self._keep(connection)
            await close_async(connection)

        patch.setattr(generators, "connect", connect)
        patch.setattr(psycopg.Connection, "close", closed)
        patch.setattr(psycopg.AsyncConnection, "close", closed_async)

    def drop(self, name: str) -> None:
        """End the sessions of a database."""
        with self._lock:
            for key in [key for key in self._idle if key[0] == name]:
                for pgconn in self._idle.pop(key):
                    pgconn.finish()

    def _take(self, key: tuple[str, str]) -> pq.abc.PGconn | None:
        while True:
            with self._lock:
                if not self._idle[key]:
                    return None
                pgconn = self._idle[key].pop()
            if _done(pgconn, _LEND):
                return pgconn
            pgconn.finish()

    def _keep(self, connection: psycopg.Connection | psycopg.AsyncConnection) -> None:
        """Keep the session of a connection that is about to be closed, if it is in good order."""
        pgconn = connection.pgconn
        key = self._keys.pop(id(pgconn), None)
        if key is None or connection.closed or not self._is_lent(key[0]):
            return
        if getattr(getattr(connection, "_pool", None), "close_returns", False):
            self._keys[id(pgconn)] = key
            return
        if (
            pgconn.transaction_status != pq.TransactionStatus.IDLE
            or pgconn.pipeline_status != pq.PipelineStatus.OFF
            or not _done(pgconn, _RESET)
        ):
            return
        while pgconn.notifies():
            pass
        pgconn.notice_handler = pgconn.notify_handler = None
        connection.pgconn = self._closed
        with self._lock:
            self._idle[key].append(pgconn)


def _place_of(given: dict[str, Any]) -> tuple[str, str]:
    return str(given.get("host")), str(given.get("port"))


def _done(pgconn: pq.abc.PGconn, statements: bytes) -> bool:
    """Return True if they succeed and a new session would have the same defaults."""
    result = pgconn.exec_(statements + _DEFAULTS)
    return result.status == pq.ExecStatus.TUPLES_OK and result.ntuples == 0
