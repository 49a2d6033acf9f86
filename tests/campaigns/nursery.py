"""Worker processes in a few milliseconds: one process imports everything once, and forks a child
for each request.

It holds no connection and no thread, so that a child begins clean; requests and answers are lines
of JSON. The faults of the campaigns - signals - go to the children directly. When its standard
input ends, because whoever started it is gone, it takes its children along.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from tests.kits.servers import wait_until

ROOT = Path(__file__).parents[2]


class Child:
    """A process of the nursery."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._code: int | None = None

    def send(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it as a crash does, and returns when it is gone."""
        self.send(signal.SIGKILL)
        self.wait()

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it lives."""
        if self._code is None:
            self._code = self._nursery.ask("poll", self.pid)
        return self._code

    def wait(self) -> int:
        """Waits for its end; the exit code."""
        wait_until(lambda: self.code is not None, f"process {self.pid} ends")
        assert self._code is not None
        return self._code


class Nursery:
    """A process that forks others.

    Args:
        roles: Module whose functions its children play.
        **environment: More of its environment.
    """

    def __init__(self, roles: str = "tests.campaigns.roles", **environment: str) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns.nursery", roles],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def start(self, role: str, dsn: str, **options: Any) -> Child:
        """Forks a child that plays a role: a function of the module of roles."""
        return Child(self, self.ask("start", role, dsn, options))

    def ask(self, *request: Any) -> Any:
        """Sends a request; the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


def main() -> None:
    """Answers requests until there are no more."""
    roles = importlib.import_module(sys.argv[1])
    gc.freeze()  # else a child would copy what it only looks at
    living: set[int] = set()
    codes: dict[int, int | None] = {}
    try:
        for line in sys.stdin:
            verb, *rest = json.loads(line)
            if verb == "start":
                answer: int | None = _start(roles, *rest)
                assert answer is not None
                living.add(answer)
                codes.pop(answer, None)
            elif (answer := codes.get(rest[0])) is None:  # two threads may ask after one end
                answer = codes[rest[0]] = _poll(rest[0])
                if answer is not None:
                    living.discard(rest[0])
            print(json.dumps(answer), flush=True)
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)


def _poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _start(roles: Any, role: str, dsn: str, options: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        # Whoever started us may ignore it, as in the background of a script; what is ignored stays
        # so.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)  # what a child prints is no answer
        os.environ["PGFLOW_DSN"] = dsn
        code = getattr(roles, role)(dsn, **options) or 0
    except KeyboardInterrupt:
        code = 130
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
