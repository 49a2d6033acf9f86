"""Stored-function calls on libpq itself, for the connections that make work durable.

A cursor of psycopg does much for a caller it knows nothing of: it parses placeholders, picks
dumpers by value, counts uses to decide what to prepare. The engine makes the same few calls over
and over, each argument cast to its exact type, so a statement is translated and prepared once a
connection and then only sent: 21 us of client CPU against 90 for a call that the server answers at
once (psycopg 3.3, Python 3.11, medians). Statements that belong together go in one round trip.

psycopg still opens the connection, dumps what is not text or a number,
loads rows and makes the errors.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import select
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import PyFormat, Transformer

from pgflow._db.connect import BEGIN, ConnectOptions, connect_async, isolates
from pgflow._db.failures import raise_ours
from pgflow._db.query import JsonTexts, Query, Row, T
from pgflow.errors import PgflowError

Statement = tuple[str, Sequence[Any]]
"""SQL with psycopg's placeholders (``%s``, and ``%%`` for a percent sign), and its arguments."""

_Sent = tuple[bytes, list[bytes | None], list[int] | None]

_OID_OF_JSON = psycopg.postgres.types["json"].oid
_ARRAY, _LENGTH = struct.Struct("!5i"), struct.Struct("!i")
CANCEL_TIMEOUT_SECONDS = 5.0
_INTS = {int}
_numbers = itertools.count()
_BEGIN: Statement = (BEGIN, ())
_COMMIT: Statement = ("commit", ())
_ROLLBACK: Statement = ("rollback", ())
_ANSWERS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_STREAMS = (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)
_LOST = "the connection was lost in the middle of an answer"


class _Spoken:
    """Encoding of calls and decoding of answers, for both colours of a wire."""

    _pgconn: pq.abc.PGconn
    _prepares: bool
    _names: dict[str, bytes]
    _adapter: Any

    def _send(self, name: bytes, params: list[bytes | None], formats: list[int] | None) -> None:
        if self._prepares:
            self._pgconn.send_query_prepared(name, params, formats)
        else:
            self._pgconn.send_query_params(name, params, param_formats=formats)

    def _dump(self, params: Sequence[Any]) -> tuple[list[bytes | None], list[int] | None]:
        """The arguments as bytes, and the format of each where not all are text."""
        dumped = [self._dumped(param) for param in params]
        if not any(type(param) is JsonTexts for param in params):
            return dumped, None
        return dumped, [
            pq.Format.BINARY if type(param) is JsonTexts else pq.Format.TEXT for param in params
        ]

    def _dumped(self, param: Any) -> bytes | None:
        kind = type(param)
        if kind is str:
            if "\0" in param:
                raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
            return bytes(param, "utf-8")
        if kind is int:
            return b"%d" % param
        if param is None:
            return None
        if kind is list and _INTS.issuperset(map(type, param)):
            return b"{%b}" % b",".join([b"%d" % item for item in param])
        if kind is JsonTexts:
            return _binary(param)
        dumped = self._adapter.dump_sequence((param,), (PyFormat.TEXT,))[0]
        return None if dumped is None else bytes(dumped)

    def _load(self, result: pq.abc.PGresult) -> list[Row]:
        if not result.ntuples:
            return []
        self._adapter.set_pgresult(result)
        rows: list[Row] = self._adapter.load_rows(0, result.ntuples, tuple)
        return rows

    @staticmethod
    def _judged(pgconn: pq.abc.PGconn, failed: pq.abc.PGresult | None) -> None:
        """Raise the error, once the server waits for the next call."""
        if failed is not None:
            raise psycopg.errors.error_from_result(failed, encoding="utf-8")
        if pgconn.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError(_LOST)

    def _give_up(self) -> None:
        self._pgconn.finish()


