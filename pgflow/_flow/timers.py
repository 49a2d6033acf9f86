"""Durable sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pgflow._engine.timers import Timers
from pgflow._flow.scope import WorkflowScope, async_scope, sync_scope
from pgflow._flow.step import Calls, follow, follow_sync
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
    seconds = _seconds_of(delay)
    if name is None:
        return asyncio.sleep(seconds)
    return follow(scope, _calls(scope, seconds, _checked(name)))


def sleep_sync(delay: Duration, *, name: str | None = None) -> None:
    """Sleep durably; see :func:`pgflow.sleep`."""
    scope, _ = sync_scope("pgflow.sync.sleep()", "pgflow.sleep()")
    seconds = _seconds_of(delay)
    follow_sync(scope, _calls(scope, seconds, name if name is None else _checked(name)))


def _calls(scope: WorkflowScope, seconds: float, name: str | None) -> Calls:
    if seconds:
        yield scope.execution.parts[Timers].issue(seconds, name)


def _checked(name: str) -> str:
    """Return the name of a sleep if it can be stored."""
    if not is_name(name):
        raise InvalidArgument(
            f"the name of a sleep must be a text of 1 to 255 bytes without NUL, not {name!r}"
        )
    return name


def _seconds_of(delay: Duration) -> float:
    """A duration in seconds; refuses one that is not a duration."""
    return duration(delay, "a delay").total_seconds()
