"""Realistic counterparties: they keep books, remember keys for a while, refuse, and lose replies.

A counterparty is one file of lines, each synced to disk before the answer, so that its book
outlives the caller. It may lose the reply: as a reset connection, as silence, or as a gateway's
error 502. The act is done all the same.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Loss = Literal["reset", "timeout", "502"]

LOSSES: tuple[Loss, ...] = ("reset", "timeout", "502")


class Refused(Exception):
    """Definite refusal of the counterparty: it has not acted."""


class BadGateway(Exception):
    """Answer 502 from a gateway: the act may or may not be done."""


@dataclass
class Counterparty:
    """A retailer, a card network, an airline or a bank.

    Attributes:
        book: Its file.
        lose: Acts that lose their reply, by their place in the book from 1: `{3: "reset"}`.
        refuse: Acts to refuse, by the name of the act and a word of the request: `{"book
            SIN-LHR"}`.
        key_memory: Number of keys that it remembers, the newest; None = all.
    """

    book: Path
    lose: dict[int, Loss] = field(default_factory=dict)
    refuse: set[str] = field(default_factory=set)
    key_memory: int | None = None

    def lines(self) -> list[dict[str, Any]]:
        """Return the entries of its book."""
        return (
            [json.loads(line) for line in self.book.read_text().splitlines()]
            if self.book.exists()
            else []
        )

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the entry under a key; None without one."""
        return next((line for line in self.lines() if line["key"] == key), None)

    async def act(self, act: str, key: str, **request: Any) -> str:
        """Act once for each remembered key, and return the number of the entry - unless the reply
        is lost.

        Raises:
            Refused: It has refused, and not acted.
            ConnectionResetError, TimeoutError, BadGateway: The act is done, its reply lost.
        """
        if any(f"{act} {value}" in self.refuse for value in request.values()):
            raise Refused(f"{act} {request}: refused")
        lines = self.lines()
        known = lines if self.key_memory is None else lines[len(lines) - self.key_memory :]
        done = next((line for line in known if line["key"] == key), None)
        if done is None:
            done = {"number": f"{act}-{len(lines) + 1}", "act": act, "key": key, **request}
            self._write(done)
            await self._lose(self.lose.get(len(lines) + 1))
        return str(done["number"])

    def _write(self, line: dict[str, Any]) -> None:
        with self.book.open("a") as book:
            book.write(json.dumps(line) + "\n")
            book.flush()
            os.fsync(book.fileno())

    async def _lose(self, loss: Loss | None) -> None:
        if loss == "reset":
            raise ConnectionResetError("connection reset by peer")
        if loss == "timeout":
            await asyncio.sleep(3600)
        if loss == "502":
            raise BadGateway("502 Bad Gateway")

    def standing(self, act: str, undo: str) -> list[dict[str, Any]]:
        """Return the acts without those that were undone."""
        undone = {line["undoes"] for line in self.lines() if line["act"] == undo}
        return [
            line for line in self.lines() if line["act"] == act and line["number"] not in undone
        ]
