"""``pgflow top`` as a command: one picture for scripts, and its refusals."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import cli_jobs
import psycopg
import pytest
from clikit import make_stuck, pgflow

from pgflow import AsyncApp
from pgflow.console.backend import Backend
from pgflow.tui.views import VIEWS, draw_pulse, read_pulse

if TYPE_CHECKING:
    from pgflow.testing import Harness


def test_one_picture_has_all_views_for_scripts_and_for_people(
    flow: Harness, conn: psycopg.Connection[Any], dsn: str
) -> None:
    make_stuck(conn, "stuck-1")
    answer = pgflow(dsn, "top", "--once", "--json")
    assert answer.code == 0
    picture = json.loads(answer.out)
    assert list(picture) == ["at", "pulse", *(view.name for view in VIEWS)]
    needs = [need for need in picture["needs"] if need["kind"] == "stuck"]
    assert [(need["name"], need["level"], need["page"]) for need in needs] == [
        ("stuck-1", "bad", "run")
    ]
    assert [(run["key"], run["status"]) for run in picture["runs"]] == [("stuck-1", "stuck")]
    assert sum(queue["stuck"] for queue in picture["queues"]) == 1
    answer = pgflow(dsn, "top", "--once", tty=True, width=80)
    assert answer.code == 0
    assert all(view.title in answer.out for view in VIEWS)
    assert max(len(line) for line in answer.out.splitlines()) <= 80
    assert answer.out.startswith("0 queued  0 running  0 waiting  1 stuck  0.0 ended/min")
    assert picture["pulse"]["stuck"] == 1


def test_the_pulse_has_totals_rates_and_latencies_in_the_width_there_is() -> None:
    pulse = {
        "queued": 1200, "running": 3, "waiting": 40, "paused": 0, "stuck": 0,
        "started_a_minute": 3.2, "ended_a_minute": 3.0, "failed_in_an_hour": 2,
        "p50_seconds": 0.7, "p99_seconds": 36.0, "ended_by_minute": [0] * 58 + [1, 8],
    }  # fmt: skip
    narrow, wide = (draw_pulse(pulse, width).plain for width in (80, 160))
    said = "1,200 queued  3 running  40 waiting  2 failed in 1h  3.0 ended/min"
    assert narrow.startswith(said)
    assert len(narrow) <= 80
    assert wide.startswith(f"{said}  p50 0.7s p99 36s  3.2 started/min  ")
    assert wide.endswith("▁█")
    assert 100 < len(wide) <= 160


def test_the_pulse_counts_what_began_and_ended(dsn: str) -> None:
    async def main() -> dict[str, Any]:
        app = AsyncApp(dsn, include=[cli_jobs.greet])
        async with app:
            async with app.worker():  # which adds its counts as it stops
                for number in range(2):
                    run = await app.start(cli_jobs.greet.options(key=f"k-{number}"), "Ada")
                    await run.result()
            return await read_pulse(Backend(app))

    pulse = asyncio.run(main())
    assert sum(pulse["ended_by_minute"]) == 2
    assert pulse["p50_seconds"] is not None
    assert (pulse["queued"], pulse["running"], pulse["failed_in_an_hour"]) == (0, 0, 0)


def test_a_script_is_told_to_ask_for_one_picture(dsn: str) -> None:
    answer = pgflow(dsn, "top", tty=True)
    assert (answer.code, "for a script there is --once" in answer.err) == (2, True)
    answer = pgflow(dsn, "top", "--json")
    assert (answer.code, "go with --once" in answer.err) == (2, True)


@pytest.mark.full
def test_without_the_extra_the_screen_says_what_to_install_and_a_picture_needs_nothing(
    dsn: str, flow: Harness
) -> None:
    code = (
        "import sys; sys.modules['textual'] = None; from pgflow_cli.commands import run; "
        "print(run(['top', '--once', '--json', '--dsn', sys.argv[1]])); sys.exit(run(['top']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, dsn], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.endswith("\n0\n")
    assert done.stderr == ('pgflow: this needs textual: pip install "pgflow-engine[tui]"\n')
