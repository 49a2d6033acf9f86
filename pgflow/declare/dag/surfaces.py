"""The texts of a node in which references are replaced when it runs, each by the path of its field.

All code that finds references, renames them or puts inputs in their place uses this one list of
fields. Conditions are not among them: ``when`` has a grammar of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pgflow.declare.dag.drafts import Draft
from pgflow.declare.text.yamlfile import Steps

_OWN: dict[str, tuple[Steps, ...]] = {
    "prompt": (("prompt",),),
    "bash": (("bash",),),
    "script": (("script",),),
    "cancel": (("cancel",),),
    "wait": (("wait", "until"), ("wait", "attention")),
    "approval": (("approval", "message"), ("approval", "on_reject", "prompt")),
    "loop": (("loop", "prompt"), ("loop", "until_bash")),
    "loop_group": (("loop_group", "until_bash"),),
    "include": (("fan_out", "items"),),
    "workflow": (("input",), ("fan_out", "items")),
}


def texts(node: Draft) -> Iterator[tuple[Steps, str]]:
    """Yield every text of a node with the path of its field, without those of nodes inside it."""
    for path in _paths(node):
        value = _at(node.fields, path)
        if isinstance(value, str):
            yield path, value


def changed(node: Draft, change: Callable[[str], str], *, inside: bool = True) -> Draft:
    """Return the node with every text changed; with those of the nodes inside it too, unless
    ``inside`` is False.
    """
    fields = node.fields
    for path, text in texts(node):
        new = change(text)
        if new != text:
            fields = _with(fields, path, new)
    body = tuple(changed(inner, change) for inner in node.body) if inside else node.body
    return replace(node, fields=fields, body=body)


def _paths(node: Draft) -> Iterator[Steps]:
    own = _OWN.get(node.mode, ())
    if node.mode == "prompt":
        yield from own
    yield ("systemPrompt",)
    for name in node.fields.get("agents", {}):
        yield ("agents", name, "prompt")
        yield ("agents", name, "description")
    if node.mode != "prompt":
        yield from own
    yield from _arguments(node)


def _arguments(node: Draft) -> Iterator[Steps]:
    """Yield the arguments that are texts when the node runs. Those of an include are gone by
    then, unless it is one for each item.
    """
    if node.mode == "include" and "fan_out" not in node.fields:
        return
    for name, value in node.fields.get("with", {}).items():
        yield (
            ("with", name, "from")
            if isinstance(value, dict) and node.mode not in ("workflow", "include")
            else ("with", name)
        )


def _at(value: Any, path: Steps) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _with(fields: dict[str, Any], path: Steps, value: Any) -> dict[str, Any]:
    first, *rest = path
    name = str(first)
    return {**fields, name: _with(fields[name], tuple(rest), value) if rest else value}
