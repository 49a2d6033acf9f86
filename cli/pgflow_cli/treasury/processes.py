"""The processes beside this one: the bank, and the workers that come and go.

Each is in a session of its own, so that Ctrl-C reaches this process only, which then stops them in
order; and none outlives this process, even if it is killed (`attended`). What they have to say goes
to files in the folder of the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from pgflow_cli.treasury.client import ADDRESS

ATTENDED = "pgflow_cli.treasury.attended"
BANK = "pgflow_cli.treasury.bank"
WORKERS_APP = "pgflow_cli.treasury.workflow:app"

GRACE_SECONDS = 15.0
"""Seconds that a worker may take to stop before it is killed."""


def start_process(
    *command: str, log: Path, stdout: int | None = None, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a Python module as a process.

    Args:
        *command: The module and its arguments.
        log: File for its standard error.
        stdout: File for its standard output; the log if not given.
        environment: Variables of its environment, beside those of this process.
    """
    path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, "-m", ATTENDED, *command],
            stdin=subprocess.PIPE,
            stdout=file if stdout is None else stdout,
            stderr=file,
            env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(path)},
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


class BankProcess:
    """The bank, on a book that exists.

    Attributes:
        pid: Its process.
        address: Address at which it listens.
    """

    def __init__(
        self, book: Path, *, latency_ms: float = 0.0, lost_acks: float = 0.05, seed: int = 0
    ) -> None:
        """Starts it, and waits until it listens.

        Args:
            book: Its book.
            latency_ms: Time of a message each way, on average.
            lost_acks: Share of its acknowledgements that is lost.
            seed: Of which ones these are.

        Raises:
            RuntimeError: It does not start.
        """
        options = {
            "--book": book,
            "--latency-ms": latency_ms,
            "--lost-acks": lost_acks,
            "--seed": seed,
        }
        log = book.with_name("bank.log")
        self._process = start_process(BANK, *_words(options), log=log, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        self.address = _read_line(self._process.stdout)
        if not self.address:
            self.close()
            raise RuntimeError(f"the bank does not start: see {log}")

    def close(self) -> None:
        """Kill it. All that it has acknowledged is on the disk."""
        self._process.kill()
        end_process(self._process)


class Workers:
    """Worker processes: ``pgflow workers``, as you would run them."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        *,
        queue: str,
        concurrency: int,
        dead_after_seconds: float,
    ) -> None:
        """Prepares them; none is started yet.

        Args:
            folder: Folder of their logs.
            environment: Says where the database and the bank are.
            queue: The queue they serve.
            concurrency: Number of runs that each works on at once.
            dead_after_seconds: Without a sign of life for so long, one is dead for the others.
        """
        options = {
            "--queue": queue,
            "--concurrency": concurrency,
            "--dead-after": f"{dead_after_seconds:g}s",
            "--poll": "0.2s",
        }
        self._command = ["pgflow_cli", "workers", WORKERS_APP, *_words(options)]
        self._folder = folder
        self._environment = environment
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._logs: dict[int, Path] = {}

    def start_one(self) -> int:
        """Starts one; answers its process id."""
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
        return next(
            (
                self._logs[pid]
                for pid, process in self._running.items()
                if process.poll() is not None
            ),
            None,
        )

    def send(self, pid: int, number: signal.Signals) -> None:
        """Sends one a signal."""
        self._running[pid].send_signal(number)

    def kill(self, pid: int) -> None:
        """Kills one as a power cut would."""
        process = self._running.pop(pid)
        process.kill()
        end_process(process)

    def close(self) -> None:
        """Stops them as a deploy would: they finish or hand back what they have."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            end_process(process, grace_seconds=GRACE_SECONDS)
        self._running.clear()


def worker_environment(dsn: str, bank_address: str) -> dict[str, str]:
    """Return the variables with the addresses of database and bank. As arguments, all users could
    list them.
    """
    return {"PGFLOW_DSN": dsn, ADDRESS: bank_address}


def _words(options: dict[str, object]) -> list[str]:
    return [str(word) for pair in options.items() for word in pair]


def _read_line(stream: IO[bytes] | None) -> str:
    assert stream is not None, "the process was started with a pipe"
    return stream.readline().decode().strip()
