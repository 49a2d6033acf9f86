"""Durable sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pgflow._flow.scope import async_scope
from pgflow._model.durations import Duration, duration

# What is awaited asks for its scope when it is called:
# so sync code, which never awaits, gets an error that names the twin.


def sleep(delay: Duration) -> Coroutine[Any, Any, None]:
    """Sleep durably. The wait survives crashes and deploys, and holds nothing meanwhile.

    Args:
        delay: Time to sleep; a number means seconds.
    """
    async_scope("pgflow.sleep()", "pgflow.sync.sleep()")
    return asyncio.sleep(seconds_of(delay))


def seconds_of(delay: Duration) -> float:
    """A duration in seconds; refuses one that is not a duration."""
    return duration(delay, "a delay").total_seconds()
