"""Rules for the fields of one node together: exactly one mode, and the fields that go with it.

The rules are checked in this order, and their findings are reported in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pgflow.declare.dag.fields import (
    COMMON,
    MODES,
    NEWER,
    declared_fields,
    is_plain_name,
    loop_group,
    modes,
)
from pgflow.declare.dag.shapes import Fields, Flaws, Text, is_json, problems_of
from pgflow.declare.text.javascript import trim
from pgflow.declare.text.yamlfile import Steps

INPUT_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*")
_WHOLE_REFERENCE = re.compile(r"\$[a-zA-Z_][a-zA-Z0-9_-]*\.output(?:\.[a-zA-Z_][a-zA-Z0-9_]*)?")
_RECORD = re.compile(r"\$[a-zA-Z_][a-zA-Z0-9_-]*\.execution\..*")
_NAMED = ", ".join(f"'{mode}'" for mode in MODES[:-1])
_TEXT_MODES = frozenset({"command", "prompt", "bash", "cancel", "script", "include", "workflow"})

_NAMES = "use letters, numbers, underscores, or hyphens and start with a letter or underscore"
_JSON = "must be a JSON-compatible value (string, number, boolean, null, array, or object)"
_NOT_ON_INCLUDES = {
    "isolation": "a composed block runs inside the run that composed it, so it has no checkout of "
    "its own to isolate",
    "input": (
        "a composed block reads named values as $INPUTS.<name>, supplied through 'with:' — there "
        "is no separate $ARGUMENTS for it"
    ),
}
_ONLY_ON = {
    "isolation": "workflow (sub-run)",
    "fan_out": "workflow (sub-run) and include",
}
_NO_ITEM_NAME = (
    "'fan_out.as' is required on an include node so each runtime item has an explicit "
    "$INPUTS.<name> binding"
)
_RACING = (
    "'fan_out.join: first_success' (racing) is rejected, not deferred: a winner cancels the "
    "losers, which couples children that are meant to be independent. Use 'all_done' (the "
    "default). For several genuinely different attempts, write them as separate nodes with their "
    "own models feeding one collector node — every attempt is kept and nothing is cancelled."
)
_TWO_WAYS = (
    "'approval.decisions' and 'approval.on_reject' are mutually exclusive. 'on_reject' is "
    'deprecated — wire a rework node with a "when: \\"$<this gate\'s id>.output.decision == '
    "'reject'\\\"\" edge and declare 'decisions' instead."
)
_TWO_INPUTS = (
    "'with:' and 'input:' cannot both be set on a workflow node — 'with:' supplies named $INPUTS, "
    "'input:' supplies the child's $ARGUMENTS. Use one."
)
_NO_DIRECTIVE = (
    "an object value must be a binding directive { from: '$node.output[.field]', "
    "if_skipped?: <value> }"
)
_NO_RECORD = "reads what the original records of a node, and only '$node.output' can be read"
_LITERALS = "Use a string, number, boolean, null, or array for a literal value."
_OPTIONAL_FIELD = (
    "which must also be listed in output_format.required — an optional field the model omits would "
    "silently read as "
    '"not complete" and burn max_iterations'
)
_NO_RETRY = {
    "workflow": (
        "'retry' is not supported on workflow nodes (a retry would orphan the first child run — "
        "resume through the parent instead)"
    ),
    "loop": "'retry' is not supported on loop nodes (loop manages its own iteration)",
    "loop_group": "'retry' is not supported on loop_group nodes (loop_group "
    "manages its own iteration)",
    "wait": (
        "'retry' is not supported on wait nodes; the persisted condition governs continuation"
    ),
}
_NOT_ON_WAITS = {
    "output_format": "fixed by wait nodes and cannot be overridden",
    "always_run": "not supported on wait nodes",
}


def given_modes(node: dict[str, Any]) -> list[str]:
    """Return the modes that a node has. A blank text does not count."""
    return [
        mode for mode in MODES if mode in node and (mode not in _TEXT_MODES or trim(node[mode]))
    ]


def environment_name(name: str) -> str:
    """Return the environment variable in which a script finds an input."""
    return f"INPUTS_{name.replace('-', '_').upper()}"


def check_node(node: dict[str, Any], path: Steps, flaws: Flaws) -> None:
    """Ask every rule of a node whose fields are right by themselves."""
    name = trim(node["id"])
    if not name:
        flaws.wrong((*path, "id"), "missing required field 'id'")
        return
    if name == "INPUTS":
        flaws.wrong(
            (*path, "id"), "node id 'INPUTS' is reserved for the $INPUTS.<name> parameter surface"
        )
    given = given_modes(node)
    if len(given) > 1:
        flaws.wrong(path, f"{_NAMED}, and '{MODES[-1]}' are mutually exclusive")
        return
    mode = given[0] if given else ""
    for step, message in _about(node, mode):
        flaws.wrong((*path, *step), message)


def _about(node: dict[str, Any], mode: str) -> Iterator[tuple[Steps, str]]:
    yield from _about_decisions(node.get("approval"))
    if isinstance(node.get("context"), dict) and mode not in ("command", "prompt"):
        yield ("context",), "'context.resume' is only supported on command and prompt nodes"
    if "with" in node and mode in ("include", "workflow", "command", "script"):
        yield from _about_with(node["with"], mode)
    yield from _about_calls(node, mode)
    if not mode:
        yield _no_mode(node)
        return
    yield from _about_work(node, mode)
    yield from _about_until_field(node.get("loop"), node.get("output_format"))
    if mode in ("loop", "loop_group", "wait") and "retry" in node:
        yield ("retry",), _NO_RETRY[mode]
    for name, why in _NOT_ON_WAITS.items() if mode == "wait" else ():
        if name in node:
            yield (name,), f"'{name}' is {why}"
    if node.get("idle_timeout", 1) <= 0:
        yield ("idle_timeout",), "'idle_timeout' must be a finite positive number (ms)"


def _about_decisions(approval: dict[str, Any] | None) -> Iterator[tuple[Steps, str]]:
    if approval is None or "decisions" not in approval:
        return
    where = ("approval", "decisions")
    if "on_reject" in approval:
        yield where, _TWO_WAYS
        return
    ids = [decision["id"] for decision in approval["decisions"]]
    if len(set(ids)) != len(ids):
        yield where, "'approval.decisions' ids must be unique"
    if "approve" not in ids:
        yield where, "'approval.decisions' must include an 'approve' entry"


def _about_with(given: Any, mode: str) -> Iterator[tuple[Steps, str]]:
    """Yield the flaws of a node's arguments."""
    if not isinstance(given, dict):
        yield ("with",), f"'with' on {mode} nodes must be an object mapping input names to values"
        return
    for name, value in given.items():
        if not INPUT_NAME.fullmatch(name):
            yield ("with",), f"invalid {mode} input name '{name}'; {_NAMES}"
        if not is_json(value):
            yield ("with",), f"{mode} input '{name}' {_JSON}"
    if mode in ("command", "script"):
        yield from _about_variables(given, mode)
        yield from _about_bindings(given, mode)


