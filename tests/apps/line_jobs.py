"""Workflows of the queue that `python -m tests.lines` sets rules for."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta

from pgflow import AsyncApp, Retries, step, workflow

QUEUE = "lined"


class Unlucky(Exception):
    """Raised now and then, to be tried again."""


@step(retries=Retries(max_attempts=20, first_delay=timedelta(milliseconds=20)))
async def work(seconds: float, fails: float) -> None:
    """Takes a while, and fails now and then."""
    await asyncio.sleep(seconds * random.random() * 2)
    if random.random() < fails:
        raise Unlucky


@workflow(queue=QUEUE)
async def job(key: str, seconds: float = 0.0, fails: float = 0.0) -> None:
    """Works twice."""
    if seconds:
        await work(seconds, fails)
        await work(seconds, fails)


app = AsyncApp(os.environ.get("PGFLOW_DSN"), include=[job])
