"""Nodes of a workflow file while it is read: each is checked alone, not yet against the others, and
not yet in the graph's terms.

A draft keeps the file's own words (its fields are those of `pgflow.declare.dag.fields`) and their
position, so that later findings can name the place. Fields that mean nothing for the node's mode
are dropped here, so no later stage has to check for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pgflow.declare.dag.noderules import NODE, given_modes
from pgflow.declare.dag.shapes import Flaw, problems_of
from pgflow.declare.text.javascript import trim
from pgflow.declare.text.yamlfile import Steps
from pgflow.declare.text.yamlvalues import as_text

_STRUCTURE = frozenset({"id", "description", "depends_on", "when", "trigger_rule"})
_SCHEDULE = frozenset({"idle_timeout", "always_run", "output_type"})
OF_AGENTS: Final = (
    "model", "provider", "context", "allowed_tools", "denied_tools", "hooks", "mcp", "skills",
    "plugins", "agents", "pi", "effort", "thinking", "systemPrompt", "fallbackModel",
    "settingSources", "betas", "sandbox", "persist_session",
)  # fmt: skip
"""Fields for the agent, kept for its provider."""

_AGENT = frozenset(OF_AGENTS) | {"output_format", "maxBudgetUsd"}
_BASE = _STRUCTURE | _SCHEDULE
_WORK = frozenset({"retry", "effect", "output_format", "mutates_checkout"})
_MEANINGFUL: Final[dict[str, frozenset[str]]] = {
    "command": _BASE | _WORK | _AGENT | {"command", "with"},
    "prompt": _BASE | _WORK | _AGENT | {"prompt"},
    "bash": _BASE | _WORK | {"bash", "timeout", "on_timeout"},
    "script": _BASE | _WORK | {"script", "runtime", "deps", "timeout", "on_timeout", "with"},
    "approval": _BASE | {"retry", "approval"},
    "cancel": _BASE | {"retry", "cancel"},
    "wait": _STRUCTURE | {"output_type", "wait"},
    "include": _STRUCTURE | {"include", "with", "fan_out"},
    "workflow": _STRUCTURE
    | {"output_type", "output_format", "workflow", "input", "with", "isolation", "fan_out"},
    "loop_group": _BASE | _AGENT | {"loop_group"},
    "loop": _BASE | {"pi", "output_format", "loop"},
}
_TRIMMED = frozenset(
    {"id", "command", "prompt", "bash", "script", "cancel", "include", "workflow", "mcp"}
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A node as its file has it: its mode, its fields that have a meaning, its place, the nodes
    inside it, and the inputs that were given to the file that it comes from.
    """

    id: str
    mode: str
    fields: dict[str, Any]
    path: Steps
    body: tuple[Draft, ...] = field(default=())
    file: str = ""
    inputs: dict[str, Any] = field(default_factory=dict)

    @property
    def depends_on(self) -> list[str]:
        """The nodes that come before it."""
        depends_on: list[str] = self.fields.get("depends_on", [])
        return depends_on

    @property
    def takes_turn(self) -> bool:
        """True if it is a turn of an agent,
        whose output is prose unless a schema says otherwise.
        """
        return self.mode in ("command", "prompt", "loop")

    def with_fields(self, **changed: Any) -> Draft:
        """Return the same node with some fields changed; None takes a field away."""
        fields = {
            name: value for name, value in (self.fields | changed).items() if value is not None
        }
        return replace(self, fields=fields, id=fields["id"])


def shown_id(raw: Any, index: int) -> str:
    """Return a node's name for messages: its id as JavaScript writes it,
    or its number if it has none.
    """
    name = trim(as_text(raw["id"])) if isinstance(raw, dict) and "id" in raw else ""
    return name or f"#{index + 1}"


def meaningless(raw: dict[str, Any], node: Draft) -> Iterator[tuple[Draft, str]]:
    """Yield the fields of a node, and of those inside it, that mean nothing for its mode: the
    original drops them, with a note in its log only.

    Args:
        raw: Content of the file.
        node: The node that was made of it.
    """
    for name, value in raw.items():
        is_known = NODE.knows(name) and value is not None
        if is_known and name not in _MEANINGFUL[node.mode] and name != "with":
            yield node, name
    inner = raw["loop_group"]["nodes"] if node.mode == "loop_group" else ()
    for one, draft in zip(inner, node.body, strict=True):
        yield from meaningless(one, draft)


def read_node(raw: Any, path: Steps, file: str = "") -> tuple[Draft | None, list[Flaw]]:
    """Check one node by itself.

    Args:
        raw: Content of the file.
        path: Place at which it says it.
        file: The file's name.

    Returns:
        The node and no flaws, or no node and what is wrong with it;
        the flaws' paths begin at the node.
    """
    fields, flaws = problems_of(NODE, raw)
    return (None, flaws) if flaws else (_draft(fields, path, file), [])


def _draft(fields: dict[str, Any], path: Steps, file: str) -> Draft:
    mode = given_modes(fields)[0]
    kept = {name: _used(name, value) for name, value in fields.items() if name in _MEANINGFUL[mode]}
    if not kept.get("depends_on"):
        kept.pop("depends_on", None)
    body: tuple[Draft, ...] = ()
    if mode == "loop_group":
        group = kept["loop_group"]
        body = tuple(
            _draft(inner, (*path, "loop_group", "nodes", index), file)
            for index, inner in enumerate(group["nodes"])
        )
        kept["loop_group"] = {name: value for name, value in group.items() if name != "nodes"}
    return Draft(kept["id"], mode, kept, path, body, file)


def _used(name: str, value: Any) -> Any:
    """Return a field as it is used: names and texts without white space around them."""
    if name in _TRIMMED:
        return trim(value)
    return [trim(skill) for skill in value] if name == "skills" else value
