"""The deterministic event loop that async workflows run on.

The worker's own loop pumps it: a pump runs callbacks until none is left, and between pumps exactly
one outcome of a durable call is delivered. Nothing else can wake a task, so the code runs in the
same order, and numbers its calls in the same way, on the first run and on every replay. These
sources of nondeterminism are removed:

- tasks and futures hash by an ordinal, so that a set of tasks (``asyncio.wait``, ``TaskGroup``)
  iterates in the same order in every process;
- time is the time of the last outcome, and ``asyncio.sleep`` and ``asyncio.timeout`` are durable
  timers;
- sockets, threads and subprocesses are refused with the name of the decorator to use;
- tasks that one callback cancels continue in the order of their creation, and a callback that
  appends itself again rests until the next outcome once it makes no progress (anyio's scopes do
  both);
- tasks and asynchronous generators stay alive until the loop closes, and are closed in order: with
  the garbage collector, a ``finally`` of one run could run inside another and write to its journal.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from types import FrameType, MethodType
from typing import Any, NoReturn, Protocol, TypeVar

from pgflow.errors import NotInWorkflowError

T = TypeVar("T")

log = logging.getLogger("pgflow")

# Then code that catches every Unwind is given up, so that it cannot block the worker.
MAX_SWALLOWED_UNWINDS = 100
NEVER_SECONDS = 1e12
"""Delay of more than 30,000 years, from which on no timer is started: the database's clock ends
before.
"""
MAX_REPEATS = 64
"""Number of times that a callback which appends itself again runs between two outcomes, while it
makes progress.
"""

# Code that cannot be unwound. Kept alive, because the collector would run its clean-up inside
# another run.
_abandoned: list[Any] = []


def is_interrupt(error: BaseException) -> bool:
    """Return True for Ctrl-C on the process, False for a KeyboardInterrupt raised by code.

    Python raises it only in the main thread: at any point under the default handler of SIGINT, else
    from the installed handler, such as that of ``asyncio.run`` on the second press.
    """
    if (
        not isinstance(error, KeyboardInterrupt)
        or threading.current_thread() is not threading.main_thread()
    ):
        return False
    handler: Any = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    handler = getattr(handler, "func", handler)  # a partial
    return trace is not None and getattr(handler, "__code__", None) is trace.tb_frame.f_code


class Unwind(BaseException):
    """Raised in workflow code to unwind it: the run continues elsewhere or later, by replay."""


class TimerHost(Protocol):
    """Interface of the execution for its loop."""

    run_id: int

    def time_seconds(self) -> float:
        """Return the seconds from the run's creation to the last outcome."""

    def start_timer(self, delay_seconds: float, fire: Callable[[], None]) -> Callable[[], None]:
        """Start a durable timer; return the function that cancels it."""


class DurableTimerHandle(asyncio.TimerHandle):
    """Handle of ``call_later``: a timer that outlives the process."""

    withdraw: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Cancel the timer, in the journal too."""
        if not self.cancelled() and self.withdraw is not None:
            self.withdraw()
            self.withdraw = None
        super().cancel()


_new_handle = partial(asyncio.Handle.__new__, asyncio.Handle)


class WorkflowFuture(asyncio.Future[T]):
    """A future with an ordinal hash."""

    __slots__ = ("_ordinal",)
    _ordinal: int

    def __hash__(self) -> int:
        return self._ordinal


class WorkflowTask(asyncio.Task[T]):
    """A task with an ordinal hash, which keeps the context it runs in."""

    _ordinal: int
    own_context: contextvars.Context

    def __hash__(self) -> int:
        return self._ordinal

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it; the loop keeps the order of tasks that one callback cancels."""
        loop: Any = self._loop
        if loop._cancelling is not None:  # what this task awaits is cancelled with it
            return super().cancel(msg)
        loop._cancelling = self._ordinal
        try:
            return super().cancel(msg)
        finally:
            loop._cancelling = None


inlining: contextvars.ContextVar[bool] = contextvars.ContextVar("pgflow_inline", default=False)
"""True if executors run work at once: ``with pgflow.inline()``."""

