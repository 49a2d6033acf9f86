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

P = ParamSpec("P")
T = TypeVar("T")

Job = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads(Executor):
    """An executor of daemon threads, each kept for the next job, since libraries keep connections by thread.

    Args:
        max_workers: How many jobs run at once; more wait for one of them.
        name: What the threads are called.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        self._max_workers = max_workers
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._count = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Runs a function in one of the threads, a new one if all are busy and there may be more."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads have been shut down")
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._count < self._max_workers:
                self._count += 1
                start_daemon(self._work, self._name)
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 - whatever it raises is its outcome
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del job, future, call
            self._idle.release()

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


def is_its_own(error: BaseException) -> bool:
    """Whether an error out of a function of the app is the function's own, not the end of the task that awaits it."""
    if isinstance(error, asyncio.CancelledError):  # it may have awaited something that was cancelled
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return not isinstance(error, (KeyboardInterrupt, GeneratorExit))


def start_daemon(job: Callable[[], None], name: str) -> None:
    """Runs a job in a thread of its own."""
    threading.Thread(target=job, name=name, daemon=True).start()
