"""The page that compares: each behaviour of a suite, our test, and where the peer has it."""

from __future__ import annotations

from collections import Counter

from tests.others.suites import TESTS, Case, Suite, suites

PAGE = TESTS.parent / "docs" / "compare.md"

HEAD = """<!-- Made by `python -m tests.others --page`; do not edit. -->

# Compared with others

Each section takes a list of behaviours from a peer's tests or documentation. A table names our test and the \
peer's source for each. If a behaviour does not apply to pgflow, the reason is in parentheses.

Run every suite with `python -m tests.others`, or one with `python -m tests.others dbos`. It prints the counts.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(_section(suite) for suite in suites())])


def _section(suite: Suite) -> str:
    facts = suite.facts
    lines = [f"## {facts['title']}", "", f"Source: {facts['peer']}."]
    if suite.cases:
        met = sum(1 for case in suite.cases if case.node)
        lines[-1] += f" {met} of {len(suite.cases)} behaviours have a test."
        lines += ["", *(_reasons(suite) if "is_long" in facts else _table(suite))]
    if suite.has_adapter:
        lines += ["", facts["about"]]
        lines += ["", *(f"- `{node}` {reason}" for node, reason in facts["excused"].items())]
    return "\n".join(lines).rstrip() + "\n"


def _table(suite: Suite) -> list[str]:
    rows = [
        f"| {case.number} | {case.behaviour} | {_ours(case)} | {_code(case.theirs)} |"
        for case in suite.cases
    ]
    return ["| case | behaviour | pgflow | peer |", "|---|---|---|---|", *rows]


def _ours(case: Case) -> str:
    path, _, name = case.node.partition("::")
    place = path.removeprefix("tests/").removesuffix(".py")
    return _code(f"{place}::{name}") if name else f"({case.reason})"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _reasons(suite: Suite) -> list[str]:
    """Count the tests of a long list for each reason; the list itself is the table of the suite."""
    counts = Counter(case.reason for case in suite.cases if case.reason)
    rows = [f"| {reason} | {count} |" for reason, count in counts.most_common()]
    listed = f"`tests/others/{suite.name}/cases.tsv`"
    return [
        f"The list is {listed}. The other tests do not apply:",
        "",
        "| reason | tests |",
        "|---|---|",
        *rows,
    ]
