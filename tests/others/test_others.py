"""The tables of other engines' behaviours name tests that exist, and the page is made of them."""

from __future__ import annotations

import pytest

from tests.others.page import PAGE, page
from tests.others.suites import Suite, suites

LEAST = {"aws": 145, "dbos": 60, "examples": 40, "patterns": 43, "pydantic_ai": 275, "temporal": 36}
"""Cases of a suite that have a test."""


@pytest.mark.parametrize("suite", suites(), ids=lambda suite: suite.name)
def test_each_case_has_a_test_or_a_reason(suite: Suite) -> None:
    assert suite.flaws() == []
    assert sum(1 for case in suite.cases if case.node) >= LEAST.get(suite.name, 0)


def test_the_page_that_is_checked_in_is_made_of_the_tables() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.others --page`"
