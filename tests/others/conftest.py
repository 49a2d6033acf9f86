"""Parts that the programs of this room share: steps that say what was done, and nothing left of the last test."""

from __future__ import annotations

import pytest

from tests.others import doing


@pytest.fixture(autouse=True)
def _afresh() -> None:
    """Begin each test with nothing done and nothing failing."""
    doing.done.clear()
    doing.failing.clear()
