"""Counterparties as they are: they keep books, know keys for a while, refuse, and lose replies.

One counterparty is one file of lines, each synced to disk before anything is answered, so that its
book outlives whoever called. Before it answers it may lose the reply, as a reset connection, as a
reply that never comes, or as a gateway's error 502: the act is done all the same.
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
    """The counterparty's definite no: nothing was done."""


class BadGateway(Exception):
    """Something on the way answered 502: nobody knows whether the act was done."""


@dataclass
class Counterparty:
    """A retailer, a card network, an airline, a bank.

    Attributes:
        book: Its file.
        lose: Acts that lose their reply, by their place in the book from 1: `{3: "reset"}`.
        refuse: Acts that it refuses, by the name of the act and a word of the request: `{"book
            SIN-LHR"}`.
        key_memory: Number of its last keys that it remembers: a window that closes. None = all.
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
        """Return the entry under a key, for anybody who forgot; None if there is none."""
        return next((line for line in self.lines() if line["key"] == key), None)

    async def act(self, act: str, key: str, **request: Any) -> str:
        """Does something, once for each key it remembers, and answers with its number - unless the
        reply is lost.

        Raises:
            Refused: It does not do this; nothing was done.
            ConnectionResetError, TimeoutError, BadGateway: The reply was lost; the act was done.
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
        """Return the acts that were not undone."""
        undone = {line["undoes"] for line in self.lines() if line["act"] == undo}
        return [
            line for line in self.lines() if line["act"] == act and line["number"] not in undone
        ]
