"""A connection that can be left waiting: libpq without psycopg's cursors, prepared statements, text
in and out.

A statement that waits for a lock must not stop the one thread there is. So a statement is sent, and
either its answer comes, or the server says that it waits for another of our connections: then it is
left alone until what it waits for has ended. Nothing here depends on how long anything takes.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any

from psycopg import pq

OK = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
PATIENCE_SECONDS = 600.0


class SqlError(Exception):
    """Error that the server answered instead of rows."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(f"{state} {message}")
        self.state = state


Rows = list[tuple[bytes | None, ...]]


class Wire:
    """One connection."""

    def __init__(self, dsn: str) -> None:
        self.pg = pq.PGconn.connect(dsn.encode())
        assert self.pg.status == pq.ConnStatus.OK, self.pg.error_message
        self.pid = self.pg.backend_pid
        self._prepared: dict[str, bytes] = {}
        self._poll = select.poll()
        self._poll.register(self.pg.socket, select.POLLIN)
        # Who notes what a statement does has need of no notice.
        self.run("set client_min_messages = warning")

    def close(self) -> None:
        self.pg.finish()

    def run(self, statement: str) -> None:
        """A statement without parameters that waits for nobody."""
        result = self.pg.exec_(statement.encode())
        if result.status not in OK:
            raise _error(result)

    def send(self, statement: str, params: Sequence[Any]) -> None:
        """Sends; :meth:`answered` and :meth:`rows` bring the answer."""
        name = self._prepared.get(statement)
        if name is None:
            name = f"s{len(self._prepared)}".encode()
            result = self.pg.prepare(name, statement.encode())
            if result.status not in OK:
                raise _error(result)
            self._prepared[statement] = name
        self.pg.send_query_prepared(name, [None if p is None else _text(p) for p in params])

    def answered(self, timeout_ms: int) -> bool:
        """Return True if the answer is there, within so long."""
        self.pg.consume_input()
        if not self.pg.is_busy():
            return True
        if not self._poll.poll(timeout_ms):
            return False
        self.pg.consume_input()
        return not self.pg.is_busy() or self.answered(timeout_ms)

    def rows(self) -> Rows:
        """The answer, waited for."""
        result = self.pg.get_result()
        assert result is not None
        last = result
        while (
            behind := self.pg.get_result()
        ) is not None:  # an error of the commit comes behind the answer
            last = behind
        if last.status not in OK:
            raise _error(last)
        return [
            tuple(result.get_value(i, j) for j in range(result.nfields))
            for i in range(result.ntuples)
        ]

    def ask(self, statement: str, *params: Any) -> Rows:
        """Sends and waits for the answer."""
        self.send(statement, params)
        return self.rows()


def _text(value: Any) -> bytes:
    if value is True or value is False:
        return b"true" if value else b"false"
    if isinstance(value, (list, tuple)):
        return ("{" + ",".join(map(str, value)) + "}").encode()
    return str(value).encode()


def _error(result: Any) -> SqlError:
    field = result.error_field
    state = field(pq.DiagnosticField.SQLSTATE) or b"08000"
    return SqlError(
        state.decode(), (field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode()
    )


def wait_or_block(
    wire: Wire, observer: Wire, ours: set[int], timeout_ms: int = 10
) -> frozenset[int]:
    """Empty once the statement has its answer; else the processes that it waits for."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not wire.answered(timeout_ms):
        (pids,) = observer.ask("select array_to_string(pg_blocking_pids($1::int), ',')", wire.pid)[
            0
        ]
        blockers = frozenset(int(p) for p in (pids or b"").decode().split(",") if p) & ours
        if blockers and not wire.answered(0):
            return blockers
        assert time.monotonic() < deadline, "a statement has no answer and waits for nobody"
    return frozenset()
