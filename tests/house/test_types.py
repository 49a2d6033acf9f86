"""The types of the public surface: what must be accepted, what must be an error, and that the
programs really run.

`typing_programs.py` and `typing_wrong.py` are the specification's own; only their imports differ,
and what stands in them of the surface that came after it. Each line of
the latter that is marked `# E` must be an error, and no other line may be one.
"""

from __future__ import annotations

import asyncio
import functools
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
    from collections.abc import Callable

    from pgflow.testing import AsyncHarness

APPS = Path(__file__).parents[1] / "apps"
PROGRAMS, WRONG = APPS / "typing_programs.py", APPS / "typing_wrong.py"


def check(*command: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=APPS,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    return ran.stdout + ran.stderr


@functools.cache
def say(*command: str) -> str:
    """Return what a checker says of both files, which it reads once."""
    return check(*command, PROGRAMS.name, WRONG.name)


def mypy(file: Path) -> tuple[str, set[int]]:
    said = say("mypy", "--strict", "--no-error-summary", "--hide-error-context")
    return said, {
        int(line) for line in re.findall(rf"^{file.name}:(\d+): error:", said, re.MULTILINE)
    }


def pyright(file: Path) -> tuple[str, set[int]]:
    said = say("pyright", "--outputjson", "--pythonpath", sys.executable)
    found = [
        d
        for d in json.loads(said)["generalDiagnostics"]
        if d["severity"] == "error" and Path(d["file"]).name == file.name
    ]
    return said, {diagnostic["range"]["start"]["line"] + 1 for diagnostic in found}


def marked_lines() -> set[int]:
    return {
        number for number, line in enumerate(WRONG.read_text().splitlines(), 1) if "# E " in line
    }


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_the_programs_of_the_specification_are_accepted(
    checker: Callable[[Path], tuple[str, set[int]]],
) -> None:
    said, errors = checker(PROGRAMS)
    assert errors == set(), said


def test_mypy_finds_every_mistake_and_nothing_else() -> None:
    said, errors = mypy(WRONG)
    assert errors == marked_lines(), said


def test_pyright_finds_every_mistake_and_nothing_else() -> None:
    said, errors = pyright(WRONG)
    assert errors == marked_lines(), said


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
