"""The graph of a run, as the console shows it: a picture coloured by the states of its nodes, and
the same in words.

The graph is that with which the run was started, from its input, so later edits of the file do not
change it. A graph is laid out once in a process. Without the library for that, or if it is too
large for a picture, the words remain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from pgflow.declare.drawing.states import Seen, stand
from pgflow.declare.drawing.svg import Drawing, lay_out, paint
from pgflow.declare.graph import Graph
from pgflow.declare.play.progress import STREAM
from pgflow.errors import InvalidArgument
from pgflow.inspect import Progress

MOST_DRAWN = 120
"""Nodes of a graph that is drawn for a page; the places of more take longer than a page may."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node in words.

    Attributes:
        name: Its id.
        mode: Kind of its work.
        depth: Number of groups around it.
        standing: ``waiting``, ``running``, ``asks``, ``completed``, ``failed``, ``skipped`` or
            ``cut off``.
        round: Number of its round; None if it is in none.
        why: Reason of its end; empty if the run gives none.
    """

    name: str
    mode: str
    depth: int
    standing: str
    round: int | None
    why: str


@dataclass(frozen=True, slots=True)
class RunDrawing:
    """The graph of a run.

    Attributes:
        svg: The picture, as an element of a page with the console's style; empty if there is none.
        nodes: Its nodes in words, in the order of the file.
    """

    svg: str
    nodes: tuple[DrawnNode, ...]


class RunDrawer:
    """Draws the graph of runs of declared workflows, for ``pgflow.web.asgi(graphs=...)``.

    Attributes:
        stream: Name of the stream to which such a run publishes its nodes.
    """

    stream = STREAM

    def __call__(self, given: Any, progress: Progress, *, has_ended: bool) -> RunDrawing | None:
        """Return the graph of a run; None if its input has none that this version can read.

        Args:
            given: Input of the run, in clear.
            progress: Names of the calls that it has begun, and the values that it has published so
                far.
            has_ended: True if it has ended.
        """
        frozen = given.get("frozen") if isinstance(given, dict) else None
        try:
            graph = Graph.model_validate(frozen["graph"] if isinstance(frozen, dict) else None)
        except (ValidationError, KeyError):
            return None
        seen = stand(graph, progress.begun, progress.asks, progress.told, has_ended=has_ended)
        return RunDrawing(_picture(graph, seen), tuple(map(_in_words, seen)))


def _picture(graph: Graph, seen: list[Seen]) -> str:
    if not 0 < len(seen) <= MOST_DRAWN:
        return ""
    try:
        drawing = _laid_out(graph.model_dump_json())
    except (ImportError, InvalidArgument):
        return ""
    return paint(drawing, [one.standing for one in seen])


@lru_cache(maxsize=32)
def _laid_out(text: str) -> Drawing:
    return lay_out(Graph.model_validate_json(text), has_states=True)


def _in_words(one: Seen) -> DrawnNode:
    node = one.node
    return DrawnNode(node.id, node.body.mode, one.depth, one.standing, one.round, one.why)
