"""Turns of a stage: the words to its agent, one turn after the other, and the keys of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pgflow.declare.durable.frozen import Stage
from pgflow.declare.durable.providers import Turn
from pgflow.declare.durable.stages import prompts
from pgflow.declare.durable.stages.files import Tree
from pgflow.declare.durable.stages.looks import shown
from pgflow.declare.play.interpreter import Task

MOST_SHOWN_BYTES: Final = 64 << 10
"""Longest file that is put into a prompt; a longer one is named only."""


class Telling:
    """The turns of one stage: its prompt, the dialogue since, and the next keys.

    Args:
        task: The stage's task.
        stage: Its files.
        tree: The folder that the run works in.
    """

    def __init__(self, task: Task, stage: Stage, tree: Tree) -> None:
        self.task = task
        self.node = task.node
        self.id = task.node.id
        self.stage = stage
        self.tree = tree
        self.first = prompts.whole(task.text, stage, task.variables.message)
        self.prompt = self.first
        self.dialogue: list[str] = []
        self.counts: Counter[str] = Counter()

    def hear(self, said: str) -> None:
        """Add what was heard before the stage's first turn."""
        self.prompt = prompts.joined(self.prompt, said)

    def remember(self, said: str) -> None:
        """Add words between two turns to the dialogue."""
        self.dialogue.append(said)

    def key(self, kind: str) -> str:
        """Return the next key of a kind of step; the first has no number."""
        self.counts[kind] += 1
        key = f"{self.id}:{kind}" if kind else self.id
        return key if self.counts[kind] == 1 else f"{key}#{self.counts[kind]}"

    def turn_task(
        self, kind: str, *more: str, whole: str | None = None, schema: JsonValue = None
    ) -> tuple[Task, Callable[[Turn], Turn]]:
        """Return the task of a turn, and what puts the files into its prompt when it is taken."""
        text = whole or prompts.joined(self.prompt, *self.dialogue, *more)
        node = self.node.model_copy(
            update={
                "id": f"{self.id}:{kind}" if kind else self.id,
                "effects": (),
                "output_schema": schema,
                "idle_timeout_ms": self.node.idle_timeout_ms or self.node.timeout_ms,
            }
        )
        reads = self.stage.reads if whole is None else (*self.stage.reads, *self.stage.writes)
        stage, tree = self.stage.model_copy(update={"reads": reads}), self.tree

        def with_files(turn: Turn) -> Turn:
            files = shown(tree, stage, MOST_SHOWN_BYTES)
            return replace(turn, prompt=prompts.joined(turn.prompt, files))

        return replace(self.task, node=node, text=text), with_files
