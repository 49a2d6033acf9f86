"""Processes of nodes: started by the worker's keeper, fed, read up to a bound, and ended with their
whole group when their time is over, when their step is given up, or when the worker dies.

What a process prints is kept in memory up to a bound. More than that goes to a file, which is named
by its hash: it is too long for a journal, and not lost.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from pgflow.declare.durable import keeper

_CHUNK_BYTES = 1 << 16
_DEATH_SECONDS = 5.0
"""Longest wait for the end of a group that was killed."""

MASKED = b"***"
"""Bytes in place of a secret."""

SHORTEST = 8
"""Characters of a line that is a secret by itself; ordinary words are shorter."""

_plain = partial(json.dumps, ensure_ascii=False)


class NotStarted(Exception):
    """A process could not be started: the program or folder does not exist, or may not be used."""


class TooLong(Exception):
    """A process printed more than is kept of it. It was killed."""


class KeeperLost(Exception):
    """The keeper has ended, and every process of the worker with it. The node has no result."""


@dataclass(frozen=True, slots=True)
class Order:
    """Order for one process.

    Args:
        argv: The program and its arguments.
        cwd: Working folder.
        env: All of its environment.
        stdin: Text on standard input.
        timeout_seconds: Longest time; None for no limit.
        idle_seconds: Longest time without output; None for no limit.
        most_bytes: Bytes of standard output that are kept in memory.
        spill_dir: Folder for output beyond that.
        spills_bytes: Longest output of that kind; None for no limit.
        secrets: Texts that are removed from all its output.
        hear: Called with its standard output, as it comes, without secrets.
        complain: The same for standard error.
    """

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes = b""
    timeout_seconds: float | None = None
    idle_seconds: float | None = None
    most_bytes: int = 1 << 20
    spill_dir: Path | None = None
    spills_bytes: int | None = None
    secrets: tuple[str, ...] = ()
    hear: Callable[[bytes], None] | None = None
    complain: Callable[[bytes], None] | None = None


class Mask:
    """Takes secrets out of a stream, also one that comes in two pieces.

    Args:
        secrets: The secrets. Of each, its lines are secrets too, as long as they are not so short
            that ordinary words would be hit. All are found in JSON too.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        lines = {line.strip() for secret in secrets for line in secret.splitlines()}
        words = {line for line in lines if len(line) >= SHORTEST}
        words |= {secret.strip() for secret in secrets}
        words |= {coded[1:-1] for word in words for coded in (_plain(word), json.dumps(word))}
        told = [word.encode("utf-8", "surrogateescape") for word in words if word]
        self._longest = max(map(len, told), default=0)
        told.sort(key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, told))) if told else None
        self._held = b""

    def put(self, chunk: bytes) -> bytes:
        """Take more; answer what cannot be a part of a secret any more."""
        if self._pattern is None:
            return chunk
        held, sure = self._held + chunk, bytearray()
        at, end = 0, len(held) - self._longest + 1
        for found in self._pattern.finditer(held):
            if found.start() >= end:
                break  # a longer one may begin here
            sure += held[at : found.start()] + MASKED
            at = found.end()
        if end > at:
            sure += held[at:end]
            at = end
        self._held = held[at:]
        return bytes(sure)

    def rest(self) -> bytes:
        """Return the last of the stream."""
        rest, self._held = self._held, b""
        return rest if self._pattern is None else self._pattern.sub(MASKED, rest)

    def text(self, text: str) -> str:
        """Return a whole text without the secrets."""
        if self._pattern is None:
            return text
        masked = self._pattern.sub(MASKED, text.encode("utf-8", "surrogatepass"))
        return masked.decode("utf-8", "surrogatepass")


