"""A run that is worked on in the process that has started it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pgflow import inspect
from pgflow.console.output import console, note, printable, shown
from pgflow_cli.look.failures import INTERRUPTED, NEEDS_A_PERSON, TIME_LIMIT, Ended
from pgflow_cli.runs import declared, stages

if TYPE_CHECKING:
    from pgflow import AsyncApp, AsyncRun, Workflow


@dataclass
class RunHere:
    """Works on one run until it ends.

    Args:
        app: The app of its workflow.
        limit: Longest time in seconds.
        again: Returns the command that continues the run of a key.
        shows_progress: True to show what it is doing.
        watch: Prints each node of a declared workflow as it begins and ends; None for nothing.
        stops_at_gates: True to end when the run waits for a person.
    """

    app: AsyncApp
    limit: float | None
    again: Callable[[str], str]
    shows_progress: bool
    watch: Watch | None
    stops_at_gates: bool
    printed: set[str] = field(default_factory=set)

    async def run(
        self, workflow: Workflow[..., Any], arguments: dict[str, Any], attach: str | None
    ) -> tuple[str, Any]:
        """Start a run and work on it, and return its key and its output.

        Args:
            workflow: The workflow, with the options of the start.
            arguments: Arguments of the run.
            attach: Key of an existing run to work on instead of a new one.

        Raises:
            RunFailed, RunCancelled, RunStuck: It did not complete.
            Ended: The time limit or a signal came first; the run is handed back.
        """
        app, stopped = self.app, _end_at_signals()
        async with app:
            handle = app.get(attach, workflow) if attach else await app.start(workflow, **arguments)
            key = handle.key
            try:
                queues = [workflow.start_options.queue]
                async with app.worker(queues=queues), asyncio.timeout(self.limit):
                    await self._finish(handle)
            except TimeoutError:
                note(
                    f"pgflow: run {key!r} is {await handle.status()} after {self.limit:g} s. "
                    f"{self.again(key)}"
                )
                raise Ended(TIME_LIMIT) from None
            except asyncio.CancelledError:
                if not stopped:
                    raise
                left = "was left, and goes on once this worker counts as dead"
                became = "was handed back" if len(stopped) == 1 else left
                note(f"pgflow: run {key!r} {became}. {self.again(key)}")
                raise Ended(INTERRUPTED) from None
            # As it is stored, as any other program would read it.
            return key, app.open_value(await inspect.ask_async(app, inspect.read_output(key)))

    async def _finish(self, handle: AsyncRun[Any]) -> None:
        """Wait for the end, and print now and then what the run is doing.

        Raises:
            Ended: It waits for a person, and there is no terminal to answer from.
        """
        result = asyncio.ensure_future(handle.result())
        watching = asyncio.sleep(0) if self.watch is None else self.watch.follow(handle)
        followed = asyncio.ensure_future(watching)
        try:
            with _spinner(handle.key, visible=self.shows_progress) as show:
                while True:
                    done, _ = await asyncio.wait([result], timeout=0.5)
                    if done:
                        await followed
                        result.result()
                        return
                    status = await handle.status()
                    at_work = "" if self.watch is None else self.watch.at_work()
                    show(f"{status}: {at_work}" if at_work else status)
                    if status == "waiting" and self.stops_at_gates:
                        await self._look(handle.key)
        finally:
            for task in (result, followed):
                task.cancel()
            await asyncio.gather(result, followed, return_exceptions=True)

    async def _look(self, key: str) -> None:
        """Print what a run waits for, and stop if it asks a person itself. If a child of it asks,
        go on: other nodes may be at work.

        Raises:
            Ended: The run itself asks.
        """
        run = await inspect.ask_async(self.app, inspect.find_detail(key))
        for lock in (run.reason_detail or {}).get("locks") or ():
            for held in await inspect.ask_async(self.app, inspect.list_locks(lock)):
                folder = lock.removeprefix("folder")
                self._print(lock, f"run {held.holder!r} works in {folder}: waiting for it")
        signals = stages.awaited(run)
        for name in (*signals, *stages.events(run)):
            self._print(name, f"{name} is waited for:  pgflow signal {key} {name} JSON")
        gates = await inspect.ask_async(self.app, inspect.list_gates_below(key))
        for gate in gates:
            asked = gate.request.get("message") if isinstance(gate.request, dict) else None
            text = shown(str(asked or gate.request)[:2000])
            is_alone = [one.key for one in gates].count(gate.key) == 1
            named = shlex.join([gate.key, *([] if is_alone else ["--node", gate.name])])
            how = f"  {_how_to_answer(gate, named)}   or   pgflow reject {named} --why ..."
            self._print(gate.gate, f"{gate.name} asks: {text}\n{how}")
        if signals or any(gate.key == key for gate in gates):
            _print(f"pgflow: run {key!r} waits for a person. {self.again(key)}")
            raise Ended(NEEDS_A_PERSON)

    def _print(self, about: str, text: str) -> None:
        """Print a text on something once."""
        if about not in self.printed:
            self.printed.add(about)
            _print(text)


def _end_at_signals() -> list[int]:
    """Have SIGTERM and SIGINT cancel this task, and return a list that then has their number."""
    task = asyncio.current_task()
    assert task is not None
    stopped: list[int] = []

    def stop(number: int) -> None:
        if number == signal.SIGINT and not stopped:
            note("pgflow: stopping: steps at work have 10 s to end. Ctrl-C again stops at once")
        stopped.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return stopped


class Watch:
    """Prints the nodes of a declared workflow as they begin and end, and the words of its agents
    and the errors of its programs meanwhile, on standard error.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._is_json = as_json
        self._begun: dict[str, float] = {}

    def at_work(self) -> str:
        """The nodes that have begun and not ended, each with its time so far."""
        now = time.monotonic()
        return ", ".join(f"{name} ({now - at:.0f} s)" for name, at in self._begun.items())

    async def follow(self, handle: AsyncRun[Any]) -> None:
        """Print nodes and words until the run has ended."""
        await asyncio.gather(self._follow_nodes(handle), self._follow_agents(handle))

    async def _follow_nodes(self, handle: AsyncRun[Any]) -> None:
        async for end in handle.stream("nodes"):
            began = self._begun.pop(end["id"], None)
            seconds = None if began is None else time.monotonic() - began
            _print(json.dumps(end) if self._is_json else declared.end_line(end, seconds))

    async def _follow_agents(self, handle: AsyncRun[Any]) -> None:
        async for word in handle.stream("agents", live=True):
            again = False
            if word["type"] == "start":
                again = word["id"] in self._begun
                self._begun[word["id"]] = time.monotonic()
            _print(json.dumps(word) if self._is_json else declared.word_line(word, again=again))


def _print(text: str) -> None:
    """Print something above the spinner, which has standard error while it turns."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def _how_to_answer(gate: inspect.GateRow, named: str) -> str:
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
