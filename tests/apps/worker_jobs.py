"""Workflows that the worker processes of the tests run."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import psycopg

from pgflow import AsyncApp, Signal, step, transaction, workflow

go = Signal("go", int)


@transaction
async def book(conn: psycopg.AsyncConnection[Any], key: str, n: int) -> int:
    await conn.execute("insert into app.booked values (%s, %s)", (key, n))
    return n


@step
async def rest(seconds: float) -> None:
    await asyncio.sleep(seconds)


@step
def hog(until: str) -> None:
    """Holds the interpreter as an extension that never lets go of it would, but for its switch
    interval, until this file is there.
    """
    while not os.path.exists(until):  # noqa: PTH110  makes no objects
        for _ in range(1_000_000):
            pass


@workflow
async def booking(key: str, steps: int, pause: float = 0.0) -> int:
    total = 0
    for n in range(steps):
        total += await book(key, n)
        if pause:
            await rest(pause)
    return total


@workflow
async def hogging(until: str) -> str:
    await hog.aio(until)
    return "done"


@workflow
async def blocking(seconds: float) -> str:
    time.sleep(seconds)  # pgflow: ignore[PF105] the watchdog is to notice
    await rest(0)
    return "done"


@step
async def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@workflow
async def poison() -> None:
    await die()


@workflow
async def waiting() -> int:
    return await go.wait(timeout=timedelta(hours=1))


@step
def stand_still() -> None:
    threading.Event().wait()


@workflow
async def hanging() -> None:
    await stand_still.aio()


@workflow
def unwilling() -> None:
    while True:
        try:
            go.sync.wait()
        except BaseException:  # pgflow: ignore[PF202] it is to be abandoned
            continue


app = AsyncApp(include=[hanging, unwilling, booking, hogging, blocking, poison, waiting])
