"""Progress of a run of a declared workflow: its nodes' outputs, the rounds of its loops, and the
changes of both.

A state is never altered: a change makes another one. So a driver may keep the states that it wants
to come back to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pgflow.declare.graph import NodeId
from pgflow.declare.graph.plan import Place, Plan
from pgflow.declare.text.outputs import Output, Outputs

STREAM: Final = "nodes"
"""Stream to which a run publishes each node that ended."""

WORDS: Final = "agents"
"""Stream of what nodes publish while they are at work: that they begin, words and tools of agents,
standard error of programs. It is not kept: read it live.
"""


@dataclass(frozen=True, slots=True)
class Round:
    """The round that a loop or a group is in.

    Args:
        number: Number, from 1.
        previous_output: Output of a loop's last turn.
        user_input: Answer of a person to it.
        previous: Outputs of a group's nodes in the round before.
        scope: States of a group's nodes in this one.
    """

    number: int = 1
    previous_output: str = ""
    user_input: str = ""
    previous: Outputs = field(default_factory=dict)
    scope: Scope | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Progress of nodes that are run together: their outputs, in the order in which they ended, and
    the rounds of loops.
    """

    outputs: Outputs = field(default_factory=dict)
    rounds: Mapping[NodeId, Round] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """Progress of a run. ``cancelled`` is the reason for which a node ended it."""

    scope: Scope = field(default_factory=Scope)
    cancelled: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """End of a node.

    Args:
        place: Place of the node.
        output: Its end, and the output that it left.
        reason: Reason of that state, if there is one.
        text: Text that it was prompted with, ran or asked.
        cancels: True if it ends the run.
    """

    place: Place
    output: Output
    reason: str | None = None
    text: str | None = None
    cancels: bool = False


@dataclass(frozen=True, slots=True)
class NextRound:
    """A loop or a group goes into a round."""

    place: Place
    round: Round


Change = Settled | NextRound


def apply(state: State, change: Change) -> State:
    """Return the state after a change."""
    scope = _changed(state.scope, change.place, change)
    if isinstance(change, Settled) and change.cancels:
        return State(scope, change.output.text)
    return replace(state, scope=scope)


def _changed(scope: Scope, place: Place, change: Change) -> Scope:
    """Return a scope after a change somewhere in it."""
    node_id, inner = place[0], place[1:]
    if inner:
        around = scope.rounds[node_id]
        assert around.scope is not None
        return replace(
            scope,
            rounds={
                **scope.rounds,
                node_id: replace(around, scope=_changed(around.scope, inner, change)),
            },
        )
    if isinstance(change, NextRound):
        return replace(scope, rounds={**scope.rounds, node_id: change.round})
    rounds = {other: round_ for other, round_ in scope.rounds.items() if other != node_id}
    return Scope({**scope.outputs, node_id: change.output}, rounds)


def scope_at(state: State, within: Place) -> Scope:
    """Return the progress of the nodes of a group that is in a round; of the run's nodes for the
    empty place.
    """
    scope = state.scope
    for node_id in within:
        inner = scope.rounds[node_id].scope
        assert inner is not None
        scope = inner
    return scope


def round_at(state: State, place: Place) -> Round | None:
    """Return the round that a loop or a group is in; None if it has not begun, or has ended."""
    return scope_at(state, place[:-1]).rounds.get(place[-1])


def visible(state: State, place: Place) -> Outputs:
    """Return the outputs that a node can read: of the nodes around its groups,
    and of its own round.
    """
    if len(place) == 1:
        return state.scope.outputs
    seen: dict[NodeId, Output] = {}
    for depth in range(len(place)):
        seen.update(scope_at(state, place[:depth]).outputs)
    return seen


def open_places(plan: Plan, state: State, within: Place = ()) -> tuple[Place, ...]:
    """Return the nodes of the current layer that have not ended. The next layer opens when all of
    them have.

    Args:
        plan: The run's plan.
        state: Its progress.
        within: A group that is in a round, to return its nodes instead.

    Returns:
        Their places, in order; none if all nodes have ended. Nodes in groups are returned only with
        ``within``.
    """
    ended = scope_at(state, within).outputs
    for layer in plan.within(within).layers:
        if still := tuple((*within, node_id) for node_id in layer if node_id not in ended):
            return still
    return ()
