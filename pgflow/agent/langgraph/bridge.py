"""Sync calls of async savers and stores.

A ``def`` node of an async graph runs in a thread, and so may all that it calls: a subgraph, the
store. The framework's own async classes hand such calls to the event loop that they belong to. So
do these: to the loop that made them, or first used them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pgflow
from pgflow.errors import WrongColourError

P = ParamSpec("P")
T = TypeVar("T")


class OnTheirLoop:
    """Object whose coroutines threads may have run on its event loop."""

    _loop: asyncio.AbstractEventLoop | None = None

    def _stay(self) -> None:
        """Belong to the running event loop, if there is none yet."""
        if self._loop is None and not pgflow.in_workflow():
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                return

    def _hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop, and wait for it in this thread.

        Raises:
            WrongColourError: The event loop would wait for itself, or there is none.
        """
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self._loop is None or running is not None:
            work.close()
            raise WrongColourError(
                f"{type(self).__name__} answers sync calls only in threads beside its event loop: "
                "await its async methods (ainvoke(), aget_state()), or take the class of App"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def handed_over(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the sync method that has an async one run on the event loop of its object."""

    @wraps(method)
    def call(self: OnTheirLoop, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._hand_over(method(self, *args, **kwargs))

    return call
