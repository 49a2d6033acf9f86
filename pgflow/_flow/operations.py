"""Operations of agents, reported to interceptors: requests to models and calls of tools.

A step may ask three models or none, so the body of the step reports each request: the adapters of
frameworks do, or your own code. A decision reports the model and cost of its choice itself, if its
body has reported nothing.

A body finds the interceptors in a context variable, since its scope knows the run but no worker.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pgflow._flow.interceptor import Interceptor, around
from pgflow._flow.run_info import run_info
from pgflow._flow.scope import WorkflowScope, current
from pgflow._model.decisions import Choice
from pgflow._model.operations import Operation, OperationKind

T = TypeVar("T")


class Hearing:
    """Interceptors around one attempt of a body.

    Attributes:
        interceptors: The interceptors.
        has_asked: True once the body has reported a model itself.
    """

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self.interceptors = interceptors
        self.has_asked = False
        self._began_ns = time.time_ns()

    def returned(self, value: T) -> T:
        """Report the model of a choice, unless the body has done so. Return the value."""
        if isinstance(value, Choice) and value.model and not self.has_asked:
            asked = Operation("chat", value.model, model=value.model, began_ns=self._began_ns)
            if value.usage is not None:
                asked.tokens, asked.usd = value.usage.tokens, value.usage.usd
            tell(asked)
        return value


_hearing: contextvars.ContextVar[Hearing | None] = contextvars.ContextVar(
    "pgflow_hearing", default=None
)


@contextmanager
def around_body(interceptors: Sequence[Interceptor]) -> Iterator[Hearing]:
    """Enter the contexts of all interceptors around one attempt of a body, in which it may report
    operations.
    """
    with around(interceptors, "around_step", run_info()):
        hearing = Hearing(interceptors)
        token = _hearing.set(hearing)
        try:
            yield hearing
        finally:
            _hearing.reset(token)


@contextmanager
def operation(
    kind: OperationKind,
    name: str | None = None,
    *,
    provider: str | None = None,
    id: str | None = None,  # noqa: A002 - its name in the conventions
    conversation: str | None = None,
) -> Iterator[Operation]:
    """Report a request to a model, a call of a tool or a run of an agent to interceptors, and so to
    traces. Nothing is journaled.

    Use it in the body of a step around a request, and in the code of a workflow around an agent or
    a tool. Without tracing, or outside of runs, it does nothing.

    Args:
        kind: ``chat``, ``execute_tool`` or ``invoke_agent``.
        name: Name of the model, tool or agent.
        provider: Provider of the model.
        id: Id of the call of a tool.
        conversation: Id of the conversation.

    Returns:
        A context manager. It yields the operation: set the fields that are known only at its end.

    Example::

        with pgflow.extensions.operation("chat", "small-1", provider="acme") as asked:
            reply = await client.ask(prompt)
            asked.input_tokens, asked.output_tokens = reply.tokens_in, reply.tokens_out
    """
    made = Operation(kind, name, provider, id, conversation)
    interceptors = _listening(kind)
    if not interceptors:
        yield made
        return
    with around(interceptors, "around_operation", run_info(), made):
        yield made


def tell(made: Operation, error: BaseException | None = None) -> None:
    """Report a finished operation, for code that learns of it only at its end.

    Args:
        made: The operation, with the time at which it began.
        error: Its error, if it failed.
    """
    if not (interceptors := _listening(made.kind)):
        return
    try:
        with around(interceptors, "around_operation", run_info(), made):
            if error is not None:
                raise error  # noqa: TRY301 - through the contexts, as theirs
    except BaseException as raised:
        if raised is not error:
            raise


def is_heard() -> bool:
    """Return True if an interceptor hears of operations of the calling code."""
    return bool(_listening("execute_tool"))


def _listening(kind: OperationKind) -> Sequence[Interceptor]:
    """Return the interceptors that the calling code reports to."""
    scope = current.get()
    if scope is None:
        return ()
    if isinstance(scope, WorkflowScope):
        return scope.interceptors
    hearing = _hearing.get()
    if hearing is None:
        return ()
    hearing.has_asked |= kind == "chat"
    return hearing.interceptors
