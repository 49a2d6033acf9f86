"""Threads that never keep the process from ending.

A body in a thread cannot be stopped. Python joins the threads of its own executors at exit, so one
hanging body would keep a worker alive that has already handed its runs back.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Job:
    """Work for one of the threads, whose result is reported from there.

    Args:
        work: Called in the thread; must not raise.
        report: Called with its result, once the thread counts as free.
    """

    __slots__ = ("_outcome", "_report", "_work", "state")

    def __init__(self, work: Callable[[], Any], report: Callable[[Any], None]) -> None:
        self._work = work
        self._report = report
        self._outcome: Any = None
        self.state: Literal["waiting", "running", "done", "given up", "lost"] = "waiting"

    def may_begin(self) -> bool:
        """Return True if the job should run. Call it once, under the lock of the threads."""
        return self.state == "waiting"

    def cancel(self) -> None:
        """Keep the job from starting."""
        self.state = "given up"

    def run(self) -> None:
        """Do the work."""
        self._outcome = self._work()

    def report(self) -> None:
        """Report the result."""
        self._report(self._outcome)


class _Promise(Future[Any]):
    """A future with a reference to its job."""

    job: _Promised


class _Promised(Job):
    """A job whose outcome is that of a future."""

    __slots__ = ("_call", "_error", "_future")

    def __init__(self, future: _Promise, call: Callable[[], Any]) -> None:
        super().__init__(lambda: None, lambda _: None)
        self._future = future
        self._call = call
        self._error: BaseException | None = None

    def may_begin(self) -> bool:
        return self.state == "waiting" and self._future.set_running_or_notify_cancel()

    def cancel(self) -> None:
        super().cancel()
        self._future.cancel()

    def run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:  # noqa: BLE001 - whatever it raises is its outcome
            self._error = error

    def report(self) -> None:
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._outcome)


class DaemonThreads(Executor):
    """An executor of daemon threads. Each thread is kept for further jobs, because libraries keep
    connections per thread.

    A thread is lost while it runs a job that was given up, and another thread takes its place.

    Args:
        max_workers: Most jobs at once; further jobs wait.
        name: Name of the threads.
        max_lost: Number of lost threads that are replaced.
    """

    def __init__(self, max_workers: int, name: str, *, max_lost: int = 0) -> None:
        self._max_workers = max_workers
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0  # threads, without the lost ones
        self._unfinished = 0  # jobs that wait for one of them, or run in one
        self._lost: set[Job] = set()
        self._closed = False
        self.max_lost = max_lost

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in one of the threads: a new one if all are busy and the limit allows."""
        future = _Promise()
        future.job = _Promised(future, lambda: fn(*args, **kwargs))
        self._begin(future.job)
        return future

    def start(self, work: Callable[[], Any], report: Callable[[Any], None]) -> Job:
        """Run a job without a future, which is a good part of the cost of a short job. See
        :class:`Job`.
        """
        job = Job(work, report)
        self._begin(job)
        return job

    def _begin(self, job: Job) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads have been shut down")
            self._jobs.put(job)
            self._unfinished += 1
            self._start_another()

    def _start_another(self) -> None:
        if self._closed or self._unfinished <= self._count:
            return
        replaceable = min(len(self._lost), self.max_lost)
        if self._count < self._max_workers - len(self._lost) + replaceable:
            self._count += 1
            start_daemon(self._work, self._name)

    @property
    def lost(self) -> int:
        """Number of threads that still run jobs that were given up."""
        return len(self._lost)

    def give_up(self, what: Job | Future[Any]) -> bool:
        """Give up a job; return True if that has cost a thread."""
        job = what if isinstance(what, Job) else what.job if isinstance(what, _Promise) else None
        with self._lock:
            if job is None or job.state != "running":  # it has ended, or will never begin
                if job is not None and job.state == "waiting":
                    job.state = "given up"
                return False
            job.state = "lost"
            self._lost.add(job)
            self._count -= 1
            self._unfinished -= 1
            self._start_another()
            return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                begins = job.may_begin()
                if begins:
                    job.state = "running"
                else:
                    self._unfinished -= 1
            if begins:
                job.run()
                with self._lock:
                    is_lost = job.state == "lost"
                    job.state = "done"
                    if is_lost:  # another thread has taken this one's place
                        self._lost.discard(job)
                        self._start_another()
                    else:
                        self._unfinished -= 1
                # Outside the lock, with the thread already free: it may start the next job.
                job.report()
                if is_lost:
                    return
            del job

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the threads end after their current job; never wait for them."""
        del wait
        with self._lock:
            self._closed = True
            while cancel_futures:
                try:
                    job = self._jobs.get_nowait()
                except Empty:
                    break
                if job is not None:
                    job.cancel()
            for _ in range(self._count):
                self._jobs.put(None)


class SpareThreads:
    """Daemon threads for work that may block for long. There are as many as there is work, and some
    are kept for reuse.

    Args:
        most: Number of threads that are kept.
        name: Name of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._closed = False

    def run(self, work: Callable[[], None]) -> None:
        """Run work in its own thread until it returns. The work must not raise."""
        try:
            self._idle.pop().put(work)
        except IndexError:
            inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            inbox.put(work)
            start_daemon(partial(self._work, inbox), self._name)

    def _work(self, inbox: SimpleQueue[Callable[[], None] | None]) -> None:
        thread = threading.current_thread()
        while (work := inbox.get()) is not None:
            thread.name = self._name
            work()
            work = None  # its references must not live until the next
            if len(self._idle) >= self._most:
                return
            thread.name = f"{self._name}, spare"
            self._idle.append(inbox)
            if self._closed:
                self.close()

    def close(self) -> None:
        """Keep no more threads."""
        self._closed = True
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().put(None)