def _about_variables(given: dict[str, Any], mode: str) -> Iterator[tuple[Steps, str]]:
    owners: dict[str, str] = {}
    for name in given:
        variable = environment_name(name)
        if variable in owners:
            both = (
                f"{mode} bindings '{owners[variable]}' and '{name}' both "
                f"map to env var '{variable}'"
            )
            yield ("with",), f"{both} — rename one so each binding has a unique env key"
        owners[variable] = name


def _json(value: Any, path: Steps, flaws: Flaws) -> Any:
    if not is_json(value):
        flaws.wrong(path, _JSON)
    return value


_BINDING = Fields(
    {"from": Text(empty="'from' must be a non-empty $node.output reference"), "if_skipped": _json},
    required=frozenset({"from"}),
    others="refuse",
)


def _about_bindings(given: dict[str, Any], mode: str) -> Iterator[tuple[Steps, str]]:
    for name, value in given.items():
        if isinstance(value, str) and _RECORD.fullmatch(trim(value)):
            yield ("with", name), f"{mode} binding '{name}': '{trim(value)}' {_NO_RECORD}. {NEWER}"
        if not isinstance(value, dict):
            continue
        _, flaws = problems_of(_BINDING, value)
        if flaws:
            yield (
                ("with", name),
                f"{mode} binding '{name}': {_NO_DIRECTIVE} — {flaws[0].message}. {_LITERALS}",
            )
        elif not _WHOLE_REFERENCE.fullmatch(trim(value["from"])):
            yield ("with", name), f"{mode} binding '{name}': {_not_whole(name, value['from'])}"


def _not_whole(name: str, source: str) -> str:
    text = trim(source)
    if text.startswith("$LOOP_PREV"):
        return (
            "'from' cannot read '$LOOP_PREV' — it is not a node reference. Use the string form "
            f"(e.g. '{name}: {text}'), which substitutes the previous iteration's text each pass."
        )
    return (
        "'from' must be exactly one whole '$node.output' or '$node.output.field' reference, "
        f"got '{source}'"
    )


