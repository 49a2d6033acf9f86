"""The oracle of effects under kills, on steps that it must find out. The gate plays it on effects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_steps_that_know_nothing_of_intents_fail_the_same_judge(dsn: str) -> None:
    command = [sys.executable, "-m", "tests.effectcrashes", dsn, "--kills", "5", "--control"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FAILED doubled" in done.stdout
