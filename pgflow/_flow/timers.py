"""Durable sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pgflow._engine.timers import Timers
from pgflow._flow.scope import WorkflowScope, async_scope
from pgflow._model.durations import Duration, duration
from pgflow._model.names import is_name
from pgflow.errors import InvalidArgument

# What is awaited asks for its scope when it is called:
# so sync code, which never awaits, gets an error that names the twin.


def sleep(delay: Duration, *, name: str | None = None) -> Coroutine[Any, Any, None]:
    """Sleep durably. The wait survives crashes and deploys, and holds nothing meanwhile.

    Args:
        delay: Time to sleep; a number means seconds.
        name: Name of the sleep in timelines and reports. Runs that sleep without one when you add
            it continue; later it must stay.

    Raises:
        InvalidArgument: The name has not 1 to 255 bytes.
    """
    scope = async_scope("pgflow.sleep()", "pgflow.sync.sleep()")
    seconds = seconds_of(delay)
    return asyncio.sleep(seconds) if name is None else _sleep(scope, seconds, checked(name))


async def _sleep(scope: WorkflowScope, seconds: float, name: str) -> None:
    if seconds == 0:
        return
    call = scope.execution.parts[Timers].issue(seconds, name)
    try:
        await call.waiter  # type: ignore[misc]
    except asyncio.CancelledError:
        scope.execution.cancel_call(call)
        raise


def checked(name: str) -> str:
    """Return the name of a sleep if it can be stored."""
    if not is_name(name):
        raise InvalidArgument(
            f"the name of a sleep must be a text of 1 to 255 bytes without NUL, not {name!r}"
        )
    return name


def seconds_of(delay: Duration) -> float:
    """A duration in seconds; refuses one that is not a duration."""
    return duration(delay, "a delay").total_seconds()
