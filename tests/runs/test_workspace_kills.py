"""Workers of a workspace are killed: one folder is delivered, once. `python -m tests.workspacekills`
plays many more.
"""

from __future__ import annotations

import random

import pytest

from tests.workspacekills import Play

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")

pytestmark = pytest.mark.full


@pytest.mark.full
def test_a_workspace_whose_workers_are_killed_delivers_to_one_folder(dsn, tmp_path):
    play = Play(dsn, tmp_path, random.Random(2), kills=2)
    play.play()
    assert play.wrong == []
    assert play.killed.total() == 2
