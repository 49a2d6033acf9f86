"""The processes beside this one: the bank, and the workers that come and go.

Each is a session of its own, so that Ctrl-C reaches this process only, which then stops them in order. What
they print goes to files in the run's folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pgflow_cli
from pgflow_cli.treasury.client import ADDRESS

GRACE_SECONDS = 15.0
"""How long a process may take to stop before it is killed."""

WORKERS = "pgflow_cli.treasury.workflow:app"


class Process:
    """A Python module running as a process."""

    def __init__(self, module: str, *arguments: str, log: Path, environment: dict[str, str] | None = None) -> None:
        path = [str(Path(pgflow_cli.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("ab") as errors:
            self._popen = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(path)},
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._name = module
        self._log = log

    def read_line(self) -> str:
        """The next line of its standard output; RuntimeError if it has ended."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline().decode().strip()
        if not line:
            raise RuntimeError(f"{self._name} ended with {self._popen.wait()}: see {self._log}")
        return line

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kills it on the spot."""
        self._popen.kill()
        self.wait()

    def wait(self) -> None:
        """Waits until it has ended; kills it if that takes too long."""
        try:
            self._popen.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


class BankProcess:
    """The bank, on a book that exists."""

    def __init__(self, book: Path, *, latency_ms: float, lost_acks: float, seed: int) -> None:
        options = {"--book": book, "--latency-ms": latency_ms, "--lost-acks": lost_acks, "--seed": seed}
        arguments = [str(word) for pair in options.items() for word in pair]
        self._process = Process("pgflow_cli.treasury.bank", *arguments, log=book.with_name("bank.log"))
        self.pid = self._process.pid
        try:
            self.address = self._process.read_line()
        except RuntimeError:
            self.close()
            raise

    def close(self) -> None:
        """Ends it; its book is on the disk at any moment."""
        self._process.kill()


class Workers:
    """Worker processes: ``pgflow workers``, as anybody would run them."""

    def __init__(self, folder: Path, dsn: str, bank: str, queue: str, *, concurrency: int, dead_after_seconds: float) -> None:
        self._folder = folder
        self._environment = {"PGFLOW_DSN": dsn, ADDRESS: bank}
        options = {"--queue": queue, "--concurrency": concurrency, "--dead-after": dead_after_seconds, "--poll": 0.2}
        self._arguments = ["workers", WORKERS, *(str(word) for pair in options.items() for word in pair)]
        self._running: dict[int, Process] = {}
        self._started = 0

    def start_one(self) -> int:
        """Starts one; answers its process id."""
        self._started += 1
        log = self._folder / f"worker-{self._started}.log"
        process = Process("pgflow_cli", *self._arguments, log=log, environment=self._environment)
        self._running[process.pid] = process
        return process.pid

    def __contains__(self, pid: object) -> bool:
        """Whether it is one of ours."""
        return pid in self._running

    def find_ended(self) -> list[int]:
        """Those that have ended though nobody killed them."""
        return [pid for pid, process in self._running.items() if not process.is_running]

    def send(self, pid: int, number: signal.Signals) -> None:
        """Sends one a signal."""
        self._running[pid].send(number)

    def kill(self, pid: int) -> None:
        """Kills one, as a power cut would."""
        self._running.pop(pid).kill()

    def close(self) -> None:
        """Stops them as a deploy would: they finish or hand back what they have."""
        for process in self._running.values():
            process.send(signal.SIGTERM)
        for process in self._running.values():
            process.wait()
        self._running.clear()
