"""Kill -9 at thirteen named points, each at least twenty times: nothing lost, nothing done
twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_nothing_is_lost_or_doubled_whenever_a_worker_is_killed(dsn):
    driver = subprocess.run(
        [sys.executable, "-m", "tests.crashes", dsn, "--kills", "20"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert driver.returncode == 0, driver.stdout + driver.stderr
    figures = json.loads(driver.stdout)
    assert figures["transactional_steps"] >= 1000
    assert figures["suspects"] > 0