class Posts:
    """Calls that threads post to an event loop. One turn of the loop makes all pending calls in
    order, so it is woken once.

    Args:
        loop: The loop of the thread that creates this.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_scheduled = False

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Schedule a call on the loop; the call must not raise.

        Does nothing once the loop is closed.
        """
        self._calls.append((call, args))
        if not self._is_scheduled:
            # `_make` unsets it before counting: calls posted while it is set are counted.
            self._is_scheduled = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._make)

    def _make(self) -> None:
        self._is_scheduled = False
        try:
            for _ in range(len(self._calls)):
                call, args = self._calls.popleft()
                call(*args)
        finally:
            if self._calls and not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self._make)

    def ask(self, call: Callable[..., object], *args: Any) -> Any:
        """Call a function on the loop with an additional :class:`Answer`, and wait for that answer.
        Use it from other threads.

        Raises:
            RuntimeError: The loop is closed, or ends before it answers.
        """
        answer = Answer()
        self.post(call, *args, answer)
        while not answer.arrives_within(LOOK_SECONDS):
            if self._loop.is_closed():
                raise RuntimeError("the event loop is closed")
        return answer.take()


LOOK_SECONDS = 1.0
"""Interval at which a waiting thread checks that its event loop is still open."""


class Answer:
    """An answer that a thread waits for."""

    __slots__ = ("_error", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Held until there is an answer.
        self._lock.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def give(self, value: Any) -> None:
        """Set the answer; once."""
        self._value = value
        self._lock.release()

    def fail(self, error: BaseException) -> None:
        """Set an error, which the waiting thread raises; once."""
        self._error = error
        self._lock.release()

    def arrives_within(self, seconds: float) -> bool:
        """Wait for the answer; return False after a time-out."""
        return self._lock.acquire(timeout=seconds)

    def take(self) -> Any:
        """Return the value, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._value


class AppCalls:
    """Calls functions of the app that are retried until they answer, such as checkers of Refs and
    the pager's hook.

    A ``def`` runs in a thread. These calls have their own threads, so that hanging ones block no
    bodies of steps. A hanging call is not repeated: later calls with the same key wait for it.

    Args:
        max_workers: Most threads at once.
        name: Name of the threads.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        self._threads = DaemonThreads(max_workers, name)
        self._under_way: dict[Hashable, Future[Any]] = {}

    async def call(self, fn: Callable[[T], Any], argument: T, key: Hashable) -> Any:
        """Call a function, ``async def`` or ``def``, and return its answer; raise its error.

        Args:
            fn: The function.
            argument: Its argument.
            key: Identifies the question: calls with the same key share an answer.
        """
        if inspect.iscoroutinefunction(fn):
            return await fn(argument)
        future = self._under_way.get(key)
        if future is None or future.done():
            future = self._under_way[key] = self._threads.submit(
                contextvars.copy_context().run, fn, argument
            )
            future.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.wrap_future(future)

    def _forget(self, key: Hashable, future: Future[Any]) -> None:
        if self._under_way.get(key) is future:
            self._under_way.pop(key, None)

    def close(self) -> None:
        """Start no more calls, and wait for none."""
        self._threads.shutdown(cancel_futures=True)


def start_daemon(job: Callable[[], None], name: str) -> None:
    """Run a job in its own daemon thread."""
    threading.Thread(target=job, name=name, daemon=True).start()
