"""The states of a graph's nodes while a run plays it, read from its calls and its stream.

A run names its calls after the nodes, with the round of every loop around them: ``plan``,
``refine#3``, ``group#2/tick``. It publishes each node that ended, with the number of its round.
Nodes of a group have the state of its newest round; earlier rounds are over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pgflow.declare.graph import Graph, Group, Node

Standing = Literal["waiting", "running", "asks", "completed", "failed", "skipped", "cut off"]
"""Standing of a node: it has not begun, is at work, waits for a person, or has ended. One that was
at work when its run ended is cut off.
"""

_ROUND = re.compile(r"#(\d{1,9})")
_TOLD: dict[str, Standing] = {
    "completed": "completed", "failed": "failed", "skipped": "skipped",
}  # fmt: skip


@dataclass
class Seen:
    """A node as a run shows it.

    Attributes:
        node: The node.
        depth: Number of groups around it.
        standing: Its standing.
        round: Number of its round, or of its group's; None if it is in none.
        why: Reason of its end, if the run gives one.
    """

    node: Node
    depth: int
    standing: Standing = "waiting"
    round: int | None = None
    why: str = ""
    inner: dict[str, Seen] = field(default_factory=dict)


def stand(
    graph: Graph,
    begun: Iterable[str],
    asks: Iterable[str],
    events: Iterable[Any],
    *,
    has_ended: bool,
) -> list[Seen]:
    """Return the state of each node in the order of the file, those of a group after it.

    Args:
        graph: The graph.
        begun: Names of the calls that the run has begun.
        asks: Names of the gates that wait for an answer.
        events: Values that the run has published for nodes that ended, in that order.
        has_ended: True if the run has ended.
    """
    nodes = _seen(graph.nodes, 0)
    for name in begun:
        _begin(nodes, name, "running")
    for event in events:
        if isinstance(event, dict):
            _end(nodes, event)
    for name in asks:
        _begin(nodes, name, "asks")
    found = list(_every(nodes))
    for one in found:
        if has_ended and one.standing in ("running", "asks"):
            one.standing = "cut off"
    return found


def _seen(nodes: Iterable[Node], depth: int) -> dict[str, Seen]:
    return {
        node.id: Seen(
            node,
            depth,
            inner=_seen(node.body.nodes, depth + 1) if isinstance(node.body, Group) else {},
        )
        for node in nodes
    }


def _every(nodes: Mapping[str, Seen]) -> Iterator[Seen]:
    for one in nodes.values():
        yield one
        yield from _every(one.inner)


def _begin(nodes: Mapping[str, Seen], name: str, standing: Standing) -> None:
    """Record that a call of this name was begun. Ignore a name of none of the nodes."""
    found = max((id_ for id_ in nodes if _is_of(name, id_)), key=len, default=None)
    if found is None:
        return
    one, rest = nodes[found], name[len(found) :]
    one.standing = standing
    if number := _ROUND.match(rest):
        _go_to(one, int(number[1]))
        rest = rest[number.end() :]
        if rest.startswith("/") and one.round == int(number[1]):
            _begin(one.inner, rest[1:], standing)


def _is_of(name: str, node_id: str) -> bool:
    return name.startswith(node_id) and name[len(node_id) : len(node_id) + 1] in ("", *"#~:")


def _go_to(one: Seen, number: int) -> None:
    """Take note of a round of a loop or a group, in which its nodes begin anew."""
    if one.round is not None and one.round >= number:
        return
    one.round = number
    for inner in _every(one.inner):
        inner.standing, inner.round, inner.why = "waiting", None, ""


def _end(nodes: Mapping[str, Seen], event: dict[str, Any]) -> None:
    """Record the end of a node that the run has published."""
    standing, number = _TOLD.get(str(event.get("state"))), event.get("iteration")
    if standing is None:
        return
    places = [(nodes, None)] if number is None else list(_groups(nodes))
    for inner, group in places:
        one = inner.get(str(event.get("id")))
        if one is not None and (group is None or group.round in (None, number)):
            one.standing, one.why = standing, str(event.get("reason") or "")


def _groups(nodes: Mapping[str, Seen]) -> Iterator[tuple[Mapping[str, Seen], Seen]]:
    for one in nodes.values():
        if one.inner:
            yield one.inner, one
            yield from _groups(one.inner)
