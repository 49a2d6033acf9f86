"""The page that compares: each behaviour of a suite, our test, and where the peer has it."""

from __future__ import annotations

from pathlib import Path

from tests.others.suites import TESTS, Case, Suite, suites

PAGE = TESTS.parent / "docs" / "compare.md"

HEAD = """<!-- Made by `python -m tests.others --page`; do not edit. -->

# Compared with others

Each table is a suite of `python -m tests.others`: what a peer documents or tests, our test of it, and where the \
peer has it. A case without a test has the reason in its place. `python -m tests.others` runs all of them and prints \
the counts.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(_section(suite) for suite in suites())])


def _section(suite: Suite) -> str:
    facts = suite.facts
    excused = sum(1 for case in suite.cases if case.reason)
    lines = [f"## {facts['title']}", "", f"Read from {facts['peer']}."]
    if suite.cases:
        met = len(suite.cases) - excused
        lines[-1] += f" {met} of {len(suite.cases)} cases have a test."
        lines += ["", "| case | behaviour | ours | theirs |", "|---|---|---|---|"]
        lines += [_row(case) for case in suite.cases]
    if suite.has_adapter:
        lines += ["", facts["about"]]
        lines += [f"- `{node}`: {reason}" for node, reason in facts["excused"].items()]
    return "\n".join(lines) + "\n"


def _row(case: Case) -> str:
    path, _, name = case.node.partition("::")
    place = Path(path).relative_to("tests").with_suffix("") if case.node else ""
    ours = (
        f"`{place}` {name.removeprefix('test_').replace('_', ' ')}" if name else f"({case.reason})"
    )
    theirs = f"`{case.theirs}`" if case.theirs else ""
    return f"| {case.number} | {case.behaviour} | {ours} | {theirs} |"
