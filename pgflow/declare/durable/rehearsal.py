"""Code of a dry run that is really run: shells and programs, in the way in which a run does it.

Values reach them as they do there, never as a part of their text, and the environment is the same
allowed part of this process's. A node that acts on the world is not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pgflow.declare.durable.bodies import Done, Job, run_script, run_shell
from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.freezing import freeze
from pgflow.declare.durable.frozen import Settings
from pgflow.declare.durable.player import output_of
from pgflow.declare.durable.results import NodeFailed
from pgflow.declare.durable.works import program_of, shell_of
from pgflow.declare.graph import Bash, Graph, Script
from pgflow.declare.play.interpreter import Task
from pgflow.declare.text.outputs import Output, Outputs, UnresolvableReference

_KEY: Final = "dry-run"


class Rehearsal:
    """Runs the code of one dry run.

    Args:
        graph: The workflow.
        settings: Folder to work in, and variables that programs get too.
        folder: Folder for the files of the run.
        search: Folders to search for scripts, after the workflow's own.

    Raises:
        InvalidWorkflow: A script reads an output where it cannot be placed.
        SetupError: Scripts read outputs, and the extra ``run`` is not installed.
    """

    def __init__(
        self, graph: Graph, settings: Settings, folder: str, search: Iterable[Path] = ()
    ) -> None:
        self._frozen = freeze(graph, search=search)
        self._settings = settings
        self._folders = Folders(folder, _KEY)
        self.directory = str(self._folders.of_run)
        for name in ("artifacts", "state"):
            Path(self.directory, name).mkdir(parents=True, exist_ok=True)

    def run(self, task: Task, outputs: Outputs) -> Output:
        """Run a shell or program to its end.

        Args:
            task: Its task.
            outputs: Outputs that it can read.
        """
        try:
            done = asyncio.run(self._run(task, outputs))
        except (NodeFailed, UnresolvableReference) as error:
            done = Done(error=str(error))
        return output_of(done.whole(), task.node)

    async def _run(self, task: Task, outputs: Outputs) -> Done:
        node, body = task.node, task.node.body
        job = Job(node, node.id, task.variables, self._settings, self._folders)
        if isinstance(body, Script):
            text = program_of(self._frozen, body, task, outputs)
            return await run_script(job, body, text, typed=body.script in self._frozen.typed)
        assert isinstance(body, Bash)
        text, values = shell_of(self._frozen, node, body.script, task.variables, outputs)
        return await run_shell(job.with_values(values), text)
