"""Agents of nodes: the provider that takes the turns of each, with its model and effort.

A file names providers by words, such as ``claude``. The word of a node is that of its model, where
that is a tier or an alias of the config; else its own; else that of the workflow; else the
``assistant`` of the config. `Settings.providers` maps words to providers. The provider of the run
takes the turns of all others; without one, ``claude``, ``codex`` and ``gemini`` mean themselves.

The model of a workflow is that of its nodes, except those of another provider.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from pgflow.declare.durable.frozen import Preset, Settings, preset_of
from pgflow.declare.durable.providers import Provider, make_provider
from pgflow.declare.graph import Command, Graph, Loop, Node, Prompt, every_node

KNOWN: Final = ("claude", "codex", "gemini")
"""Words that mean a provider of that name."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Agent of a node.

    Args:
        word: Its provider in the words of files; empty if none is named.
        spec: The provider that takes its turns, as in ``cmd:claude -p``; None if there is none.
        fields: The fields that the file gives for it, with its model and effort.
    """

    word: str
    spec: str | None
    fields: Mapping[str, JsonValue]

    @property
    def name(self) -> str:
        """Name of the provider; empty if there is none."""
        return (self.spec or "").partition(":")[0]


class Agents:
    """The agents of the nodes of a workflow.

    Args:
        graph: The workflow.
        settings: Settings of its run.
    """

    def __init__(self, graph: Graph, settings: Settings) -> None:
        self._graph = graph
        self._settings = settings
        self._made: dict[str, Provider] = {}
        model = graph.options.get("model")
        self._preset = preset_of(settings.models, model)
        provider = _text(graph.options.get("provider")) or settings.assistant
        self._word = _provider_of(self._preset) or provider
        self._model = (
            model if self._preset is None else self._preset.model
        ) or settings.assistant_models.get(self._word)

    @property
    def default(self) -> str:
        """Name of the provider of nodes that name none; empty if there is none."""
        return (self._spec(self._word) or "").partition(":")[0]

    def of(self, node: Node) -> Agent:
        """Return the agent of a node."""
        own = node.agent.get("model")
        preset = preset_of(self._settings.models, own)
        model: JsonValue
        word = _provider_of(preset) or _text(node.agent.get("provider")) or self._word
        inherits = word == self._word
        if own is not None:
            model = own if preset is None else preset.model
        elif inherits:
            model, preset = self._model, self._preset
        else:
            model = self._settings.assistant_models.get(word)
        effort = node.agent.get("effort") or self._graph.options.get("effort")
        options = {"model": model, "effort": effort or (None if preset is None else preset.effort)}
        fields = {name: value for name, value in options.items() if value is not None}
        return Agent(word, self._spec(word), {**node.agent, **fields})

    def _spec(self, word: str) -> str | None:
        """Return the provider that is meant by a word."""
        given = self._settings.providers.get(word, self._settings.provider)
        return f"{word}:" if given is None and word in KNOWN else given

    def provider(self, node: Node) -> Provider | None:
        """Return the provider that takes the turns of a node; None without one.

        Raises:
            InvalidArgument: The provider is unknown, or cannot be made.
        """
        spec = self.of(node).spec
        if spec is None:
            return None
        if spec not in self._made:
            self._made[spec] = make_provider(spec)
        return self._made[spec]

    def turns(self) -> list[Node]:
        """Return the nodes that are turns of an agent, and have no stub."""
        return [
            node
            for node in every_node(self._graph.nodes)
            if takes_turns(node) and node.id not in self._settings.stubs
        ]

    def unserved(self) -> list[str]:
        """Return the ids of turns without a provider."""
        return [node.id for node in self.turns() if self.of(node).spec is None]

    def unmeant(self, words: Iterable[str]) -> list[str]:
        """Return those of some words that no agent of the workflow has."""
        meant = {self.of(node).word for node in self.turns()}
        return [word for word in words if word not in meant]


def takes_turns(node: Node) -> bool:
    """Return True if a node is one turn of an agent, or many."""
    return isinstance(node.body, Prompt | Command | Loop)


def _provider_of(preset: Preset | None) -> str:
    return "" if preset is None else preset.provider


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
