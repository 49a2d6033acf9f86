"""A run that is worked on in the process that has started it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from pgflow_cli.look.failures import INTERRUPTED, NEEDS_A_PERSON, TIME_LIMIT, Ended
from pgflow_cli.look.output import console, note, printable, shown
from pgflow_cli.runs import declared, stages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgflow import AsyncApp, AsyncRun, Workflow
    from pgflow.inspect import GateRow


def run_here(
    app: AsyncApp,
    workflow: Workflow[..., Any],
    arguments: dict[str, Any],
    limit: float | None,
    *,
    shows_progress: bool,
    watch: bool = False,
    as_json: bool = False,
    stops_at_gates: bool = False,
    attach: str | None = None,
    again: Callable[[str], str],
) -> dict[str, Any]:
    """Start a run, work on it until it ends, and return its key, status and output.

    Args:
        app: Its app.
        workflow: Its workflow, with the options of the start.
        arguments: Its input.
        limit: Longest time in seconds.
        shows_progress: True to show what it is doing.
        watch: True to print each node of a declared workflow as it begins and ends.
        as_json: True to print nodes as JSON.
        stops_at_gates: True to end when the run waits for a person.
        attach: Key of an existing run to work on instead of a new one.
        again: Returns the command that continues the run of a key.

    Raises:
        RunFailed, RunCancelled, RunStuck: It did not complete.
        Ended: The time limit or a signal came first; the run is handed back.
    """
    watching = _Watch(enabled=watch, as_json=as_json, stops=stops_at_gates, again=again)
    return asyncio.run(
        _run(app, workflow, arguments, limit, watching, attach, shows=shows_progress)
    )


async def _run(
    app: AsyncApp,
    workflow: Workflow[..., Any],
    arguments: dict[str, Any],
    limit: float | None,
    watching: _Watch,
    attach: str | None,
    *,
    shows: bool,
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
        handle = (
            await app.start(workflow, **arguments) if attach is None else app.get(attach, workflow)
        )
        try:
            async with app.worker(queues=[workflow.start_options.queue]), asyncio.timeout(limit):
                with _spinner(handle.key, visible=shows) as show:
                    await _finish(app, handle, show, watching)
        except TimeoutError:
            note(
                f"pgflow: run {handle.key!r} is {await handle.status()} after {limit:g} s. "
                f"{watching.again(handle.key)}"
            )
            raise Ended(TIME_LIMIT) from None
        except asyncio.CancelledError:
            if not stopped:
                raise
            note(f"pgflow: run {handle.key!r} was handed back. {watching.again(handle.key)}")
            raise Ended(INTERRUPTED) from None
        return {"key": handle.key, "status": "completed", "output": await _output(app, handle.key)}


async def _output(app: AsyncApp, key: str) -> Any:
    """Return the stored result, as any other program would read it."""
    from pgflow._model.envelopes import open_value
    from pgflow.inspect import ask_async, read_output

    output = await ask_async(app, read_output(key))
    return open_value(app.definitions.envelopes, output, f"the result of run {key!r}")


class _Watch:
    """Prints the nodes of a declared workflow as they begin and end, and the words of its agents
    and the errors of its programs meanwhile, on standard error.

    Attributes:
        stops: True to end where the run waits for a person.
        again: Returns the command that continues the run of a key.
    """

    def __init__(
        self, *, enabled: bool, as_json: bool, stops: bool, again: Callable[[str], str]
    ) -> None:
        self.stops = stops
        self.again = again
        self._is_enabled = enabled
        self._is_json = as_json
        self._begun: dict[str, float] = {}

    def at_work(self) -> str:
        """The nodes that have begun and not ended, each with its time so far."""
        now = time.monotonic()
        return ", ".join(f"{name} ({now - at:.0f} s)" for name, at in self._begun.items())

    async def follow(self, handle: AsyncRun[Any]) -> None:
        """Print nodes and words until the run has ended."""
        if self._is_enabled:
            await asyncio.gather(self._follow_nodes(handle), self._follow_agents(handle))

    async def _follow_nodes(self, handle: AsyncRun[Any]) -> None:
        async for end in handle.stream("nodes"):
            if self._is_json:
                _say(declared.as_json(end))
                continue
            began = self._begun.pop(end["id"], None)
            _say(declared.say_end(end, None if began is None else time.monotonic() - began))

    async def _follow_agents(self, handle: AsyncRun[Any]) -> None:
        async for word in handle.stream("agents", live=True):
            if word["type"] == "start":
                self._begun[word["id"]] = time.monotonic()
            _say(declared.as_json(word) if self._is_json else declared.say_word(word))


async def _finish(app: AsyncApp, handle: AsyncRun[Any], show: Any, watching: _Watch) -> None:
    """Wait for the end, and print now and then what the run is doing.

    Raises:
        Ended: It waits for a person, and there is no terminal to answer from.
    """
    result = asyncio.ensure_future(handle.result())
    said: set[str] = set()
    told = asyncio.ensure_future(watching.follow(handle))
    try:
        while True:
            done, _ = await asyncio.wait([result], timeout=0.5)
            if done:
                await told
                result.result()
                return
            status = await handle.status()
            show(": ".join(filter(None, (status, watching.at_work()))))
            if status == "waiting" and watching.stops:
                await _tell_holder(app, handle.key, said)
                await _stop_at_gates(app, handle.key, said, watching.again)
    finally:
        for task in (result, told):
            task.cancel()
        await asyncio.gather(result, told, return_exceptions=True)


async def _tell_holder(app: AsyncApp, key: str, said: set[str]) -> None:
    """Say once which run has the folder that a run waits for."""
    from pgflow.inspect import ask_async, find_detail, list_locks

    for lock in ((await ask_async(app, find_detail(key))).reason_detail or {}).get("locks") or ():
        for held in await ask_async(app, list_locks(lock)):
            if lock not in said:
                said.add(lock)
                _say(f"run {held.holder!r} works in {lock.removeprefix('folder')}: waiting for it")


async def _stop_at_gates(
    app: AsyncApp, key: str, said: set[str], again: Callable[[str], str]
) -> None:
    """Stop if the run asks a person. If a child of the run asks, print that and go on: other nodes
    may be at work.

    Raises:
        Ended: The run itself asks.
    """
    from pgflow.inspect import ask_async, find_detail, list_gates_below

    waits = stages.awaited(await ask_async(app, find_detail(key)))
    for name in waits:
        if name not in said:
            said.add(name)
            _say(f"{name} is waited for:  pgflow signal {key} {name} JSON")
    gates = await ask_async(app, list_gates_below(key))
    for gate in gates:
        if gate.gate in said:
            continue
        said.add(gate.gate)
        asked = gate.request.get("message") if isinstance(gate.request, dict) else None
        _say(f"{gate.name} asks: {shown(str(asked or gate.request)[:2000])}")
        is_alone = [one.key for one in gates].count(gate.key) == 1
        named = shlex.join([gate.key, *([] if is_alone else ["--node", gate.name])])
        _say(f"  {_how_to_answer(gate, named)}   or   pgflow reject {named} --why ...")
    if not waits and not any(gate.key == key for gate in gates):
        return
    _say(f"pgflow: run {key!r} waits for a person. {again(key)}")
    raise Ended(NEEDS_A_PERSON)


def _say(text: str) -> None:
    """Say something above the spinner, which has standard error while it turns."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def _how_to_answer(gate: GateRow, named: str) -> str:
    """Return the command that lets a run go on: with the values that it asks for, if it needs
    some.
    """
    asked = gate.request if isinstance(gate.request, dict) else {}
    names = asked.get("required")
    if gate.needs_value and isinstance(names, dict):
        return f"pgflow edit {named} {shlex.quote(json.dumps(dict.fromkeys(names, '...')))}"
    words = " ['...']" if "response" in asked else ""
    offered = asked.get("decisions") or ()
    others = [f"pgflow respond {named} {shlex.quote(str(one))}{words}" for one in offered]
    return "   or   ".join([f"pgflow approve {named}{words}", *others])


@contextlib.contextmanager
def _spinner(key: str, *, visible: bool) -> Iterator[Any]:
    if not visible:
        yield lambda _status: None
        return
    with console(error=True).status(f"{key} started") as status:
        yield lambda word: status.update(f"{key} is {word}")
