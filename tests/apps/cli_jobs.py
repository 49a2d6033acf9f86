"""Workflows for the tests of the command line."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import pgflow
from pgflow import AsyncApp, Retries, Signal, read, step, workflow

paid = Signal("paid", int)


@dataclass
class Order:
    sku: str
    amount: int = 1


@read
async def price(sku: str) -> int:
    return len(sku)


@step(retries=Retries(2, first_delay=timedelta(milliseconds=20)))
async def charge(sku: str) -> str:
    """Fails the first time."""
    if (pgflow.run_info().step_attempt or 1) < 2:
        raise ConnectionError("the bank is out [to lunch]")
    return f"receipt for {sku}"


@step
async def rest(seconds: float) -> None:
    await asyncio.sleep(seconds)


@workflow
async def checkout(order: Order) -> str:
    pgflow.set_state(phase="paying")
    await price(order.sku)
    receipt = await charge(order.sku)
    await paid.wait(timeout=timedelta(hours=1))
    return receipt


@workflow
async def greet(name: str, times: int = 1) -> str:
    await rest(0)
    return ", ".join([f"Hello {name}"] * times)


@workflow
async def failing(n: int) -> None:
    await rest(0)
    raise ValueError(f"no {n}")


@workflow
async def napping(seconds: float) -> str:
    await pgflow.sleep(timedelta(seconds=seconds))
    return "slept"


@workflow
async def family() -> str:
    return await pgflow.run_child(greet, "child")


@workflow
async def resting(count: int, seconds: float) -> int:
    for _ in range(count):
        await rest(seconds)
    return count


@workflow
async def counting(n: int) -> int:
    await rest(0)
    if n < 3:
        pgflow.continue_as_new(n + 1)
    return n


@workflow(queue="fragile")
async def poisoned() -> None:
    await rest(0)


@step
async def look_at_collector() -> tuple[int, int]:
    return gc.get_freeze_count(), gc.get_threshold()[0]


@workflow
async def spared() -> tuple[int, int]:
    return await look_at_collector()


@step
async def spend(usd: Decimal) -> None:
    pgflow.authority.charge(usd=usd)


@workflow
async def spending(usd: Decimal) -> None:
    await spend(usd)
    await rest(0.6)


app = AsyncApp(
    include=[checkout, greet, failing, napping, family, resting, counting, spared, spending]
)