def _about_calls(node: dict[str, Any], mode: str) -> Iterator[tuple[Steps, str]]:
    """Yield the fields of child runs that are wrong, or that are on a node without a child run."""
    if mode == "workflow":
        if "with" in node and "input" in node:
            yield ("with",), _TWO_INPUTS
        if "retry" in node:
            yield ("retry",), _NO_RETRY["workflow"]
    elif mode == "include":
        for name, why in _NOT_ON_INCLUDES.items():
            if name in node:
                instead = "Use a 'workflow:' node instead when you want a separate governed run."
                yield (name,), f"'{name}' is not supported on an include node: {why}. {instead}"
    else:
        for name, where in _ONLY_ON.items():
            if name in node:
                yield (name,), f"'{name}' is only supported on {where} nodes."
        return
    if "fan_out" in node:
        yield from _about_fan_out(node["fan_out"], node.get("with"), mode)


def _about_fan_out(fan_out: dict[str, Any], given: Any, mode: str) -> Iterator[tuple[Steps, str]]:
    if fan_out.get("join") == "first_success":
        yield ("fan_out", "join"), _RACING
    where, name = ("fan_out", "as"), fan_out.get("as")
    if name is None:
        if mode == "include":
            yield where, _NO_ITEM_NAME
        return
    if not INPUT_NAME.fullmatch(name):
        yield where, f"invalid fan-out input name '{name}'; {_NAMES}"
    if isinstance(given, dict) and name in given:
        yield (
            where,
            (
                f"'fan_out.as: {name}' collides with a 'with:' key of the same name — both would "
                f"populate $INPUTS.{name}. Rename one."
            ),
        )


def _no_mode(node: dict[str, Any]) -> tuple[Steps, str]:
    for mode, label in (("bash", "bash script"), ("prompt", "prompt"), ("script", "script")):
        if mode in node:
            return (mode,), f"{label} cannot be empty"
    return (), f"must have either {_NAMED}, or '{MODES[-1]}'"


def _about_work(node: dict[str, Any], mode: str) -> Iterator[tuple[Steps, str]]:
    """Yield the flaws of commands, shell scripts and programs."""
    if mode == "command" and not is_plain_name(trim(node["command"])):
        yield ("command",), f'invalid command name "{trim(node["command"])}"'
    if mode == "script" and "runtime" not in node:
        yield ("runtime",), "'runtime' is required for script nodes ('bun' or 'uv')"
    if mode in ("bash", "script") and node.get("timeout", 1) <= 0:
        yield ("timeout",), "'timeout' must be a positive number (ms)"


def _about_until_field(
    loop: dict[str, Any] | None, schema: dict[str, Any] | None
) -> Iterator[tuple[Steps, str]]:
    """Yield errors of the field that ends a loop: every answer must have it, as a boolean."""
    name = (loop or {}).get("until_field")
    if name is None:
        return
    where, message = ("loop", "until_field"), f"'loop.until_field' names '{name}'"
    if schema is None:
        yield (
            where,
            (
                f"{message} but this node declares no 'output_format' — the field must be a "
                "declared property of the node's schema"
            ),
        )
        return
    declared = declared_fields(schema)
    if declared is None or name not in declared:
        known = f" (declared: {', '.join(declared)})" if declared else ""
        yield (
            where,
            f"{message}, which is not declared in this node's output_format properties{known}",
        )
        return
    required = schema.get("required")
    if not isinstance(required, list) or name not in required:
        yield where, f"{message}, {_OPTIONAL_FIELD}"
    kind = schema["properties"][name]
    kind = kind.get("type") if isinstance(kind, dict) else None
    if isinstance(kind, str) and kind != "boolean":
        yield (
            where,
            (
                f"{message}, declared as type '{kind}' — it must be 'boolean'; "
                "the loop terminates on the value being exactly true"
            ),
        )


def _node(value: Any, path: Steps, flaws: Flaws) -> Any:
    return NODE(value, path, flaws)


def _group(value: Any, path: Steps, flaws: Flaws) -> Any:
    return GROUP(value, path, flaws)


NODE: Final = Fields({**COMMON, **modes(_group)}, required=frozenset({"id"}), rules=(check_node,))
"""A node, whatever it does."""

GROUP: Final = loop_group(_node)
"""Shape of a group of nodes; the nodes in it are nodes like others."""
