"""The sketch of a graph, before anything has a place: its nodes, the edges between them, and a few
words on each.

Nodes inside a group have ids of their own, which may be those of nodes outside; here every node has
a number instead. Words are the originals': ``one_success``, ``until COMPLETE``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pgflow.declare.graph import (
    Approval,
    Call,
    Cancel,
    Command,
    Gate,
    Graph,
    Group,
    Loop,
    Node,
    Retry,
    Script,
    Until,
    Wait,
)
from pgflow.texts import visible

TIMES = "\N{MULTIPLICATION SIGN}"

_TEXT_LIMIT = 300
"""No line of a picture shows more characters."""


@dataclass(frozen=True, slots=True)
class Item:
    """A node to draw. ``parent`` is the number of the group it is in."""

    number: int
    parent: int | None
    mode: str
    name: str
    title: str
    about: str
    condition: str
    marks: tuple[str, ...]
    is_group: bool


@dataclass(frozen=True, slots=True)
class Link:
    """An edge to draw between two numbers."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Sketch:
    """All of it."""

    items: tuple[Item, ...]
    links: tuple[Link, ...]


def sketch(graph: Graph) -> Sketch:
    """Return the sketch of a graph."""
    items, links = _Collector(graph).collect()
    return Sketch(tuple(items), tuple(links))


def _line(text: str) -> str:
    """Return a text on one line, cut where no picture shows more of it."""
    line = visible(text[: 4 * _TEXT_LIMIT])
    return line if len(line) <= _TEXT_LIMIT else line[: _TEXT_LIMIT - 1].rstrip() + "…"


class _Collector:
    """Numbers the nodes, those inside groups too, and resolves the dependencies within each
    level.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._items: list[Item] = []
        self._links: list[Link] = []

    def collect(self) -> tuple[list[Item], list[Link]]:
        self._level(self._graph.nodes, None)
        return self._items, self._links

    def _level(self, nodes: tuple[Node, ...], parent: int | None) -> None:
        numbers: dict[str, int] = {}
        for node in nodes:
            numbers[node.id] = len(self._items)
            is_returned = parent is None and node.id == self._graph.returns
            self._items.append(_item(node, len(self._items), parent, is_returned=is_returned))
            if isinstance(node.body, Group):
                self._level(node.body.nodes, numbers[node.id])
        for node in nodes:
            self._links.extend(_links(node, numbers))


def _links(node: Node, numbers: dict[str, int]) -> Iterator[Link]:
    for name in dict.fromkeys(node.depends_on):
        if name in numbers:
            yield Link(numbers[name], numbers[node.id])


def _item(node: Node, number: int, parent: int | None, *, is_returned: bool) -> Item:
    title = _line(node.title)
    marks = (*_marks(node), *(["returned"] if is_returned else []))
    return Item(
        number=number,
        parent=parent,
        mode=node.body.mode,
        name=_line(node.id),
        title="" if title == node.id else title,
        about=_line(_about(node)),
        condition=_condition(node),
        marks=marks,
        is_group=isinstance(node.body, Group) and bool(node.body.nodes),
    )


def _condition(node: Node) -> str:
    """Return the condition of a node as text, empty if it has none; it omits the name of the only
    node that comes before.
    """
    if node.when is None:
        return ""
    text = node.when.text
    if len(set(node.depends_on)) == 1:
        text = text.replace(f"${node.depends_on[0]}.output", "output")
    return _line(text)


def _about(node: Node) -> str:
    """Return a line on the node's mode: its name or text, or nothing."""
    match node.body:
        case Command(name=name) | Call(name=name):
            return name
        case Loop(command=str(name)):
            return name
        case Script(inline=False, script=name):
            return name
        case Cancel(reason=text) | Approval(message=text):
            return text
        case Wait(until=until, event=event, attention=attention):
            return until or event or attention or ""
        case _:
            return ""


# The marks ----------------------------------------------------------------------------------------


def _marks(node: Node) -> Iterator[str]:
    """Yield the marks of a node in the order of its life: its start, approvals, work and end."""
    if node.trigger_rule != "all_success":
        yield node.trigger_rule
    yield from _gate_marks(node)
    yield from _mode_marks(node)
    for effect in node.effects:
        yield _line(f"effect {effect.system}" + (f", {effect.risk}" if effect.risk else ""))
    for compensation in node.compensations:
        yield _line(f"undo {compensation.name}")
    yield from _bound_marks(node)


def _gate_marks(node: Node) -> Iterator[str]:
    for text, count in Counter(_gate_words(gate) for gate in node.gates).items():
        yield text if count == 1 else f"{count} {TIMES} {text}"


def _gate_words(gate: Gate) -> str:
    match gate.kind:
        case "request":
            return "only on request"
        case "interrupt":
            return f"interrupt {gate.at}"
        case "checkpoint":
            return "checkpoint"
        case "review":
            return f"review {gate.at}"
        case "input":
            return _line(f"asks for {gate.name}")
        case "signal":
            return _line(f"waits for {gate.name}")
        case "question":
            return "may ask"


def _mode_marks(node: Node) -> Iterator[str]:
    body = node.body
    if isinstance(body, Loop | Group):
        yield _line(_until_words(body.until))
        if body.interactive:
            yield "asks after each turn"
    if isinstance(body, Approval):
        if body.decisions:
            yield _line(" / ".join(decision.id for decision in body.decisions))
        if body.on_reject:
            yield f"rework ≤ {body.on_reject.max_attempts} {TIMES}"
    if isinstance(body, Wait) and (limit := body.duration_ms or body.deadline_ms):
        yield f"{'≤ ' if body.event else ''}{_duration(limit)}"
    if isinstance(body, Call) and body.fan_out:
        yield _line(f"for each of {body.fan_out.items}")
        yield f"≤ {body.fan_out.max_parallel} at once"


def _until_words(until: Until) -> str:
    ends = [until.signal, until.field and f"field {until.field}", until.bash and "a script says so"]
    return f"≤ {until.max_iterations} {TIMES} until " + " or ".join(end for end in ends if end)


def _bound_marks(node: Node) -> Iterator[str]:
    if node.retry:
        yield _retry_words(node.retry)
    if node.pause is not None and node.pause.until is not None:
        yield _line(f"after {node.pause.until}")
    if node.pause is not None and node.pause.deadline_ms is not None:
        yield f"messages ≤ {_duration(node.pause.deadline_ms)}"
    if node.timeout_ms is not None:
        yield f"timeout {_duration(node.timeout_ms)}"
    if node.budget and node.budget.max_usd is not None:
        yield f"≤ ${node.budget.max_usd:g}"
    if node.checks:
        yield f"{len(node.checks)} check" + ("s" if len(node.checks) > 1 else "")
    if node.always_run:
        yield "always run"


def _retry_words(retry: Retry) -> str:
    return f"retry {retry.max_retries} {TIMES}" + (", any error" if retry.on_error == "all" else "")


def _duration(milliseconds: float) -> str:
    for size, unit in ((3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if milliseconds >= size:
            return f"{milliseconds / size:.3g} {unit}"
    return f"{milliseconds:g} ms"
