"""Commands in processes of their own: packages import their names when they are used, which another
test of the same process may have done."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

READING = """
list; show k; timeline k; wait k; gates; gates --all; owed; doctor; health; messages; batches; entities; queues;
queues history; schedules; locks; outbox; triggers; budgets; budgets spent; audit verify; audit anchor; flow; versions;
patches; cluster list; top --once; export; retention; retention holds; workers; sql "select 1"; check flows.py; icm
"""


@pytest.mark.full
@pytest.mark.parametrize("words", [one.strip() for one in READING.split(";")])
def test_a_command_finds_its_parts_in_a_process_of_its_own(dsn, words, tmp_path):
    (tmp_path / "flows.py").write_text("from pgflow import workflow\n")
    command = [sys.executable, "-m", "pgflow_cli", *shlex.split(words)]
    given = {**os.environ, "PGFLOW_DSN": dsn}
    ran = subprocess.run(
        command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in ran.stderr
    assert ran.returncode in (0, 1, 2), ran.stderr
