"""The other side: a payment provider and a courier, one process with a book of its own.

``python -m pgflow_cli.shop.provider BOOK LATENCY_MS SEED`` listens on the loopback for one JSON
object a line. Its book is a SQLite file, and an entry is on the disk before its answer leaves. As
with any provider, one answer in twenty is lost after the work was done. A key that comes again gets
the first answer, and nothing is done again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

ADDRESS = "PGFLOW_SHOP_PROVIDER"
"""Variable with the address at which it listens."""

LOST = 0.05
"""Share of the answers that get lost."""

REFUSED = {"charge": (13, "the card has expired"), "parcel": (11, "the address does not exist")}
"""Every so many orders are refused, and why."""


class Refused(Exception):
    """A definite no: nothing was done."""


class AnswerLost(Exception):
    """The connection ended before the answer: the order may have been carried out, or not."""


async def ask(kind: str, number: int, cents: int, key: str) -> str:
    """Have an order carried out: once, however often it is asked under the key.

    Raises:
        Refused: It is not carried out.
        AnswerLost, OSError: There was no answer: ask again under the same key.
    """
    host, _, port = os.environ[ADDRESS].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(json.dumps([key, kind, number, cents]).encode() + b"\n")
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise AnswerLost("the provider closed the connection before its answer")
    reference, why_not = json.loads(line)
    if why_not:
        raise Refused(why_not)
    return str(reference)


class Provider:
    """The server.

    Args:
        book: Its book, created if it does not exist.
        latency_seconds: Time that an order takes, on average.
        seed: Of which answers are lost.
    """

    def __init__(self, book: Path, latency_seconds: float, seed: int) -> None:
        self._book = sqlite3.connect(book, isolation_level=None)
        self._book.execute(
            "create table if not exists entry (id integer primary key, key text unique, kind text, "
            "number int, cents int, asked int default 0, lost int default 0)"
        )
        self._latency_seconds = latency_seconds
        self._chance = random.Random(seed)  # noqa: S311 - not a secret

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, or lose the answer."""
        with suppress(ConnectionError):
            key, kind, number, cents = json.loads(await reader.readline())
            await asyncio.sleep(self._latency_seconds * self._chance.uniform(0.5, 1.5))
            every, why_not = REFUSED.get(kind, (0, ""))
            if every and number % every == 0:
                writer.write(json.dumps([None, why_not]).encode() + b"\n")
            elif (reference := self._carry_out(key, kind, number, cents)) is not None:
                writer.write(json.dumps([reference, None]).encode() + b"\n")
            await writer.drain()
        writer.close()

    def _carry_out(self, key: str, kind: str, number: int, cents: int) -> str | None:
        """Return the reference of an order, the same for the same key; None if it gets lost."""
        is_lost = self._chance.random() < LOST
        ((row_id,),) = self._book.execute(
            "insert into entry (key, kind, number, cents, asked, lost) values (?, ?, ?, ?, 1, ?) "
            "on conflict (key) do update set asked = asked + 1, lost = lost + excluded.lost "
            "returning id",
            (key, kind, number, cents, is_lost),
        ).fetchall()
        return None if is_lost else f"P{row_id:06}"


async def serve(book: str, latency_ms: str, seed: str) -> None:
    """Serve until standard input ends. The first line on standard output is the address."""
    provider = Provider(Path(book), float(latency_ms) / 1000, int(seed))
    server = await asyncio.start_server(provider.talk, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"{host}:{port}", flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(*sys.argv[1:]))
