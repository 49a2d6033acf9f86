"""Drivers run the code of a workflow: a coroutine on the deterministic loop,
or a function in a thread.

Both stand still between outcomes. The execution hands one outcome to a waiter and then lets the
driver run until nothing of the code can go on; only then is the next outcome handed in.
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
    """See the module."""

    def start(self) -> None:
        """Runs the code until it first stands still."""

    def resume(self) -> None:
        """Runs the code after an outcome was handed in."""

    @property
    def busy(self) -> bool:
        """True while code runs elsewhere, or nobody has yet been told that it stands still: nothing
        may be handed in.
        """

    def land(self) -> None:
        """Takes note, on the side that hands outcomes in, that the code stands still."""

    done: bool
    """True once the workflow has returned or raised."""

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return (value, error) of the workflow that has ended; one of them is None."""

    def waiter(self) -> Waiter:
        """A new place for an outcome."""

    def cancel(self) -> None:
        """Raises CancelledError in the code, once."""

    def close(self) -> None:
        """Takes the code apart, wherever it stands."""

    def where(self) -> list[str]:
        """Source lines at which the code stands."""


class CoroutineDriver:
    """Runs an ``async def`` on a loop of its own."""

    busy = False
    done = False

    def __init__(
        self,
        host: TimerHost,
        main: Callable[[], Coroutine[Any, Any, Any]],
        context: contextvars.Context,
    ) -> None:
        self.loop = WorkflowLoop(host)
        self._main = main
        self._context = context
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_early = False
        self._cancelled: asyncio.CancelledError | None = None

    def start(self) -> None:
        """Runs the code until it first stands still."""
        self._task = self.loop.create_task(self._main(), name="main", context=self._context)
        if self._cancelled_early:
            self._task.cancel()
        self.resume()

    def land(self) -> None:
        """Code that is run here never stands still unseen."""

    def resume(self) -> None:
        """Runs callbacks until none is left."""
        assert self._task is not None
        self.loop.pump()
        self.done = self._task.done()

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return (value, error) of the workflow that has ended; one of them is None."""
        assert self._task is not None
        if self._task.cancelled():
            if self._cancelled is None:
                # The task hands out once what its code has raised, with the reason that it gave.
                try:
                    self._task.result()
                except asyncio.CancelledError as cancelled:
                    self._cancelled = cancelled
            return None, self._cancelled
        error = self._task.exception()
        return (None, error) if error is not None else (self._task.result(), None)

    def waiter(self) -> Waiter:
        """A future of the loop."""
        return self.loop.create_future()

    def cancel(self) -> None:
        """Cancels the main task, which cancels what it awaits."""
        if self._task is None:
            self._cancelled_early = True
        else:
            self._task.cancel()

    def close(self) -> None:
        """Takes every coroutine apart."""
        self.loop.close()

    def where(self) -> list[str]:
        """The lines of each task; only those of the code that asks,
        when it is asked from within.
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
    """Frames of a chain of suspended coroutines, outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)


def _frames_up_to(code: CodeType | None, frame: FrameType | None = None) -> list[FrameType]:
    """Frames of a running stack from below the one that runs `code`, outermost first."""
    frame = frame or sys._getframe(1)
    frames = []
    while frame is not None and frame.f_code is not code:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _lines_of(frames: Iterable[FrameType]) -> list[str]:
    """Source lines of the user's code,
    without pgflow's own and without the machinery that runs them.
    """
    return [
        f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        for frame in frames
        if not _is_machinery(frame.f_code.co_filename)
    ]


_LOOPS_AND_THREADS = (asyncio.__file__.removesuffix("__init__.py"), threading.__file__)


def _is_machinery(filename: str) -> bool:
    return is_own(filename) or filename.startswith(_LOOPS_AND_THREADS)


class ThreadWaiter:
    """The place for the outcome of a call made in a thread."""

    __slots__ = ("_done", "_error", "_value", "on_outcome")

    def __init__(self) -> None:
        self.on_outcome: Callable[[], None] | None = None
        """Called once it has one."""
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return True if it has an outcome."""
        return self._done

    def set_result(self, value: Any, /) -> None:
        """The call returned."""
        self._value, self._done = value, True
        if self.on_outcome is not None:
            self.on_outcome()

    def set_exception(self, error: BaseException, /) -> None:
        """The call raised."""
        self._error, self._done = error, True
        if self.on_outcome is not None:
            self.on_outcome()

    def take(self) -> Any:
        """The value, or the error raised."""
        if self._error is not None:
            raise self._error
        return self._value


