"""Functions of an app that its workers call beside bodies: at their start and end, when a person is
needed, when a run has failed, and to check the objects that recorded results refer to.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from pgflow._flow.scope import log_fields
from pgflow._model.claims import Claim
from pgflow._model.durations import Duration, duration
from pgflow._model.effects import Ref
from pgflow._model.failures import FailedRun
from pgflow._model.kinds import Kind
from pgflow._model.options import Retries
from pgflow._model.pages import Page
from pgflow._model.units import Unit
from pgflow._worker.parts import Part, Tasks, is_its_own
from pgflow._worker.threads import AppCalls, DaemonThreads
from pgflow.errors import DefinitionError, WorkerFailed
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

Hook = Callable[[], Any]


class _Turn:
    """The number of workers on one event loop, and a lock around the calls."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.workers = 0


class Hooks:
    """The functions that an app has declared with ``on_start`` and ``on_stop``."""

    def __init__(self) -> None:
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()

    def add_start(self, fn: Hook) -> None:
        """Add a function to call before workers claim."""
        self._on_start.append(_checked(fn, "on_start"))

    def add_stop(self, fn: Hook) -> None:
        """Add a function to call after workers have ended."""
        self._on_stop.append(_checked(fn, "on_stop"))

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        """Call the functions around one worker, unless another worker of this event loop has called
        them or still needs them.

        Raises:
            WorkerFailed: A function raised. If it is one of ``on_start``, the worker must not
                start.
        """
        turn = self._turns.setdefault(asyncio.get_running_loop(), _Turn())
        async with turn.lock:
            # Under the lock: no second worker claims before these have ended.
            if not turn.workers:
                for hook in self._on_start:
                    await _call(hook, "on_start")
            turn.workers += 1
        try:
            yield
        finally:
            async with turn.lock:
                turn.workers -= 1
                if not turn.workers:
                    await self._stop()

    async def _stop(self) -> None:
        """Call each ``on_stop`` function, the last declared first, even if others fail."""
        failure: WorkerFailed | None = None
        for hook in reversed(self._on_stop):
            try:
                await _call(hook, "on_stop")
            except WorkerFailed as error:
                log.error("%s", redacted(error))  # noqa: TRY400 - the first is raised, with its traceback
                failure = failure or error
        if failure is not None:
            raise failure


def _checked(fn: Any, decorator: str) -> Hook:
    if not callable(fn):
        raise DefinitionError(
            f"@app.{decorator} takes a function, not {fn!r}: write it without parentheses"
        )
    try:
        inspect.signature(fn).bind()
    except TypeError as error:
        raise DefinitionError(
            f"a function of @app.{decorator} is called without arguments, but {_name(fn)} needs "
            f"some: {error}"
        ) from None
    return fn  # type: ignore[no-any-return]


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


async def _call(hook: Hook, decorator: str) -> None:
    """Call one function; a ``def`` runs in a thread, so that it cannot block the loop."""
    try:
        if inspect.iscoroutinefunction(hook):
            await hook()
            return
        threads = DaemonThreads(1, f"pgflow {decorator}")
        try:
            answer = await asyncio.wrap_future(threads.submit(hook))
        finally:
            threads.shutdown(wait=False)
        if inspect.isawaitable(answer):
            # A partial of a coroutine function, or an object with an async __call__.
            await answer
    except BaseException as error:
        if not is_its_own(error, asyncio.current_task()):
            raise
        raise WorkerFailed(
            f"the function {_name(hook)} of @app.{decorator} has failed: {redacted(error)}"
        ) from error


@dataclass(frozen=True)
class PagerHook:
    """The app's function to call when a person is needed.

    Attributes:
        fn: Called with a Page, ``async def`` or ``def``.
        timeout_seconds: Longest time for one call.
        again_seconds: Seconds until it is called again while the problem is still open; None for
            never.
    """

    fn: Callable[[Page], Any]
    timeout_seconds: float
    again_seconds: float | None


def make_pager_hook(fn: Any, again_after: Duration | None, timeout: Duration) -> PagerHook:
    """Return a hook as declared.

    Raises:
        DefinitionError: It can never be called.
    """
    if not callable(fn):
        raise DefinitionError(f"the pager must be a function that takes a Page, not {fn!r}")
    patience = duration(timeout, "timeout of the pager", least_seconds=-math.inf)
    pause = duration(again_after, "again_after of the pager", least_seconds=-math.inf)
    if patience <= timedelta(0) or (pause is not None and pause <= timedelta(0)):
        raise DefinitionError("app.pager: timeout and again_after must be greater than zero")
    return PagerHook(fn, patience.total_seconds(), None if pause is None else pause.total_seconds())


FAILURE_TIMEOUT_SECONDS = 30.0
FAILURE_THREADS = 4


