"""`wait:` nodes: what a file may say of them, and what a dry run makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from runkit import write

from pgflow.declare.dag import read_file
from pgflow.declare.play.dryrun import dry_run


def read(folder: Path, wait: str) -> tuple[list[str], list[str]]:
    """The errors and warnings of a file whose first node waits."""
    verdict = read_file(write(folder, f"- {{id: w, wait: {wait}}}"))
    return [one.message for one in verdict.errors], [one.message for one in verdict.warnings]


@pytest.mark.parametrize("wait", [
    "{duration_ms: 1000}", "{until: '2026-12-01T09:00:00Z'}",
    "{until: '2026-12-01T09:00:00+01:00'}", "{event: ci-done, deadline_ms: 60000}",
    "{attention: Sign the form.}",
])  # fmt: skip
def test_each_kind_of_wait_is_sound(tmp_path, wait):
    assert read(tmp_path, wait) == ([], [])


@pytest.mark.parametrize(("wait", "why"), [
    ("{}", "exactly one of"), ("{duration_ms: 1, attention: x}", "exactly one of"),
    ("{duration_ms: 0}", "'wait.duration_ms' must be a positive number (ms)"),
    ("{event: e}", "'wait.event' needs 'wait.deadline_ms'"),
    ("{duration_ms: 5, deadline_ms: 5}", "'wait.event' needs 'wait.deadline_ms'"),
    ("{until: tomorrow}", "a time with its zone"),
    ("{until: '2026-12-01T09:00:00'}", "a time with its zone"),
    ("{attention: ''}", "must not be empty"),
])  # fmt: skip
def test_a_wait_that_could_not_end_is_an_error(tmp_path, wait, why):
    errors, _ = read(tmp_path, wait)
    assert len(errors) == 1
    assert why in errors[0]


def test_a_dry_run_takes_a_wait_for_over_unless_a_stub_says_more(tmp_path):
    path = write(
        tmp_path,
        """
        - {id: w, wait: {event: ci, deadline_ms: 1000}}
        - {id: late, bash: echo, depends_on: [w], when: "$w.output.status == 'expired'"}
        """,
    )
    graph = read_file(path).graph
    assert graph is not None
    said = dry_run(graph, stubs={"late": "x"})
    assert [(one.id, one.state, one.reason) for one in said.trace] == [
        ("w", "completed", "assumed over"),
        ("late", "skipped", "when_condition_false"),
    ]
    said = dry_run(graph, stubs={"w": {"status": "expired"}, "late": "x"})
    assert [one.state for one in said.trace] == ["stubbed", "stubbed"]


def test_a_person_who_is_asked_for_stops_a_dry_run_that_pauses(tmp_path):
    graph = read_file(write(tmp_path, "- {id: w, wait: {attention: Sign.}}")).graph
    assert graph is not None
    said = dry_run(graph, stubs={}, pause_at_gates=True)
    found = [(one.id, one.state, one.reason, one.text) for one in said.trace]
    assert found == [("w", "paused", "attention", "Sign.")]
