"""Many short looks at an agent in a workflow, all by one worker.

A look is code of a workflow that returns what it saw. A harness also replays each, so it must see
the same again, although no body of a step runs then.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from scripted import steps_of  # it skips where the framework is missing
from servers import HANG_SECONDS

import pgflow

from pydantic_ai.exceptions import UserError  # isort: skip
from collections.abc import Awaitable, Callable, Sequence

from pgflow.testing import AsyncHarness


@dataclass
class Look:
    """A look, and what is to be seen: the value, and the names of steps if that matters."""

    fn: Callable[[], Any]
    expected: Any
    steps: Sequence[str] | None


@dataclass
class Looks:
    """The looks of a module, by their names."""

    found: dict[str, Look] = field(default_factory=dict)

    def __call__(self, expected: Any, steps: Sequence[str] | None = None) -> Callable[[Any], Any]:
        """Register a look: its value equals `expected`, or has this text in it if both are texts."""

        def keep(fn: Callable[[], Any]) -> Callable[[], Any]:
            self.found[fn.__name__] = Look(fn, expected, steps)
            return fn

        return keep

    async def hold(self, aflow: AsyncHarness) -> list[str]:
        """Look at everything, and return what was seen otherwise."""

        @pgflow.workflow(name="look")
        async def look(name: str) -> Any:
            return await self.found[name].fn()

        @pgflow.workflow(name="look_in_thread")
        def look_in_thread(name: str) -> Any:
            return self.found[name].fn()

        aflow.include(look, look_in_thread)
        runs = {}
        for name, this in self.found.items():
            flow: Any = look if inspect.iscoroutinefunction(this.fn) else look_in_thread
            runs[name] = await aflow.start(flow, name)
        failures = []
        for name, run in runs.items():
            failures += await self._differences(aflow, self.found[name], run, name)
        return failures

    async def _differences(self, aflow: AsyncHarness, look: Look, run: Any, name: str) -> list[str]:
        try:
            seen = await run.result(HANG_SECONDS)
        except pgflow.PgflowError as error:
            seen = error
        texts = isinstance(seen, str) and isinstance(look.expected, str)
        failures = []
        if not (look.expected in seen if texts else seen == look.expected):
            failures.append(f"{name}: {seen!r} is not {look.expected!r}")
        if look.steps is not None:
            steps = [step.partition("__")[2] for step, _ in await steps_of(aflow, run)]
            if steps != list(look.steps):
                failures.append(f"{name}: {steps} are not {look.steps}")
        return failures


async def refusal(asked: Awaitable[Any]) -> str:
    """Return what an agent says as it refuses."""
    try:
        return f"not refused: {await asked}"
    except UserError as refused:
        return str(refused)
