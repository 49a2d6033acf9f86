"""The fields of a node: their names, their values, and the nodes on which each has a meaning.

The order of the fields is the order in which their errors are reported.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pgflow.declare.dag.shapes import (
    Either,
    Fields,
    Flaws,
    ListOf,
    Number,
    OneOf,
    RecordOf,
    Shape,
    Text,
    anything,
    boolean,
    refuse,
)
from pgflow.declare.text.moments import MOMENT, moment
from pgflow.declare.text.yamlfile import Steps

KNOWN: Final = "0.10.1"
"""Version of the Archon whose keys are known."""

NEWER: Final = f"Is it newer than Archon {KNOWN}, which pgflow knows?"
"""Question about what is not known."""

KEBAB: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max", "ultra", "persistent")
TRIGGER_RULES: Final = ("all_success", "one_success", "none_failed_min_one_success", "all_done")
HOOK_EVENTS: Final = (
    "PreToolUse", "PostToolUse", "PostToolUseFailure", "Notification", "UserPromptSubmit",
    "SessionStart", "SessionEnd", "Stop", "SubagentStart", "SubagentStop", "PreCompact",
    "PermissionRequest", "Setup", "TeammateIdle", "TaskCompleted", "Elicitation",
    "ElicitationResult", "ConfigChange", "WorktreeCreate", "WorktreeRemove",
    "InstructionsLoaded",
)  # fmt: skip

_TEXT = Text()
_WORDY = Text(empty="")
_TEXTS = ListOf(_TEXT)
_WORDY_TEXTS = ListOf(_WORDY)


def is_plain_name(name: str) -> bool:
    """Return True if the name of a command, a script or a workflow stays where such files are, and
    leads to no other place.
    """
    return (
        bool(name)
        and not name.startswith(".")
        and not any(sign in name for sign in ("/", "\\", "..", "\0"))
    )


def declared_fields(schema: Any) -> list[str] | None:
    """Return the properties that an output's JSON schema declares; None if it declares no
    object.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return list(properties) if isinstance(properties, dict) else None


def _agent_rules(agents: dict[str, Any], path: Steps, flaws: Flaws) -> None:
    for name in agents:
        if not KEBAB.fullmatch(name):
            flaws.wrong((*path, name), f"agent IDs must be kebab-case (a-z, 0-9, hyphen): '{name}'")
    if not agents:
        flaws.wrong(path, "'agents' must have at least one entry")


def thinking(value: Any, path: Steps, flaws: Flaws) -> Any:
    """Check how an agent thinks: a word, or a mapping whose ``type`` is that word;
    return the mapping.
    """
    words = ("adaptive", "enabled", "disabled")
    if isinstance(value, str) and value in words:
        value = {"type": value}
    if not isinstance(value, dict):
        refuse(value, "object", path, flaws)
        return value
    if value.get("type") not in words:
        expected = " | ".join(f"'{word}'" for word in words)
        flaws.wrong_kind((*path, "type"), f"Invalid discriminator value. Expected {expected}")
        return value
    budget: dict[str, Shape] = (
        {"budgetTokens": Number(whole=True, above=0)} if value["type"] == "enabled" else {}
    )
    return Fields({"type": anything, **budget})(value, path, flaws)


def _needs_gate_message(loop: dict[str, Any], path: Steps, flaws: Flaws) -> None:
    if loop.get("interactive") is True and not loop.get("gate_message"):
        flaws.wrong(
            (*path, "gate_message"),
            "interactive loop requires 'loop.gate_message' (non-empty string)",
        )


_CHANNELS = {
    "until": "completion signal string",
    "until_bash": "deterministic check, exit 0 = complete",
    "until_field": "a declared boolean in output_format",
}


def _needs_channel(
    loop: dict[str, Any], path: Steps, flaws: Flaws, channels: tuple[str, ...]
) -> None:
    if not any(name in loop for name in channels):
        known = " or ".join(f"'loop.{name}' ({_CHANNELS[name]})" for name in channels)
        flaws.wrong((*path, "until"), f"loop node requires a completion channel: set {known}")


def _needs_prompt(loop: dict[str, Any], path: Steps, flaws: Flaws) -> None:
    _needs_channel(loop, path, flaws, ("until", "until_bash", "until_field"))
    prompt, command = loop.get("prompt"), loop.get("command")
    if prompt and command:
        flaws.wrong(
            (*path, "command"),
            "loop node accepts exactly one of 'loop.prompt' or 'loop.command' (both were provided)",
        )
    elif not prompt and not command:
        flaws.wrong(
            (*path, "prompt"),
            "loop node requires either 'loop.prompt' (inline) or 'loop.command' (file)",
        )
    if command and not is_plain_name(command):
        bad = (
            f'invalid command name "{command}" — must not contain path separators, '
            "'..', or start with '.'"
        )
        flaws.wrong((*path, "command"), bad)


