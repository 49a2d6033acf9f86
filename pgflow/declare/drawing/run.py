"""The graph of a run, as the console shows it: the states of its nodes.

The graph is that with which the run was started, from its input, so later edits of the file do not
change it.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from pgflow import inspect
from pgflow.declare.drawing.states import Seen, stand
from pgflow.declare.graph import Graph
from pgflow.declare.play.progress import STREAM
from pgflow.inspect import NodeState, Progress


class RunDrawer:
    """Reads the graph of runs of declared workflows, for ``pgflow.web.asgi(graphs=...)``.

    Attributes:
        stream: Name of the stream to which such a run publishes its nodes.
    """

    stream = STREAM

    def __call__(
        self, given: Any, progress: Progress, *, has_ended: bool
    ) -> list[NodeState] | None:
        """Return the nodes of a run's graph in the order of the file, those of a group after it;
        None if its input has no graph that this version can read.

        Args:
            given: Input of the run, in clear.
            progress: Names of the calls that it has begun, and the values that it has published so
                far.
            has_ended: True if it has ended.
        """
        frozen = given.get("frozen") if isinstance(given, dict) else None
        try:
            graph = Graph.model_validate(
                inspect.readable(frozen["graph"]) if isinstance(frozen, dict) else None
            )
        except (ValidationError, KeyError):
            return None
        seen = stand(graph, progress.begun, progress.asks, progress.told, has_ended=has_ended)
        return list(map(_state_of, seen))


def _state_of(one: Seen) -> NodeState:
    node = one.node
    return NodeState(
        node.id, node.body.mode, node.depends_on, one.depth, one.standing, one.round, one.why
    )


GRAPHS: Final = {"pgflow.declared": RunDrawer()}
"""Drawers of the console by workflow: ``pgflow.web.asgi(app, auth=..., graphs=GRAPHS)``."""
