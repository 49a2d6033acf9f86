"""`examples/sdlc`, killed between its nodes: an agent, real tests, a loop that mends, a person who
sends the change back, and one delivery.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
import servers

from pgflow.authority import Approve, Reject
from pgflow.inspect import GateRow
from tests.filekills import Aim, Atlas, Play

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

pytestmark = pytest.mark.full

EXAMPLE = servers.REPOSITORY / "examples" / "sdlc"
AIMS = (
    Aim("after", "start of test"),
    Aim("after", "start of repair#1:until"),
    Aim("before", "review#2/accept"),
    Aim("after", "deliver"),
)


class Itinerary(Atlas):
    """Aims in a given order."""

    def choose(self, folder: Path, chance: random.Random) -> Aim | None:
        """The next one that was not met."""
        del folder, chance
        return next((aim for aim in AIMS if not self.met[aim]), None)


class Delivery(Play):
    """One run of the example, whose person sends the change back once."""

    output = "delivered"
    settings: ClassVar[dict[str, Any]] = {"provider": "cmd:bash agent.sh"}

    def file(self) -> Path:
        """Copy the example."""
        shutil.copytree(EXAMPLE, self.folder, dirs_exist_ok=True)
        return self.folder / ".archon" / "workflows" / "sdlc.yaml"

    def answer_to(self, gate: GateRow) -> Approve | Reject:
        """Send it back the first time."""
        return Reject("Say why") if "#1/" in gate.name else Approve()


@pytest.mark.full
def test_the_way_of_a_change_survives_kills_between_its_nodes(dsn, tmp_path):
    atlas = Itinerary()
    play = Delivery(dsn, tmp_path, random.Random(1), len(AIMS), None, atlas)
    play.play()
    assert play.wrong == []
    assert dict(atlas.met) == dict.fromkeys(AIMS, 1)
    turns = (tmp_path / "turns").read_text().split()
    assert turns == ["plan", "implement", "repair#1", "repair#2", "review#1/rework"]
    assert len((tmp_path / "dist" / "deliveries").read_text().splitlines()) == 1
    assert "# Several blanks" in (tmp_path / "dist" / "slug.sh").read_text()
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select status from pgflow.effects").fetchall()
    assert row == [("confirmed",)]
