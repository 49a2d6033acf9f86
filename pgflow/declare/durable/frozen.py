"""Input of a run: everything that it can read, as it was at its start.

Edits of a file do not change its runs that have started: the graph, the texts of commands, named
scripts, stubs and rewritten shells travel in the input. A child run freezes its own when it starts,
so a run may write a workflow and then call it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from pgflow.declare.durable.programs import Program
from pgflow.declare.durable.shell import Shell
from pgflow.declare.graph import Graph
from pgflow.declare.graph.graph import Part


class StageFile(Part):
    """A file that a stage reads or writes.

    Args:
        name: Name in the state, or what the contract calls it.
        location: Path in the workspace. One that ends with a slash is a folder; placeholders in
            brackets and asterisks stand for any name.
        writer: Stage that writes it.
        is_required: True if the stage needs it, or owes it.
    """

    name: str
    location: str
    writer: str | None = None
    is_required: bool = False


class Stage(Part):
    """A stage's files.

    Args:
        base: Its folder in the workspace.
        reads: Files that it reads.
        writes: Files that it writes.
    """

    base: str
    reads: tuple[StageFile, ...] = ()
    writes: tuple[StageFile, ...] = ()


class Workspace(Part):
    """Files of a workspace's stages.

    Args:
        stages: The stages by their ids.
        left_out: Paths that a contract names and no run opens, since they lead out of the
            workspace.
    """

    stages: dict[str, Stage] = Field(default_factory=dict)
    left_out: tuple[str, ...] = ()


class Frozen(Part):
    """A workflow with every text that a run of it can read.

    Args:
        format: Number of this form; a worker that does not know it refuses the run.
        graph: The workflow.
        commands: Texts of commands by name; those that are missing are not there.
        programs: Programs of script nodes as they are run, by what the node says: its text, or the
            name of a file. A name that is missing was not found.
        typed: Names of programs whose files are TypeScript.
        shells: Shell scripts as they are run, by their authors' text.
        source: The file that it was read from; children are looked for in its tree.
        search: Folders in which they are looked for after that.
        workspace: Files of its stages, if it is an ICM workspace.
    """

    format: Literal[1] = 1
    graph: Graph
    commands: dict[str, str] = Field(default_factory=dict)
    programs: dict[str, Program] = Field(default_factory=dict)
    typed: tuple[str, ...] = ()
    shells: dict[str, Shell] = Field(default_factory=dict)
    source: str = ""
    search: tuple[str, ...] = ()
    workspace: Workspace | None = None


class Preset(Part):
    """Model that a word of a file names: ``small``, ``medium``, ``large`` or an ``@alias``.

    Args:
        model: Name of the model.
        provider: Provider that has it, in the words of the config; empty if the config names none.
        effort: Effort of nodes that set none.
    """

    model: str
    provider: str = ""
    effort: str | None = None


_LATER: Final = (
    "models", "conversation", "providers", "assistant", "assistant_models", "artifacts"
)  # fmt: skip
"""Settings that the first workers of files did not know."""


class Settings(Part):
    """Settings of a run, which its children have too.

    Args:
        cwd: Working folder of its programs, made absolute.
        provider: Provider of the turns of agents, as in ``cmd:claude -p``.
        providers: Providers by the names that files use for them, where they differ.
        assistant: Provider of nodes that name none, in the words of the config.
        assistant_models: Models of providers, by their words, for nodes that name none.
        stubs: Outputs of nodes that are given instead of made, by node.
        env: Names of environment variables of the worker that programs get too.
        variables: More variables of theirs, with their values: those of the config.
        secrets: Names of more of them, whose values are taken out of all that is recorded.
        models: Models by the words that files use for them: those of the config.
        ignored: Limits of a file that may be overlooked, by field.
        has_budget: True if the run draws on a pool, which is asked before each turn of an agent.
        parallel: Most nodes at work at once.
        base_branch: ``$BASE_BRANCH``; empty if it is not known.
        docs_dir: ``$DOCS_DIR``.
        context: ``$CONTEXT``.
        dialect: Family whose rules hold where they differ: a rejection cancels a run of ``archon``,
            and fails the node of ``ion``.
        requested: Stages that run only on request, and were requested at the start.
        chain: True if agents may have the SOPs carried out that their steps name.
        lease: Right to the working folder. A run that may change it has it alone: with ``wait`` it
            waits for the run that works there, with ``refuse`` it fails instead. ``share`` lets
            others in.
        worktree: True if the run works in a git worktree of its own.
        conversation: Name of the conversation whose sessions the run continues; empty for none.
        home: Folder with the run's own folders, if that is not the one that it works in.
        artifacts: Folder of the run's artifacts, if that is the one of the run around it.
        depth: Number of runs around this one.
    """

    cwd: Annotated[str, AfterValidator(os.path.abspath)]
    provider: str | None = None
    providers: dict[str, str] = Field(default_factory=dict)
    assistant: str = ""
    assistant_models: dict[str, str] = Field(default_factory=dict)
    stubs: dict[str, JsonValue] = Field(default_factory=dict)
    env: tuple[str, ...] = ()
    variables: dict[str, str] = Field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    models: dict[str, Preset] = Field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    has_budget: bool = False
    parallel: int = 8
    base_branch: str = ""
    docs_dir: str = "docs/"
    context: str = ""
    dialect: Literal["archon", "ion"] = "archon"
    requested: tuple[str, ...] = ()
    chain: bool = False
    lease: Literal["wait", "refuse", "share"] = "wait"
    worktree: bool = False
    conversation: str = ""
    home: str = ""
    artifacts: str = ""
    depth: int = 0

    @model_serializer(mode="wrap")
    def _without_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer fields that are empty, since workers of older versions read this too."""
        dumped: dict[str, Any] = dump(self)
        for name in _LATER:
            if not dumped[name]:
                del dumped[name]
        return dumped


_NEAR: Final = {
    "small": ("small", "medium", "large"),
    "medium": ("medium", "large", "small"),
    "large": ("large", "medium", "small"),
}
"""Tiers, each with its substitutes."""

TIERS: Final = tuple(_NEAR)


def preset_of(models: Mapping[str, Preset], word: JsonValue) -> Preset | None:
    """Return the model that a word names; None if it is a model's own name, or unknown."""
    names = _NEAR.get(word, (word,)) if isinstance(word, str) else ()
    return next((models[name] for name in names if name in models), None)


def is_word(model: JsonValue) -> bool:
    """Return True for a tier or an alias."""
    return isinstance(model, str) and (model in TIERS or model.startswith("@"))