def _needs_group_channel(group: dict[str, Any], path: Steps, flaws: Flaws) -> None:
    _needs_channel(group, path, flaws, ("until", "until_bash"))


_LOOP_CONTROL: dict[str, Shape] = {
    "until": Text(blank="'loop.until' must be a non-blank completion signal string"),
    "max_iterations": Number(
        whole=True, above=0, otherwise="'loop.max_iterations' must be a positive integer"
    ),
    "fresh_context": boolean,
    "until_bash": Text(blank="'loop.until_bash' must be a non-blank shell script"),
    "interactive": boolean,
    "gate_message": _TEXT,
    "signal_completes": boolean,
}

LOOP: Final = Fields(
    {
        **_LOOP_CONTROL,
        "prompt": Text(empty="'loop.prompt' must be a non-empty string"),
        "command": Text(trimmed=True, empty="'loop.command' must be a non-empty string"),
        "until_field": Text(
            trimmed=True,
            empty="'loop.until_field' must name a property in the node's output_format",
        ),
    },
    required=frozenset({"max_iterations"}),
    defaults={"fresh_context": False},
    rules=(_needs_gate_message, _needs_prompt),
)


def loop_group(node: Shape) -> Fields:
    """Return the fields of a group of nodes that are run again and again, given the shape of a
    node.
    """
    return Fields(
        {
            **_LOOP_CONTROL,
            "nodes": ListOf(node, empty="'loop_group.nodes' must have at least one node"),
        },
        required=frozenset({"max_iterations", "nodes"}),
        defaults={"fresh_context": False},
        rules=(_needs_gate_message, _needs_group_channel),
    )


_BETWEEN_RETRIES = "'retry.max_attempts' must be between 1 and 5"
_BETWEEN_DELAYS = "'retry.delay_ms' must be a number between 1000 and 60000"

RETRY: Final = Fields(
    {
        "max_attempts": Number(whole=True, least=1, most=5, otherwise=_BETWEEN_RETRIES),
        "delay_ms": Number(least=1000, most=60000, otherwise=_BETWEEN_DELAYS),
        "on_error": OneOf(("transient", "all")),
    },
    required=frozenset({"max_attempts"}),
)

_HOOK = Fields(
    {"matcher": _TEXT, "response": RecordOf(anything), "timeout": Number(above=0)},
    required=frozenset({"response"}),
)
HOOKS: Final = Fields(dict.fromkeys(HOOK_EVENTS, ListOf(_HOOK)), others="refuse")

AGENT: Final = Fields(
    {
        "description": Text(empty="'description' is required"),
        "prompt": Text(empty="'prompt' is required"),
        "model": _WORDY,
        "tools": _WORDY_TEXTS,
        "disallowedTools": _WORDY_TEXTS,
        "skills": _WORDY_TEXTS,
        "maxTurns": Number(whole=True, above=0),
    },
    required=frozenset({"description", "prompt"}),
)

PI: Final = Fields(
    {
        "enableExtensions": boolean,
        "interactive": boolean,
        "extensionFlags": RecordOf(Either((boolean, _TEXT))),
    },
)

BETAS: Final = ListOf(_WORDY, empty="'betas' must be a non-empty array")

SANDBOX: Final = Fields(
    {
        "enabled": boolean,
        "autoAllowBashIfSandboxed": boolean,
        "allowUnsandboxedCommands": boolean,
        "network": Fields(
            {
                "allowedDomains": _TEXTS,
                "allowManagedDomainsOnly": boolean,
                "allowUnixSockets": _TEXTS,
                "allowAllUnixSockets": boolean,
                "allowLocalBinding": boolean,
                "httpProxyPort": Number(),
                "socksProxyPort": Number(),
            },
        ),
        "filesystem": Fields({"allowWrite": _TEXTS, "denyWrite": _TEXTS, "denyRead": _TEXTS}),
        "ignoreViolations": RecordOf(_TEXTS),
        "enableWeakerNestedSandbox": boolean,
        "enableWeakerNetworkIsolation": boolean,
        "excludedCommands": _TEXTS,
        "ripgrep": Fields({"command": _TEXT, "args": _TEXTS}, required=frozenset({"command"})),
    },
    others="keep",
)

CONTEXT: Final = Fields(
    {"resume": Text(trimmed=True, empty="'context.resume' must name a node")},
    required=frozenset({"resume"}),
)

ON_REJECT: Final = Fields(
    {
        "prompt": Text(empty="'on_reject.prompt' must be a non-empty string"),
        "max_attempts": Number(whole=True, least=1, most=10),
    },
    required=frozenset({"prompt"}),
)

_KEBAB_DECISION = (
    "'approval.decisions[].id' must be kebab-case (lowercase letters, digits, "
    "single hyphens — e.g. 'approve', 'needs-revision')"
)
DECISION: Final = Fields(
    {
        "id": Text(
            trimmed=True,
            empty="'approval.decisions[].id' must not be empty",
            pattern=KEBAB,
            otherwise=_KEBAB_DECISION,
        ),
        "label": _WORDY,
    },
    required=frozenset({"id"}),
)

