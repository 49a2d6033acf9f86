"""Files that appear: a run for each content of each path, once; and the tasks beside the worker,
which look for them and take webhooks.

Folders are polled, since no notification works on every file system. A file is taken once two looks
found it the same, so one that is still being written waits. The key of its run has its path and
content. A document records each file that was taken, so a file that is still there starts no second
run after its first was pruned.
"""

from __future__ import annotations

import asyncio
import glob
import hashlib
import logging
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import NamedTuple

import psycopg

from pgflow.console.output import shown
from pgflow.documents import AsyncDocuments, Put
from pgflow.errors import NotStorable, PgflowError
from pgflow.webhooks import Endpoint
from pgflow_cli.ops.served.starts import Starts, key_of_file
from pgflow_cli.ops.served.triggers import Trigger

log = logging.getLogger("pgflow")

COLLECTION = "pgflow.served"
_CHUNK = 1 << 20


class Look(NamedTuple):
    """State of a file. If two looks are equal, the file is no longer being written."""

    inode: int
    size: int
    changed_ns: int


@dataclass
class Arrivals:
    """Looks at the files of triggers.

    Args:
        starts: Starts the runs.
        folder: Folder from which patterns are seen.
        seconds: Time between looks.
    """

    starts: Starts
    folder: Path
    seconds: float
    _seen: dict[tuple[str, str], Look] = field(default_factory=dict)
    _taken: dict[tuple[str, str], Look] = field(default_factory=dict)

    async def watch(self) -> None:
        """Look at the files again and again. A failure is retried at the next look."""
        while True:
            try:
                await self.look()
            except (PgflowError, psycopg.Error, OSError, TimeoutError) as error:
                log.warning("files that appear are looked at later: %s", shown(str(error))[:500])
            await asyncio.sleep(self.seconds)

    async def look(self) -> None:
        """Take the files that have appeared, and set schedules whose files have changed."""
        if await asyncio.to_thread(self.starts.flows.refresh):
            await self.starts.set_schedules()
        for trigger in self.starts.triggers:
            if trigger.source == "files":
                await self._look_for(trigger)

    async def _look_for(self, trigger: Trigger) -> None:
        found = await asyncio.to_thread(lambda: dict(matches(self.folder, trigger.value)))
        here = {(trigger.name, path): look for path, look in found.items()}
        for place, look in here.items():
            if self._seen.get(place) == look and self._taken.get(place) != look:
                await self._take(trigger, place, look)
        for known in (self._seen, self._taken):
            for place in [one for one in known if one[0] == trigger.name and one not in here]:
                del known[place]
        self._seen |= here

    async def _take(self, trigger: Trigger, place: tuple[str, str], look: Look) -> None:
        """Start the run of a file, unless it has had one."""
        path = place[1]
        digest = await asyncio.to_thread(digest_of, path, look)
        if digest is None:
            return
        name = _relative(path, self.folder)
        key = key_of_file(trigger, name, digest)
        documents, address = AsyncDocuments(self.starts.app), (trigger.name, key)
        if not await documents.get(COLLECTION, [address]):
            event = {"path": path, "name": name, "sha256": digest}
            try:
                await self.starts.start(trigger, key, event)
            except NotStorable as error:
                log.warning(
                    "trigger %s: %s cannot be an input: %s", trigger.name, ascii(path), error
                )
            else:
                await documents.put([Put(COLLECTION, address, {"key": key}, once=True)])
        self._taken[place] = look


def _relative(path: str, folder: Path) -> str:
    """Return a path as seen from a folder, which it need not be below."""
    return os.path.relpath(path, folder)


def matches(folder: Path, pattern: str) -> Iterator[tuple[str, Look]]:
    """Regular files that a pattern fits, the hidden ones left out.

    Args:
        folder: Folder from which it is seen.
        pattern: Pattern, as in ``inbox/**/*.md``.
    """
    for path in sorted(glob.iglob(str(folder / pattern), recursive=True)):  # noqa: PTH207 - absolute ones too
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield path, Look(found.st_ino, found.st_size, found.st_mtime_ns)


def digest_of(path: str, look: Look) -> str | None:
    """Hash of a file's content; None if it is not what was found by the look.

    Args:
        path: Its path.
        look: Result of the look at it.
    """
    digest = hashlib.sha256()
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            found = os.fstat(file.fileno())
    except OSError:
        return None
    is_same = look == Look(found.st_ino, found.st_size, found.st_mtime_ns)
    return digest.hexdigest() if is_same else None


@asynccontextmanager
async def go_on(
    arrivals: Arrivals, endpoints: list[Endpoint], listening: socket | None
) -> AsyncIterator[None]:
    """Look at the files, and take webhooks that come in, until the context is left."""
    starts = arrivals.starts
    await starts.remove_schedules(arrivals.folder)
    await starts.set_schedules()
    tasks = [asyncio.create_task(arrivals.watch())]
    if listening is not None:
        tasks.append(asyncio.create_task(_take_webhooks(starts, endpoints, listening)))
    log.info("%s: %d triggers", arrivals.folder, len(starts.triggers))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _take_webhooks(starts: Starts, endpoints: list[Endpoint], listening: socket) -> None:
    from pgflow.web.serving import make_server
    from pgflow.webhooks import asgi

    server = make_server(asgi(starts.app, endpoints))
    host, port = listening.getsockname()[:2]
    for endpoint in endpoints:
        log.info("webhook %s: http://%s:%s/%s", endpoint.name, host, port, endpoint.name)
    await server.serve(sockets=[listening])


def listen(host: str, port: int) -> socket:
    """Return a socket at which webhooks come in.

    Raises:
        InvalidArgument: Nothing can listen there.
    """
    import uvicorn  # noqa: F401 - before a run is started

    from pgflow.web.serving import listen_at

    return listen_at(host, port)
