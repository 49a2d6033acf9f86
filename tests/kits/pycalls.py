"""Counts the Python functions that a worker calls, in place of its time: a count is the same on
each machine.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import psycopg
from records import eventually

from pgflow import AsyncApp
from pgflow._worker.options import WorkerOptions


@dataclass
class Size:
    """So many runs of a workflow, of so many units each."""

    runs: int
    units: int

    @property
    def all(self) -> int:
        return self.runs * self.units


IDLE = (
    "select not exists (select from pgflow.ready) and not exists (select from pgflow.lease)"
    " and not exists (select from pgflow.timer)"
)
"""No run is ready or at work, nor sleeps."""
ENDED = "select not exists (select from pgflow.run natural left join pgflow.outcome where status is null)"
"""All runs have ended."""


async def play(
    app: AsyncApp, dsn: str, work: Any, size: Size, concurrency: int = 128, until: str = IDLE
) -> Counter[str]:
    """Count the functions that a worker calls, by name, until a query returns True."""
    called: list[CodeType] = []

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            called.append(frame.f_code)

    await app.start_many(work, [(size.units,)] * size.runs)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        async with app._work(WorkerOptions(concurrency=concurrency, poll_seconds=3600)):
            await asyncio.to_thread(wait_until, dsn, until)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Counter(name_of(code) for code in called if code.co_filename != __file__)


def name_of(code: CodeType) -> str:
    return f"{Path(code.co_filename).stem}.{code.co_qualname}"


def wait_until(dsn: str, query: str) -> None:
    """Returns once a query returns True; in a thread that is not counted."""
    sys.setprofile(None)
    with psycopg.connect(dsn, autocommit=True) as conn:
        asyncio.run(eventually(lambda: conn.execute(query).fetchone() == (True,), query))