class Wire(_Spoken):
    """A psycopg connection for statements with small results. One call at a time.

    Args:
        connection: An open connection, used exclusively during a call.
        prepares: True to prepare statements: not through a pooler that gives each transaction
            another server process.
        names: Names of the statements that are prepared on the connection already, by text; kept up
            to date. Where psycopg is used as well, which deallocates everything when it rolls back,
            the caller must expect InvalidSqlStatementName.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        *,
        prepares: bool,
        names: dict[str, bytes] | None = None,
    ) -> None:
        self.connection = connection
        self._pgconn = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._prepares = prepares
        self._names = {} if names is None else names
        self._adapter = Transformer(connection)

    async def ask(self, query: Query[T]) -> T:
        """Run a query. Raises like :func:`pgflow._db.query.run_async`."""
        return query.read((await self.rows((query.sql, query.params)))[0])

    async def rows(self, *statements: Statement) -> list[list[Row]]:
        """Return the rows of each statement. All go in one round trip, and none runs after one that
        fails.

        Raises:
            psycopg.Error: An error of the server or the connection.
            PgflowError: The engine's own errors.
        """
        try:
            async with self.connection.lock:
                return await self._rows(statements)
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise_ours(error)
            raise

    async def _rows(self, statements: Sequence[Statement]) -> list[list[Row]]:
        sent = [(await self._name(sql), *self._dump(params)) for sql, params in statements]
        if len(sent) == 1:
            self._send(*sent[0])
            results = await self._answered()
        else:
            results = await self._pipelined(sent)
        if len(results) != len(sent):
            # No error, but not one answer each: they cannot be matched.
            self._give_up()
            raise psycopg.InternalError(f"{len(sent)} statements had {len(results)} answers")
        return [self._load(result) for result in results]

    async def _pipelined(self, sent: list[_Sent]) -> list[pq.abc.PGresult]:
        self._pgconn.enter_pipeline_mode()
        for one in sent:
            self._send(*one)
        self._pgconn.pipeline_sync()
        try:
            return await self._answered()
        finally:
            if self._pgconn.status == pq.ConnStatus.OK:
                self._pgconn.exit_pipeline_mode()

    # ------------------------------------------------------------ what goes out

    async def _name(self, sql: str) -> bytes:
        """The statement's name on this connection; its text where nothing is prepared."""
        if not self._prepares:
            return _numbered(sql)
        name = self._names.get(sql)
        if name is None:
            name = b"_pgflow_%d" % next(_numbers)
            self._pgconn.send_prepare(name, _numbered(sql))
            await self._answered()
            self._names[sql] = name
        return name

    # ------------------------------------------------------------ what comes back

    async def _answered(self) -> list[pq.abc.PGresult]:
        """Read the server's answer to its end and return one result for each statement.

        The end is where the server has committed: it says that a statement is complete before it
        commits, so an error behind the last answer means that nothing of it happened. A call that
        is cancelled leaves no statement running: its connection is closed if need be.

        Raises:
            psycopg.Error: Any of it is an error, or nothing that a stored function answers.
        """
        results: list[pq.abc.PGresult] = []
        try:
            await self._collect(results)
        except asyncio.CancelledError:
            await self._end_cancelled(results)
            raise
        except BaseException:
            if self._pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                self._give_up()
            raise
        return results

    async def _end_cancelled(self, results: list[pq.abc.PGresult]) -> None:
        """Cancel the statement on the server and wait for that, for a bounded time, and not if
        cancelled again.
        """
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_SECONDS):
                await self.connection.cancel_safe(timeout=CANCEL_TIMEOUT_SECONDS)
                await self._collect(results)
        except BaseException as error:
            if self._pgconn.transaction_status not in (
                pq.TransactionStatus.IDLE,
                pq.TransactionStatus.INERROR,
            ):
                self._give_up()
            if not isinstance(error, (psycopg.Error, TimeoutError, OSError)):
                raise

    async def _collect(self, results: list[pq.abc.PGresult]) -> None:
        """Read until the server waits for the next call, and only then raise errors."""
        pgconn = self._pgconn
        while pgconn.flush():
            await self._ready(writing=True)
        is_pipeline = pgconn.pipeline_status != pq.PipelineStatus.OFF
        failed: pq.abc.PGresult | None = None
        while True:
            while pgconn.is_busy():
                await self._ready(writing=False)
            result = pgconn.get_result()
            if result is None:
                # The end; in a pipeline that of one statement,
                # unless it would answer nothing for ever.
                if not is_pipeline or pgconn.status != pq.ConnStatus.OK:
                    break
                continue
            status = result.status
            if status in _ANSWERS:
                results.append(result)
            elif status == pq.ExecStatus.PIPELINE_SYNC:
                break
            elif status in _STREAMS:
                self._give_up()
                raise psycopg.InternalError(
                    "a statement wants to copy, which nothing that goes this way does"
                )
            elif failed is None:
                failed = result
        self._judged(pgconn, failed)

    async def _ready(self, *, writing: bool) -> None:
        """Wait until there is something to read, and take it; with ``writing``, or until more can
        be written.
        """
        loop, socket = self._loop, self._pgconn.socket
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(socket, _done, ready)
        if writing:
            loop.add_writer(socket, _done, ready)
        try:
            await ready
        finally:
            loop.remove_reader(socket)
            if writing:
                loop.remove_writer(socket)
        self._pgconn.consume_input()


