"""Players by family of file: the one place in which a run of a DAG, an Agent SOP and an ICM
workspace part. A family whose runs do more than its graph says has a player of its own.
"""

from __future__ import annotations

from typing import Final

from pgflow.declare.durable.player import Player
from pgflow.declare.durable.sops import SopPlayer
from pgflow.declare.durable.stages.player import StagePlayer
from pgflow.declare.graph import Family

PLAYERS: Final[dict[Family, type[Player]]] = {
    "dag": Player,
    "sop": SopPlayer,
    "icm": StagePlayer,
}
