"""Signals, and waits for them."""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar, cast

from pgflow._engine.calls import Call
from pgflow._engine.signals import Signals
from pgflow._flow.scope import WorkflowScope, async_scope, sync_scope
from pgflow._model.codecs import codec_for
from pgflow._model.durations import Duration, duration
from pgflow._model.names import is_name
from pgflow.errors import InvalidArgument

T = TypeVar("T")


class SyncSignal(Generic[T]):
    """A signal as a sync workflow waits for it."""

    def __init__(self, signal: Signal[T]) -> None:
        self._signal = signal

    def wait(self, *, timeout: Duration | None = None) -> T:
        """Wait for the next message of this name. TimeoutError if none comes in time."""
        scope, _ = sync_scope(f"signal {self._signal.name!r}.sync.wait()", "its .wait()")
        return cast("T", scope.block(self._signal.issue(scope, timeout)))


class Signal(Generic[T]):
    """A typed, durable message to a run: each one sent is taken by exactly one wait, in order.

    Args:
        name: Its name; senders and receivers meet by it.
        type: Class of the payload.

    Example::

        paid = Signal("paid", Payment)
        payment = await paid.wait(timeout=timedelta(days=3))   # in the workflow
        await app.send("order-1", paid, Payment(...))          # anywhere else
    """

    def __init__(self, name: str, type: type[T]) -> None:  # noqa: A002 - the word users write
        if not is_name(name):
            raise InvalidArgument(
                f"the name of a signal must be a text of 1 to 255 bytes without NUL, not {name!r}"
            )
        self.name = name
        self.type = type
        self.codec = codec_for(type)

    def wait(self, *, timeout: Duration | None = None) -> Coroutine[Any, Any, T]:
        """Wait for the next message of this name.

        Args:
            timeout: Longest time to wait. A later message stays for the next wait.

        A message whose payload does not fit the type is not taken. The run is then stuck, reason
        ``signal``, until you drop, replace or requeue the message (``pgflow messages``).

        Raises:
            TimeoutError: No message came within ``timeout``.
        """
        return self._wait(async_scope(f"signal {self.name!r}.wait()", "its .sync.wait()"), timeout)

    async def _wait(self, scope: WorkflowScope, timeout: Duration | None) -> T:
        return cast("T", await scope.wait(self.issue(scope, timeout)))

    def issue(self, scope: WorkflowScope, timeout: Duration | None = None) -> Call:
        """Issue the call that waits; a time that has passed leaves zero."""
        what = f"timeout of a wait for signal {self.name!r}"
        limit = None if timeout is None else duration(timeout, what, least_seconds=-math.inf)
        return scope.execution.parts[Signals].issue(self.name, self.codec, limit)

    @property
    def sync(self) -> SyncSignal[T]:
        """The same signal for sync workflows."""
        return SyncSignal(self)