_ADVICE = {
    "run_in_executor": "asyncio.to_thread() and executors, which start threads",
    "call_soon_threadsafe": "other threads",
    "create_server": "sockets",
    "create_connection": "sockets",
    "create_datagram_endpoint": "sockets",
    "create_unix_connection": "sockets",
    "create_unix_server": "sockets",
    "sock_connect": "sockets",
    "sock_recv": "sockets",
    "sock_recv_into": "sockets",
    "sock_recvfrom": "sockets",
    "sock_recvfrom_into": "sockets",
    "sock_sendall": "sockets",
    "sock_sendto": "sockets",
    "sock_sendfile": "sockets",
    "sock_accept": "sockets",
    "getaddrinfo": "name look-ups",
    "getnameinfo": "name look-ups",
    "start_tls": "sockets",
    "sendfile": "sockets",
    "connect_accepted_socket": "sockets",
    "connect_read_pipe": "pipes",
    "connect_write_pipe": "pipes",
    "subprocess_exec": "subprocesses",
    "subprocess_shell": "subprocesses",
    "add_reader": "file descriptors",
    "remove_reader": "file descriptors",
    "add_writer": "file descriptors",
    "remove_writer": "file descriptors",
    "add_signal_handler": "signal handlers",
    "remove_signal_handler": "signal handlers",
    "run_forever": "running a loop",
    "run_until_complete": "running a loop",
    "stop": "stopping the loop",
    "shutdown_asyncgens": "shutting down",
    "shutdown_default_executor": "shutting down",
    "set_default_executor": "executors",
    "set_task_factory": "another task factory",
    "set_debug": "debug mode",
}


