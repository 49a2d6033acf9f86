"""Steps that say what was done, and fail as often as a test asks them to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pgflow import Retries, Signal, step

if TYPE_CHECKING:
    from pgflow import AsyncRun, Workflow
    from pgflow.testing import AsyncHarness

done: list[str] = []
"""Names with which bodies of `do` were entered, in their order: more than once if they were repeated."""
failing: Counter[str] = Counter()
"""How often the body for a name has yet to fail."""

go = Signal("go", int)
stop = Signal("stop", str)


class OddError(ValueError):
    """An error of a body."""


class OtherError(ValueError):
    """Another error of a body."""


@step(retries=1, raises=[OddError])
async def do(name: str) -> str:
    """Note that it was done, and return its name."""
    done.append(name)
    if failing[name]:
        failing[name] -= 1
        raise OddError(name)
    return name


@step(retries=Retries(2, first_delay=0))
async def redo(name: str) -> str:
    """As `do`, but a failure is tried once more."""
    return await do(name)


async def ended(
    aflow: AsyncHarness, workflow: Workflow[..., Any], *args: Any, **options: Any
) -> Any:
    """Return the result of a run of a workflow that waits for nothing."""
    run = await waiting(aflow, workflow, *args, **options)
    return await run.result(timeout=60)


async def waiting(
    aflow: AsyncHarness, workflow: Workflow[..., Any], *args: Any, **options: Any
) -> AsyncRun[Any]:
    """Start a run, work until only time or a message lets it go on, and return it."""
    if workflow.name not in aflow.app.definitions.workflows:
        aflow.include(workflow)
    run = await aflow.start(workflow.options(**options) if options else workflow, *args)
    await aflow.until_idle()
    return run


async def crashed(aflow: AsyncHarness) -> None:
    """Kill the worker, and have another one go on."""
    await aflow.crash()
    await aflow.until_idle()
