"""Many at once: ``map`` over a step or a workflow, and results in the order in which they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from fractions import Fraction
from typing import Any, Generic, TypeVar

from pgflow._engine.loop import Unwind
from pgflow._flow.children import await_child
from pgflow._flow.scope import WorkflowScope, async_scope
from pgflow._flow.step import Step
from pgflow._flow.workflow import Workflow
from pgflow._model.options import MapResult
from pgflow.errors import DefinitionError, InvalidArgument, TooManyFailures

T = TypeVar("T")
R = TypeVar("R")


def map(  # noqa: A001 - the field's word; users write pgflow.map
    step: Step[[T], R] | Workflow[[T], R],
    items: Iterable[T],
    *,
    max_parallel: int | None = None,
    min_successful: int | None = None,
    tolerated_failures: int = 0,
    tolerated_percent: float | None = None,
    item_name: Callable[[T], str] | None = None,
) -> Coroutine[Any, Any, MapResult[T, R]]:
    """Call a step, or run a child workflow, for every item.

    Args:
        step: A step or workflow of one parameter.
        items: Items to call it with.
        max_parallel: Most items at a time; all at once if not given.
        min_successful: Enough: when so many have succeeded the rest is cancelled.
        tolerated_failures: Number of items that may fail.
        tolerated_percent: Percentage of the items that may fail; with ``tolerated_failures`` too,
            the lower limit counts.
        item_name: Function that names an item. Its step is then called ``STEP: NAME`` in the
            journal, or its child has the label ``item``.

    Returns:
        The results in the order of the items, and the items that failed with their errors.

    Raises:
        TooManyFailures: More items failed than tolerated, or fewer than ``min_successful`` can
            still succeed. With ``tolerated_failures=0`` the item's own error is raised instead.
        InvalidArgument: ``max_parallel`` is less than 1, or another limit less than 0.
    """
    scope = async_scope("pgflow.map()", "pgflow.sync.map()")
    check_mapped(step)
    limits = max_parallel, min_successful, tolerated_failures, tolerated_percent
    return _map(scope, step, Tally("map()", list(items), *limits), item_name)


def of_item(
    step: Step[[T], R] | Workflow[[T], R], item: T, item_name: Callable[[T], str] | None
) -> Step[[T], R] | Workflow[[T], R]:
    """Return the step or workflow of ``map`` for one item, under the name that the item has."""
    if item_name is None:
        return step
    if isinstance(step, Step):
        return step.called(item_name(item))
    return step.options(labels={**step.start_options.labels, "item": item_name(item)})


def check_mapped(step: object) -> None:
    """Check that ``map`` was given a step or a workflow.

    Raises:
        DefinitionError: It is neither.
    """
    if not isinstance(step, Step | Workflow):
        raise DefinitionError(
            f"map() takes a step or a workflow, not {step!r}: is it decorated with @pgflow.step or "
            "@pgflow.workflow?"
        )


async def _map(
    scope: WorkflowScope,
    step: Step[[T], R] | Workflow[[T], R],
    tally: Tally[T, R],
    item_name: Callable[[T], str] | None,
) -> MapResult[T, R]:
    finished = deque[tuple[int, BaseException | None, R | None]]()
    idle: asyncio.Future[None] | None = None
    waiting = enumerate(tally.items)

    def finish(index: int, error: BaseException | None, value: R | None) -> None:
        finished.append((index, error, value))
        if idle is not None and not idle.done():
            idle.set_result(None)

    async def go_on() -> None:
        for index, item in waiting:
            try:
                call = of_item(step, item, item_name)
                value = await (
                    call.aio(item)
                    if isinstance(call, Step)
                    else await_child(scope, call, (item,), {})
                )
            except Unwind:
                raise  # the run ends; its traceback would keep the whole run alive
            except BaseException as error:
                finish(index, error, None)
                if not isinstance(error, Exception):
                    raise
            else:
                finish(index, None, value)

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(go_on()) for _ in range(min(tally.max_parallel, len(tally.items)))]
    try:
        for _ in tally.items:
            if tally.enough:
                break
            if not finished:
                idle = loop.create_future()
                await idle
            tally.count(*finished.popleft())
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
    return tally.result()


def parallel(
    branches: Mapping[str, Awaitable[R]],
    *,
    min_successful: int | None = None,
    tolerated_failures: int = 0,
    tolerated_percent: float | None = None,
) -> Coroutine[Any, Any, dict[str, R]]:
    """Await different branches together, under one rule for when to return.

    Args:
        branches: Awaitables by name: calls of steps, children, coroutines of the workflow.
        min_successful: Enough: when so many have succeeded the rest is cancelled.
        tolerated_failures: Number of branches that may fail.
        tolerated_percent: Percentage of the branches that may fail.

    Returns:
        The results by name, of those that succeeded.

    Raises:
        TooManyFailures: More branches failed than tolerated, or fewer than ``min_successful`` can
            still succeed. With ``tolerated_failures=0`` the branch's own error is raised instead.
        InvalidArgument: A limit is less than 0.

    Example::

        prices = await pgflow.parallel(
            {"north": ask(north), "south": ask(south)}, min_successful=1, tolerated_failures=1
        )
    """
    async_scope("pgflow.parallel()", "pgflow.sync.map()")
    limits = None, min_successful, tolerated_failures, tolerated_percent
    return _parallel(list(branches.values()), Tally("parallel()", list(branches), *limits))


async def _parallel(branches: list[Awaitable[R]], tally: Tally[str, R]) -> dict[str, R]:
    finished: asyncio.Queue[asyncio.Future[R]] = asyncio.Queue()
    tasks: list[asyncio.Future[R]] = [asyncio.ensure_future(branch) for branch in branches]
    for task in tasks:
        task.add_done_callback(finished.put_nowait)
        # Results after the rule is met are not awaited.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        for _ in tasks:
            if tally.enough:
                break
            done = await finished.get()
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            tally.count(tasks.index(done), error, None if error is not None else done.result())
    finally:
        for task in tasks:
            task.cancel()
    return tally.by_item()


async def first_success(awaitables: Iterable[Awaitable[R]]) -> R:
    """Await several at once, return the first result, and cancel the others.

    Raises:
        TooManyFailures: All of them failed; the last error is the ``__cause__``.
        InvalidArgument: The list is empty.
    """
    branches = {str(n): awaitable for n, awaitable in enumerate(awaitables)}
    if not branches:
        raise InvalidArgument("first_success() of nothing has no result")
    found = await parallel(branches, min_successful=1, tolerated_failures=len(branches))
    return next(iter(found.values()))


class Tally(Generic[T, R]):
    """Counts what comes back to ``map`` and knows when to stop."""

    def __init__(
        self,
        call: str,
        items: list[T],
        max_parallel: int | None,
        min_successful: int | None,
        tolerated_failures: int,
        tolerated_percent: float | None = None,
    ) -> None:
        if max_parallel is not None and max_parallel < 1:
            raise InvalidArgument(
                f"{call} cannot do {max_parallel} items at once: max_parallel must be 1 or more, "
                "or None for all"
            )
        if tolerated_failures < 0 or (min_successful is not None and min_successful < 0):
            raise InvalidArgument(
                f"{call} cannot have less than 0 items succeed or fail: check min_successful and "
                "tolerated_failures"
            )
        if tolerated_percent is not None:
            if not 0 <= tolerated_percent <= 100:
                raise InvalidArgument(
                    f"tolerated_percent of {call} is between 0 and 100, not {tolerated_percent!r}"
                )
            share = int(Fraction(str(tolerated_percent)) * len(items) / 100)
            tolerated_failures = min(tolerated_failures or share, share)
        self.items = items
        self.max_parallel = max_parallel if max_parallel is not None else max(1, len(items))
        self._min_successful = min_successful
        self._tolerated = tolerated_failures
        self._values: dict[int, R] = {}
        self._failed: dict[int, Exception] = {}

    @property
    def enough(self) -> bool:
        """True if ``min_successful`` is reached."""
        return self._min_successful is not None and len(self._values) >= self._min_successful

    def count(self, index: int, error: BaseException | None, value: Any) -> None:
        """Count one outcome. Raise if too many have failed."""
        if error is None:
            self._values[index] = value
            return
        if not isinstance(error, Exception):
            raise error
        self._failed[index] = error
        if len(self._failed) > self._tolerated:
            if self._tolerated == 0:
                raise error
            raise TooManyFailures(
                f"{len(self._failed)} of {len(self.items)} items failed; {self._tolerated} are "
                "tolerated"
            ) from error

    def by_item(self) -> dict[T, R]:
        """Return the results by item; raise TooManyFailures below ``min_successful``."""
        self._check_successful()
        return {self.items[i]: self._values[i] for i in sorted(self._values)}

    def result(self) -> MapResult[T, R]:
        """Return the result of ``map``; raise TooManyFailures below ``min_successful``."""
        self._check_successful()
        return MapResult(
            [self._values[i] for i in sorted(self._values)],
            [(self.items[i], self._failed[i]) for i in sorted(self._failed)],
        )

    def _check_successful(self) -> None:
        if self._min_successful is not None and len(self._values) < self._min_successful:
            last = next(reversed(self._failed.values()), None)
            message = (
                f"{len(self._values)} of {len(self.items)} items succeeded, "
                f"but min_successful={self._min_successful}"
            )
            raise TooManyFailures(message) from last


async def as_completed(awaitables: Iterable[Awaitable[T]]) -> AsyncIterator[Awaitable[T]]:
    """Yield awaitables in the order in which they finish, which is the same on every replay.

    Example::

        async for done in pgflow.as_completed([charge(a), charge(b)]):
            print(await done)
    """
    async_scope("pgflow.as_completed()", "pgflow.sync.map()")
    finished: asyncio.Queue[asyncio.Future[T]] = asyncio.Queue()
    tasks = [asyncio.ensure_future(a) for a in awaitables]
    for task in tasks:
        task.add_done_callback(finished.put_nowait)
    for _ in tasks:
        yield await finished.get()