def _refusal(name: str, what: str) -> Callable[..., NoReturn]:
    def refuse(_self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotInWorkflowError(
            f"workflow code cannot use {what} ({name}): a replay would do it again. "
            "Put it into a function decorated with @pgflow.step, or @pgflow.read if it changes "
            "nothing"
        )

    refuse.__name__ = name
    return refuse


_RefusingLoop: Any = type(
    "_RefusingLoop",
    (asyncio.AbstractEventLoop,),
    {method: _refusal(method, what) for method, what in _ADVICE.items()},
)


class WorkflowLoop(_RefusingLoop):  # type: ignore[misc]
    """A deterministic event loop; see the module. It refuses everything that a replay cannot
    repeat.
    """

    def __init__(self, host: TimerHost) -> None:
        self.host = host
        self._time = host.time_seconds
        self._ready: deque[Any] = deque()  # handles, of which the loop uses private attributes
        self._tasks: list[WorkflowTask[Any]] = []
        # None instead of an empty list: most runs need none of these, and the garbage collector
        # tracks each list.
        self._generators: list[tuple[AsyncGenerator[Any, Any], contextvars.Context]] | None = None
        self._crowded = 64  # number of tasks at which finished ones are removed
        self._task_names = 0
        # Unique across runs, so that asyncio's own tables of tasks do not fill with equal hashes.
        # The run's number is above the bits by which small sets order their members, so that their
        # order depends on the ordinal alone.
        self._ordinals = (host.run_id & 0x1FFFFF) << 40
        self._closing = False
        self._running: asyncio.Handle | None = None
        self._repeating: deque[Any] | None = None
        self._cancelling: int | None = None  # the ordinal of the task
        self._cancelled: list[tuple[int, asyncio.Handle]] | None = None
        self._exception_handler: (
            Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
        ) = None

    # ------------------------------------------------------------ running

    def pump(self, first: Callable[[], None] | None = None) -> None:
        """Run callbacks until only those are left that append themselves again. Meanwhile this is
        the running loop and keeps every generator that begins.

        Args:
            first: Function to call before them.
        """
        loop_outside, hooks_outside = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._keep_generator, finalizer=_ignore)
        try:
            if first is not None:
                first()
            if self._cancelled:  # a cancel of the run comes from outside
                self._order_cancelled()
            repeats = 0
            while True:
                ready = self._ready
                came_of_it = -len(ready)
                while ready:
                    handle = ready.popleft()
                    came_of_it += 1
                    if not handle._cancelled:
                        self._running = handle
                        try:
                            # As the handle does, which would be one more call for each.
                            handle._context.run(handle._callback, *handle._args)
                        except (SystemExit, KeyboardInterrupt) as error:
                            if is_interrupt(error):
                                raise
                            # Asyncio has set it on the task that raised it:
                            # it ends the run, not the worker.
                        except BaseException as error:  # noqa: BLE001 - as asyncio does
                            self._callback_failed(handle, error)
                        if self._cancelled:
                            self._order_cancelled()
                # Callbacks that append themselves again run on while they make progress.
                is_stuck = repeats and came_of_it <= 0
                if not self._repeating or is_stuck or repeats == MAX_REPEATS:
                    break
                repeats += 1
                self._ready, self._repeating = self._repeating, ready
        finally:
            self._running = None
            sys.set_asyncgen_hooks(*hooks_outside)
            asyncio._set_running_loop(loop_outside)

    def _callback_failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        self.call_exception_handler(
            {"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle}
        )

    def _order_cancelled(self) -> None:
        """Order tasks that were cancelled together, perhaps from an unordered set, by their
        creation.
        """
        assert self._cancelled is not None
        ordinals = {id(handle): ordinal for ordinal, handle in self._cancelled}
        self._cancelled = None
        if len(ordinals) > 1:
            in_order = iter(
                sorted(
                    (handle for handle in self._ready if id(handle) in ordinals),
                    key=lambda handle: ordinals[id(handle)],
                )
            )
            ready = [next(in_order) if id(handle) in ordinals else handle for handle in self._ready]
            self._ready.clear()
            self._ready.extend(ready)

    def close(self) -> None:
        """Unwind every suspended coroutine, in the order of creation."""
        if asyncio._get_running_loop() is self:
            raise NotInWorkflowError("workflow code cannot close the loop that runs it")
        self._closing = True
        self._ready.clear()
        self._repeating = None
        for task in self._tasks:
            if not task.done():
                self.pump(self._take_apart)
                break
        else:
            if self._generators:
                self.pump(self._take_apart)
        self._tasks.clear()
        self._generators = None
        self._ready.clear()

    def _take_apart(self) -> None:
        # Both lists may grow during the loops: a `finally` may make tasks and begin generators.
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self._unwind(task)
        for generator, context in self._generators or ():
            context.run(self._throw, generator.athrow(Unwind()).__await__())

    def _unwind(self, task: WorkflowTask[Any]) -> None:
        coroutine = task.get_coro()
        if coroutine is None:
            return
        asyncio.tasks._enter_task(self, task)
        try:
            task.own_context.run(self._throw, coroutine)
        finally:
            asyncio.tasks._leave_task(self, task)
        # It never becomes done, so the future that it awaited would keep it and the run alive.
        if task._callbacks:
            _forget_callbacks(task)
        if (awaited := task._fut_waiter) is not None:  # type: ignore[attr-defined]
            _forget_callbacks(awaited)

    def _throw(self, stack: Any) -> None:
        """Throw Unwind until the code ends. Abandon code that swallows every throw."""
        for _ in range(MAX_SWALLOWED_UNWINDS):
            try:
                awaited = stack.throw(Unwind())
            except BaseException:  # noqa: BLE001 - Unwind, StopIteration or what a `finally` raised: it has ended
                return
            if asyncio.isfuture(awaited):
                awaited._asyncio_future_blocking = (
                    False  # as a task does; otherwise the same future cannot be awaited again
                )
        _abandoned.append(stack)
        log.warning(
            "run %s: a coroutine would not be unwound and was abandoned: %r",
            self.host.run_id,
            stack,
        )

    # ------------------------------------------------------------ the interface for asyncio

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Append a callback to the queue of this pump."""
        # As its constructor does, which would be one more call of Python for each callback.
        handle: Any = _new_handle()
        handle._context = contextvars.copy_context() if context is None else context
        handle._loop, handle._callback, handle._args = self, callback, args
        handle._cancelled, handle._repr, handle._source_traceback = False, None, None
        if self._closing:
            return handle  # type: ignore[no-any-return]
        if (
            type(callback) is MethodType
            and self._running is not None
            and self._running._callback == callback  # type: ignore[attr-defined]
        ):
            if self._repeating is None:
                self._repeating = deque()
            self._repeating.append(handle)
            return handle  # type: ignore[no-any-return]
        self._ready.append(handle)
        if self._cancelling is not None:
            if self._cancelled is None:
                self._cancelled = []
            self._cancelled.append((self._cancelling, handle))
        return handle  # type: ignore[no-any-return]

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Start a durable timer for a delay in seconds; none for an endless delay, as in
        ``anyio.sleep_forever()``.
        """
        handle = DurableTimerHandle(self._time() + delay, callback, list(args), self, context)
        if self._closing:
            raise Unwind
        if math.isnan(delay):
            raise ValueError("delay must be a number of seconds, not nan")
        if delay <= 0:
            self._ready.append(handle)
        elif delay < NEVER_SECONDS:
            handle.withdraw = self.host.start_timer(float(delay), partial(self._fire, handle))
        return handle

    def _fire(self, handle: DurableTimerHandle) -> None:
        # The callback refers to the run, and so back to the handle: break the cycle.
        handle.withdraw = None
        self._ready.append(handle)

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Start a durable timer until a time of :meth:`time`."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def time(self) -> float:
        """Return the seconds from the run's creation to the last outcome."""
        return self._time()

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future with an ordinal."""
        future: WorkflowFuture[Any] = WorkflowFuture.__new__(WorkflowFuture)
        self._ordinals += 1
        future._ordinal = self._ordinals
        future.__init__(loop=self)  # type: ignore[misc]
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_options: Any,
    ) -> asyncio.Task[T]:
        """Return a task with an ordinal, and a name that counts within the run."""
        caller = sys._getframe(1)
        if caller.f_code.co_filename == asyncio.tasks.__file__ and _is_as_completed(caller):
            coro.close()
            raise NotInWorkflowError(
                "asyncio.as_completed() over coroutines starts them in an order that a replay "
                "cannot repeat: use pgflow.as_completed(), or make tasks of them first"
            )
        self._task_names += 1
        task: WorkflowTask[T] = WorkflowTask.__new__(WorkflowTask)
        self._ordinals += 1
        task._ordinal = self._ordinals
        task.own_context = context if context is not None else contextvars.copy_context()
        task.__init__(  # type: ignore[misc]
            coro, loop=self, name=name or f"task-{self._task_names}", context=task.own_context
        )
        if len(self._tasks) >= self._crowded and not self._closing:
            self._tasks = [kept for kept in self._tasks if not kept.done()]
            self._crowded = max(64, 2 * len(self._tasks))
        self._tasks.append(task)
        return task

    def _keep_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        task = asyncio.current_task(self)
        if self._generators is None:
            self._generators = []
        self._generators.append(
            (
                generator,
                task.own_context if isinstance(task, WorkflowTask) else contextvars.copy_context(),
            )
        )

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: the handle has already recorded it in the journal."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Pass a callback's error to the handler that the code has set, else log it, unless the
        loop is closing.
        """
        if self._closing:
            return
        # Errors that asyncio finds when an object is collected come at a different point in every
        # process, so they must not reach the code.
        if self._exception_handler is None or "handle" not in context:
            self.default_exception_handler(context)
            return
        try:
            self._exception_handler(self, context)
        except Exception as error:  # noqa: BLE001 - as asyncio does
            self.default_exception_handler(
                {"message": "an exception handler of the workflow failed", "exception": error}
            )

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error that asyncio cannot raise anywhere."""
        if not self._closing:
            log.debug(
                "run %s: %s",
                self.host.run_id,
                context.get("message"),
                exc_info=context.get("exception"),
            )

    def get_exception_handler(
        self,
    ) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        """Return the handler set by :meth:`set_exception_handler`."""
        return self._exception_handler

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        """Set the handler for errors in callbacks. Errors found when objects are collected are only
        logged.
        """
        if handler is not None and not callable(handler):
            raise TypeError(f"handler must be callable or None, not {handler!r}")
        self._exception_handler = handler

    def run_in_executor(
        self, executor: Any = None, func: Callable[..., T] | None = None, *args: Any
    ) -> asyncio.Future[T]:
        """Run a function at once, as workflow code, inside ``with pgflow.inline()``; refuse it
        elsewhere.
        """
        if func is None or not inlining.get():
            return super().run_in_executor(executor, func, *args)  # type: ignore[no-any-return]  # which refuses it
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except StopIteration as error:  # a future cannot hold it
            future.set_exception(RuntimeError(f"a function raised {type(error).__name__}"))
        except Exception as error:  # noqa: BLE001 - the awaiting code gets it
            future.set_exception(error)
        else:
            future.set_result(result)
        return future

    def get_task_factory(self) -> None:
        """Return None: the loop makes its own tasks."""
        return

    get_debug = staticmethod(bool)
    """Return False: debug mode would slow the loop without changing any order. Asyncio calls it for
    each future and callback, so it is a C function.
    """

    def is_running(self) -> bool:
        """Return True while workflow code can run."""
        return not self._closing

    def is_closed(self) -> bool:
        """Return True once the loop is closing."""
        return self._closing


def _forget_callbacks(future: asyncio.Future[Any]) -> None:
    for callback, _ in list(future._callbacks or ()):
        future.remove_done_callback(callback)


def _ignore(_generator: AsyncGenerator[Any, Any]) -> None:
    """Do nothing: the loop holds every generator until it closes, so none is finalised earlier."""


def _is_as_completed(frame: FrameType | None) -> bool:
    """Return True if ``ensure_future``, which has this frame, was called by ``as_completed``, which
    iterates a set of bare coroutines.
    """
    for _ in range(4):
        if frame is None or frame.f_code.co_filename != asyncio.tasks.__file__:
            return False
        if "as_completed" in frame.f_code.co_name or "_AsCompleted" in getattr(
            frame.f_code, "co_qualname", ""
        ):
            return True
        frame = frame.f_back
    return False
