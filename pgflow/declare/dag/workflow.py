"""The fields of a workflow as a whole: what is taken, what is dropped with a warning, and what
makes a file wrong.

The original's policy: a slip in what is optional costs that option and a warning, so that one typo
does not hide a workflow. What its caller relies on (its nodes, its result, its evidence, the names
of its inputs) is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pgflow.declare.dag.drafts import Draft
from pgflow.declare.dag.fields import BETAS, EFFORTS, NEWER, SANDBOX, declared_fields, thinking
from pgflow.declare.dag.keys import THINKING, Warned
from pgflow.declare.dag.noderules import INPUT_NAME, environment_name
from pgflow.declare.dag.shapes import Fields, Shape, Text, anything, boolean, is_json, problems_of
from pgflow.declare.dag.structure import Finding
from pgflow.declare.text.javascript import trim
from pgflow.declare.text.yamlfile import Steps

PROVIDERS: Final = ("claude", "codex", "opencode", "pi", "copilot")
_FORKING = frozenset({"claude", "pi"})
_OLD_EFFORTS = ("minimal", "low", "medium", "high", "xhigh")
_REQUIREMENTS = ("github",)

_STEPS_REMOVED = (
    "`steps:` format has been removed. Workflows now use `nodes:` (DAG) format exclusively. Your "
    "bundled defaults are already "
    "updated — custom workflows need manual migration. See docs/sequential-dag-migration-guide.md "
    "for conversion patterns, or run: "
    'claude "Read docs/sequential-dag-migration-guide.md then convert .archon/workflows/<file> to '
    'nodes: format"'
)
_EVIDENCE = (
    "Invalid evidence_policy: expected { required: boolean }. When required is true, "
    "the run is refused terminal 'completed' unless $ARTIFACTS_DIR/evidence.json exists."
)
_RETURNS = (
    "Invalid 'returns': expected the non-empty id of a top-level node "
    "whose output is this workflow's result"
)
_OUTCOME = (
    "Invalid 'outcome_field': expected a non-empty required boolean "
    "property name relative to 'returns'"
)

_INPUT = Fields({"required": boolean, "default": anything, "description": Text()})


@dataclass(slots=True)
class Options:
    """Options of a workflow, as far as they are valid, and remarks on the others.

    The original puts only ``warnings`` into its verdict; it writes ``ignored`` to its log.
    """

    values: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    returns: str | None = None
    outcome_field: str | None = None
    interactive: bool | None = None
    warnings: list[Warned] = field(default_factory=list)
    ignored: list[Warned] = field(default_factory=list)

    def ignore(self, path: Steps, message: str) -> None:
        """Something was dropped."""
        self.ignored.append(Warned(path, message))


def check_head(raw: dict[str, Any]) -> Iterator[Finding]:
    """Yield the findings that keep a file from being a workflow at all."""
    for name in ("name", "description"):
        if not isinstance(raw.get(name), str) or not raw[name]:
            yield Finding((name,), f"Missing required field '{name}'")
    if isinstance(raw.get("steps"), list) and raw["steps"]:
        yield Finding(("steps",), _STEPS_REMOVED)
    elif not isinstance(raw.get("nodes"), list) or not raw["nodes"]:
        yield Finding(("nodes",), "Workflow must have 'nodes:' configuration")


def check_providers(raw: dict[str, Any], nodes: list[Draft]) -> Iterator[Finding]:
    """Providers must be known, and able to do what sessions are asked to do."""
    registered = f"Registered: {', '.join(PROVIDERS)}"
    provider = raw["provider"] if isinstance(raw.get("provider"), str) and raw["provider"] else None
    if provider is not None and provider not in PROVIDERS:
        yield Finding(("provider",), f"Unknown provider '{provider}'. {registered}")
    for node in nodes:
        own = node.fields.get("provider")
        if own is not None and own not in PROVIDERS:
            yield Finding(
                (*node.path, "provider"),
                f"Node '{node.id}': unknown provider '{own}'. {registered}",
            )
    by_id = {node.id: node for node in nodes}
    for node in nodes:
        context = node.fields.get("context")
        source = by_id.get(context["resume"]) if isinstance(context, dict) else None
        if source is not None:
            yield from _about_fork(node, source, provider)


def _about_fork(node: Draft, source: Draft, provider: str | None) -> Iterator[Finding]:
    where = (*node.path, "context", "resume")
    consumers, sources = (
        node.fields.get("provider", provider),
        source.fields.get("provider", provider),
    )
    if consumers is not None and sources is not None and consumers != sources:
        message = f"uses provider '{sources}', but the consumer uses '{consumers}'"
        yield Finding(where, f"Node '{node.id}' context.resume source '{source.id}' {message}")
        return
    known = consumers if consumers is not None else sources
    if known in PROVIDERS and known not in _FORKING:
        message = (
            f"requires immutable session forks, but provider '{known}' does not support sessionFork"
        )
        yield Finding(where, f"Node '{node.id}' context.resume {message}")


def pauses(nodes: tuple[Draft, ...] | list[Draft]) -> Finding | None:
    """Return the first node at which a run would wait for a person, for a workflow that does not
    allow it.
    """
    for node in nodes:
        if node.mode == "approval":
            asked, instead = "approval:", "remove this gate"
        elif (
            node.mode in ("loop", "loop_group")
            and node.fields[node.mode].get("interactive") is True
        ):
            asked, instead = (
                f"{node.mode}.interactive: true",
                "remove the node-level 'interactive:'",
            )
        elif (inner := pauses(node.body)) is not None:
            return inner
        else:
            continue
        return Finding(
            node.path,
            f"Node '{node.id}' is a pause node ('{asked}'), but this workflow does not declare "
            "'interactive: true'. An unattended "
            "workflow may never contain a pause node — declare 'interactive: true' at the "
            f"workflow level, or {instead}.",
        )
    return None


def read_options(
    raw: dict[str, Any], nodes: list[Draft], broken: frozenset[str] = frozenset()
) -> tuple[Options, list[Finding]]:
    """Read everything that a workflow says about itself.

    Args:
        raw: Content of the file.
        nodes: The nodes that are right.
        broken: The ids of those that are not.

    Returns:
        What is taken and ignored, and what is wrong, in the original's order.
    """
    options = Options()
    findings: list[Finding] = []
    _read_interactive(raw, nodes, options)
    _read_policies(raw, options)
    findings += _read_evidence(raw, options)
    _read_lists(raw, options)
    _read_deprecated(raw, options)
    findings += _read_inputs(raw, options)
    findings += _read_result(raw, options, nodes, broken)
    _read_agents_options(raw, options)
    return options, findings


def _read_interactive(raw: dict[str, Any], nodes: list[Draft], options: Options) -> None:
    options.interactive = _flag(raw, "interactive", options)
    paused = None if options.interactive else pauses(nodes)
    if paused is not None:
        options.interactive = True
        message = (
            f"Workflow '{raw.get('name')}': {paused.message} 'interactive: true' has been applied "
            "for this run only (this grace period ends in a future release — see #2738); add the "
            "declaration to the file to silence this warning."
        )
        options.warnings.append(Warned(paused.path, message))


def _flag(raw: dict[str, Any], name: str, options: Options) -> bool | None:
    value = raw.get(name)
    if isinstance(value, bool):
        return value
    if name in raw:
        options.ignore((name,), f"Invalid '{name}' value ignored: expected true or false")
    return None


def _read_policies(raw: dict[str, Any], options: Options) -> None:
    for name, inner in (("worktree", ("enabled",)), ("container", ("enabled", "write_back"))):
        block = raw.get(name)
        if isinstance(block, dict):
            policy = {
                key: block[key]
                for key in inner
                if key in block and _is_policy(name, key, block[key], options)
            }
            if policy:
                options.values[name] = policy
        elif name in raw:
            options.ignore((name,), f"Invalid '{name}' block ignored")
    if (flag := _flag(raw, "mutates_checkout", options)) is not None:
        options.values["mutates_checkout"] = flag


def _is_policy(name: str, key: str, value: Any, options: Options) -> bool:
    if isinstance(value, bool) if key == "enabled" else value in ("approve", "auto"):
        return True
    expected = "true or false" if key == "enabled" else "'approve' or 'auto'"
    options.ignore((name, key), f"Invalid '{name}.{key}' value ignored: expected {expected}")
    return False


def _read_evidence(raw: dict[str, Any], options: Options) -> Iterator[Finding]:
    if "evidence_policy" not in raw:
        return
    policy = raw["evidence_policy"]
    if isinstance(policy, dict) and isinstance(policy.get("required"), bool):
        options.values["evidence_policy"] = {"required": policy["required"]}
    else:
        yield Finding(("evidence_policy",), _EVIDENCE)


def _read_lists(raw: dict[str, Any], options: Options) -> None:
    tags = raw.get("tags")
    if isinstance(tags, list):
        options.values["tags"] = list(
            dict.fromkeys(tag for tag in (trim(t) for t in tags if isinstance(t, str)) if tag)
        )
    elif "tags" in raw:
        options.ignore(("tags",), "Invalid 'tags' block ignored: expected a list of texts")
    requires = raw.get("requires")
    if isinstance(requires, list):
        known = list(
            dict.fromkeys(
                entry for entry in requires if isinstance(entry, str) and entry in _REQUIREMENTS
            )
        )
        if known:
            options.values["requires"] = known
        for index, entry in enumerate(requires):
            if not isinstance(entry, str) or entry not in _REQUIREMENTS:
                options.ignore(
                    ("requires", index), "Invalid 'requires' entry ignored: expected 'github'"
                )
    elif "requires" in raw:
        options.ignore(("requires",), "Invalid 'requires' block ignored: expected a list")


def _read_deprecated(raw: dict[str, Any], options: Options) -> None:
    block = raw.get("deprecated")
    message = block.get("message") if isinstance(block, dict) else None
    if isinstance(message, str) and trim(message):
        said = f"Workflow '{raw.get('name')}' is deprecated: {trim(message)}"
        options.warnings.append(Warned(("deprecated",), said))
    elif "deprecated" in raw:
        options.ignore(("deprecated",), "Invalid 'deprecated' block ignored: expected a message")


def _read_inputs(raw: dict[str, Any], options: Options) -> Iterator[Finding]:
    block = raw.get("inputs")
    if not isinstance(block, dict):
        if "inputs" in raw:
            options.ignore(
                ("inputs",),
                "Invalid 'inputs' block ignored: expected a mapping of names to definitions",
            )
        return
    for name, declared in block.items():
        if (why := _why_no_input(name, declared)) is None:
            options.inputs[name] = {
                key: declared[key]
                for key in ("required", "default", "description")
                if key in declared
            }
        else:
            options.ignore(("inputs", name), f"Input '{name}' ignored: {why}")
    owners: dict[str, str] = {}
    for name in options.inputs:
        variable = environment_name(name)
        if variable in owners:
            yield Finding(
                ("inputs", name),
                f"Workflow inputs '{owners[variable]}' and '{name}' both map to env var "
                f"'{variable}' — rename one so each input has a unique env key",
            )
        owners.setdefault(variable, name)


def _why_no_input(name: str, declared: Any) -> str | None:
    if not INPUT_NAME.fullmatch(name):
        return "its name is not an identifier"
    _, flaws = problems_of(_INPUT, declared)
    if flaws:
        where = f"'{flaws[0].path[-1]}': " if flaws[0].path else ""
        return f"{where}{flaws[0].message}"
    if not is_json(declared.get("default")):
        return "its default has no form in JSON"
    return (
        "it is required and has a default, which contradict each other"
        if declared.get("required") and "default" in declared
        else None
    )


def _read_result(
    raw: dict[str, Any], options: Options, nodes: list[Draft], broken: frozenset[str]
) -> Iterator[Finding]:
    options.returns = _name(raw, "returns")
    result = next((node for node in nodes if node.id == options.returns), None)
    if "returns" in raw and options.returns is None:
        yield Finding(("returns",), _RETURNS, NEWER if isinstance(raw["returns"], dict) else "")
    elif options.returns is not None and result is None and options.returns not in broken:
        yield Finding(
            ("returns",),
            f"Workflow declares returns: '{options.returns}' but no top-level node has that id",
        )
    options.outcome_field = _name(raw, "outcome_field")
    if "outcome_field" not in raw:
        return
    if options.outcome_field is None:
        yield Finding(("outcome_field",), _OUTCOME)
    elif ("returns" not in raw or result is not None) and (
        message := wrong_outcome(options.outcome_field, result)
    ):
        yield Finding(("outcome_field",), message)


def _name(raw: dict[str, Any], key: str) -> str | None:
    return (trim(raw[key]) or None) if isinstance(raw.get(key), str) else None


def wrong_outcome(name: str, node: Draft | None) -> str | None:
    """Return the reason why a field cannot be the outcome, or None: the returned node's answer must
    always have it, true or false.
    """
    if node is None:
        message = "without returns: — authored outcome must select a result node explicitly"
        return f"Workflow declares outcome_field: '{name}' {message}"
    message, schema = f"Workflow outcome_field: '{name}'", node.fields.get("output_format")
    if node.mode == "include" and "fan_out" not in node.fields:
        return None
    if node.mode == "loop_group":
        why = (
            "because loop_group output_format is ignored and its runtime output is raw text; "
            "select a schema-enforced collector node"
        )
        return f"{message} cannot select loop_group node '{node.id}' {why} instead"
    if "fan_out" in node.fields:
        why = (
            "because its runtime output is an aggregate array; "
            "select a collector node with a required boolean output instead"
        )
        kind = "fan-out workflow" if node.mode == "workflow" else "composed fan-out"
        return f"{message} cannot select {kind} node '{node.id}' {why}"
    if schema is None:
        return f"{message} selects node '{node.id}', but that node declares no output_format"
    if schema.get("type") != "object":
        return f"{message} requires node '{node.id}' output_format to declare type: object"
    return _wrong_property(name, node.id, schema, message)


def _wrong_property(name: str, node_id: str, schema: dict[str, Any], subject: str) -> str | None:
    declared = declared_fields(schema)
    if declared is None or name not in declared:
        known = f" (declared: {', '.join(declared)})" if declared else ""
        return f"{subject} is not declared in node '{node_id}' output_format properties{known}"
    required, kind = schema.get("required"), schema["properties"][name]
    if not isinstance(required, list) or name not in required:
        return f"{subject} must be listed in node '{node_id}' output_format.required"
    if not isinstance(kind, dict) or kind.get("type") != "boolean":
        return f"{subject} on node '{node_id}' must explicitly declare type: boolean"
    return None


def _read_agents_options(raw: dict[str, Any], options: Options) -> None:
    """Read the options of a workflow for every turn of an agent in it."""
    for name in ("provider", "model"):
        if isinstance(raw.get(name), str) and (raw[name] or name == "model"):
            options.values[name] = raw[name]
    _read_word(raw, "webSearchMode", ("disabled", "cached", "live"), options)
    _read_word(raw, "effort", EFFORTS, options)
    _read_old_effort(raw, options)
    shapes: tuple[tuple[str, Shape], ...] = (("thinking", thinking), ("sandbox", SANDBOX))
    for name, shape in shapes:
        if name in raw:
            value, flaws = problems_of(shape, raw[name])
            if flaws:
                options.ignore(
                    (name, *flaws[0].path), f"Invalid '{name}' value ignored: {flaws[0].message}"
                )
            else:
                options.values[name] = value
                if name == "thinking":
                    options.ignore((name,), THINKING)
    _read_fallbacks(raw, options)
    if raw.get("persist_sessions") is True:
        options.values["persist_sessions"] = True


def _read_word(raw: dict[str, Any], name: str, words: tuple[str, ...], options: Options) -> None:
    value = raw.get(name)
    if isinstance(value, str) and value in words:
        options.values[name] = value
    elif name in raw:
        options.ignore(
            (name,), f"Invalid '{name}' value ignored: expected one of {', '.join(words)}"
        )


def _read_old_effort(raw: dict[str, Any], options: Options) -> None:
    old, declared = raw.get("modelReasoningEffort"), options.values.get("effort")
    if not isinstance(old, str) or old not in _OLD_EFFORTS:
        if "modelReasoningEffort" in raw:
            expected = ", ".join(_OLD_EFFORTS)
            options.ignore(
                ("modelReasoningEffort",),
                f"Invalid 'modelReasoningEffort' value ignored: expected one of {expected}",
            )
        return
    said = f"Workflow '{raw.get('name')}': 'modelReasoningEffort: {old}' is deprecated and"
    if declared is None:
        options.values["effort"] = old
        message = (
            f"{said} has been applied as 'effort: {old}'. NOTE: 'effort:' applies to EVERY node in "
            "this workflow, including non-Codex ones, where the old Codex-only field applied to "
            "none. Set 'effort:' per node if only some nodes should reason that deeply."
        )
    else:
        message = (
            f"{said} was IGNORED because this workflow also declares 'effort: {declared}', which "
            "now applies on every provider "
            "including Codex. Delete the 'modelReasoningEffort:' line."
        )
    options.warnings.append(Warned(("modelReasoningEffort",), message))


def _read_fallbacks(raw: dict[str, Any], options: Options) -> None:
    if "fallbackModel" in raw:
        model = trim(raw["fallbackModel"]) if isinstance(raw["fallbackModel"], str) else ""
        if model:
            options.values["fallbackModel"] = model
        else:
            options.ignore(
                ("fallbackModel",),
                "Invalid 'fallbackModel' value ignored: expected a non-empty string",
            )
    if "betas" in raw:
        given = raw["betas"] if isinstance(raw["betas"], list) else []
        betas = [beta for beta in (trim(b) for b in given if isinstance(b, str)) if beta]
        if problems_of(BETAS, betas)[1]:
            options.ignore(
                ("betas",), "Invalid 'betas' value ignored: expected a non-empty list of texts"
            )
        else:
            options.values["betas"] = betas
