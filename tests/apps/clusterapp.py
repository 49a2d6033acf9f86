"""The workflows of tests/clusterkills.py. Each step writes a row into a ledger without a key: what
is done twice is there twice.
"""

from __future__ import annotations

from typing import Any

import psycopg

import pgflow
from pgflow import AsyncApp, Signal, transaction, workflow

TURN = Signal("turn", int)


@transaction
async def book(connection: psycopg.AsyncConnection[Any], what: str) -> None:
    """Write a row."""
    await connection.execute("insert into public.ledger (what) values (%s)", (what,))


@workflow
async def hop(name: str, next_key: str | None) -> int:
    """Wait for the turn, and pass it on to the next run of the ring, on whatever node it is."""
    await book(f"{name}/begin")
    turn = await TURN.wait()
    await book(f"{name}/turn-{turn}")
    if next_key is not None:
        await pgflow.send(next_key, TURN, turn + 1)
    return turn


@workflow
async def leaf(name: str) -> str:
    """Write a row, as a child on another node."""
    await book(f"{name}/leaf")
    return name


@workflow
async def stem(name: str, node: int) -> str:
    """Have a child on another node, and write a row before and after it."""
    await book(f"{name}/before")
    result = await pgflow.run_child(leaf.options(node=node), name)
    await book(f"{name}/after")
    return result


app = AsyncApp(include=[hop, leaf, stem], cluster=True)
