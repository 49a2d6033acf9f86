"""Threads that never keep the process from ending.

A body in a thread cannot be stopped. Python joins the threads of its own executors at exit, so one body
that hangs would keep a worker alive that has already handed its runs back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
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


def start_daemon(job: Callable[[], None], name: str) -> None:
    """Runs a job in a thread of its own."""
    threading.Thread(target=job, name=name, daemon=True).start()
