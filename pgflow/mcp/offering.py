"""Workflows as tools: an assistant starts a run, and gets its result or its key.

A call of a tool lasts a minute or so, and a run may last for weeks. So the tool waits for a while.
If the run has not ended by then, the answer is its key, with which another tool waits on. If the
run asks a person, the answer says so at once, since waiting would not help. A second call with the
same key gets the same run, so a call whose answer was lost may be repeated.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from pgflow import Workflow
from pgflow._flow.step import resolve_hints
from pgflow.app import AsyncApp
from pgflow.errors import InvalidArgument, RunCancelled, RunFailed, RunStuck
from pgflow.inspect import ask_async, find_detail, list_gates
from pgflow.mcp.reading import Tool
from pgflow.mcp.shown import plain

KEY = "run_key"
CONTEXT = "mcp_context"
WAIT = "wait_for_run"
"""Name of the tool that waits on."""
MOST_GATES = 10
ENDS = {RunFailed: "failed", RunCancelled: "cancelled", RunStuck: "stuck"}
MOST_LOOK_SECONDS = 2.0


class Offering:
    """Tools that start runs of workflows, of one app.

    Args:
        app: The app.
        workflows: The workflows.
        wait_seconds: Longest time for which a tool waits for a run.
    """

    def __init__(
        self, app: AsyncApp, workflows: Sequence[Workflow[..., Any]], wait_seconds: float
    ) -> None:
        self._app = app
        self._workflows = {one.name: one for one in workflows}
        self._wait_seconds = wait_seconds
        if len(self._workflows) < len(workflows) or WAIT in self._workflows:
            raise InvalidArgument(
                f"two tools have one name: each workflow needs one of its own, and not {WAIT}"
            )
        for name in (one.name for one in workflows if {KEY, CONTEXT} & _parameters(one).keys()):
            raise InvalidArgument(
                f"workflow {name} has a parameter {KEY} or {CONTEXT}, which its tool needs: "
                "rename it"
            )

    @property
    def tools(self) -> list[Tool]:
        """One for each workflow, and the one that waits on."""
        return [*map(self._tool, self._workflows.values()), self.wait_for_run]

    async def wait_for_run(self, run_key: str, mcp_context: Context[Any, Any]) -> str:
        """Wait for a run that another tool has started, and return its result. run_key: from the
        answer of that tool.
        """
        detail = await ask_async(self._app, find_detail(run_key))
        workflow = self._workflows.get(detail.workflow)
        if workflow is None:
            raise ToolError(f"run {run_key} is of no workflow that is a tool here")
        return await self._answer(run_key, workflow, mcp_context)

    def _tool(self, workflow: Workflow[..., Any]) -> Tool:
        async def start(mcp_context: Context[Any, Any], run_key: str = "", **given: Any) -> str:
            chosen = workflow.options(key=run_key) if run_key else workflow
            run = await self._app.start(chosen, **given)
            return await self._answer(run.key, workflow, mcp_context)

        own = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(KEY, own, default="", annotation=str),
            inspect.Parameter(CONTEXT, own, annotation=Context[Any, Any]),
        ]
        shown = [p.replace(kind=own) for p in _parameters(workflow).values()]
        start.__name__ = workflow.name
        start.__doc__ = _described(workflow)
        start.__annotations__ = {p.name: p.annotation for p in [*shown, *added]}
        start.__signature__ = inspect.Signature([*shown, *added])  # type: ignore[attr-defined]
        return start

    async def _answer(
        self, key: str, workflow: Workflow[..., Any], context: Context[Any, Any]
    ) -> str:
        """Wait for a run, and say what there is to say of it."""
        run = self._app.get(key, workflow)
        until = time.monotonic() + self._wait_seconds
        for look, seconds in enumerate(_looks()):
            left = until - time.monotonic()
            try:
                value = await run.result(timeout=max(min(seconds, left), 0.01))
            except TimeoutError:
                found = await self._state(key)
            except tuple(ENDS) as ended:
                raise ToolError(
                    _said(run_key=key, status=ENDS[type(ended)], why=str(ended))
                ) from None
            else:
                what = f"the result of run {key!r}"
                result = workflow.result_codec.shown(value, what)
                return _said(run_key=key, status="completed", result=result)
            if left <= seconds or "needs" in found:
                return _said(**found)
            await context.report_progress(look + 1, message=f"{key}: {found['status']}")
        raise AssertionError("looks have no end")

    async def _state(self, key: str) -> dict[str, Any]:
        """Return what is known of a run that has not ended."""
        detail = await ask_async(self._app, find_detail(key))
        gates = list(await ask_async(self._app, list_gates(key, limit=MOST_GATES)))
        found = {"run_key": key, "status": detail.status, "why": detail.why}
        if not gates:
            return {**found, "next": f"call {WAIT} with this {KEY}"}
        asked = [{"gate": one.gate, "name": one.name, "approvers": one.approvers} for one in gates]
        return {
            **found,
            "needs": "a person",
            "gates": plain(asked),
            "next": f"ask the user for a person's answer; call {WAIT} once it is given",
        }


def _parameters(workflow: Workflow[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a workflow, with their annotations as types."""
    hints = resolve_hints(workflow.fn)
    return {
        name: parameter.replace(annotation=hints.get(name, Any))
        for name, parameter in inspect.signature(workflow.fn).parameters.items()
    }


def _described(workflow: Workflow[..., Any]) -> str:
    description = inspect.cleandoc(workflow.__doc__ or f"Run the workflow {workflow.name}.")
    return (
        f"{description} It is a durable run: the answer is its result, or its {KEY} if it takes "
        f"longer. {KEY}: a name of yours for this run; the same name again is the same run, not a "
        "second one."
    )


def _looks() -> Iterator[float]:
    """Yield seconds between two looks at a run."""
    seconds = 0.1
    while True:
        yield seconds
        seconds = min(seconds * 2, MOST_LOOK_SECONDS)


def _said(**answer: Any) -> str:
    return json.dumps(answer, ensure_ascii=False)
