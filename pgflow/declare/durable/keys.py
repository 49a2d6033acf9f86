"""Keys of steps: the place of a node, with the number of every loop's round around it.

``plan`` is a node, ``refine#3`` the third turn of a loop, ``group#2/tick`` a node in a group's
second round. ``refine#3:until`` is the check of that turn, ``review:rework#1`` the work after a
rejection, and ``plan~2`` a second try. A key is the same in every replay, and no other step of the
run has it.
"""

from __future__ import annotations

from pgflow.declare.graph import Loop
from pgflow.declare.graph.plan import Place, Plan
from pgflow.declare.play.progress import State, round_at


def key_of(plan: Plan, state: State, place: Place, turn: int | None = 1) -> str:
    """Return the key of a node.

    Args:
        plan: The run's plan.
        state: Its progress, for the rounds of the groups around the node.
        place: Place of the node.
        turn: Number of the turn, if it is a loop; None for the loop as a whole.
    """
    parts = []
    for depth in range(1, len(place)):
        around = round_at(state, place[:depth])
        parts.append(f"{place[depth - 1]}#{around.number if around else 1}")
    is_turn = turn is not None and isinstance(plan.node(place).body, Loop)
    own = f"{place[-1]}#{turn}" if is_turn else place[-1]
    return "/".join([*parts, own])
