"""Limits and wishes of a file that a run cannot keep, found and named before it begins.

A limit on what an agent or a run may do is never dropped silently: such a file is refused, unless
you name the limit as one to ignore (`refused`). Everything else that would not be done as written
gives a warning at the start of the run (`overlooked`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from pgflow.declare.dag.drafts import meaningless, read_node
from pgflow.declare.durable.agents import KNOWN, Agent, Agents, takes_turns
from pgflow.declare.durable.conversations import asks
from pgflow.declare.durable.frozen import Frozen, Settings, Workspace, is_word
from pgflow.declare.durable.providers import Provider
from pgflow.declare.durable.schemas import why_no_schema
from pgflow.declare.graph import Call, Command, Graph, Group, Loop, Node, Prompt, Script, every_node
from pgflow.declare.text.yamlfile import YamlError, decode, read_bytes, read_yaml

BUDGET: Final = "maxBudgetUsd"
SAFETY: Final = frozenset({"allowed_tools", "denied_tools", "sandbox", "hooks", BUDGET})
"""Fields of a node that limit its agent."""

_HINTS: Final = frozenset({"model", "effort", "thinking", "provider", "fallbackModel"})
"""Fields that any provider may overlook: the work is the same, done by another or dearer mind."""

_OF_AGENTS: Final = frozenset({"sandbox", "webSearchMode", "betas", "persist_sessions", *_HINTS})
"""Fields of a workflow that speak of all its agents."""


def refused(graph: Graph, agents: Agents, ignored: Iterable[str] = ()) -> list[str]:
    """Limits that a run would not keep, as sentences that name the node.

    Args:
        graph: The workflow.
        agents: The agents of its nodes.
        ignored: Fields that may be overlooked.

    Raises:
        InvalidArgument: A provider cannot be made.
    """
    may = frozenset(ignored)
    return [sentence for field, sentence in _limits(graph, agents) if field not in may]


def _limits(graph: Graph, agents: Agents) -> Iterator[tuple[str, str]]:
    """Yield every limit that is not kept: the field, and a sentence."""
    if _is_enabled(graph.options.get("container")):
        yield "container", "the workflow asks for a container, and runs have none"
    turns = [node for node in every_node(graph.nodes) if takes_turns(node)]
    kept = _kept_by_all(turns, agents)
    if kept is not None:
        for field in sorted(SAFETY - kept):
            if field in graph.options:
                yield field, f"the workflow limits its agents by {field}, {_UNKEPT}"
        if graph.options.get("webSearchMode") == "disabled" and "webSearchMode" not in kept:
            yield "webSearchMode", f"the workflow limits its agents by webSearchMode, {_UNKEPT}"
    for node in every_node(graph.nodes):
        if (provider := agents.provider(node)) is not None:
            for field in sorted(SAFETY - provider.honours):
                if _has(node, field):
                    yield field, f"node '{node.id}' limits its agent by {field}, {_UNKEPT}"


def _kept_by_all(turns: list[Node], agents: Agents) -> frozenset[str] | None:
    """Return the fields that every provider of these turns obeys; None without providers."""
    found = [one for node in turns if (one := agents.provider(node)) is not None]
    return frozenset.intersection(*(one.honours for one in found)) if found else None


_KEPT_OR_REFUSED: Final = ("webSearchMode", "disabled")

_UNKEPT: Final = "which this provider does not keep"


def overlooked(frozen: Frozen, agents: Agents, settings: Settings) -> list[str]:
    """Everything else that a run does not do as its file says, as sentences that name the node.

    Args:
        frozen: The workflow, with the texts that were found.
        agents: The agents of its nodes.
        settings: Settings of the run.
    """
    if frozen.workspace is not None:
        return list(_of_workspace(frozen, frozen.workspace))
    nodes = [node for node in every_node(frozen.graph.nodes) if node.id not in settings.stubs]
    turns = [node for node in agents.turns() if agents.provider(node) is not None]
    return [
        *_dropped(frozen.graph),
        *_of_workflow(frozen.graph, turns, agents),
        *(sentence for node in nodes for sentence in _of_node(node, frozen)),
        *_of_turns(turns, agents),
        *(_of_run(frozen.graph, turns, agents, settings) if turns else ()),
    ]


def _of_run(graph: Graph, turns: list[Node], agents: Agents, settings: Settings) -> Iterator[str]:
    """Yield what depends on how this run is started."""
    yield from sorted({sentence for node in turns for sentence in _of_model(node, agents.of(node))})
    if not settings.conversation and any(asks(graph, node) for node in turns):
        yield "persist_session: sessions are kept for the next run with --conversation NAME only"


def _of_model(node: Node, agent: Agent) -> Iterator[str]:
    """Yield a word for a model that is in no config, and a provider other than the one named."""
    if is_word(model := agent.fields.get("model")):
        yield f"model {model} is in no config: the provider gets the word as it is"
    own = node.agent.get("provider")
    if own is not None and own != agent.word:
        sentence = f"its model {node.agent.get('model')} is of {agent.word}, which takes its turns"
        yield f"node '{node.id}' names the provider {own}, and {sentence}"
    if agent.word not in ("", agent.name) and agent.name in KNOWN:
        yield (
            f"node '{node.id}' is for {agent.word}, and {agent.name} takes its turns: "
            f"--map {agent.word}=PROVIDER names another"
        )


def _of_workspace(frozen: Frozen, workspace: Workspace) -> Iterator[str]:
    from pgflow.declare.durable.stages.plans import FILESYSTEM, acts

    for path in workspace.left_out:
        yield f"{path} lies outside the workspace: it is not looked at, and its hash is not known"
    for node in frozen.graph.nodes:
        for effect in acts(node):
            if effect.system == FILESYSTEM:
                yield (
                    f"stage '{node.id}' acts on the filesystem without an idempotency_key: nothing "
                    "is delivered, and what its agent does is not done again after a crash"
                )


def _dropped(graph: Graph) -> Iterator[str]:
    """Yield the fields that mean nothing on their node, and are not in the graph: the original
    notes them in its log only.
    """
    for file in graph.files if graph.family == "dag" else ():
        try:
            head = read_yaml(decode(read_bytes(Path(file)))[0]).value
        except (OSError, YamlError):
            continue
        for index, raw in enumerate(head["nodes"]):
            node, _ = read_node(raw, ("nodes", index), file)
            for where, field in meaningless(raw, node) if node is not None else ():
                yield f"node '{where.id}' has {field}, which means nothing for {where.mode}"


def _of_workflow(graph: Graph, turns: list[Node], agents: Agents) -> Iterator[str]:
    options = graph.options
    if options.get("requires"):
        yield "requires: not checked, so make sure that all of it is installed"
    providers = [one for node in turns if (one := agents.provider(node)) is not None]
    for field in sorted(_OF_AGENTS - _HINTS - SAFETY):
        has_all = all(field in _honoured(one) for one in providers)
        if not has_all and field in options and (field, options[field]) != _KEPT_OR_REFUSED:
            yield f"the workflow asks for {field}, which this provider does not have"


def _honoured(provider: Provider) -> frozenset[str]:
    """Return the fields that a provider obeys; with sessions of its own, a run can keep them."""
    kept = {"persist_session", "persist_sessions"} if "context" in provider.honours else set()
    return provider.honours | kept


def _of_node(node: Node, frozen: Frozen) -> Iterator[str]:
    """Yield what no provider would change."""
    name = getattr(node.body, "name" if isinstance(node.body, Command) else "command", None)
    if name is not None and name not in frozen.commands:
        yield f"node '{node.id}' will fail: command '{name}' does not exist"
    if isinstance(node.body, Script) and node.body.script not in frozen.programs:
        yield f"node '{node.id}' will fail: script '{node.body.script}' does not exist"
    if isinstance(node.body, Script) and node.body.runtime == "bun" and node.body.dependencies:
        yield f"node '{node.id}' names deps, and bun installs none"
    if node.always_run and (kept := _kept_at_retries(node, frozen.graph)):
        yield f"node '{node.id}' has always_run: a retry keeps {kept} all the same"
    if node.effects and node.retry is not None:
        yield f"node '{node.id}' is external, so it is not retried: its outcome would be unknown"
    checks = node.output_schema is not None and not isinstance(node.body, Call | Group)
    if checks and (why := why_no_schema(node.output_schema)):
        yield f"node '{node.id}': its output_format is not a schema and checks nothing: {why}"
    if isinstance(node.body, Group) and node.output_schema is not None:
        yield f"node '{node.id}' has an output_format, which means nothing for a group"


def _kept_at_retries(node: Node, graph: Graph) -> str:
    """Return what a retry keeps of a node that always runs; empty if it is done again."""
    if node.effects:
        return "what an external node has done"
    if isinstance(node.body, Call):
        return "a called run that completed"
    return "" if node in graph.nodes else "what completed in a group"


def _of_turns(turns: list[Node], agents: Agents) -> Iterator[str]:
    """Yield the wishes that the providers do not grant."""
    forget = []
    for node in turns:
        provider = agents.provider(node)
        assert provider is not None
        if "context" not in provider.honours:
            forget.append(node)
        for field in sorted(set(node.agent) - _honoured(provider) - SAFETY - _HINTS):
            if node.agent[field] not in (None, "fresh", False):
                yield f"node '{node.id}' asks for {field}, which this provider does not have"
    if any(_goes_on(node) and (len(turns) > 1 or _is_loop(node)) for node in forget):
        yield "agents do not remember: each turn begins anew, and knows what its prompt says"


def _goes_on(node: Node) -> bool:
    """Return True if the original could go on in the session of the turn before. Prompts of SOPs
    have all that they need.
    """
    if isinstance(node.body, Prompt) and node.body.tagged:
        return False
    if isinstance(node.body, Loop):
        return not node.body.fresh_context
    return bool(node.depends_on) and node.agent.get("context") != "fresh"


def _is_loop(node: Node) -> bool:
    return isinstance(node.body, Loop)


def _has(node: Node, field: str) -> bool:
    return node.budget is not None if field == BUDGET else node.agent.get(field) is not None


def _is_enabled(policy: JsonValue) -> bool:
    return isinstance(policy, Mapping) and policy.get("enabled") is True
