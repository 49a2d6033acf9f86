"""A proxy before Postgres that knows where one message ends and the next begins, and cuts the line
at the one that it is told.

A line can be cut *before* the server has seen a message, *after* the server has run it and
answered, or
*during*: the server has the message, the client is cut off at once, and what the server does with
it is decided later. Messages are counted for each role - the `application_name` of the connection -
and each statement, which goes by the name of the stored function that it calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from psycopg.conninfo import conninfo_to_dict

from pgflow.app._sync import Portal

Side = Literal["before", "after", "during"]

_UNTYPED = {80877103: "ssl", 80877104: "ssl", 80877102: "cancel"}
ROUND_TRIPS = ("startup", "Q", "S")
"""Messages that the server answers with ReadyForQuery; cut after any other, and you have cut before
the next one.
"""


class Framer:
    """Takes bytes as they come, gives messages: what kind, and all of it. The first of a client
    have no type byte.
    """

    def __init__(self, *, is_client: bool) -> None:
        self._untyped = is_client
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The messages that are whole by now."""
        self._rest += data
        messages = []
        while (size := self._size()) is not None and len(self._rest) >= size:
            message = bytes(self._rest[:size])
            del self._rest[:size]
            messages.append((self._kind(message), message))
        return messages

    def _size(self) -> int | None:
        head = 0 if self._untyped else 1
        if len(self._rest) < head + 4:
            return None
        return head + int.from_bytes(self._rest[head : head + 4])

    def _kind(self, message: bytes) -> str:
        if not self._untyped:
            return chr(message[0])
        kind = _UNTYPED.get(int.from_bytes(message[4:8]), "startup")
        self._untyped = kind == "ssl"  # the answer is no, and the client goes on in the clear
        return kind


def statement_name(sql: bytes) -> str:
    """The stored function that a statement calls, else its first word."""
    found = re.search(rb"(?:pgflow\.|select\s+)(\w+)\s*\(", sql) or re.match(rb"\s*(\w+)", sql)
    return found[1].decode().lower() if found else ""


@dataclass
class Cut:
    """Place of a cut. ``role`` and ``what`` None: any. ``linger_seconds``: time for which the
    server goes on after the client is off.
    """

    role: str | None
    what: str | None
    nth: int
    side: Side
    reset: bool = False
    linger_seconds: float = 0.0

    def __str__(self) -> str:
        how = (" with a reset" if self.reset else "") + (
            f", the server {self.linger_seconds:.2f} s later" if self.linger_seconds else ""
        )
        return f"{self.side} message {self.nth} of {self.what or 'anything'} ({self.role or 'anybody'}){how}"


