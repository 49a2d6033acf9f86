"""Several worker processes under one: ``pgflow workers --processes N``.

Each is ``pgflow workers`` with the options of its supervisor and a standard input that stays open
as long as the supervisor lives. To stop them, the supervisor closes it. A second signal would be a
crash, and systemd has already sent SIGTERM to all processes; and a closed pipe reaches them even if
the supervisor is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgflow_cli.look.failures import FAILED, USAGE

if TYPE_CHECKING:
    from pgflow_cli.ops.options import Endpoints
    from pgflow_cli.ops.serving import Stop

_PAUSES_SECONDS = (0.5, 30.0)
"""Pause before a process is started again after its first death in a row, and the longest one."""

_SOUND_SECONDS = 60.0
"""Seconds that a process works before its death is the first in a row again."""

_log = logging.getLogger("pgflow")


def follow_supervisor(stop: Stop) -> None:
    """Stop once standard input has ended; for a process that has a supervisor."""

    def wait() -> None:
        with suppress(OSError):
            os.read(sys.stdin.fileno(), 1)
        stop.ask()

    threading.Thread(target=wait, name="pgflow supervisor", daemon=True).start()


@dataclass
class Supervisor:
    """Keeps worker processes at work.

    A process that dies is started again, later each time. One that ends with a mistake, such as a
    module that does not exist, ends all of them with its code.

    Attributes:
        arguments: Arguments of the command, of which each process gets a copy.
        endpoints: Endpoints of the first process; those of the others have the ports that follow.
        nodes: Node of the cluster for each process; empty without a cluster.
    """

    arguments: Sequence[str]
    endpoints: Endpoints
    nodes: Sequence[int] = ()
    _code: int = 0
    _pids: set[int] = field(default_factory=set)

    async def run(self, number: int, stop: Stop) -> int:
        """Keep so many processes at work until they are asked to stop; return the exit code."""
        self._asked, stop.crash = stop.event(), self._kill
        async with asyncio.TaskGroup() as group:
            for place in range(number):
                group.create_task(self._keep(place))
        return self._code

    async def _keep(self, place: int) -> None:
        """Keep one process at work."""
        command = [sys.executable, "-m", "pgflow_cli", *self.arguments, *self._own(place)]
        pause = first = _PAUSES_SECONDS[0]
        while not self._asked.is_set():
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
            self._pids.add(process.pid)
            _log.info("worker process %d has pid %d", place + 1, process.pid)
            code = await self._end_of(process)
            self._pids.discard(process.pid)
            if code == USAGE or self._asked.is_set():
                self._code = self._code or (code if code >= 0 else FAILED)
                self._asked.set()
                return
            pause = first if time.monotonic() - began > _SOUND_SECONDS else pause
            _log.error(
                "worker process %d (pid %d) %s; starting another in %g s",
                place + 1,
                process.pid,
                f"exited with {code}" if code >= 0 else f"was killed by signal {-code}",
                pause,
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), pause)
            pause = min(2 * pause, _PAUSES_SECONDS[1])

    def _kill(self) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _end_of(self, process: asyncio.subprocess.Process) -> int:
        """Wait until a process has ended, which it is asked to do with the others."""
        ended = asyncio.create_task(process.wait())
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if process.stdin is not None:
            process.stdin.close()
        return await ended

    def _own(self, place: int) -> list[str]:
        """Options that one process has instead of those given."""
        own = ["--processes", "1", "--supervised"]
        if self.nodes:
            own += ["--node", str(self.nodes[place])]
        for name, address in (
            ("--metrics-port", self.endpoints.metrics),
            ("--health-port", self.endpoints.probes),
        ):
            if address is not None and address[1]:
                own += [name, str(address[1] + place)]
        return own
