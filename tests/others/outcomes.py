"""Plugin of pytest that writes how each test went to a file, so that a table can be made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

WORST = ["passed", "skipped", "failed"]
found: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the worst of what is said of a test in its phases."""
    outcome = report.outcome
    if report.when != "call" and outcome == "passed":
        return
    if hasattr(report, "wasxfail"):
        outcome = "skipped"
    before = found.get(report.nodeid, "passed")
    found[report.nodeid] = max(before, outcome, key=WORST.index)


def pytest_sessionfinish(session: Any) -> None:
    """Write the file, in the process that collects from all others."""
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["PGFLOW_OTHERS_OUTCOMES"]).write_text(json.dumps(found))