@dataclass(slots=True)
class Output:
    """Text that a process has printed on one of its streams.

    Args:
        most_bytes: Bytes that are kept in memory.
        spill_dir: Folder for more; None to drop all but the last ones.
        spills_bytes: Longest output that is kept there; None for no limit.
        mask: Removes secrets.
        hear: Called with the output as it comes, without secrets.
        text: The bytes in memory: the first ones, or the last where the rest is dropped.
        size: Bytes in all.
        heard_at: Time at which the last of them came, on the loop's clock.
        path: File with all of it, if it is too long.
        digest: SHA-256 of that.
        has_nul: True if it has a NUL.
        ends_line: True if it ends with a line feed.
    """

    most_bytes: int
    spill_dir: Path | None = None
    spills_bytes: int | None = None
    mask: Mask = field(default_factory=lambda: Mask(()))
    hear: Callable[[bytes], None] | None = None
    text: bytearray = field(default_factory=bytearray)
    size: int = 0
    heard_at: float = 0.0
    path: str | None = None
    digest: str | None = None
    has_nul: bool = False
    ends_line: bool = False
    _spill: Any = None
    _hash: Any = None

    def add(self, chunk: bytes) -> None:
        """Take more."""
        self._keep(self.mask.put(chunk))

    def _keep(self, chunk: bytes) -> None:
        if self.hear is not None and chunk:
            self.hear(chunk)
        self.size += len(chunk)
        self.has_nul = self.has_nul or b"\0" in chunk
        self.ends_line = chunk.endswith(b"\n") if chunk else self.ends_line
        if self._spill is None and len(self.text) + len(chunk) <= self.most_bytes:
            self.text += chunk
        elif self.spill_dir is None:
            self.text += chunk
            del self.text[: max(0, len(self.text) - self.most_bytes)]
        else:
            spill = self._spill or self._open(self.spill_dir)
            if self.spills_bytes is not None and self.size > self.spills_bytes:
                self._drop()
                raise TooLong
            self.text += chunk[: max(0, self.most_bytes - len(self.text))]
            spill.write(chunk)
            self._hash.update(chunk)

    def _open(self, folder: Path) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        spill = self._spill = (folder / f".{os.urandom(8).hex()}").open("wb")
        self._hash = hashlib.sha256(self.text)
        spill.write(self.text)
        return spill

    def _drop(self) -> None:
        """Remove the file: it is too long to be kept."""
        self._spill.close()
        Path(self._spill.name).unlink()
        self._spill = self.spill_dir = None

    def close(self) -> None:
        """Write the rest of the output, and name its file by the hash of the content."""
        self._keep(self.mask.rest())
        if self._spill is None:
            return
        self._spill.flush()
        os.fsync(self._spill.fileno())
        self._spill.close()
        digest = self.digest = str(self._hash.hexdigest())
        path = Path(self._spill.name)
        self.path = str(path.rename(path.with_name(digest)))
        self._spill = None


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a process.

    Args:
        status: Exit code; negative, the signal that ended it.
        stdout: Text that it printed.
        stderr: The end of its error output.
        timed_out: True if it exceeded its time limit.
    """

    status: int
    stdout: Output
    stderr: Output
    timed_out: bool = False


async def run(order: Order) -> Ended:
    """Run a process to its end, with all that it starts in its group.

    Args:
        order: The process.

    Returns:
        Its end. A process that exceeded its time limit was killed.

    Raises:
        NotStarted: The program or folder does not exist, or may not be used.
        TooLong: It printed more than is kept.
        KeeperLost: The keeper was killed.
    """
    with _Pipes() as pipes:
        control = await _begin(order, pipes)
        try:
            return await _follow(order, pipes, control)
        except (asyncio.CancelledError, TooLong):
            with contextlib.suppress(Exception):
                await _kill(control)
            raise
        finally:
            control.close()


class _Pipes:
    """The ends of the three streams of a process: ours and its own."""

    def __init__(self) -> None:
        self.theirs: list[int] = []
        self.ours: list[int] = []

    def __enter__(self) -> Self:
        for number in range(3):
            reading, writing = os.pipe()
            self.theirs.append(writing if number else reading)
            self.ours.append(reading if number else writing)
            os.set_blocking(self.ours[-1], False)
        return self

    def hand_over(self) -> None:
        """Close the process's ends: it has copies of its own."""
        for descriptor in self.theirs:
            os.close(descriptor)
        self.theirs = []

    def take(self, number: int) -> Any:
        """One of our ends as a file, which is its taker's to close."""
        descriptor, self.ours[number] = self.ours[number], -1
        return os.fdopen(descriptor, "rb" if number else "wb", buffering=0)

    def __exit__(self, *_: object) -> None:
        for descriptor in (*self.theirs, *self.ours):
            if descriptor >= 0:
                os.close(descriptor)


class _Control:
    """The socket that is the life of a process, on which the keeper says a line of it at a time.

    Args:
        socket: Our end.
    """

    def __init__(self, socket: socket.socket) -> None:
        self.socket = socket
        self._said = b""

    async def hear(self) -> dict[str, Any]:
        """Return the next line.

        Raises:
            KeeperLost: The connection has ended.
        """
        loop = asyncio.get_running_loop()
        while b"\n" not in self._said:
            more = await loop.sock_recv(self.socket, _CHUNK_BYTES)
            if not more:
                raise KeeperLost("the keeper of processes has ended")
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def say(self, text: bytes) -> None:
        """Send bytes to the keeper."""
        await asyncio.get_running_loop().sock_sendall(self.socket, text)

    def close(self) -> None:
        """Give the process up, if it still runs."""
        self.socket.close()