class FailureCallbacks(Part):
    """Calls ``on_failure`` functions. It owns the threads for those that are not coroutine
    functions.
    """

    def __init__(self, tasks: Tasks, hooks: Sequence[Callable[[FailedRun], Any]]) -> None:
        self._tasks = tasks
        self._hooks = hooks
        self._calls = AppCalls(FAILURE_THREADS, "pgflow-failures")
        self._open: set[asyncio.Task[Any]] = set()

    def call(self, failed: FailedRun) -> None:
        """Call all of the functions, each in a task."""
        for hook in self._hooks:
            task = self._tasks.spawn(self._call(hook, failed))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _call(self, hook: Callable[[FailedRun], Any], failed: FailedRun) -> None:
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(FAILURE_TIMEOUT_SECONDS):
                await self._calls.call(hook, failed, (failed.run_id, id(hook)))
        except BaseException as error:  # any error is the function's own
            if not is_its_own(error, task):
                raise
            log.warning(
                "a function of on_failure failed for run %s with %s: %s",
                failed.run,
                type(error).__name__,
                redacted(error),
            )

    async def finish(self, within_seconds: float) -> None:
        """Wait up to `within_seconds` for the calls under way."""
        if self._open:
            await asyncio.wait(self._open, timeout=within_seconds)

    async def stop(self) -> None:
        """Stop calling functions, without waiting for one that hangs in its thread."""
        self._calls.close()


AT_ONCE = 16
"""Most Refs of one run that are checked at the same time."""

_SIGN = '"pgflow"'
_HOLDING = frozenset(
    {Kind.STEP_COMPLETED, Kind.STEP_RENEWED, Kind.DECISION_RECORDED, Kind.EFFECT_CONFIRMED}
)
_AGAIN = Retries(first_delay=timedelta(seconds=0.2), max_delay=timedelta(seconds=30))


@dataclass(frozen=True)
class Checker:
    """Function that reports whether objects of one kind exist.

    Attributes:
        fn: Called with a Ref, ``async def`` or ``def``; True if it exists.
        timeout_seconds: Longest time for one answer.
    """

    fn: Callable[[Ref], Any]
    timeout_seconds: float


def make_checker(kind: str, fn: Any, timeout: Duration) -> Checker:
    """Return a checker as declared.

    Raises:
        DefinitionError: It can never be called.
    """
    if not isinstance(kind, str) or not kind:
        raise DefinitionError(
            f"ref_checker() takes the kind of Refs that it checks, such as 's3', not {kind!r}"
        )
    if not callable(fn):
        raise DefinitionError(
            f"the checker of {kind!r} must be a function that takes a Ref, not {fn!r}"
        )
    patience = duration(timeout, f"timeout of the checker of {kind!r}", least_seconds=-math.inf)
    if patience <= timedelta(0):
        raise DefinitionError(
            f"the checker of {kind!r}: timeout must be greater than zero, not {timeout}"
        )
    return Checker(fn, patience.total_seconds())


def refs_in(units: list[Unit], checkers: Container[str]) -> dict[Ref, list[int]]:
    """Return the Refs of these checkers' kinds in the newest result of each call, each with the
    calls that returned it.
    """
    newest = {unit.call: unit for unit in units if unit.kind in _HOLDING}
    found: dict[Ref, list[int]] = {}
    for unit in newest.values():
        if unit.payload is not None and _SIGN in unit.payload:
            for ref in set(_walk(json.loads(unit.payload))):
                if ref.kind in checkers:
                    found.setdefault(ref, []).append(unit.call)
    return found


def _walk(value: Any) -> Iterator[Ref]:
    if isinstance(value, dict):
        if (
            value.get("pgflow") == "ref"
            and isinstance(value.get("kind"), str)
            and isinstance(value.get("id"), str)
        ):
            yield Ref(value["kind"], value["id"])
        for part in value.values():
            yield from _walk(part)
    elif isinstance(value, list):
        for part in value:
            yield from _walk(part)


async def find_lost(
    claim: Claim,
    refs: dict[Ref, list[int]],
    checkers: dict[str, Checker],
    calls: AppCalls,
    goes_on: Callable[[], bool],
) -> dict[int, list[Ref]]:
    """Check Refs, and return the lost ones.

    Args:
        claim: The run, for the log.
        refs: The Refs, each with the calls that returned it.
        checkers: By kind.
        calls: Calls the checkers.
        goes_on: Called between attempts; returns False once the answer is not needed.

    Returns:
        The Refs that do not exist, by call. Meaningless once `goes_on` has returned False.
    """
    turns = asyncio.Semaphore(AT_ONCE)

    async def exists(ref: Ref) -> bool:
        async with turns:
            return await _ask(claim, ref, checkers[ref.kind], calls, goes_on)

    answers = await asyncio.gather(*map(exists, refs))
    lost: dict[int, list[Ref]] = {}
    for (ref, numbers), is_there in zip(refs.items(), answers, strict=True):
        for number in () if is_there else numbers:
            lost.setdefault(number, []).append(ref)
    return lost


async def _ask(
    claim: Claim, ref: Ref, checker: Checker, calls: AppCalls, goes_on: Callable[[], bool]
) -> bool:
    tries = 0
    task = asyncio.current_task()
    while goes_on():
        try:
            async with asyncio.timeout(checker.timeout_seconds):
                return _verdict(await calls.call(checker.fn, ref, ref))
        except BaseException as error:  # on any error, it has not answered
            if not is_its_own(error, task):
                raise
            tries += 1
            delay = _AGAIN.delay_seconds(tries)
            log.warning(
                "the checker of %s %r did not answer: %s; retrying in %.1f s",
                ref.kind,
                ref.id,
                redacted(error),
                delay,
                extra=log_fields(claim),
            )
            await asyncio.sleep(delay)
    return True


def _verdict(answer: object) -> bool:
    if not isinstance(answer, bool):
        raise TypeError(f"a checker of Refs must return True or False, not {answer!r}")
    return answer
