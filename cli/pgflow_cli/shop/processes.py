"""The processes beside this one: a server, and the workers that come and go.

Each is in a session of its own, so that Ctrl-C reaches this process only, which then stops them in
order. Each ends with its standard input, so none outlives this process, even if it is killed. Their
output goes to files in the folder of the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

GRACE_SECONDS = 15.0
"""Seconds that a worker may take to stop before it is killed."""


def start_process(
    *command: str, log: Path, stdout: int | None = None, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a Python module as a process.

    Args:
        *command: The module and its arguments.
        log: File for its standard error.
        stdout: File for its standard output; the log if not given.
        environment: Variables of its environment, beside those of this process.
    """
    path = os.pathsep.join(filter(None, sys.path))
    with log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=file if stdout is None else stdout,
            stderr=file,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
            start_new_session=True,
        )


def end_process(process: subprocess.Popen[bytes], *, grace_seconds: float = 0.0) -> None:
    """Wait until a process that was asked to end has done so; kill it if that takes too long."""
    try:
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


class Server:
    """A module that prints its address when it listens.

    Args:
        *command: The module and its arguments.
        log: File for its standard error.

    Attributes:
        pid: Its process.
        address: Address at which it listens.

    Raises:
        RuntimeError: It does not start.
    """

    def __init__(self, *command: str, log: Path) -> None:
        self._process = start_process(*command, log=log, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()
        if not self.address:
            self.close()
            raise RuntimeError(f"{command[0]} does not start: see {log}")

    def close(self) -> None:
        """Kill it. All that it has acknowledged is on the disk."""
        self._process.kill()
        end_process(self._process)


class Workers:
    """Worker processes: ``pgflow workers``, as you would run them. None is started yet.

    Args:
        target: Their app, as MODULE:NAME.
        folder: Folder of their logs.
        environment: Variables with the addresses of the database and the other side. As arguments,
            all users could list them.
        queue: The queue that they serve.
        concurrency: Number of runs that each works on at once.
        dead_after_seconds: Without a sign of life for so long, one is dead for the others.
    """

    def __init__(
        self,
        target: str,
        folder: Path,
        environment: dict[str, str],
        *,
        queue: str,
        concurrency: int = 6,
        dead_after_seconds: float = 1.5,
    ) -> None:
        self._command = [
            *("pgflow_cli", "workers", target, "--supervised", "--queue", queue, "--poll", "0.2s"),
            *("--concurrency", str(concurrency), "--dead-after", f"{dead_after_seconds:g}s"),
        ]
        self._folder = folder
        self._environment = environment
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._logs: dict[int, Path] = {}

    def start_one(self) -> int:
        """Start one; return its process id."""
        log = self._folder / f"worker-{len(self._logs) + 1}.log"
        process = start_process(*self._command, log=log, environment=self._environment)
        self._running[process.pid], self._logs[process.pid] = process, log
        return process.pid

    @property
    def pids(self) -> list[int]:
        """Those that were started and not killed."""
        return list(self._running)

    def find_ended(self) -> Path | None:
        """Return the log of a worker that has ended by itself; None if all are running."""
        ended = (pid for pid, process in self._running.items() if process.poll() is not None)
        return next((self._logs[pid] for pid in ended), None)

    def send(self, pid: int, number: signal.Signals) -> None:
        """Send one a signal."""
        self._running[pid].send_signal(number)

    def kill(self, pid: int) -> None:
        """Kill one as a power cut would."""
        process = self._running.pop(pid)
        process.kill()
        end_process(process)

    def close(self) -> None:
        """Stop them as a deploy would: they finish or hand back their runs."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            end_process(process, grace_seconds=GRACE_SECONDS)
        self._running.clear()