class Race:
    """Calls of a thread, under numbers, that are waited for until any has an outcome.

    It is told by the call: of many thousands nobody looks through all whenever one has come.
    """

    def __init__(self) -> None:
        self._come: list[int] = []

    def enter(self, number: int, call: Call) -> None:
        """Waits for it too."""
        waiter = cast("ThreadWaiter | None", call.waiter)
        if waiter is None or waiter.done():
            self._come.append(number)
        else:
            waiter.on_outcome = functools.partial(self._come.append, number)

    @property
    def is_over(self) -> bool:
        """True if one has come."""
        return bool(self._come)

    def take(self) -> list[int]:
        """Return those that have come, in that order, once."""
        come = self._come.copy()
        self._come.clear()
        return come


class ThreadDriver:
    """Runs a ``def`` in a thread; the thread stands still while it waits for a call.

    Control passes to and fro: while the thread runs, the execution is busy and nothing of it is
    touched from outside; while it waits, it touches nothing itself. The thread says that it stands
    still by ``yield_control``; only :meth:`land`,
    called where outcomes are handed in, makes it count.
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
        """Until its thread begins, or it is closed before: the context leads back here."""
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
        """Starts the thread."""
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
        except BaseException as error:  # noqa: BLE001 - whatever it raised is its outcome
            result = (None, error)
        _close_loop_of_thread()
        self._result = result
        self.done = True
        self._thread_id = None  # it may run other code by the time somebody asks
        if not self._closing:
            self._yield_control()

    def block(self, awaited: Call | Race) -> None:
        """In the workflow's thread: stands still until a call has an outcome, or one of a race.

        Raises:
            asyncio.CancelledError: The run was cancelled meanwhile; once.
            Unwind: The run goes on elsewhere.
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
        """Raises Unwind in code that is being taken apart."""
        if self._closing:
            self._swallowed += 1
            while self._swallowed > MAX_SWALLOWED_UNWINDS:
                # It will not be told: leave the thread to the end of the process.
                self._go.acquire()
            raise Unwind

    def land(self) -> None:
        """The thread stands still, and from now on that counts."""
        self.busy = False

    def resume(self) -> None:
        """Lets the thread run if it has what it waits for."""
        if (
            not self.done
            and not self.busy
            and (self._cancelling or self._awaited is None or _has_come(self._awaited))
        ):
            self.busy = True
            self._go.release()

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return (value, error) of the function that has ended; one of them is None."""
        assert self._result is not None
        return self._result

    def waiter(self) -> Waiter:
        """A place for an outcome."""
        return ThreadWaiter()

    def cancel(self) -> None:
        """The wait at which the thread stands, or its next, raises CancelledError."""
        self._cancelling = True

    def close(self) -> None:
        """The wait at which the thread stands, or its next, raises Unwind."""
        self._closing = True
        if not self.busy:  # else its thread may be about to take it
            self._code = None
        with contextlib.suppress(RuntimeError):
            # It has just been told to go on, and sees this then.
            self._go.release()  # whether it waits already or is about to

    def where(self) -> list[str]:
        """Lines at which the thread stands."""
        return _lines_of(
            _frames_up_to(
                ThreadDriver._run.__code__, sys._current_frames().get(self._thread_id or 0)
            )
        )


def _close_loop_of_thread() -> None:
    """Close the loop that a framework has made for this thread: no code comes back to it."""
    try:
        loop = asyncio.get_event_loop()
    except RuntimeError:  # there is none, as nearly always
        return
    asyncio.set_event_loop(None)
    with contextlib.suppress(Exception):  # it is not the run that has failed
        loop.close()


class ClosedDriver:
    """In the place of a driver whose code was taken apart.

    A driver and its execution refer to each other. Left so, every run would wait for the garbage
    collector with all that it held, and the collector's passes were a third
    of what a run that does nothing cost.
    """

    busy = False
    done = True

    def start(self) -> None:
        """There is no code."""

    def resume(self) -> None:
        """There is no code."""

    def land(self) -> None:
        """There is no code."""

    def cancel(self) -> None:
        """There is no code."""

    def close(self) -> None:
        """It is."""

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Nobody asks for it any more."""
        raise AssertionError("the outcome of code that was taken apart")

    def waiter(self) -> Waiter:
        """Code that would still wait is being unwound."""
        raise Unwind

    def where(self) -> list[str]:
        """Nowhere."""
        return []


CLOSED = ClosedDriver()


def _has_come(awaited: Call | Race) -> bool:
    if isinstance(awaited, Race):
        return awaited.is_over
    return awaited.waiter is None or awaited.waiter.done()
