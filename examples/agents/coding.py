"""The coding agent: the plan is a decision, each edit a commit of the run's own line, and a push
needs approval.

After a crash the same plan continues after its last edit. If the tests stay red, the run drops its
edits and keeps those of people.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pgflow
from pgflow import read, workflow
from pgflow.authority import Admit, Approved
from pgflow.decisions import Choice, decision
from pgflow.workspace import Workspace, change, lease, push


class StillRed(Exception):
    """The tests are red after the last attempt."""


@dataclass(frozen=True)
class Patch:
    """Patch of one file."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Tests:
    """Result of the tests."""

    passed: bool
    output: str


PLANS = ([Patch("shop.py", "return cents", "return cents * 2")],
         [Patch("shop.py", "* 2", "* 3"), Patch("NOTES", "", "three of each\n")])  # fmt: skip
"""Answers of this stand-in for a model."""


@decision()
async def plan(ticket: str, attempt: int, seen: str) -> Choice[list[Patch]]:
    """Plan the edits. A model would give another answer each time."""
    pgflow.authority.charge(usd=Decimal("0.50"))
    return Choice(
        PLANS[attempt % len(PLANS)],
        why=f"{ticket}, attempt {attempt + 1}",
        evidence=[seen] if seen else [],
        model="small-1",
    )


@change()
def patch(ws: Workspace, edit: Patch) -> None:
    """Edit a file."""
    path = Path(ws.path) / edit.path
    text = path.read_text() if path.exists() else ""
    if edit.old not in text:
        raise ValueError(f"{edit.path} does not say {edit.old!r}")
    path.write_text(text.replace(edit.old, edit.new, 1) if edit.old else text + edit.new)


@read
async def run_tests(ws: Workspace) -> Tests:
    """Run the tests. They change no file of a snapshot."""
    done = subprocess.run(  # noqa: ASYNC221 - an example, of one run
        [sys.executable, "-B", "test_shop.py"],
        cwd=ws.path,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return Tests(done.returncode == 0, (done.stdout + done.stderr)[-2000:])


def check(tests: Tests) -> None:
    """End the saga of an attempt with red tests."""
    if not tests.passed:
        raise StillRed(tests.output)


@workflow(raises=[StillRed])
async def code(ws: Workspace, ticket: str, remote: str, attempts: int = 2) -> str:
    """Work on a ticket until the tests are green, and push the approved edits."""
    planning = plan.options(admit=Admit(usd=Decimal("0.50")))
    seen = ""
    async with lease(ws) as mine:
        for attempt in range(attempts):
            try:
                async with pgflow.effects.saga():
                    planned = await planning(ticket, attempt, seen)
                    with pgflow.because(planned):
                        for edit in planned.value:
                            await patch.aio(mine, edit)
                    tests = await run_tests(mine)
                    check(tests)
            except StillRed as red:  # the saga drops the edits, but not the plan and its price
                seen = str(red)
                continue
            diff = await show(mine)
            verdict = await pgflow.authority.gate("push", diff, approvers=["reviewer"])
            if not isinstance(verdict, Approved):
                return "not pushed"
            return (await push.aio(mine, remote, "agent/" + ws.run, ticket)).after
    raise StillRed(seen)


@read
async def show(ws: Workspace) -> str:
    """Show all edits as one patch."""
    line = ws.history()
    return ws.diff(line[0], since=line[-1])
