"""The proof's own parts: what counts as proven, and the page it writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import commitfaults
import pytest
import wirecut
from evidence import Evidence, Findings
from wirepaths import PATHS

from proof import layers, report
from proof.named_tests import TESTS
from proof.promises import NOT_BUILT, PROMISES


def findings(*evidence, **fired):
    return Findings("crashes", 7, list(evidence), fired)


CLEAN = report.Tree("abc1234", is_dirty=False)
RECORD = report.REPOSITORY / "docs" / "GUARANTEES.json"


def record(*results, trees=(CLEAN, CLEAN)):
    made = report.record(
        list(results), arguments="", seconds=60, date="2026-01-01", seed=7, trees=trees
    )
    return json.loads(json.dumps(made))


def page(*results, **options):
    return report.page(record(*results, **options))


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence("G1", "kill", 0),
        Evidence("G1", "kill", 5, lost=1),
        Evidence("G1", "kill", 5, doubled=1),
        Evidence("G1", "kill", 5, wrong=("x",)),
    ],
)
def test_what_was_never_tested_or_went_wrong_does_not_hold(evidence):
    assert not evidence.holds
    assert any("G1" in line for line in report.broken([("18.0", findings(evidence))]))


def test_a_fault_that_happened_too_seldom_voids_the_run():
    found = findings(Evidence("G1", "kill", 5), kill=(2, 3))
    assert report.broken([("18.0", found)]) == ["crashes on 18.0: void: kill: 2 of 3"]


def test_a_layer_that_shows_nothing_is_no_proof():
    assert report.broken([("18.0", findings())]) == ["crashes on 18.0: it shows nothing"]


def test_one_promise_under_one_fault_is_one_line_over_all_servers():
    text = page(
        ("15.1", findings(Evidence("G1", "kill", 1000))),
        ("18.0", findings(Evidence("G1", "kill", 234))),
    )
    line = next(line for line in text.splitlines() if line.startswith("| G1 |"))
    assert re.search(r"\| kill \| 1,234 \| 0 \| 0 \| 0 \|.*15\.1, 18\.0 \|$", line)


def test_no_sum_counts_what_two_promises_share_twice():
    text = page(
        ("18.0", findings(Evidence("G1", "kill", 10), Evidence("G13", "kill", 0, shared=10)))
    )
    assert "**10 tests of 2 promises: 0 lost" in text
    assert re.search(r"^\| G13 \|.*\| kill \| 0 \| 10 \| 0 \| 0 \|", text, re.MULTILINE)
    assert report.broken([("18.0", findings(Evidence("G13", "kill", 0, shared=10)))]) == []


def test_a_layer_that_counts_the_same_runs_under_two_promises_is_refused():
    (line,) = report.broken(
        [("18.0", findings(Evidence("G1", "kill", 10), Evidence("G13", "kill", 10)))]
    )
    assert "G1 and G13 count the same 10 runs (kill)" in line


@pytest.mark.parametrize("layer", [commitfaults, wirecut], ids=lambda layer: layer.__name__)
def test_a_path_that_is_about_several_promises_is_counted_under_one(layer):
    def tally(path, *promises):
        made = layer.Tally(path, promises)
        counts = made.refused if layer is commitfaults else made.fired
        counts["40001"] = 10
        return made

    found = layer.findings_of(
        [tally("a", "G1", "G2", "G10"), tally("b", "G1"), tally("c", "G4", "G10")], 7
    ).evidence
    assert sum(e.runs for e in found) == 30
    assert {e.guarantee: e.runs + e.shared for e in found if e.guarantee in ("G1", "G2", "G4")} == {
        "G1": 20,
        "G2": 10,
        "G4": 10,
    }


@pytest.mark.parametrize(
    "trees",
    [
        (report.Tree("abc1234", is_dirty=True),) * 2,
        (CLEAN, report.Tree("abc1234", is_dirty=True)),
        (CLEAN, report.Tree("def5678", is_dirty=False)),
    ],
    ids=["dirty", "changed meanwhile", "another commit meanwhile"],
)
def test_the_page_says_when_the_tree_was_dirty(trees):
    text = page(("18.0", findings(Evidence("G1", "kill", 10))), trees=trees)
    assert "of commit `abc1234` **with changes that are not committed**, seed" in text
    assert "| 7 | abc1234+changes | 18.0 |" in text
    clean = page(("18.0", findings(Evidence("G1", "kill", 10))))
    assert "of commit `abc1234`, seed" in clean
    assert "with changes" not in clean
    assert "| 7 | abc1234 | 18.0 |" in clean


def test_the_tree_at_hand_is_dirty_once_a_file_differs(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "REPOSITORY", tmp_path)
    assert report.tree_at_hand() == report.Tree("unknown", is_dirty=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "code").write_text("1")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "docs" / "GUARANTEES.md").write_text("what a run writes itself")
    (tmp_path / "log").write_text("nobody runs this")
    assert not report.tree_at_hand().is_dirty
    (tmp_path / "new.py").write_text("1")
    assert report.tree_at_hand().is_dirty
    (tmp_path / "new.py").unlink()
    (tmp_path / "code").write_text("2")
    assert report.tree_at_hand().is_dirty


def test_every_promise_has_a_line():
    text = page(("18.0", findings(Evidence("G1", "kill", 1))))
    assert list(re.findall(r"^\| (G\d+) \|", text, re.MULTILINE)) == list(PROMISES)
    assert f"| {PROMISES['G49']} | not in this run |" in text
    assert "## Not promised" in text


def test_what_is_said_to_be_missing_is_a_promise():
    assert set(NOT_BUILT) <= set(PROMISES)
    assert set(TESTS) <= set(PROMISES)


def _collected(request: pytest.FixtureRequest) -> set[str]:
    """Names of the tests that this run has collected, of their functions, classes and files."""
    parents = {parent for item in request.session.items for parent in item.listchain()}
    functions = {item.nodeid.partition("[")[0] for item in request.session.items}
    return functions | {parent.nodeid for parent in parents}


@pytest.mark.full
def test_every_test_that_is_named_is_there(request):
    """A run of all tests has collected them; where some are missing, these are collected anew."""
    named = {path for _, words in TESTS.values() for path in words if path.startswith("tests/")}
    missing = sorted(named - _collected(request))
    if not missing:
        return
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "",
        *missing,
    ]
    done = subprocess.run(
        command, cwd=report.REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, "\n".join(
        line
        for line in done.stdout.splitlines() + done.stderr.splitlines()
        if line.startswith("ERROR")
    )


def test_the_gate_plays_counts_that_no_machine_changes():
    gate = [layer for layer in layers.LAYERS if layer.gate is not None]
    assert [layer.amount(None) for layer in gate] == [layer.gate for layer in gate]
    assert {layer.name for layer in gate} == {
        "simulator", "programs", "crashes", "commits", "wirecut", "isolation", "effects",
    }  # fmt: skip


def test_a_longer_proof_plays_more_and_none_less_than_the_gate():
    for layer in layers.LAYERS:
        assert layer.amount(45) == layer.full
        assert layer.amount(90) == (2 * layer.full if layer.grows else layer.full)
        assert layer.amount(1) >= (layer.gate or 1)


def test_the_seed_of_the_gate_is_the_tree(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "REPOSITORY", tmp_path)
    (tmp_path / "code.py").write_text("1")
    loose = report.hash_of_tree()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    committed = report.hash_of_tree()
    subprocess.run([*git, "commit", "-q", "--amend", "-m", "other words"], cwd=tmp_path, check=True)
    assert report.hash_of_tree() == committed
    (tmp_path / "code.py").write_text("2")
    assert report.hash_of_tree() not in (committed, loose)
    (tmp_path / "code.py").write_text("1")
    (tmp_path / "new.sql").write_text("1")
    assert report.hash_of_tree() not in (committed, loose)


def test_findings_survive_the_way_from_one_process_to_the_other():
    found = findings(Evidence("G1", "kill", 5, wrong=("a", "b"), figure="3 s"), kill=(2, 3))
    assert layers.read_findings(layers.write_findings(found)) == found


@pytest.mark.full
def test_a_layer_that_fails_is_said(monkeypatch):
    job = layers.Job(
        layers.LAYERS[0]._replace(name="no such layer"), "18.0", "postgresql://nowhere", 1, 7
    )
    while not job.is_over():
        job._process.wait()
    assert report.broken([("18.0", job.findings())])


def test_findings_survive_the_way_through_the_record():
    found = findings(
        Evidence("G1", "kill", 5, wrong=("a", "b"), figure="3 s", shared=2), kill=(2, 3)
    )
    assert report.results_of(record(("18.0", found))) == [("18.0", found)]


@pytest.mark.skipif(
    not RECORD.exists(),
    reason="the page that is checked in comes from a run that wrote no record: python -m "
    "tests.proof",
)
def test_a_promise_that_is_played_again_has_a_commit_of_its_own():
    run = record(
        ("18.0", report.Findings("tests", 1, [Evidence("G47", "x", 1), Evidence("G1", "x", 2)]))
    )
    again = report.Findings("tests", 2, [Evidence("G47", "y", 3)])
    found = report.with_claims(run, [("18.1", again)], report.Tree("beef", is_dirty=False))
    rows = [
        line for line in report.page(found).splitlines() if line.startswith(("| G1 ", "| G47 "))
    ]
    assert rows[0].endswith(f"| 1 | {run['commit']} | 18.0 |")
    assert "| y | 3 |" in rows[1] and rows[1].endswith("| 2 | beef | 18.1 |")


def test_a_layer_that_is_played_again_takes_the_place_of_its_lines():
    run = record(
        ("18.0", report.Findings("crashes", 1, [Evidence("G1", "x", 1)])),
        ("18.0", report.Findings("wirecut", 1, [Evidence("G1", "y", 2)])),
    )
    again = report.Findings("crashes", 2, [Evidence("G1", "x", 30)])
    found = report.with_layers(run, [("18.1", again)], report.Tree("beef", is_dirty=False))
    rows = [line for line in report.page(found).splitlines() if "| x |" in line or "| y |" in line]
    assert sorted(row.split(" | ")[3:4] + row.split(" | ")[-3:] for row in rows) == [
        ["2", "1", run["commit"], "18.0 |"],
        ["30", "2", "beef", "18.1 |"],
    ]


def test_the_page_that_is_checked_in_is_that_of_its_record():
    run = json.loads(RECORD.read_text())
    assert (report.REPOSITORY / "docs" / "GUARANTEES.md").read_text() == report.page(run)
    assert report.broken(report.results_of(run)) == []
    assert not run["is_dirty"]


def test_the_page_that_is_checked_in_shows_a_run_in_which_everything_held():
    text = (report.REPOSITORY / "docs" / "GUARANTEES.md").read_text()
    assert set(re.findall(r"^\| (G\d+) \|", text, re.MULTILINE)) == set(PROMISES)
    summary = re.search(
        r"\*\*([\d,]+) tests of (\d+) promises: 0 lost, 0 doubled, 0 otherwise broken. Mutants: "
        r"(\d+/\d+|not run)",
        text,
    )
    assert summary
    assert "not in this run" not in text, "the page is that of a full run"


@pytest.mark.full
def test_the_command_line_says_what_it_takes():
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof", "--help"],
        cwd=report.REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(
        f"--{word}" in done.stdout
        for word in ("gate", "minutes", "seed", "postgres", "only", "output")
    )


def test_every_path_that_writes_says_which_promises_its_refused_commits_test():
    assert {
        promise
        for name, path in PATHS.items()
        for promise in path.promises
        if name not in commitfaults.UNWRITTEN
    } - {"G39"} == set(commitfaults.FAULTS)
