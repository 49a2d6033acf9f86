"""Client of the bank, for the steps: one connection a request,
so that a lost answer is a closed connection.

Where the bank is, the environment says: ``TREASURY_BANK=127.0.0.1:40123``.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from examples.treasury.bank import KeyReused, Refused
from examples.treasury.ledger import Booked
from examples.treasury.policy import Instruction, Statement

if TYPE_CHECKING:
    from datetime import date

ADDRESS = "TREASURY_BANK"


class AckLost(Exception):
    """The connection ended before the answer: whether the instruction was executed,
    only the bank knows.
    """


async def read_statement(account: str, day: date) -> Statement:
    """Return the bank's statement of an account for a day."""
    return Statement(**await _ask({"ask": "statement", "account": account, "day": day.isoformat()}))


async def instruct(order: Instruction, key: str) -> Booked:
    """Has an instruction executed: once, however often it is sent under the key.

    Raises:
        Refused, KeyReused: A definite no.
        AckLost, OSError: No answer: send it again under the same key.
    """
    answer = await _ask(
        {"ask": "instruct", "key": key, "order": {**asdict(order), "day": order.day.isoformat()}}
    )
    return Booked(order, answer["reference"])


async def read_counts(address: str) -> dict[str, int]:
    """Return the counters of the bank at an address since its process began."""
    return await _ask({"ask": "counts"}, address)


async def _ask(request: dict[str, Any], address: str | None = None) -> dict[str, Any]:
    host, _, port = (address or os.environ[ADDRESS]).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        line = await reader.readline()
    finally:
        writer.close()
    if not line.endswith(b"\n"):
        raise AckLost(f"the bank at {host}:{port} closed the connection before its answer")
    answer: dict[str, Any] = json.loads(line)
    match answer.get("error"):
        case "refused":
            raise Refused(answer["message"])
        case "key reused":
            raise KeyReused(answer["message"])
    return answer
