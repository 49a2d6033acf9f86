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
from typing import TYPE_CHECKING, Any

import psycopg
from records import eventually

from pgflow._worker.options import WorkerOptions

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from pgflow import AsyncApp


@dataclass
class Size:
    """So many runs of a workflow, of so many units each."""

    runs: int
    units: int

    @property
    def all(self) -> int:
        return self.runs * self.units


async def play(
    app: AsyncApp, dsn: str, work: Any, size: Size, concurrency: int = 128
) -> Counter[str]:
    """Count the functions that a worker calls, by name, until all of these runs have ended or
    wait.
    """
    called: list[CodeType] = []

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            called.append(frame.f_code)

    await app.start_many(work, [(size.units,)] * size.runs)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        async with app._work(WorkerOptions(concurrency=concurrency, poll_seconds=3600)):
            await asyncio.to_thread(wait_until_idle, dsn)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Counter(name_of(code) for code in called if code.co_filename != __file__)


def name_of(code: CodeType) -> str:
    return f"{Path(code.co_filename).stem}.{code.co_qualname}"


def wait_until_idle(dsn: str) -> None:
    """Returns once no run is ready or at work, nor sleeps; in a thread that is not counted."""
    sys.setprofile(None)
    with psycopg.connect(dsn, autocommit=True) as conn:
        query = (
            "select not exists (select from pgflow.ready) and not exists (select from pgflow.lease)"
            " and not exists (select from pgflow.timer)"
        )
        asyncio.run(eventually(lambda: conn.execute(query).fetchone() == (True,), "an idle worker"))
