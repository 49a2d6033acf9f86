"""Events from outside that an agent waits for, such as the answer to a question.

pydantic-ai hands out a token, and waits until an answer comes back with it. Here a token names a
run and a signal that it waits for, so it outlives every process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

# pyright: reportMissingImports=false
from pydantic_ai.durable_exec import ExternalEventError, ExternalEventWaiter

import pgflow
from pgflow._flow.step import Step
from pgflow._model.kinds import StepKind
from pgflow.agent.colour import is_sync, perform
from pgflow.agent.pydantic_ai.backend import with_threads
from pgflow.errors import InvalidArgument

PREFIX = "pydantic-ai:"


def read_token(token: str) -> tuple[str, pgflow.Signal[dict[str, Any]]]:
    """Return the run and the signal that a token names.

    Send the signal ``{"value": ...}``, or ``{"error": "..."}`` if there will be no answer.

    Args:
        token: Token that an agent has handed out.

    Raises:
        InvalidArgument: It is none of pgflow's.

    Example::

        await app.send(*read_token(token), {"value": "blue"})
    """
    key, slash, name = token.rpartition("/")
    if not slash or not key or not name.startswith(PREFIX):
        raise InvalidArgument(f"not a token of an agent's run: {token!r}")
    return key, pgflow.Signal(name, dict[str, Any])


class Waiter(ExternalEventWaiter):
    """Waits for events by signals."""

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[Any]], timeout: timedelta | None
    ) -> Any:
        """Hand a token to ``ask``, and wait for its signal unless ``ask`` knows the answer."""
        signal = pgflow.Signal(f"{PREFIX}{pgflow.uuid()}", dict[str, Any])
        token = f"{pgflow.run_info().key}/{signal.name}"

        async def tell() -> Any:
            with with_threads():
                return await ask(token)

        answer = await perform(Step(tell, StepKind.STEP, f"ask:{name}", 3, None, ()))
        if answer is not None:
            return answer
        return _taken(await _message(signal, timeout))


async def _message(
    signal: pgflow.Signal[dict[str, Any]], timeout: timedelta | None
) -> dict[str, Any]:
    try:
        if is_sync():
            return signal.sync.wait(timeout=timeout)
        return await signal.wait(timeout=timeout)
    except TimeoutError:
        raise ExternalEventError(f"No resolution arrived within {timeout}.") from None


def _taken(message: dict[str, Any]) -> Any:
    if "error" in message:
        raise ExternalEventError(str(message["error"]))
    return message.get("value")
