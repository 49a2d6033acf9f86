"""Threads that never keep the process from ending.

A body in a thread cannot be stopped. Python joins the threads of its own executors at exit, so one body
that hangs would keep a worker alive that has already handed its runs back.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from pgflow._engine.loop import is_interrupt

P = ParamSpec("P")
T = TypeVar("T")

Job = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads(Executor):
    """An executor of daemon threads, each kept for the next job, since libraries keep connections by thread.

    A thread whose job nobody waits for any more is lost to it until the job returns: another takes its place.

    Args:
        max_workers: How many jobs run at once; more wait for one of them.
        name: What the threads are called.
        max_lost: How many lost threads are replaced.
    """

    def __init__(self, max_workers: int, name: str, *, max_lost: int = 0) -> None:
        self._max_workers = max_workers
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0  # threads, without the lost ones
        self._unfinished = 0  # jobs that wait for one of them, or run in one
        self._running: set[Future[Any]] = set()
        self._lost: set[Future[Any]] = set()
        self._closed = False
        self.max_lost = max_lost

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Runs a function in one of the threads, a new one if all are busy and there may be more."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads have been shut down")
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
            self._unfinished += 1
            self._start_another()
        return future

    def _start_another(self) -> None:
        replaceable = min(len(self._lost), self.max_lost)
        if self._closed:
            return
        if self._unfinished > self._count and self._count < self._max_workers - len(self._lost) + replaceable:
            self._count += 1
            start_daemon(self._work, self._name)

    @property
    def lost(self) -> int:
        """How many threads are still at jobs that nobody waits for."""
        return len(self._lost)

    def give_up(self, future: Future[Any]) -> bool:
        """Nobody waits for this job any more; answers whether that has cost a thread."""
        with self._lock:
            if future not in self._running or future.done():  # it never began, or has ended
                return False
            self._running.discard(future)
            self._lost.add(future)
            self._count -= 1
            self._unfinished -= 1
            self._start_another()
            return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            with self._lock:
                begins = future.set_running_or_notify_cancel()
                if begins:
                    self._running.add(future)
            if begins:
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 - whatever it raises is its outcome
                    future.set_exception(error)
                else:
                    future.set_result(result)
            with self._lock:
                self._running.discard(future)
                if future in self._lost:  # another thread has taken this one's place
                    self._lost.discard(future)
                    self._start_another()
                    return
                self._unfinished -= 1
            del job, future, call

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Lets the threads end with the job that they are at; never waits for them."""
        del wait
        with self._lock:
            self._closed = True
            while cancel_futures:
                try:
                    job = self._jobs.get_nowait()
                except Empty:
                    break
                if job is not None:
                    job[0].cancel()
            for _ in range(self._count):
                self._jobs.put(None)


class AppCalls:
    """Calls functions of the app that are asked again and again until they answer: checkers of Refs, the pager's hook.

    A ``def`` runs in a thread. There are threads for these calls alone, so that those that hang keep none from the
    bodies of steps, and a call that hangs is not made again: whoever asks the same waits for it.

    Args:
        max_workers: In how many threads at once.
        name: What the threads are called.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        self._threads = DaemonThreads(max_workers, name)
        self._under_way: dict[Hashable, Future[Any]] = {}

    async def call(self, fn: Callable[[T], Any], argument: T, key: Hashable) -> Any:
        """What a function, ``async def`` or ``def``, answers; raises what it raises.

        Args:
            fn: It.
            argument: What it is called with.
            key: The same for the same question.
        """
        if inspect.iscoroutinefunction(fn):
            return await fn(argument)
        future = self._under_way.get(key)
        if future is None or future.done():
            future = self._under_way[key] = self._threads.submit(contextvars.copy_context().run, fn, argument)
            future.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.wrap_future(future)

    def _forget(self, key: Hashable, future: Future[Any]) -> None:
        if self._under_way.get(key) is future:
            self._under_way.pop(key, None)

    def close(self) -> None:
        """Begins no more calls; never waits for those under way."""
        self._threads.shutdown(cancel_futures=True)


def is_its_own(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether an error out of a function of the app is the function's own, not the end of the task that awaits it, or of the process.

    Args:
        error: What it raised.
        task: The one that awaits the function: where a coroutine is closed that was left behind, it is not the current one.
    """
    if isinstance(error, asyncio.CancelledError):  # it may have awaited something that was cancelled
        return task is not None and not task.cancelling()
    if isinstance(error, GeneratorExit):
        return asyncio.current_task() is task
    return not is_interrupt(error)


def start_daemon(job: Callable[[], None], name: str) -> None:
    """Runs a job in a thread of its own."""
    threading.Thread(target=job, name=name, daemon=True).start()
