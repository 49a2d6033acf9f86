"""Interceptors: code around starts, workflows and steps,
for tracing, limits or labels of one's own.

They run on first runs and replays alike and must not issue durable calls: a call that only some
processes make would change the numbering of all that follow. What must happen once only asks
:func:`replaying` first.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from pgflow._engine.host import ContinueAsNew
from pgflow._engine.loop import Unwind
from pgflow._flow.scope import WorkflowScope, current
from pgflow._model.operations import Operation
from pgflow._model.options import StartOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgflow._flow.run_info import RunInfo


class Interceptor:
    """Override what you need; pass instances with ``App(interceptors=[...])``, outermost first."""

    def start(self, workflow: str, options: StartOptions) -> StartOptions:
        """Called before a run is started;
        may return other options, for example with more metadata.
        """
        del workflow
        return options

    def start_child(self, info: RunInfo, workflow: str, options: StartOptions) -> StartOptions:
        """Called when the code of a workflow asks for a child, replays included; may return other
        options, always the same ones.

        Args:
            info: The run that asks.
            workflow: Name of the child's workflow.
            options: Its options. What the run's metadata has and these lack is added.
        """
        del info, workflow
        return options

    def around_workflow(self, info: RunInfo) -> AbstractContextManager[Any]:
        """Entered around each activation of a workflow's code, replays included."""
        del info
        return nullcontext()

    def around_step(self, info: RunInfo) -> AbstractContextManager[Any]:
        """Entered around each try of a step's body."""
        del info
        return nullcontext()

    def around_operation(self, info: RunInfo, operation: Operation) -> AbstractContextManager[Any]:
        """Enter around each operation of an agent that is reported with
        :func:`pgflow.extensions.operation`, in the body of a step or in the code of a workflow,
        replays included.

        Args:
            info: The run, with the step in the body of one.
            operation: Facts on it; some are set only when it ends.
        """
        del info, operation
        return nullcontext()


def replaying() -> bool:
    """Return True while the calling workflow replays its journal; for interceptors, never for a
    workflow to decide by.

    Returns:
        True until the code does something new, and all along where a recorded run is only checked.
    """
    scope = current.get()
    return isinstance(scope, WorkflowScope) and (
        scope.is_check or scope.execution.history.replaying
    )


def checking() -> bool:
    """Return True if a recorded run is replayed only to see if the code repeats it:
    nothing of it will happen.
    """
    scope = current.get()
    return isinstance(scope, WorkflowScope) and scope.is_check


def outcome_of(error: BaseException) -> Literal["left", "continued", "cancelled", "failed"]:
    """Classify an exception that leaves the code of a workflow or the body of a step.

    Args:
        error: Exception that was raised through ``around_workflow`` or ``around_step``.

    Returns:
        ``left`` where an activation ends without an end of the run: it waits, or goes on elsewhere.
    """
    scope = current.get()
    if isinstance(error, (Unwind, GeneratorExit)) or (
        isinstance(scope, WorkflowScope) and scope.execution.code.closing
    ):
        return "left"
    if isinstance(error, ContinueAsNew):
        return "continued"
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"


def around(
    interceptors: Sequence[Interceptor], name: str, *facts: Any
) -> AbstractContextManager[Any]:
    """The contexts of all interceptors, one inside the other."""
    stack = ExitStack()
    for interceptor in interceptors:
        stack.enter_context(getattr(interceptor, name)(*facts))
    return stack
