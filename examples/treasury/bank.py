"""The bank: the other side, a process of its own with a book of its own.

``python -m examples.treasury.bank --book FILE`` listens on the loopback, for one JSON object a
line. The book is a file of JSON lines, only ever added to; an instruction's line is on the disk
before its acknowledgement leaves. After a crash the book is all there is, and it is enough: the
keys already executed are read back from it. Only a line without its end is cut off:
it was never acknowledged.

What a client must live with, as with any bank:

- An acknowledgement may be lost after the instruction was executed: about one in twenty
  here. The client cannot tell this from an instruction that never arrived, so it asks again
  under the same key.
- A key that was executed is not executed again: the answer is that of the first time.
- A key that comes back with other content is a mistake on the other side:
  it is refused, and recorded.
- An instruction may be refused for good, as the second leg of a forward above the desk's limit is.

It knows keys, not meanings: a sweep sent under two keys is done twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DESK_LIMIT = 175_000_000
"""Cents that the forwards desk lets itself be asked for at once, in any currency."""

INSTRUCTION = ("day", "kind", "account", "currency", "cents", "counterparty")
"""Columns in which two instructions must agree to be the same."""

COUNTED = ("executed", "asked again", "acks lost", "refused", "keys reused")
"""Counters of a bank."""

Line = dict[str, Any]


class Refused(Exception):
    """The bank does not execute the instruction, and has not."""


class KeyReused(Exception):
    """The key was another instruction's: a bug on the other side,
    which trying again cannot heal.
    """


def create_book(path: Path, lines: Sequence[Line]) -> None:
    """Writes the book of a bank that has not executed anything yet;
    FileExistsError if there is one.
    """
    with path.open("x") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


class Book:
    """The book: everything the bank knows, in a file and read back from it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self.lines = [json.loads(line) for line in self._whole_lines()]
        self._currencies = {
            line["account"]: line["currency"] for line in self.lines if line["type"] == "account"
        }
        self._openings = {
            line["account"]: line["cents"] for line in self.lines if line["type"] == "account"
        }
        self._executed = {line["key"]: line for line in self.lines if line["type"] == "instruction"}

    def _whole_lines(self) -> list[bytes]:
        content = self._file.read()
        end = content.rfind(b"\n") + 1
        self._file.truncate(end)
        self._file.seek(end)
        return content[:end].splitlines()

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def append(self, line: Line) -> None:
        """Adds a line; it is on the disk when this returns."""
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines.append(line)

    def statement(self, account: str, day: str) -> Line:
        """Return the statement of a target-balance account for a day: it opens at its agreed
        balance.
        """
        if account not in self._openings:
            raise Refused(f"unknown account {account}")
        flows = [
            line
            for line in self.lines
            if line["type"] == "flow" and line["account"] == account and line["day"] == day
        ]
        totals = {
            kind: sum(f["cents"] for f in flows if f["kind"] == kind)
            for kind in ("receipts", "payments")
        }
        return {
            "account": account,
            "currency": self._currencies[account],
            "opening": self._openings[account],
            **totals,
        }

    def execute(self, key: str, order: Line) -> tuple[str, bool]:
        """Executes an instruction once; answers the reference, and whether the key was new."""
        known = self._executed.get(key)
        if known is not None:
            self._require_same(known, order)
            return known["reference"], False
        self._require_acceptable(order)
        line = {
            "type": "instruction",
            "key": key,
            "reference": f"B{len(self._executed) + 1:06}",
            **order,
        }
        self.append(line)
        self._executed[key] = line
        return line["reference"], True

    def _require_same(self, known: Line, order: Line) -> None:
        if any(known[name] != order[name] for name in INSTRUCTION):
            self.append({"type": "conflict", "key": known["key"], **order})
            raise KeyReused(
                f"key {known['key']} was {known['reference']}, an instruction with other content"
            )

    def _require_acceptable(self, order: Line) -> None:
        if order["kind"] == "sweep":
            if {self._currencies.get(order[side]) for side in ("account", "counterparty")} != {
                order["currency"]
            }:
                raise Refused(
                    f"no sweep in {order['currency']} between {order['account']} and "
                    f"{order['counterparty']}"
                )
        elif order["kind"] == "hedge-take" and order["cents"] > DESK_LIMIT:
            raise Refused(f"the desk gives {DESK_LIMIT} cents at once, not {order['cents']}")


class Bank:
    """The server."""

    def __init__(
        self, book: Book, *, latency_seconds: float = 0.0, lost_acks: float = 0.05, seed: int = 0
    ) -> None:
        """Opens for business.

        Args:
            book: Its book.
            latency_seconds: Time of a message each way, on average.
            lost_acks: Share of the acknowledgements of instructions that does not arrive.
            seed: Of which ones these are.
        """
        self.book = book
        self.counts: Counter[str] = Counter()
        self._latency_seconds = latency_seconds
        self._lost_acks = lost_acks
        self._chance = random.Random(seed)
        self._counters: dict[str, Callable[..., Line | None]] = {
            "statement": book.statement,
            "instruct": self._instruct,
            "counts": lambda: dict(self.counts),
        }

    async def serve(self, port: int = 0) -> asyncio.Server:
        """Listens on the loopback; port 0 means any."""
        return await asyncio.start_server(self._talk, "127.0.0.1", port)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                await self._wait()
                answer = self.answer(json.loads(line))
                await self._wait()
                if answer is None:
                    break
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def _wait(self) -> None:
        await asyncio.sleep(self._latency_seconds * self._chance.uniform(0.5, 1.5))

    def answer(self, request: Line) -> Line | None:
        """Carries a request out, at once and alone; None is an answer that is lost."""
        try:
            return self._counters[request.pop("ask")](**request)
        except Refused as no:
            self.counts["refused"] += 1
            return {"error": "refused", "message": str(no)}
        except KeyReused as no:
            self.counts["keys reused"] += 1
            return {"error": "key reused", "message": str(no)}

    def _instruct(self, key: str, order: Line) -> Line | None:
        reference, is_new = self.book.execute(key, order)
        self.counts["executed" if is_new else "asked again"] += 1
        if self._chance.random() < self._lost_acks:
            self.counts["acks lost"] += 1
            return None
        return {"reference": reference}


async def _serve(arguments: argparse.Namespace) -> None:
    book = Book(arguments.book)
    bank = Bank(
        book,
        latency_seconds=arguments.latency_ms / 1000,
        lost_acks=arguments.lost_acks,
        seed=arguments.seed,
    )
    server = await bank.serve(arguments.port)
    host, port = server.sockets[0].getsockname()
    print(f"{host}:{port}", flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Runs the bank until its standard input ends; the first line of its output is its address."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.treasury.bank", description="A bank with a book of its own."
    )
    parser.add_argument("--book", type=Path, required=True, help="its book, which must exist")
    parser.add_argument(
        "--port", type=int, default=0, help="where to listen on the loopback; any port if not given"
    )
    parser.add_argument(
        "--latency-ms",
        type=float,
        default=0.0,
        help="how long a message takes each way, on average",
    )
    parser.add_argument(
        "--lost-acks", type=float, default=0.05, help="which part of the acknowledgements is lost"
    )
    parser.add_argument("--seed", type=int, default=0, help="of which acknowledgements are lost")
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
