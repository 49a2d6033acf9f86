"""The shop of docs/session.md."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pgflow

approved = pgflow.Signal("approved", str)


@pgflow.read
async def price(item: str) -> int:
    return 100 * len(item)


@pgflow.step(retries=3)
async def pack(item: str) -> str:
    """Waits at the door of the warehouse."""
    while not Path("door-is-open").exists():
        await asyncio.sleep(0.05)
    return f"a parcel with a {item}"


@pgflow.workflow
async def order(item: str) -> str:
    cents = await price(item)
    by = await approved.wait(timeout=timedelta(days=7))
    parcel = await pack(item)
    return f"{parcel} for {cents} cents, approved by {by}"


app = pgflow.AsyncApp(include=[order])
