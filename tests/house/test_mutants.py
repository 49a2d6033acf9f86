"""The defects on the list are where they should be: a change that moves their texts or renames
their tests says so at once.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import defects
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]


def is_listed(defect: defects.Defect) -> str:
    return defect.name


@pytest.mark.parametrize("defect", defects.DEFECTS, ids=is_listed)
def test_a_defect_can_be_made(defect: defects.Defect) -> None:
    """Each of its texts is in its file exactly once, and the file is another one without it."""
    sound = (TESTS.parent / defect.file).read_text()
    broken = defect.break_text(sound)
    assert broken != sound
    if defect.file.endswith(".py"):
        ast.parse(broken)


def find_tests(file: str) -> Iterator[str]:
    """Names of the test functions of a file."""
    for node in ast.parse((TESTS / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node.name


def test_every_defect_names_a_test_that_exists() -> None:
    named = {tuple(defect.test.split("[")[0].split("::")) for defect in defects.DEFECTS}
    existing = {(file, name) for file in {file for file, _ in named} for name in find_tests(file)}
    assert named - existing == set()


def test_no_two_defects_have_one_name() -> None:
    assert len({defect.name for defect in defects.DEFECTS}) == len(defects.DEFECTS) >= 32
