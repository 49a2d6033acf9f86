"""Suggestions for a mistyped name."""

from __future__ import annotations

import pytest

from pgflow.declare.text.spelling import similar


@pytest.mark.parametrize(("name", "known", "meant"), [
    ("plann", ["planner", "plan", "lan"], ["plan", "planner", "lan"]),
    ("zz", ["a", "e1x", "n", "j", "k"], ["a", "n", "j"]), ("Plan", ["plan", "plans"], ["plans"]),
    ("architecture", ["architects", "archit", "artichoke"], ["architects"]), ("x", [], []),
    ("", ["ab", "abc"], ["ab"]), ("a" * 200, ["a" * 199], []),
])  # fmt: skip
def test_the_nearest_come_first_and_what_is_far_is_not_named(name, known, meant):
    assert similar(name, known) == meant


def test_only_so_many_names_are_compared():
    assert similar("plan", [f"{number:09}" for number in range(500)] + ["plam"]) == []
