"""Interceptors: code around starts, workflows and steps, for tracing, limits or labels of one's own.

They run on first runs and replays alike and must not issue durable calls: a call that only some processes
make would change the numbering of all that follow.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from pgflow.model import StartOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgflow.context import RunInfo


class Interceptor:
    """Override what you need; pass instances with ``App(interceptors=[...])``, outermost first."""

    def start(self, workflow: str, options: StartOptions) -> StartOptions:
        """Called before a run is started; may return other options, for example with more metadata."""
        del workflow
        return options

    def around_workflow(self, info: RunInfo) -> AbstractContextManager[Any]:
        """Entered around each activation of a workflow's code, replays included."""
        del info
        return nullcontext()

    def around_step(self, info: RunInfo) -> AbstractContextManager[Any]:
        """Entered around each try of a step's body."""
        del info
        return nullcontext()


def around(
    interceptors: Sequence[Interceptor], name: str, info: Callable[[], RunInfo]
) -> AbstractContextManager[Any]:
    """The contexts of all interceptors, one inside the other."""
    stack = ExitStack()
    for interceptor in interceptors:
        stack.enter_context(getattr(interceptor, name)(info()))
    return stack
