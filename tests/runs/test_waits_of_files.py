"""`wait:` nodes of runs: nothing is at work while they last, and a worker that dies meanwhile takes
nothing with it.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from runkit import ended, seen, start, write

import pgflow

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

AROUND = """
- {{id: before, bash: echo before >> witness}}
- {{id: w, wait: {wait}, depends_on: [before]}}
- {{id: after, bash: echo $w.output.status, depends_on: [w]}}
"""


def waits(folder: Path, wait: str) -> Path:
    """A file that does something, waits, and says how the wait ended."""
    return write(folder, AROUND.format(wait=wait))


async def test_a_wait_for_a_time_outlives_its_worker(aflow, tmp_path):
    run = await start(aflow, waits(tmp_path, "{duration_ms: 3600000}"))
    await aflow.until_idle()
    await aflow.crash()
    await aflow.skip(timedelta(minutes=59))
    await aflow.until_idle()
    assert await run.status() == "waiting"
    await aflow.skip(timedelta(minutes=2))
    await aflow.until_idle()
    said = await ended(run)
    assert (said.status, said.output) == ("completed", "satisfied"), said
    assert seen(tmp_path) == {"before": 1}


async def test_a_wait_until_a_moment_reads_it_from_an_output(aflow, tmp_path):
    path = write(
        tmp_path,
        """
        - {id: when, bash: "date -u -d '+1 day' +%Y-%m-%dT%H:%M:%SZ"}
        - {id: w, wait: {until: $when.output}, depends_on: [when]}
        - {id: past, wait: {until: '2020-01-01T00:00:00Z'}, depends_on: [w]}
        """,
    )
    run = await start(aflow, path)
    await aflow.until_idle()
    assert await run.status() == "waiting"
    await aflow.skip(timedelta(days=1, minutes=1))
    await aflow.until_idle()
    assert (await ended(run)).states == dict.fromkeys(("when", "w", "past"), "completed")


async def test_a_moment_that_is_none_fails_its_node(aflow, tmp_path):
    path = write(
        tmp_path,
        """
        - {id: when, bash: echo tomorrow}
        - {id: w, wait: {until: $when.output}, depends_on: [when]}
        """,
    )
    run = await start(aflow, path)
    await aflow.until_idle()
    said = await ended(run)
    assert (said.status, "a time with its zone" in said.error) == ("failed", True), said


@pytest.mark.parametrize("comes", [True, False])
async def test_a_wait_for_an_event_says_whether_it_came(aflow, tmp_path, *, comes):
    run = await start(aflow, waits(tmp_path, "{event: ci-done, deadline_ms: 60000}"))
    await aflow.until_idle()
    await aflow.crash()
    if comes:
        await run.send(pgflow.Signal("ci-done", Any), None)
    await aflow.skip(timedelta(seconds=30 if comes else 61))
    await aflow.until_idle()
    said = await ended(run)
    assert (said.status, said.output) == ("completed", "satisfied" if comes else "expired"), said
    assert seen(tmp_path) == {"before": 1}


async def test_a_person_who_is_asked_for_lets_the_run_go_on(aflow, tmp_path):
    run = await start(aflow, waits(tmp_path, "{attention: Sign the form.}"))
    await aflow.until_idle()
    (gate,) = await aflow.gates(run)
    assert gate.request["message"] == "Sign the form."
    await aflow.answer("w")
    said = await ended(run)
    assert (said.status, said.output) == ("completed", "satisfied"), said