class Proxy:
    """See the module. Lives on the loop of a portal; may be told things from any thread."""

    def __init__(self, server_dsn: str, portal: Portal) -> None:
        self._server = conninfo_to_dict(server_dsn)
        self._portal = portal
        self._lock = threading.Lock()
        self._plan: list[Cut] = []
        self._seen = 0
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.fired: list[tuple[Cut, str, str]] = []
        """The cuts that were made, with the role and the statement that they hit."""
        self.messages: dict[tuple[str, str], list[str]] = defaultdict(list)
        """Messages that passed since `arm`: their kinds, by role and statement."""
        self.in_progress = 0
        """Number of times that the server said that a transaction is in progress."""

    def open(self) -> int:
        """Starts to listen; answers the port."""
        self._portal.call(self._open())
        return self.port

    async def _open(self) -> None:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._listening.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Ends every line."""
        self._portal.call(self._close())

    async def _close(self) -> None:
        self._listening.close()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # it may be cancelled before it begins

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = (
            str(self._server.get("host") or "127.0.0.1"),
            int(self._server.get("port") or 5432),
        )
        if host.startswith("/"):
            up = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            up = await asyncio.open_connection(host, port)
        line = _Line(self, (reader, writer), up)
        self._lines.add(line)
        try:
            await line.run()
        finally:
            self._lines.discard(line)

    # ------------------------------------------------------------ what it is told

    def arm(self, *cuts: Cut) -> None:
        """Forgets what was, and makes these cuts, each once the one before it is made."""
        with self._lock:
            self._plan, self._seen = list(cuts), 0
            self.fired = []
            self.messages = defaultdict(list)

    def disarm(self) -> None:
        """Lets everything pass."""
        with self._lock:
            self._plan = []

    @property
    def is_done(self) -> bool:
        """True if every cut of the plan was made."""
        return not self._plan

    @property
    def is_settled(self) -> bool:
        """True if the server has finished what came over the lines that were cut."""
        return not any(line.is_cut for line in list(self._lines))

    def drop(self, role: str, *, reset: bool = False) -> None:
        """Cuts the lines of a role while nothing is on them."""
        for line in [line for line in list(self._lines) if line.role == role]:
            self._portal.call(line.drop(reset=reset))

    def passes(self, role: str, what: str, kind: str) -> Cut | None:
        """A message comes: counts it, and says whether to cut here."""
        with self._lock:
            self.messages[role, what].append(kind)
            cut = self._plan[0] if self._plan else None
            if cut is None or cut.role not in (None, role) or cut.what not in (None, what):
                return None
            self._seen += 1
            if self._seen < cut.nth or (cut.side != "before" and kind not in ROUND_TRIPS):
                return None
            self._plan.pop(0)
            self._seen = 0
            self.fired.append((cut, role, what))
            return cut


class _Line:
    """One connection."""

    def __init__(self, proxy: Proxy, client: tuple[Any, Any], server: tuple[Any, Any]) -> None:
        self._proxy = proxy
        self._reader, self._writer = client
        self._up_reader, self._up_writer = server
        self._names: dict[bytes, str] = {}
        self._is_muted = False
        self._answered = asyncio.Event()
        self.role = ""
        self.what = "connect"
        self.is_cut = False

    async def run(self) -> None:
        """Passes messages on until either side ends, or the line is cut."""
        down = asyncio.create_task(self._pass_down())
        try:
            with contextlib.suppress(OSError):
                cut = await self._pass_up(down)
                if cut is not None:
                    await self._cut(cut)
        finally:
            down.cancel()
            self._writer.close()
            self._up_writer.close()
            await asyncio.gather(
                down,
                self._writer.wait_closed(),
                self._up_writer.wait_closed(),
                return_exceptions=True,
            )

    async def _pass_up(self, down: asyncio.Task[None]) -> Cut | None:
        framer = Framer(is_client=True)
        down.add_done_callback(
            lambda _: self._reader.feed_eof() if not self._reader.at_eof() else None
        )
        while data := await self._reader.read(65536):
            out = bytearray()
            for kind, message in framer.feed(data):
                self._learn(kind, message)
                cut = self._proxy.passes(self.role, self.what, kind)
                if cut is not None:
                    self.is_cut = True
                    self._is_muted = True
                    self._up_writer.write(bytes(out) + (b"" if cut.side == "before" else message))
                    await self._up_writer.drain()
                    return cut
                if kind == "ssl":
                    self._writer.write(b"N")
                else:
                    out += message
            self._up_writer.write(bytes(out))
            await self._up_writer.drain()
        return None

    async def _pass_down(self) -> None:
        framer = Framer(is_client=False)
        with contextlib.suppress(OSError):
            while data := await self._up_reader.read(65536):
                for kind, message in framer.feed(data):
                    asks_password = kind == "R" and message[5:9] != bytes(4)
                    if self._is_muted and (kind == "Z" or asks_password):
                        self._answered.set()
                    if kind == "D" and message.endswith(b"in progress"):
                        self._proxy.in_progress += 1
                if not self._is_muted:
                    self._writer.write(data)
                    await self._writer.drain()
        self._answered.set()

    def _learn(self, kind: str, message: bytes) -> None:
        """Learn from a message who speaks, and of which statement."""
        if kind == "startup":
            fields = message[8:].split(b"\0")
            self.role = (
                dict(zip(fields[::2], fields[1::2], strict=False))
                .get(b"application_name", b"")
                .decode()
            )
        elif kind == "Q":
            self.what = statement_name(message[5:])
        elif kind == "P":
            name, sql, *_ = message[5:].split(b"\0", 2)
            self.what = self._names[name] = statement_name(sql)
        elif kind == "B":
            self.what = self._names.get(message[5:].split(b"\0", 2)[1], "")
        elif kind == "X":
            self.what = "terminate"

    async def _cut(self, cut: Cut) -> None:
        if cut.side == "after":
            await self._answered.wait()
        _end(self._writer, reset=cut.reset)
        if cut.side == "during":
            await self._answered.wait()
        elif cut.linger_seconds:
            await asyncio.sleep(cut.linger_seconds)
        _end(self._up_writer, reset=cut.reset)

    async def drop(self, *, reset: bool) -> None:
        """Both sides lose it."""
        self._is_muted = True
        _end(self._writer, reset=reset)
        _end(self._up_writer, reset=reset)
        await asyncio.gather(
            self._writer.wait_closed(), self._up_writer.wait_closed(), return_exceptions=True
        )


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    """Closes a socket, or resets it, which the other side is told as an error."""
    sock: Any = writer.get_extra_info("socket")
    if (
        reset
        and sock is not None
        and sock.family != socket.AF_UNIX
        and not writer.transport.is_closing()
    ):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()
