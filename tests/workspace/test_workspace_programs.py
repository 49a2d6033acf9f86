"""A few of the random programs of `tests/workspaces.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from gitkit import make_repository, read_files
from workspaces import Killed, Program, in_child

from pgflow.workspace import Workspace


@pytest.mark.full
@pytest.mark.parametrize("seed", [3])
def test_a_random_program_under_kills_loses_and_doubles_nothing(seed: int, tmp_path: Path) -> None:
    counts = Program(seed, tmp_path).run(operations=14)
    assert counts["killed"] > 0


@pytest.mark.full
def test_a_rewind_that_has_begun_is_brought_to_its_end(tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "shop", a="1", b="b")
    ws = Workspace(str(folder), "run")
    first = ws.save()
    assert first is not None
    then = read_files(folder)
    ends = set()
    for command in range(60):
        (folder / "a").write_text(f"2 {command}")
        (folder / "c").write_text("c")
        (folder / "b").unlink(missing_ok=True)
        now = read_files(folder)
        killed = False
        try:
            in_child(lambda: ws.rewind(first), command)  # type: ignore[arg-type,return-value]
        except Killed:
            killed = True
            ws.save()
        newest = ws.history()[0].kind
        assert read_files(folder) == {"rewind": then, "edits": now}[newest]
        ends.add(newest)
        if not killed:
            break
    assert ends == {"rewind", "edits"}