APPROVAL: Final = Fields(
    {
        "message": Text(empty="'approval.message' must not be empty"),
        "decisions": ListOf(
            DECISION, empty="'approval.decisions' must declare at least one decision"
        ),
        "capture_response": boolean,
        "on_reject": ON_REJECT,
    },
    required=frozenset({"message"}),
)

FAN_OUT: Final = Fields(
    {
        "items": Text(
            empty="'fan_out.items' must reference a node output that produces a JSON array"
        ),
        "as": _TEXT,
        "max_parallel": Number(
            whole=True, least=1, otherwise="'fan_out.max_parallel' must be >= 1"
        ),
        "join": OneOf(("all_success", "all_done", "first_success")),
    },
    required=frozenset({"items"}),
    defaults={"max_parallel": 5, "join": "all_done"},
)

WAITS: Final = ("duration_ms", "until", "event", "attention")
"""Fields of which a wait has exactly one."""


def _one_wait(wait: dict[str, Any], path: Steps, flaws: Flaws) -> None:
    given = [name for name in WAITS if name in wait]
    if len(given) != 1:
        named = ", ".join(f"'wait.{name}'" for name in WAITS)
        flaws.wrong(path, f"a wait node has exactly one of {named}")
        return
    if ("deadline_ms" in wait) != (given[0] == "event"):
        flaws.wrong(
            (*path, "deadline_ms"),
            "'wait.event' needs 'wait.deadline_ms', and it alone has one",
        )
    until = wait.get("until", "$")
    if "$" not in until and moment(until) is None:
        flaws.wrong((*path, "until"), f"'wait.until' must be {MOMENT}, not '{until}'")


def _milliseconds(name: str) -> Number:
    return Number(above=0, otherwise=f"'wait.{name}' must be a positive number (ms)")


WAIT: Final = Fields(
    {
        "duration_ms": _milliseconds("duration_ms"),
        "until": Text(empty="'wait.until' must not be empty"),
        "event": Text(trimmed=True, empty="'wait.event' must name an event"),
        "deadline_ms": _milliseconds("deadline_ms"),
        "attention": Text(empty="'wait.attention' must not be empty"),
    },
    rules=(_one_wait,),
)

COMMON: Final[dict[str, Shape]] = {
    "id": _TEXT,
    "description": _TEXT,
    "depends_on": _TEXTS,
    "when": _TEXT,
    "trigger_rule": OneOf(TRIGGER_RULES),
    "model": _TEXT,
    "provider": Text(trimmed=True, empty=""),
    "context": Either((OneOf(("fresh", "shared")), CONTEXT)),
    "output_format": RecordOf(anything),
    "allowed_tools": _TEXTS,
    "denied_tools": _TEXTS,
    "idle_timeout": Number(),
    "retry": RETRY,
    "hooks": HOOKS,
    "mcp": Text(empty="'mcp' must be a non-empty string path"),
    "skills": ListOf(Text(empty="each skill must be a non-empty string")),
    "plugins": ListOf(Text(empty="each plugin must be a non-empty string")),
    "agents": RecordOf(AGENT, rule=_agent_rules),
    "pi": PI,
    "effort": OneOf(EFFORTS),
    "thinking": thinking,
    "maxBudgetUsd": Number(above=0),
    "systemPrompt": _WORDY,
    "fallbackModel": _WORDY,
    "settingSources": ListOf(OneOf(("project", "user"))),
    "betas": BETAS,
    "sandbox": SANDBOX,
    "always_run": boolean,
    "mutates_checkout": boolean,
    "persist_session": boolean,
    "output_type": _WORDY,
    "effect": OneOf(("external",)),
}
"""The fields that every node may have. ``effect`` is ours: the original ignores it."""

MODES: Final = (
    "command", "prompt", "bash", "loop", "loop_group", "approval", "wait", "cancel", "script",
    "include", "workflow",
)  # fmt: skip
"""The fields of which a node has exactly one, its mode."""


def modes(group: Shape) -> dict[str, Shape]:
    """Return the fields that say what a node does, and those that go with one of these, given the
    shape of a group.
    """
    return {
        "command": _TEXT,
        "prompt": _TEXT,
        "bash": _TEXT,
        "loop": LOOP,
        "loop_group": group,
        "approval": APPROVAL,
        "wait": WAIT,
        "cancel": _TEXT,
        "include": Text(empty="'include' must be a non-empty workflow name"),
        "workflow": Text(empty="'workflow' must be a non-empty workflow name"),
        "input": _TEXT,
        "isolation": OneOf(("inherit", "worktree")),
        "fan_out": FAN_OUT,
        "with": anything,
        "script": _TEXT,
        "runtime": OneOf(("bun", "uv")),
        "deps": ListOf(Text(empty="each dep must be a non-empty string")),
        "timeout": Number(),
        "on_timeout": OneOf(("fail", "skip")),
    }
