"""Frameworks that are ``async`` in the workflows of both colours.

In a sync workflow the framework runs on a loop of the workflow's own thread. The loop pauses during
a durable call, so concurrent work of the framework is done one after the other.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pgflow
from pgflow._flow.scope import WorkflowScope, current
from pgflow._flow.step import Step

T = TypeVar("T")


def is_sync() -> bool:
    """Return True in the code of a sync workflow."""
    scope = current.get()
    return isinstance(scope, WorkflowScope) and scope.thread is not None


async def perform(step: Step[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a step in the colour of the workflow."""
    return step.sync(*args, **kwargs) if is_sync() else await step.aio(*args, **kwargs)


async def call(name: str, body: Callable[[], Awaitable[Any]], **options: Any) -> Any:
    """Calls a function as a step that is named here, in the colour of the workflow."""
    if is_sync():
        return pgflow.sync.call(name, body, **options)
    return await pgflow.call(name, body, **options)


async def sleep(seconds: float) -> None:
    """Sleeps durably in the colour of the workflow."""
    if is_sync():
        pgflow.sync.sleep(max(seconds, 0))
    else:
        await pgflow.sleep(max(seconds, 0))


async def gate(name: str, request: Any, **options: Any) -> pgflow.authority.Verdict[Any]:
    """Asks at a gate in the colour of the workflow."""
    ask: Any = pgflow.sync.gate if is_sync() else pgflow.authority.gate
    verdict: pgflow.authority.Verdict[Any] = ask(name, request, **options)
    return verdict if is_sync() else await verdict  # type: ignore[misc]


class Loop(asyncio.SelectorEventLoop):
    """A loop of the thread of a sync workflow, which hands nothing to other threads."""

    def run_in_executor(  # type: ignore[override]  # the base's type has type variables of tuples
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., Any],
        *args: Any,
    ) -> asyncio.Future[Any]:
        """Call the function at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            future.set_exception(error)
        return future


def run_here(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the thread of a sync workflow."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main, context=contextvars.copy_context())


def iterate_here(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an async generator in the thread of a sync workflow."""
    context = contextvars.copy_context()
    with asyncio.Runner(loop_factory=Loop) as runner:
        try:
            while True:
                try:
                    item = runner.run(_next(items), context=context)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            runner.run(items.aclose(), context=context)


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)
