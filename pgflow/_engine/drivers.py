"""Drivers run workflow code: a coroutine on the deterministic loop, or a function in a thread.

Both pause between outcomes. The execution passes one outcome to a waiter, then lets the driver run
until all of the code waits again. Only then does the next outcome follow, so that a replay runs the
code in the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, Protocol, cast

from pgflow._engine.calls import Call, Waiter
from pgflow._engine.loop import MAX_SWALLOWED_UNWINDS, TimerHost, Unwind, WorkflowLoop
from pgflow._model.frames import is_own


class Driver(Protocol):
    """Interface of a driver; see the module."""

    def start(self) -> None:
        """Run the code until it first waits."""

    def resume(self) -> None:
        """Run the code after an outcome was delivered."""

    @property
    def busy(self) -> bool:
        """True while code runs elsewhere, or until :meth:`land` accepts that it waits. Deliver
        nothing meanwhile.
        """

    def land(self) -> None:
        """Accept, on the delivering side, that the code waits."""

    done: bool
    """True once the workflow has returned or raised."""

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return (value, error) of the ended workflow; one of them is None."""

    def waiter(self) -> Waiter:
        """Return a new waiter for an outcome."""

    def cancel(self) -> None:
        """Raise CancelledError in the code, once."""

    def close(self) -> None:
        """Unwind the code wherever it is."""

    def where(self) -> list[str]:
        """Return the source lines where the code is."""


class CoroutineDriver:
    """Runs an ``async def`` on its own loop."""

    busy = False
    done = False

    def __init__(
        self,
        host: TimerHost,
        main: Callable[[], Coroutine[Any, Any, Any]],
        context: contextvars.Context,
    ) -> None:
        self.loop = WorkflowLoop(host)
        self.waiter: Callable[[], Waiter] = self.loop.create_future
        self.close: Callable[[], None] = self.loop.close
        """Unwinds every coroutine."""
        self._main = main
        self._context = context
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_early = False
        self._cancelled: asyncio.CancelledError | None = None

    def start(self) -> None:
        """Run the code until it first waits."""
        self._task = self.loop.create_task(self._main(), name="main", context=self._context)
        if self._cancelled_early:
            self._task.cancel()
        self.loop.pump()
        self.done = self._task.done()

    def land(self) -> None:
        """Do nothing: the code runs in the delivering thread."""

    def resume(self) -> None:
        """Run callbacks until none is left."""
        assert self._task is not None
        self.loop.pump()
        self.done = self._task.done()

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return (value, error) of the ended workflow; one of them is None."""
        assert self._task is not None
        if self._task.cancelled():
            if self._cancelled is None:
                # The task raises its original error, with the reason, only the first time.
                try:
                    self._task.result()
                except asyncio.CancelledError as cancelled:
                    self._cancelled = cancelled
            return None, self._cancelled
        error = self._task.exception()
        return (None, error) if error is not None else (self._task.result(), None)

    def cancel(self) -> None:
        """Cancel the main task, which cancels what it awaits."""
        if self._task is None:
            self._cancelled_early = True
        else:
            self._task.cancel()

    def where(self) -> list[str]:
        """Return the source lines of each task; called from within the code, only those of the
        caller.
        """
        if asyncio._get_running_loop() is self.loop:
            return _lines_of(_frames_up_to(WorkflowLoop.pump.__code__))
        return [
            line
            for task in self.loop._tasks
            if not task.done()
            for line in _lines_of(_awaiting_frames(task.get_coro()))
        ]


def _awaiting_frames(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a chain of suspended coroutines, outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)


def _frames_up_to(code: CodeType | None, frame: FrameType | None = None) -> list[FrameType]:
    """Return the frames of a running stack below the one that runs `code`, outermost first."""
    frame = frame or sys._getframe(1)
    frames = []
    while frame is not None and frame.f_code is not code:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _lines_of(frames: Iterable[FrameType]) -> list[str]:
    """Return the source lines of the user's code, without pgflow, asyncio and threading."""
    return [
        f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        for frame in frames
        if not _is_machinery(frame.f_code.co_filename)
    ]


_LOOPS_AND_THREADS = (asyncio.__file__.removesuffix("__init__.py"), threading.__file__)


def _is_machinery(filename: str) -> bool:
    return is_own(filename) or filename.startswith(_LOOPS_AND_THREADS)


