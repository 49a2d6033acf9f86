"""Kill -9 around effects: nothing without a key is done twice, and what a failed run did is
undone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(dsn: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.effectcrashes", dsn, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_no_effect_is_repeated_blindly_or_forgotten_whenever_a_worker_is_killed(dsn: str) -> None:
    done = run(dsn, "--kills", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert min(figures["kills"].values()) >= 3
    assert figures["failed_after_continuing"] > 20


@pytest.mark.full
def test_steps_that_know_nothing_of_intents_fail_the_same_judge(dsn: str) -> None:
    done = run(dsn, "--kills", "5", "--control")
    assert done.returncode == 1
    assert "FAILED doubled" in done.stdout
