"""``pgflow top`` as a command: one picture for scripts, and its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from clikit import make_stuck, pgflow
from pgflow_cli.top.views import VIEWS

if TYPE_CHECKING:
    from pgflow.testing import Harness


def test_one_picture_has_all_views_for_scripts_and_for_people(
    flow: Harness, conn: psycopg.Connection[Any], dsn: str
) -> None:
    make_stuck(conn, "stuck-1")
    answer = pgflow(dsn, "top", "--once", "--json")
    assert answer.code == 0
    picture = json.loads(answer.out)
    assert list(picture) == ["at", *(view.name for view in VIEWS)]
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
    assert done.stderr == ('pgflow: the screen needs textual: pip install "pgflow-engine[tui]"\n')
