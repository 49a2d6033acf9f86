"""Rules for the nodes of a workflow together: ids, edges, and that every reference reaches
something that has run.

Everything wrong is found, in the order in which the original looks: it stops at its first finding,
so that is our first too. Nodes that were wrong by themselves are not nodes here, but their ids are
known, lest they be called unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from pgflow.declare.dag.drafts import Draft
from pgflow.declare.dag.surfaces import texts
from pgflow.declare.graph import Atom
from pgflow.declare.text.conditions import parse_condition
from pgflow.declare.text.spelling import similar
from pgflow.declare.text.templates import references
from pgflow.declare.text.yamlfile import Steps

_WHEN = re.compile(r"\$(LOOP_PREV\.)?([a-zA-Z_][a-zA-Z0-9_-]*)\.([a-zA-Z_][a-zA-Z0-9_]*)")
_INPUTS = "INPUTS"
_COMPOSED: Final = (
    "In a composed workflow, pass caller data through declared 'inputs:' and caller 'with:' "
    "instead of referencing a caller node directly"
)
_GROUP_SCOPE: Final = "Expected a node in the loop_group body or current/enclosing DAG scope"
_GROUP_PROSE: Final = (
    "A 'loop_group:' node's output is the last iteration's raw text — unlike a 'prompt:' "
    "node, declaring 'output_format' does not replace it with the JSON document — so compute "
    "the decision in a 'bash:'/'script:' node (or an 'until_bash' check) and gate on that "
    "node's output instead"
)


class Finding(NamedTuple):
    """Something wrong with the nodes together: where, what, what to do about it, and the piece of
    text that is meant.
    """

    path: Steps
    message: str
    hint: str = ""
    needle: str = ""


@dataclass
class Scope:
    """The nodes of one list, and what is around them: the nodes that a group's nodes see, and ids
    of nodes that are broken.
    """

    nodes: Sequence[Draft]
    around: Mapping[str, Draft] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    inside: bool = False
    guesses_left: int = 20

    @cached_property
    def by_id(self) -> dict[str, Draft]:
        """The nodes by their ids."""
        return {node.id: node for node in reversed(self.nodes)}

    def sees(self, node_id: str) -> bool:
        """Return True if a reference to that id reaches a node."""
        return node_id in self.by_id or node_id in self.around or node_id in self.broken

    def producer(self, node_id: str) -> Draft | None:
        """Return the node of that id that a reference reaches."""
        return self.by_id.get(node_id) or self.around.get(node_id)

    @cached_property
    def _order(self) -> list[Draft]:
        """The nodes so that each comes after those that it depends on;
        those of a cycle are missing.
        """
        waiting = {node.id: len(node.depends_on) for node in self.nodes}
        dependents: dict[str, list[Draft]] = {}
        for node in self.nodes:
            for before in node.depends_on:
                dependents.setdefault(before, []).append(node)
        order = [node for node in self.nodes if not node.depends_on]
        for node in order:
            for after in dependents.get(node.id, ()):
                waiting[after.id] -= 1
                if not waiting[after.id]:
                    order.append(after)
        return order

    def in_cycles(self) -> list[Draft]:
        """Return the nodes in a cycle, and those that wait for one."""
        ordered = {node.id for node in self._order}
        return [node for node in self.nodes if node.id not in ordered]

    @cached_property
    def _upstream(self) -> dict[str, int]:
        """For each node the set of those before it, as bits: a chain of thousands must not take
        their square in steps.
        """
        before: dict[str, int] = {}
        for node in self._order:
            bits = 0
            for near in node.depends_on:
                bits |= self._bit.get(near, 0) | before.get(near, 0)
            before[node.id] = bits
        return before

    @cached_property
    def _bit(self) -> dict[str, int]:
        return {node.id: 1 << index for index, node in enumerate(self._order)}

    def is_upstream(self, node_id: str, of: Draft) -> bool:
        """Return True if a node is done for certain when another one begins."""
        return bool(self._upstream.get(of.id, 0) & self._bit.get(node_id, 0))


def check(scope: Scope) -> Iterator[Finding]:
    """Everything that is wrong with the nodes together, and with those inside groups.

    Args:
        scope: The nodes, and what is around them.

    Yields:
        What is wrong, the original's first finding first.
    """
    ids = list(_about_ids(scope))
    edges = list(_about_edges(scope))
    yield from ids
    yield from edges
    if not ids and not edges and not scope.broken and (cycle := scope.in_cycles()):
        names = ", ".join(node.id for node in cycle)
        yield Finding((*cycle[0].path, "depends_on"), f"Cycle detected among nodes: {names}")
    for node in scope.nodes:
        yield from _about_references(node, scope)
        yield from _about_condition(node, scope)
    for rule in (_about_sessions, _about_items, _about_arguments, _about_groups):
        for node in scope.nodes:
            yield from rule(node, scope)


def _about_ids(scope: Scope) -> Iterator[Finding]:
    seen: set[str] = set()
    for node in scope.nodes:
        where = (*node.path, "id")
        if node.id in seen:
            yield Finding(where, f"Duplicate node id: '{node.id}'")
        elif node.id in scope.around:
            yield Finding(where, f"Node id '{node.id}' shadows a node id in the enclosing DAG")
        seen.add(node.id)


def _about_edges(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes:
        for index, before in enumerate(node.depends_on):
            if before not in scope.by_id and before not in scope.broken:
                where = (*node.path, "depends_on", index)
                yield Finding(
                    where,
                    f"Node '{node.id}' depends_on unknown node '{before}'",
                    _meant(before, scope),
                )


def _meant(node_id: str, scope: Scope) -> str:
    """Return a question that names the ids which a wrong one may have meant, or nothing."""
    scope.guesses_left -= 1
    if scope.guesses_left < 0:
        return ""
    names = [f"'{name}'" for name in similar(node_id, [*scope.by_id, *scope.around])]
    return f"Did you mean {' or '.join(names)}?" if names else ""


def _about_references(node: Draft, scope: Scope) -> Iterator[Finding]:
    """Yield references in texts to unknown nodes. `$INPUTS` does not name a node, even where a
    field is named output.
    """
    inner = {body.id for body in node.body}
    for path, text in texts(node):
        reported: set[str] = set()
        of_group = path == ("loop_group", "until_bash")
        for reference in references(text):
            name = reference.node_id
            if (
                name in reported
                or name == _INPUTS
                or scope.sees(name)
                or (of_group and name in inner)
            ):
                continue
            reported.add(name)
            message = (
                f"Node '{node.id}' field '{'.'.join(map(str, path))}' references "
                f"unknown node '${name}.output'."
            )
            yield Finding(
                (*node.path, *path),
                f"{message} {_GROUP_SCOPE if of_group else _COMPOSED}",
                _meant(name, scope),
                reference.text,
            )


def _about_condition(node: Draft, scope: Scope) -> Iterator[Finding]:
    text = node.fields.get("when")
    if text is None:
        return
    where = (*node.path, "when")
    for found in _WHEN.finditer(text):
        before, name = found[1], found[2]
        known = scope.inside and name in scope.by_id if before else scope.sees(name)
        if name != _INPUTS and not known:
            said = f"Node '{node.id}' field 'when' references unknown node '{found[0]}'."
            yield Finding(where, f"{said} {_COMPOSED}", _meant(name, scope), found[0])
    for part in (part for clause in parse_condition(text).any_of for part in clause):
        if isinstance(part, Atom) and (message := _about_prose(node, part, scope)):
            yield Finding(where, message)


def _about_prose(node: Draft, atom: Atom, scope: Scope) -> str | None:
    """Return a warning if an agent's whole answer is compared with a literal: it equals one only by
    luck, and otherwise skips the node silently.
    """
    if not atom.reference.endswith(".output") or atom.reference == "$INPUTS.output":
        return None
    producer = scope.producer(atom.reference[1 : -len(".output")])
    if producer is None or not (producer.takes_turn or producer.mode == "loop_group"):
        return None
    if producer.mode != "loop_group" and "output_format" in producer.fields:
        return None
    problem = (
        f"Node '{node.id}' field 'when' compares the whole output of AI node '{producer.id}' to a "
        f"literal ('{atom.literal}'). That "
        f"output is free-form prose, so the comparison silently fails and '{node.id}' is skipped."
    )
    if producer.mode == "loop_group":
        return f"{problem} {_GROUP_PROSE}"
    example = f"\"${producer.id}.output.status {atom.operator} '{atom.literal}'\""
    return (
        f"{problem} Declare 'output_format' on '{producer.id}' and compare a field (e.g. "
        f"{example}), or produce the value from a 'bash:'/'script:' node"
    )


def _about_sessions(node: Draft, scope: Scope) -> Iterator[Finding]:
    context = node.fields.get("context")
    if not isinstance(context, dict):
        return
    where, source = (*node.path, "context", "resume"), context["resume"]
    if scope.inside:
        yield Finding(
            where,
            f"Node '{node.id}' uses context.resume inside a loop_group body, "
            "which is not supported",
        )
    elif source not in scope.by_id:
        if source not in scope.broken:
            yield Finding(
                where,
                f"Node '{node.id}' context.resume references unknown node '{source}'",
                _meant(source, scope),
            )
    elif not scope.by_id[source].takes_turn:
        what = "is not a session-producing command, prompt, or loop node"
        yield Finding(where, f"Node '{node.id}' context.resume source '{source}' {what}")
    elif not scope.is_upstream(source, node):
        yield Finding(
            where,
            f"Node '{node.id}' context.resume source '{source}' is not an upstream dependency",
        )


def _about_items(node: Draft, scope: Scope) -> Iterator[Finding]:
    fan_out = node.fields.get("fan_out")
    reference = next(references(fan_out["items"]), None) if fan_out else None
    if (
        reference is not None
        and reference.node_id in scope.by_id
        and not scope.is_upstream(reference.node_id, node)
    ):
        producer = reference.node_id
        yield Finding(
            (*node.path, "fan_out", "items"),
            f"Node '{node.id}' fan_out.items references '${producer}.output', which is not an "
            f"upstream dependency — add '{producer}' "
            f"to '{node.id}'.depends_on so its item array is produced first",
        )


def _about_arguments(node: Draft, scope: Scope) -> Iterator[Finding]:
    """Yield the arguments bound to outputs that are not there for certain when the node begins."""
    if node.mode not in ("command", "script"):
        return
    for name, value in node.fields.get("with", {}).items():
        text = value.get("from") if isinstance(value, dict) else value
        for reference in references(text) if isinstance(text, str) else ():
            producer = reference.node_id
            if producer not in scope.by_id or scope.is_upstream(producer, node):
                continue
            yield Finding(
                (*node.path, "with", name),
                f"Node '{node.id}' binding 'with.{name}' references '${producer}.output', which is "
                "not an upstream dependency — add "
                f"'{producer}' to '{node.id}'.depends_on so its value is produced first",
            )


def _about_groups(node: Draft, scope: Scope) -> Iterator[Finding]:
    if node.mode != "loop_group":
        return
    prefix = f"loop_group '{node.id}' body: "
    called = next((inner for inner in node.body if inner.mode == "workflow"), None)
    if called is not None:
        yield Finding(
            (*called.path, "workflow"),
            f"{prefix}'workflow' (sub-run) is not supported inside a loop_group body",
        )
    around = {**scope.around, **scope.by_id}
    for finding in check(Scope(node.body, around, scope.broken, inside=True)):
        yield finding._replace(message=prefix + finding.message)
