"""Building: nodes as a file has them become nodes of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pgflow.declare.dag.drafts import OF_AGENTS, Draft
from pgflow.declare.dag.workflow import Options
from pgflow.declare.graph import (
    Approval,
    Bash,
    Binding,
    Body,
    Budget,
    Call,
    Cancel,
    Command,
    Decision,
    Effect,
    FanOut,
    Graph,
    Group,
    Input,
    Loop,
    Node,
    Position,
    Prompt,
    Retry,
    Rework,
    Script,
    Until,
    Wait,
)
from pgflow.declare.text.conditions import parse_condition
from pgflow.declare.text.scripts import is_inline
from pgflow.declare.text.yamlfile import Marked, Steps


class Places:
    """Places in the source: file, line and column of each node and field of a graph."""

    def __init__(self, documents: dict[str, Marked]) -> None:
        self.documents = documents

    def at(self, node: Draft, path: Steps = ()) -> Position:
        """Return the position of a node, or of a field of it."""
        line, column = self.documents[node.file].place((*node.path, *path))
        return Position(file=node.file, line=line, column=column)


def build_graph(
    head: dict[str, Any], options: Options, nodes: tuple[Draft, ...], places: Places, file: str
) -> Graph:
    """Return the graph of a valid workflow without includes.

    Args:
        head: The file's top level, with a name and a description.
        options: Options that it gives of itself.
        nodes: Its nodes, with those of what it includes.
        places: Places of all of it.
        file: The file's name.

    Returns:
        The graph.
    """
    return Graph(
        name=head["name"],
        description=head["description"],
        inputs=tuple(_inputs(options, places.documents[file], file)),
        nodes=tuple(build_node(node, places) for node in nodes),
        returns=options.returns,
        outcome_field=options.outcome_field,
        interactive=bool(options.interactive),
        options=options.values,
        files=tuple(places.documents),
    )


def _inputs(options: Options, document: Marked, file: str) -> Iterator[Input]:
    for name, declared in options.inputs.items():
        line, column = document.place(("inputs", name))
        yield Input(
            name=name,
            required=declared.get("required", False),
            default=declared.get("default"),
            has_default="default" in declared,
            description=declared.get("description", ""),
            position=Position(file=file, line=line, column=column),
        )


def build_node(node: Draft, places: Places) -> Node:
    """One node of the graph."""
    fields = node.fields
    when = fields.get("when")
    budget = fields.get("maxBudgetUsd")
    return Node(
        id=node.id,
        body=_body(node, places),
        description=fields.get("description", ""),
        depends_on=tuple(node.depends_on),
        trigger_rule=fields.get("trigger_rule", "all_success"),
        when=None if when is None else parse_condition(when, places.at(node, ("when",))),
        retry=_retry(fields.get("retry")),
        timeout_ms=fields.get("timeout"),
        keeps_checkout=fields.get("mutates_checkout") is False,
        skips_when_late=fields.get("on_timeout") == "skip",
        idle_timeout_ms=fields.get("idle_timeout"),
        always_run=fields.get("always_run", False),
        output_schema=fields.get("output_format"),
        output_type=fields.get("output_type"),
        arguments=tuple(_bindings(node)),
        effects=(Effect(system="external", risk="irreversible"),) if "effect" in fields else (),
        budget=None if budget is None else Budget(max_usd=budget),
        agent={name: fields[name] for name in OF_AGENTS if name in fields},
        position=places.at(node),
    )


def _body(node: Draft, places: Places) -> Body:
    fields = node.fields
    match node.mode:
        case "prompt":
            return Prompt(text=fields["prompt"])
        case "command":
            return Command(name=fields["command"])
        case "bash":
            return Bash(script=fields["bash"])
        case "script":
            dependencies = tuple(fields.get("deps", ()))
            script = fields["script"]
            return Script(
                script=script,
                runtime=fields["runtime"],
                inline=is_inline(script),
                dependencies=dependencies,
            )
        case "cancel":
            return Cancel(reason=fields["cancel"])
        case "wait":
            return Wait(**fields["wait"])
        case "approval":
            return _approval(fields["approval"])
        case "loop":
            loop = fields["loop"]
            return Loop(
                text=loop.get("prompt"),
                command=loop.get("command"),
                until=_until(loop),
                **_iteration(loop),
            )
        case "loop_group":
            group, body = (
                fields["loop_group"],
                tuple(build_node(inner, places) for inner in node.body),
            )
            return Group(until=_until(group), nodes=body, **_iteration(group))
    return _call(fields)


def _until(loop: dict[str, Any]) -> Until:
    return Until(
        max_iterations=int(loop["max_iterations"]),
        signal=loop.get("until"),
        bash=loop.get("until_bash"),
        field=loop.get("until_field"),
    )


def _iteration(loop: dict[str, Any]) -> dict[str, Any]:
    names = ("fresh_context", "interactive", "gate_message", "signal_completes")
    return {name: loop[name] for name in names if name in loop}


def _approval(approval: dict[str, Any]) -> Approval:
    rework = approval.get("on_reject")
    return Approval(
        message=approval["message"],
        capture_response=approval.get("capture_response", False),
        on_reject=None
        if rework is None
        else Rework(text=rework["prompt"], max_attempts=int(rework.get("max_attempts", 3))),
        decisions=tuple(
            Decision(id=decision["id"], label=decision.get("label", ""))
            for decision in approval.get("decisions", ())
        ),
    )


def _call(fields: dict[str, Any]) -> Call:
    fan_out = fields.get("fan_out")
    return Call(
        name=fields.get("workflow") or fields["include"],
        message=fields.get("input"),
        isolation=fields.get("isolation"),
        fan_out=None if fan_out is None else _fan_out(fan_out),
        is_block="include" in fields,
    )


def _fan_out(fan_out: dict[str, Any]) -> FanOut:
    name = {"item_name": fan_out["as"]} if "as" in fan_out else {}
    return FanOut(
        items=fan_out["items"],
        max_parallel=int(fan_out["max_parallel"]),
        join=fan_out["join"],
        **name,
    )


def _retry(retry: dict[str, Any] | None) -> Retry | None:
    if retry is None:
        return None
    given = {name: retry[name] for name in ("delay_ms", "on_error") if name in retry}
    return Retry(max_retries=int(retry["max_attempts"]), **given)


def _bindings(node: Draft) -> Iterator[Binding]:
    """Yield the arguments of a node. A mapping is a reference with a default on nodes of one's own,
    and a value for a child run.
    """
    own = node.fields.get("with", {})
    yield from (
        Binding(name=name, value=value) for name, value in node.inputs.items() if name not in own
    )
    for name, value in own.items():
        if isinstance(value, dict) and node.mode not in ("workflow", "include"):
            skipped = (
                {"if_skipped": value["if_skipped"], "has_if_skipped": True}
                if "if_skipped" in value
                else {}
            )
            yield Binding(name=name, source=value["from"], **skipped)
        else:
            yield Binding(name=name, value=value)
