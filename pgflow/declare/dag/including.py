"""Includes: the nodes of one workflow in the place of a node of another, when the files are read.

``include: review`` under the id ``check`` puts the nodes of the workflow named review there, as
``check__...``. What comes before the include comes before the first of them, what comes after it
waits for the last of them, and ``$check.output`` is the output of the one that review returns.
Nothing below knows that there was an include. One with ``fan_out`` stays a node, whose block runs
once for each item; what it includes is checked here all the same.

The names inside are the included file's own: its references are renamed first, and only then are
the caller's values put in the place of ``$INPUTS``, so that a caller's ``$gather.output`` never
becomes that of an included node called gather.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from pgflow.declare.dag.drafts import Draft
from pgflow.declare.dag.filling import Filling, NothingFound, Room, WrongInclude, given_inputs
from pgflow.declare.dag.loading import Loaded
from pgflow.declare.dag.noderules import environment_name
from pgflow.declare.dag.structure import Scope, check
from pgflow.declare.dag.surfaces import changed
from pgflow.declare.dag.workflow import wrong_outcome
from pgflow.declare.text.javascript import trim
from pgflow.declare.text.scripts import is_inline
from pgflow.declare.text.templates import references
from pgflow.declare.text.yamlfile import Marked

MAX_DEPTH: Final = 3
"""Most includes inside one another."""

MAX_NODES: Final = 10_000
"""Most nodes of a workflow with everything that it includes."""

_OUTPUT = re.compile(r"\$(?P<previous>LOOP_PREV\.)?(?P<id>[a-zA-Z_][a-zA-Z0-9_-]*)\.output")
_WHEN = re.compile(r"\$([a-zA-Z_][a-zA-Z0-9_-]*)(?=\.[a-zA-Z_])")
TRAVELS: Final = {
    "provider": "provider",
    "model": "model",
    "effort": "effort",
    "thinking": "thinking",
    "fallbackModel": "fallbackModel",
    "betas": "betas",
    "sandbox": "sandbox",
    "persist_sessions": "persist_session",
}
"""Options of a workflow for all its agents, which go with its nodes,
and the name that each has there.
"""


class Shelf(Protocol):
    """Source of other workflows and commands, by their names."""

    def workflow(self, name: str) -> Loaded | None:
        """Return the workflow of that name, None if there is none or more than one."""

    def command(self, name: str, file: str) -> str | None:
        """Return the text of a command that a file uses, None if it is not there."""


@dataclass(slots=True)
class Whole:
    """A workflow with everything that it includes in its place."""

    nodes: tuple[Draft, ...]
    returns: str | None
    requires: list[str]
    documents: dict[str, Marked]


def includes_anything(nodes: tuple[Draft, ...]) -> bool:
    """Return True if there is an include among the nodes."""
    return any(node.mode == "include" or includes_anything(node.body) for node in nodes)


def expand(loaded: Loaded, shelf: Shelf) -> Whole:
    """Put the nodes of what is included in the place of the includes.

    Args:
        loaded: A workflow that is right by itself.
        shelf: Shelf on which the included files are found.

    Raises:
        NothingFound: A workflow that it includes is not on the shelf.
        WrongInclude: It cannot be expanded.
    """
    whole = _Expansion(shelf).expand(loaded, ())
    _check_whole(loaded, whole)
    return whole


def _check_whole(loaded: Loaded, whole: Whole) -> None:
    finding = next(check(Scope(whole.nodes)), None)
    if finding is not None:
        raise WrongInclude(finding.message)
    result = next((node for node in whole.nodes if node.id == whole.returns), None)
    outcome = loaded.options.outcome_field
    if outcome is not None and (message := wrong_outcome(outcome, result)):
        raise WrongInclude(message, ("outcome_field",))


@dataclass(slots=True)
class _Block:
    """The nodes that an include became, the last of them,
    and the one whose output is the include's.
    """

    nodes: list[Draft]
    sinks: list[str]
    result: str


@dataclass(slots=True)
class _Expansion:
    """One walk through a workflow and everything that it includes."""

    shelf: Shelf
    count: int = 0
    room: Room = field(default_factory=Room)

    def expand(self, loaded: Loaded, above: tuple[str, ...]) -> Whole:
        """Return a workflow, with the names of those that include it."""
        if loaded.name in above:
            raise WrongInclude(f"include cycle detected: {' -> '.join((*above, loaded.name))}")
        if len(above) > MAX_DEPTH:
            names = " -> ".join((*above, loaded.name))
            raise WrongInclude(f"include depth limit exceeded (max {MAX_DEPTH} levels): {names}")
        options = loaded.options.values
        documents = {loaded.file: loaded.document} if loaded.document is not None else {}
        whole = Whole((), None, list(options.get("requires", [])), documents)
        own = tuple(_scoped(node, options) for node in loaded.nodes)
        whole.nodes, results = self._expand_list(own, (*above, loaded.name), whole)
        returns = loaded.options.returns
        whole.returns = results.get(returns, returns) if returns is not None else None
        return whole

    def _expand_list(
        self, nodes: tuple[Draft, ...], names: tuple[str, ...], whole: Whole
    ) -> tuple[tuple[Draft, ...], dict[str, str]]:
        """Return the nodes of one list; and for each include in it, the node whose output is its
        own.
        """
        expanded: list[Draft] = []
        blocks: dict[str, _Block] = {}
        for node in nodes:
            self._count(node)
            if node.mode == "include" and "fan_out" in node.fields:
                self._check_each(node, names, whole)
                expanded.append(node)
            elif node.mode == "include":
                block = blocks[node.id] = self._block(node, names, whole)
                expanded += block.nodes
            elif node.body:
                body, results = self._expand_list(node.body, names, whole)
                own = changed(node, lambda text, known=results: _rename(text, known), inside=False)  # type: ignore[misc]
                expanded.append(replace(own, body=body))
            else:
                expanded.append(node)
        results = {name: block.result for name, block in blocks.items()}
        sinks = {name: block.sinks for name, block in blocks.items()}
        return tuple(_after(_renamed(node, results), sinks) for node in expanded), results

    def _count(self, node: Draft) -> None:
        self.count += 1
        if self.count > MAX_NODES:
            raise WrongInclude(
                f"More than {MAX_NODES:,} nodes with everything that is included", node.path
            )

    def _block(self, node: Draft, names: tuple[str, ...], whole: Whole) -> _Block:
        child = self._child(node, names)
        with _told_of(node):
            return _inlined(
                node, child, self._expand_child(child, names, whole), self.shelf, self.room
            )

    def _check_each(self, node: Draft, names: tuple[str, ...], whole: Whole) -> None:
        """Check a block that runs once for each item: it takes the item, and pauses nowhere."""
        child, item = self._child(node, names), node.fields["fan_out"]["as"]
        with _told_of(node):
            inner = self._expand_child(child, names, whole)
            given_inputs(
                node.with_fields(**{"with": node.fields.get("with", {}) | {item: None}}), child
            )
            paused = next(_pauses(inner.nodes), child.name if child.options.interactive else None)
            if paused is not None:
                raise WrongInclude(
                    f"included block '{child.name}' can pause at '{paused}', and a block that "
                    "runs for each item cannot"
                )

    def _expand_child(self, child: Loaded, names: tuple[str, ...], whole: Whole) -> Whole:
        inner = self.expand(child, names)
        whole.documents |= inner.documents
        whole.requires += inner.requires
        return inner

    def _child(self, node: Draft, names: tuple[str, ...]) -> Loaded:
        target = node.fields["include"]
        child = self.shelf.workflow(target)
        message = f"Node '{node.id}': include target '{target}' not found"
        if child is None:
            looked = (
                "It must be the name of a workflow in the same tree of workflows, in "
                "~/.archon/workflows or in a folder that --path names."
            )
            raise NothingFound(message, node.path, looked)
        if not child.ok and child.name not in names:
            raise WrongInclude(message, node.path, f"{child.file} has errors of its own.")
        return child


@contextmanager
def _told_of(node: Draft) -> Iterator[None]:
    """Name the include in an error of what it includes."""
    try:
        yield
    except WrongInclude as error:
        prefix = f"Node '{node.id}': "
        message = error.message if error.message.startswith(prefix) else prefix + error.message
        raise type(error)(message, node.path, error.hint) from None


def _pauses(nodes: tuple[Draft, ...]) -> Iterator[str]:
    """Yield the nodes at which a run waits for a person, a time or an event."""
    for node in nodes:
        loop = node.fields.get(node.mode) if node.mode in ("loop", "loop_group") else None
        if node.mode in ("approval", "wait") or (loop or {}).get("interactive"):
            yield node.id
        yield from _pauses(node.body)


def _scoped(node: Draft, options: dict[str, Any], *, inside: bool = False) -> Draft:
    """Return a node with the settings of its own file for all turns of agents, so that those of
    another file do not apply to it.
    """
    fields = dict(node.fields)
    if node.mode in ("command", "prompt", "loop", "loop_group"):
        for name, own in TRAVELS.items():
            if (
                name in options
                and own not in fields
                and _reaches(name, node, options, inside=inside)
            ):
                fields[own] = options[name]
    return replace(
        node, fields=fields, body=tuple(_scoped(inner, options, inside=True) for inner in node.body)
    )


def _reaches(name: str, node: Draft, options: dict[str, Any], *, inside: bool) -> bool:
    if name == "model":
        provider = node.fields.get("provider")
        return provider is None or provider == options.get("provider")
    return name != "persist_sessions" or (not inside and node.mode in ("command", "prompt"))


def _inlined(include: Draft, child: Loaded, whole: Whole, shelf: Shelf, room: Room) -> _Block:
    """Return the nodes of a workflow as nodes of another."""
    nodes, prefix = whole.nodes, f"{include.id}__"
    own = {node.id: prefix + node.id for node in nodes}
    before = {name for node in nodes for name in node.depends_on}
    sinks = [own[node.id] for node in nodes if node.id not in before]
    inputs = given_inputs(include, child)
    filling = Filling(include, inputs, room)
    inlined = []
    for node in nodes:
        body = _with_commands(node, include, child, shelf, set(own))
        filled = filling.fill(_renamed(body, own, previous=True))
        inlined.append(
            _placed(
                replace(filled, id=own[node.id], fields=filled.fields | {"id": own[node.id]}),
                node,
                include,
                own,
            )
        )
    if filling.missing:
        names = ", ".join(f"$INPUTS.{name}" for name in sorted(filling.missing))
        many = len(filling.missing) > 1
        message = (
            f"references missing input{'s' * many} {names}. "
            f"Pass {'them' if many else 'it'} through 'with:'."
        )
        raise WrongInclude(
            f"Node '{include.id}': included block '{include.fields['include']}' {message}"
        )
    result = own.get(whole.returns or "", sinks[0] if sinks else "")
    return _Block([_stamped(node, inputs) for node in inlined], sinks, result)


def _rename(text: str, names: dict[str, str], *, previous: bool = False) -> str:
    def renamed(found: re.Match[str]) -> str:
        if found["previous"] and not previous:
            return found.group()
        return f"${found['previous'] or ''}{names.get(found['id'], found['id'])}.output"

    return _OUTPUT.sub(renamed, text)


def _renamed(node: Draft, names: dict[str, str], *, previous: bool = False) -> Draft:
    """Return a node whose references, and those of the nodes inside it, follow the new names."""
    if not names:
        return node
    new = changed(node, lambda text: _rename(text, names, previous=previous), inside=False)
    fields = dict(new.fields)
    if "when" in fields:
        fields["when"] = _WHEN.sub(
            lambda found: f"${names.get(found[1], found[1])}", fields["when"]
        )
    if isinstance(fields.get("context"), dict):
        source = fields["context"]["resume"]
        fields["context"] = {"resume": names.get(source, source)}
    inputs = {
        name: _rename(value, names) if isinstance(value, str) else value
        for name, value in node.inputs.items()
    }
    body = tuple(_renamed(inner, names, previous=previous) for inner in node.body)
    return replace(new, fields=fields, body=body, inputs=inputs)


def _after(node: Draft, sinks: dict[str, list[str]]) -> Draft:
    """Return a node that waits for the last nodes of the includes that it waited for."""
    if not any(name in sinks for name in node.depends_on):
        return node
    before = [last for name in node.depends_on for last in sinks.get(name, [name])]
    return node.with_fields(depends_on=before)


def _placed(node: Draft, original: Draft, include: Draft, names: dict[str, str]) -> Draft:
    """Return a node with its edges: the first ones of a block come after what the include comes
    after, and only if it holds.
    """
    if original.depends_on:
        return node.with_fields(depends_on=[names[name] for name in original.depends_on])
    fields: dict[str, Any] = {"depends_on": include.depends_on or None}
    gate, own = include.fields.get("when"), node.fields.get("when")
    if gate is not None:
        if own is not None and ("||" in gate or "||" in own):
            raise WrongInclude(
                f"Node '{include.id}': cannot combine the include's when ('{gate}') with entry "
                f"node '{original.id}' own when ('{own}') because one side uses '||'. The when: "
                "grammar has no parentheses and '&&' binds tighter than '||', so combining "
                "would change precedence — put the gate only on the include node, or gate "
                "inside the block.",
            )
        fields["when"] = gate if own is None else f"{gate} && {own}"
    if "trigger_rule" in include.fields and "trigger_rule" not in node.fields:
        fields["trigger_rule"] = include.fields["trigger_rule"]
    return node.with_fields(**fields)


def _stamped(node: Draft, inputs: dict[str, Any]) -> Draft:
    """Return a node that finds the inputs of its file in its arguments, if it could ask for them
    where no text was filled in.
    """
    body = tuple(_stamped(inner, inputs) for inner in node.body)
    if node.inputs:
        return replace(node, body=body)
    return replace(
        node, body=body, inputs={name: inputs[name] for name in inputs if _could_ask(node, name)}
    )


def _could_ask(node: Draft, name: str) -> bool:
    if node.mode == "command" or (node.mode == "loop" and "command" in node.fields["loop"]):
        return True
    text = node.fields[node.mode] if node.mode in ("bash", "script") else None
    return text is not None and (
        (node.mode == "script" and not is_inline(text)) or environment_name(name) in text
    )


def _with_commands(
    node: Draft, include: Draft, child: Loaded, shelf: Shelf, seen: set[str]
) -> Draft:
    """Return a node with the text of its command, so that references in it can be renamed. One that
    is not found stays a command.
    """
    if node.body:
        inner = seen | {body.id for body in node.body}
        return replace(
            node,
            body=tuple(_with_commands(body, include, child, shelf, inner) for body in node.body),
        )
    if node.mode == "command":
        text = _command(node.fields["command"], node, include, child, shelf, seen)
        if text is not None:
            fields = {name: value for name, value in node.fields.items() if name != "command"}
            return replace(node, mode="prompt", fields=fields | {"prompt": text})
    elif node.mode == "loop" and "command" in node.fields["loop"]:
        loop = node.fields["loop"]
        text = _command(loop["command"], node, include, child, shelf, seen)
        if text is not None:
            kept = {name: value for name, value in loop.items() if name != "command"}
            return node.with_fields(loop=kept | {"prompt": text})
    return node


def _command(
    name: str, node: Draft, include: Draft, child: Loaded, shelf: Shelf, seen: set[str]
) -> str | None:
    text = shelf.command(name, node.file)
    message = (
        f"Node '{include.id}': included workflow '{child.name}' node '{node.id}' command '{name}'"
    )
    if text is not None and not trim(text):
        raise WrongInclude(
            f"{message} is empty. Included commands must contain a non-whitespace prompt body."
        )
    for reference in references(text or ""):
        if reference.node_id != "INPUTS" and reference.node_id not in seen:
            raise WrongInclude(
                f"{message} references '${reference.node_id}.output' outside its workflow "
                f"namespace. Declare it under '{child.name}' "
                f"inputs:, pass the caller value through '{include.id}' with:, and read it as "
                "'$INPUTS.<name>' instead.",
            )
    return text