class ThreadWaiter:
    """A waiter for the outcome of a call made in a thread."""

    __slots__ = ("_done", "_error", "_value", "on_outcome")

    def __init__(self) -> None:
        self.on_outcome: Callable[[], None] | None = None
        """Called once it has an outcome."""
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return True if it has an outcome."""
        return self._done

    def set_result(self, value: Any, /) -> None:
        """Set the value of the call."""
        self._value, self._done = value, True
        if self.on_outcome is not None:
            self.on_outcome()

    def set_exception(self, error: BaseException, /) -> None:
        """Set the error of the call."""
        self._error, self._done = error, True
        if self.on_outcome is not None:
            self.on_outcome()

    def take(self) -> Any:
        """Return the value or raise the error."""
        if self._error is not None:
            raise self._error
        return self._value


class Race:
    """Numbered calls of a thread that waits for the first outcome of any.

    Each call reports its outcome, so thousands of calls are not scanned for each one.
    """

    def __init__(self) -> None:
        self._come: list[int] = []

    def enter(self, number: int, call: Call) -> None:
        """Add a call."""
        waiter = cast("ThreadWaiter | None", call.waiter)
        if waiter is None or waiter.done():
            self._come.append(number)
        else:
            waiter.on_outcome = functools.partial(self._come.append, number)

    @property
    def is_over(self) -> bool:
        """True if a call has an outcome."""
        return bool(self._come)

    def take(self) -> list[int]:
        """Return the numbers of the calls with an outcome, in order of arrival, and clear them."""
        come = self._come.copy()
        self._come.clear()
        return come


class ThreadDriver:
    """Runs a ``def`` in a thread, which blocks while it waits for a call.

    Control alternates, so no lock is needed. While the thread runs, the execution is busy and
    nothing else touches it; while the thread waits, it touches nothing. The thread announces its
    wait by ``yield_control``, which takes effect with :meth:`land`, called where outcomes are
    delivered.
    """

    def __init__(
        self,
        spawn: Callable[[Callable[[], None]], Any],
        yield_control: Callable[[], None],
        main: Callable[[], Any],
        context: contextvars.Context,
    ) -> None:
        self._spawn = spawn
        self._yield_control = yield_control
        self._code: tuple[Callable[[], Any], contextvars.Context] | None = main, context
        """Function and context. Cleared when the thread begins or the driver closes, because the
        context refers back to the driver.
        """
        self._go = threading.Lock()  # free once the thread may go on
        self._go.acquire()
        self._awaited: Call | Race | None = None
        self._thread_id: int | None = None
        self._cancelling = False
        self._closing = False
        self._swallowed = 0
        self._result: tuple[Any, BaseException | None] | None = None
        self.busy = False
        self.done = False

    def start(self) -> None:
        """Start the thread."""
        self.busy = True
        self._spawn(self._run)

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        assert self._code is not None
        main, context = self._code
        self._code = None
        try:
            if self._cancelling:
                raise asyncio.CancelledError  # noqa: TRY301 - cancelled before it began
            result: tuple[Any, BaseException | None] = (context.run(main), None)
        except BaseException as error:  # noqa: BLE001 - any error is its outcome
            result = (None, error)
        _close_loop_of_thread()
        self._result = result
        self.done = True
        self._thread_id = None  # the thread may run other code later
        if not self._closing:
            self._yield_control()

    def block(self, awaited: Call | Race) -> None:
        """Block the workflow's thread until a call, or one call of a race, has an outcome.

        Raises:
            asyncio.CancelledError: The run was cancelled meanwhile; raised once.
            Unwind: The run continues elsewhere.
        """
        self.check_open()
        self._awaited = awaited
        self._yield_control()
        self._go.acquire()
        self.check_open()
        if self._cancelling:
            self._cancelling = False
            raise asyncio.CancelledError

    def check_open(self) -> None:
        """Raise Unwind if the code is being unwound."""
        if self._closing:
            self._swallowed += 1
            while self._swallowed > MAX_SWALLOWED_UNWINDS:
                # The code swallows every Unwind: park the thread until the process ends.
                self._go.acquire()
            raise Unwind

    def land(self) -> None:
        """Accept that the thread waits."""
        self.busy = False

    def resume(self) -> None:
        """Let the thread run if its call has an outcome."""
        if (
            not self.done
            and not self.busy
            and (self._cancelling or self._awaited is None or _has_come(self._awaited))
        ):
            self.busy = True
            self._go.release()

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return (value, error) of the ended function; one of them is None."""
        assert self._result is not None
        return self._result

    def waiter(self) -> Waiter:
        """Return a new waiter for an outcome."""
        return ThreadWaiter()

    def cancel(self) -> None:
        """Raise CancelledError in the current wait, or in the next."""
        self._cancelling = True

    def close(self) -> None:
        """Raise Unwind in the current wait, or in the next."""
        self._closing = True
        if not self.busy:  # otherwise its thread may be about to read it
            self._code = None
        with contextlib.suppress(RuntimeError):
            # Already released: the thread is about to run and will see `_closing`.
            self._go.release()  # works whether it waits already or is about to

    def where(self) -> list[str]:
        """Return the source lines where the thread is."""
        return _lines_of(
            _frames_up_to(
                ThreadDriver._run.__code__, sys._current_frames().get(self._thread_id or 0)
            )
        )


def _close_loop_of_thread() -> None:
    """Close the event loop that a framework left in this thread: no code returns to it."""
    try:
        loop = asyncio.get_event_loop()
    except RuntimeError:  # no loop, the usual case
        return
    asyncio.set_event_loop(None)
    with contextlib.suppress(Exception):  # must not fail the run
        loop.close()


class ClosedDriver:
    """Replaces a driver whose code was unwound.

    A driver and its execution refer to each other, so without this every run would stay in memory
    until the garbage collector runs. Its passes took a third of the time of a no-op run.
    """

    busy = False
    done = True

    def start(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def land(self) -> None:
        """Do nothing."""

    def cancel(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Raise: a closed execution needs no outcome."""
        raise AssertionError("the outcome of code that was taken apart")

    def waiter(self) -> Waiter:
        """Raise Unwind in code that makes another call."""
        raise Unwind

    def where(self) -> list[str]:
        """Return no lines."""
        return []


CLOSED = ClosedDriver()


def _has_come(awaited: Call | Race) -> bool:
    if isinstance(awaited, Race):
        return awaited.is_over
    return awaited.waiter is None or awaited.waiter.done()
