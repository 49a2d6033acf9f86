"""A run that is worked on in the process that has started it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any

from pgflow_cli.look.failures import INTERRUPTED, TIME_LIMIT, Ended
from pgflow_cli.look.output import console, note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgflow import AsyncApp, AsyncRun, Workflow

_LATER = "a worker goes on with it. See it with: pgflow show {key}"


def run_here(
    app: AsyncApp,
    workflow: Workflow[..., Any],
    arguments: dict[str, Any],
    limit: float | None,
    *,
    shows_progress: bool,
) -> dict[str, Any]:
    """Starts a run, works on it until it ends, and answers its key, status and output.

    Raises:
        RunFailed, RunCancelled, RunStuck: It did not complete.
        Ended: The time limit or a signal came first; the run is handed back.
    """
    return asyncio.run(_run(app, workflow, arguments, limit, shows_progress=shows_progress))


async def _run(
    app: AsyncApp,
    workflow: Workflow[..., Any],
    arguments: dict[str, Any],
    limit: float | None,
    *,
    shows_progress: bool,
) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None
    stopped: list[int] = []

    def stop(number: int) -> None:
        stopped.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    async with app:
        handle = await app.start(workflow, **arguments)
        try:
            async with app.worker(queues=[workflow.start_options.queue]), asyncio.timeout(limit):
                with _spinner(handle.key, visible=shows_progress) as show:
                    await _finish(handle, show)
        except TimeoutError:
            note(
                f"pgflow: run {handle.key!r} is {await handle.status()} after {limit:g} s; "
                f"{_LATER.format(key=handle.key)}"
            )
            raise Ended(TIME_LIMIT) from None
        except asyncio.CancelledError:
            if not stopped:
                raise
            note(f"pgflow: run {handle.key!r} was handed back; {_LATER.format(key=handle.key)}")
            raise Ended(INTERRUPTED) from None
        return {"key": handle.key, "status": "completed", "output": await _output(app, handle.key)}


async def _output(app: AsyncApp, key: str) -> Any:
    """The stored result, as any other program would read it."""
    from pgflow._model.envelopes import open_value
    from pgflow.inspect import ask_async, read_output

    output = await ask_async(app, read_output(key))
    return open_value(app.definitions.envelopes, output, f"the result of run {key!r}")


async def _finish(handle: AsyncRun[Any], show: Any) -> None:
    """Waits for the end; says now and then what the run is doing."""
    result = asyncio.ensure_future(handle.result())
    try:
        while True:
            done, _ = await asyncio.wait([result], timeout=0.5)
            if done:
                result.result()
                return
            show(await handle.status())
    finally:
        result.cancel()
        await asyncio.gather(result, return_exceptions=True)


@contextlib.contextmanager
def _spinner(key: str, *, visible: bool) -> Iterator[Any]:
    if not visible:
        yield lambda _status: None
        return
    with console(error=True).status(f"{key} started") as status:
        yield lambda word: status.update(f"{key} is {word}")
