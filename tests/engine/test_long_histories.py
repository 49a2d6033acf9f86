"""Long journals: they replay in time and memory that grow with their length alone, and workers warn of them."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Any

import psycopg
import pytest
from records import SOON

from pgflow import App, read, workflow
from pgflow.replay import histories
from pgflow.replay.check import find_divergence


@read
async def look(n: int) -> int:
    return n


@workflow
async def walks(steps: int) -> int:
    total = 0
    for n in range(steps):
        total += await look(n)
    return total


def replayed(conn: psycopg.Connection[Any], key: str, monkeypatch: Any) -> tuple[int, int, int]:
    """Replay a run; return its units, the pages that were read, and the peak of memory beside them."""
    pages = 0
    export_units = histories.transfer.export_units

    def counted(run_id: int, after: int) -> Any:
        nonlocal pages
        pages += 1
        return export_units(run_id, after)

    monkeypatch.setattr(histories.transfer, "export_units", counted)
    ((chain,),) = conn.execute("select chain_id from pgflow.runs where key = %s", (key,)).fetchall()
    history = next(histories.read_database(conn, [chain]))
    monkeypatch.setattr(histories.transfer, "export_units", export_units)
    tracemalloc.start()
    assert find_divergence(history, walks) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ((units,),) = conn.execute(
        "select count(*) from pgflow.unit where run_id = %s", (chain,)
    ).fetchall()
    return units, pages, peak


@pytest.mark.full
def test_a_journal_of_a_hundred_thousand_units_replays(dsn, conn, monkeypatch):
    found = {}
    with App(dsn, include=[walks]) as app, app.worker():
        for steps in (10_000, 100_000):
            app.start(walks.options(key=f"w{steps}"), steps).result(SOON)
            found[steps] = replayed(conn, f"w{steps}", monkeypatch)
    for steps, (units, pages, peak_bytes) in found.items():
        assert steps <= units < steps + 10
        assert pages <= units // 2000 + 1
        assert peak_bytes < 200 * units


async def test_a_worker_warns_of_a_long_journal_in_time(aflow, monkeypatch, caplog):
    monkeypatch.setattr("pgflow._worker.executor.LONG_UNITS", 100)
    aflow.include(walks)
    with caplog.at_level(logging.WARNING, logger="pgflow"):
        await (await aflow.start(walks.options(key="short"), 60)).result(SOON)
        assert "recorded" not in caplog.text
        await (await aflow.start(walks.options(key="long"), 350)).result(SOON)
    warned = [
        one.getMessage() for one in caplog.records if "run long has recorded" in one.getMessage()
    ]
    assert 1 <= len(warned) <= 3
    assert all("continue_as_new" in one for one in warned)
