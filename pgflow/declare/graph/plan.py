"""The order of a workflow's nodes: layers, each of which needs only the layers before it, and the
same within groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pgflow.declare.graph import Group, Node, NodeId

Place = tuple[NodeId, ...]
"""Place of a node: the ids of the groups around it, from outside, and its own."""


@dataclass(frozen=True)
class Plan:
    """Nodes that are run together, in layers, and the plans of the groups among them.

    Args:
        nodes: The nodes by their ids, in the order of declaration.
        layers: The same by layers. Within the first the order is that of declaration, then that in
            which nodes become free.
        groups: Members of the groups among them.
    """

    nodes: Mapping[NodeId, Node]
    layers: tuple[tuple[NodeId, ...], ...]
    groups: Mapping[NodeId, Plan]

    def within(self, place: Place) -> Plan:
        """Return the plan of the group at that place; this one for the empty place."""
        return self.groups[place[0]].within(place[1:]) if place else self

    def node(self, place: Place) -> Node:
        """Return the node at that place."""
        return self.within(place[:-1]).nodes[place[-1]]

    @cached_property
    def sinks(self) -> tuple[NodeId, ...]:
        """The nodes that no other depends on, in the order of declaration."""
        needed = {needed for node in self.nodes.values() for needed in node.depends_on}
        return tuple(node_id for node_id in self.nodes if node_id not in needed)


def make_plan(nodes: tuple[Node, ...]) -> Plan:
    """Order nodes into layers.

    Args:
        nodes: The nodes of a graph or a group.

    Raises:
        ValueError: If some depend on each other in a circle, or on nodes that are not there.
    """
    by_id = {node.id: node for node in nodes}
    groups = {node.id: make_plan(node.body.nodes) for node in nodes if isinstance(node.body, Group)}
    return Plan(by_id, _layers(nodes), groups)


def _layers(nodes: tuple[Node, ...]) -> tuple[tuple[NodeId, ...], ...]:
    """Return the ids of the nodes by layers: each node in the first layer after all that it depends
    on.
    """
    waits = {node.id: len(node.depends_on) for node in nodes}
    freed_by: dict[NodeId, list[NodeId]] = {}
    for node in nodes:
        for needed in node.depends_on:
            freed_by.setdefault(needed, []).append(node.id)
    layers, free = [], [node_id for node_id, number in waits.items() if number == 0]
    while free:
        layers.append(tuple(free))
        freed: list[NodeId] = []
        for node_id in (dependent for done in free for dependent in freed_by.get(done, ())):
            waits[node_id] -= 1
            if waits[node_id] == 0:
                freed.append(node_id)
        free = freed
    stuck = [node_id for node_id, number in waits.items() if number > 0]
    if stuck:
        raise ValueError(f"Cycle detected among nodes: {', '.join(stuck)}")
    return tuple(layers)
