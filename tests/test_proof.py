"""The proof's own parts: what counts as proven, and the page it writes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from evidence import Evidence, Findings
from proof import layers, report
from proof.named_tests import TESTS
from proof.promises import NOT_BUILT, PROMISES


def findings(*evidence, **fired):
    return Findings("crashes", 7, list(evidence), fired)


def page(*results):
    return report.table(list(results), arguments="", seconds=60, date="2026-01-01", seed=7)


@pytest.mark.parametrize("evidence", [
    Evidence("G1", "kill", 0), Evidence("G1", "kill", 5, lost=1), Evidence("G1", "kill", 5, doubled=1), Evidence("G1", "kill", 5, wrong=("x",)),
])
def test_what_was_never_tested_or_went_wrong_does_not_hold(evidence):
    assert not evidence.holds
    assert any("G1" in line for line in report.broken([("18.0", findings(evidence))]))


def test_a_fault_that_happened_too_seldom_voids_the_run():
    found = findings(Evidence("G1", "kill", 5), kill=(2, 3))
    assert report.broken([("18.0", found)]) == ["crashes on 18.0: void: kill: 2 of 3"]


def test_a_layer_that_shows_nothing_is_no_proof():
    assert report.broken([("18.0", findings())]) == ["crashes on 18.0: it shows nothing"]


def test_one_promise_under_one_fault_is_one_line_over_all_servers():
    text = page(("15.1", findings(Evidence("G1", "kill", 1000))), ("18.0", findings(Evidence("G1", "kill", 234))))
    line = next(line for line in text.splitlines() if line.startswith("| G1 |"))
    assert re.search(r"\| kill \| 1,234 \| 0 \| 0 \|.*15\.1, 18\.0 \|$", line)


def test_every_promise_has_a_line():
    text = page(("18.0", findings(Evidence("G1", "kill", 1))))
    assert list(re.findall(r"^\| (G\d+) \|", text, re.MULTILINE)) == list(PROMISES)
    assert f"| {PROMISES['G30']} | not built: budgets |" in text
    assert "## What is not promised" in text


def test_what_is_said_to_be_missing_is_a_promise():
    assert set(NOT_BUILT) <= set(PROMISES)
    assert set(TESTS) <= set(PROMISES)


def test_findings_survive_the_way_from_one_process_to_the_other():
    found = findings(Evidence("G1", "kill", 5, wrong=("a", "b"), figure="3 s"), kill=(2, 3))
    assert layers.read_findings(layers.write_findings(found)) == found


def test_a_layer_that_fails_is_said(monkeypatch):
    job = layers.Job(layers.LAYERS[0]._replace(name="no such layer"), "18.0", "postgresql://nowhere", 1, 7)
    while not job.is_over():
        job._process.wait()
    assert report.broken([("18.0", job.findings())])


def test_the_page_that_is_checked_in_shows_a_run_in_which_everything_held():
    text = (report.REPOSITORY / "docs" / "GUARANTEES.md").read_text()
    assert set(re.findall(r"^\| (G\d+) \|", text, re.MULTILINE)) == set(PROMISES)
    summary = re.search(r"\*\*([\d,]+) tests of (\d+) promises: 0 lost, 0 doubled, 0 otherwise broken. Mutants caught: (\d+)/(\d+)", text)
    assert summary
    assert summary[3] == summary[4]
    assert "not in this run" not in text, "the page is that of a full run"


def test_the_command_line_says_what_it_takes():
    done = subprocess.run([sys.executable, "-m", "tests.proof", "--help"], cwd=report.REPOSITORY, capture_output=True, text=True, check=True)
    assert all(f"--{word}" in done.stdout for word in ("quick", "minutes", "seed", "postgres", "only", "output"))