def _binary(texts: JsonTexts) -> bytes:
    """An array of type json[] in the binary format: one dimension, no nulls."""
    parts = [_ARRAY.pack(1, 0, _OID_OF_JSON, len(texts), 1)]
    for text in texts:
        data = bytes(text, "utf-8")
        parts += (_LENGTH.pack(len(data)), data)
    return b"".join(parts)


def _done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class SyncWire(_Spoken):
    """As :class:`Wire`, for a sync connection: its caller's thread waits."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        prepares: bool,
        names: dict[str, bytes] | None = None,
    ) -> None:
        self.connection = connection
        self._pgconn = connection.pgconn
        self._prepares = prepares
        self._names = {} if names is None else names
        self._adapter = Transformer(connection)

    def rows(self, *statements: Statement) -> list[list[Row]]:
        """As :meth:`Wire.rows`."""
        try:
            with self.connection.lock:
                return self._rows(statements)
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise_ours(error)
            raise

    def _rows(self, statements: Sequence[Statement]) -> list[list[Row]]:
        pgconn = self._pgconn
        sent = [(self._name(sql), *self._dump(params)) for sql, params in statements]
        if len(sent) == 1:
            self._send(*sent[0])
            results = self._answered()
        else:
            pgconn.enter_pipeline_mode()
            for one in sent:
                self._send(*one)
            pgconn.pipeline_sync()
            try:
                results = self._answered()
            finally:
                if pgconn.status == pq.ConnStatus.OK:
                    pgconn.exit_pipeline_mode()
        if len(results) != len(sent):
            self._give_up()
            raise psycopg.InternalError(f"{len(sent)} statements had {len(results)} answers")
        return [self._load(result) for result in results]

    def _name(self, sql: str) -> bytes:
        if not self._prepares:
            return _numbered(sql)
        name = self._names.get(sql)
        if name is None:
            name = b"_pgflow_%d" % next(_numbers)
            self._pgconn.send_prepare(name, _numbered(sql))
            self._answered()
            self._names[sql] = name
        return name

    def _answered(self) -> list[pq.abc.PGresult]:
        """As :meth:`Wire._answered`; whatever interrupts it closes the connection."""
        results: list[pq.abc.PGresult] = []
        try:
            self._collect(results)
        except BaseException:
            if self._pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                self._give_up()
            raise
        return results

    def _collect(self, results: list[pq.abc.PGresult]) -> None:
        pgconn = self._pgconn
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
        while pgconn.flush():
            poll.poll()
            pgconn.consume_input()
        poll.modify(pgconn.socket, select.POLLIN)
        is_pipeline = pgconn.pipeline_status != pq.PipelineStatus.OFF
        failed: pq.abc.PGresult | None = None
        while True:
            while pgconn.is_busy():
                poll.poll()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                if not is_pipeline or pgconn.status != pq.ConnStatus.OK:
                    break
                continue
            status = result.status
            if status in _ANSWERS:
                results.append(result)
            elif status == pq.ExecStatus.PIPELINE_SYNC:
                break
            elif status in _STREAMS:
                self._give_up()
                raise psycopg.InternalError(
                    "a statement wants to copy, which nothing that goes this way does"
                )
            elif failed is None:
                failed = result
        self._judged(pgconn, failed)


class OwnWire(Wire):
    """A wire with exclusive use of its connection. The event loop watches it from the first call
    until it is closed.

    If the database's default isolation level is not the engine's, each call sets it in the same
    round trip.

    Args:
        connection: Open.
        prepares: As for :class:`Wire`.
        timeout_seconds: Longest time of a call; after it, the call raises TimeoutError and the
            connection is closed.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        *,
        prepares: bool,
        timeout_seconds: float,
    ) -> None:
        super().__init__(connection, prepares=prepares)
        self._isolates = isolates(connection)
        self._timeout_seconds = timeout_seconds
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writing = False
        self._socket = self._pgconn.socket
        self._watches = True
        self._loop.add_reader(self._socket, self._readable)

    async def close(self) -> None:
        """Close the connection."""
        self._unwatch()
        await self.connection.close()

    async def rows(self, *statements: Statement) -> list[list[Row]]:
        """As :meth:`Wire.rows`; also raises TimeoutError."""
        self._deadline = self._loop.time() + self._timeout_seconds
        try:
            return await (
                self._isolated(statements) if self._isolates else super().rows(*statements)
            )
        finally:
            if self._pgconn.status != pq.ConnStatus.OK:
                self._unwatch()

    async def _isolated(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """A transaction of its own that says its level."""
        if self._pgconn.transaction_status == pq.TransactionStatus.INERROR:
            # The last call was cancelled.
            await super().rows(_ROLLBACK)
        try:
            return (await super().rows(_BEGIN, *statements, _COMMIT))[1:-1]
        except (psycopg.Error, PgflowError):
            if self._pgconn.transaction_status == pq.TransactionStatus.INERROR:
                await super().rows(_ROLLBACK)
            raise

    async def _ready(self, *, writing: bool) -> None:
        if not self._watches:  # its end was seen before
            raise psycopg.OperationalError(_LOST)
        self._waiter = self._loop.create_future()
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._look_at_the_time)
        self._writing = writing
        if writing:
            self._loop.add_writer(self._socket, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if writing and self._watches:
                self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        """Take arrived data; on an idle connection that is mostly its end."""
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            self._unwatch()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)
            return
        if self._writing or not self._pgconn.is_busy():
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look_at_the_time(self) -> None:
        """One timer for all calls: it is set again only when it goes off, since calls are many and
        time-outs rare.
        """
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look_at_the_time)
        else:
            self._waiter.set_exception(
                TimeoutError(f"no answer of the server in {self._timeout_seconds:.0f} s")
            )

    def _unwatch(self) -> None:
        """Before the socket is closed: its number may be another connection's the next moment."""
        if self._watches:
            self._watches = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._unwatch()
        super()._give_up()


async def open_wire(
    options: ConnectOptions, application_name: str, timeout_seconds: float
) -> OwnWire:
    """A wire on a connection of its own."""
    connection = await connect_async(options, application_name)
    return OwnWire(connection, prepares=options.prepares, timeout_seconds=timeout_seconds)


_PLACEHOLDER = re.compile(r"%[s%]")


@lru_cache(maxsize=256)
def _numbered(sql: str) -> bytes:
    """The statement with Postgres's own placeholders."""
    count = 0

    def number(match: re.Match[str]) -> str:
        nonlocal count
        if match[0] == "%%":
            return "%"
        count += 1
        return f"${count}"

    return _PLACEHOLDER.sub(number, sql).encode()
