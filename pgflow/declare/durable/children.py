"""Children: the workflows that a node calls, each a run of its own that freezes its own texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pydantic import BaseModel, ConfigDict, JsonValue

import pgflow
from pgflow.declare.durable.agents import Agents
from pgflow.declare.durable.freezing import can_pause, freeze_named, freeze_sop
from pgflow.declare.durable.frozen import Frozen, Settings
from pgflow.declare.durable.lease import Lease
from pgflow.declare.durable.limits import refused
from pgflow.declare.durable.long import restored
from pgflow.declare.durable.parameters import asked_for
from pgflow.declare.durable.results import Result
from pgflow.declare.graph import Call, Graph
from pgflow.declare.play.fanout import Child, ChildCall, child_calls, joined
from pgflow.declare.play.interpreter import Task
from pgflow.declare.text.outputs import Output, Outputs, UnresolvableReference, completed
from pgflow.errors import (
    InvalidArgument,
    InvalidWorkflow,
    NotStorable,
    RunCancelled,
    RunFailed,
    StepFailed,
)

MOST_DEPTH: Final = 5
"""Most runs that are inside each other."""

_TOO_DEEP: Final = f"workflows call each other more than {MOST_DEPTH} deep"


class Children:
    """Starts the children of one run, and joins their results.

    Args:
        declared: The workflow that runs each of them.
        frozen: The workflow that calls them.
        settings: Settings of its run.
        lease: Lease on its folder, under which they work.
    """

    def __init__(
        self,
        declared: pgflow.Workflow[..., Result],
        frozen: Frozen,
        settings: Settings,
        lease: Lease,
    ) -> None:
        self.declared = declared
        self.frozen = frozen
        self.settings = settings
        self.lease = lease

    async def call(self, key: str, task: Task, outputs: Outputs) -> Output:
        """Run another workflow, or one for each item of a list.

        Args:
            key: Key of the node.
            task: Its task.
            outputs: Outputs that it can read.

        Returns:
            The output of the node.
        """
        body, stubs = task.node.body, self.settings.stubs
        assert isinstance(body, Call)
        if task.node.id in stubs:
            return completed(stubs[task.node.id], task.node.output_schema)
        if self.settings.depth >= MOST_DEPTH:
            return _failed(_TOO_DEEP)
        try:
            calls = child_calls(task.node, task.variables, outputs)
        except UnresolvableReference as error:
            return _failed(str(error))
        if not calls and body.fan_out is not None:
            return joined(body.fan_out, ())
        found = await self._freeze(f"{key}:freeze", body, len(calls))
        if found.frozen is None:
            return _failed(found.error)
        children = await self._all(found.frozen, calls, body, task.variables.artifacts_dir)
        return _of_child(children[0]) if body.fan_out is None else joined(body.fan_out, children)

    async def _freeze(self, key: str, body: Call, size: int) -> _Found:
        """Read the workflow that is called, as it is now."""
        origin, is_many = self.frozen, body.fan_out is not None

        def freeze(name: str) -> Frozen:
            frozen = freeze_named(name, origin.source, origin.search)
            if not self._are_apart(body):
                _refuse_crowd(body, frozen.graph, size)
            return frozen

        found = await self._found(key, body.name, freeze)
        if is_many and found.frozen is not None and can_pause(found.frozen.graph):
            return _Found(error=f"workflow '{body.name}' may wait for a person, for each item")
        return found

    async def run_file(
        self, key: str, file: str, message: str, inputs: dict[str, JsonValue]
    ) -> Child:
        """Run the SOP of a file, as it is now.

        Args:
            key: Key of what asks for it.
            file: Its file.
            message: The user's message to it.
            inputs: Values of its parameters; it asks for those that it needs besides.
        """
        if self.settings.depth >= MOST_DEPTH:
            return Child("failed", error=_TOO_DEEP)
        found = await self._found(f"{key}:freeze", file, freeze_sop)
        if found.frozen is None:
            return Child("failed", error=found.error)
        names = [one.name for one in found.frozen.graph.inputs]
        if unknown := [name for name in inputs if name not in names]:
            has = ", ".join(names) or "none"
            return Child("failed", error=f"it has no parameter {', '.join(unknown)}: it has {has}")
        settings = self.settings.model_copy(
            update={"depth": self.settings.depth + 1, "artifacts": ""}
        )
        return await self._one(found.frozen, settings, ChildCall(message, inputs))

    async def _found(self, key: str, name: str, freeze: Callable[[str], Frozen]) -> _Found:
        """Read a workflow in a step, so that it is read once."""

        def read(name: str) -> _Found:
            try:
                frozen = freeze(name)
            except InvalidWorkflow as error:
                return _Found(error=str(error))
            if why := self._refused(frozen.graph):
                return _Found(error=f"workflow '{name}': {why}")
            return _Found(frozen=frozen)

        try:
            return await pgflow.call(key, read, name, returns=_Found, retries=3)
        except StepFailed as error:
            return _Found(error=str(error))

    def _refused(self, graph: Graph) -> str:
        """Return the reason why a run of this one may not call a workflow; empty if it may."""
        try:
            broken = refused(graph, Agents(graph, self.settings), self.settings.ignored)
        except InvalidArgument as error:
            return str(error)
        return next(iter(broken), "")

    async def _all(
        self, frozen: Frozen, calls: tuple[ChildCall, ...], body: Call, artifacts: str
    ) -> list[Child]:
        """Run a child for each call, so many at once, each to its end."""
        settings = self.settings.model_copy(
            update={
                "depth": self.settings.depth + 1,
                "worktree": self._are_apart(body),
                "artifacts": artifacts if body.is_block else "",
            }
        )
        window = asyncio.Semaphore(body.fan_out.max_parallel if body.fan_out else 1)

        async def one(call: ChildCall) -> Child:
            async with window:
                return await self._one(frozen, settings, call)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in calls]
        return [task.result() for task in tasks]

    def _are_apart(self, body: Call) -> bool:
        """Return True for children that work in worktrees of their own."""
        return body.isolation == "worktree" and "isolation" not in self.settings.ignored

    async def _one(self, frozen: Frozen, settings: Settings, call: ChildCall) -> Child:
        """Run one child to its end."""
        inputs = dict(call.inputs)
        if missing := missing_inputs(frozen, inputs):
            return Child("failed", error=missing)
        await self.lease.held()
        try:
            result = await pgflow.run_child(self.declared, frozen, settings, call.message, inputs)
        except RunFailed as error:
            return Child("failed", error=str(error.__cause__ or error))
        except NotStorable as error:
            return Child("failed", error=str(error))
        except RunCancelled as error:
            return Child("cancelled", error=str(error))
        if (long := result.long) is None:
            return Child("completed", result.value if result.has_value else result.output)
        text, value = restored(result.output, long, has_value=result.has_value)
        return Child("completed", value if result.has_value else text, beyond=long.beyond)


def _refuse_crowd(body: Call, graph: Graph, size: int) -> None:
    """Refuse children that would change one folder at the same time.

    Args:
        body: The call of them.
        graph: Their workflow.
        size: Number of them.

    Raises:
        InvalidWorkflow: They would.
    """
    most = 1 if body.fan_out is None else min(body.fan_out.max_parallel, size)
    if most > 1 and graph.options.get("mutates_checkout") is not False:
        apart = "" if body.is_block else "isolation: worktree or "
        raise InvalidWorkflow(
            f"workflow '{body.name}' would run {most} times at once in one folder, and may change "
            f"it: say mutates_checkout: false there if it does not, or {apart}max_parallel: 1 here"
        )


class _Found(BaseModel):
    """A workflow that was found, or the reason why not."""

    model_config = ConfigDict(defer_build=True)  # few workflows call another

    frozen: Frozen | None = None
    error: str = ""


def missing_inputs(frozen: Frozen, given: dict[str, JsonValue]) -> str:
    """Return the reason why a workflow cannot be started with these inputs; empty if it can. What
    its run asks for is not missing.
    """
    known = {*given, *asked_for(frozen.graph)}
    missing = [
        one.name
        for one in frozen.graph.inputs
        if one.required and not one.has_default and one.name not in known
    ]
    return f"{frozen.graph.name} needs input {', '.join(map(repr, missing))}" if missing else ""


def _of_child(child: Child) -> Output:
    """Return the output of the node that called a child which ended."""
    if child.state != "completed":
        return _failed(child.error)
    return replace(completed(child.value), beyond=child.beyond)


def _failed(error: str) -> Output:
    return Output("failed", error=error)