async def _begin(order: Order, pipes: _Pipes) -> _Control:
    """Have the keeper start the process; answer the socket that is its life."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    control = _Control(ours)
    with theirs:
        _hand(theirs, pipes.theirs)
    pipes.hand_over()
    try:
        asked = {"argv": [*order.argv], "cwd": order.cwd, "env": {**order.env}}
        request = json.dumps(asked).encode()
        await control.say(keeper.LENGTH.pack(len(request)) + request)
        answer = await _hear_start(control)
    except BaseException as error:
        control.close()
        if isinstance(error, ConnectionError):
            raise KeeperLost("the keeper of processes has ended") from error
        raise
    if answer["error"]:
        control.close()
        raise NotStarted(f"{order.argv[0]} cannot be run: {answer['error']}")
    return control


def _hand(control: socket.socket, streams: Sequence[int]) -> None:
    """Give the keeper a socket and the streams of a process; a new keeper if the old one is
    gone.
    """
    handed = [control.fileno(), *streams]
    try:
        socket.send_fds(_keepers.current(), [b"x"], handed)
    except OSError:
        socket.send_fds(_keepers.current(anew=True), [b"x"], handed)


async def _hear_start(control: _Control) -> dict[str, Any]:
    """Return the keeper's answer to a request. If this wait is cancelled, the keeper may have
    started the process all the same; it is then gone before this ends.
    """
    hearing = asyncio.ensure_future(control.hear())
    try:
        return await asyncio.shield(hearing)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_DEATH_SECONDS):
                if not (await hearing)["error"]:
                    await _kill(control)
        hearing.cancel()
        raise


async def _follow(order: Order, pipes: _Pipes, control: _Control) -> Ended:
    """Feed and read a process until it has ended and its streams are closed."""
    loop = asyncio.get_running_loop()
    stdout = Output(
        order.most_bytes, order.spill_dir, order.spills_bytes, Mask(order.secrets), order.hear
    )
    stderr = Output(_CHUNK_BYTES, mask=Mask(order.secrets), hear=order.complain)
    stdout.heard_at = stderr.heard_at = loop.time()
    end = asyncio.create_task(control.hear())
    feeding = asyncio.create_task(_feed(pipes, order.stdin)) if order.stdin else None
    if feeding is None:
        pipes.take(0).close()
    streams = [_Stream(pipes.ours[1], stdout), _Stream(pipes.ours[2], stderr)]
    try:
        waited: list[asyncio.Future[Any]] = [end, *(stream.closed for stream in streams)]
        timed_out = not await _finish({*waited}, order, stdout, stderr)
        if timed_out:
            await control.say(b"k")
        status = (await end)["status"]
    finally:
        for stream in streams:
            stream.leave()
        begun: list[asyncio.Task[Any]] = [end] if feeding is None else [end, feeding]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        stdout.close()
        stderr.close()
    return Ended(status, stdout, stderr, timed_out)


class _Stream:
    """A stream of a process that is read until all who could write to it have closed it.

    Args:
        descriptor: Our end of it.
        output: Takes what comes.
    """

    def __init__(self, descriptor: int, output: Output) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._output = output
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
            self._output.heard_at = self._loop.time()
            self._output.add(chunk)
        except BlockingIOError:
            return
        except (OSError, TooLong) as error:
            self._loop.remove_reader(self._descriptor)
            self.closed.set_exception(error)
            return
        if not chunk:
            self._loop.remove_reader(self._descriptor)
            self.closed.set_result(None)

    def leave(self) -> None:
        """Read no more of it."""
        self._loop.remove_reader(self._descriptor)
        self.closed.cancel()


async def _finish(
    tasks: set[asyncio.Future[Any]], order: Order, stdout: Output, stderr: Output
) -> bool:
    """Wait until a process is through; False if its time, or the patience with it, is over."""
    loop = asyncio.get_running_loop()
    deadline = None if order.timeout_seconds is None else loop.time() + order.timeout_seconds
    while tasks:
        ends = [] if deadline is None else [deadline]
        if order.idle_seconds is not None:
            ends.append(max(stdout.heard_at, stderr.heard_at) + order.idle_seconds)
        left = min(ends) - loop.time() if ends else None
        if left is not None and left <= 0:
            return False
        done, tasks = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    return True


async def _kill(control: _Control) -> None:
    """Kill a group, and wait until it is gone."""
    async with asyncio.timeout(_DEATH_SECONDS):
        await control.say(b"k")
        while "status" not in await control.hear():
            pass


async def _feed(pipes: _Pipes, text: bytes) -> None:
    """Write standard input, as fast as it is read, and close it."""
    loop = asyncio.get_running_loop()
    with pipes.take(0) as writing:
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, writing
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(text)
                await writer.drain()
        finally:
            transport.close()


class _Keepers:
    """The keeper of this process, started when the first one is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._of = 0

    def current(self, *, anew: bool = False) -> socket.socket:
        """Return the socket of a keeper that lives as long as this process."""
        with self._lock:
            if anew:
                self._end()
            if self._socket is None or self._of != os.getpid():
                self._start()
            assert self._socket is not None
            return self._socket

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", "-S", keeper.__file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                env={},
            )
        self._socket, self._of = ours, os.getpid()

    def close(self) -> None:
        """End the keeper, and every process with it."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
            if self._process is not None and self._of == os.getpid():
                self._process.wait()
        self._socket = self._process = None


_keepers = _Keepers()
atexit.register(_keepers.close)


def close_keeper() -> None:
    """End whatever nodes have left in the background of this process."""
    _keepers.close()
