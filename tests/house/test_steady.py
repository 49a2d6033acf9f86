"""`python -m tests.steady` finds a test that fails now and then, and says how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import steady

if TYPE_CHECKING:
    from pathlib import Path


TESTS = """
from pathlib import Path

HERE = Path(__file__).parent

def order(name):
    with (HERE / "order").open("a") as file:
        file.write(name)

def test_a(): order("a")
def test_b(): order("b")
def test_c(): order("c")

def test_now_and_then():
    order(".")
    assert (HERE / "order").read_text().count(".") != 1, "the first time"
"""


@pytest.mark.full
def test_a_test_that_fails_now_and_then_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_odd.py").write_text(TESTS)
    assert (
        steady.main(["-n", "2", "--load", "1", "--seed", "4", "--select", "odd", str(tmp_path)])
        == 1
    )
    said = capsys.readouterr().out
    assert "round 1 of 2, seed 4: 1 failed\nround 2 of 2, seed 5: 0 failed\n" in said
    assert "test_odd.py::test_now_and_then failed 1 of 2 times" in said
    assert "the first time" in said
    order = (tmp_path / "order").read_text()
    assert order[:4] != order[4:], "each round has an order of its own"
