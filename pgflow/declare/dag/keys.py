"""Unknown keys and deprecated spellings, of which the original warns.

An unknown key does not make a workflow unusable. It is dropped with a warning, because its author
may believe that it has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pgflow.declare.dag.drafts import Draft, shown_id
from pgflow.declare.dag.fields import (
    AGENT,
    APPROVAL,
    CONTEXT,
    DECISION,
    FAN_OUT,
    LOOP,
    NEWER,
    ON_REJECT,
    PI,
    RETRY,
    WAIT,
)
from pgflow.declare.dag.noderules import GROUP, NODE
from pgflow.declare.text.spelling import similar
from pgflow.declare.text.yamlfile import Steps

WORKFLOW_KEYS: Final = (
    "name", "description", "provider", "model", "modelReasoningEffort", "webSearchMode",
    "interactive", "effort", "thinking", "fallbackModel", "betas", "sandbox", "worktree",
    "container", "evidence_policy", "mutates_checkout", "persist_sessions", "tags", "requires",
    "inputs", "returns", "outcome_field", "deprecated", "nodes",
)  # fmt: skip
_GATES = (
    " Nothing on this node gates. For a human gate, use an 'approval:' node; to gate each "
    "iteration of a loop, set BOTH 'loop.interactive: true' and 'loop.gate_message' "
    "('gate_message' on its own does not gate). Workflow-level 'interactive:' is a different "
    "setting, and only on the web UI — it keeps the run in the foreground there; chat platforms "
    "already run in the foreground, so it does nothing for them."
)
_WITH = (
    "'with' is only supported on command, script, include, and workflow nodes — it is ignored here"
)

_TIMELESS = "'on_timeout' is only supported on bash and script nodes — it is ignored here"
_CHECKED = ("command", "prompt", "bash", "script")
_UNCHECKED = (
    "'mutates_checkout' is only checked on command, prompt, bash and script nodes — it is ignored "
    "here"
)
THINKING: Final = (
    "Archon has removed 'thinking:'; use 'effort:' instead. pgflow still passes it on."
)


class Warned(NamedTuple):
    """Something that is ignored or will be: where, what, and what to do about it."""

    path: Steps
    message: str
    hint: str = ""
    needle: str = ""


class Known(NamedTuple):
    """The keys of a mapping, and those of the mappings in it. ``each`` is what its values are,
    where its keys are free.
    """

    keys: frozenset[str] = frozenset()
    inner: Mapping[str, Known] = {}
    each: Known | None = None


def _known(fields: Any, **inner: Known) -> Known:
    return Known(frozenset(fields.shapes), inner)


_OF_NODES: Final = {
    "approval": _known(
        APPROVAL, on_reject=_known(ON_REJECT), decisions=Known(each=_known(DECISION))
    ),
    "retry": _known(RETRY),
    "context": _known(CONTEXT),
    "loop": _known(LOOP),
    "loop_group": _known(GROUP),
    "pi": _known(PI),
    "fan_out": _known(FAN_OUT),
    "wait": _known(WAIT),
    "agents": Known(each=_known(AGENT)),
}
_OF_WORKFLOWS: Final = {
    "deprecated": Known(frozenset({"message"})),
    "worktree": Known(frozenset({"enabled"})),
    "container": Known(frozenset({"enabled", "write_back"})),
    "evidence_policy": Known(frozenset({"required"})),
    "inputs": Known(each=Known(frozenset({"required", "default", "description"}))),
}


def unknown_in_node(raw: Any, index: int, path: Steps, label: str = "") -> Iterator[Warned]:
    """Yield the unknown keys of a node, of its settings, and of the nodes inside it."""
    if not isinstance(raw, dict):
        return
    label = label or f"Node '{shown_id(raw, index)}'"
    for key, value in raw.items():
        if not NODE.knows(key):
            yield _unknown(label, key, (*path, key), _node_note(key), NODE.shapes)
        elif key in _OF_NODES:
            yield from _unknown_inside(value, _OF_NODES[key], label, (*path, key), (key,))
    group = raw.get("loop_group")
    nodes = group.get("nodes") if isinstance(group, dict) else None
    for inner, node in enumerate(nodes if isinstance(nodes, list) else ()):
        where = (*path, "loop_group", "nodes", inner)
        yield from unknown_in_node(
            node, inner, where, f"{label} → loop_group node '{shown_id(node, inner)}'"
        )


def unknown_in_workflow(raw: dict[str, Any]) -> Iterator[Warned]:
    """Yield the unknown keys of a workflow and of its settings."""
    label = f"Workflow '{raw['name']}'"
    for key, value in raw.items():
        if key not in WORKFLOW_KEYS:
            note = (
                f" ('{key}' is valid on individual nodes, not at workflow level.)"
                if NODE.knows(key)
                else ""
            )
            yield _unknown(label, key, (key,), note, WORKFLOW_KEYS)
        elif key in _OF_WORKFLOWS:
            yield from _unknown_inside(value, _OF_WORKFLOWS[key], label, (key,), (key,))


def _unknown_inside(
    value: Any, known: Known, label: str, path: Steps, shown: tuple[str, ...]
) -> Iterator[Warned]:
    if known.each is not None:
        entries = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, entry in entries:
            yield from _unknown_inside(entry, known.each, label, (*path, key), (*shown, str(key)))
        return
    for key, entry in value.items() if isinstance(value, dict) else ():
        if key not in known.keys:
            yield _unknown(label, ".".join((*shown, key)), (*path, key), "", known.keys)
        elif key in known.inner:
            yield from _unknown_inside(entry, known.inner[key], label, (*path, key), (*shown, key))


def _unknown(label: str, key: str, path: Steps, note: str, known: Any) -> Warned:
    names = [] if note else [f"'{name}'" for name in similar(str(path[-1]), known)]
    hint = f"Did you mean {' or '.join(names)}?" if names else "" if note else NEWER
    return Warned(path, f"{label}: unknown key '{key}' will be ignored.{note}", hint)


def _node_note(key: str) -> str:
    if key == "interactive":
        return _GATES
    return (
        f" ('{key}' is valid at workflow level, not on individual nodes.)"
        if key in WORKFLOW_KEYS
        else ""
    )


def deprecated_in_node(node: Draft) -> Iterator[Warned]:
    """Yield a warning for each deprecated way of writing in a node, and in the nodes inside it."""
    if "thinking" in node.fields:
        yield Warned((*node.path, "thinking"), f"Node '{node.id}': {THINKING}")
    approval = node.fields.get("approval") or {}
    if "capture_response" in approval and "decisions" in approval:
        yield Warned(
            (*node.path, "approval", "capture_response"),
            f"Node '{node.id}': 'approval.capture_response' is deprecated. Gate output is now "
            f"always structured as {{decision, text}} "
            f"— read '${node.id}.output.text' downstream instead. This field is ignored.",
        )
    if "on_reject" in approval:
        yield Warned(
            (*node.path, "approval", "on_reject"),
            f"Node '{node.id}': 'approval.on_reject' is deprecated. Declare 'approval.decisions' "
            "and wire a rework node with "
            f'"when: \\"${node.id}.output.decision == \'reject\'\\"" instead (loop it with '
            "loop_group if it should iterate). This "
            "gate keeps running via the legacy mechanism until migrated.",
        )
    if (
        (node.fields.get(node.mode) or {}).get("interactive") is True
        if node.mode in ("loop", "loop_group")
        else False
    ):
        yield Warned(
            (*node.path, node.mode, "interactive"),
            f"Node '{node.id}': node-level loop 'interactive:' is deprecated. A future release "
            "re-expresses the interactive loop as a "
            "gate + loop_group composition (#2707 step 3). Continue using it for now.",
        )
    for inner in node.body:
        yield from deprecated_in_node(inner)


def useless_arguments(node: Draft, raw: dict[str, Any]) -> Iterator[Warned]:
    """Yield what a node is given and does not take."""
    if "mutates_checkout" in raw and node.mode not in _CHECKED:
        yield Warned((*node.path, "mutates_checkout"), f"Node '{node.id}': {_UNCHECKED}")
    if "on_timeout" in raw and node.mode not in ("bash", "script"):
        yield Warned((*node.path, "on_timeout"), f"Node '{node.id}': {_TIMELESS}")
    if "with" in raw and node.mode not in ("command", "script", "include", "workflow"):
        yield Warned((*node.path, "with"), f"Node '{node.id}': {_WITH}")
