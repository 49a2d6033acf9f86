"""Worker processes for tests."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import psycopg
import servers
from servers import wait_until

APPS = Path(__file__).parents[1] / "apps"
KITS = Path(__file__).parent
FOLDERS = (APPS, KITS, KITS.parent)
"""Those in which a worker finds the modules of tests: the programs of the proof stand beside rooms."""


class WorkerProcess:
    """`pgflow workers` as a process of its own."""

    def __init__(self, dsn: str, *options: str, module: str = "worker_jobs") -> None:
        command = [
            "-m",
            "pgflow_cli",
            "workers",
            module,
            "--dead-after",
            "1s",
            "--poll",
            "0.2s",
            *options,
        ]
        environment = {
            **os.environ,
            "PGFLOW_DSN": dsn,
            "PYTHONPATH": os.pathsep.join([*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")]),
        }
        self._dsn = dsn
        self.process = forked.start(command, env=environment, cwd=APPS, stderr=subprocess.PIPE)
        self.pid = self.process.pid

    def registered(self) -> int:
        """Waits until the worker has registered; its number."""
        with psycopg.connect(servers.witness(self._dsn), autocommit=True) as conn:

            def number() -> Any:
                found = self.process.poll()
                assert found is None, f"the worker ended with {self.process.returncode}"
                row = conn.execute(
                    "select worker_id from pgflow.workers where pid = %s", (self.pid,)
                ).fetchone()
                return row and row[0]

            return int(wait_until(number, "a worker registers"))

    def send(self, number: int) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def finish(self) -> tuple[int, str]:
        """Waits for the end: exit code and what it logged."""
        _, log = self.process.communicate(timeout=servers.HANG_SECONDS)
        return self.process.returncode, log


@contextmanager
def worker(dsn: str, *options: str, module: str = "worker_jobs") -> Iterator[WorkerProcess]:
    """A worker process that is gone when the block ends."""
    started = WorkerProcess(dsn, *options, module=module)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGKILL)
        started.process.communicate()


def one(conn: psycopg.Connection[Any], query: str, *params: Any) -> Any:
    """The only value of the only row."""
    row = conn.execute(query, params).fetchone()
    assert row is not None
    return row[0]
