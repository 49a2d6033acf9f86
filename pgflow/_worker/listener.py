"""Notifications: hints that something has become ready, never more.

A process notifies after its commit, and a worker at most once in a few milliseconds: NOTIFY takes a
lock that all notifying transactions share until they end, so no transaction that waits for the disk
may hold it. The wake itself, which commits asynchronously, notifies of the runs that a client has
woken. If a notification is lost, the next poll finds the work.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from psycopg import sql

from pgflow._db.connect import AsyncConnection, ConnectOptions, connect_async, cut_if_left, deadline
from pgflow._db.deadlines import BEGIN_SECONDS
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._worker.parts import Part, cancel, keep_going
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

WORK_CHANNEL = "pgflow_work"
DONE_CHANNEL = "pgflow_done"
STREAM_CHANNEL = "pgflow_stream"
# NOTIFY takes less than 8,000 bytes.
MAX_PAYLOAD_CHARS = 7_900
MAX_DIGITS = 20
CHECK_SECONDS = 10.0
"""Silence after which the listener asks the server for a sign of life: a frozen server is as silent
as one without news.
"""


class ListenerCallbacks(NamedTuple):
    """Callbacks of a listener.

    Attributes:
        received: Called with each payload.
        connected: Called when it listens again: notifications may have been missed.
        failed: Called with its name and an error once listening keeps failing for reasons other
            than the connection.
    """

    received: Callable[[str], None]
    connected: Callable[[], None]
    failed: Callable[[str, BaseException], None]


class Listener(Part):
    """Listens on channels, and reconnects after every loss of its connection.

    Args:
        options: Options of the connection.
        channels: Names of the channels.
        callbacks: Called on the loop that starts it.
        own_pid: Returns the process id of the backend whose notifications are the caller's own, and
            skipped; None without one.

    Attributes:
        listening: True while it is connected.
    """

    def __init__(
        self,
        options: ConnectOptions,
        channels: Sequence[str],
        callbacks: ListenerCallbacks,
        own_pid: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._options = options
        self._channels = channels
        self._callbacks = callbacks
        self._own_pid = own_pid
        self._task: asyncio.Task[None] | None = None
        self._connection: AsyncConnection | None = None
        self.listening = False

    def start(self) -> None:
        """Start listening."""
        channel, failed = self._channels[0], self._callbacks.failed
        listening = keep_going(f"the listener on {channel}", self._run, failed)
        self._task = asyncio.create_task(listening, name=f"pgflow-listener-{channel}")

    async def stop(self) -> None:
        """Stop listening."""
        if self._task is not None:
            await cancel([self._task])

    def abandon(self) -> None:
        """Cut the connection after the event loop ended without a stop."""
        if self._connection is not None:
            self._connection.pgconn.finish()

    def leave(self) -> None:
        """Cut a connection to the old primary, and listen on the new one at once."""
        cut_if_left(self._connection)

    async def _run(self) -> None:
        tries = 0
        while True:
            connection: AsyncConnection | None = None
            try:
                connection = self._connection = await connect_async(
                    self._options, "pgflow listener"
                )
                for channel in self._channels:
                    await self._execute(
                        connection, sql.SQL("listen {}").format(sql.Identifier(channel))
                    )
                tries, self.listening = 0, True
                # After LISTEN: what was committed before it had no notification, and is found by a
                # look now.
                self._callbacks.connected()
                while True:
                    async for notification in connection.notifies(timeout=CHECK_SECONDS):
                        if notification.pid != self._own_pid():
                            self._callbacks.received(notification.payload)
                    await self._execute(connection, sql.SQL("select 1"))
            except DATABASE_ERRORS as error:
                log.log(
                    logging.WARNING if tries == 0 else logging.DEBUG,
                    "not listening (%s); polling continues",
                    redacted(error),
                )
            finally:
                self.listening = False
                self._connection = None
                if connection is not None:
                    await connection.close()
            tries += 1
            await asyncio.sleep(min(10.0, 0.1 * 2 ** min(tries, 7)) * random.uniform(0.5, 1))  # noqa: S311 - spreads reconnects

    async def _execute(
        self, connection: AsyncConnection, statement: sql.SQL | sql.Composed
    ) -> None:
        with deadline(connection, BEGIN_SECONDS):
            await connection.execute(statement)


def payloads(lanes: set[int], mail: set[int]) -> list[str]:
    """Return payloads for the work channel, as ``r1,2;m7,8``: lanes with ready runs, leased runs
    with mail.
    """
    parts = [f"r{chunk}" for chunk in chunks(lanes)] + [f"m{chunk}" for chunk in chunks(mail)]
    return [";".join(parts)] if sum(map(len, parts)) < MAX_PAYLOAD_CHARS - len(parts) else parts


def chunks(numbers: set[int]) -> list[str]:
    """Return numbers as comma-separated texts, each within the limit of a notification."""
    texts, text = [], ""
    for number in sorted(numbers):
        if len(text) > MAX_PAYLOAD_CHARS - 30:
            texts.append(text)
            text = ""
        text += f",{number}" if text else str(number)
    return [*texts, text] if text else texts


def parse_work(payload: str) -> tuple[set[int], set[int]]:
    """Return the lanes and the runs of a payload. Unreadable parts are ignored."""
    lanes: set[int] = set()
    mail: set[int] = set()
    for part in payload.split(";"):
        group = lanes if part.startswith("r") else mail
        group.update(_numbers(part[1:]))
    return lanes, mail


def parse_done(payload: str) -> set[int]:
    """Return the chains of a payload on the channels of finished runs and of streams."""
    return set(_numbers(payload))


def _numbers(text: str) -> list[int]:
    """Return the numbers in a text that fit a bigint. Any role that can connect may notify, with
    any text.
    """
    return [int(n) for n in text.split(",") if len(n) < MAX_DIGITS and n.isascii() and n.isdigit()]
