"""The types of the public surface: what must be accepted, what must be an error, and that the
programs really run.

`typing_programs.py` and `typing_wrong.py` are the specification's own; only their imports differ,
and what stands in them of the surface that came after it. Each line of
the latter that is marked `# E` must be an error, and no other line may be one.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import django_project
import psycopg
import pytest
import typing_programs
from records import SOON, count, eventually, run_row
from typing_programs import Order

from pgflow import App, workflow
from pgflow.testing import set_clock

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness

pytestmark = pytest.mark.full

APPS = Path(__file__).parents[1] / "apps"
PROGRAMS, WRONG = APPS / "typing_programs.py", APPS / "typing_wrong.py"


def check(*command: str) -> str:
    """Return what a checker says of both files."""
    ran = subprocess.run(
        [sys.executable, "-m", *command, PROGRAMS.name, WRONG.name],
        cwd=APPS,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout + ran.stderr


def lines_of_errors(found: list[tuple[str, int]]) -> dict[str, set[int]]:
    return {
        file.name: {line for name, line in found if name == file.name} for file in (PROGRAMS, WRONG)
    }


def mypy() -> dict[str, set[int]]:
    said = check("mypy", "--strict", "--no-error-summary", "--hide-error-context")
    found = re.findall(r"^(\S+\.py):(\d+): error:", said, re.MULTILINE)
    return lines_of_errors([(name, int(line)) for name, line in found])


def pyright() -> dict[str, set[int]]:
    found = json.loads(check("pyright", "--outputjson", "--pythonpath", sys.executable))
    return lines_of_errors(
        [
            (Path(d["file"]).name, d["range"]["start"]["line"] + 1)
            for d in found["generalDiagnostics"]
            if d["severity"] == "error"
        ]
    )


def marked_lines() -> set[int]:
    return {
        number for number, line in enumerate(WRONG.read_text().splitlines(), 1) if "# E " in line
    }


def test_mypy_accepts_the_programs_of_the_specification_and_finds_each_mistake() -> None:
    assert mypy() == {PROGRAMS.name: set(), WRONG.name: marked_lines()}


def test_pyright_accepts_the_programs_of_the_specification_and_finds_each_mistake() -> None:
    assert pyright() == {PROGRAMS.name: set(), WRONG.name: marked_lines()}


# ---------------------------------------------------------------- the programs run


@workflow(queue="orders", timeout=timedelta(days=7))
async def checkout(order: Order) -> str:
    """The second program without its effects."""
    return f"{order.qty} of {order.sku}"


def test_the_first_program_runs(
    dsn: str, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGFLOW_DSN", dsn)

    async def tomorrow_comes() -> None:
        await eventually(lambda: count(conn, "pgflow.runs", "status = 'waiting'"), "the run sleeps")
        await asyncio.to_thread(set_clock, dsn, timedelta(days=1))

    async def main() -> None:
        await asyncio.gather(typing_programs.main(), tomorrow_comes())

    asyncio.run(main())
    assert run_row(conn, "hello-1", "status, output") == ("completed", "Hello, Ada")


async def test_the_fifth_program_runs(aflow: AsyncHarness) -> None:
    aflow.include(typing_programs.thumbnails)
    run = await aflow.start(typing_programs.thumbnails, [f"image-{n}.png" for n in range(120)])
    assert await run.result(SOON) == []


def test_the_seventh_program_starts_its_run_in_the_transaction_of_the_view(
    dsn: str, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    django_project.point_at(dsn)
    monkeypatch.setenv("PGFLOW_DSN", dsn)
    with typing_programs.sync_app:
        assert typing_programs.view(None) == "order-1"
        assert typing_programs.view(None) == "order-1"
    assert run_row(conn, "order-1", "workflow, queue, status") == ("checkout", "orders", "queued")


def test_the_seventh_program_runs_with_a_workflow_without_effects(dsn: str) -> None:
    django_project.point_at(dsn)
    app = App(dsn, include=[checkout])

    def view() -> str:
        from django.db import connection
        from django.db import transaction as tx

        with tx.atomic():
            run = app.using(connection).start(
                checkout.options(key="order-1"), Order(1, "a", 1, "c", 5)
            )
        return run.key

    with app, app.worker(poll_seconds=0.1):
        assert app.get(view(), checkout).result(SOON) == "1 of a"
