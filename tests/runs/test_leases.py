"""Leases on folders: of all runs that may change one, one works there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runkit import ended, start, write

from pgflow.authority import Approve
from pgflow.declare.durable import declared
from pgflow.declare.durable.lease import lease_key
from pgflow.testing import AsyncHarness

ASKS = """
- {id: before, bash: "echo $WORKFLOW_ID >> who"}
- {id: ask, approval: {message: "Go on?"}, depends_on: [before]}
- {id: after, bash: "echo $WORKFLOW_ID >> who; cat who | tr '\\n' ' '", depends_on: [ask]}
"""
FAILS = """
- {id: first, bash: "echo $WORKFLOW_ID >> who"}
- {id: second, bash: "echo $WORKFLOW_ID >> who; test -e mended", depends_on: [first]}
"""


def who(folder: Path) -> list[str]:
    return (folder / "who").read_text().split()


async def say_yes(aflow: AsyncHarness, run: Any) -> None:
    (gate,) = [one for one in await aflow.gates() if one.path[0] == run.key]
    await aflow.app.answer(gate.gate, Approve(), by="ann")
    await aflow.until_idle()


@pytest.mark.full
async def test_a_second_run_waits_for_the_folder_unless_it_changes_nothing(aflow, conn, tmp_path):
    path = write(tmp_path, ASKS, "interactive: true")
    first = await start(aflow, path, key="first")
    await aflow.until_idle()
    (tmp_path / "link").symlink_to(tmp_path)
    second = await start(aflow, path, key="second", cwd=str(tmp_path / "link"))
    refused = await start(aflow, path, key="refused", lease="refuse")
    reads = write(tmp_path, "- {id: a, bash: cat who}", "mutates_checkout: false", name="reads")
    looks = await start(aflow, reads, key="looks")
    await aflow.until_idle()
    assert who(tmp_path) == ["first"]
    assert "another run works in" in (await ended(refused)).error
    assert (await ended(looks)).output == "first"
    held = conn.execute("select key, holder, waiters from pgflow.locks").fetchall()
    assert held == [(lease_key(str(tmp_path)), "first", 1)]
    await say_yes(aflow, first)
    await say_yes(aflow, second)
    assert (await ended(second)).output.split() == ["first", "first", "second", "second"]
    assert conn.execute("select count(*) from pgflow.locks").fetchone() == (0,)


async def test_a_run_that_is_retried_waits_for_the_run_that_has_its_folder_now(aflow, tmp_path):
    await start(aflow, write(tmp_path, FAILS), key="failing")
    await aflow.until_idle()
    other = await start(aflow, write(tmp_path, ASKS, "interactive: true", name="asks"), key="other")
    await aflow.until_idle()
    assert who(tmp_path) == ["failing", "failing", "other"]
    (tmp_path / "mended").touch()
    await aflow.app.retry("failing")
    await aflow.until_idle()
    assert who(tmp_path) == ["failing", "failing", "other"]
    await say_yes(aflow, other)
    again = await ended(aflow.app.get("failing", declared))
    assert again.status == "completed", again
    assert who(tmp_path) == ["failing", "failing", "other", "other", "failing"]


@pytest.mark.full
async def test_children_work_in_the_folder_of_their_parent_one_at_a_time(aflow, tmp_path):
    kid = "- {id: a, bash: echo kid}"
    write(tmp_path, kid, name="kid")
    write(tmp_path, kid, "mutates_checkout: false", name="reader")
    call = """
    - {{id: before, bash: "echo before"}}
    - {{id: kids, workflow: {name}, fan_out: {{items: '["1", "2"]'{most}}}, depends_on: [before]}}
    """
    said = []
    for name, most in (("kid", ", max_parallel: 1"), ("reader", ""), ("kid", "")):
        path = write(tmp_path, call.format(name=name, most=most))
        said.append(await start(aflow, path))
        await aflow.until_idle()
    one, many, refused = [await ended(run) for run in said]
    assert (one.output, many.output) == ('["kid","kid"]', '["kid","kid"]')
    assert "max_parallel: 1" in refused.error
    assert "mutates_checkout: false" in refused.error


async def test_a_run_whose_folder_is_taken_away_fails(aflow, conn, tmp_path):
    run = await start(aflow, write(tmp_path, ASKS, "interactive: true"))
    await aflow.until_idle()
    conn.execute("select pgflow.break_lock(%s, 'it hangs')", (lease_key(str(tmp_path)),))
    await say_yes(aflow, run)
    assert "was taken away" in (await ended(run)).error
    assert len(who(tmp_path)) == 1
