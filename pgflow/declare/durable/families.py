"""Players by family of file: the one place in which a run of a DAG, an Agent SOP and an ICM
workspace part. A family whose runs do more than its graph says has a player of its own, imported
when the first run of it begins.
"""

from __future__ import annotations

from pgflow.declare.durable.player import Player
from pgflow.declare.graph import Family


def player_of(family: Family) -> type[Player]:
    """Return the player of a family."""
    if family == "sop":
        from pgflow.declare.durable.sops import SopPlayer

        return SopPlayer
    if family == "icm":
        from pgflow.declare.durable.stages.player import StagePlayer

        return StagePlayer
    return Player
